"""Lanes move to where they are computed faster; the weights are those of a run in which none did.

A worker is slowed by a fault point that sleeps: as good as a processor that is throttled, and nothing else is slower.
"""
import pytest

from elastic import line, recoveries, warm, workers  # noqa: F401
from home import Home, until

# Of 16 lanes each takes 3 ms.
LANES = {"train__lanes": 16, "train__global_batch": 48, "eval__every": "100000 steps",
         "checkpoint__every": "100000 steps", "workers__count": 2}
PACED = "trainer.backward:slow3"
LENGTH = {"train__duration": "700 steps"}


def slow(rank, ms, step=0):
    return f"trainer.forward,rank={rank},from={step}:slow{ms}"


@pytest.fixture(scope="module", name="digest")
def digest_of_a_quiet_run():
    with Home() as home:
        return home.run(**{**LANES, **LENGTH, "workers__count": 1})


def shares(home, job):
    return [one["share"] for one in home.show(job)["workers"]]


def told(home, job, kind):
    return [event for event in home.show(job)["events"] if event["kind"] == kind]


def test_a_worker_that_becomes_slow_gets_fewer_lanes(digest):
    with Home(faults=";".join([PACED, slow(1, 4, step=50)])) as home:
        job = home.submit(**LANES, **LENGTH)
        home.wait_state(job, "RUNNING")
        pids = workers(home.show(job))
        moved = until(lambda: told(home, job, "lanes-moved"), 40, "lanes moved")
        assert len(moved) == 1 and 50 < moved[0]["step"] <= 50 + 60 + 20, moved  # 20: of the window it became slow in
        assert "worker 1 on node" in moved[0]["message"]
        until(lambda: shares(home, job) in ([11, 5], [12, 4], [10, 6]), 10, "shares by speed")
        until(lambda: home.show(job)["workers"][1]["seconds_per_step"] > 0, 20, "it was measured again")
        times = [one["seconds_per_step"] for one in home.show(job)["workers"]]
        assert max(times) < 1.5 * min(times), times
        assert workers(home.show(job)) == pids
        assert home.digest(job, seconds=90) == digest
        assert recoveries(home, job) == [("live", 0)]


def test_one_that_owns_a_part_goes_after_a_save():
    """Its moments are nobody else's (`zero: 1`), and there are no copies: what it would take with it is saved first."""
    sets = {**LANES, "train__duration": "700 steps", "parallel__zero": 1, "checkpoint__memory_every": "none"}
    slow_twice = [f"trainer.forward,rank=1,generation={g},from=50:slow60" for g in (1, 2)]  # lanes move first
    with Home() as home:
        digest = home.run(**{**sets, "workers__count": 1})
    with Home(faults=";".join(slow_twice), slots=3) as home:
        job = home.submit(**{**sets, "workers__count": 3, "workers__min": 2})
        gone = until(lambda: told(home, job, "slow"), 120, "the slow one goes")
        assert "the job goes on without it" in gone[0]["message"]
        assert home.digest(job, seconds=120) == digest
        moved, left_out = recoveries(home, job)
        assert moved == ("live", 0) and left_out[1] < 100 < gone[0]["step"], (moved, left_out)
