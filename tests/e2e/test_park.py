"""Real trainers under a coordinator of our own: processes that outlive their generation.

What the coordinator decides is scripted here; what is looked at is the worker's side of a live recovery: whoever
loses a peer parks with its state, goes on in the next generation, and every number comes out as in a quiet run.
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

from home import until

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


class Generation:
    def __init__(self, number, shares, **plan):
        self.number, self.shares, self.plan = number, shares, plan
        self.size = len(shares)
        self.hellos, self.streams, self.meets, self.ready = {}, {}, {}, {}
        self.parked, self.faults, self.finished = {}, [], set()
        self.begun, self.reports, self.saved = {}, {}, {}
        self.silent = set()  # meetings that are not answered


class Coordinator:
    """One job; a generation after the other."""

    def __init__(self, pb, folder):
        self.pb, self.folder = pb, folder
        self.store = folder / "store"
        self.store.mkdir()
        self.lock = threading.Condition()
        self.generations, self.rows, self.children, self.steps = {}, {}, [], {}
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

    def start(self, generation, rank, fault=None):
        number = generation.number
        env = dict(os.environ, CAIRN_FAULT_DIR=str(self.folder))
        if fault:
            env["CAIRN_FAULT"] = fault
        read, write = os.pipe()
        os.write(write, f"token-{number}".encode())
        os.close(write)
        log = (self.folder / f"g{number}-r{rank}.log").open("w")
        child = subprocess.Popen(
            [BIN / "cairn-trainer", "--job", JOB, "--generation", str(number), "--rank", str(rank),
             "--coordinator", f"127.0.0.1:{self.port}", "--words", str(self.folder / f"words-{number}-{rank}"),
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
        orders, end = queue.Queue(), object()
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
            orders.put(end)
        threading.Thread(target=read, daemon=True).start()
        while True:
            order = orders.get()
            if order is end:
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
            state.update(generation=generation, rank=hello.rank)
            generation.streams[hello.rank] = orders
            generation.hellos[hello.rank] = hello
            if len(generation.hellos) == generation.size and not hello.attached:
                self.plan(generation)
            return
        generation, rank = state["generation"], state["rank"]
        if kind == "meet":
            self.meet(generation, rank, message.meet)
        elif kind == "ready":
            generation.ready[rank] = message.ready
        elif kind == "progress":
            self.steps[generation.number, rank] = message.progress.step
        elif kind == "metrics":
            for row in message.metrics.rows:
                self.rows.setdefault(row.step, []).append(row)
            self.send(generation, rank, metric_ack={"through_step": message.metrics.rows[-1].step})
        elif kind == "save_begin":
            self.save_begin(generation, rank, message.save_begin.step)
        elif kind == "save_report":
            self.save_report(generation, rank, message.save_report)
        elif kind == "save_failed":
            self.save_drop(generation, message.save_failed)
        elif kind == "parked":
            generation.parked[rank] = message.parked
        elif kind == "fault":
            generation.faults.append((rank, message.fault))
        elif kind == "finished":
            generation.finished.add(rank)

    def plan(self, generation):
        for rank in range(generation.size):
            plan = dict(job=JOB, generation=generation.number, size=generation.size, rank=rank,
                        shares=generation.shares, job_file=YAML.format(store=self.store), host="127.0.0.1",
                        nodes=["here"] * generation.size, heartbeat_ms=50)
            plan.update(generation.plan)
            self.send(generation, rank, plan=plan)

    def meet(self, generation, rank, meet):
        parts = generation.meets.setdefault(meet.name, {})
        parts[rank] = meet
        if len(parts) < generation.size or meet.name in generation.silent:
            return
        size = generation.size
        for to in range(size):
            width = len(parts[0].items) // size
            self.send(generation, to, met={
                "name": meet.name, "commons": [parts[r].common for r in range(size)],
                "items": b"".join(parts[r].items[to * width:(to + 1) * width] for r in range(size))})

    def save_begin(self, generation, rank, step):
        folder = self.store / f"step-{step}.g{generation.number}"
        folder.mkdir(exist_ok=True)
        self.send(generation, rank, save_folder={"step": step, "dir": str(folder)})

    def save_drop(self, generation, failed):
        """A rank was late for it, or could not write: none of them saves that step, but who needs it does again."""
        if failed.step in generation.saved or failed.removed:
            return
        generation.reports.pop(failed.step, None)
        for to in range(generation.size):
            self.send(generation, to, save_done={"step": failed.step, "committed": False})

    def save_report(self, generation, rank, report):
        reports = generation.reports.setdefault(report.step, {})
        reports[rank] = report
        if len(reports) == generation.size and report.step not in generation.saved:
            generation.saved[report.step] = dict(reports)
            for to in range(generation.size):
                self.send(generation, to, save_done={"step": report.step, "committed": True})

    # ---- what a test does ----

    def await_(self, what, seconds=20):
        end = time.monotonic() + seconds
        with self.lock:
            while not what():
                left = end - time.monotonic()
                if left <= 0:
                    for log in sorted(self.folder.glob("*.log")):
                        print(f"---- {log.name}\n{log.read_text()}")
                assert left > 0, self.errors
                self.lock.wait(left)

    def park(self, generation, ranks):
        with self.lock:
            for rank in ranks:
                self.send(generation, rank, park={"reason": "a worker died"})
        self.await_(lambda: all(rank in generation.parked for rank in ranks))
        return {rank: generation.parked[rank] for rank in ranks}

    def regroup(self, generation, to, ranks):
        """ranks: {rank in generation: rank in the next}"""
        with self.lock:
            for rank, next_rank in ranks.items():
                self.send(generation, rank, regroup={"generation": to.number, "rank": next_rank,
                                                     "token": f"token-{to.number}"})

    def await_end(self, generation):
        """All processes have ended well, but for those that were killed."""
        self.await_(lambda: STEPS in generation.saved)
        for child in self.children:
            assert child.wait(30) in (0, -signal.SIGKILL)

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
            assert child.wait(30) == 0
        return coordinator.bits(), coordinator.last_pieces(generation)
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
    step = max(p.step for p in parked.values() if p.whole)
    return step, sorted(rank for rank, p in parked.items() if p.whole and p.step == step)


CUTS = ["trainer.forward,rank=1,step=6", "trainer.reduce,rank=1,step=6", "comm.exchange,rank=1,step=6",
        "trainer.reduced,rank=1,step=6", "trainer.refresh,rank=1,step=6", "trainer.eval,rank=1,step=8",
        "save.snapshot,rank=1,step=8", "save.reported,rank=1", "trainer.finishing,rank=1"]


@pytest.mark.parametrize("cut", CUTS)
def test_survivor_and_newcomer_end_as_if_nothing_had_happened(coordinator, quiet, cut):
    first = coordinator.form(1, [3, 3])
    children, parked = lose(coordinator, first, 1, cut + ":kill")
    assert parked[0].whole and parked[0].computed_by == 1
    step, _ = live(parked)
    second = coordinator.form(2, [3, 3], live={"step": step, "sources": [0]})
    coordinator.regroup(first, second, {0: 0})
    newcomer = coordinator.start(second, 1)
    coordinator.await_end(second)
    assert children[0].wait(30) == 0 and newcomer.wait(30) == 0
    assert second.hellos[0].pid == children[0].pid  # the same process
    assert second.hellos[0].parked.step == step and not second.hellos[0].attached
    assert not second.hellos[1].HasField("parked")
    assert second.ready[0].step == second.ready[1].step == step
    assert coordinator.bits() == quiet[0]
    assert coordinator.last_pieces(second) == quiet[1]
    if "eval" in cut:  # the step was finished, and not yet saved
        assert 8 in second.saved and 8 not in first.saved


def test_survivors_go_on_with_fewer_and_get_back_to_three(coordinator, quiet):
    first = coordinator.form(1, [2, 2, 2])
    children, parked = lose(coordinator, first, 0, "trainer.forward,rank=0,step=5:kill")
    step, sources = live(parked)
    second = coordinator.form(2, [3, 3], live={"step": step, "sources": [s - 1 for s in sources]})
    coordinator.regroup(first, second, {1: 0, 2: 1})
    coordinator.await_(lambda: len(second.ready) == 2)
    again = coordinator.park(second, [0, 1])  # a third is there
    step, sources = live(again)
    third = coordinator.form(3, [1, 2, 3], live={"step": step, "sources": sources})
    coordinator.regroup(second, third, {0: 0, 1: 1})
    newcomer = coordinator.start(third, 2)
    coordinator.await_end(third)
    assert [child.wait(30) for child in (children[1], children[2], newcomer)] == [0, 0, 0]
    assert {third.hellos[r].pid for r in range(3)} == {children[1].pid, children[2].pid, newcomer.pid}
    assert coordinator.bits() == quiet[0]


def test_a_survivor_that_restores_is_as_new(coordinator, quiet):
    """No source: from the seed again, in a process that had trained."""
    first = coordinator.form(1, [3, 3])
    children, _ = lose(coordinator, first, 1, "trainer.forward,rank=1,step=6:kill")
    second = coordinator.form(2, [3, 3])
    coordinator.regroup(first, second, {0: 0})
    newcomer = coordinator.start(second, 1)
    coordinator.await_end(second)
    assert children[0].wait(30) == 0 and newcomer.wait(30) == 0
    assert coordinator.bits() == quiet[0]
    assert coordinator.last_pieces(second) == quiet[1]


def test_one_that_waits_for_its_peers_parks_with_what_it_had(coordinator, quiet):
    first = coordinator.form(1, [3, 3])
    children, parked = lose(coordinator, first, 1, "trainer.forward,rank=1,step=6:kill")
    step = parked[0].step
    second = coordinator.form(2, [3, 3], live={"step": step, "sources": [0]})
    second.silent.add("workers")
    coordinator.regroup(first, second, {0: 0})
    lost = coordinator.start(second, 1)
    coordinator.await_(lambda: len(second.meets.get("workers", {})) == 2)
    lost.kill()
    parked = coordinator.park(second, [0])
    assert (parked[0].step, parked[0].whole, parked[0].computed_by) == (step, True, 1)  # nothing was lost
    third = coordinator.form(3, [6], live={"step": step, "sources": [0]})  # alone
    coordinator.regroup(second, third, {0: 0})
    coordinator.await_end(third)
    assert children[0].wait(30) == 0
    assert coordinator.bits() == quiet[0]


def test_newcomers_that_park_before_they_have_a_state_are_not_whole(coordinator):
    first = coordinator.form(1, [3, 3])
    first.silent.add("workers")
    children = [coordinator.start(first, rank) for rank in range(2)]
    coordinator.await_(lambda: len(first.meets.get("workers", {})) == 2)
    parked = coordinator.park(first, [0, 1])
    assert not parked[0].whole and not parked[1].whole
    second = coordinator.form(2, [4, 2])
    coordinator.regroup(first, second, {0: 1, 1: 0})  # places changed
    coordinator.await_end(second)
    assert [child.wait(30) for child in children] == [0, 0]


def test_over_ends_one_that_is_parked(coordinator):
    first = coordinator.form(1, [3, 3])
    children, _ = lose(coordinator, first, 1, "trainer.forward,rank=1,step=6:kill")
    with coordinator.lock:
        coordinator.send(first, 0, over={"reason": "enough"})
    assert children[0].wait(30) == 4
