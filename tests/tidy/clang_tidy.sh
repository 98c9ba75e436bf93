#!/bin/sh
# clang_tidy.sh ROOT BUILD: clang-tidy over all C files of the product, with the compile commands of BUILD.
set -eu
cd "$1"
files=$(find common job kernels checkpoint rpc comm session trainer agent server client -name '*.c' | sort)
echo "$files" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$2" --quiet 2>/dev/null
