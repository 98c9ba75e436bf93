#!/usr/bin/env python3
"""A PyTorch program that Cairn saves, in numbers, beside torchrun: all in one run.

    bench/pytorch/recovery.py --python VENV/bin/python [--kills 20] [--bin build/release/bin] [--package build/release/python]

 - the seconds from a SIGKILL, or a SIGSTOP, to the first step that is new, and the finished steps that were lost: one rank, and all.
   torchrun (its workaround set, a checkpoint after each step; bench/programs.py) is the yardstick, and beside it a job with `command`
   that saves by itself, started cold and with `preload`; all of one rank each;
 - with --torchft DIR (pip install --target DIR torchft) torchft's own recovery, with the lighthouse and the times of its README: until the
   replica that is left goes on, and until all train together again;
 - what a copy in memory adds to a step of 0.45 s with a state of 64 MiB (--mib), at every step and at every tenth, and how long the
   program waits at most;
 - a call of Session.step where nothing is due.

Prints one JSON line per number, and a table."""
import argparse
import json
import os
import re
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE, ROOT = Path(__file__).parent, Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "bench"))
import programs  # noqa: E402


HANG = "2 s"


class Torchft:
    """A lighthouse, and a process per replica that is started again whenever it has ended."""

    def __init__(self, options, folder, which):
        self.folder = folder
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = found.getsockname()[1]
        env = dict(os.environ, PYTHONPATH=str(options.torchft), OMP_NUM_THREADS="1", REPLICAS=str(options.processes), PYTHONUNBUFFERED="1",
                   TORCHFT_LIGHTHOUSE=f"http://127.0.0.1:{port}")
        script = folder / "lighthouse.py"  # as its console script: it reads what stands behind that
        script.write_text("from torchft._torchft import lighthouse_main\nlighthouse_main()\n", encoding="utf-8")
        lighthouse = [options.python, str(script), "--bind", f"127.0.0.1:{port}", "--min_replicas", "1", "--quorum_tick_ms", "100",
                      "--join_timeout_ms", "10000"]
        self.started = [self.start("lighthouse", lighthouse, env)]
        for replica in range(options.processes):
            program = [options.python, str(HERE / "torchft_program.py"), str(replica), which]
            self.started.append(self.start(f"replica.{replica}", ["sh", "-c", 'while :; do "$@"; done', "sh", *program], env))

    def start(self, name, command, env):
        with (self.folder / name).open("wb") as output:
            return subprocess.Popen(command, cwd=self.folder, env=env, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)

    def said(self):
        return b"".join(path.read_bytes() for path in sorted(self.folder.glob("replica.*")))

    def ranks(self):
        return [child for each in self.started[1:] for child in programs.children(each.pid)[:1]]

    def end(self):
        for each in self.started:
            os.killpg(each.pid, signal.SIGKILL)
            each.wait()


class Saved(programs.Cairn):
    """The program as a job that Cairn saves."""

    def __init__(self, options, folder, words, more="memory_every: 1 step", hang="none"):
        self.begin(options, folder, f"""\
name: bench
command:
  run: [{options.python}, {", ".join(f'"{word}"' for word in words)}]
  env: {{PYTHONPATH: {options.package}}}
  preload: [torch, torch._dynamo, torch.nn.parallel]
  hang: {hang}
workers: {{count: {options.processes if "step_program" not in str(words[0]) else 1}}}
checkpoint: {{every: 1000 steps, {more}}}
""")

    def hurt(self, ranks, what):
        for pid in ranks:
            os.kill(pid, what)

    def await_text(self, pattern, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = re.search(pattern, self.said())
            if found:
                return found
            time.sleep(0.1)
        raise TimeoutError(f"no {pattern} in: {self.said()[-2000:]}")


def hurt_often(options, what, everyone, count):
    """(seconds, steps lost) of each."""
    found = []
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
        way = None
        try:
            way = Saved(options, Path(folder), [HERE / "recovery_program.py", 1000000, 0.02],
                        hang=HANG if what == signal.SIGSTOP else "none")
            for number in range(count):
                before = max([step for step, _ in programs.steps(way)], default=0)
                if programs.await_step(way, before + 20, 0) is None:
                    break
                ranks = way.ranks()
                way.hurt(ranks if everyone else [ranks[number % len(ranks)]], what)
                now = time.time()
                newest = max(step for step, at in programs.steps(way) if at <= now)
                at = programs.await_step(way, newest + 1, now)
                if at is not None:
                    again = [step for step, seen in programs.steps(way) if step <= newest and seen > now]
                    found.append((at - now, len(set(again))))
        finally:
            if way is not None:
                way.end()
    return found


def row(name, **numbers):
    print(json.dumps({"what": name, **numbers}), flush=True)
    print(f"{name:40} " + "  ".join(f"{key} {value}" for key, value in numbers.items()), file=sys.stderr)


def one_run(options, words, more, pattern):
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
        way = None
        try:
            way = Saved(options, Path(folder), words, more)
            return way.await_text(pattern, 240)
        finally:
            if way is not None:
                way.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has PyTorch")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--state-only", action="store_true", help="leaves torchrun, and programs that save by themselves, out")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--mib", type=int, default=64, help="megabytes of state of the copies' rows")
    parser.add_argument("--copies-only", action="store_true", help="leaves all that is killed out")
    parser.add_argument("--torchft", type=lambda text: Path(text).resolve(), help="a folder that pip has installed torchft to")
    parser.add_argument("--bin", type=lambda text: Path(text).resolve(), default=ROOT / "build/release/bin")
    parser.add_argument("--package", type=lambda text: Path(text).resolve(), default=ROOT / "build/release/python")
    options = parser.parse_args()
    ways = {"torchrun, one killed": lambda folder: programs.Torchrun(options, folder),
            "command, cold, one killed": lambda folder: programs.Cairn(options, folder, False),
            "command, preload, one killed": lambda folder: programs.Cairn(options, folder, True)}
    if options.torchft:
        ways["torchft, one killed, the other goes on"] = lambda folder: Torchft(options, folder, "any")
        ways["torchft, one killed, both train again"] = lambda folder: Torchft(options, folder, "all")
    for name, make in ways.items():
        took = [] if options.state_only or options.copies_only else [each for each in programs.run(make, options, options.kills) if each is not None]
        if took:
            row(name, kills=options.kills, back=len(took), median_s=round(statistics.median(took), 3), worst_s=round(max(took), 3))
    for name, what, everyone in (("State, one killed", signal.SIGKILL, False), ("State, all killed", signal.SIGKILL, True),
                                 (f"State, one stopped (hang: {HANG})", signal.SIGSTOP, False)):
        count = 0 if options.copies_only else options.kills if what == signal.SIGKILL else max(1, options.kills // 4)
        if count == 0:
            continue
        found = hurt_often(options, what, everyone, count)
        times = [seconds for seconds, _ in found] or [float("nan")]
        row(name, kills=count, back=len(found), median_s=round(statistics.median(times), 3), worst_s=round(max(times), 3),
            steps_lost_at_most=max((lost for _, lost in found), default=0))
    words, pattern = [HERE / "recovery_program.py", 40, 0.45, options.mib], rb"took (\S+) ms a step, waited (\S+) ms"
    without, every, tenth = (one_run(options, words, f"memory_every: {each}", pattern) for each in ("none", "1 step", "10 steps"))
    for name, seen in ((f"a copy of {options.mib} MiB at every step", every), (f"a copy of {options.mib} MiB at every 10 steps", tenth)):
        row(name, step_ms=float(without[1]), with_copies_ms=float(seen[1]),
            percent=round((float(seen[1]) / float(without[1]) - 1) * 100, 2), waited_at_most_ms=float(seen[2]))
    row("Session.step", ns=int(one_run(options, [HERE / "step_program.py"], "memory_every: none", rb"step\(\) (\d+) ns")[1]))


if __name__ == "__main__":
    main()
