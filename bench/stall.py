#!/usr/bin/python3
"""stall: what checkpoints cost a training job that goes on meanwhile.

    stall [--rounds N] [--saves N] [--batch N] [--peer DIR] [--bin DIR] [--source DIR]

One worker trains ResNet-18 on synthetic images, its step thread pinned to one core, without checkpoints and with one
every 10 steps, in turn. First the other core is free for all else, then everything of the worker is on the one core.
Prints JSON lines and a table; medians over the rounds:

    free core/step         time of a step with checkpoints, as a ratio to that without (goal: at most 1.01)
    no free core/run       time that the checkpoints add to the run, as a ratio to the processor time that saving took
                           (goal: at most 1)
    torch.save, async_save time for which they keep the caller, of a state of the same size and form; yardstick: the
                           time that one of our checkpoints adds to the run. Only with --peer: a folder of Python's
                           with PyTorch
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
EVERY = 10
NEVER = 1000000
# The threads that save; the rest of a worker trains.
SAVING = ("cairn-saver", "cairn-encoder", "cairn-copier")

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
checkpoint: {{every: {every} steps, keep: {{last: 1}}, store: checkpoints/}}
"""


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


def saving_seconds(pid):
    """Processor time of the threads that save."""
    spent = 0
    for thread, name in threads_of(pid).items():
        if name in SAVING:
            spent += int(Path(f"/proc/{pid}/task/{thread}/schedstat").read_text(encoding="utf-8").split()[0])
    return spent / 1e9


def wait_step(home, job, step):
    while True:
        shown = home.show(job)
        if shown["step"] >= step and shown["workers"]:
            return shown
        time.sleep(0.05)


def one_run(home, args, every, saving_cores):
    """Seconds of a step, by the median of runs of EVERY steps, each with one save; processor seconds of saving, a
    step; seconds that steps waited for snapshots, as the events of the checkpoints tell."""
    job = home.submit(JOB.format(batch=args.batch, every=every))
    worker = wait_step(home, job, 3)["workers"][0]["pid"]
    pin(home, worker, CORES[:1], saving_cores)
    begin = wait_step(home, job, 2 * EVERY)["step"]
    before = saving_seconds(worker)
    end = wait_step(home, job, begin + args.saves * EVERY)["step"]
    spent = saving_seconds(worker) - before
    events = " ".join(event["message"] for event in home.show(job)["events"] if event["kind"] == "saved")
    waits = [float(wait) / 1e3 for wait in re.findall(r"the step waited ([0-9.]+) ms", events)]
    if every == EVERY and not waits:
        raise SystemExit("no checkpoint was committed: " + json.dumps(home.show(job)["events"]))
    home.cairn("kill", job)
    home.wait_state(job, "KILLED")
    rows = {}
    for line in home.cairn("watch", job, "-o", "jsonl", check=False).stdout.splitlines():
        for row in json.loads(line).get("rows", []):
            rows[row["step"]] = int(row["wall_ms"])
    first = begin - begin % EVERY
    runs = [(rows[at + EVERY] - rows[at]) / 1e3 / EVERY
            for at in range(first, first + args.saves * EVERY, EVERY)]
    return statistics.median(runs), spent / (end - begin), statistics.median(waits or [0])


def measure(home, args, saving_cores):
    """Medians over interleaved rounds: step without, step with, ratio, processor time per checkpoint."""
    plain, saving, ratios, spent, added, waits = [], [], [], [], [], []
    for _ in range(args.rounds):
        without = one_run(home, args, NEVER, saving_cores)
        with_saves = one_run(home, args, EVERY, saving_cores)
        plain.append(without[0])
        saving.append(with_saves[0])
        ratios.append(with_saves[0] / without[0])
        added.append((with_saves[0] - without[0]) * EVERY)
        spent.append((with_saves[1] - without[1]) * EVERY)
        waits.append(with_saves[2])
    return {name: statistics.median(values)
            for name, values in (("plain", plain), ("saving", saving), ("ratio", ratios), ("added", added),
                                 ("spent", spent), ("wait", waits))}


def report(case, value, unit, yardstick, yardstick_value, ratio):
    print(json.dumps({"bench": "stall", "case": case, "value": round(value, 5), "unit": unit, "yardstick": yardstick,
                      "yardstick_value": round(yardstick_value, 5), "ratio": round(ratio, 4)}), flush=True)


def say(text):
    print(text, file=sys.stderr, flush=True)


def tell(home, args):
    free = measure(home, args, CORES[1:])
    report("free core/step", free["saving"], "s", "without checkpoints", free["plain"], free["ratio"])
    say(f"a core free:  step {free['plain'] * 1e3:.1f} ms without, {free['saving'] * 1e3:.1f} ms with a checkpoint "
        f"every {EVERY}: {free['ratio']:.4f}; saving took {free['spent'] * 1e3:.0f} ms of processor time each, "
        f"a step waited {free['wait'] * 1e3:.1f} ms")
    report("free core/saving", free["spent"], "s", "step without checkpoints", free["plain"],
           free["spent"] / free["plain"])
    report("free core/wait", free["wait"], "s", "step without checkpoints", free["plain"], free["wait"] / free["plain"])
    none = measure(home, args, CORES[:1])
    report("no free core/run", none["added"], "s", "processor time of saving", none["spent"],
           none["added"] / none["spent"])
    say(f"no core free: step {none['plain'] * 1e3:.1f} ms without, {none['saving'] * 1e3:.1f} ms with: a checkpoint "
        f"adds {none['added'] * 1e3:.0f} ms (a step waited {none['wait'] * 1e3:.1f}), saving took "
        f"{none['spent'] * 1e3:.0f} ms: "
        f"{none['added'] / none['spent']:.2f}")
    return free


def peer_stalls(args, state_bytes):
    """{case: seconds} from torch_save.py, which runs with the peer's Python."""
    done = subprocess.run([Path(args.peer) / "bin" / "python", HERE / "torch_save.py", "--bytes", str(state_bytes),
                           "--rounds", str(args.rounds), "--dir", args.dir], capture_output=True, text=True, check=True)
    return {line["case"]: line["value"] for line in map(json.loads, done.stdout.splitlines())}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--saves", type=int, default=5, help="checkpoints of a run")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--peer", help="environment with PyTorch")
    parser.add_argument("--dir", default=".", help="folder that the peer saves in")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    os.environ["CAIRN_BIN"] = args.bin
    sys.path.insert(0, args.source)
    from home import Home

    with Home(env={"CAIRN_HANG_MS": "60000", "CAIRN_WATCHDOG_MS": "60000"}) as home:
        free = tell(home, args)
        newest = next(iter(home.dir.glob("checkpoints/*/*/manifest.json")))
        state_bytes = json.loads(newest.read_text(encoding="utf-8"))["raw_bytes"]
    if args.peer:
        for case, seconds in peer_stalls(args, state_bytes).items():
            report(case, seconds, "s", "a checkpoint adds", free["added"], seconds / max(free["added"], 1e-4))
            say(f"{case:28} of {state_bytes / 1e6:.0f} MB keeps the caller {seconds * 1e3:8.1f} ms; "
                f"a checkpoint of ours adds {free['added'] * 1e3:.1f} ms to the run")


CORES = sorted(os.sched_getaffinity(0))
if len(CORES) < 2:
    raise SystemExit("two cores are needed")
CORES = CORES[:2]
main()
