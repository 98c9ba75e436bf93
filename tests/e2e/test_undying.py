"""A worker that SIGKILL doesn't end, as one that waits in the kernel for a device: its slot is held, the job goes on.

The process is a real one: who traces it may have it stop while it ends, so it is killed and neither runs nor goes.
"""
import ctypes
import os
import signal
from contextlib import contextmanager

import pytest

from home import TINY, Home, alive, until

PTRACE_SEIZE, PTRACE_DETACH, PTRACE_O_TRACEEXIT = 0x4206, 17, 0x40
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


@contextmanager
def undying(pid):
    """Until its end a SIGKILL leaves the process where it is."""
    if LIBC.ptrace(PTRACE_SEIZE, pid, None, PTRACE_O_TRACEEXIT) != 0:
        pytest.skip(f"no ptrace here: {os.strerror(ctypes.get_errno())}")
    try:
        yield
    finally:
        LIBC.ptrace(PTRACE_DETACH, pid, None, None)


def worker_of(home, job, rank):
    return next(worker for worker in home.show(job)["workers"] if worker["rank"] == rank)


def slots_of(home):
    """The column USED of the only node."""
    return home.cairn("node", "ls").stdout.splitlines()[1].split(None, 3)[3]


def test_its_slot_is_held_until_it_is_gone_and_the_job_goes_on():
    with Home() as home:
        quiet = home.run()
    with Home(faults="trainer.forward,rank=1,step=6:wait", slots=3) as home:
        job = home.submit()
        home.wait_hit("trainer.forward")
        pid = worker_of(home, job, 1)["pid"]
        with undying(pid):
            os.kill(pid, signal.SIGKILL)
            assert home.digest(job, seconds=90) == quiet  # in the other two
            assert alive(pid)
            assert home.show(job)["restarts"] == 1
            assert "SIGKILL doesn't end it" in home.cairn("why", job).stdout
            assert "1/3 (1 undying)" in slots_of(home)
            home.kill("cairnd")  # the next one hears of it from the agent
            wide = until(lambda: home.try_show(job) and home.submit(TINY, workers__count=3), 30, "a coordinator")
            until(lambda: "process that was killed and is not gone" in home.show(wide)["reason"], 60, "the reason to wait")
            assert home.show(wide)["state"] == "QUEUED"
        until(lambda: not alive(pid), 10, "its end")
        assert home.digest(wide) == quiet
        assert slots_of(home).startswith("0/3 ")


def test_a_job_with_one_can_be_killed():
    with Home(faults="trainer.forward,rank=1,step=6:wait") as home:
        job = home.submit()
        home.wait_hit("trainer.forward")
        pid = worker_of(home, job, 1)["pid"]
        with undying(pid):
            home.cairn("kill", job, timeout=60)
            home.wait_state(job, "KILLED", seconds=60)
            assert alive(pid)
