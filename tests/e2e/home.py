"""One embedded Cairn of its own for a test: real processes under a temporary CAIRN_HOME."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "dev" / "bin"))

# A job of a second: every part of a real one, little arithmetic.
TINY = """\
name: tiny
model: {arch: mlp, hidden: 32, classes: 10}
data:
  train: {format: synthetic, samples: 384}
  eval: {format: synthetic, samples: 100}
train:
  duration: 12 steps
  global_batch: 24
  lanes: 4
  optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 5e-4}
  schedule: {name: cosine, warmup: 2 steps}
  seed: 17
eval: {every: 6 steps}
workers: {count: 2, device: cpu}
checkpoint: {every: 4 steps, keep: {last: 2}, store: checkpoints/, memory_every: none}
"""


# Limits are for a machine that has nothing else to do; one whose disk is full of others' writes syncs in seconds.
PATIENCE = 3


def until(condition, seconds, what):
    """The first true value of condition(); fails after PATIENCE times so many seconds."""
    end, pause = time.monotonic() + PATIENCE * seconds, 0.02
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} * {seconds} s: {what}")
        time.sleep(pause)
        pause = min(0.1, 1.1 * pause)  # who asks by a program would keep a core busy


def alive(pid):
    """Whether a process runs (a zombie doesn't)."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except OSError:
        return False
    return stat.rsplit(")", 1)[1].split()[0] != "Z"


class Home:
    # For env
    RESTART = {"CAIRN_RECOVERY": "restart"}  # no worker outlives a failure
    HANGS = {"CAIRN_HANG_MS": "2500", "CAIRN_WATCHDOG_MS": "3000"}  # where somebody is stopped: who hangs is told soon

    def __init__(self, env=None, faults=None, slots=4):
        self.dir = Path(tempfile.mkdtemp(prefix="cairn-e2e-"))
        self.home = self.dir / "home"
        self.faults = self.dir / "faults"
        self.faults.mkdir()
        self.slots = slots
        self.copies = Path("/dev/shm") / self.dir.name  # of states, in memory
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
        self.env.update(CAIRN_HOME=str(self.home), CAIRN_FAULT_DIR=str(self.faults),
                        XDG_CONFIG_HOME=str(self.dir / "config"), CAIRN_COPIES=str(self.copies), CAIRN_HANG_MS="20000", CAIRN_WATCHDOG_MS="20000")
        self.env.update(env or {})
        if faults:
            self.env["CAIRN_FAULT"] = faults

    def __enter__(self):
        self.cairn("up", "--slots", str(self.slots))
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.print_logs()
        try:
            self.cairn("down", timeout=40, check=False)
        finally:
            self.end_everything()
            shutil.rmtree(self.dir, ignore_errors=True)
            shutil.rmtree(self.copies, ignore_errors=True)

    def cairn(self, *args, timeout=30, check=True):
        done = subprocess.run([BIN / "cairn", *map(str, args)], env=self.env, cwd=self.dir,
                              timeout=PATIENCE * timeout, capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"cairn {' '.join(map(str, args))}: exit {done.returncode}\n"
                                 f"{done.stdout}{done.stderr}")
        return done

    def submit(self, text=TINY, **sets):
        path = self.dir / f"job-{len(list(self.dir.glob('job-*')))}.yaml"
        path.write_text(text, encoding="utf-8")
        args = []
        for key, value in sets.items():
            args += ["--set", f"{key.replace('__', '.')}={value}"]
        return self.cairn("submit", path, *args, "-o", "name").stdout.strip()

    def submit_unseen(self, text=TINY, **sets):
        """As where nodes may be elsewhere: what files hold isn't looked at before."""
        self.env["CAIRN_ADDR"] = f"unix:{self.home}/cairnd.sock"
        try:
            return self.submit(text, **sets)
        finally:
            del self.env["CAIRN_ADDR"]

    def show(self, job):
        return json.loads(self.cairn("show", job, "-o", "json").stdout)

    def try_show(self, job):
        """As show; None while the coordinator doesn't answer."""
        done = self.cairn("show", job, "-o", "json", check=False)
        return json.loads(done.stdout) if done.returncode == 0 else None

    def wait_state(self, job, *states, seconds=60):
        def reached():
            shown = self.try_show(job)
            if shown and shown["state"] in ("FAILED", *states):
                return shown
            return None
        shown = until(reached, seconds, f"job {job} in {states}")
        assert shown["state"] in states, f"{shown['state']}: {shown['reason']}"
        return shown

    def digest(self, job, seconds=60):
        """The final digest, which must be that of the stored bytes."""
        shown = self.wait_state(job, "SUCCEEDED", seconds=seconds)
        stored = self.cairn("ckpt", "digest", job).stdout.strip()
        assert shown["final_digest"] == stored, (shown["final_digest"], stored)
        return stored

    def run(self, text=TINY, seconds=60, **sets):
        return self.digest(self.submit(text, **sets), seconds)

    # processes

    def pids(self, program=None):
        """Of this home: {pid: program}."""
        found = {}
        for entry in Path("/proc").iterdir():
            if not entry.name.isdigit() or not alive(entry.name):
                continue
            try:
                environ = (entry / "environ").read_bytes()
                name = Path(os.readlink(entry / "exe")).name
            except OSError:
                continue
            if f"CAIRN_HOME={self.home}".encode() in environ.split(b"\0"):
                found[int(entry.name)] = name
        return {pid: name for pid, name in found.items() if program in (None, name)}

    def kill(self, program, sig=signal.SIGKILL):
        for pid in self.pids(program):
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass

    def end_everything(self):
        for _ in range(20):
            left = self.pids()
            if not left:
                return
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.05)

    # fault points with the action "wait"

    def wait_hit(self, point, seconds=30):
        until(lambda: (self.faults / f"{point}.hit").exists(), seconds, f"{point} reached")

    def go(self, point):
        (self.faults / f"{point}.go").touch()

    def hit(self, point):
        return (self.faults / f"{point}.hit").exists()

    def print_logs(self):
        for log in sorted(self.home.glob("log/*")) + sorted(self.home.glob("jobs/*/*/*.log")):
            tail = log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]
            print(f"--- {log.relative_to(self.home)}", *tail, sep="\n")
