#!/usr/bin/python3
"""recovery: time from SIGKILL of workers to the next new step, and what it consists of.

    recovery [--rounds N] [--all] [--memory] [--peer DIR] [--bin DIR]

Two workers train ResNet-18 on synthetic images. A worker, or with --all both, are killed; the clock runs
until a step is finished that no worker had finished before, as the workers' flight recorders have it.
Checkpoints every 5 steps; with --memory a copy in memory every step and no checkpoint. Prints
JSON lines and a table.

Yardstick: with --all --memory 0.5 s and a step; otherwise torchrun in the same run, with two workers on Gloo and
a state of the same size (torch_recovery.py; its stale rendezvous keys worked around), if --peer names a folder of
Python's with PyTorch.
"""
import argparse
import json
import os
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
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


def peer_steps(folder):
    """[(seconds, step, rank, pid)] of all workers that torchrun started."""
    path = folder / "steps"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [(float(at), int(step), int(rank), int(pid)) for at, step, rank, pid in map(str.split, lines)]


def peer_round(folder, everybody):
    """Seconds from the kill to the end of a step that no worker had finished."""
    begin = max((step for _, step, _, _ in peer_steps(folder)), default=0)
    while True:
        steps = peer_steps(folder)
        newest = {rank: pid for _, _, rank, pid in steps}
        alive = len(newest) == 2 and all(Path(f"/proc/{pid}").exists() for pid in newest.values())
        if alive and all(max(step for _, step, _, p in steps if p == pid) >= begin + 8 for pid in newest.values()):
            break
        time.sleep(0.02)
    killed = time.monotonic()
    for rank, pid in newest.items():
        if everybody or rank == 1:
            os.kill(pid, signal.SIGKILL)
    while time.monotonic() - killed < 60:
        steps = peer_steps(folder)
        finished = max(step for _, step, _, pid in steps if pid in newest.values())
        new = [at for at, step, _, pid in steps if step > finished and pid not in newest.values()]
        if new:
            return min(new) - killed
        time.sleep(0.02)
    return None  # it hangs at times


def peer_seconds(args):
    """Median of torchrun's rounds, and how many of them came back."""
    with tempfile.TemporaryDirectory() as name:
        env = dict(os.environ, OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        peer = subprocess.Popen([Path(args.peer) / "bin" / "python", "-m", "torch.distributed.run", "--nnodes=1",
                                 "--nproc-per-node=2", "--max-restarts=1000", "--rdzv-backend=c10d",
                                 "--rdzv-endpoint=localhost:0", HERE / "torch_recovery.py", name], env=env,
                                stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            times = [peer_round(Path(name), args.all) for _ in range(min(args.rounds, 8))]
        finally:
            os.killpg(peer.pid, signal.SIGTERM)
            peer.wait()
    back = [seconds for seconds in times if seconds is not None]
    if not back:
        raise SystemExit("torchrun never came back")
    return statistics.median(back), len(back), len(times)


def line(case, value, yardstick, yardstick_value):
    print(json.dumps({"bench": "recovery", "case": case, "value": round(value, 3), "unit": "s", "yardstick": yardstick,
                      "yardstick_value": round(yardstick_value, 3), "ratio": round(value / yardstick_value, 3)}))


def report(args, median, times, step, losses):
    case = f"SIGKILL of {'all workers' if args.all else 'a worker'} to next new step"
    print(f"recovery, {args.rounds} rounds: median {median:.3f} s, min {min(times):.3f}, max {max(times):.3f}; "
          f"a step {step:.3f} s; finished steps that were lost, at most: {max(losses)}", file=sys.stderr)
    if args.all and args.memory:
        line(case + ", from memory", median, "0.5 s and a step", GOAL_S + step)
    else:
        line(case, median, "a step", step)
    if args.peer:
        seconds, back, rounds = peer_seconds(args)
        line(case, median, "torchrun", seconds)
        print(f"    torchrun         {seconds:.3f} s, {back} of {rounds} rounds came back: {median / seconds:.2f}",
              file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--all", action="store_true", help="kill all workers")
    parser.add_argument("--memory", action="store_true", help="copies in memory instead of checkpoints")
    parser.add_argument("--peer", help="environment with PyTorch")
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
    report(args, statistics.median(times), times, statistics.median(steps), losses)
    for cause, values in parts.items():
        line(cause, statistics.median(values), "whole", statistics.median(times))
        print(f"    {cause:16} {statistics.median(values):.3f} s", file=sys.stderr)


main()
