"""A worker that hangs while the others wait for it is the one that is blamed, with the evidence, whoever stopped first."""
import re

import pytest

from home import TINY, Home
from test_pipeline import TEXT as STAGED

THREE = {"workers__count": 3}


@pytest.fixture(scope="module")
def quiet():
    with Home() as home:
        job = home.submit(TINY, **THREE)
        return home.digest(job)


def blamed(point, rank, quiet, text=TINY, **sets):
    """What `cairn why` says of a job of three whose rank hangs at that point."""
    with Home(env=Home.HANGS, faults=f"{point},rank={rank},step=6:wait") as home:
        job = home.submit(text, **THREE, **sets)
        home.wait_hit(point)
        assert home.digest(job, seconds=90) == quiet
        assert home.show(job)["restarts"] == 1
        return home.cairn("why", job).stdout


def others(rank):
    return " and ".join(str(other) for other in range(3) if other != rank)


@pytest.mark.parametrize("phase, rank", (("forward", 0), ("forward", 2), ("backward", 1)))
def test_who_hangs_while_it_computes_is_named(phase, rank, quiet):
    why = blamed(f"trainer.{phase}", rank, quiet)
    assert re.search(rf"rank {rank} on node \S+ has not come to collective \d+ \(reduce\), in which ranks {others(rank)} wait; "
                     rf"last seen in phase {phase}, \d+\.\d s ago", why), why
    # Its flight recorder, as its agent found it.
    assert re.search(rf"rank {rank} on node \S+: .*last in phase {phase} of step 7, before that .*; "
                     r"collective \d+ \(\w+\) has ended", why), why


def test_so_is_who_hangs_between_two_exchanges_of_the_reduction(quiet):
    why = blamed("comm.exchange", 1, quiet)
    assert re.search(r"rank 1 on node \S+ has not come to exchange \d+ of the reduction, in which ranks 0 and 2 wait", why), why
    assert re.search(r"rank 1 on node \S+: .*last in ", why), why


@pytest.mark.parametrize("phase, rank, waits", (("forward", 0, "ranks 1 and 2 wait"), ("backward", 2, "ranks 0 and 1 wait")))
def test_in_a_pipeline_it_is_who_computes_nothing_for_those_that_wait(phase, rank, waits):
    with Home() as home:
        digest = home.run(STAGED, workers__count=1)
    why = blamed(f"trainer.{phase}", rank, digest, STAGED, parallel__pipeline=3)
    assert re.search(rf"rank {rank} on node \S+ holds up the pipeline, in which {waits}; last seen in phase {phase}, ", why), why
