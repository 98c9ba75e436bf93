#!/usr/bin/python3
"""pipeline: two stages on two cores against one worker on one; owners against none.

    pipeline [--rounds N] [--steps N] [--bin DIR] [--source DIR]

A GPT-2 of equal layers is cut in the middle, with 8, 16 and 32 micro-batches, by each schedule. The bubble is what the
worker that computes longest doesn't compute between the first forward of a step and its last backward, on any worker, by
what it does compute: by the marks of both workers' flight recorders, the newest steps that are there whole. The formula
is (p - 1)/m, of interleaved a half of it, of zb-h1 a third, with halves of a backward that take as long as a forward. What
else a step takes beyond half of one worker's is told besides: the two cores slow each other down, and the cut is never quite
in the middle. Then two workers of a job with all of the
optimizer's moments each, and with a part each (parallel.zero: 1). Rounds alternate; medians of the steps but the
first two. Prints JSON lines and a table.
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent

COMPUTES = ("data", "forward", "backward")
JOB = """\
name: pipeline
model: {{arch: gpt2, layers: 8, heads: 4, width: 128, context: 64, vocab: 256}}
data: {{train: {{format: synthetic, samples: 4096}}}}
train:
  duration: {steps} steps
  global_batch: {batch}
  lanes: 8
  micro_batch: 4
  optimizer: {{name: adamw, lr: 0.001}}
  seed: 1
workers: {{count: {count}, device: cpu, threads: 1}}
parallel: {{pipeline: {stages}, schedule: {schedule}, zero: {zero}}}
checkpoint: {{every: 100000 steps, keep: {{last: 1}}, store: checkpoints/, memory_every: none}}
audit: {{checksum: none}}
"""


def rows_of(home, job):
    """Of rank 0, the steps but the first two."""
    home.wait_state(job, "SUCCEEDED", seconds=900)
    rows = [json.loads(line) for line in home.cairn("metrics", job, "-o", "jsonl").stdout.splitlines()]
    return [row for row in rows if row["step"] > 2]


def step_ms(rows):
    return statistics.median(1000 * row["seconds"] for row in rows)


def spans(records):
    """{step: (begin, end, computes)} of one worker, in seconds; not of the step that its records begin in."""
    found = {}
    for (at, step, phase), (end, _, _) in zip(records, records[1:]):
        if phase in COMPUTES:
            begin, _, computes = found.get(step, (at, end, 0))
            found[step] = (begin, end, computes + end - at)
    return {step: found[step] for step in sorted(found)[1:]}


def bubbles(workers):
    """Of each step that all have whole: (bubble, the longest computation by the shortest)."""
    found = []
    for step in set.intersection(*(set(worker) for worker in workers)):
        begins, ends, computes = zip(*(worker[step] for worker in workers))
        found.append(((max(ends) - min(begins)) / max(computes) - 1, max(computes) / min(computes)))
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from flights import flights
    from home import Home

    def job(micros, count, stages=1, schedule="1f1b", zero=0):
        return JOB.format(steps=args.steps, batch=4 * micros, count=count, stages=stages, schedule=schedule, zero=zero)

    cases = [("bubble", micros, schedule) for micros in (8, 16, 32) for schedule in ("1f1b", "gpipe", "interleaved", "zb-h1")]
    parts = {"interleaved": 2, "zb-h1": 3}  # of the others' bubble
    with Home() as home:
        for name, micros, schedule in cases:
            alone, piped, found = [], [], []
            for _ in range(args.rounds):
                alone.append(step_ms(rows_of(home, home.submit(job(micros, 1)))))
                both = home.submit(job(micros, 2, 2, schedule))
                piped.append(step_ms(rows_of(home, both)))
                found += bubbles([spans(records) for records in flights(home, both)])
            one, two = statistics.median(alone), statistics.median(piped)
            bubble, formula = statistics.median(b for b, _ in found), 1 / micros / parts.get(schedule, 1)
            print(json.dumps({"bench": "pipeline", "case": f"{name} {schedule} m {micros}", "value": round(bubble, 3),
                              "unit": "of the computation", "yardstick": "the formula", "yardstick_value": round(formula, 4),
                              "least": round(min(b for b, _ in found), 3), "steps": len(found),
                              "longest_by_shortest": round(statistics.median(r for _, r in found), 3),
                              "one_ms": round(one, 1), "stages_ms": round(two, 1), "more_than_half": round(2 * two / one - 1, 3)}),
                  flush=True)
        whole, owned = [], []
        for _ in range(args.rounds):
            whole.append(step_ms(rows_of(home, home.submit(job(16, 2)))))
            owned.append(step_ms(rows_of(home, home.submit(job(16, 2, zero=1)))))
        print(json.dumps({"bench": "pipeline", "case": "zero 1, two workers", "value": round(statistics.median(owned), 1),
                          "unit": "ms", "yardstick": "zero 0", "yardstick_value": round(statistics.median(whole), 1),
                          "ratio": round(statistics.median(owned) / statistics.median(whole), 3)}))


main()
