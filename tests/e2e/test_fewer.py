"""Fewer workers than asked, where `workers.min` allows them: survivors take over the lanes and give them back."""
import os
import signal
import subprocess
from contextlib import contextmanager

from elastic import (ENDLESS, LONG, LONGER, digest_of_a_longer_run, digest_of_a_quiet_run, held_home, line,  # noqa: F401
                     no_process_is_left, paced, recoveries, sizes, trains_with, warm, workers)
from home import BIN, TINY, alive, until

HELD = "trainer.forward,step=5:wait"
LATE = "trainer.update,step=300:wait"


def node_is_ready(home, name):
    done = home.cairn("node", "ls", check=False)
    return any(row.split()[:2] == [name, "ready"] for row in done.stdout.splitlines())


@contextmanager
def another_node(home, slots=1):
    """Its agent."""
    with open(home.home / "log" / "another.log", "ab") as log, \
            subprocess.Popen([BIN / "cairn-agent", "--name", "another", "--slots", str(slots)], env=home.env,
                             cwd=home.dir, stdout=log, stderr=log) as agent:
        try:
            until(lambda: node_is_ready(home, "another"), 20, "the other node is ready")
            yield agent
        finally:
            agent.kill()


def lose(agent, pids):
    """The node goes for good: its agent and its workers at once."""
    agent.kill()
    agent.wait()
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in pids), 10, "its workers are gone")


def test_without_a_free_slot_the_survivors_go_on(digest):
    with held_home(HELD, LATE, slots=3) as home, another_node(home) as agent:
        job = home.submit(**LONG, workers__count=4, workers__min=3)
        home.wait_hit("trainer.forward")
        shown = home.show(job)
        lost = [one["pid"] for one in shown["workers"] if one["node"] == "another"]
        assert len(lost) == 1
        lose(agent, lost)
        home.go("trainer.forward")
        home.wait_hit("trainer.update", seconds=60)  # the node is lost after a while
        after = home.show(job)
        assert set(workers(after).values()) == set(workers(shown).values()) - set(lost)
        assert sorted(one["share"] for one in after["workers"]) == [1, 1, 2]
        assert (after["workers_count"], after["workers_min"]) == (4, 3)
        assert line(home, job) == "3 of 4 (min 3)"
        assert recoveries(home, job) == [("live", 0)] and sizes(home, job) == [4, 3]
        home.go("trainer.update")
        assert home.digest(job) == digest


def test_they_give_the_lanes_back_when_the_replacement_is_ready(longer_digest):
    dies = "trainer.backward,rank=3,step=9,generation=1:kill"
    with held_home(HELD, dies, "trainer.update,generation=2:wait", "trainer.reduce,generation=3:wait",
                   *paced(2)) as home:
        job = home.submit(**LONGER, workers__count=4, workers__min=3)
        home.wait_hit("trainer.forward")
        before = workers(home.show(job))
        home.go("trainer.forward")
        home.wait_hit("trainer.update")  # nothing waited for the replacement
        fewer = workers(home.show(job))
        assert set(fewer.values()) == {before[rank] for rank in (0, 1, 2)}
        replacement, = warm(home, job)
        home.go("trainer.update")
        home.wait_hit("trainer.reduce")
        shown = home.show(job)
        assert set(workers(shown).values()) == set(fewer.values()) | {replacement}
        assert recoveries(home, job) == [("live", 0), ("live", 0)] and sizes(home, job) == [4, 3, 4]
        assert line(home, job) == "4 (min 3)"
        home.go("trainer.reduce")
        assert home.digest(job) == longer_digest
        no_process_is_left(home)


def test_without_a_smaller_min_the_survivors_wait(digest):
    dies = "trainer.backward,rank=1,step=9,generation=1:kill"
    with held_home(HELD, dies, LATE) as home:
        job = home.submit(**LONG, workers__count=3)
        home.wait_hit("trainer.forward")
        before = workers(home.show(job))
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        after = workers(home.show(job))
        assert len(after) == 3 and {before[0], before[2]} < set(after.values())
        assert sizes(home, job) == [3, 3] and recoveries(home, job) == [("live", 0)]
        home.go("trainer.update")
        assert home.digest(job) == digest


def test_below_min_the_survivors_wait_for_others(longer_digest):
    with held_home("trainer.forward,rank=0,step=5:wait", LATE) as home:
        job = home.submit(**LONGER, workers__count=3, workers__min=2)
        home.wait_hit("trainer.forward")
        before = workers(home.show(job))
        for rank in (1, 2):
            os.kill(before[rank], signal.SIGKILL)
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        assert before[0] in workers(home.show(job)).values()
        assert min(sizes(home, job)) >= 2 and recoveries(home, job)[0] == ("live", 0)
        home.go("trainer.update")
        assert home.digest(job) == longer_digest


def test_a_job_starts_with_what_is_there_and_grows(longer_digest):
    with held_home(HELD, "trainer.reduce,generation=2:wait", *paced(1), slots=3) as home:
        job = home.submit(**LONGER, workers__count=4, workers__min=3)
        home.wait_hit("trainer.forward")
        before = set(workers(home.show(job)).values())
        assert len(before) == 3 and line(home, job) == "3 of 4 (min 3)"
        with another_node(home):
            newcomer, = warm(home, job)
            home.go("trainer.forward")
            home.wait_hit("trainer.reduce")
            shown = home.show(job)
            assert set(workers(shown).values()) == before | {newcomer}
            assert {one["node"] for one in shown["workers"]} > {"another"}
            home.go("trainer.reduce")
            assert home.digest(job) == longer_digest
            assert sizes(home, job) == [3, 4] and recoveries(home, job) == [("live", 0)]


def test_plan_says_how_many_they_are_and_what_the_largest_share_takes():
    with held_home() as home:
        (home.dir / "job.yaml").write_text(TINY, encoding="utf-8")
        told = home.cairn("plan", "job.yaml", "--set", "workers={count: 4, min: 2, spares: 1}").stdout
        assert "workers    2 to 4, 1 spare: 5 slots\n" in told and "with 2 lanes, one of 2 workers" in told
        told = home.cairn("plan", "job.yaml").stdout
        assert "workers    2: 2 slots\n" in told and "with 2 lanes:" in told
        done = home.cairn("plan", "job.yaml", "--set", "workers.min=3", check=False)
        assert done.returncode == 2 and "workers.min: 3 is more than workers.count: 2" in done.stderr


def test_plan_says_what_the_bound_for_copies_does_not_hold_with_fewer():
    with held_home() as home:
        (home.dir / "job.yaml").write_text(TINY, encoding="utf-8")
        sets = ("model.hidden=2048", "checkpoint.memory_every=1 step", "checkpoint.memory=52 MiB")

        def notes(*more):
            told = home.cairn("plan", "job.yaml", *(part for text in (*sets, *more) for part in ("--set", text)))
            return [row.split(None, 1)[1] for row in told.stdout.splitlines() if row.startswith("note ")]
        at_peers = "checkpoint.peers=1"
        assert not notes("workers={count: 4}", at_peers)
        told, = notes("workers={count: 4, min: 3}", at_peers)
        assert told.startswith("with 3 workers one needs "), told
        assert told.endswith(" for copies at other nodes: there are none"), told
        told, = notes("workers={count: 4, min: 1}", "checkpoint.memory=32 MiB")
        assert told.startswith("with 1 worker one needs "), told
        assert told.endswith(" for copies between checkpoints: there are none"), told
        assert not notes("workers={count: 4, min: 2}", "checkpoint.memory=32 MiB")


def test_with_fewer_slots_than_min_it_waits():
    with held_home(slots=2) as home:
        job = home.submit(**ENDLESS, workers__count=4, workers__min=3)
        shown = home.wait_state(job, "QUEUED")
        assert until(lambda: home.show(job)["reason"], 10, "why it waits")
        assert shown["workers"] == []
        with another_node(home):
            trains_with(home, job, 3)
            home.cairn("kill", job)
