#!/bin/sh
# install.sh BUILD SOURCE: what `cmake --install --component library` installs is enough to build the example, as
# docs/libcairn.md says, and to run it without Cairn.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cmake --install "$1" --component library --prefix "$folder" >/dev/null
PKG_CONFIG_PATH=$(dirname "$(find "$folder" -name cairn.pc)")
export PKG_CONFIG_PATH
# The flags are several words.
# shellcheck disable=SC2046
cc -Wall -Werror -o "$folder/example" "$2/examples/library.c" $(pkg-config --cflags --libs cairn) -lm
LD_LIBRARY_PATH=$(pkg-config --variable=libdir cairn) "$folder/example" 3 0 "$folder/state" >"$folder/steps"
[ "$(cat "$folder/steps")" = "step 1
step 2
step 3" ]
[ "$(wc -c <"$folder/state.0")" = 32033 ] # 16016 bytes in hex, and a newline
grep -q '^\.SH NAME' "$(find "$folder" -name libcairn.3)"
