"""A store that all machines see, and that misbehaves on one of them (tests/e2e/faulty_fs.c): recovery, never "damaged".

Below it is a folder of the host, or in a full run a real NFS server too. Each machine remembers what it saw for 30 s. A
sample of the cases without CAIRN_TEST_FULL.
"""
import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

import nfs
from fleet import Fleet, until
from rooms import missing

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "e2e"))
import faulty  # pylint: disable=wrong-import-position
from test_shared_store import some_thread  # pylint: disable=wrong-import-position

REASON = missing() or faulty.missing()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON or "")
FULL = bool(os.environ.get("CAIRN_TEST_FULL"))
full = pytest.mark.skipif(not FULL, reason="in a full run")
NODES, STEPS, EVERY = 3, 2000, 400
STORE = "/run/faulty"


class Store:
    """What one machine sees of the store, by the rules that are set there."""

    def __init__(self, fleet, number, backing, caches):
        self.rules = fleet.dir / f"rules-{number}"
        self.set()
        machine = fleet.room[number]
        machine.run("mkdir", "-p", STORE)
        options = ",".join(f"{cache}_timeout={caches}" for cache in ("attr", "entry", "negative"))
        machine.popen("/run/shared/faulty_fs", backing, STORE, f"/run/shared/{self.rules.name}", "-o",
                      f"{options},max_threads=64", stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(lambda: subprocess.run(machine.command("mountpoint", "-q", STORE), check=False).returncode == 0, 10, "a mount")

    def set(self, *rules):
        new = self.rules.with_suffix(".new")
        new.write_text("".join(f"{rule}\n" for rule in rules), encoding="utf-8")
        new.rename(self.rules)

    def hits(self, text):
        hits = self.rules.with_name(f"{self.rules.name}.hits")
        return hits.exists() and [line for line in hits.read_text(encoding="utf-8").splitlines() if text in line]


@contextmanager
def fleet_on(below):
    """The fleet; its stores, by machine."""
    stores, caches = {}, nfs.CACHE_S if below == "folder" else 0

    def begin(fleet):
        if below != "folder":
            nfs.on_nfs(int(below[-1]))(fleet)
        shutil.copy(faulty.PROGRAM, fleet.dir / "faulty_fs")
        for number in range(1, 2 + NODES):
            stores[number] = Store(fleet, number, "/run/shared/checkpoints" if below == "folder" else nfs.STORE, caches)
    with Fleet(NODES, more=0 if below == "folder" else 1, begin=begin) as fleet:
        yield fleet, stores


def submit(fleet, **sets):
    return fleet.submit(2, STEPS, EVERY, checkpoint__store=f"{STORE}/", **sets)


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    with Fleet(1, slots=2) as fleet:
        return fleet.digest(fleet.submit(2, STEPS, EVERY))


def below():
    return ["folder", *[pytest.param(server, marks=pytest.mark.skipif(nfs.missing() is not None or not FULL,
                                                                      reason=nfs.missing() or "in a full run"))
                        for server in ("nfs3", "nfs4")]]


def ends_well(fleet, job, quiet, seconds=120):
    begin = time.monotonic()
    assert fleet.digest(job, seconds) == quiet
    shown = fleet.show(job)
    for event in shown["events"]:
        assert not any(word in event["message"] for word in ("damage", "corrupt", "set aside")), event["message"]
    print(f"ended {time.monotonic() - begin:.1f} s later, restarts {shown['restarts']}, load {os.getloadavg()[0]:.1f}")
    return shown


@pytest.mark.parametrize("store", below())
def test_answers_of_link_that_are_lost_change_nothing(quiet, store):
    with fleet_on(store) as (fleet, stores):
        for seen in stores.values():
            seen.set("link manifest.json lost 0", "link store-mark lost 0")
        job = submit(fleet)
        assert ends_well(fleet, job, quiet)["restarts"] == 0
        assert stores[1].hits("link"), "no answer was lost"


@full
@pytest.mark.parametrize("store", below())
@pytest.mark.parametrize("error, words", [(errno.ESTALE, "stale handle"), (errno.EREMOTEIO, "the file server is away")])
def test_reads_that_fail_on_every_worker_s_machine_are_no_damage(quiet, store, error, words):
    with fleet_on(store) as (fleet, stores):
        job = submit(fleet)
        fleet.wait_step(job, EVERY + 100)
        for number in range(2, 2 + NODES):  # a new worker reads all of its state from the store
            stores[number].set(f"read shard-0000 errno {error}")
            fleet.room[number].run("sh", "-c", "rm -rf /dev/shm/cairn/*")
        for number in fleet.nodes_of(job):
            fleet.room[number].signal(signal.SIGKILL, "cairn-trainer")
        until(lambda: any(words in event["message"] for event in fleet.show(job)["events"]), 60, "the store's trouble is told")
        for seen in stores.values():
            seen.set()
        ends_well(fleet, job, quiet)
        assert any(seen.hits("read") for seen in stores.values()), "no read failed"


@full
@pytest.mark.parametrize("store", below())
def test_a_save_that_hangs_for_60_s_on_one_machine_is_waited_for(quiet, store):
    with fleet_on(store) as (fleet, stores):
        for seen in stores.values():
            seen.set(f"fsync step-{2 * EVERY:012}.g1/shard-00001 hang 60")
        job = submit(fleet)
        ends_well(fleet, job, quiet, 600)
        assert any(seen.hits("fsync") for seen in stores.values())


@pytest.mark.parametrize("store", below())
def test_a_worker_that_hangs_in_the_store_is_unkillable_and_the_job_goes_on_elsewhere(quiet, store):
    with fleet_on(store) as (fleet, stores):
        for seen in stores.values():
            seen.set("close g1/shard-00001 hang 600")
        job = submit(fleet)
        until(lambda: any(seen.hits("close") for seen in stores.values()), 30, "a save that hangs")
        number = fleet.nodes_of(job)[1]
        pid = next(iter(fleet.room[number].pids("cairn-trainer")))
        os.kill(pid, signal.SIGKILL)
        ends_well(fleet, job, quiet)  # on the other two
        assert some_thread(pid), "SIGKILL ended it"
        assert number not in fleet.nodes_of(job)
        assert "SIGKILL doesn't end it" in fleet.cairn("why", job).stdout
        stores[number].set()  # the server answers at last
        until(lambda: not some_thread(pid), 15, "its end")
