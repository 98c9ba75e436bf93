"""Hot spares: processes that wait and take the seat of a worker that dies, and are nobody's business else."""
import os
import signal

import pytest

from elastic import (ENDLESS, LONG, digest_of_a_quiet_run, held_home, line, no_process_is_left, recoveries,  # noqa: F401
                     trains_with, warm, workers)
from home import alive, until

SPARE = dict(LONG, workers__spares=1)
HELD = "trainer.forward,rank=0,step=5:wait"
DIES = "trainer.backward,rank=1,step=9,generation=1:kill"
LATE = "trainer.update,step=300:wait"


def begin(home, **sets):
    """A job that is held with a warm spare: its name, its workers, the spare's pid."""
    job = home.submit(**{**SPARE, **sets})
    home.wait_hit("trainer.forward")
    spare, = warm(home, job)
    return job, workers(home.show(job)), spare


def end_well(home, job, digest):
    home.go("trainer.update")
    assert home.digest(job) == digest
    no_process_is_left(home)


def test_a_spare_takes_the_seat_of_a_worker_that_dies_and_another_one_comes(digest):
    with held_home(HELD, DIES, LATE, slots=3) as home:
        job, before, spare = begin(home)
        assert line(home, job) == "2, 1 spare (warm)"
        assert spare not in before.values()
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        shown = home.show(job)
        assert workers(shown) == {0: before[0], 1: spare}
        assert shown["generation"] == 2 and shown["workers_spares"] == 1
        assert recoveries(home, job) == [("live", 0)]
        warm(home, job, but=[spare])
        end_well(home, job, digest)


def test_the_end_of_a_spare_is_nothing_to_the_job(digest):
    with held_home(HELD, LATE, slots=3) as home:
        job, before, spare = begin(home)
        os.kill(spare, signal.SIGKILL)
        warm(home, job, but=[spare])
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        shown = home.show(job)
        assert workers(shown) == before
        assert (shown["generation"], shown["restarts"], shown["recoveries"]) == (1, 0, [])
        end_well(home, job, digest)


def test_a_spare_that_dies_while_it_takes_the_seat_is_replaced(digest):
    with held_home(HELD, DIES, "trainer.live:wait", LATE, slots=3) as home:
        job, before, spare = begin(home)
        home.go("trainer.forward")
        home.wait_hit("trainer.live")
        os.kill(spare, signal.SIGKILL)
        home.go("trainer.live")
        home.wait_hit("trainer.update")
        after = workers(home.show(job))
        assert after[0] == before[0] and spare not in after.values() and len(after) == 2
        assert all(lost == 0 for _, lost in recoveries(home, job))
        end_well(home, job, digest)


def test_two_die_at_once_and_the_one_spare_takes_one_seat(digest):
    with held_home(HELD, LATE, slots=4) as home:
        job, before, spare = begin(home, workers__count=3)
        for rank in (1, 2):
            os.kill(before[rank], signal.SIGKILL)
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        after = workers(home.show(job))
        assert after[0] == before[0] and spare in after.values() and len(after) == 3
        assert not {before[1], before[2]} & set(after.values())
        assert recoveries(home, job)[0] == ("live", 0)
        end_well(home, job, digest)


@pytest.mark.parametrize("program", ["cairnd", "cairn-agent"])
def test_a_spare_outlives_coordinator_and_agent_and_is_used(digest, program):
    with held_home(HELD, DIES, LATE, slots=3) as home:
        job, before, spare = begin(home)
        killed = home.pids(program)
        home.kill(program)
        until(lambda: set(home.pids(program)) - set(killed), 20, f"another {program}")
        assert warm(home, job) == [spare]
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        shown = until(lambda: home.try_show(job), 20, "a coordinator")
        assert workers(shown) == {0: before[0], 1: spare}
        assert recoveries(home, job) == [("live", 0)]
        end_well(home, job, digest)


def test_what_ends_a_job_ends_its_spares():
    with held_home(slots=3) as home:
        job = home.submit(**{**SPARE, **ENDLESS})
        for ask, state in (("pause", "PAUSED"), ("stop", "STOPPED")):
            spare, = warm(home, job)
            trains_with(home, job, 2)
            home.cairn(ask, job)
            home.wait_state(job, state)
            no_process_is_left(home)
            assert not alive(spare)
            if state == "PAUSED":
                home.cairn("resume", job)
        job = home.submit(**{**SPARE, **ENDLESS})
        warm(home, job)
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")
        no_process_is_left(home)
        home.run(workers__spares=1)  # ends while its spare starts
        no_process_is_left(home)


def test_a_job_runs_without_the_spare_that_finds_no_slot(digest):
    with held_home(HELD, LATE, slots=2) as home:
        job = home.submit(**SPARE)
        home.wait_hit("trainer.forward")
        shown = trains_with(home, job, 2)
        assert shown["spares"] == [] and line(home, job) == "2, 1 spare (waits for a slot)"
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        assert home.show(job)["generation"] == 1
        end_well(home, job, digest)


def test_jobs_in_the_queue_come_before_spares():
    with held_home(slots=3) as home:
        first = home.submit(**ENDLESS, workers__count=1)
        trains_with(home, first, 1)
        job = home.submit(**{**SPARE, **ENDLESS})
        trains_with(home, job, 2)
        waits = home.submit(**ENDLESS, workers__count=1)
        home.wait_state(waits, "QUEUED")
        home.cairn("kill", first)
        trains_with(home, waits, 1)
        assert home.show(job)["spares"] == []
        home.cairn("kill", waits)
        warm(home, job)
        home.cairn("kill", job)
