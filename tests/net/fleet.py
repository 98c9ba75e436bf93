"""A coordinator on one machine of a room, agents on others: real processes, and what they share.

Machine 1 has the coordinator, which speaks TLS on port 7000, and the user's client. Machine 2 and up have an agent each,
with a certificate. Checkpoints lie in a folder that all see. Homes are on disks: they outlive a power cut.
"""
import json
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import faults
from rooms import Room

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "dev" / "bin"))
PORT = 7000
TLS = "/run/shared/tls"

JOB = """\
name: tiny
model: {{arch: mlp, hidden: 32, classes: 10}}
data: {{train: {{format: synthetic, samples: 1200}}}}
train:
  duration: {steps} steps
  global_batch: 24
  lanes: 4
  optimizer: {{name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 5e-4}}
  schedule: {{name: cosine, warmup: 2 steps}}
  seed: 17
workers: {{count: {workers}, device: cpu}}
checkpoint: {{every: {every} steps, keep: {{last: 2}}, store: /run/shared/checkpoints,
             memory_every: none}}
"""


# Limits are for a machine that has nothing else to do; one whose disk is full of others' writes syncs in seconds.
PATIENCE = 3


def until(condition, seconds, what):
    """The first true value of condition(); fails after PATIENCE times so many seconds."""
    end = time.monotonic() + PATIENCE * seconds
    while not (value := condition()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {PATIENCE} * {seconds} s: {what}")
        time.sleep(0.05)
    return value


class Fleet:
    """nodes: machines with an agent; agent: what more it is told. prepare: called with each of their machines first.
    more: further machines, with higher numbers; begin: called with the fleet as soon as its machines are there.
    ipv6: nodes have no other addresses."""

    def __init__(self, nodes, slots=1, ipv6=False, agent=(), prepare=lambda machine: None, env=(), more=0,
                 begin=lambda fleet: None):
        self.nodes, self.slots, self.ipv6, self.agent, self.prepare = nodes, slots, ipv6, agent, prepare
        self.dir = Path(tempfile.mkdtemp(prefix="cairn-net-"))
        (self.dir / "checkpoints").mkdir(mode=0o777)
        self.begin = begin
        self.room = Room(1 + nodes + more, {BIN: "/run/bin", self.dir: "/run/shared"})
        self.env = {"PATH": os.environ["PATH"], "CAIRN_COPIES": "/dev/shm/cairn", "CAIRN_HANG_MS": "5000", **dict(env)}
        self.cairnd, self.agents = None, {}
        self.clocks = {}  # of a machine: by how much its wall clock is off ("+2d"), for what is started from now on

    def __enter__(self):
        try:
            self.room.__enter__()
            self.begin(self)
            self.cairn("cert", "init", "--dir", TLS)
            for number in range(2, 2 + self.nodes):
                self.cairn("cert", "node", f"node{number}", "--dir", TLS)
            self.start_coordinator()
            for number in range(2, 2 + self.nodes):
                self.start_agent(number)
            until(lambda: len(self.ready()) == self.nodes, 20, f"{self.nodes} nodes")
        except BaseException:
            self.__exit__(True, None, None)
            raise
        return self

    def __exit__(self, kind, value, trace):
        self.room.__exit__()
        if kind is not None:
            for path in sorted(self.dir.glob("*.log")):
                print(f"---- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-4000:]}")
        shutil.rmtree(self.dir, ignore_errors=True)

    def env_of(self, number):
        return {**self.env, "CAIRN_HOME": f"/run/shared/disk-{number}", **faults.clock(self.clocks.get(number))}

    def log_of(self, program, number):
        return (self.dir / f"{program}-{number}.log").read_text(encoding="utf-8", errors="replace")

    def _start(self, number, *args):
        with (self.dir / f"{Path(args[0]).name}-{number}.log").open("ab") as log:
            return self.room[number].popen(*args, env=self.env_of(number), stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    @staticmethod
    def tls(stem):
        return ["--tls-cert", f"{TLS}/{stem}.crt", "--tls-key", f"{TLS}/{stem}.key", "--tls-ca", f"{TLS}/ca.crt"]

    def start_coordinator(self, serves=True):
        self.cairnd = self._start(1, "/run/bin/cairnd", "--listen", f"[::]:{PORT}", *self.tls("coordinator"))
        if not serves:
            return
        until(lambda: self.cairn("ps", check=False).returncode == 0, 20, "the coordinator serves")

    def start_agent(self, number):
        machine = self.room[number]
        if self.ipv6:
            machine.in_net("ip", "-4", "addr", "flush", "dev", "eth0")
        self.prepare(machine)
        host = f"[{self.room[1].address6}]" if self.ipv6 else self.room[1].address
        self.agents[number] = self._start(
            number, "/run/bin/cairn-agent", "--coordinator", f"{host}:{PORT}", "--slots", str(self.slots),
            *self.tls(f"node-node{number}"), *self.agent)

    # what the user does, on machine 1

    def cairn(self, *args, check=True, timeout=30):
        done = subprocess.run(self.room[1].command("/run/bin/cairn", *args), env=self.env_of(1), timeout=timeout,
                              capture_output=True, text=True, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"cairn {' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def json_lines(self, *args):
        return [json.loads(line) for line in self.cairn(*args, "-o", "jsonl").stdout.splitlines()]

    def ready(self):
        return [row["name"] for row in self.json_lines("node", "ls") if row["state"] == "ready"]

    def submit(self, workers, steps=200, every=50, **sets):
        path = self.dir / "job.yaml"
        path.write_text(JOB.format(workers=workers, steps=steps, every=every), encoding="utf-8")
        args = [word for key, value in sets.items() for word in ("--set", f"{key.replace('__', '.')}={value}")]
        return self.cairn("submit", "/run/shared/job.yaml", *args, "-o", "name").stdout.strip()

    def show(self, job):
        return json.loads(self.cairn("show", job, "-o", "json").stdout)

    def nodes_of(self, job):
        """Numbers of the machines where its workers run, by rank."""
        return [int(worker["node"].removeprefix("node")) for worker in self.show(job)["workers"]]

    def wait(self, job, condition, seconds, what):
        def reached():
            shown = self.show(job)
            assert shown["state"] != "FAILED", shown["reason"]
            return shown if condition(shown) else None
        return until(reached, seconds, what)

    def wait_step(self, job, step, seconds=30):
        return self.wait(job, lambda shown: shown["step"] >= step, seconds, f"step {step} of {job}")

    def wait_generation(self, job, generation, seconds):
        return self.wait(job, lambda shown: shown["generation"] == generation and shown["state"] == "RUNNING", seconds,
                         f"generation {generation} of {job} runs")

    def digest(self, job, seconds=60):
        return self.wait(job, lambda shown: shown["state"] == "SUCCEEDED", seconds, f"{job} ends")["final_digest"]
