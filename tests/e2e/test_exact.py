"""The digest is the job's: not that of the number of workers, of shares, of a restart."""
import os
import signal

import pytest

from elastic import held_home, paced, sizes, trains_with, warm, workers
from home import TINY, Home, until


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home(slots=4) as home:
        yield home


LONG = {"train__duration": "4000 steps", "checkpoint__every": "1000 steps"}


@pytest.fixture(scope="module", name="quiet")
def quiet_digest(home):
    return home.run(**LONG)


@pytest.mark.parametrize("lanes,spreads", [
    (4, [(1, "[4]"), (2, "[2, 2]"), (2, "[3, 1]"), (2, "[1, 3]"), (3, "[2, 1, 1]"), (3, "[1, 2, 1]"),
         (4, "[1, 1, 1, 1]")]),
    (6, [(1, "[6]"), (2, "[3, 3]"), (2, "[5, 1]"), (3, "[2, 2, 2]"), (3, "[1, 4, 1]"),
         (4, "[2, 1, 2, 1]")]),
])
def test_any_spread_of_lanes_gives_one_digest(home, lanes, spreads):
    digests = {home.run(train__lanes=lanes, workers__count=count, workers__shares=shares)
               for count, shares in spreads}
    assert len(digests) == 1, digests


def test_lanes_are_part_of_the_job(home):
    assert home.run(train__lanes=4) != home.run(train__lanes=3)


def test_every_model_gives_one_digest_for_one_and_two_workers(home):
    for arch in ("lenet", "resnet18"):
        text = TINY.replace("arch: mlp, hidden: 32", f"arch: {arch}")
        sets = {"train__duration": "3 steps", "train__global_batch": 4, "train__lanes": 2,
                "data__eval__samples": 8}
        one = home.run(text, seconds=120, workers__count=1, **sets)
        assert one == home.run(text, seconds=120, workers__count=2, **sets)


def test_a_restart_of_everything_changes_nothing(home):
    first = home.run()
    home.cairn("down", timeout=40)
    until(lambda: not home.pids(), 10, "no process is left after down")
    home.cairn("up", "--slots", "4")
    assert home.run() == first


def test_down_saves_and_up_resumes(home, quiet):
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 20, 30, "the job trains")
    home.cairn("down", timeout=40)
    until(lambda: not home.pids(), 10, "no process is left after down")
    home.cairn("up", "--slots", "4")
    assert home.digest(job) == quiet


def test_pause_and_resume_change_nothing(home, quiet):
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 20, 30, "the job trains")
    home.cairn("pause", job)
    shown = home.wait_state(job, "PAUSED")
    assert shown["step"] < 4000
    assert shown["checkpoints"][0]["step"] == shown["step"]
    home.cairn("resume", job)
    assert home.digest(job) == quiet


def test_two_homes_live_side_by_side(home):
    with Home() as other:
        jobs = home.submit(), other.submit()
        assert home.digest(jobs[0]) == other.digest(jobs[1])
        assert home.cairn("show", jobs[1], check=False).returncode == 3


@pytest.mark.parametrize("shares,victim", [("[2, 1, 3]", 0), ("[2, 1, 3]", 1), ("[3, 1, 2]", 2)])
def test_survivors_with_uneven_shares_go_on_to_one_digest(home, shares, victim):
    sets = {"train__lanes": 6, "checkpoint__every": "100 steps"}
    fault = f"trainer.reduced,rank={victim},step=7:kill"  # others may have finished that step
    wanted = home.run(workers__count=1, **sets)
    with Home(slots=4, faults=fault) as other:
        job = other.submit(workers__count=3, workers__shares=shares, **sets)
        assert other.digest(job) == wanted
        recoveries = other.show(job)["recoveries"]
        assert [(one["kind"], one["steps_lost"]) for one in recoveries] == [("live", 0)]


CHANGING = {  # model, steps, samples a step
    "mlp": ("arch: mlp, hidden: 32, classes: 10", 25000, 24),
    "lenet": ("arch: lenet, classes: 10", 2500, 24),
    "resnet18": ("arch: resnet18, classes: 10", 60, 4),
    "gpt2": ("arch: gpt2, layers: 2, heads: 2, width: 32, context: 16, vocab: 61, dropout: 0.1", 1200, 24),
}


@pytest.mark.parametrize("arch", CHANGING if "CAIRN_TEST_FULL" in os.environ else ["gpt2"])
def test_growing_shrinking_and_a_spare_that_takes_a_seat_change_no_bit(arch):
    model, steps, batch = CHANGING[arch]
    text = TINY.replace("arch: mlp, hidden: 32, classes: 10", model)
    sets = {"train__duration": f"{steps} steps", "train__global_batch": batch, "eval__every": f"{steps // 2} steps",
            "checkpoint__every": f"{steps // 3} steps"}
    with Home() as home:
        wanted = home.run(text, seconds=200, workers__count=1, **sets)
    with held_home(*paced(1, 2, 3, 4), slots=5) as home:
        job = home.submit(text, workers__min=1, workers__spares=1, **sets)
        for count in (4, 1, 3):
            trains_with(home, job, {4: 2, 1: 4, 3: 1}[count])
            home.cairn("set", job, f"workers.count={count}")
        before = workers(trains_with(home, job, 3))
        warm(home, job)
        os.kill(before[1], signal.SIGKILL)
        assert home.digest(job, seconds=200) == wanted
        assert sizes(home, job)[:4] == [2, 4, 1, 3] and sizes(home, job)[-1] == 3
        assert all(one["kind"] == "live" and one["steps_lost"] == 0 for one in home.show(job)["recoveries"])
