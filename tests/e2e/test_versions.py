"""A job begins with the programs of another version, is killed with all of them, and ends with these: the same bits.

CAIRN_BIN_BEFORE=DIR names the other version's programs (a build of an older commit); without it there is nothing to run."""
import os
import signal
from contextlib import suppress
from pathlib import Path

import pytest

import home as home_module
from home import BIN, Home, until

BEFORE = os.environ.get("CAIRN_BIN_BEFORE")
JOB = {"train__duration": "2000 steps", "checkpoint__every": "40 steps", "workers__count": 3, "train__lanes": 6,
       "train__global_batch": 24, "eval__every": "100 steps"}

pytestmark = pytest.mark.skipif(not BEFORE, reason="CAIRN_BIN_BEFORE doesn't name the programs of another version")


@pytest.fixture(scope="module", name="quiet")
def digest_of_a_quiet_run_of_the_version_before():
    home_module.BIN = Path(BEFORE)
    with Home() as home:
        digest = home.digest(home.submit(**JOB), 200)
    home_module.BIN = BIN
    return digest


def test_a_quiet_run_of_this_version_has_the_same_digest(quiet):
    with Home() as home:
        assert home.digest(home.submit(**JOB), 200) == quiet


@pytest.mark.parametrize("end", ["kill", "down", "pause"])
def test_a_job_of_the_version_before_goes_on_with_the_same_bits(quiet, end):
    home_module.BIN = Path(BEFORE)
    try:
        with Home() as home:
            job = home.submit(**JOB)
            until(lambda: home.show(job)["step"] > 130, 60, "it trains")
            generation = home.show(job)["generation"]
            if end == "pause":
                home.cairn("pause", job, "--wait", timeout=60)
            if end == "down":
                home.cairn("down", timeout=60)
            for pid in home.pids():
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            home_module.BIN = BIN
            home.cairn("up", timeout=60)
            if end == "pause":
                home.cairn("resume", job)
            assert home.digest(job, 200) == quiet
            shown = home.show(job)
            assert shown["generation"] > generation, shown
            assert {c["step"] for c in shown["checkpoints"]} > {2000}, shown["checkpoints"]
    finally:
        home_module.BIN = BIN
