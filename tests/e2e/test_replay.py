"""`cairn audit JOB@A..B`: an interval computed once more comes to the same bits, or says that it doesn't."""
import json
import os
import signal
from contextlib import suppress

import pytest

from home import Home, until

JOB = {"train__lanes": 8, "train__global_batch": 24, "train__duration": "300 steps", "checkpoint__every": "50 steps",
       "checkpoint__keep__last": 10, "eval__every": "150 steps"}


def steps_of(home, job):
    """With a checkpoint: some saves may have been dropped on a busy machine."""
    return sorted(ckpt["step"] for ckpt in home.show(job)["checkpoints"])


def audit(home, what, *more):
    return home.cairn("audit", what, *more, check=False)


@pytest.fixture(scope="module", name="home")
def home_with_a_job_that_was_disturbed():
    with Home() as home:
        home.job = home.submit(**JOB, workers__count=3)
        until(lambda: home.show(home.job)["step"] > 60, 20, "it trains")
        with suppress(ProcessLookupError):  # it may be through
            os.kill(home.show(home.job)["workers"][1]["pid"], signal.SIGKILL)
        home.digest(home.job)
        home.steps = steps_of(home, home.job)
        yield home


@pytest.mark.parametrize("first,last", [(None, 0), (0, -1), (-2, -1)])
def test_another_number_of_workers_comes_to_the_same_bits(home, first, last):
    begin = 0 if first is None else home.steps[first]
    done = audit(home, f"{home.job}@{begin}..{home.steps[last]}")
    assert done.returncode == 0 and "the same bits" in done.stdout, (done.stdout, done.stderr)


def test_a_folder_in_a_store_will_do(home):
    folder = next((home.dir / "checkpoints").glob("j-*"))
    begin, end = home.steps[0], home.steps[-1]
    done = audit(home, f"{folder}@{begin}..{end}", "-o", "json")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["equal"] is True and said["digest"] == said["computed"], said
    assert (said["from"], said["to"]) == (begin, end)


@pytest.mark.parametrize("word,code", [("100", 2), ("100..100", 2), ("200..100", 2), ("1..x", 2), ("100..", 2),
                                       ("0..210", 3), ("7..300", 3)])
def test_what_cannot_be_computed_is_said(home, word, code):
    done = audit(home, f"{home.job}@{word}")
    assert done.returncode == code and done.stderr, done


def test_a_machine_that_computes_other_bits_is_refused(home, monkeypatch):
    folder = next((home.dir / "checkpoints").glob("j-*"))
    monkeypatch.setitem(home.env, "ONEDNN_MAX_CPU_ISA", "SSE41")  # other than any machine's own
    done = audit(home, f"{folder}@{home.steps[0]}..{home.steps[-1]}")
    assert done.returncode == 4 and "other bits by itself" in done.stderr, (done.stdout, done.stderr)


def test_that_training_fails_is_not_that_bits_differ(home, monkeypatch):
    folder = next((home.dir / "checkpoints").glob("j-*"))
    monkeypatch.setitem(home.env, "CAIRN_FAULT", "trainer.loss,step=280:nan")
    done = audit(home, f"{folder}@{home.steps[-2]}..{home.steps[-1]}")
    assert done.returncode == 10 and done.stderr and "OTHER BITS" not in done.stdout, done


def test_an_error_that_no_audit_within_the_job_can_see_is_found():
    with Home(faults="trainer.weight,generation=1,step=120:flip") as home:
        job = home.submit(**JOB, workers__count=1)
        home.digest(job)
        steps = steps_of(home, job)
        after = next(i for i, step in enumerate(steps) if step > 120)
        for i, (begin, end) in enumerate(zip([0] + steps, steps)):  # from what was wrong on it was right
            done = audit(home, f"{job}@{begin}..{end}")
            assert done.returncode == (1 if i == after else 0), (begin, end, done.stdout, done.stderr)
            assert ("OTHER BITS" in done.stdout) == (i == after)
