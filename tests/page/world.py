"""What the stand-in server tells of: jobs, a running one whose steps go on, kills, nodes, logs.

Shapes are those of a real run (real.json: what `cairn ... -o json` printed while workers were killed); the rows of
metrics are made up.
"""
import copy
import json
import math
import threading
import time
from pathlib import Path

REAL = json.loads((Path(__file__).parent / "real.json").read_text(encoding="utf-8"))
COLUMNS = ("step", "generation", "unix_seconds", "epoch", "loss", "loss_min", "loss_max", "lr", "grad_norm", "grad_norm_max",
           "samples_per_second", "seconds", "seconds_max", "data_seconds", "forward_seconds", "backward_seconds",
           "communication_seconds", "optimizer_seconds", "snapshot_seconds")
EVIL = "<img src=x onerror=\"document.title='pwned'\">"
STEP_SECONDS = 0.1


def rfc3339(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{int(seconds * 1000) % 1000:03d}Z"


def noise(step, salt=0):
    """-1..1, always the same of a step."""
    return math.sin(12.9898 * step + 78.233 * salt) * 43758.5453 % 2 - 1


def row_of(step, generation, start, total, rate=0.004, slow=1.0):
    """What a step came to, as a dict of COLUMNS."""
    warm, done = min(1, step / 50), step / total
    loss = 0.32 + 1.9 * math.exp(-slow * step / 180) + 0.06 * noise(step)
    seconds = STEP_SECONDS * (1 + 0.08 * noise(step, 2))
    parts = dict(data=0.04, forward=0.28, backward=0.44, communication=0.14, optimizer=0.06,
                 snapshot=0.12 if step % 200 == 0 else 0)
    norm = 0.9 + 1.5 * math.exp(-step / 250) + 0.2 * noise(step, 3)
    row = dict(step=step, generation=generation, unix_seconds=start + step * STEP_SECONDS, epoch=step / 1875, loss=loss,
               loss_min=loss, loss_max=loss, lr=rate * warm * 0.5 * (1 + math.cos(math.pi * done)), grad_norm=norm,
               grad_norm_max=norm, samples_per_second=32 / seconds, seconds=seconds, seconds_max=seconds)
    row.update({f"{name}_seconds": part * seconds for name, part in parts.items()})
    return row


def reduced(rows, points):
    """At most so many points, each for consecutive rows."""
    if len(rows) <= points:
        return rows
    out = []
    for at in range(points):
        part = rows[at * len(rows) // points:(at + 1) * len(rows) // points]
        one = {name: sum(row[name] for row in part) / len(part) for name in COLUMNS}
        one.update({name: part[-1][name] for name in ("step", "generation", "unix_seconds", "epoch")})
        one.update({name: min(row[name] for row in part) for name in COLUMNS if name.endswith("_min")})
        one.update({name: max(row[name] for row in part) for name in COLUMNS if name.endswith("_max")})
        out.append(one)
    return out


class Run:
    """One job: its message, its rows, its logs."""

    def __init__(self, job, total, step, every=250, generation=1, **how):
        self.job, self.total, self.every, self.how = job, total, every, how
        self.start = time.time() - step * STEP_SECONDS
        self.rows, self.evals, self.lines = [], [], []
        self.sent = []  # every row that was ever made, for streams: a rewind makes steps again
        self.job.update(total_steps=total, generation=generation)
        for _ in range(step):
            self.advance()

    def advance(self):
        step = len(self.rows) + 1
        row = row_of(step, self.job["generation"], self.start, self.total, **self.how)
        self.rows.append(row)
        self.sent.append(row)
        if step % self.every == 0:
            self.evals.append(dict(step=step, loss=row["loss"] + 0.05, accuracy=1 - 0.4 * row["loss"]))
            self.job.update(eval_loss=self.evals[-1]["loss"], accuracy=self.evals[-1]["accuracy"])
        self.job.update(step=step, loss=row["loss"], throughput=row["samples_per_second"], throughput_unit="samples/s",
                        eta_seconds=(self.total - step) * STEP_SECONDS, step_ms=1000 * row["seconds"])
        for worker in self.job.get("workers", []):
            worker.update(step=step - worker["rank"] % 2, phase="forward")
        if step % 100 == 0:
            self.log(f"step {step}: loss {row['loss']:.4f}")

    def log(self, text, level="info", rank=0):
        line = dict(ts=rfc3339(time.time()), level=level, program="cairn-trainer", job=self.job["id"], rank=rank,
                    generation=self.job["generation"], msg=text)
        self.lines.append(dict(rank=rank, attempt=self.job["generation"], line=json.dumps(line)))

    def tell(self, kind, message):
        self.job["events"].append(dict(time=rfc3339(time.time()), generation=self.job["generation"],
                                       step=self.job["step"], kind=kind, message=message))

    def kill(self, back=7):
        """A worker is gone: a new generation goes on from some steps before."""
        ended, step = self.job["generation"], max(0, len(self.rows) - back)
        lost = len(self.rows) - step
        self.rows, self.evals = self.rows[:step], [one for one in self.evals if one["step"] <= step]
        self.job.update(generation=ended + 1, restarts=self.job["restarts"] + 1, step=step)
        recovery = copy.deepcopy(REAL["show"]["recoveries"][0])
        recovery.update(generation=ended + 1, ended=ended, step=step, steps_lost=lost, time=rfc3339(time.time()),
                        state="done")
        self.job["recoveries"].append(recovery)
        self.job["recovery_count"] = self.job.get("recovery_count", 0) + 1
        self.tell("fault", "rank 1 is gone: killed by signal 9")
        self.tell("formed", f"generation {ended + 1} goes on from step {step}")
        self.log("killed by signal 9", "error", rank=1)

    def curves(self, rows, evals):
        return dict(job=self.job["id"], rows=len(self.rows), next_step=len(self.rows) + 1,
                    columns={name: [row[name] for row in rows] for name in COLUMNS},
                    evals={name: [one[name] for one in evals] for name in ("step", "loss", "accuracy")})


def others(real, count):
    """More jobs, in all states."""
    states = ("SUCCEEDED", "SUCCEEDED", "SUCCEEDED", "STOPPED", "FAILED", "KILLED", "PAUSED", "QUEUED")
    for at in range(count):
        job, state = copy.deepcopy(real), states[at % len(states)]
        over = state in ("SUCCEEDED", "STOPPED", "FAILED", "KILLED")
        submitted = time.time() - 3600 * (at + 2) * 1.7
        job.update(id=f"j-{0x20260c0a0000 + 7919 * at:012x}", name=f"{('resnet18', 'gpt2-small', 'lenet', 'mlp')[at % 4]}-{at:03d}",
                   state=state, health="" if over else "ok", step=3750 if state == "SUCCEEDED" else at * 17 % 3700,
                   loss=0.2 + (at * 37 % 100) / 120, recovery_count=at * at % 5, goodput=0.93 + (at % 7) / 100,
                   submitted_at=rfc3339(submitted), started_at=rfc3339(submitted + 4), events=[], recoveries=[],
                   ended_at=rfc3339(submitted + 900 + at) if over else "", reason="")
        if state == "FAILED":
            job["reason"] = "loss is not finite at step 1,204: lower the learning rate, or set recovery.on_nan"
        if state == "QUEUED":
            job.update(step=0, loss=None, goodput=None, reason="waits for 2 slots: 0 of 8 are free", started_at="")
        if over or state == "QUEUED":
            job.update(throughput=None, eta_seconds=None, workers=[])
        yield job


class World:
    def __init__(self, count=200):
        self.changed = threading.Condition()
        self.version = 0
        self.down = None  # what is said of a coordinator that is away
        real = REAL["show"]
        self.done = Run(copy.deepcopy(real), real["total_steps"], real["step"], every=500)
        for row in self.done.rows:
            row["generation"] = 1 + sum(one["step"] < row["step"] for one in real["recoveries"])
        self.done.job.update(copy.deepcopy(real))
        running = copy.deepcopy(real)
        running.update(id="j-20260c0bfeed", name="lenet-live", state="RUNNING", health="ok", restarts=0, recovery_count=0,
                       recoveries=[], events=[], final_digest="", ended_at="", submitted_at=rfc3339(time.time() - 95),
                       started_at=rfc3339(time.time() - 90), goodput=0.987, reason="",
                       workers=[dict(rank=rank, node="node-a", pid=4100 + rank, share=2, step=0, phase="forward",
                                     state="running", seconds_per_step=0.05, peak_flops=107e9,
                                     sent_bytes=5 << 20, received_bytes=5 << 20, usage=dict(
                                         cpu_seconds=81.5, cores=0.94, memory_bytes=123 << 20,
                                         memory_limit_bytes=None, threads=12)) for rank in range(4)],
                       mfu=0.375, flops_per_step=3.35e9,
                       workers_count=4)
        self.live = Run(running, 3750, 620)
        self.live.tell("submitted", "by root")
        self.live.tell("formed", "generation 1 starts from the seed")
        for step in (200, 400, 600):
            self.live.job["events"].append(dict(time=rfc3339(self.live.start + step * STEP_SECONDS), generation=1, step=step,
                                                kind="saved", message=f"checkpoint of step {step}, 1.2 MiB"))
        evil = copy.deepcopy(real)
        evil.update(id="j-20260c0bbad0", name=EVIL, reason=EVIL, state="FAILED", submitted_at=rfc3339(time.time() - 500))
        self.evil = Run(evil, 600, 300, slow=0.4, rate=0.01)
        self.evil.job.update(step=300, state="FAILED", job_file=f"name: {EVIL}\ntrain:\n  optimizer:\n    lr: 0.01\n")
        self.evil.tell("failed", EVIL)
        self.evil.log(EVIL, "error")
        self.evil.lines.append(dict(rank=1, attempt=1, line=EVIL + "\n"))
        self.runs = {run.job["id"]: run for run in (self.live, self.done, self.evil)}
        self.jobs = {run.job["id"]: run.job for run in self.runs.values()}
        for job in others(real, count - len(self.jobs)):
            self.jobs[job["id"]] = job
        self.nodes = nodes_of(REAL["nodes"]["nodes"][0])

    def change(self, work=lambda: None):
        with self.changed:
            work()
            self.version += 1
            self.changed.notify_all()

    def advance(self, steps=1):
        self.change(lambda: [self.live.advance() for _ in range(steps)])

    def kill(self):
        self.change(self.live.kill)

    def why(self, job):
        reply = copy.deepcopy(REAL["why"])
        reply["job"] = job
        if job["id"] == self.live.job["id"]:
            recoveries = job["recoveries"]
            begin = self.live.start
            reply.update(first_cause=None, advice=[], lost_by_cause=[], train_seconds=job["step"] * STEP_SECONDS, generations=[],
                         generations_left_out=0)
            for recovery in recoveries + [None]:
                end = recovery["time"] if recovery else ""
                number = recovery["ended"] if recovery else job["generation"]
                reply["generations"].append(dict(
                    generation=number, begin=rfc3339(begin), end=end, from_step=0 if number == 1 else recoveries[number - 2]["step"],
                    to_step=recovery["step"] if recovery else 0, nodes="node-a,node-a", workers=2, node_count=1,
                    cause=recovery["cause"] if recovery else "", message=recovery["message"] if recovery else ""))
                begin = time.time() if recovery else begin
        return reply

    def listed(self):
        return [{**job, "events": [], "checkpoints": job["checkpoints"][:1]} for job in
                sorted(self.jobs.values(), key=lambda job: job["submitted_at"], reverse=True)]


def nodes_of(real):
    gpu = dict(name="NVIDIA H100", uuid="GPU-1f3c", driver="550.54", capability=90, memory_bytes=80 << 30,
               memory_used_bytes=61 << 30, temperature=64, ecc_errors=0, throttled=False, problem="")
    gpu.update(utilization=0.97, power_watts=310.2)
    real = {**real, "usage": dict(cpu_seconds=98765.2, cores=3.8, cores_count=8, memory_bytes=32 << 30,
                                  memory_available_bytes=20 << 30, received_bytes=7 << 30, sent_bytes=6 << 30,
                                  received_bytes_per_s=1.2e6, sent_bytes_per_s=9e5)}
    cpu = {**real, "name": "node-a", "state": "ready", "slots": 8, "used": 4, "reason": ""}
    big = {**real, "name": "node-b", "device": "cuda", "slots": 0, "used": 0, "gpus_used": 2, "gpus": [
        gpu, {**gpu, "uuid": "GPU-77aa", "memory_used_bytes": 78 << 30, "temperature": 88, "throttled": True},
        {**gpu, "uuid": "GPU-90bc", "memory_used_bytes": 0, "temperature": 31},
        {**gpu, "uuid": "GPU-e2d1", "memory_used_bytes": 0, "temperature": 30, "ecc_errors": 3, "problem": "uncorrected memory errors"}]}
    drained = {**real, "name": "node-c", "state": "draining", "slots": 4, "used": 1, "reason": f"disk is replaced on Friday {EVIL}"}
    lost = {**real, "name": "node-d", "state": "lost", "slots": 4, "used": 0, "reason": "not heard of for 41 s"}
    return [cpu, big, drained, lost]
