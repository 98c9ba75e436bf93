"""A store that fills up: the job goes on training, says so, and commits again once there is room."""
import ctypes
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from home import Home, until

CLONE_NEWNS = 0x00020000
SIZE_MB = 64
EVERY = 30  # steps from save to save

# About 13 MB of state, a dozen checkpoints of it a few tenths of a second apart.
JOB = f"""\
name: full
model: {{arch: mlp, hidden: 2048, classes: 10}}
data:
  train: {{format: synthetic, samples: 1200}}
train:
  duration: {15 * EVERY} steps
  global_batch: 12
  lanes: 4
  optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
  seed: 17
workers: {{count: 2, device: cpu}}
checkpoint: {{every: {EVERY} steps, keep: {{last: 2}}, store: checkpoints/, memory_every: none}}
"""


def mount(*args):
    return subprocess.run(["mount", *map(str, args)], capture_output=True, text=True, check=False)


@pytest.fixture(scope="module", autouse=True)
def own_mounts():
    """Mounts of this process and its children only, gone with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        pytest.skip(f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}")
    private = mount("--make-rprivate", "/")
    if private.returncode != 0:
        pytest.skip(f"no mount namespace of our own: {private.stderr}")


@contextmanager
def small_store(**options):
    with Home(**options) as home:
        store = home.dir / "checkpoints"
        store.mkdir()
        mounted = mount("-t", "tmpfs", "-o", f"size={SIZE_MB}m", "tmpfs", store)
        if mounted.returncode != 0:
            pytest.skip(f"no tmpfs can be mounted: {mounted.stderr}")
        try:
            yield home
        finally:
            home.cairn("kill", "full", check=False)
            subprocess.run(["umount", "-l", store], check=False)


@pytest.fixture(name="home")
def home_with_a_small_store():
    with small_store() as home:
        yield home


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    with Home() as home:
        return home.run(JOB, seconds=120)


def fill(path):
    """A foreign file that takes what room there is."""
    with open(path, "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"\0" * 65536)
                file.flush()
        except OSError:
            pass


def plan(home, job):
    return home.show(job)["checkpoint_plan"]


def steps(home, job):
    return [int(c["step"]) for c in home.show(job)["checkpoints"]]


def refused_and_training(home, job):
    """The job was refused a checkpoint and trains on, saying so."""
    until(lambda: int(plan(home, job)["refused"]) > 0, 60, "a checkpoint is refused")
    shown = home.show(job)
    assert shown["state"] == "RUNNING", (shown["state"], shown["reason"])
    assert "room" in shown["reason"] or "space" in shown["reason"], shown["reason"]
    assert any(e["kind"] == "store-full" for e in shown["events"]), shown["events"]
    at, refused = int(shown["step"]), int(plan(home, job)["refused"])
    until(lambda: int(home.show(job)["step"]) > at, 30, "it trains on")
    until(lambda: int(plan(home, job)["refused"]) > refused, 60, "the next due one is tried, too")
    why = home.cairn("why", job).stdout
    assert "room" in why and "cairn ckpt" in why
    shown = home.show(job)
    assert shown["health"] == "degraded" and "cairn ckpt" in shown["reason"], shown
    return shown


def no_half_checkpoints(home, job):
    """Whatever is listed reads back whole."""
    for ckpt in home.show(job)["checkpoints"]:
        home.cairn("ckpt", "verify", ckpt["path"])


def test_a_foreign_file_fills_the_store(home, quiet):
    job = home.submit(JOB)
    until(lambda: steps(home, job), 60, "a checkpoint")
    fill(home.dir / "checkpoints" / "foreign")
    refused_and_training(home, job)
    asked = home.cairn("save", job, check=False)  # is answered, too
    assert asked.returncode == 4 and ("room" in asked.stderr or "space" in asked.stderr), asked
    no_half_checkpoints(home, job)
    before = max(steps(home, job))
    (home.dir / "checkpoints" / "foreign").unlink()
    until(lambda: max(steps(home, job)) > before, 60, "it commits again")
    assert home.digest(job, 120) == quiet
    shown = home.show(job)
    assert shown["restarts"] == 0 and shown["reason"] == ""
    assert any(e["kind"] == "store-room" for e in shown["events"])


@pytest.mark.parametrize("point, nth", [("save.write", 1), ("save.create", 2)])
def test_the_store_fills_up_while_a_rank_writes(point, nth, quiet):
    """What the check before a save found is gone when the rank's bytes come: its own write meets the end."""
    stop = f"trainer.forward,rank=0,step={EVERY * nth + EVERY // 2}:wait"  # nothing else is saved meanwhile
    with small_store(faults=f"{point},rank=1,nth={nth}:wait;{stop}") as home:
        job = home.submit(JOB)
        home.wait_hit(point)
        home.wait_hit("trainer.forward")
        before = steps(home, job)
        assert len(before) == nth - 1 and int(plan(home, job)["refused"]) == 0
        foreign = home.dir / "checkpoints" / "foreign"
        fill(foreign)
        home.go(point)
        until(lambda: int(plan(home, job)["refused"]) == 1, 30, "the rank gave its save up")
        assert f"save of step {EVERY * nth} failed" in (home.home / f"jobs/{job}/g1/r1.log").read_text()
        home.go("trainer.forward")
        refused_and_training(home, job)
        assert steps(home, job) == before
        no_half_checkpoints(home, job)
        foreign.unlink()
        until(lambda: len(steps(home, job)) > len(before), 60, "it commits again")
        assert home.digest(job, 120) == quiet
        shown = home.show(job)
        assert shown["restarts"] == 0 and shown["reason"] == ""
        folders = {path.name for path in home.dir.glob("checkpoints/*/step-*")}
        assert folders == {Path(c["path"]).name for c in shown["checkpoints"]}


def test_the_job_itself_fills_the_store(home, quiet):
    job = home.submit(JOB, checkpoint__keep__last=100)
    refused_and_training(home, job)
    kept = sorted(steps(home, job))
    assert len(kept) >= 3, kept
    no_half_checkpoints(home, job)
    for step in kept[:-1]:
        home.cairn("ckpt", "rm", f"{job}@{step}")
    until(lambda: max(steps(home, job)) > kept[-1], 60, "it commits again")

    def over():
        """The last one needs room, too: whoever keeps a hundred has to make it."""
        shown = home.show(job)
        for ckpt in shown["checkpoints"][1:]:
            home.cairn("ckpt", "rm", f"{job}@{ckpt['step']}", check=False)
        return shown["state"] == "SUCCEEDED"
    until(over, 120, "the job ends")
    assert home.digest(job) == quiet


@pytest.mark.skipif("CAIRN_TEST_FULL" not in os.environ, reason="in a full run only")
def test_the_last_of_a_full_store_gives_way_to_the_next(home, quiet):
    """keep.last: 4 of 13 MB and the fifth beside them do not fit into 64 MB."""
    room = os.statvfs(home.dir / "checkpoints")
    assert room.f_bavail * room.f_frsize == SIZE_MB << 20
    filler = home.dir / "checkpoints" / "filler"
    filler.write_bytes(b"\0" * (10 << 20))
    job = home.submit(JOB, checkpoint__keep__last=4)
    assert home.digest(job, 120) == quiet
    assert 3 <= len(steps(home, job)) <= 4
    no_half_checkpoints(home, job)
    assert Path(filler).stat().st_size == 10 << 20
