#!/usr/bin/python3
"""unequal: four workers of unequal speed, lanes by speed against even ones.

    unequal [--seconds N] [--lanes N] [--batch N] [--only CASE,CASE] [--bin DIR] [--source DIR]

Workers of LeNet on synthetic images get 0.5, 0.5, 0.42 and 0.42 of a core by a control group's quota, which needs
root. Samples a second over SECONDS, once lanes lie where they stay:

    sum      the yardstick: four jobs of one worker each, with these quotas, side by side, before and after
    one      one worker with all of two cores
    even     workers.shares: a list of equal numbers
    auto     workers.shares: auto (goal: at least 0.95 of the sum)
    moves    auto with 0.5 for each, of which one has 0.25 in the middle: steps until lanes lie elsewhere, and samples
             a second then, against the sum of four jobs with these quotas (goal: at least 0.95)

Digests of even, auto and one are compared after as many steps as all have. Prints JSON lines and a table.
"""
import argparse
import json
import os
import signal
import sys
import time
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent
PERIOD_US = 4000  # as short as a quota of a fourth can be: who waits for others waits for their quota, too
UNEQUAL = (0.5, 0.5, 0.42, 0.42)
SLOWED = (0.5, 0.5, 0.5, 0.25)

JOB = """\
name: unequal
model: {{arch: lenet, classes: 10}}
data: {{train: {{format: synthetic, samples: 65536}}}}
train:
  duration: {steps} steps
  global_batch: {batch}
  lanes: {lanes}
  optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
  schedule: {{name: constant}}
  seed: 1
workers: {{count: {count}, device: cpu, threads: 1{more}}}
checkpoint: {{every: 1000000 steps, keep: {{last: 1}}, store: checkpoints/, memory_every: none}}
"""


class Quota:
    """A control group (version 1 or 2) for one process, with part of a core."""

    def __init__(self, name):
        one = Path("/sys/fs/cgroup/cpu")
        self.v1 = one.is_dir()
        self.dir = (one if self.v1 else Path("/sys/fs/cgroup")) / f"cairn-bench-{os.getpid()}-{name}"
        self.dir.mkdir()

    def set(self, cores):
        quota = int(cores * PERIOD_US)
        if self.v1:
            (self.dir / "cpu.cfs_period_us").write_text(str(PERIOD_US), encoding="ascii")
            (self.dir / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        else:
            (self.dir / "cpu.max").write_text(f"{quota} {PERIOD_US}", encoding="ascii")

    def take(self, pid):
        (self.dir / "cgroup.procs").write_text(str(pid), encoding="ascii")


@contextmanager
def quotas(cores):
    made = []
    try:
        for i, part in enumerate(cores):
            made.append(Quota(i))
            made[-1].set(part)
        yield made
    finally:
        for quota in made:
            while quota.dir.exists():
                try:
                    quota.dir.rmdir()
                except OSError:  # its process is about to end
                    time.sleep(0.1)


def workers_of(home, job, count):
    while True:
        pids = [worker["pid"] for worker in home.show(job)["workers"]]
        if len(pids) == count and all(pids) and home.show(job)["step"] > 0:
            return pids
        time.sleep(0.1)


def rate(home, jobs, args):
    """Samples a second of all of them, from the end of a step to the end of another: of a few long steps half of
    one would be much."""
    def end_of_step(job):
        step = home.show(job)["step"]
        while home.show(job)["step"] == step:
            time.sleep(0.02)
        return home.show(job)["step"], time.monotonic()

    def now():
        return [end_of_step(job) for job in jobs]

    before = now()
    time.sleep(args.seconds)
    return sum((b[0] - a[0]) * args.batch / (b[1] - a[1]) for a, b in zip(before, now()))


def submit(home, args, count, shares="", steps=1000000):
    more = f", shares: {shares}" if shares else ""
    return home.submit(JOB.format(batch=args.batch, lanes=args.lanes, count=count, more=more, steps=steps))


def end(home, jobs):
    for job in jobs:
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")


def sum_of_speeds(home, args, cores):
    """Four jobs, each with a fourth of the batch, so that a step is as long as that of the one job."""
    part = argparse.Namespace(**{**vars(args), "batch": args.batch // 4, "lanes": args.lanes // 4})
    with quotas(cores) as made:
        jobs = [submit(home, part, 1) for _ in cores]
        for job, quota in zip(jobs, made):
            quota.take(workers_of(home, job, 1)[0])
        time.sleep(2)
        found = rate(home, jobs, part)
        end(home, jobs)
    return found


def moved(home, job):
    return sorted(event["step"] for event in home.show(job)["events"] if event["kind"] == "lanes-moved")


def with_shares(home, args, shares):
    with quotas(UNEQUAL) as made:
        job = submit(home, args, len(UNEQUAL), shares)
        for pid, quota in zip(workers_of(home, job, len(UNEQUAL)), made):
            quota.take(pid)
        while shares == "auto" and not moved(home, job):
            time.sleep(0.2)
        time.sleep(3)
        found = rate(home, [job], args)
        lanes = [worker["share"] for worker in home.show(job)["workers"]]
        end(home, [job])
    return found, lanes


def moves(home, args):
    """(samples a second, lanes, steps until they moved)"""
    with quotas((0.5,) * 4) as made:
        job = submit(home, args, 4, "auto")
        for pid, quota in zip(workers_of(home, job, 4), made):
            quota.take(pid)
        time.sleep(65)  # not twice within a minute, should noise have moved some
        before, step = len(moved(home, job)), home.show(job)["step"]
        made[3].set(SLOWED[3])
        while len(moved(home, job)) == before:
            time.sleep(0.2)
        took = moved(home, job)[-1] - step
        time.sleep(3)
        found = rate(home, [job], args)
        lanes = [worker["share"] for worker in home.show(job)["workers"]]
        end(home, [job])
    return found, lanes, took


def digests(home, args):
    """Of the same short job, by one, by four, and by four whose lanes move."""
    args = argparse.Namespace(**{**vars(args), "batch": args.batch // 4})
    found = []
    for count, shares in ((1, ""), (4, ""), (4, "auto")):
        with quotas(UNEQUAL[:count]) as made:
            job = submit(home, args, count, shares, steps=60)
            for pid, quota in zip(workers_of(home, job, count), made):
                quota.take(pid)
            found.append(home.digest(job, seconds=300))
    return found


def report(case, value, yardstick, reference):
    print(json.dumps({"bench": "unequal", "case": case, "value": round(value, 1), "unit": "samples/s",
                      "yardstick": yardstick, "yardstick_value": round(reference, 1),
                      "ratio": round(value / reference, 4)}), flush=True)
    print(f"{case:6} {value:9.0f} samples/s, {value / reference:.3f} of {yardstick}", file=sys.stderr, flush=True)


def between(home, args, cores, case, run):
    """Against the mean of the sums before and after: a machine's speed drifts."""
    before = sum_of_speeds(home, args, cores)
    found = run()
    report(case, found[0], "sum", (before + sum_of_speeds(home, args, cores)) / 2)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--lanes", type=int, default=64)
    parser.add_argument("--batch", type=int, default=49152)
    parser.add_argument("--only", default="one,even,auto,moves,digests")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its home goes with it
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from home import Home

    only = args.only.split(",")
    with Home(slots=4) as home:
        if "one" in only:
            one = submit(home, args, 1)
            workers_of(home, one, 1)
            alone = rate(home, [one], args)
            end(home, [one])
            report("one", alone, "sum", sum_of_speeds(home, args, UNEQUAL))
        if "even" in only:
            equal = "[" + ", ".join([str(args.lanes // 4)] * 4) + "]"
            between(home, args, UNEQUAL, "even", lambda: with_shares(home, args, equal))
        if "auto" in only:
            _, lanes = between(home, args, UNEQUAL, "auto", lambda: with_shares(home, args, "auto"))
            print(f"lanes {lanes}", file=sys.stderr)
        if "moves" in only:
            _, lanes, took = between(home, args, SLOWED, "moves", lambda: moves(home, args))
            print(f"lanes {lanes}, moved within {took} steps", file=sys.stderr)
        found = digests(home, args) if "digests" in only else []
        if found:
            print("digests " + ("equal" if len(set(found)) == 1 else f"differ: {found}"), file=sys.stderr)
    sys.exit(len(set(found)) > 1)


main()
