#!/usr/bin/env python3
"""What each training loop gives after the same SIGKILL, alone and under Cairn: equal bits or not, steps repeated, seconds lost.

    bench/pytorch/frameworks.py --python VENV/bin/python [--bin build/release/bin --package build/release/python] [--only plain ...]

VENV has torch, lightning, accelerate, transformers; keras, too, for its row. Alone: one process saves every 10 steps in the way that its
framework's documentation shows, is killed at step 35 of 60, in the middle of the second epoch of three, and the same command is run again. Under Cairn: the same program with the
callback of the package cairn, as a job. Each is compared with its own run without a kill. A step is counted as repeated if it was
printed twice. Seconds lost: from the kill to the first step that is new, with the programs' imports. Prints one JSON line per row, and
a table. What has no row under Cairn needs no callback: it is started again, with what it saves itself."""
import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(__file__).with_name("frameworks_program.py")
WAYS = {"plain DDP, DCP": "plain", "Lightning": "lightning", "Transformers' Trainer": "transformers", "Accelerate": "accelerate",
        "Keras (torch)": "keras"}
PRELOAD = {"lightning": ", lightning.pytorch", "transformers": ", transformers", "accelerate": ", accelerate", "keras": ", keras"}
CALLBACKS = ("plain", "lightning", "transformers", "accelerate", "keras")
KILL, PATIENCE_S = 35, 240
STEP, DIGEST = re.compile(r"^step (\d+) at (\S+)$", re.M), re.compile(r"^digest (\S+)$", re.M)


def environment(options, **more):
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CAIRN_")}
    return ours | {"OMP_NUM_THREADS": "1", "KERAS_BACKEND": "torch", "PYTHONPATH": str(options.package)} | more


class Alone:
    """The program, run again when it is gone."""

    def __init__(self, options, way, folder):
        self.options, self.way, self.folder, self.texts = options, way, folder, []

    def start(self):
        self.texts.append(self.folder / f"out.{len(self.texts)}")
        with self.texts[-1].open("w") as output:
            self.process = subprocess.Popen([self.options.python, PROGRAM, self.way, "alone"], cwd=self.folder, stdout=output,
                                            stderr=subprocess.STDOUT, env=environment(self.options))

    def kill(self):
        self.process.kill()
        self.process.wait()
        now = time.time()
        self.start()
        return now

    def said(self):
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in self.texts)

    def over(self):
        return self.process.poll() is not None

    def end(self):
        self.process.kill()
        self.process.wait()


class Cairn:
    """The program as a job."""

    def __init__(self, options, way, folder):
        self.options, self.way, self.folder, self.home = options, way, folder, folder / "home"
        self.environment = environment(options, CAIRN_HOME=str(self.home), CAIRN_COPIES=str(folder / "copies"), XDG_CONFIG_HOME=str(folder))

    def call(self, *arguments):
        return subprocess.run([self.options.bin / "cairn", *map(str, arguments)], env=self.environment, check=True, capture_output=True,
                              text=True).stdout

    def start(self):
        self.call("up", "--slots", 1)
        job = self.folder / "job.yaml"
        job.write_text(f"""\
name: bench
command:
  run: [{self.options.python}, {PROGRAM}, {self.way}, cairn]
  workdir: {self.folder}
  env: {{PYTHONPATH: {self.options.package}, KERAS_BACKEND: torch}}
  preload: [torch, torch._dynamo{PRELOAD.get(self.way, '')}]
workers: {{count: 1}}
checkpoint: {{every: 10 steps}}
""", encoding="utf-8")
        self.call("submit", job)

    def kill(self):
        now = None
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and f"CAIRN_HOME={self.home}".encode() in (entry / "environ").read_bytes() and \
                        (entry / "comm").read_text(encoding="utf-8").strip() == "cairn-trainer":
                    children = Path(f"/proc/{entry.name}/task/{entry.name}/children").read_text(encoding="utf-8").split()
                    os.kill(int(children[-1]), signal.SIGKILL)
                    now = time.time()
            except OSError:
                pass
        return now

    def said(self):
        return "".join(path.read_text(encoding="utf-8", errors="replace") for path in sorted(self.home.glob("jobs/*/*/*.log")))

    def over(self):
        return bool(self.call("ps", "--state", "over", "-o", "name").strip())

    def end(self):
        self.call("down")


def steps(run):
    return [(int(step), float(at)) for step, at in STEP.findall(run.said())]


def measure(make, options, way, kill):
    """Runs to the end, killed once or not; returns (digest or None, steps repeated, seconds lost)."""
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as folder:
        run, killed_at = make(options, way, Path(folder)), None
        try:
            run.start()
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end:
                if kill and killed_at is None and any(step >= KILL for step, _ in steps(run)):
                    killed_at = run.kill()
                if run.over() and (DIGEST.search(run.said()) or killed_at is None or isinstance(run, Cairn)):
                    break
                time.sleep(0.05)
            seen = steps(run)
            newest = max((step for step, at in seen if killed_at is not None and at <= killed_at), default=0)
            found = DIGEST.findall(run.said())
            if options.verbose and not found:
                print(run.said()[-3000:], file=sys.stderr)
            after = [at for step, at in seen if killed_at is not None and step > newest and at > killed_at]
            return (found[-1] if found else None, len(seen) - len({step for step, _ in seen}),
                    round(min(after) - killed_at, 2) if after else None)
        finally:
            run.end()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", required=True, help="an interpreter that has PyTorch and the frameworks")
    parser.add_argument("--bin", type=lambda text: Path(text).resolve(), help="Cairn's programs; without it only the rows alone")
    parser.add_argument("--package", type=lambda text: Path(text).resolve(), default=ROOT / "python",
                        help="the folder that has the built package cairn")
    parser.add_argument("--only", nargs="+", choices=sorted(WAYS.values()), help="only these loops")
    parser.add_argument("--verbose", action="store_true", help="prints the words of a program that never ended")
    options = parser.parse_args()
    print(f"{'':26} {'bits':>8} {'repeated':>9} {'seconds':>8}", file=sys.stderr)
    for name, way in WAYS.items():
        if options.only and way not in options.only:
            continue
        for where, make in (("alone", Alone), ("under Cairn", Cairn)):
            if make is Cairn and (options.bin is None or way not in CALLBACKS):
                continue
            quiet = measure(make, options, way, False)[0]
            digest, repeated, seconds = measure(make, options, way, True)
            bits = "–" if quiet is None or digest is None else "equal" if digest == quiet else "other"
            print(json.dumps({"loop": name, "where": where, "bits": bits, "repeated": repeated, "seconds": seconds}), flush=True)
            print(f"{name + ', ' + where:36} {bits:>8} {repeated:9} {seconds if seconds is not None else '–':>8}", file=sys.stderr)


main()
