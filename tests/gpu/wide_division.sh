#!/bin/sh
# wide_division.sh NVCC ROOT SOURCE WORK: fails if a kernel of SOURCE divides 64-bit integers, of which a GPU has no
# instruction: each is some seventy others.
set -eu
ptx="$4/$(basename "$3").ptx"
"$1" -std=c++17 -arch=sm_90 -ptx -I "$2" -o "$ptx" "$3"
grep -q '\.visible \.entry\|\.entry' "$ptx" || { echo "$3: no kernel in it" >&2; exit 1; }
if grep -nE '(div|rem)\.[su]64' "$ptx" >&2; then exit 1; fi
