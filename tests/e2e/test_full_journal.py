"""The disk of the coordinator's journal fills up: jobs go on, it is said, and it is over once there is room."""
import ctypes
import os
import subprocess
import time

import pytest

from home import Home, until
from test_full_disk import CLONE_NEWNS, fill, mount

EVERY = 20
KEYS = {"train__duration": "1000000 steps", "workers__count": 2, "checkpoint__every": f"{EVERY} steps", "train__lanes": 2}


class SmallHome(Home):
    """Its state has a disk of its own."""

    def __enter__(self):
        self.state = self.home / "state"
        self.state.mkdir(parents=True, mode=0o700)
        self.home.chmod(0o700)
        mounted = mount("-t", "tmpfs", "-o", "size=96m,mode=700", "tmpfs", self.state)
        if mounted.returncode != 0:
            pytest.skip(f"no tmpfs can be mounted: {mounted.stderr}")
        return super().__enter__()

    def __exit__(self, kind, value, trace):
        (self.state / "foreign").unlink(missing_ok=True)
        super().__exit__(kind, value, trace)
        subprocess.run(["umount", "-l", self.state], check=False)


@pytest.fixture(name="home")
def home_with_a_small_state():
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0 or mount("--make-rprivate", "/").returncode != 0:
        pytest.skip(f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}")
    with SmallHome(slots=2) as home:
        yield home


def coordinator(home):
    return home.cairn("version", "-o", "json").stdout


def test_jobs_go_on_while_the_disk_of_the_journal_is_full(home):
    job = home.submit(**KEYS)
    until(lambda: home.show(job)["checkpoints"], 60, "it saves")
    before = coordinator(home)
    foreign = home.home / "state" / "foreign"
    fill(foreign)
    until(lambda: "journal is full" in home.show(job)["reason"], 30, "it is said")
    shown = home.show(job)
    assert shown["state"] == "RUNNING" and shown["health"] == "degraded", shown
    refused = home.cairn("submit", home.dir / "job-0.yaml", check=False)
    assert refused.returncode == 4 and "journal is full" in refused.stderr, refused

    os.kill(int(shown["workers"][1]["pid"]), 9)  # it recovers
    until(lambda: home.show(job)["generation"] == 2 and home.show(job)["state"] == "RUNNING", 60, "another attempt")
    at = int(home.show(job)["checkpoints"][0]["step"])
    until(lambda: int(home.show(job)["checkpoints"][0]["step"]) > at + 2 * EVERY, 60, "it saves")
    newest = home.show(job)["checkpoints"][0]
    assert "loss" in newest, newest

    foreign.unlink()
    until(lambda: home.show(job)["health"] == "ok", 30, "it is over")
    assert coordinator(home) == before, "the same coordinator all the time"
    kinds = [event["kind"] for event in home.show(job)["events"]]
    assert "journal-full" in kinds and "journal-room" in kinds
    there = int(home.show(job)["step"])
    time.sleep(2)
    rows = home.cairn("metrics", job, "-o", "csv").stdout.splitlines()
    steps = [int(row.split(",")[0]) for row in rows[1:]]
    assert steps[-1] >= there and len(steps) >= min(there // 2, 2048), "of many rows every second goes, no more"
