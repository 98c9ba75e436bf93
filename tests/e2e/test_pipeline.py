"""`parallel.pipeline`: stages of the model on workers of their own, and a job ends with the bits of one whose workers
have all nodes, whatever dies, and with another layout than it began with."""
import json
import os
import re
import signal

import pytest

from elastic import held_home, no_process_is_left, paced, recoveries, sizes, workers
from home import Home, until

# A GPT-2 whose embedding, which the head reads as well, is in the first stage; two chunks of a checkpoint.
TEXT = """
name: staged
model: {arch: gpt2, layers: 3, heads: 4, width: 64, context: 24, vocab: 5000, dropout: 0.1}
data:
  train: {format: synthetic, samples: 200}
  eval: {format: synthetic, samples: 24}
train:
  duration: 24 steps
  global_batch: 16
  lanes: 8
  micro_batch: 1
  optimizer: {name: adamw, lr: 0.001, weight_decay: 0.1, no_decay: [bias, norm]}
  clip_norm: 1
  seed: 7
eval: {every: 8 steps}
checkpoint: {every: 8 steps}
"""


@pytest.fixture(scope="module", name="digest")
def digest_of_one_worker_that_has_all():
    with Home() as home:
        return home.run(TEXT, workers__count=1)


# Who is told to become fewer leaves a while later, on a busy machine.
LONGER = {"train__duration": "80 steps"}


@pytest.fixture(scope="module", name="longer_digest")
def digest_of_a_longer_run():
    with Home() as home:
        return home.run(TEXT, workers__count=1, **LONGER)


@pytest.mark.parametrize("stages,count,schedule", [(2, 2, "1f1b"), (3, 3, "zb-h1"), (2, 4, "gpipe"), (4, 4, "1f1b"),
                                                   (2, 2, "interleaved"), (2, 4, "interleaved")])
def test_stages_change_no_bits(digest, stages, count, schedule):
    with Home() as home:
        assert home.run(TEXT, parallel__pipeline=stages, workers__count=count, parallel__schedule=schedule) == digest


@pytest.mark.parametrize("stages,count", [(2, 4), (2, 6)])
def test_owners_within_stages_change_no_bits(digest, stages, count):
    with Home(faults="trainer.gather,rank=1,step=13:kill", slots=6) as home:
        job = home.submit(TEXT, parallel__pipeline=stages, parallel__zero=1, workers__count=count)
        assert home.digest(job, seconds=120) == digest
        assert len(home.show(job)["recoveries"]) == 1


@pytest.mark.parametrize("point", ["trainer.forming", "trainer.forward", "trainer.backward", "trainer.pipe",
                                   "trainer.reduce", "trainer.norm", "trainer.gather", "trainer.update",
                                   "trainer.eval", "save.write"])
def test_a_stage_dies_in_each_phase(digest, point):
    step = "" if point in ("save.write", "trainer.forming", "trainer.eval") else ",step=13"
    with Home(faults=f"{point},rank=1{step}:kill") as home:
        job = home.submit(TEXT, parallel__pipeline=2, workers__count=2)
        assert home.digest(job, seconds=120) == digest
        if point != "trainer.forming":
            assert len(home.show(job)["recoveries"]) >= 1


@pytest.mark.parametrize("point,rank,nth", [("trainer.backward", 1, 1), ("trainer.backward", 1, 3),
                                            ("trainer.backward", 2, 4), ("trainer.pipe", 2, 3)])
def test_a_stage_dies_within_the_halves_of_backwards_or_between_them(digest, point, rank, nth):
    """In I0 and W0 of the second stage, and in W0 of the last one, after its I2."""
    with Home(faults=f"{point},rank={rank},step=13,nth={nth}:kill") as home:
        job = home.submit(TEXT, parallel__pipeline=3, workers__count=3, parallel__schedule="zb-h1")
        assert home.digest(job, seconds=120) == digest
        assert len(home.show(job)["recoveries"]) >= 1


@pytest.mark.parametrize("point,rank,nth", [("trainer.forward", 1, 2), ("trainer.backward", 0, 1), ("trainer.pipe", 0, 3),
                                            ("trainer.gather", 1, 1), ("trainer.eval", 0, 1)])
def test_an_interleaved_stage_dies_between_its_parts(digest, point, rank, nth):
    step = "" if point == "trainer.eval" else ",step=13"
    with Home(faults=f"{point},rank={rank}{step},nth={nth}:kill") as home:
        job = home.submit(TEXT, parallel__pipeline=2, workers__count=2, parallel__schedule="interleaved")
        assert home.digest(job, seconds=120) == digest
        assert len(home.show(job)["recoveries"]) >= 1


@pytest.mark.parametrize("point,rank", [("trainer.backward", 3), ("trainer.pipe", 0), ("trainer.reduce", 1),
                                        ("trainer.eval", 2)])
def test_a_worker_of_a_wide_stage_dies_and_its_stage_has_the_state(digest, point, rank):
    step = "" if point == "trainer.eval" else ",step=13"
    with held_home(f"{point},rank={rank}{step}:wait", "trainer.refresh,generation=2:wait") as home:
        job = home.submit(TEXT, parallel__pipeline=2, workers__count=4, checkpoint__memory_every="none")
        home.wait_hit(point)
        before = workers(home.show(job))
        os.kill(before[rank], signal.SIGKILL)
        home.wait_hit("trainer.refresh", seconds=60)
        after = workers(home.show(job))
        assert set(before.values()) - {before[rank]} < set(after.values())  # nobody else was started anew
        assert recoveries(home, job) == [("live", 0)]
        home.go("trainer.refresh")
        assert home.digest(job, seconds=120) == digest


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved"])
def test_lanes_of_a_stage_are_dealt_anew_without_a_new_process(digest, schedule):
    """There is no place for another one: the stage that lost a worker goes on with what it has."""
    with held_home("trainer.backward,rank=3,step=13:wait", "trainer.refresh,generation=2:wait", slots=4) as home:
        job = home.submit(TEXT, parallel__pipeline=2, workers__count=4, workers__min=3, parallel__schedule=schedule)
        home.wait_hit("trainer.backward")
        before = workers(home.show(job))
        os.kill(before[3], signal.SIGKILL)
        home.wait_hit("trainer.refresh", seconds=60)
        after = workers(home.show(job))
        assert set(after.values()) == set(before.values()) - {before[3]}
        assert sorted(one["share"] for one in home.show(job)["workers"]) == [4, 4, 8]
        assert recoveries(home, job) == [("live", 0)]
        home.go("trainer.refresh")
        assert home.digest(job, seconds=120) == digest


def test_fewer_workers_have_fewer_stages(longer_digest):
    """Two of three die, and there is no place for others: what is left has more of the model each."""
    with held_home("trainer.forward,rank=0,step=13:wait", *paced(1, ms=100), slots=3) as home:
        job = home.submit(TEXT, **LONGER, parallel__pipeline=3, workers__count=3, workers__min=1)
        home.wait_hit("trainer.forward")
        home.cairn("set", job, "workers.count=2")
        home.go("trainer.forward")
        assert home.digest(job, seconds=120) == longer_digest
        assert sizes(home, job)[0] == 3 and sizes(home, job)[-1] == 2
        no_process_is_left(home)


def test_owners_of_a_stage_become_fewer_without_losing_a_step(longer_digest):
    with held_home("trainer.forward,rank=0,step=13:wait", *paced(1, ms=100), slots=4) as home:
        job = home.submit(TEXT, **LONGER, parallel__pipeline=2, parallel__zero=1, workers__count=4, workers__min=2)
        home.wait_hit("trainer.forward")
        home.cairn("set", job, "workers.count=3")
        home.go("trainer.forward")
        assert home.digest(job, seconds=120) == longer_digest
        assert sizes(home, job) == [4, 3]
        assert recoveries(home, job) == [("checkpoint", 0)]
        no_process_is_left(home)


def test_everything_dies(digest):
    with held_home("trainer.pipe,rank=0,step=11:wait") as home:
        job = home.submit(TEXT, parallel__pipeline=2, workers__count=2)
        home.wait_hit("trainer.pipe")
        for pid in workers(home.show(job)).values():
            os.kill(pid, signal.SIGKILL)
        home.kill("cairnd")
        assert home.digest(job, seconds=120) == digest


def asked(*sets):
    return [arg for one in sets for arg in ("--set", one)]


def test_plan_tells_of_the_bubble_and_of_what_cannot_be(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(TEXT)
    with Home() as home:
        told = home.cairn("plan", str(job), *asked("parallel.pipeline=2", "workers.count=2")).stdout
        assert "pipeline" in told and "bubble" in told
        for sets, text in ((("parallel.pipeline=60", "workers.count=60"), "stages"),
                           (("parallel.pipeline=2", "workers.count=3"), "workers.count"),
                           (("parallel.pipeline=2", "workers.shares=auto"), "workers.shares")):
            done = home.cairn("plan", str(job), *asked(*sets), check=False)
            assert done.returncode != 0 and text in done.stderr
        many = home.cairn("plan", str(job), *asked("parallel.pipeline=2", "workers.count=2", "parallel.schedule=gpipe",
                                                   "train.global_batch=2048", "data.train.samples=2048")).stdout
        assert re.search(r"^note .*1f1b instead of gpipe", many, re.MULTILINE), many


@pytest.mark.parametrize("count", [2, 4])
def test_steps_count_as_audited_where_each_worker_was_compared_with_another(digest, count):
    with Home() as home:
        job = home.submit(TEXT, parallel__pipeline=2, workers__count=count, audit__checksum="6 steps")
        assert home.digest(job, seconds=120) == digest
        passed = [event for event in home.show(job)["events"] if event["kind"] == "audit-passed"]
        assert bool(passed) == (count == 4), passed


def test_a_loss_that_is_finite_the_second_time_is_not_held_against_the_last_stage(digest):
    with Home(faults="trainer.loss,rank=1,step=13:nan") as home:
        job = home.submit(TEXT, parallel__pipeline=2, workers__count=2)
        assert home.digest(job, seconds=120) == digest
        said = [event["message"] for event in home.show(job)["events"] if event["kind"] == "numeric"]
        assert any("computed once more" in one for one in said), said
        assert not any("suspected" in one for one in said), said


def test_tools_read_what_stages_wrote(tmp_path, digest):
    with Home() as home:
        job = home.submit(TEXT, parallel__pipeline=3, workers__count=3)
        assert home.digest(job) == digest
        home.cairn("ckpt", "verify", job)
        home.cairn("ckpt", "export", job, str(tmp_path / "w.safetensors"))
        assert (tmp_path / "w.safetensors").stat().st_size > 1_000_000
        shown = json.loads(home.cairn("ckpt", "ls", job, "-o", "json").stdout)
        assert shown
        until(lambda: not home.pids("cairn-trainer"), 20, "no worker is left")
