#!/usr/bin/python3
"""recovery: from a failure of a worker to the next finished step, and what that time consists of.

    recovery [--arch resnet18|gpt2] [--rounds N] [--block N] [--cases 2-kill,4-kill,2-stop,2-all]
             [--modes live,restart] [--memory] [--peer DIR] [--bin DIR]

Workers train ResNet-18 on synthetic images, or GPT-2 124M on walks over tokens. Case N-kill: of N workers one gets
SIGKILL, another rank each round; N-stop: SIGSTOP; N-all: SIGKILL for all. The clock runs until a step is finished that
no worker had finished before, as the workers' flight recorders have it. Modes: live, where workers that are not to
blame go on; spare, the same with a warm one that takes the seat; fewer, where the others take over its lanes
(workers.min); restart (CAIRN_RECOVERY=restart), where all are started anew; blocks of rounds in turns. Checkpoints
every 5 steps (GPT-2: 20); with --memory a copy in memory every step and no checkpoint.

Yardsticks in the same run: restart; 0.5 s and a step, 0.15 s and a step for spare and fewer, whose step takes longer
than one of all, so that the time until they train again is set against 0.15 s, too; torchrun with as many workers on
Gloo and a state of ResNet-18's size (torch_recovery.py; its stale rendezvous keys worked around), if --peer names a
folder of Python's with PyTorch. It doesn't notice SIGSTOP. Parts are those of `recoveries` (docs/why.md), so detect
begins with the last progress that was heard of, before the kill; trains: from the kill until a worker begins its first
step again. Prints JSON lines, and a table with the load of the machine.
"""
import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOALS_S = {"spare": 0.15, "fewer": 0.15}
GOAL_S = 0.5
PARTS = ("detect", "end", "wait", "form", "restore")
PATIENCE_S = 90
HANG_MS = 3000

JOB = """\
name: recovery
model: {model}
data: {{train: {{format: synthetic, samples: 4096}}}}
train:
  duration: 100000 steps
  global_batch: {batch}
  lanes: 4
  optimizer: {optimizer}
  schedule: {{name: constant}}
  seed: 1
"""
JOBS = {"resnet18": JOB.format(model="{arch: resnet18, classes: 10}", batch=8,
                               optimizer="{name: sgd, lr: 0.01, momentum: 0.9}"),
        "gpt2": JOB.format(model="{arch: gpt2, size: 124M, context: 64}", batch=4,
                           optimizer="{name: adamw, lr: 1e-4}")}
STEPS_BETWEEN = {"resnet18": 8, "gpt2": 3}
STORE = "checkpoint: {every: %d steps, keep: {last: 2}, store: checkpoints/, memory_every: none}\n"
MEMORY = "checkpoint: {every: 100000 steps, memory_every: 1 step, store: checkpoints/}\n"


def steps_of(records, begin, end):
    """Seconds of each step of one worker in that time."""
    first = {}
    for at, step, _ in records:
        if begin < at < end:
            first.setdefault(step, at)
    return [first[n + 1] - first[n] for n in first if n + 1 in first]


def until(condition, what):
    end = time.monotonic() + PATIENCE_S
    while not condition():
        if time.monotonic() > end:
            raise SystemExit(f"not within {PATIENCE_S} s: {what()}")
        time.sleep(0.1)


def hit(home, job, number, fault):
    """A failure. What was shown before, the pids that it hit, and when."""
    shown = home.show(job)
    victim = number % len(shown["workers"])
    pids = [worker["pid"] for worker in shown["workers"] if fault == "all" or worker["rank"] == victim]
    at = time.monotonic()
    for pid in pids:
        os.kill(pid, signal.SIGSTOP if fault == "stop" else signal.SIGKILL)
    return shown, pids, at


def is_whole(shown):
    warm = [spare for spare in shown["spares"] if spare["state"] == "warm"]
    return (shown["state"] == "RUNNING" and len(shown["workers"]) == shown["workers_count"] and
            len(warm) == shown["workers_spares"])


def recovery_since(shown, before):
    """The first that is done. With fewer workers one of another kind may follow at once: lanes are given back."""
    done = (one for one in shown["recoveries"] if one["ended"] >= before["generation"] and one["state"] == "done")
    return next(done, None)


def one_round(home, job, number, fault, between):
    begin = time.monotonic()
    goal = home.show(job)["step"] + between
    until(lambda: home.show(job)["step"] >= goal and is_whole(home.show(job)),
          lambda: "the job trains: " + json.dumps(home.show(job)))
    before, pids, at = hit(home, job, number, fault)

    def is_over():
        shown = home.show(job)
        recovery = recovery_since(shown, before)
        return recovery and shown["step"] > recovery["step"] + recovery["steps_lost"]
    until(is_over, lambda: "a new step: " + json.dumps(home.show(job)))
    time.sleep(0.2)  # of the step that is now finished everybody has a record
    after = home.show(job)
    recovery = recovery_since(after, before)
    from flights import flights
    records = flights(home, job)
    every = sorted(sum(records, []))
    formed = min(when for when, _, phase in every if when > at and phase == "forming")
    mark = max(step for when, step, _ in every if when < formed)
    new = min(when for when, step, _ in every if when > formed and step > mark)
    going = min(when for when, step, phase in every if when > formed and step == recovery["step"] and phase == "data")
    now = {worker["pid"] for worker in after["workers"]}
    stay = {worker["pid"] for worker in before["workers"]} - set(pids)
    return {"seconds": new - at, "going": going - at, "steps": sum((steps_of(one, begin, at) for one in records), []),
            "parts": {part: recovery["seconds"][part] for part in PARTS}, "kind": recovery["kind"],
            "lost": max(mark - recovery["step"], recovery["steps_lost"]), "kept": bool(stay) and stay <= now}


def own_rounds(args, workers, fault, mode, first, count):
    from home import Home
    env = {"CAIRN_HANG_MS": str(HANG_MS if fault == "stop" else 60000), "CAIRN_WATCHDOG_MS": "60000"}
    env.update(Home.RESTART if mode == "restart" else {})
    more = {"spare": ", spares: 1", "fewer": f", min: {max(workers - 1, 1)}"}.get(mode, "")
    with Home(env=env, slots=workers + (mode == "spare")) as home:
        text = JOBS[args.arch] + (MEMORY if args.memory else STORE % (5 if args.arch == "resnet18" else 20))
        job = home.submit(text + f"workers: {{count: {workers}{more}, device: cpu}}\n")
        rounds = [one_round(home, job, first + i, fault, STEPS_BETWEEN[args.arch]) for i in range(count)]
        home.cairn("kill", job)
    return rounds


# ---- torchrun ----

def peer_steps(folder):
    """[(seconds, step, rank, pid)] of all workers that torchrun started."""
    path = folder / "steps"
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [(float(at), int(step), int(rank), int(pid)) for at, step, rank, pid in map(str.split, lines)]


def peer_round(folder, workers, fault, victim):
    begin = max((step for _, step, _, _ in peer_steps(folder)), default=0)
    end = time.monotonic() + PATIENCE_S
    while True:
        steps = peer_steps(folder)
        newest = {rank: pid for _, _, rank, pid in steps}
        alive = len(newest) == workers and all(Path(f"/proc/{pid}").exists() for pid in newest.values())
        if alive and all(max(step for _, step, _, p in steps if p == pid) >= begin + 8 for pid in newest.values()):
            break
        if time.monotonic() > end:
            return None  # it hangs at times
        time.sleep(0.1)
    killed = time.monotonic()
    for rank, pid in newest.items():
        if fault == "all" or rank == victim:
            os.kill(pid, signal.SIGKILL)
    while time.monotonic() < killed + PATIENCE_S:
        steps = peer_steps(folder)
        finished = max(step for _, step, _, pid in steps if pid in newest.values())
        new = [(at, step) for at, step, _, pid in steps if at > killed and pid not in newest.values()]
        if any(step > finished for _, step in new):
            own = [at for at, _, _, pid in steps if pid == newest[0]][-8:]
            return {"seconds": min(at for at, step in new if step > finished) - killed,
                    "steps": [b - a for a, b in zip(own, own[1:])], "going": None, "parts": {}, "kind": "checkpoint",
                    "lost": finished + 1 - min(step for _, step in new), "kept": False}
        time.sleep(0.1)
    return None


def peer_rounds(args, workers, fault, first, count):
    with tempfile.TemporaryDirectory() as name:
        env = dict(os.environ, OMP_NUM_THREADS="1", TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
        peer = subprocess.Popen([Path(args.peer) / "bin" / "python", "-m", "torch.distributed.run", "--nnodes=1",
                                 f"--nproc-per-node={workers}", "--max-restarts=1000", "--rdzv-backend=c10d",
                                 "--rdzv-endpoint=localhost:0", HERE / "torch_recovery.py", name], env=env,
                                stderr=subprocess.DEVNULL, start_new_session=True)
        try:
            return [peer_round(Path(name), workers, fault, (first + i) % workers) for i in range(count)]
        finally:
            os.killpg(peer.pid, signal.SIGTERM)
            peer.wait()


# ---- what is said ----

def line(case, value, yardstick, yardstick_value):
    print(json.dumps({"bench": "recovery", "case": case, "value": round(value, 3), "unit": "s", "yardstick": yardstick,
                      "yardstick_value": round(yardstick_value, 3), "ratio": round(value / yardstick_value, 3)}),
          flush=True)


def summary(rounds):
    back = [one for one in rounds if one]
    if not back:
        return None
    seconds = [one["seconds"] for one in back]
    return {"rounds": len(rounds), "back": len(back), "median": statistics.median(seconds), "min": min(seconds),
            "max": max(seconds), "step": statistics.median(sum((one["steps"] for one in back), [])),
            "parts": {part: statistics.median(one["parts"][part] for one in back) for part in back[0]["parts"]},
            "going": statistics.median(one["going"] for one in back) if back[0]["going"] is not None else None,
            "lost": max(one["lost"] for one in back), "kept": sum(one["kept"] for one in back),
            "kinds": "/".join(sorted({one["kind"] for one in back}))}


def report(case, rounds, load):
    found = {mode: summary(each) for mode, each in rounds.items()}
    print(f"\n{case}; load of the machine {load[0]:.1f} before, {os.getloadavg()[0]:.1f} after\n"
          f"{'mode':9} {'back':>7} {'median':>7} {'min':>7} {'max':>7} {'a step':>7} {'trains':>7}  " +
          " ".join(f"{part:>7}" for part in PARTS) + "  lost  pids kept  from", file=sys.stderr)
    for mode, one in found.items():
        if not one:
            print(f"{mode:9} never came back", file=sys.stderr)
            continue
        parts = " ".join(f"{one['parts'][part]:7.3f}" if part in one["parts"] else " " * 7 for part in PARTS)
        going = f"{one['going']:7.3f}" if one["going"] is not None else " " * 7
        print(f"{mode:9} {one['back']:3}/{one['rounds']:3} {one['median']:7.3f} {one['min']:7.3f} {one['max']:7.3f} "
              f"{one['step']:7.3f} {going}  {parts}  {one['lost']:4}  "
              f"{one['kept']:5}/{one['back']:3}  {one['kinds']}", file=sys.stderr)
        goal = GOALS_S.get(mode, GOAL_S)
        line(f"{case}, {mode}", one["median"], f"{goal} s and a step", goal + one["step"])
        if mode == "fewer":
            line(f"{case}, {mode}, until they train", one["going"], f"{goal} s", goal)
    first = found[next(iter(found))]
    for mode, one in list(found.items())[1:]:
        if one and first:
            line(f"{case}, {next(iter(found))}", first["median"], mode, one["median"])
            print(f"          of {mode}: {first['median'] / one['median']:.2f}", file=sys.stderr)


def run_case(args, case):
    workers, fault = case.split("-")
    modes = args.modes.split(",") + (["torchrun"] if args.peer and fault != "stop" else [])
    rounds = {mode: [] for mode in modes}
    load = os.getloadavg()
    for first in range(0, args.rounds, args.block):
        count = min(args.block, args.rounds - first)
        for mode in modes:
            rounds[mode] += (peer_rounds(args, int(workers), fault, first, count) if mode == "torchrun" else
                             own_rounds(args, int(workers), fault, mode, first, count))
    report(case + (", copies in memory" if args.memory else ""), rounds, load)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--arch", choices=JOBS, default="resnet18")
    parser.add_argument("--rounds", type=int, default=20, help="of each mode in each case")
    parser.add_argument("--block", type=int, default=4, help="rounds before the next mode has its turn")
    parser.add_argument("--cases", default="2-kill,4-kill,2-stop")
    parser.add_argument("--modes", default="live,spare,fewer,restart")
    parser.add_argument("--memory", action="store_true", help="copies in memory instead of checkpoints")
    parser.add_argument("--peer", help="environment with PyTorch")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its homes go with it
    os.environ["CAIRN_BIN"] = str(Path(args.bin).resolve())
    sys.path.insert(0, args.source)
    for case in args.cases.split(","):
        run_case(args, case)


main()
