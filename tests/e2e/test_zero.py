"""`parallel.zero: 1`: each worker has the optimizer's moments of its own part alone, and a job ends with the bits of one
whose workers have all of them, whatever dies, grows, shrinks or stops on the way."""
import json
import os
import signal

import pytest

from elastic import (held_home, no_process_is_left, paced, recoveries, sizes, trains_with, warm, workers)
from home import Home, until

# Four owners' worth of parameters: 1 MiB is one rank's at least.
TEXT = """
name: owned
model: {arch: mlp, hidden: 1200, classes: 10}
data:
  train: {format: synthetic, samples: 480}
  eval: {format: synthetic, samples: 60}
train:
  duration: 40 steps
  global_batch: 24
  lanes: 8
  optimizer: {name: adamw, lr: 0.001, weight_decay: 0.1, no_decay: [bias]}
  clip_norm: 1
  seed: 7
eval: {every: 10 steps}
workers: {count: 3}
parallel: {zero: 1}
checkpoint: {every: 10 steps}
"""


@pytest.fixture(scope="module", name="digest")
def digest_of_one_worker_that_has_all():
    with Home() as home:
        return home.run(TEXT, parallel__zero=0, workers__count=1)


# Who is told to become fewer leaves a while later, on a busy machine.
LONGER = {"train__duration": "120 steps"}


@pytest.fixture(scope="module", name="longer_digest")
def digest_of_a_longer_run():
    with Home() as home:
        return home.run(TEXT, parallel__zero=0, workers__count=1, **LONGER)


@pytest.mark.parametrize("count", [1, 2, 4])
def test_owners_change_no_bits(digest, count):
    with Home() as home:
        assert home.run(TEXT, workers__count=count) == digest


@pytest.mark.parametrize("point", ["trainer.forward", "trainer.reduce", "trainer.norm", "trainer.gather",
                                   "trainer.update", "trainer.refresh", "save.write"])
def test_a_worker_dies_in_each_phase(digest, point):
    step = "" if point.startswith("save") else ",step=17"
    with Home(faults=f"{point},rank=1{step}:kill") as home:
        job = home.submit(TEXT)
        assert home.digest(job) == digest
        shown = home.show(job)
        assert len(shown["recoveries"]) == 1


def test_what_died_with_its_node_comes_from_the_checkpoint(digest):
    """No copy in memory is newer: every worker reads its own part of what others wrote."""
    with held_home("trainer.gather,rank=2,step=17:wait") as home:
        job = home.submit(TEXT, checkpoint__memory_every=0)
        home.wait_hit("trainer.gather")
        until(lambda: [c["step"] for c in home.show(job)["checkpoints"]] == [10], 30, "the save of step 10")
        os.kill(workers(home.show(job))[1], signal.SIGKILL)
        home.go("trainer.gather")
        assert home.digest(job) == digest
        assert [one["kind"] for one in home.show(job)["recoveries"]] == ["checkpoint"]


def test_it_grows_and_shrinks_without_losing_a_step(longer_digest):
    with held_home("trainer.forward,rank=0,step=12:wait", "trainer.reduce,generation=2:wait",
                   *paced(1, 2, ms=100)) as home:
        job = home.submit(TEXT, **LONGER, workers__count=2, workers__min=1)
        home.wait_hit("trainer.forward")
        before = workers(home.show(job))
        home.cairn("set", job, "workers.count=4")
        newcomers = warm(home, job, 2)
        home.go("trainer.forward")
        home.wait_hit("trainer.reduce")
        after = workers(home.show(job))
        assert set(after.values()) == set(before.values()) | set(newcomers)
        assert recoveries(home, job) == [("live", 0)]
        home.cairn("set", job, "workers.count=3")
        home.go("trainer.reduce")
        assert home.digest(job) == longer_digest
        assert sizes(home, job) == [2, 4, 3]
        assert recoveries(home, job)[1] == ("checkpoint", 0)  # saved for it: parts leave
        no_process_is_left(home)


def test_what_moved_to_new_owners_before_one_of_them_died_is_nobody_s(digest):
    """The two that had all parts between them have given some away when the third dies: they hold other parts than
    before, and must not go on as if they had those."""
    with held_home("trainer.forward,rank=0,step=12:wait", "trainer.live,rank=2:kill",
                   "trainer.parked,rank=0,generation=2:wait", *paced(1, ms=200)) as home:
        job = home.submit(TEXT, workers__count=2, workers__min=2)
        home.wait_hit("trainer.forward")
        home.cairn("set", job, "workers.count=3")
        warm(home, job)
        home.go("trainer.forward")
        home.wait_hit("trainer.parked")
        home.cairn("set", job, "workers.count=2")
        home.go("trainer.parked")
        assert home.digest(job) == digest
        assert [kind for kind, _ in recoveries(home, job)][-1] != "live"


def test_zero_may_come_and_go_with_a_pause(digest):
    """A checkpoint belongs to no way of owning."""
    with held_home("trainer.forward,rank=0,step=15:wait") as home:
        job = home.submit(TEXT)
        home.wait_hit("trainer.forward")
        home.cairn("pause", job)
        home.go("trainer.forward")
        home.wait_state(job, "PAUSED")
        home.cairn("set", job, "workers.count=2")
        home.cairn("resume", job)
        assert home.digest(job) == digest


def test_everything_dies(digest):
    with held_home("trainer.gather,rank=0,step=23:wait") as home:
        job = home.submit(TEXT)
        home.wait_hit("trainer.gather")
        for pid in workers(home.show(job)).values():
            os.kill(pid, signal.SIGKILL)
        home.kill("cairnd")
        assert home.digest(job) == digest


def test_plan_says_what_a_worker_needs(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(TEXT)
    with Home() as home:
        whole = home.cairn("plan", str(job), "--set", "parallel.zero=0").stdout
        owned = home.cairn("plan", str(job)).stdout

        def moments(text):
            return float(next(line for line in text.splitlines() if line.startswith("worker "))
                         .split("moments ")[1].split(",")[0].split()[0])
        assert 0.3 < moments(owned) / moments(whole) < 0.6  # three owners of four units
        refused = home.cairn("plan", str(job), "--set", "parallel.zero=2", check=False)
        assert refused.returncode != 0 and "parallel.zero" in refused.stderr


def test_tools_read_what_owners_wrote(tmp_path, digest):
    with Home() as home:
        job = home.submit(TEXT)
        assert home.digest(job) == digest
        other = home.submit(TEXT, name="whole", parallel__zero=0, workers__count=1)
        assert home.digest(other) == digest
        found = [json.loads(home.cairn("ckpt", "ls", one, "-o", "json").stdout) for one in (job, other)]
        assert found[0] and found[1]
        home.cairn("ckpt", "verify", job)
        home.cairn("ckpt", "diff", job, other)
        home.cairn("ckpt", "export", job, str(tmp_path / "w.safetensors"))
        assert (tmp_path / "w.safetensors").stat().st_size > 3_000_000
