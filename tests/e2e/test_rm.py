"""cairn rm: jobs that have ended are forgotten; their checkpoints stay, unless they are to go, too."""
import json
from pathlib import Path

import pytest

from home import Home, until


@pytest.fixture(name="home")
def one_home():
    with Home(slots=4) as home:
        yield home


def listed(home):
    return set(home.cairn("ps", "-o", "name").stdout.split())


def ended(home, **keys):
    job = home.submit(train__duration="8 steps", **keys)
    home.wait_state(job, "SUCCEEDED", seconds=60)
    return job


def test_a_job_that_ended_is_removed_and_its_checkpoints_stay(home):
    job = ended(home)
    store = Path(home.show(job)["store"])
    running = home.submit(train__duration="1000000 steps")
    until(lambda: home.show(running)["state"] == "RUNNING", 30, "it trains")
    refused = home.cairn("rm", running, check=False)
    assert refused.returncode == 4 and "cairn kill" in refused.stderr, refused
    said = home.cairn("rm", job)
    assert str(store) in said.stdout + said.stderr
    assert home.cairn("show", job, check=False).returncode == 3
    assert home.cairn("rm", job, check=False).returncode == 3
    assert listed(home) == {running}
    assert list(store.glob("step-*"))
    home.cairn("ckpt", "verify", str(next(store.glob("step-*"))))
    home.cairn("kill", running, "--wait")


def test_with_its_checkpoints_nothing_of_it_is_left(home):
    job = ended(home)
    store = Path(home.show(job)["store"])
    assert list(store.glob("step-*"))
    removed = json.loads(home.cairn("rm", job, "--checkpoints", "-o", "json").stdout)
    assert removed["id"] == job
    assert not list(store.glob("step-*")) and listed(home) == set()


def test_all_that_ended_are_removed_at_once_by_their_age(home):
    jobs = {ended(home) for _ in range(2)}
    assert home.cairn("rm", check=False).returncode == 2
    assert home.cairn("rm", "--all-ended", next(iter(jobs)), check=False).returncode == 2
    home.cairn("rm", "--older-than", "1h")
    assert listed(home) == jobs
    home.cairn("rm", "--all-ended")
    assert listed(home) == set()
