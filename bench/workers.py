#!/usr/bin/python3
"""workers: two workers of one job on two cores against two unconnected one-worker jobs side by side.

    workers [--rounds N] [--steps N] [--batch N]

Both train ResNet-18 on synthetic images with the same lane size. The two jobs share nothing but the
machine; the two workers also exchange gradients. Rounds alternate; the ratio is that of the medians.
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

JOB = """\
name: workers
model: {{arch: resnet18, classes: 10}}
data: {{train: {{format: synthetic, samples: 8192}}}}
train:
  duration: {steps} steps
  global_batch: {batch}
  lanes: {lanes}
  optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
  schedule: {{name: constant}}
  seed: 1
workers: {{count: {count}, device: cpu}}
checkpoint: {{every: 100000 steps, keep: {{last: 1}}, store: checkpoints/, memory_every: none}}
"""


def median_rate(home, job):
    """Images/s by the median over the job's steps, the first two left out."""
    home.wait_state(job, "SUCCEEDED", seconds=900)
    first = json.loads(home.cairn("watch", job, "-o", "jsonl").stdout.splitlines()[0])
    return statistics.median(row["samples_per_s"] for row in first["rows"] if row["step"] > 2)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--batch", type=int, default=128, help="of one worker")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    if args.steps < 3:
        parser.error("--steps: 3 or more; the first two don't count")
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from home import Home

    pair, alone = [], []
    with Home() as home:
        for _ in range(args.rounds):
            one = JOB.format(steps=args.steps, batch=args.batch, lanes=1, count=1)
            jobs = [home.submit(one, train__seed=1), home.submit(one, train__seed=2)]
            alone.append(sum(median_rate(home, job) for job in jobs))
            two = JOB.format(steps=args.steps, batch=2 * args.batch, lanes=2, count=2)
            pair.append(median_rate(home, home.submit(two)))
    value, yardstick = statistics.median(pair), statistics.median(alone)
    print(json.dumps({"bench": "workers", "case": "resnet18 2 workers", "value": round(value, 2),
                      "unit": "images/s", "yardstick": "two unconnected jobs",
                      "yardstick_value": round(yardstick, 2), "ratio": round(value / yardstick, 3)}))
    print(f"two workers {value:.1f} images/s, two unconnected jobs together {yardstick:.1f}: "
          f"{value / yardstick:.3f}", file=sys.stderr)


main()
