#!/usr/bin/python3
"""recovery: time from SIGKILL of workers to the next new step, and what it consists of.

    recovery [--rounds N] [--all] [--memory] [--bin DIR]

Two workers train ResNet-18 on synthetic images. A worker, or with --all both, are killed; the clock runs
until a step is finished that no worker had finished before, as the workers' flight recorders have it.
Checkpoints every 5 steps; with --memory a copy in memory every step and no checkpoint. Prints
JSON lines and a table.

Yardstick of one worker: torchrun, which needs 3.5 s at best on such a machine (2 workers, Gloo, one node;
measured with its stale rendezvous keys worked around), and repeats all steps since its checkpoint. With
--all --memory: 0.5 s and one step.
"""
import argparse
import json
import os
import signal
import statistics
import struct
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
TORCHRUN_S = 3.5
GOAL_S = 0.5

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
"""
STORE = "checkpoint: {every: 5 steps, keep: {last: 2}, store: checkpoints/}\n"
MEMORY = "checkpoint: {every: 100000 steps, memory_every: 1 step, store: checkpoints/}\n"


def flight(home, job, generation, rank):
    """What the flight recorder of a worker holds (common/flight.h): [(seconds, finished steps, phase)]."""
    path = home.home / f"jobs/{job}/g{generation}/r{rank}.flight"
    data = path.read_bytes() if path.exists() else b""
    records = []
    for at in range(4096, len(data) - 63, 64):
        number, nanoseconds, step, kind, _, _, name = struct.unpack_from("<QqQIIQ24s", data, at)
        if number and kind == 1:
            records.append((nanoseconds / 1e9, step, name.split(b"\0")[0].decode()))
    return sorted(records)


def both(home, job, generation):
    return sorted(flight(home, job, generation, 0) + flight(home, job, generation, 1))


def steps_of(records):
    """Seconds of each step of one worker."""
    first = {}
    for at, step, _ in records:
        first.setdefault(step, at)
    return [first[n + 1] - first[n] for n in first if n + 1 in first]


def breakdown(records, killed, end):
    """Where the time went, of rank 0."""
    at = {}
    for when, _, phase in records:
        at.setdefault(phase, when)
    names = ["forming", "restore", "data"]
    marks = [killed] + [at.get(name, end) for name in names] + [end]
    labels = ["detect and start", "form", "restore", "first step"]
    return {label: marks[i + 1] - marks[i] for i, label in enumerate(labels)}


def one_round(home, job, everybody, memory):
    before = home.show(job)
    victims = before["workers"] if everybody else before["workers"][1:2]
    killed = time.monotonic()
    for victim in victims:
        os.kill(victim["pid"], signal.SIGKILL)
    generation = before["generation"] + 1
    while True:
        finished = max(step for _, step, _ in both(home, job, generation - 1))
        new = [at for at, step, phase in both(home, job, generation) if step > finished]
        if new:
            break
        if time.monotonic() - killed > 60:
            raise SystemExit("no new step within 60 s: " + json.dumps(home.show(job)))
        time.sleep(0.02)
    records = flight(home, job, generation, 0)
    restored = next(step for _, step, phase in records if phase == "data")
    texts = [event["message"] for event in home.show(job)["events"] if event["generation"] == generation]
    if memory and not any("restored from memory" in text for text in texts):
        raise SystemExit("not restored from memory: " + json.dumps(texts))
    return min(new) - killed, breakdown(records, killed, min(new)), finished - restored


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--all", action="store_true", help="kill all workers")
    parser.add_argument("--memory", action="store_true", help="copies in memory instead of checkpoints")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from home import Home, until

    times, steps, losses, parts = [], [], [], {}
    with Home(env={"CAIRN_HANG_MS": "60000", "CAIRN_WATCHDOG_MS": "60000"}) as home:
        job = home.submit(JOB + (MEMORY if args.memory else STORE))
        for _ in range(args.rounds):
            goal = home.show(job)["step"] + 8
            until(lambda goal=goal: home.show(job)["step"] >= goal and len(home.show(job)["workers"]) == 2, 60,
                  "the job trains")
            steps += steps_of(flight(home, job, home.show(job)["generation"], 0))[1:]
            seconds, causes, lost = one_round(home, job, args.all, args.memory)
            times.append(seconds)
            losses.append(lost)
            for cause, value in causes.items():
                parts.setdefault(cause, []).append(value)
        home.cairn("kill", job)
    median, step = statistics.median(times), statistics.median(steps)
    who = "all workers" if args.all else "a worker"
    goal, name = (GOAL_S + step, "0.5 s and a step") if args.all and args.memory else (TORCHRUN_S, "torchrun at best")
    print(json.dumps({"bench": "recovery", "case": f"SIGKILL of {who} to next new step"
                      + (", from memory" if args.memory else ""), "value": round(median, 3),
                      "unit": "s", "yardstick": name, "yardstick_value": round(goal, 3),
                      "ratio": round(median / goal, 3)}))
    print(f"recovery, {args.rounds} rounds: median {median:.3f} s, min {min(times):.3f}, max {max(times):.3f}; "
          f"a step {step:.3f} s", file=sys.stderr)
    print(f"    finished steps that were lost, at most: {max(losses)}", file=sys.stderr)
    for cause, values in parts.items():
        print(json.dumps({"bench": "recovery", "case": cause, "value": round(statistics.median(values), 3),
                          "unit": "s", "yardstick": "whole", "yardstick_value": round(median, 3),
                          "ratio": round(statistics.median(values) / median, 3)}))
        print(f"    {cause:16} {statistics.median(values):.3f} s", file=sys.stderr)


main()
