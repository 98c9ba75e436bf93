"""Real trainers under a coordinator of our own, whose decisions are scripted: what is looked at is the worker's side.

One job, a generation after the other. A worker has a number for its life, and a rank in each generation: the same
unless the generation's `seats` say another. A spare has no rank; its name here is spare7, as its number is 7.
"""
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path

import grpc
import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "dev" / "bin"))
JOB = "j-0123456789"
STEPS = 14
YAML = """name: park
model: {{arch: mlp, hidden: 40, classes: 10}}
data:
  train: {{format: synthetic, samples: 150}}
  eval: {{format: synthetic, samples: 61}}
  augment: [crop, flip]
train:
  duration: 14 steps
  global_batch: 24
  lanes: 6
  optimizer: {{name: adamw, lr: 0.01, weight_decay: 1e-4}}
  schedule: {{name: cosine, warmup: 2 steps}}
  clip_norm: 1
  seed: 5
eval: {{every: 4 steps}}
workers: {{count: 2}}
checkpoint: {{store: {store}, every: 4 steps}}
"""


@pytest.fixture(scope="session", name="pb")
def messages(tmp_path_factory):
    out = tmp_path_factory.mktemp("pb")
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={out}", "cairn/v1/common.proto",
                    "cairn/v1/training.proto"], check=True)
    sys.path.insert(0, str(out))
    from cairn.v1 import training_pb2
    return training_pb2


END = object()  # in place of an order: of a stream


class Generation:
    def __init__(self, number, shares, **plan):
        self.number, self.shares, self.plan = number, shares, plan
        self.size = len(shares)
        self.hellos, self.streams, self.joins, self.ready = {}, {}, {}, {}
        self.parked, self.faults, self.finished = {}, [], set()
        self.reports, self.saved = {}, {}  # {step: {rank: report}}
        self.begun, self.newest, self.dropped = {}, {}, set()
        self.silent = set()  # rounds that are not answered
        self.seats = {}  # {number of a worker: rank}
        self.spares = {}  # {number of a spare: rank of the seat that it is to be ready for}

    def name_of(self, number):
        return f"spare{number}" if number in self.spares else self.seats.get(number, number)

    def is_full(self):
        return all(rank in self.hellos for rank in range(self.size))


class Coordinator:

    def __init__(self, pb, folder, job=YAML):
        self.pb, self.folder, self.job = pb, folder, job
        self.store = folder / "store"
        self.store.mkdir()
        self.lock = threading.Condition()
        self.generations, self.rows, self.children = {}, {}, []
        self.steps, self.phases = {}, {}
        self.errors = []
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=32))
        handler = grpc.stream_stream_rpc_method_handler(
            self.session, request_deserializer=pb.TrainerMessage.FromString,
            response_serializer=pb.TrainerOrder.SerializeToString)
        self.server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(
            "cairn.v1.Training", {"Session": handler}),))
        self.port = self.server.add_insecure_port("127.0.0.1:0")
        self.server.start()

    def close(self):
        for child in self.children:
            if child.poll() is None:
                child.kill()
            child.wait()
        self.server.stop(0)

    def start(self, generation, worker, fault=None):
        number = generation.number
        env = dict(os.environ, CAIRN_FAULT_DIR=str(self.folder))
        if fault:
            env["CAIRN_FAULT"] = fault
        read, write = os.pipe()
        os.write(write, f"token-{number}".encode())
        os.close(write)
        log = (self.folder / f"g{number}-r{worker}.log").open("w")
        child = subprocess.Popen(
            [BIN / "cairn-trainer", "--job", JOB, "--generation", str(number), "--rank", str(worker),
             "--coordinator", f"127.0.0.1:{self.port}", "--words", str(self.folder / f"words-{number}-{worker}"),
             "--token-fd", str(read)], pass_fds=[read], env=env, stdout=log, stderr=log)
        os.close(read)
        self.children.append(child)
        return child

    def form(self, number, shares, **plan):
        generation = Generation(number, shares, **plan)
        with self.lock:
            self.generations[number] = generation
        return generation

    # ---- a stream ----

    def session(self, requests, context):
        orders = queue.Queue()
        context.send_initial_metadata(())  # opening waits for it
        token = dict(context.invocation_metadata()).get("authorization", "")

        def read():
            state = {}
            try:
                for message in requests:
                    with self.lock:
                        self.hear(message, state, orders, token)
                        self.lock.notify_all()
            except grpc.RpcError:
                pass
            except Exception as error:  # a thread would be silent about it
                self.errors.append(repr(error))
                raise
            orders.put(END)
        threading.Thread(target=read, daemon=True).start()
        while True:
            order = orders.get()
            if order is END:
                return
            yield order

    def send(self, generation, rank, **order):
        generation.streams[rank].put(self.pb.TrainerOrder(**order))

    def hear(self, message, state, orders, token):
        kind = message.WhichOneof("body")
        if kind == "hello":
            hello = message.hello
            generation = self.generations[hello.generation]
            assert token == f"Bearer token-{hello.generation}"
            rank = generation.name_of(hello.rank)
            state.update(generation=generation, rank=rank)
            generation.streams[rank] = orders
            generation.hellos[rank] = hello
            if hello.attached and hello.HasField("parked"):
                generation.parked[rank] = hello.parked
            if hello.rank in generation.spares:
                if not hello.attached:
                    self.send_plan(generation, rank, generation.spares[hello.rank], spare=True)
            elif generation.is_full() and not hello.attached:
                self.plan(generation)
            return
        generation, rank = state["generation"], state["rank"]
        if kind == "join":
            self.join(generation, rank, message.join)
        elif kind == "ready":
            generation.ready[rank] = message.ready
        elif kind == "progress":
            self.steps[generation.number, rank] = message.progress.step
            self.phases[generation.number, rank] = message.progress.phase
        elif kind == "metrics":
            for row in message.metrics.rows:
                self.rows.setdefault(row.step, []).append(row)
            self.send(generation, rank, metric_ack={"through_step": message.metrics.rows[-1].step})
        elif kind == "save_begin":
            self.save_begin(generation, rank, message.save_begin.step)
        elif kind == "save_report":
            self.save_report(generation, rank, message.save_report)
        elif kind == "save_failed":
            self.save_failed(generation, message.save_failed)
        elif kind == "parked":
            generation.parked[rank] = message.parked
        elif kind == "fault":
            generation.faults.append((rank, message.fault))
        elif kind == "finished":
            generation.finished.add(rank)

    def plan(self, generation):
        for rank in range(generation.size):
            self.send_plan(generation, rank, rank, **generation.plan)

    def send_plan(self, generation, to, rank, **more):
        job = self.job.format(store=self.store)
        self.send(generation, to, plan=dict(
            job=JOB, generation=generation.number, size=generation.size, rank=rank, shares=generation.shares,
            job_file=job, host="127.0.0.1", nodes=["here"] * generation.size, heartbeat_ms=50, **more))

    def join(self, generation, rank, join):
        parts = generation.joins.setdefault(join.name, {})
        parts[rank] = join
        if len(parts) < generation.size or join.name in generation.silent:
            return
        size = generation.size
        for to in range(size):
            width = len(parts[0].items) // size
            self.send(generation, to, joined={
                "name": join.name, "commons": [parts[r].common for r in range(size)],
                "items": b"".join(parts[r].items[to * width:(to + 1) * width] for r in range(size))})

    def save_begin(self, generation, rank, step):
        generation.newest[rank] = step
        generation.begun.setdefault(step, set()).add(rank)
        for older in [older for older in generation.reports if self.given_up(generation, older)]:
            self.save_drop(generation, older)
        folder = self.store / f"step-{step}.g{generation.number}"
        folder.mkdir(exist_ok=True)
        self.send(generation, rank, save_folder={"step": step, "dir": str(folder)})

    @staticmethod
    def given_up(generation, step):
        """A rank had no time for it, and says so, or begins a newer one."""
        begun = generation.begun.get(step, ())
        return step in generation.dropped or any(
            newest > step and rank not in begun for rank, newest in generation.newest.items())

    def save_failed(self, generation, failed):
        if failed.step not in generation.saved and failed.message != "removed":  # that is what it was told to do
            self.save_drop(generation, failed.step)

    def save_drop(self, generation, step):
        """None of them saves that step; the last one they do again."""
        generation.reports.pop(step, None)
        if step < STEPS:
            generation.dropped.add(step)
        for to in range(generation.size):
            self.send(generation, to, save_done={"step": step, "committed": False})

    def save_report(self, generation, rank, report):
        if report.step not in generation.saved and self.given_up(generation, report.step):
            self.send(generation, rank, save_done={"step": report.step, "committed": False})
            return
        reports = generation.reports.setdefault(report.step, {})
        reports[rank] = report
        if len(reports) == generation.size and report.step not in generation.saved:
            generation.saved[report.step] = dict(reports)
        if report.step in generation.saved:  # it comes again until it is answered
            del generation.reports[report.step]
            for to in range(generation.size):
                self.send(generation, to, save_done={"step": report.step, "committed": True})

    # ---- what a test does ----

    def await_(self, what, seconds=60):
        end = time.monotonic() + seconds
        with self.lock:
            while not what():
                left = end - time.monotonic()
                if left <= 0:
                    for log in sorted(self.folder.glob("*.log")):
                        print(f"---- {log.name}\n{log.read_text()}")
                assert left > 0, self.errors
                self.lock.wait(left)

    def park(self, generation, ranks, held=None):
        """held: a fault point at which one of them waits meanwhile."""
        if held:
            self.await_(lambda: (self.folder / f"{held}.hit").exists())
        with self.lock:
            for rank in ranks:
                self.send(generation, rank, park={"reason": "a worker died"})
        if held:
            time.sleep(0.2)  # the order has come
            (self.folder / f"{held}.go").touch()
        self.await_(lambda: all(rank in generation.parked for rank in ranks))
        return {rank: generation.parked[rank] for rank in ranks}

    def regroup(self, generation, to, ranks):
        """ranks: {rank in generation, or name of a spare: rank in the next}"""
        with self.lock:
            for rank, next_rank in ranks.items():
                number = generation.hellos[rank].rank
                to.seats[number] = next_rank
                self.send(generation, rank, regroup={"generation": to.number, "rank": number,
                                                     "token": f"token-{to.number}"})

    def await_end(self, generation):
        """All processes have ended well, but for those that were killed."""
        self.await_(lambda: STEPS in generation.saved)
        for child in self.children:
            assert child.wait(60) in (0, -signal.SIGKILL)

    def bits(self):
        """Of each step, of the last row that came: what doesn't depend on time or processes."""
        assert sorted(self.rows) == list(range(1, STEPS + 1))
        out = []
        for step in sorted(self.rows):
            versions = {struct.pack("<fffdd?dQQ", row.loss, row.lr, row.grad_norm, row.epoch, 0,
                                    row.HasField("eval"), row.eval.loss, row.eval.correct, row.eval.count)
                        for row in self.rows[step]}
            assert len(versions) == 1, step  # one that came twice is the same
            out.append(versions.pop())
        return out

    def last_hashes(self, generation):
        """The same, whoever saved them."""
        return {(buffer, first + i): hashes[16 * i:16 * i + 16]
                for buffer, first, hashes in self.last_pieces(generation) for i in range(len(hashes) // 16)}

    def last_pieces(self, generation):
        """Hashes of the final state's pieces."""
        reports = generation.saved[STEPS]
        runs = sorted((run.buffer, run.first, run.xxh3_128) for r in reports.values() for run in r.pieces)
        return [(buffer, first, pieces) for buffer, first, pieces in runs if pieces]


@pytest.fixture(name="coordinator")
def make_coordinator(pb, tmp_path):
    made = Coordinator(pb, tmp_path)
    yield made
    made.close()


@pytest.fixture(scope="session", name="quiet")
def quiet_run(pb, tmp_path_factory):
    """Rows and final state of a run of two without a failure."""
    coordinator = Coordinator(pb, tmp_path_factory.mktemp("quiet"))
    try:
        generation = coordinator.form(1, [3, 3])
        children = [coordinator.start(generation, rank) for rank in range(2)]
        coordinator.await_end(generation)
        for child in children:
            assert child.wait(60) == 0
        return coordinator.bits(), coordinator.last_pieces(generation), coordinator.last_hashes(generation)
    finally:
        coordinator.close()


def lose(coordinator, generation, victim, fault):
    """Starts all; one dies of the fault. Returns the processes, and who parked with what."""
    children = [coordinator.start(generation, rank, fault if rank == victim else None)
                for rank in range(generation.size)]
    assert children[victim].wait(60) == -signal.SIGKILL
    others = [rank for rank in range(generation.size) if rank != victim]
    return children, coordinator.park(generation, others)


def live(parked):
    step = max(p.step for p in parked.values() if p.complete)
    return step, sorted(rank for rank, p in parked.items() if p.complete and p.step == step)
