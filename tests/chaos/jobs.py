"""The three jobs that train at once: what they are, and who keeps them coming.

A slot is one of the three models; it trains its job files in turn, one job at a time, each under a name of its own.
Files of a slot differ in workers, checkpoints and copies in memory. What a job's weights have to be in the end is known
from a quiet run of the same file.
"""
import json
import re
import threading
import time
from collections import Counter

HEAD = """\
name: {name}
model: {{{model}}}
data: {{train: {{format: synthetic, samples: {samples}}}}}
train:
  duration: {steps} steps
  global_batch: {batch}
  lanes: 4
  optimizer: {optimizer}
  schedule: {{name: cosine, warmup: 2 steps}}
  seed: {seed}
workers: {{{workers}, device: cpu}}
checkpoint: {{store: "{store}", {checkpoint}}}
"""
MODELS = {
    "mlp": {"model": "arch: mlp, hidden: 256", "samples": 1200, "batch": 48, "seed": 17, "steps": 12000,
            "optimizer": "{name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 5e-4}"},
    "lenet": {"model": "arch: lenet", "samples": 1200, "batch": 16, "seed": 18, "steps": 6000,
              "optimizer": "{name: adamw, lr: 0.001}"},
    "resnet18": {"model": "arch: resnet18", "samples": 64, "batch": 4, "seed": 19, "steps": 120,
                 "optimizer": "{name: sgd, lr: 0.02}"},
}
# By slot: (name, workers, what a number of steps of all makes up from checkpoint to checkpoint, what else is saved).
FILES = {
    "mlp": [("store", "count: 2, spares: 1", 40, "keep: {last: 2}, memory_every: none"),
            ("memory", "count: 4, min: 2", 5, "keep: {last: 1}, memory_every: 1 step")],
    "lenet": [("peers", "count: 3", 8, "keep: {last: 2}, memory_every: 1 step, peers: 1, delta: true"),
              ("store", "count: 2, min: 1, spares: 1", 20, "keep: {last: 2}, memory_every: none")],
    "resnet18": [("memory", "count: 2", 6, "keep: {last: 1}, memory_every: 1 step"),
                 ("auto", "count: 3, min: 2, spares: 1", 15, "keep: {last: 2}")],
}
OVER = ("SUCCEEDED", "FAILED", "STOPPED", "KILLED")
POLL_S = 1.0


class JobFile:
    def __init__(self, arch, row, scale, store):
        kind, self.workers, parts, rest = row
        self.arch, self.name, self.store = arch, f"{arch}-{kind}", store
        # All files of a model have as many, as their digests are one.
        self.steps = max(round(MODELS[arch]["steps"] * scale), *(each[2] for each in FILES[arch]))
        self.checkpoint = f"every: {max(2, self.steps // parts)} steps, {rest}"

    def text(self, name):
        values = {**MODELS[self.arch], "steps": self.steps, "workers": self.workers}
        return HEAD.format(name=name, store=self.store, checkpoint=self.checkpoint, **values)


def job_files(scale, store, per_slot):
    """By slot, in the order of their first turns."""
    return {arch: [JobFile(arch, row, scale, store) for row in rows[:per_slot]] for arch, rows in FILES.items()}


def recoveries(shown):
    """{generation: what its state came from}, of what `cairn show` says of a job; those after a failure only."""
    if "recoveries" in shown:
        return {row.get("generation", at): row["kind"] for at, row in enumerate(shown["recoveries"])}
    found, failed = {}, False
    for event in shown["events"]:
        if event["kind"] == "recovering":
            failed = True
        elif event["kind"] == "forming":
            if failed:  # else it follows a pause, or a worker that was told to go
                found[event["generation"]] = "seed" if "from the beginning" in event["message"] else "checkpoint"
            failed = False
        elif event["kind"] == "memory" and event["generation"] in found:
            found[event["generation"]] = "memory"
    return found


def cause(message):
    """A failure's message without what differs from one to the next."""
    return re.sub(r"\d[\d.:]*", "N", re.split(r":? last (?:in|after) |; | \{", message)[0])[:100]


class Job:
    """One that was submitted, and what was heard of it."""

    def __init__(self, file, name, job_id):
        self.file, self.name, self.id = file, name, job_id
        self.shown = None
        self.recoveries, self.faults = {}, {}
        self.resume_at = None  # it is paused until then
        self.paused_s = 0.0
        self.good = False  # it ended as it should
        self.heard = time.monotonic()

    def hear(self, shown):
        if self.state == shown["state"] == "PAUSED":
            self.paused_s += time.monotonic() - self.heard
        self.heard = time.monotonic()
        self.shown = shown
        self.recoveries.update(recoveries(shown))
        for event in shown["events"]:
            if event["kind"] == "fault":
                self.faults[(event["time"], event["message"])] = event["message"]

    @property
    def step(self):
        return self.shown["step"] if self.shown else 0

    @property
    def state(self):
        return self.shown["state"] if self.shown else "SUBMITTED"


class Keeper(threading.Thread):
    """Submits a slot's jobs, one after the other, and looks at the one there is; a thread, as it waits for answers."""

    def __init__(self, world, arch, files, quiet, report, prefix=""):
        super().__init__(name=arch, daemon=True)
        self.world, self.arch, self.files, self.quiet, self.report = world, arch, files, quiet, report
        self.job, self.ended = None, []
        self.last = False  # no job follows the one that is there
        self.give_up = threading.Event()
        self.abandoned = False  # chaos itself failed
        self.count, self.prefix = 0, prefix  # of its jobs' names

    def run(self):
        try:
            while not (self.last or self.give_up.is_set()):
                file = self.files[self.count % len(self.files)]
                self.count += 1
                self.keep(file, f"{self.prefix}{file.name}-{self.count:03}")
        except Exception as error:  # pylint: disable=broad-except
            self.report.violation(f"the keeper of {self.arch} ended: {type(error).__name__}: {error}")

    def keep(self, file, name):
        self.job = Job(file, name, self.submit(file, name))
        while not self.give_up.wait(POLL_S):
            shown = self.world.try_show(self.job.id)
            if shown is None:
                continue
            self.job.hear(shown)
            if shown["state"] in OVER:
                self.over(self.job)
                return
            if shown["state"] == "PAUSED" and time.monotonic() >= (self.job.resume_at or 0):
                self.world.ask("resume", self.job.id)
        if not self.abandoned:
            self.report.violation(f"{name} ({self.job.id}) was not over in time: {self.job.state} "
                                  f"at step {self.job.step}: {(self.job.shown or {}).get('reason')}")

    def submit(self, file, name):
        """An answer may get lost: nothing is submitted twice."""
        while not self.give_up.is_set():
            done = self.world.submit(name, file.text(name))
            if done.returncode == 0:
                return done.stdout.strip()
            if done.returncode == 2:
                raise ValueError(done.stderr)
            listed = self.world.ask("ps", "-o", "jsonl")
            for line in listed.stdout.splitlines() if listed.returncode == 0 else []:
                if json.loads(line)["name"] == name:
                    return json.loads(line)["id"]
            self.give_up.wait(POLL_S)
        raise TimeoutError("nobody takes a job")

    def stored(self, job):
        """The digest of the stored bytes; the file server or the coordinator may be away."""
        for _ in range(60):
            done = self.world.ask("ckpt", "digest", job.id, timeout=120)
            if done.returncode in (0, 8) or self.give_up.wait(POLL_S):
                break
        return done.stdout.strip() or done.stderr.strip()

    def over(self, job):
        shown = job.shown
        self.ended.append(job)
        if shown["state"] != "SUCCEEDED":
            why = self.world.ask("why", job.id).stdout
            self.report.violation(f"{job.name} ({job.id}) is {shown['state']}: {shown['reason']}\n{why}")
            return
        stored = self.stored(job)
        wanted = self.quiet.setdefault(job.file.name, shown["final_digest"])
        if shown["final_digest"] != wanted:
            self.report.violation(f"{job.name} ({job.id}) ended with {shown['final_digest']}, "
                                  f"the quiet run with {wanted}")
        elif stored != wanted:
            self.report.violation(f"{job.name} ({job.id}) ended with {wanted}, but stored is {stored}")
        else:
            job.good = True
            self.report.job_ended(job)
            self.remove_checkpoints(job)

    def remove_checkpoints(self, job):
        """An hour of them would fill the store. The newest first: others may be what it builds on."""
        said = ""
        for _ in range(120):
            shown = self.world.try_show(job.id)
            if shown and not shown["checkpoints"]:
                return
            for checkpoint in shown["checkpoints"] if shown else []:
                said = self.world.ask("ckpt", "rm", f"{job.id}@{checkpoint['step']}", "--force").stderr
            if self.give_up.wait(POLL_S):
                break
        self.report.violation(f"{job.name} ({job.id}) keeps its checkpoints: {said}")


def causes(jobs):
    return Counter(cause(message) for job in jobs for message in job.faults.values())
