#!/usr/bin/python3
"""How long a PyTorch script of somebody's own is away when one of its processes is killed: from SIGKILL to the first step that is new,
the median, the same script under torchrun (the yardstick) and as a job with `command`, started cold and with `preload`. In turns.

    bench/programs.py --python VENV/bin/python [--kills 20] [--processes 2] [--bin build/release/bin]

torchrun runs with TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1: without it some of its restarts never come back (pytorch #135712). The
script (tests/torch/ddp.py) saves after each step, so that no way repeats more than one. Prints one JSON line per way, and a table."""
import argparse
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCRIPT = ROOT / "tests/torch/ddp.py"
ARGUMENTS = ["1000000", "0.02", "1"]  # steps, a pause after each, a checkpoint after each
PATIENCE_S = 120
LINE = re.compile(rb"step (\d+) loss \S+ at (\d+\.\d+)")


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()]
    except OSError:
        return []


class Torchrun:
    def __init__(self, options, folder):
        self.output = folder / "output"
        environment = dict(os.environ, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1", OMP_NUM_THREADS="1")
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                [options.python, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={options.processes}",
                 "--max-restarts=1000", SCRIPT, *ARGUMENTS], cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT)

    def said(self):
        return self.output.read_bytes()

    def ranks(self):
        return children(self.process.pid)

    def end(self):
        self.process.terminate()
        self.process.wait()


class Cairn:
    def __init__(self, options, folder, preload):
        self.begin(options, folder, f"""\
name: bench
command:
  run: [{options.python}, {SCRIPT}, {", ".join(f'"{text}"' for text in ARGUMENTS)}]
  progress: 'step (\\d+)'
  preload: [{"torch" if preload else ""}]
workers: {{count: {options.processes}}}
""")

    def begin(self, options, folder, text):
        self.options, self.home = options, folder / "home"
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CAIRN_")}
        self.environment.update(CAIRN_HOME=str(self.home), CAIRN_COPIES=str(folder / "copies"), XDG_CONFIG_HOME=str(folder))
        self.call("up", "--slots", options.processes)
        job = folder / "job.yaml"
        job.write_text(text, encoding="utf-8")
        self.call("submit", job)

    def call(self, *arguments):
        subprocess.run([self.options.bin / "cairn", *map(str, arguments)], env=self.environment, check=True, stdout=subprocess.DEVNULL)

    def said(self):
        return b"".join(path.read_bytes() for path in sorted(self.home.glob("jobs/*/*/*.log")))

    def ranks(self):
        agents = [pid for pid in self.processes("cairn-agent")]
        trainers = [pid for agent in agents for pid in children(agent)]
        return [children(trainer)[-1] for trainer in trainers if children(trainer)]

    def processes(self, name):
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and (entry / "comm").read_text(encoding="utf-8").strip() == name and \
                        f"CAIRN_HOME={self.home}".encode() in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)
            except OSError:
                pass

    def end(self):
        self.call("down")


def steps(way):
    return [(int(step), float(at)) for step, at in LINE.findall(way.said())]


def await_step(way, newer_than, after):
    """The time of the first step beyond newer_than that ended after that time."""
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        found = [at for step, at in steps(way) if step > newer_than and at > after]
        if found:
            return min(found)
        time.sleep(0.02)
    return None


def kill_one(way, number):
    """Kills the rank of that number; returns the seconds until a new step. None: none came."""
    ranks = way.ranks()
    newest = max(step for step, _ in steps(way))
    now = time.time()
    os.kill(ranks[number % len(ranks)], signal.SIGKILL)
    at = await_step(way, newest + 1, now)  # one may have been under way
    return None if at is None else at - now


def run(make, options, kills):
    """Starts the script, and kills it so often. Returns the seconds of each."""
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
        way = make(Path(folder))
        took = []
        try:
            for number in range(kills):
                if await_step(way, max([step for step, _ in steps(way)], default=0) + 20, 0) is None:
                    break
                took.append(kill_one(way, number))
        finally:
            way.end()
        return took


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has PyTorch")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--bin", type=Path, default=ROOT / "build/release/bin")
    options = parser.parse_args()
    ways = {"torchrun": lambda folder: Torchrun(options, folder),
            "command": lambda folder: Cairn(options, folder, False),
            "command, preload": lambda folder: Cairn(options, folder, True)}
    at_a_time, took = 5, {name: [] for name in ways}
    for begun in range(0, options.kills, at_a_time):
        for name, make in ways.items():
            took[name] += run(make, options, min(at_a_time, options.kills - begun))
    yardstick = statistics.median(each for each in took["torchrun"] if each is not None)
    print(f"{'':18} {'kills':>5} {'back':>5} {'median s':>9} {'worst s':>8} {'ratio':>7}", file=sys.stderr)
    for name, all_of in took.items():
        back = [each for each in all_of if each is not None]
        row = {"way": name, "kills": options.kills, "back": len(back), "median_s": round(statistics.median(back), 3),
               "worst_s": round(max(back), 3), "ratio": round(statistics.median(back) / yardstick, 3)}
        print(json.dumps(row))
        print(f"{name:18} {row['kills']:5} {row['back']:5} {row['median_s']:9} {row['worst_s']:8} {row['ratio']:7}", file=sys.stderr)


if __name__ == "__main__":
    main()
