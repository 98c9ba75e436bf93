#!/bin/sh
# clang_tidy.sh ROOT BUILD: clang-tidy over C files of the product that BUILD compiles, by its commands: a twentieth of
# them, which one is by the commit, or all where CAIRN_TEST_FULL is set.
set -eu
cd "$1"
headers="^$(pwd -P)/(common|jobspec|webhook|kernels|checkpoint|identity|rpc|comm|session|library|trainer|agent|server|client|observer|tests)/"
files=$(find common jobspec webhook kernels checkpoint identity rpc comm session library trainer agent server client observer -name '*.c' | sort)
commit=$(git rev-parse HEAD 2>/dev/null || echo 0)
turn=$(printf '%d' "0x$(echo "$commit" | cut -c1-7)")
compiled=
for file in $files; do # the CUDA backend is compiled only where its headers are
    turn=$((turn + 1))
    if [ -z "${CAIRN_TEST_FULL:-}" ] && [ $((turn % 20)) != 0 ]; then continue; fi
    if grep -qF "/$file\"" "$2/compile_commands.json"; then compiled="$compiled $file"; fi
done
echo "$compiled" | xargs -P "$(nproc)" -n 4 clang-tidy -p "$2" --header-filter "$headers" --quiet 2>/dev/null
