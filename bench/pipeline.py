#!/usr/bin/python3
"""pipeline: two stages on two cores against one worker on one; owners against none.

    pipeline [--rounds N] [--steps N] [--micros N,N] [--schedules NAME,NAME] [--bin DIR] [--source DIR]

A GPT-2 of equal layers is cut in the middle, with 8, 16 and 32 micro-batches, by each schedule. The bubble is what the
worker that computes longest doesn't compute between the first forward of a step and its last backward, on any worker, by
what it does compute: by the marks of both workers' flight recorders, the newest steps that are there whole. "unsent" is what
it would be if the same computations, as long as they took, waited for no message on its way (of 1f1b and gpipe). The formula
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

SCHEDULES = ("1f1b", "gpipe", "interleaved", "zb-h1")
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


def actions_of(records):
    """{step: [[phase, begin, end, computes], ...]} of one worker, an entry for each forward and each backward, in seconds; not
    of the step that its records begin in. A backward that waits until what it sent is gone goes on after that."""
    found = {}
    for (_, _, before), (at, step, phase), (end, _, _) in zip(records, records[1:], records[2:]):
        actions = found.setdefault(step, [])
        if phase not in COMPUTES:
            continue
        if actions and (before == "pipe" or actions[-1][0] == "data"):
            actions[-1] = [phase, actions[-1][1], end, actions[-1][3] + end - at]
        else:
            actions.append([phase, at, end, end - at])
    return {step: found[step] for step in sorted(found)[1:] if found[step]}


def unsent(first, last):
    """How long two stages take for their actions where messages take no time."""
    done, clocks, at = {}, [0.0, 0.0], [0, 0]
    counts = [{"forward": 0, "backward": 0}, {"forward": 0, "backward": 0}]
    while at[0] < len(first) or at[1] < len(last):
        moved = False
        for stage, actions in enumerate((first, last)):
            while at[stage] < len(actions):
                phase, _, _, computes = actions[at[stage]]
                micro = counts[stage][phase]
                needs = (0, "forward", micro) if phase == "forward" else (1, "backward", micro)
                if needs[0] != stage and needs not in done:
                    break
                clocks[stage] = max(clocks[stage], done.get(needs, 0) if needs[0] != stage else 0) + computes
                done[stage, phase, micro] = clocks[stage]
                counts[stage][phase] += 1
                at[stage] += 1
                moved = True
        if not moved:
            return float("nan")
    return max(clocks)


def bubbles(workers):
    """Of each step that all have whole: (bubble, that without messages, the longest computation by the shortest)."""
    found = []
    for step in set.intersection(*(set(worker) for worker in workers)):
        actions = [worker[step] for worker in workers]
        computes = [sum(action[3] for action in one) for one in actions]
        span = max(one[-1][2] for one in actions) - min(one[0][1] for one in actions)
        found.append([time / max(computes) - 1 for time in (span, unsent(*actions))] + [max(computes) / min(computes)])
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--micros", default="8,16,32", help="micro-batches of a step")
    parser.add_argument("--schedules", default=",".join(SCHEDULES))
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    schedules = args.schedules.split(",")
    if args.steps < 4 or not set(schedules) <= set(SCHEDULES):
        parser.error("--steps: 4 or more, the first two don't count; --schedules: " + ", ".join(SCHEDULES))
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from flights import flights
    from home import Home

    def job(micros, count, stages=1, schedule="1f1b", zero=0):
        return JOB.format(steps=args.steps, batch=4 * micros, count=count, stages=stages, schedule=schedule, zero=zero)

    cases = [("bubble", int(micros), schedule) for micros in args.micros.split(",") for schedule in schedules]
    parts = {"interleaved": 2, "zb-h1": 3}  # of the others' bubble
    with Home() as home:
        for name, micros, schedule in cases:
            alone, piped, found = [], [], []
            for _ in range(args.rounds):
                alone.append(step_ms(rows_of(home, home.submit(job(micros, 1)))))
                both = home.submit(job(micros, 2, 2, schedule))
                piped.append(step_ms(rows_of(home, both)))
                found += bubbles([actions_of(records) for records in flights(home, both)])
            one, two = statistics.median(alone), statistics.median(piped)
            bubble, alike, longest = (round(statistics.median(of), 3) for of in zip(*found))
            formula = 1 / micros / parts.get(schedule, 1)
            print(json.dumps({"bench": "pipeline", "case": f"{name} {schedule} m {micros}", "value": bubble,
                              "unit": "of the computation", "yardstick": "the formula", "yardstick_value": round(formula, 4),
                              "least": round(min(b for b, *_ in found), 3), "steps": len(found),
                              "unsent": alike if schedule in ("1f1b", "gpipe") else None, "longest_by_shortest": longest,
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
