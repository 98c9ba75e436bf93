#!/bin/sh
# test_pack.sh ROOT: the archive for a machine with a GPU (scripts/gpu-pack), unpacked in a system that has Debian's C and C++
# libraries and nothing else: all that its programs name is there but CUDA's own, and each program says what is missing.
# In a full run; needs root and mmdebstrap.
set -eu
skip() { echo "skipped: $1"; exit 77; }
[ -n "${CAIRN_TEST_FULL:-}" ] || skip "in a full run only"
[ "$(id -u)" = 0 ] || skip "needs root"
command -v mmdebstrap >/dev/null || skip "no mmdebstrap"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$1/scripts/gpu-pack" "$work/pack.tar.gz"
mmdebstrap --quiet --variant=essential --include=libstdc++6 bookworm "$work/root" >/dev/null 2>"$work/log" ||
    { cat "$work/log"; exit 1; }
tar -C "$work/root/tmp" -xzf "$work/pack.tar.gz"

inside() { chroot "$work/root" /usr/bin/env LD_LIBRARY_PATH=/tmp/cairn-gpu/lib \
    CAIRN_CUDA_MODULE=/tmp/cairn-gpu/bin/cairn-cuda.so "$@"; }
for file in "$work"/root/tmp/cairn-gpu/bin/*; do
    missing=$(inside ldd "/tmp/cairn-gpu/bin/$(basename "$file")" | awk '/not found/ { print $1 }' |
        grep -vE '^lib(cublasLt|cudnn[a-z_]*|cupti|nccl)\.so' || true)
    [ -z "$missing" ] || { echo "$(basename "$file"): $missing is missing"; exit 1; }
done
says() { # STATUS TEXT PROGRAM...
    status=$1 text=$2 got=0
    shift 2
    inside "$@" >"$work/said" 2>&1 || got=$?
    if [ "$got" != "$status" ] || ! grep -q "$text" "$work/said"; then
        echo "$*: status $got, not $status with '$text':"
        cat "$work/said"
        exit 1
    fi
}
bin=/tmp/cairn-gpu/bin
says 4 "device cuda: " "$bin/cairn-trainer" --check cuda
says 0 "not known without the device" "$bin/cairn-trainer" --plan /tmp/cairn-gpu/jobs/gpt2.yaml
for test in test_ops_cuda test_shapes_cuda test_nccl; do says 77 "skipped: device cuda: " "$bin/$test"; done
for test in test_loop_layouts_gpu test_loop_regroup_gpu; do says 77 "no device: device cuda: " "$bin/$test"; done
says 0 "usage" "$bin/cairn" --help
says 77 "skipped: no GPU" "$bin/test_attention_gpu"
says 2 "device cuda: " "$bin/gpu" gpt2
chroot "$work/root" /tmp/cairn-gpu/run.sh 5 /tmp/out >"$work/said" 2>&1 || { cat "$work/said"; exit 1; }
grep -q "^nccl: status 77" "$work/said" || { cat "$work/said"; exit 1; }
