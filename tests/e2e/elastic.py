"""Jobs whose processes come and go: who is there, and jobs that are held where a test looks at them.

A job is held at a fault point with `wait`: whoever comes there first waits, so the others do, too. What becomes warm
meanwhile needs no worker. Each point fires once, so the holds of a test have different ones.
"""
import json

import pytest

from home import Home, until

PATIENT = {"CAIRN_HANG_MS": "60000"}  # what is held is held
LONG = {"train__duration": "400 steps", "checkpoint__every": "100 steps", "eval__every": "200 steps"}
LONGER = {"train__duration": "4000 steps", "checkpoint__every": "1000 steps", "eval__every": "2000 steps"}
ENDLESS = {"train__duration": "1000000 steps", "checkpoint__every": "1000000 steps", "eval__every": "1000000 steps"}


def quiet(**sets):
    """The digest of a run without a failure, on one worker."""
    with Home() as home:
        return home.run(**sets, workers__count=1)


@pytest.fixture(scope="module", name="digest")
def digest_of_a_quiet_run():
    return quiet(**LONG)


@pytest.fixture(scope="module", name="longer_digest")
def digest_of_a_longer_run():
    return quiet(**LONGER)


def held_home(*faults, slots=4):
    return Home(env=PATIENT, faults=";".join(faults) or None, slots=slots)


def paced(*generations, ms=20):
    """Faults that make each step of these generations last: a job mustn't end before the change that is looked at,
    and that takes as long as the journal's disk does."""
    return [f"trainer.refresh,generation={generation}:slow{ms}" for generation in generations]


def workers(shown):
    """{rank: pid} of those that are there."""
    return {worker["rank"]: worker["pid"] for worker in shown["workers"] if worker["state"] != "gone"}


def warm(home, job, count=1, but=()):
    """Pids of the spares, once so many are warm; `but`: not these."""
    def found():
        shown = home.try_show(job)
        pids = [one["pid"] for one in (shown or {"spares": []})["spares"]
                if one["state"] == "warm" and one["pid"] not in (0, *but)]  # 0: a coordinator that hasn't heard of it
        return pids if len(pids) >= count else None
    return until(found, 30, f"{count} warm spares")


def trains_with(home, job, count):
    """The job, once so many workers run and no others."""
    def found():
        shown = home.try_show(job)
        states = [worker["state"] for worker in (shown or {"workers": []})["workers"]]
        return shown if states == ["running"] * count else None
    return until(found, 30, f"{count} workers run")


def line(home, job):
    """What `cairn show` says of the workers."""
    lines = home.cairn("show", job).stdout.splitlines()
    return next(text.split(None, 1)[1] for text in lines if text.startswith("workers "))


def recoveries(home, job):
    return [(one["kind"], one["steps_lost"]) for one in home.show(job)["recoveries"]]


def sizes(home, job):
    """How many workers each generation had."""
    told = json.loads(home.cairn("why", job, "-o", "json").stdout)
    return [len(one["nodes"].split(",")) for one in told["generations"]]


def no_process_is_left(home):
    until(lambda: not home.pids("cairn-trainer"), 20, "no worker and no spare is left")
