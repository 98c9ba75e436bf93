"""Failures of docs/guarantees.md that no other file plays with real programs."""
import ctypes
import os
import random
import socket
from contextlib import closing
from pathlib import Path

import pytest

from home import Home, alive

FULL = "CAIRN_TEST_FULL" in os.environ
PIDFD_GETFD = 438  # the system call
LIBC = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    """The same for every number of workers."""
    with Home() as home:
        return home.run(workers__count=1)


# ---- all of many workers at once

MANY = 30
PATIENT = {"CAIRN_HANG_MS": "60000", "CAIRN_WATCHDOG_MS": "60000"}  # two cores have much to do
OF_MANY = {"train__lanes": MANY, "train__global_batch": 2 * MANY}


def test_thirty_workers_that_are_killed_at_once_come_back_together():
    with Home() as home:
        quiet = home.run(workers__count=1, **OF_MANY)
    with Home(env=PATIENT, faults="trainer.forward,rank=29,step=6:wait", slots=32) as home:
        job = home.submit(workers__count=MANY, **OF_MANY)
        home.wait_hit("trainer.forward", 120)
        workers = home.pids("cairn-trainer")
        assert len(workers) == MANY
        home.kill("cairn-trainer")
        assert home.digest(job, seconds=240) == quiet
        shown = home.show(job)
        assert shown["generation"] == 2 and shown["restarts"] == 1  # none of them was missed, or started twice
        assert len(shown["recoveries"]) == 1 and not any(alive(pid) for pid in workers)


# ---- each kind of failure, of the first, second, middle and last rank

KINDS = ("kill", "segv", "exit1", "stop")
PHASES = (("forward", 3), ("backward", 5), ("reduce", 7), ("update", 9))  # each point fires once


def four_failures(turn):
    """Of ranks 0 to 3, one after the other: (point, rank, kind)."""
    return [(f"trainer.{phase},rank={rank},step={step}", rank, KINDS[(rank + turn) % len(KINDS)])
            for rank, (phase, step) in enumerate(PHASES)]


def turns():
    """All four: each kind with each rank. One of them, by the seed, where it isn't a full run."""
    every = list(range(len(KINDS)))
    return every if FULL else [random.Random(int(os.environ.get("CAIRN_SEED", "1"))).choice(every)]


@pytest.mark.parametrize("turn", turns())
def test_ranks_fail_one_after_the_other_in_all_ways(turn, quiet):
    failures = four_failures(turn)
    with Home(env=Home.HANGS, faults=";".join(f"{point}:{kind}" for point, _, kind in failures)) as home:
        job = home.submit(workers__count=4)
        assert home.digest(job, seconds=120) == quiet
        for point, _, _ in failures:
            assert home.hit(point.split(",")[0]), f"{point} was never reached"
        ranks = [recovery["rank"] for recovery in home.show(job)["recoveries"]]
        assert ranks == [0, 1, 2, 3], ranks


# ---- a connection that breaks while nobody dies

def descriptor_of(pid, number):
    """A copy of another process's descriptor."""
    process = os.pidfd_open(pid)
    try:
        copy = LIBC.syscall(PIDFD_GETFD, process, number, 0)
    finally:
        os.close(process)
    if copy < 0:
        raise OSError(ctypes.get_errno(), "pidfd_getfd")
    return copy


def connections_of(pid):
    """Of TCP: {(own address, the other's): number of the descriptor}."""
    found = {}
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        if not os.readlink(entry).startswith("socket:"):
            continue
        with closing(socket.socket(fileno=descriptor_of(pid, int(entry.name)))) as one:
            try:
                if one.family == socket.AF_INET:
                    found[one.getsockname(), one.getpeername()] = int(entry.name)
            except OSError:
                pass  # it listens
    return found


def cut_between(first, second):
    """Ends all connections between two processes, as a network does that loses them."""
    own, other = connections_of(first), connections_of(second)
    common = [number for (at, to), number in own.items() if (to, at) in other]
    for number in common:
        with closing(socket.socket(fileno=descriptor_of(first, number))) as one:
            one.shutdown(socket.SHUT_RDWR)
    return len(common)


@pytest.mark.parametrize("point", ["trainer.reduce", "comm.exchange", "trainer.refresh"])
def test_a_collective_that_fails_costs_nobody_his_process(point, quiet):
    with Home(faults=f"{point},rank=1,step=6:wait") as home:
        job = home.submit(workers__count=3)
        home.wait_hit(point)
        before = {worker["rank"]: worker["pid"] for worker in home.show(job)["workers"]}
        try:
            assert cut_between(before[1], before[2]) >= 1
        except PermissionError:
            pytest.skip("another process's descriptors can't be had here")
        home.go(point)
        assert home.digest(job) == quiet
        shown = home.show(job)
        assert {worker["rank"]: worker["pid"] for worker in shown["workers"]} == before
        [one] = shown["recoveries"]
        assert (one["kind"], one["steps_lost"]) == ("live", 0), one
