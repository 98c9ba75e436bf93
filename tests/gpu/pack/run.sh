#!/bin/sh
# run.sh CALL [OUT]: what is asked of a GPU, from the archive that scripts/gpu-pack makes. Each call stands alone and leaves
# its logs in OUT/callCALL. The seconds are those of an H100 with 16 cores, where they were seen; each call ends after
# LIMIT seconds (530), whatever it is at.
#
#   1  does it live: the module, all kernels, products and convolutions at their real size, layouts (45 s)
#   2  speed: kernels, GPT-2 124M, ResNet-50, and where their time goes (60 s)
#   3  bits: digests twice, eagerly, and beside a process that keeps the device busy (30 s)
#   5  NCCL: ranks on the one device, one of them killed and stopped; exact against fast reduction (20 s and more)
#   6  whole jobs through cairnd, agent and trainer, with kills and stops
#   4  compute-sanitizer: memory, races, what was never written (minutes)
#   7  PyTorch's numbers on the same device (100 s); it compiles first
#
# What needn't be alone on the device runs side by side.
set -u
here=$(cd "$(dirname "$0")" && pwd)
call=${1:?run.sh CALL [OUT]}
out=${2:-$here/out}/call$call
python=${PYTHON:-python3}
limit_all=${LIMIT:-530}
mkdir -p "$out"
begin=$(date +%s)

# CUDA's own libraries are those beside PyTorch, if it is there; else the loader's.
site=$("$python" -c 'import importlib.util as u, os
print(os.path.dirname(os.path.dirname(u.find_spec("torch").origin)))' 2>/dev/null)
cuda=
[ -n "$site" ] && for folder in "$site"/nvidia/*/lib; do cuda=$cuda:$folder; done
export CAIRN_CUDA_MODULE="$here/bin/cairn-cuda.so"
libraries=$here/lib$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# step NAME SECONDS COMMAND...: logged, with a limit; a line for who watches.
step() {
    name=$1 limit=$2
    shift 2
    left=$((limit_all - $(date +%s) + begin))
    [ "$left" -lt 5 ] && { echo "$name: no time left"; return; }
    [ "$limit" -gt "$left" ] && limit=$left
    from=$(date +%s)
    timeout -k 5 "$limit" "$@" >"$out/$name.log" 2>&1
    status=$?
    echo "$name: status $status, $(($(date +%s) - from)) s"
}
# The same, with our libraries.
ours() {
    name=$1 limit=$2
    shift 2
    step "$name" "$limit" env LD_LIBRARY_PATH="$libraries" "$@"
}
digest() { # NAME JOB [VARIABLE=VALUE]
    ours "$1" 60 env "${3:-NOTHING=}" "$here/bin/cairn-trainer" --local "$here/jobs/$2.yaml" --steps 20 --digest
}
timeline() { # CASE
    [ -f "$here/bin/libgpu_timeline.so" ] || { echo "timeline of $1: built without CUPTI"; return; }
    ours "timeline-$1" 60 env CUDA_INJECTION64_PATH="$here/bin/libgpu_timeline.so" GPU_TIMELINE="$out/$1.timeline" \
        "$here/bin/gpu" "$1"
    "$python" "$here/gpu_timeline.py" "$out/$1.timeline" >"$out/$1.kernels" 2>&1
}

case $call in
1)
    step smi 10 nvidia-smi
    step versions 60 "$python" -c 'import torch
print(torch.__version__, torch.version.cuda, torch.backends.cudnn.version(), torch.cuda.nccl.version())'
    ours libraries 10 ldd "$here/bin/cairn-cuda.so"
    ours check 60 "$here/bin/cairn-trainer" --check cuda
    ours plan 60 "$here/bin/cairn-trainer" --plan "$here/jobs/resnet50.yaml"
    for test in test_ops_cuda test_shapes_cuda test_attention_gpu test_loop_layouts_gpu \
        test_loop_regroup_gpu; do
        ours "$test" 120 "$here/bin/$test" &
    done
    wait
    ;;
2)
    for case in kernels gpt2 resnet50; do ours "$case" 60 "$here/bin/gpu" "$case"; done
    for case in gpt2 resnet50; do timeline "$case"; done
    ;;
3)
    for job in resnet50 gpt2; do
        digest "$job-first" "$job" &
        digest "$job-again" "$job" &
        digest "$job-eager" "$job" CAIRN_CUDA_EAGER=1 &
    done
    wait
    env LD_LIBRARY_PATH="$libraries" timeout 200 "$here/bin/test_shapes_cuda" --busy >/dev/null 2>&1 &
    busy=$!
    for job in resnet50 gpt2; do digest "$job-beside" "$job"; done
    kill "$busy" 2>/dev/null
    ;;
4)
    ours memcheck 250 compute-sanitizer --tool memcheck "$here/bin/test_ops_cuda" &
    ours racecheck-attention 250 compute-sanitizer --tool racecheck "$here/bin/test_attention_gpu" &
    ours racecheck 250 compute-sanitizer --tool racecheck "$here/bin/test_ops_cuda" &
    ours initcheck 250 compute-sanitizer --tool initcheck "$here/bin/test_ops_cuda" &
    wait
    ;;
5)
    ours nccl 240 "$here/bin/test_nccl"
    ours reduction 150 "$here/bin/gpu" reduction
    ;;
6)
    step jobs 400 env CAIRN_BIN="$here/bin" CAIRN_LIBRARIES="$libraries" "$python" -m pytest -v -rA -p no:cacheprovider \
        "$here/tests/gpu/jobs"
    ;;
7)
    step torch 270 "$python" "$here/torch_gpu.py" copy matmul attention gpt2 resnet50
    ;;
*)
    echo "run.sh: no call $call" >&2
    exit 2
    ;;
esac
