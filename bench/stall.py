#!/usr/bin/python3
"""stall: what checkpoints and copies in memory cost a training job that goes on meanwhile.

    stall [--pairs N] [--batch N] [--only saves|copies|peers] [--peer DIR] [--rounds N] [--bin DIR] [--source DIR]

One worker trains ResNet-18 on synthetic images, its step thread pinned to one core. Ten steps with a checkpoint at
their begin and ten without alternate in one run, and each ten with is compared to the mean of the tens beside it: a
machine's speed drifts by more from run to run than a checkpoint costs. First the other core is free for all else,
then everything of the worker is on the one core. Copies in memory likewise: two steps with one, two without. Copies
at peers: two workers on two nodes of one slot each train on both cores, so that none is free; the steps during which a
round was under way, as the log of rank 0 has it, are compared to as many before and after. Prints
JSON lines and a table; means without the outermost tenths, and their standard errors:

    free core/step         time of a step with a checkpoint every 10, as a ratio to that without (goal: at most 1.01)
    no free core/run       time that a checkpoint adds to the run, as a ratio to the processor time that saving took
                           (goal: at most 1)
    copies/step            what a copy in memory every step adds to a step with a core free (goal: at most 0.02)
    peers/round            time that a round of copies between two nodes adds to the run, as a ratio to what it took
    peers/step             a step with rounds as often as they come, as a ratio to those without (goal: at most 1.02)
    torch.save, async_save time for which they keep the caller, of a state of the same size and form; yardstick: the
                           time that one of our checkpoints adds to the run. Only with --peer: a folder of Python's
                           with PyTorch
"""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

HERE = Path(__file__).resolve().parent
EVERY = 10
# The threads that save; the rest of a worker trains.
SAVING = ("cairn-saver", "cairn-encoder", "cairn-copier", "cairn-readback")
PEERS = ("cairn-peers",)  # its communicator's threads have that name, too

JOB = """\
name: stall
model: {{arch: resnet18, classes: 10}}
data: {{train: {{format: synthetic, samples: 4096}}}}
train:
  duration: 1000000 steps
  global_batch: {batch}
  lanes: 1
  optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
  schedule: {{name: constant}}
  seed: 1
workers: {{count: 1, device: cpu, threads: 1}}
checkpoint: {{{when}, keep: {{last: 1}}, store: checkpoints/}}
"""
SAVES = f"every: {2 * EVERY} steps, memory_every: none"
COPIES = "every: 1000000 steps, memory_every: 4 steps"
AT_PEERS = "every: 1000000 steps, memory_every: 1 step, peers: 1"


def threads_of(pid):
    """{thread: name}"""
    found = {}
    for entry in Path(f"/proc/{pid}/task").iterdir():
        found[int(entry.name)] = (entry / "comm").read_text(encoding="utf-8").strip()
    return found


def pin(home, worker, training, saving):
    """The worker's threads to these cores, all other processes to the saving ones' and the spare core."""
    for thread, name in threads_of(worker).items():
        os.sched_setaffinity(thread, saving if name in SAVING else training)
    for pid in home.pids():
        if pid != worker:
            for thread in threads_of(pid):
                os.sched_setaffinity(thread, CORES[1:])


def seconds_of(pid, names):
    """Processor time of the threads of these names."""
    spent = 0
    for thread, name in threads_of(pid).items():
        if name in names:
            spent += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="utf-8").split()[0])
    return spent / 1e9


def wait_step(home, job, step, stalls=None):
    """Until the job is there; stalls: {step: seconds for which that checkpoint held a step up}, of those seen."""
    while True:
        shown = home.show(job)
        for saved in shown["checkpoints"] if stalls is not None else []:
            stalls[saved["step"]] = saved["times"]["stall_us"] / 1e6
        if shown["step"] >= step and shown["workers"]:
            return shown
        time.sleep(0.2)


def ends_of_steps(home, job):
    """{step: the clock's seconds at its end}, of a job that has ended."""
    ends = {}
    for line in home.cairn("watch", job, "-o", "jsonl", check=False).stdout.splitlines():
        for row in json.loads(line).get("rows", []):
            ends[row["step"]] = int(row["wall_ms"]) / 1e3
    return ends


def windows(ends, first, period):
    """Seconds of runs of half a period, those with a save (which begins at a multiple of the period) and those
    without in turn; each starts a step before its save, which is made at a step's end."""
    half = period // 2
    starts = range(first - 1, max(ends) - half + 1, half)
    return [ends[start + half] - ends[start] for start in starts if start in ends and start + half in ends]


def trimmed(values):
    """Mean without the outermost tenths, and its standard error."""
    cut = len(values) // 10
    kept = sorted(values)[cut:len(values) - cut]
    return statistics.mean(kept), statistics.stdev(kept) / len(kept) ** 0.5


def one_run(home, args, when, period, saving_cores):
    """Of a run in which every second half of a period holds a save: what its steps took."""
    pairs = args.pairs if period == 2 * EVERY else 5 * args.pairs
    job = home.submit(JOB.format(batch=args.batch, when=when))
    worker = wait_step(home, job, 3)["workers"][0]["pid"]
    pin(home, worker, CORES[:1], saving_cores)
    begin = wait_step(home, job, 2 * EVERY)["step"]
    before = seconds_of(worker, SAVING)
    stalls = {}
    end = wait_step(home, job, begin + (pairs + 1) * period, stalls)["step"]
    spent = seconds_of(worker, SAVING) - before
    if when == SAVES and not stalls:
        raise SystemExit("no checkpoint was committed: " + json.dumps(home.show(job)["events"]))
    home.cairn("kill", job)
    home.wait_state(job, "KILLED")
    took = windows(ends_of_steps(home, job), begin + period - begin % period, period)
    beside = [(took[i - 1] + took[i + 1]) / 2 for i in range(2, len(took) - 1, 2)]
    added = [took[i] - mean for i, mean in zip(range(2, len(took) - 1, 2), beside)]
    return {"step": trimmed(beside)[0] / (period // 2), "added": trimmed(added)[0], "error": trimmed(added)[1],
            "spent": spent / ((end - begin) / period), "wait": statistics.median(stalls.values() or [0]), "pairs": len(added)}


def report(case, value, unit, yardstick, yardstick_value, ratio):
    print(json.dumps({"bench": "stall", "case": case, "value": round(value, 5), "unit": unit, "yardstick": yardstick,
                      "yardstick_value": round(yardstick_value, 5), "ratio": round(ratio, 4)}), flush=True)


def say(text):
    print(text, file=sys.stderr, flush=True)


def tell_saves(home, args):
    free = one_run(home, args, SAVES, 2 * EVERY, CORES[1:])
    step = free["step"] + free["added"] / EVERY
    report("free core/step", step, "s", "without checkpoints", free["step"], step / free["step"])
    report("free core/saving", free["spent"], "s", "step without checkpoints", free["step"],
           free["spent"] / free["step"])
    report("free core/wait", free["wait"], "s", "step without checkpoints", free["step"], free["wait"] / free["step"])
    say(f"a core free, {free['pairs']} checkpoints: step {free['step'] * 1e3:.2f} ms without, {step * 1e3:.2f} ms "
        f"with one every {EVERY}: {step / free['step']:.4f} (± {free['error'] / EVERY / free['step']:.4f}); saving "
        f"took {free['spent'] * 1e3:.0f} ms of processor time each, a step waited {free['wait'] * 1e3:.1f} ms")
    none = one_run(home, args, SAVES, 2 * EVERY, CORES[:1])
    report("no free core/run", none["added"], "s", "processor time of saving", none["spent"],
           none["added"] / none["spent"])
    say(f"no core free, {none['pairs']} checkpoints: each adds {none['added'] * 1e3:.1f} ms "
        f"(± {none['error'] * 1e3:.1f}; a step waited {none['wait'] * 1e3:.1f}), saving took "
        f"{none['spent'] * 1e3:.1f} ms: {none['added'] / none['spent']:.2f}")
    return free


def tell_copies(home, args):
    made = one_run(home, args, COPIES, 4, CORES[1:])
    report("copies/step", made["step"] + made["added"], "s", "without copies", made["step"],
           1 + made["added"] / made["step"])
    say(f"copies in memory, {made['pairs']} of them, a core free: each adds {made['added'] * 1e3:.2f} ms "
        f"(± {made['error'] * 1e3:.2f}) to a step of {made['step'] * 1e3:.2f}: {made['added'] / made['step']:.4f}; "
        f"copying took {made['spent'] * 1e3:.1f} ms of processor time")


def rounds_of(log):
    """[(begin, end)] of the rounds of copies that a worker has logged, in the clock's seconds."""
    found = []
    for line in log.read_text(encoding="utf-8").splitlines():
        took = re.search(r"round to step \d+ took ([0-9.]+) ms", line)
        if took:
            end = datetime.fromisoformat(json.loads(line)["ts"].replace("Z", "+00:00")).timestamp()
            found.append((end - float(took[1]) / 1e3, end))
    return found


def added_by_round(ends, begin, end):
    """Seconds by which the steps that a round fell into were longer than as many before and after; None: it was not
    among those that were told."""
    first = min((step for step, at in ends.items() if at > begin), default=None)
    last = min((step for step, at in ends.items() if at >= end), default=None)
    if first is None or last is None:
        return None
    count = last - first + 1
    at = [first - 1 + count * i for i in (-1, 0, 1, 2)]
    if any(step not in ends for step in at):
        return None
    before, during, after = (ends[b] - ends[a] for a, b in zip(at, at[1:]))
    return during - (before + after) / 2


@contextmanager
def second_node(home):
    command = [Path(os.environ["CAIRN_BIN"]) / "cairn-agent", "--name", "another", "--slots", "1"]
    with subprocess.Popen(command, env=home.env, cwd=home.dir, stderr=subprocess.DEVNULL) as agent:
        try:
            yield
        finally:
            agent.terminate()


def tell_peers(home, args):
    job = home.submit(JOB.format(batch=args.batch, when=AT_PEERS), workers__count=2, train__lanes=2)
    log = home.home / f"jobs/{job}/g1/r0.log"
    workers = [worker["pid"] for worker in wait_step(home, job, 3)["workers"]]
    while len(rounds_of(log)) < 2:  # those that touch new memory
        time.sleep(0.2)
    before = sum(seconds_of(pid, PEERS) for pid in workers)
    while len(rounds_of(log)) < args.pairs + 3:
        time.sleep(0.2)
    spent = sum(seconds_of(pid, PEERS) for pid in workers) - before
    rounds = rounds_of(log)[2:]
    wait_step(home, job, home.show(job)["step"] + 5)
    home.cairn("kill", job)
    home.wait_state(job, "KILLED")
    ends = ends_of_steps(home, job)
    added = [value for value in (added_by_round(ends, *one) for one in rounds) if value is not None]
    mean, error = trimmed(added)
    took = statistics.mean(end - begin for begin, end in rounds)
    interval = (rounds[-1][0] - rounds[0][0]) / (len(rounds) - 1)
    step = (max(ends.values()) - min(ends.values())) / (max(ends) - min(ends))
    report("peers/round", mean, "s", "a round takes", took, mean / took)
    report("peers/processor", spent / len(rounds), "s", "a round takes", took, spent / len(rounds) / took)
    report("peers/step", step, "s", "without rounds", step * (1 - mean / interval), 1 / (1 - mean / interval))
    say(f"copies at peers, {len(added)} rounds, no core free: one every {interval:.2f} s takes {took * 1e3:.1f} ms, "
        f"{spent / len(rounds) * 1e3:.1f} ms of processor time of both workers, and adds {mean * 1e3:.1f} ms "
        f"(± {error * 1e3:.1f}) to steps of {step * 1e3:.1f}: {1 / (1 - mean / interval):.4f} "
        f"(± {error / interval:.4f})")


def peer_stalls(args, state_bytes):
    """{case: seconds} from torch_save.py, which runs with the peer's Python."""
    done = subprocess.run([Path(args.peer) / "bin" / "python", HERE / "torch_save.py", "--bytes", str(state_bytes),
                           "--rounds", str(args.rounds), "--dir", args.dir], capture_output=True, text=True, check=True)
    return {line["case"]: line["value"] for line in map(json.loads, done.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=40, help="checkpoints of a run")
    parser.add_argument("--only", choices=["saves", "copies", "peers"])
    parser.add_argument("--rounds", type=int, default=5, help="of the peer")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--peer", help="environment with PyTorch")
    parser.add_argument("--dir", default=".", help="folder that the peer saves in")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    if args.pairs < 4:
        parser.error("--pairs: 4 or more; the first and the last are cut off, and of two a mean has an error")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its home goes with it
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from home import Home

    env = {"CAIRN_HANG_MS": "60000", "CAIRN_WATCHDOG_MS": "60000"}
    with Home(env=env) as home:
        if args.only in (None, "saves"):
            free = tell_saves(home, args)
            newest = next(iter(home.dir.glob("checkpoints/*/*/manifest.json")))
            state_bytes = json.loads(newest.read_text(encoding="utf-8"))["raw_bytes"]
        if args.only in (None, "copies"):
            tell_copies(home, args)
    if args.only in (None, "peers"):
        with Home(env={**env, "CAIRN_LOG": "debug"}, slots=1) as home, second_node(home):
            tell_peers(home, args)
    if args.peer and args.only in (None, "saves"):
        for case, seconds in peer_stalls(args, state_bytes).items():
            report(case, seconds, "s", "a checkpoint adds", free["added"], seconds / max(free["added"], 1e-4))
            say(f"{case:28} of {state_bytes / 1e6:.0f} MB keeps the caller {seconds * 1e3:8.1f} ms; "
                f"a checkpoint of ours adds {free['added'] * 1e3:.1f} ms to the run")


CORES = sorted(os.sched_getaffinity(0))
if len(CORES) < 2:
    raise SystemExit("two cores are needed")
CORES = CORES[:2]
main()
