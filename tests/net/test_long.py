"""One run through everything that fails in turn, for minutes: its weights are those of a quiet run on one machine.

The list is gone through again and again until five minutes have passed; without CAIRN_TEST_FULL a part of it, once. What
was done, when, and how long the job took to go on, is printed.
"""
import os
import time

import pytest

from faults import no_delay
from fleet import Fleet, until
from rooms import missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
FULL = bool(os.environ.get("CAIRN_TEST_FULL"))
SECONDS = 300 if FULL else 1
NODES = 4
PLAIN = {"train__schedule__name": "constant"}  # so that a run that is stopped at a step is one that ends there


def power_cut_of_a_workers_machine(fleet, number):
    fleet.room[number].power_off()
    time.sleep(8 if FULL else 1)
    fleet.room[number].boot()
    fleet.start_agent(number)


def power_cut_of_the_coordinators_machine(fleet, _):
    fleet.room[1].power_off()
    time.sleep(5 if FULL else 1)
    fleet.room[1].boot()
    fleet.start_coordinator()


def isolation_of_12_s(fleet, number):
    fleet.room.isolate(number)
    time.sleep(12)
    fleet.room.join(number)


def nothing_of_one_worker_reaches_another_for_15_s(fleet, number):
    fleet.room.oneway(number, number + 1 if number <= NODES else 2)
    time.sleep(15)
    fleet.room.heal()


def loss_of_5_percent_for_20_s(fleet, _):
    everybody = range(1, NODES + 2)
    for a in everybody:
        for b in everybody:
            if a != b:
                fleet.room.loss(a, b, 5)
    time.sleep(20)
    fleet.room.heal()


def delay_of_50_ms_for_20_s(fleet, _):
    for number in range(1, NODES + 2):
        fleet.room.delay(number, 50)
    time.sleep(20 if FULL else 4)
    fleet.room.heal()


def pause_of_8_s(fleet, number):
    fleet.room[number].freeze()
    time.sleep(8)
    fleet.room[number].thaw()


EVENTS = [power_cut_of_a_workers_machine, power_cut_of_the_coordinators_machine, isolation_of_12_s,
          nothing_of_one_worker_reaches_another_for_15_s, loss_of_5_percent_for_20_s, delay_of_50_ms_for_20_s,
          pause_of_8_s]
SAMPLE = [power_cut_of_a_workers_machine, power_cut_of_the_coordinators_machine, delay_of_50_ms_for_20_s]


def through_all(fleet, job, events):
    """Lines of what was done; ends with a whole round."""
    begin, lines, count = time.monotonic(), [], 0
    while time.monotonic() - begin < SECONDS or count % len(events) != 0:
        event, number = events[count % len(events)], 2 + count % NODES
        before, at = fleet.show(job), time.monotonic()
        event(fleet, number)
        healed = time.monotonic()
        until(lambda: len(fleet.ready()) == NODES, 60, "all nodes are back")
        goes_on = fleet.show(job)["step"]
        after = fleet.wait_step(job, goes_on + 100, 60)
        lines.append(f"{at - begin:6.1f} s  {event.__name__} (machine {number}): {healed - at:.1f} s; 100 steps more "
                     f"{time.monotonic() - healed:.1f} s after; step {before['step']} -> {after['step']}, "
                     f"generation {before['generation']} -> {after['generation']}")
        print(lines[-1], flush=True)
        count += 1
    print(f"{count} events in {time.monotonic() - begin:.0f} s, load {os.getloadavg()[0]:.1f}", flush=True)


def test_everything_that_fails_in_turn_changes_nothing():
    events = EVENTS if FULL else SAMPLE
    if no_delay():
        print(f"without a delay: {no_delay()}")
        events = [event for event in events if event is not delay_of_50_ms_for_20_s]
    with Fleet(NODES) as fleet:
        job = fleet.submit(NODES, 10_000_000, 2000, **PLAIN)
        fleet.wait_step(job, 100)
        assert sorted(fleet.nodes_of(job)) == [2, 3, 4, 5]
        through_all(fleet, job, events)
        fleet.cairn("stop", job)
        shown = fleet.wait(job, lambda shown: shown["state"] == "STOPPED", 60, "it is stopped")
        steps, digest = shown["step"], fleet.cairn("ckpt", "digest", job).stdout.strip()
        assert steps in {int(checkpoint["step"]) for checkpoint in shown["checkpoints"]}
        print(f"stopped at step {steps}, generation {shown['generation']}, seconds lost {shown['lost_seconds']}: {digest}")
    with Fleet(1, slots=NODES) as fleet:
        begin = time.monotonic()
        assert fleet.digest(fleet.submit(NODES, steps, 2000, **PLAIN), 1500) == digest
        print(f"the quiet run on one machine: {steps} steps in {time.monotonic() - begin:.0f} s")
