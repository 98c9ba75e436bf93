"""Checkpoints in a folder that a file server keeps: what it does wrong ends in waiting or recovery, never in "damaged".

A sample of the cases without CAIRN_TEST_FULL.
"""
import errno
import os
import signal
import subprocess
from pathlib import Path

import pytest

from faulty import Mount, needed
from home import BIN, Home, alive, until
from test_suspect import can_mount, messages, node
from test_undying import slots_of, worker_of

full = pytest.mark.skipif(not os.environ.get("CAIRN_TEST_FULL"), reason="in a full run")
HANG_S = 60 if os.environ.get("CAIRN_TEST_FULL") else 4
LONG = {"train__duration": "400 steps", "checkpoint__every": "40 steps"}


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    with Home() as home:
        return home.run()


@pytest.fixture(scope="module", name="quiet_long")
def quiet_long_digest():
    with Home() as home:
        return home.run(**LONG)


def store_of(home, caches=0):
    return Mount(home.dir / "server", home.dir / "mounted", caches)


def submit(home, mount, **sets):
    return home.submit(checkpoint__store=f"{mount.at}/", **sets)


def some_thread(pid):
    """Whether one of a process's threads is there; its first may have ended."""
    return any(alive(f"{pid}/task/{task.name}") for task in Path(f"/proc/{pid}/task").glob("*"))


def never_damaged(home, job):
    for text in messages(home, job):
        assert not any(word in text for word in ("damage", "corrupt", "set aside")), text
    shown = home.show(job)
    assert all("bad-" not in checkpoint["path"] for checkpoint in shown["checkpoints"])


@needed
def test_lost_answers_of_link(quiet):
    with Home() as home, store_of(home) as mount:
        mount.set("link manifest.json lost 0", "link store-mark lost 0")
        job = submit(home, mount)
        assert home.digest(job) == quiet
        assert mount.hits("link"), "no link was answered wrongly"
        assert home.show(job)["restarts"] == 0
        never_damaged(home, job)


@needed
@pytest.mark.parametrize("error", [errno.ESTALE, pytest.param(errno.EREMOTEIO, marks=full),
                                   pytest.param(errno.EHOSTDOWN, marks=full)])
def test_a_restore_whose_reads_fail_is_made_again(quiet, error):
    with Home(faults="trainer.forward,rank=1,step=9:wait") as home, store_of(home) as mount:
        job = submit(home, mount)
        home.wait_hit("trainer.forward")
        mount.set(f"read shard-00000 once {error}")
        os.kill(worker_of(home, job, 1)["pid"], signal.SIGKILL)
        assert home.digest(job) == quiet
        assert mount.hits("read"), "no read failed"
        never_damaged(home, job)


@needed
def test_a_file_server_that_goes_away_is_waited_for(quiet_long):
    with Home(faults="trainer.forward,rank=1,step=60:wait") as home, store_of(home) as mount:
        job = submit(home, mount, **LONG)
        home.wait_hit("trainer.forward")
        mount.end(signal.SIGKILL)  # calls are ENOTCONN, then there is an empty folder
        os.kill(worker_of(home, job, 1)["pid"], signal.SIGKILL)
        until(lambda: str(mount.at) in home.show(job)["reason"], 30, "the reason names the store")
        mount.start()
        assert home.digest(job, seconds=120) == quiet_long
        never_damaged(home, job)


@needed
def test_training_goes_on_while_a_save_hangs(quiet_long):
    with Home() as home, store_of(home) as mount:  # four times its 20 s: who writes nothing for so long is ended
        mount.set(f"fsync shard-00001 hang {HANG_S}")
        job = submit(home, mount, **LONG)
        assert home.digest(job, seconds=120 + 8 * HANG_S) == quiet_long
        assert mount.hits("fsync")
        never_damaged(home, job)


# A file is locked while its fsync hangs: on one machine nobody can remove it then, so that the coordinator waits
# until it gives that call up, after two minutes.
@needed
@pytest.mark.parametrize("op, seconds", [("close", 90), pytest.param("fsync", 300, marks=full)])
def test_a_worker_that_hangs_in_the_store_is_unkillable_and_the_job_goes_on(quiet, op, seconds):
    with Home(env=Home.HANGS, slots=3) as home, store_of(home) as mount:
        mount.set(f"{op} g1/shard-00001 hang 600")
        job = submit(home, mount)
        until(lambda: mount.hits(op), 30, "a save that hangs")
        pid = worker_of(home, job, 1)["pid"]
        os.kill(pid, signal.SIGKILL)
        assert home.digest(job, seconds=seconds) == quiet  # in the other two slots
        assert some_thread(pid), "SIGKILL ended it"
        assert "SIGKILL doesn't end it" in home.cairn("why", job).stdout
        assert "1/3 (1 undying)" in slots_of(home)
        never_damaged(home, job)
        mount.set()  # the server answers at last
        until(lambda: not some_thread(pid), 10, "its end")


@needed
@full
@pytest.mark.parametrize("op", ["open", "create", "stat", "write", "fsync", "fsyncdir", "link", "unlink", "mkdir",
                                "readdir", "rmdir", "close"])
@pytest.mark.parametrize("error", [errno.ESTALE, errno.ENOTCONN, errno.ETIMEDOUT, errno.EIO])
def test_any_call_may_fail_once(quiet, op, error):
    with Home() as home, store_of(home) as mount:
        mount.set(f"{op} step- once {error}")
        job = submit(home, mount)
        assert home.digest(job) == quiet
        assert mount.hits(op), "no call failed"
        never_damaged(home, job)


@needed
def test_a_node_that_may_not_write_is_named_and_left(quiet_long):
    with Home(slots=1) as home, store_of(home) as mount:
        if not can_mount(home):
            pytest.skip("no mount namespace of our own")
        with Mount(mount.backing, home.dir / "read-only") as view:
            view.set(f"create .probe errno {errno.EACCES}")
            with node(home, "another", 2, (mount.at, view.at)):
                until(lambda: home.cairn("node", "ls").stdout.count("ready") >= 2, 20, "two nodes")
                job = submit(home, mount, **LONG)
                until(lambda: any("node another, uid 0, may not write to" in text for text in messages(home, job)),
                      30, "it is named")
                assert f"may not write to {mount.at}" in home.cairn("why", job).stdout
                with node(home, "third", 3):
                    assert home.digest(job) == quiet_long
                never_damaged(home, job)


@needed
def test_what_a_node_remembers_as_missing_is_looked_for_again(quiet_long):
    with Home(slots=1, faults="trainer.forward,rank=0,step=60:wait") as home, store_of(home) as mount:
        if not can_mount(home):
            pytest.skip("no mount namespace of our own")
        with Mount(mount.backing, home.dir / "cached", caches=6) as view, \
                node(home, "another", 2, (mount.at, view.at)):
            until(lambda: home.cairn("node", "ls").stdout.count("ready") >= 2, 20, "two nodes")
            job = submit(home, mount, **LONG)
            home.wait_hit("trainer.forward")
            home.cairn("pause", job)
            home.go("trainer.forward")
            newest = max(home.wait_state(job, "PAUSED")["checkpoints"], key=lambda c: int(c["step"]))
            manifest = Path(newest["path"]).relative_to(mount.at) / "manifest.json"
            (mount.backing / manifest).rename(mount.backing / "aside")
            assert not (view.at / manifest).exists()
            (mount.backing / "aside").rename(mount.backing / manifest)
            assert not (view.at / manifest).exists(), "nothing is remembered: the test tests nothing"
            home.cairn("resume", job)
            assert home.digest(job) == quiet_long
            assert {worker["node"] for worker in home.show(job)["workers"]} == {"another"}
            assert not any("cannot be restored" in text for text in messages(home, job)), messages(home, job)
            never_damaged(home, job)


def test_a_home_on_nfs_is_refused_with_the_way_out():
    with Home() as home:
        env = {**home.env, "CAIRN_HOME": f"{home.dir}/another", "CAIRN_FAULT": "home.nfs:eio"}
        done = subprocess.run([BIN / "cairnd"], env=env, capture_output=True, text=True, timeout=30, check=False)
        said = done.stdout + done.stderr
        assert done.returncode != 0
        assert "is on NFS" in said and "Set CAIRN_HOME" in said, said
        assert not list(Path(f"{home.dir}/another/state").iterdir())
