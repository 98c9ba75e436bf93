#!/bin/sh
# clang_tidy.sh ROOT BUILD: clang-tidy over all C files of the product that BUILD compiles, by its commands.
set -eu
cd "$1"
headers="^$(pwd -P)/(common|job|kernels|checkpoint|rpc|comm|session|trainer|agent|server|client|tests)/"
files=$(find common job kernels checkpoint rpc comm session trainer agent server client -name '*.c' | sort)
compiled=
for file in $files; do # the CUDA backend is compiled only where its headers are
    if grep -qF "/$file\"" "$2/compile_commands.json"; then compiled="$compiled $file"; fi
done
echo "$compiled" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$2" --header-filter "$headers" --quiet 2>/dev/null
