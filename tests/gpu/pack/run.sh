#!/bin/sh
# run.sh CALL [OUT]: what is asked of a GPU, from the archive that scripts/gpu-pack makes. Each call ends within nine
# minutes, stands alone and leaves one log, OUT/callCALL.log. The order is 1 3 5, then 2 4.
#
#   1  does it live: the module, kernels at their real size, first speeds
#   2  where time goes: kernels by name, and PyTorch's numbers on the same device
#   3  bits: digests twice, eagerly, and beside a process that keeps the device busy
#   4  compute-sanitizer: memory, races, what was never written
#   5  NCCL: ranks on the one device, one of them killed and stopped (it can hang, so it comes last)
set -u
here=$(cd "$(dirname "$0")" && pwd)
call=${1:?run.sh CALL [OUT]}
out=${2:-$here/out}
python=${PYTHON:-python3}
mkdir -p "$out"
log=$out/call$call.log
: >"$log"
begin=$(date +%s)

# CUDA's own libraries are those beside PyTorch, if it is there; else the loader's.
site=$("$python" -c 'import os, torch; print(os.path.dirname(os.path.dirname(torch.__file__)))' 2>/dev/null)
cuda=
[ -n "$site" ] && for folder in "$site"/nvidia/*/lib; do cuda=$cuda:$folder; done
export CAIRN_CUDA_MODULE="$here/bin/cairn-cuda.so"
ours=$here/lib$cuda${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}

# step NAME SECONDS COMMAND...: logged, with a limit; a line for who watches.
step() {
    name=$1 limit=$2
    shift 2
    left=$((530 - $(date +%s) + begin))
    [ "$left" -lt 15 ] && { echo "$name: no time left" | tee -a "$log"; return; }
    [ "$limit" -gt "$left" ] && limit=$left
    echo "== $name: $*" >>"$log"
    from=$(date +%s)
    timeout -k 5 "$limit" "$@" >>"$log" 2>&1
    status=$?
    echo "$name: status $status, $(($(date +%s) - from)) s" | tee -a "$log"
}
# The same, with our libraries.
ours() {
    name=$1 limit=$2
    shift 2
    step "$name" "$limit" env LD_LIBRARY_PATH="$ours" "$@"
}
digest() { # NAME JOB [VARIABLE=VALUE]
    ours "$1" 60 env ${3:-NOTHING=} "$here/bin/cairn-trainer" --local "$here/jobs/$2.yaml" --steps 20 --digest
}

case $call in
1)
    step smi 10 nvidia-smi
    ours libraries 10 ldd "$here/bin/cairn-cuda.so"
    ours check 60 "$here/bin/cairn-trainer" --check cuda
    ours plan 60 "$here/bin/cairn-trainer" --plan "$here/jobs/resnet50.yaml"
    ours ops 90 "$here/bin/test_ops_cuda"
    ours shapes 120 "$here/bin/test_shapes_cuda"
    ours attention 90 "$here/bin/test_attention_gpu"
    for case in kernels gpt2 resnet50; do ours "bench-$case" 60 "$here/bin/gpu" "$case"; done
    ;;
2)
    for case in gpt2 resnet50; do
        ours "ncu-$case" 130 ncu --clock-control none --metrics gpu__time_duration.sum --csv --launch-count 1200 \
            --kill yes "$here/bin/gpu" "$case"
    done
    step torch 270 "$python" "$here/torch_gpu.py" copy matmul attention gpt2 resnet50
    ;;
3)
    for job in resnet50 gpt2; do
        digest "$job-first" "$job"
        digest "$job-again" "$job"
        digest "$job-eager" "$job" CAIRN_CUDA_EAGER=1
    done
    env LD_LIBRARY_PATH="$ours" timeout 200 "$here/bin/test_shapes_cuda" --busy >/dev/null 2>&1 &
    busy=$!
    for job in resnet50 gpt2; do digest "$job-beside" "$job"; done
    kill "$busy" 2>/dev/null
    ours ops 90 "$here/bin/test_ops_cuda"
    ;;
4)
    ours memcheck 150 compute-sanitizer --tool memcheck "$here/bin/test_ops_cuda"
    ours racecheck-attention 170 compute-sanitizer --tool racecheck "$here/bin/test_attention_gpu"
    ours racecheck 110 compute-sanitizer --tool racecheck "$here/bin/test_ops_cuda"
    ours initcheck 90 compute-sanitizer --tool initcheck "$here/bin/test_ops_cuda"
    ;;
5)
    ours nccl 240 "$here/bin/test_nccl"
    ours reduction 150 "$here/bin/gpu" reduction
    ;;
*)
    echo "run.sh: no call $call" >&2
    exit 2
    ;;
esac
