#!/usr/bin/python3
"""steps: what a step costs when nothing fails, against another version, or without audits.

    steps [--old BIN] [--audit] [--checksum] [--pairs N] [--steps N] [--batch N] [--bin DIR] [--source DIR]

Two workers train ResNet-18 on synthetic images, each with one thread, without checkpoints and copies. Pairs of runs,
this side and that in turn, the first of each pair alternating; of each run STEPS steps after the first ten. A
machine's speed drifts by more from run to run than what is looked for, so that processor time (of all threads of both
workers) is what counts; the time on the wall stands beside it. Prints JSON lines and a table: medians over the pairs
of the ratios, with the quartiles.

    old       the programs in --old BIN, of an earlier version: this one's step as a ratio to its (goal: at most 1.01)
    audit     audits and checksums ten times as often as by default (every 20 and 10 steps), as a ratio to none; a
              tenth of what they add is what they add by default (goal: at most 0.015 of a step)
    checksum  checksums alone, ten times as often as by default, as a ratio to none (goal: a tenth at most 0.005)
"""
import argparse
import json
import os
import signal
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SKIPPED = 10

JOB = """\
name: steps
model: {{arch: resnet18, classes: 10}}
data: {{train: {{format: synthetic, samples: 4096}}}}
train:
  duration: 1000000 steps
  global_batch: {batch}
  lanes: 4
  optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
  schedule: {{name: constant}}
  seed: 1
workers: {{count: 2, device: cpu, threads: 1}}
checkpoint: {{every: 1000000 steps, memory_every: none, store: checkpoints/}}
{more}
"""
NO_AUDIT = "audit: {every: none, checksum: none}"
OFTEN = "audit: {every: 20 steps, checksum: 10 steps}"
CHECKSUMS = "audit: {every: none, checksum: 10 steps}"


def spent_by(pids):
    """Seconds of processor time of all their threads that live."""
    spent = 0
    for pid in pids:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            spent += int((thread / "schedstat").read_text(encoding="utf-8").split()[0])
    return spent / 1e9


def wait_step(home, job, step):
    """(step, processor time, clock) once it is there; the three are read as one, for a step is a third of a second."""
    while True:
        shown = home.show(job)
        if shown["step"] >= step and shown["workers"]:
            return shown["step"], spent_by([worker["pid"] for worker in shown["workers"]]), time.monotonic()
        time.sleep(0.02)


def one_run(args, programs, more):
    """(processor time, time) of a step."""
    args.home.BIN = Path(programs)
    env = {"CAIRN_HANG_MS": "60000", "CAIRN_WATCHDOG_MS": "60000"}
    with args.home.Home(env=env) as home:
        job = home.submit(JOB.format(batch=args.batch, more=more))
        begin = wait_step(home, job, SKIPPED)
        end = wait_step(home, job, begin[0] + args.steps)
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")
    count = end[0] - begin[0]
    return (end[1] - begin[1]) / count, (end[2] - begin[2]) / count


def compare(args, case, these, those):
    """Sides: (folder of programs, lines of the job file)."""
    pairs = []
    for i in range(args.pairs):
        runs = {}
        for side in ("these", "those") if i % 2 == 0 else ("those", "these"):
            runs[side] = one_run(args, *(these if side == "these" else those))
        pairs.append(runs)
        print(f"{case} {i + 1}: {runs['these'][0]:.4f} and {runs['those'][0]:.4f} s of processor time, "
              f"{runs['these'][1]:.4f} and {runs['those'][1]:.4f} s", file=sys.stderr, flush=True)
    for what, index in (("processor", 0), ("wall", 1)):
        ratios = sorted(pair["these"][index] / pair["those"][index] for pair in pairs)
        low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
        value, yardstick = (statistics.median(pair[side][index] for pair in pairs) for side in ("these", "those"))
        print(json.dumps({"bench": "steps", "case": f"{case}/{what}", "value": round(value, 5), "unit": "s",
                          "yardstick": "the other side", "yardstick_value": round(yardstick, 5),
                          "ratio": round(ratio, 4)}), flush=True)
        print(f"{case}/{what:10} {value:.4f} s against {yardstick:.4f}: {ratio:.4f} ({low:.4f} to {high:.4f} in the "
              f"middle half of {len(pairs)} pairs)", file=sys.stderr, flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--old", help="folder with the programs of an earlier version")
    parser.add_argument("--audit", action="store_true")
    parser.add_argument("--checksum", action="store_true")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    if not (args.old or args.audit or args.checksum):
        parser.error("nothing to compare: give --old, --audit or --checksum")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its home goes with it
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    import home

    args.home = home
    if args.old:
        compare(args, "old", (args.bin, ""), (args.old, ""))
    if args.audit:
        compare(args, "audit", (args.bin, OFTEN), (args.bin, NO_AUDIT))
    if args.checksum:
        compare(args, "checksum", (args.bin, CHECKSUMS), (args.bin, NO_AUDIT))


main()
