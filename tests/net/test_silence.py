"""Some machines fall silent while others are heard: which are dead, and which are cut off from the coordinator alone.

A sample of them without CAIRN_TEST_FULL.
"""
import os
import time

import pytest

from fleet import Fleet, until
from rooms import missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
full = pytest.mark.skipif(not os.environ.get("CAIRN_TEST_FULL"), reason="in a full run")
LONG = 10_000_000


def running(fleet, workers=3):
    job = fleet.submit(workers, LONG, 10000)
    fleet.wait_step(job, 100)
    return job


def node(fleet, number):
    return next(row for row in fleet.json_lines("node", "ls") if row["name"] == f"node{number}")


def events(fleet, job):
    return [event["message"] for event in fleet.show(job)["events"]]


def gets_on(fleet, job, steps=200):
    """In its first generation."""
    shown = fleet.wait_step(job, fleet.show(job)["step"] + steps, 30)
    assert shown["generation"] == 1, events(fleet, job)[-6:]


def cut_both(room, a, b):
    room.cut(a, b)


def cut_one(room, a, b):
    room.oneway(a, b)


@pytest.mark.parametrize("cut", [cut_both, pytest.param(cut_one, marks=full)])
def test_a_machine_that_is_cut_off_from_the_coordinator_alone_trains_on(cut):
    with Fleet(4) as fleet:
        job = running(fleet)
        apart = fleet.nodes_of(job)[1]
        cut(fleet.room, apart, 1)
        row = until(lambda: (row := node(fleet, apart))["state"] == "unreachable" and row, 15, "it is unreachable")
        assert "reached within" in row["reason"]
        since = time.monotonic()
        while time.monotonic() < since + 20:
            gets_on(fleet, job)
        assert node(fleet, apart)["state"] == "unreachable"
        why = fleet.cairn("why", job).stdout
        assert f"node node{apart} is not heard, but others reach it" in why and "seen from node" in why
        fleet.room.heal()
        until(lambda: len(fleet.ready()) == 4, 20, "it is heard again")
        gets_on(fleet, job)


def test_a_machine_without_power_is_lost_at_once():
    with Fleet(4) as fleet:
        job = running(fleet)
        gone = fleet.nodes_of(job)[1]
        fleet.room[gone].power_off()
        since = time.monotonic()
        until(lambda: fleet.show(job)["state"] != "RUNNING", 15, "it is noticed")
        noticed = time.monotonic() - since
        fleet.wait_generation(job, 2, 15)
        assert gone not in fleet.nodes_of(job)
        assert noticed < 8, noticed
        row = until(lambda: (row := node(fleet, gone))["state"] == "lost" and row, 5, "it is lost")
        print(f"\nnoticed after {noticed:.1f} s: {row['reason']}")


@full
def test_who_is_alone_there_is_waited_for():
    """The job has no other worker whose steps could tell."""
    with Fleet(2) as fleet:
        job = running(fleet, 1)
        apart = fleet.nodes_of(job)[0]
        fleet.room.cut(apart, 1)
        until(lambda: node(fleet, apart)["state"] == "unreachable", 15, "it is unreachable")
        time.sleep(20)
        assert fleet.show(job)["state"] == "RUNNING"
        fleet.room.heal()
        until(lambda: len(fleet.ready()) == 2, 20, "it is heard again")
        gets_on(fleet, job)


@full
def test_the_only_machine_has_more_time():
    with Fleet(1) as fleet:
        job = running(fleet, 1)
        fleet.room.isolate(2)
        time.sleep(10)
        fleet.room.join(2)
        until(lambda: len(fleet.ready()) == 1, 20, "it is heard again")
        gets_on(fleet, job)


@full
def test_a_coordinator_that_is_cut_off_for_a_minute_ends_no_generation():
    with Fleet(3) as fleet:
        job = running(fleet)
        fleet.room.isolate(1)
        time.sleep(60)
        fleet.room.join(1)
        until(lambda: len(fleet.ready()) == 3, 40, "all nodes are heard again")
        gets_on(fleet, job)
        suspected = [text for text in events(fleet, job) if "all 3 nodes fell silent at once" in text]
        assert len(suspected) == 1, events(fleet, job)
