#!/bin/sh
# install.sh BUILD SOURCE: what `cmake --install --component library` installs is enough to build the examples, as
# docs/libcairn.md and docs/model.md say, and to run the program without Cairn.
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
grep -q '^cairn-model ' "$(find "$folder" -name cairn-model.3)"
# shellcheck disable=SC2046
cc -Wall -Werror -shared -fPIC $(pkg-config --cflags cairn) -o "$folder/model.so" "$2/examples/model/model.c"
nm -D --defined-only "$folder/model.so" | grep -q ' cairn_model_make$'
