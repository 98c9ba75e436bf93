#!/bin/sh
# format.sh ROOT: every source file is as clang-format would write it.
set -eu
cd "$1"
command -v clang-format >/dev/null || { echo "clang-format is missing" >&2; exit 1; }
find common proto jobspec webhook kernels checkpoint identity rpc comm session library trainer agent server client observer python tests bench \
    -name '*.c' -o -name '*.h' -o -name '*.cc' -o -name '*.cu' | sort | xargs clang-format --dry-run -Werror
