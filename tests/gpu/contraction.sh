#!/bin/sh
# contraction.sh NVCC ROOT SOURCE WORK: fails if a kernel of SOURCE, compiled as CMake does (-fmad=false), has a product
# and a sum in float32 that are one instruction; or if without that option it has none, so that this would find nothing.
set -eu
ptx="$4/$(basename "$3").contraction.ptx"
compile() { "$1" -std=c++17 -arch=sm_90 -ftz=true "$2" -ptx -I "$3" -o "$ptx" "$4"; }
compile "$1" -fmad=true "$2" "$3"
grep -q 'fma\.rn\.ftz\.f32' "$ptx" || { echo "$3: nothing to contract in it" >&2; exit 1; }
compile "$1" -fmad=false "$2" "$3"
if grep -n 'fma\.rn\.\(ftz\.\)\?f32' "$ptx" >&2; then exit 1; fi
grep -q "$(basename "$3").* PROPERTIES COMPILE_OPTIONS -fmad=false" "$2/kernels/cuda/CMakeLists.txt"
