"""Workers on two nodes that restore together: each reads a part of the checkpoint, whatever dies in the middle of it."""
import os
import signal
from contextlib import contextmanager

import pytest

from home import Home, until
from test_fewer import another_node
from test_undying import worker_of

SETS = {"model__hidden": "1500", "workers__count": "4"}  # 9.6 MB of state: a chunk and more for everybody
HELD = "trainer.forward,rank=1,step=10,generation=1:wait"


@contextmanager
def two_nodes(*faults):
    with Home(env={**Home.RESTART, **Home.HANGS}, faults=";".join((HELD, *faults)), slots=2) as home, \
            another_node(home, slots=2):
        yield home


def submit_and_fail(home, **sets):
    """A job whose second generation begins with a checkpoint."""
    job = home.submit(**SETS, **sets)
    home.wait_hit("trainer.forward")
    until(lambda: "8" in [str(one["step"]) for one in home.show(job)["checkpoints"]], 20, "the checkpoint of step 8")
    os.kill(worker_of(home, job, 1)["pid"], signal.SIGKILL)
    return job


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    with Home() as home:
        return home.run(**{**SETS, "workers__count": 1})


@pytest.mark.parametrize("sets", [
    {}, {"parallel__zero": "1"}, {"parallel": "{pipeline: 2, zero: 1, stages: [{workers: 3}, {workers: 1}]}"}])
def test_they_end_with_the_same_bits(quiet, sets):
    with two_nodes("trainer.parts,rank=0,generation=2:wait") as home:
        job = submit_and_fail(home, **sets)
        home.wait_hit("trainer.parts")
        home.go("trainer.parts")
        assert home.digest(job) == quiet


@pytest.mark.parametrize("rank, action", [(0, "kill"), (3, "kill"), (2, "segv"), (3, "stop")])
def test_who_fails_in_the_middle_is_replaced(quiet, rank, action):
    with two_nodes(f"trainer.parts,rank={rank},generation=2:{action}") as home:
        job = submit_and_fail(home)
        assert home.digest(job, seconds=90) == quiet
        assert home.hit("trainer.parts")


def test_whose_part_cant_be_read_is_named_and_the_others_go_on(quiet):
    with two_nodes("restore.read,rank=2,generation=2:eio") as home:
        job = submit_and_fail(home)
        assert home.digest(job, seconds=90) == quiet
        assert home.hit("restore.read")
        assert "damaged" not in " ".join(event["message"] for event in home.show(job)["events"])


@pytest.mark.parametrize("program", ["cairnd", "cairn-agent", "cairn-trainer"])
def test_a_program_that_dies_meanwhile(quiet, program):
    with two_nodes("trainer.parts,rank=1,generation=2:wait") as home:
        job = submit_and_fail(home)
        home.wait_hit("trainer.parts")
        home.kill(program, signal.SIGKILL)
        home.go("trainer.parts")
        assert home.digest(job, seconds=120) == quiet
