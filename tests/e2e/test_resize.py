"""`cairn set JOB workers.count=N`: a job grows and shrinks while it trains, and ends with the same bits."""
import json
import os
import signal

from elastic import (ENDLESS, LONGER, digest_of_a_longer_run, held_home, line, no_process_is_left,  # noqa: F401
                     paced, recoveries, sizes, trains_with, warm, workers)
from home import Home, until

HELD = "trainer.forward,rank=0,step=100:wait"
LATE = "trainer.update,step=300:wait"


def resize(home, job, count):
    shown = json.loads(home.cairn("set", job, f"workers.count={count}", "-o", "json").stdout)
    assert shown["workers_count"] == count
    return shown


def begin(home, **sets):
    """A job of two that is held in step 100: its name and workers."""
    job = home.submit(**{**LONGER, "workers__min": 1, **sets})
    home.wait_hit("trainer.forward")
    return job, workers(home.show(job))


def test_it_grows_and_shrinks_and_nobody_who_stays_is_started_anew(longer_digest):
    points = ["trainer.backward", "trainer.reduce", "trainer.reduced", "trainer.refresh"]
    # Each not in its first step: until that is finished nobody is started.
    holds = [f"{point},generation={index + 2},step={102 + 2 * index}:wait" for index, point in enumerate(points)]
    with held_home(HELD, *holds, *paced(1, 2, 3, 4)) as home:
        job, before = begin(home)
        at = "trainer.forward"
        for point, count in zip(points, (4, 3, 1, 2)):
            resize(home, job, count)
            newcomers = set(warm(home, job, count - len(before))) if count > len(before) else set()
            home.go(at)
            home.wait_hit(point)
            after = workers(home.show(job))
            assert len(after) == count
            assert set(after.values()) == (set(before.values()) | newcomers if newcomers else
                                           set(before.values()) & set(after.values()))
            assert line(home, job).startswith(f"{count} (min 1)" if count > 1 else "1")
            at, before = point, after
        assert sizes(home, job) == [2, 4, 3, 1, 2] and set(recoveries(home, job)) == {("live", 0)}
        assert home.show(job)["restarts"] == 0
        home.go(at)
        assert home.digest(job) == longer_digest
        no_process_is_left(home)


def test_shares_of_the_file_become_even(longer_digest):
    with held_home(HELD, "trainer.reduce,generation=2:wait", *paced(1)) as home:
        job, _ = begin(home, workers__shares="[3, 1]")
        resize(home, job, 3)
        warm(home, job)
        home.go("trainer.forward")
        home.wait_hit("trainer.reduce")
        shown = home.show(job)
        assert [one["share"] for one in shown["workers"]] == [2, 1, 1]
        told = [event["message"] for event in shown["events"] if event["kind"] == "set"]
        assert len(told) == 1 and told[0].startswith("3 workers from now on, not 2, with even shares; asked by ")
        home.go("trainer.reduce")
        assert home.digest(job) == longer_digest


def test_a_job_that_rests_goes_on_with_the_new_number(longer_digest):
    with held_home(HELD, slots=3) as home:
        job, _ = begin(home)
        home.cairn("pause", job)
        home.go("trainer.forward")
        home.wait_state(job, "PAUSED")
        resize(home, job, 3)
        home.cairn("resume", job)
        trains_with(home, job, 3)
        assert home.digest(job) == longer_digest
        assert sizes(home, job)[-1] == 3


def test_a_job_in_the_queue_is_placed_by_the_new_number():
    with held_home(slots=2) as home:
        first = home.submit(**ENDLESS, workers__count=1)
        trains_with(home, first, 1)
        job = home.submit(**ENDLESS, workers__min=1, workers__count=2)
        trains_with(home, job, 1)  # min is 1: it starts with the slot that is free
        fixed = home.submit(**ENDLESS, workers__count=1)
        home.wait_state(fixed, "QUEUED")
        resize(home, fixed, 2)
        assert home.show(fixed)["state"] == "QUEUED"
        home.cairn("kill", first)
        home.cairn("kill", job)
        trains_with(home, fixed, 2)
        home.cairn("kill", fixed)


def ends_with_three(home, job, digest):
    """Once held late: when it has what three workers need, it has three, and ends well."""
    home.wait_hit("trainer.update")
    until(lambda: len(workers(home.show(job))) + len(home.show(job)["spares"]) >= 3, 30, "three processes")
    missing = 3 - len(workers(home.show(job)))
    if missing > 0:
        warm(home, job, missing)
    home.go("trainer.update")
    shown = trains_with(home, job, 3)
    assert home.digest(job) == digest
    assert sizes(home, job)[-1] == 3
    assert all(lost == 0 for _, lost in recoveries(home, job))
    return set(workers(shown).values())


def test_it_may_be_set_during_a_recovery(longer_digest):
    with held_home("trainer.forward,rank=1,step=100,generation=1:kill", "trainer.parked:wait", LATE,
                   *paced(2)) as home:
        job = home.submit(**LONGER, workers__min=1)
        home.wait_hit("trainer.parked")
        resize(home, job, 3)
        home.go("trainer.parked")
        ends_with_three(home, job, longer_digest)


def test_a_worker_may_die_right_after(longer_digest):
    with held_home(HELD, LATE, *paced(1, 2)) as home:
        job, before = begin(home)
        resize(home, job, 3)
        os.kill(before[1], signal.SIGKILL)
        home.go("trainer.forward")
        assert before[0] in ends_with_three(home, job, longer_digest)


def test_the_coordinator_may_die_right_after(longer_digest):
    with held_home(HELD, LATE, *paced(1, 2)) as home:
        job, before = begin(home)
        resize(home, job, 3)
        home.kill("cairnd")
        shown = until(lambda: home.try_show(job), 20, "a coordinator")
        assert shown["workers_count"] == 3
        home.go("trainer.forward")
        assert set(before.values()) < ends_with_three(home, job, longer_digest)


REFUSALS = [
    ("workers.count=5", 4, "5 workers can't share 4 lanes: each carries at least one"),
    ("workers.count=1", 4, "workers.count: 1 is less than workers.min: 2"),
    ("workers.count=0", 2, "write a number from 1 to 1024"),
    ("workers.count=many", 2, "workers.count must be a whole number; it is 'many'"),
    ("workers.cuont=3", 2, "did you mean 'count'?"),
    ("train.lanes=8", 2, "train.lanes can't be changed in a job that was submitted"),
    ("nonsense", 2, "a setting is key=value"),
]


def test_what_does_not_fit_is_refused_with_the_reason_and_changes_nothing():
    with Home() as home:
        job = home.submit(**ENDLESS, workers__count=3, workers__min=2)
        for setting, code, said in REFUSALS:
            done = home.cairn("set", job, setting, check=False)
            assert done.returncode == code and said in done.stderr, (setting, done.returncode, done.stderr)
        assert home.cairn("set", "nobody", "workers.count=2", check=False).returncode == 3
        assert home.show(job)["workers_count"] == 3
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")
        done = home.cairn("set", job, "workers.count=3", check=False)
        assert done.returncode == 4 and "it is KILLED" in done.stderr, done.stderr
        log = home.home / "state" / "audit.log"  # written beside the answers
        until(lambda: log.read_text(encoding="utf-8").count("Control/SetJob") == len(REFUSALS) + 2, 10, "all are noted")
