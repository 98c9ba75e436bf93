#!/usr/bin/python3
"""memory: what activations take with `train.recompute` none, selective and full, beside PyTorch's checkpointing.

    memory [--model resnet50|resnet152|gpt2] [--batch N] [--seq TOKENS] [--steps N] [--modes NAME,NAME]
           [--peer DIR] [--bin DIR]

Trains in one process with one thread, once with N samples in a micro-batch and once with half of them. What the second
half of the samples adds to the most that the process has in memory is theirs; weights, moments and libraries are in both
runs. PyTorch (an environment in --peer, or CAIRN_PEER; without it ours alone) allocates as it goes, and has its peak in
the update: of it torch_memory.py measures what forward and backward add, with nothing computed again and with
torch.utils.checkpoint over each block. Prints JSON lines and a table: MiB for a sample, the process's peak, and seconds
of a step, with the ratios to `none` of the same side and to PyTorch's; and the peak as a ratio to what `cairn plan` says.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
MIB = 1024  # getrusage counts in KiB
MODES = ("none", "selective", "full")
PEER_MODES = ("none", "checkpoint")

JOB = """\
name: memory
model: {model}
data: {{train: {{format: synthetic, samples: 64}}}}
train:
  duration: 1000 steps
  global_batch: {batch}
  lanes: 1
  micro_batch: {batch}
  optimizer: {optimizer}
  recompute: {mode}
workers: {{count: 1, threads: 1}}
checkpoint: {{store: {store}}}
"""


def measured(command, environment):
    """(output, the most KiB that the process had in memory)"""
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as child:
        output = child.stdout.read()
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode != 0:
        sys.exit(f"memory: {' '.join(map(str, command))}: ended with {child.returncode}")
    return output, usage.ru_maxrss


def planned(options, job):
    said = subprocess.run([options.bin / "cairn", "plan", job], capture_output=True, text=True, check=True).stdout
    return float(re.search(r"^worker +([\d.]+) MiB", said, re.MULTILINE)[1])


def train(options, mode, batch, folder):
    text = options.model == "gpt2"
    model = f"{{arch: gpt2, context: {options.seq}}}" if text else f"{{arch: {options.model}, classes: 10}}"
    optimizer = "{name: adamw, lr: 1e-4}" if text else "{name: sgd, lr: 0.01, momentum: 0.9}"
    job = Path(folder) / "job.yaml"
    job.write_text(JOB.format(model=model, optimizer=optimizer, batch=batch, mode=mode, store=folder), encoding="utf-8")
    command = [options.bin / "cairn-trainer", "--local", job, "--steps", str(options.steps)]
    output, peak = measured(command, os.environ)
    seconds = [float(ms) / 1000 for ms in re.findall(r"^step .* ms (\S+)", output, re.MULTILINE)]
    return peak / MIB, statistics.median(seconds), planned(options, job)


def run_ours(options, mode, folder):
    half, _, _ = train(options, mode, options.batch // 2, folder)
    peak, seconds, plan = train(options, mode, options.batch, folder)
    return {"sample": (peak - half) / (options.batch - options.batch // 2), "peak": peak, "seconds": seconds,
            "of the plan": peak / plan}


def run_theirs(options, mode, _):
    command = [options.peer / "bin/python", HERE / "torch_memory.py", options.model, "--mode", mode,
               "--batch", str(options.batch), "--seq", str(options.seq), "--steps", str(options.steps)]
    output, peak = measured(command, {**os.environ, "OMP_NUM_THREADS": "1"})
    said = json.loads(output.splitlines()[-1])
    return {"sample": said["activations"] / options.batch, "peak": peak / MIB, "seconds": said["seconds"]}


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="resnet152", choices=["resnet50", "resnet152", "gpt2"])
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--peer", type=Path, default=os.environ.get("CAIRN_PEER"))
    parser.add_argument("--bin", type=Path, default=HERE.parent / "bin")
    options = parser.parse_args()
    options.peer = Path(options.peer) if options.peer else None
    if options.batch < 2 or options.steps < 1:
        parser.error("--batch has to be at least 2, --steps at least 1")
    return options


def main():
    options = arguments()
    cases = [("cairn", mode, run_ours) for mode in options.modes.split(",")]
    if options.peer:
        cases += [("torch", mode, run_theirs) for mode in PEER_MODES]
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for side, mode, run in cases:
            found[side, mode] = run(options, mode, folder)
            for unit, value in found[side, mode].items():
                print(json.dumps({"bench": "memory", "case": f"{options.model}/{side} {mode}/{unit}",
                                  "value": round(value, 3)}), flush=True)
    print(f"\n{options.model}, batch {options.batch}: MiB for a sample, of it `none` keeps 1; the peak; seconds of a step")
    for (side, mode), row in found.items():
        first = found.get((side, "none"), row)
        print(f"{side:6} {mode:10} {row['sample']:9.1f} {row['sample'] / first['sample']:6.2f} {row['peak']:9.0f} "
              f"{row['seconds']:8.2f} {row['seconds'] / first['seconds']:6.2f}"
              + (f"   {row['of the plan']:.3f} of what the plan says" if side == "cairn" else ""))
    for ours, theirs in (("none", "none"), ("full", "checkpoint")):
        if ("torch", theirs) in found and ("cairn", ours) in found:
            ratio = found["cairn", ours]["sample"] / found["torch", theirs]["sample"]
            print(f"cairn {ours} takes {ratio:.2f} of torch {theirs}")


if __name__ == "__main__":
    main()
