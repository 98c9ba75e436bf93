#!/usr/bin/python3
"""recovery: time from SIGKILL of a worker to the next new step, and what it consists of.

    recovery [--rounds N] [--home-bin DIR]

Two workers train ResNet-18 on synthetic images with a checkpoint every step or so; a worker is killed;
the clock runs until a step is finished that no worker had finished before. Prints JSON lines and a table.
Yardstick: torchrun, which needs 3.5 s at best on such a machine (2 workers, Gloo, one node; measured with
its stale rendezvous keys worked around), and repeats all steps since its checkpoint.
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
TORCHRUN_S = 3.5

JOB = """\
name: recovery
model: {arch: resnet18, classes: 10}
data: {train: {format: synthetic, samples: 4096}}
train:
  duration: 100000 steps
  global_batch: 16
  lanes: 2
  optimizer: {name: sgd, lr: 0.01, momentum: 0.9}
  schedule: {name: constant}
  seed: 1
workers: {count: 2, device: cpu}
checkpoint: {every: 5 steps, keep: {last: 2}, store: checkpoints/}
"""


def one_round(home, job):
    before = home.show(job)
    victim = before["workers"][1]["pid"]
    lost = before["lost_seconds"]
    os.kill(victim, signal.SIGKILL)
    start = time.monotonic()
    mark = home.show(job)["step"]
    while True:
        shown = home.show(job)
        if shown["generation"] > before["generation"] and shown["step"] > max(mark, before["step"]):
            break
        if time.monotonic() - start > 60:
            raise SystemExit("no new step within 60 s: " + json.dumps(shown))
    seconds = time.monotonic() - start
    parts = {cause: shown["lost_seconds"][cause] - lost.get(cause, 0) for cause in shown["lost_seconds"]}
    return seconds, parts


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from home import Home, until

    times, parts = [], {}
    with Home() as home:
        job = home.submit(JOB)
        for _ in range(args.rounds):
            goal = home.show(job)["step"] + 8
            until(lambda goal=goal: home.show(job)["step"] >= goal and len(home.show(job)["workers"]) == 2, 60,
                  "the job trains")
            seconds, causes = one_round(home, job)
            times.append(seconds)
            for cause, value in causes.items():
                parts.setdefault(cause, []).append(value)
        home.cairn("kill", job)
    median = statistics.median(times)
    print(json.dumps({"bench": "recovery", "case": "worker SIGKILL to next new step", "value": round(median, 3),
                      "unit": "s", "yardstick": "torchrun at best", "yardstick_value": TORCHRUN_S,
                      "ratio": round(median / TORCHRUN_S, 3)}))
    print(f"recovery, {args.rounds} rounds: median {median:.3f} s, min {min(times):.3f}, max {max(times):.3f}",
          file=sys.stderr)
    for cause, values in parts.items():
        print(json.dumps({"bench": "recovery", "case": cause, "value": round(statistics.median(values), 3),
                          "unit": "s", "yardstick": "whole", "yardstick_value": round(median, 3),
                          "ratio": round(statistics.median(values) / median, 3)}))
        print(f"    {cause:8} {statistics.median(values):.3f} s", file=sys.stderr)


main()
