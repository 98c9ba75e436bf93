"""The journal is lost or can't be read: nothing is guessed, and `cairnd --recover` makes it anew from checkpoints."""
import hashlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time

import pytest
from home import BIN, Home, alive, until

LONG = {"train__duration": "400 steps", "checkpoint__every": "20 steps", "checkpoint__keep__last": "2"}
HELD = "trainer.forward,rank=0,step=110:wait"  # also where a save or two were dropped
PATIENT = {"CAIRN_HANG_MS": "60000"}  # what is held is held
GAP = 1000000


@pytest.fixture(scope="module", name="quiet")
def fixture_quiet():
    with Home() as home:
        return home.run(**LONG)


def journal(home):
    return home.home / "state" / "cairnd.db"


def recover(home, *stores, check=True):
    done = subprocess.run([BIN / "cairnd", "--recover", *map(str, stores)], env=home.env, cwd=home.dir,
                          capture_output=True, text=True, timeout=60, check=False)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done


def contents(home):
    """Of the state folder; SQLite's index of a WAL isn't content."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in (home.home / "state").iterdir() if not path.name.endswith("-shm")}


def highest_generation(home):
    names = [path.name for path in (home.dir / "checkpoints").glob("*/*step-*")]
    return max(int(name.split(".g")[1].split(".")[0]) for name in names)


def listed(home, job):
    """`ckpt ls`, without what only the journal knew."""
    rows = json.loads(home.cairn("ckpt", "ls", job, "-o", "json").stdout)
    known = ("step", "generation", "path", "bytes", "raw_bytes", "digest", "shards", "status", "parent_step",
             "parent_generation")
    return [{key: row[key] for key in known} for row in rows]


def train_to_checkpoints(home):
    job = home.submit(**LONG)
    home.wait_hit("trainer.forward")
    folder = home.dir / "checkpoints" / job

    def rests():
        """Nothing is being saved or deleted."""
        before = listed(home, job)
        time.sleep(1)
        return len(before) >= 2 and len(before) == len(list(folder.glob("step-*"))) and before == listed(home, job)
    until(rests, 30, "two checkpoints or more, and no folder besides")
    return job


# What happens to a journal, its SQLite file and its WAL; and what is said about it.

def lose(path):
    path.unlink()
    return "missing, but this home isn't new"


def lose_all_but_logs(path):
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    return "jobs/j-"


def empty(path):
    path.write_bytes(b"")
    return "empty"


def put_into_file(path):
    """What is in the WAL goes into the file, as with a coordinator that ended in order."""
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    base.close()
    return path.stat().st_size


def cut_short(path):
    size = put_into_file(path)
    with open(path, "r+b") as file:
        file.truncate(size // 2 // 4096 * 4096)
    return "malformed"


def garble_head(path):
    with open(path, "r+b") as file:
        file.write(os.urandom(4096))
    return "no SQLite database"


def garble_middle(path):
    size = put_into_file(path)
    with open(path, "r+b") as file:
        for page in range(3, size // 4096):
            file.seek(page * 4096)
            file.write(os.urandom(512))
    return "malformed|damaged"


def write_text(path):
    path.write_text("not a database " * 100, encoding="utf-8")
    return "no SQLite database"


def write_other(path):
    path.unlink()
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE songs(name TEXT)")
    base.close()
    return "another program's"


def make_newer(path):
    put_into_file(path)
    with sqlite3.connect(path) as base:
        base.execute("PRAGMA user_version=1000")
    base.close()
    return "format 1000"


@pytest.mark.parametrize("harm", [lose, lose_all_but_logs, empty, cut_short, garble_head, garble_middle, write_text,
                                  write_other, make_newer])
def test_it_is_refused_and_nothing_changes_then_made_anew_and_the_job_ends_with_the_same_bits(harm, quiet):
    with Home(env=PATIENT, faults=HELD) as home:
        job = train_to_checkpoints(home)
        before = listed(home, job)
        home.end_everything()
        said = harm(journal(home)).split("|")
        was = contents(home)
        done = home.cairn("up", "--slots", "4", check=False)
        assert done.returncode == 4, done.stderr
        assert str(journal(home)) in done.stderr and any(text in done.stderr for text in said), done.stderr
        assert "cairnd --recover --state" in done.stderr and "--backup" in done.stderr
        assert home.pids() == {}
        assert {name: digest for name, digest in contents(home).items() if name != "cairnd.db.lock"} == \
            {name: digest for name, digest in was.items() if name != "cairnd.db.lock"}

        told = recover(home, "checkpoints").stdout
        row = next(line.split() for line in told.splitlines() if line.startswith(job))
        assert row[1:5] == ["tiny", "PAUSED", str(max(int(one["step"]) for one in before)), str(len(before))], told
        aside = list((home.home / "state").glob("cairnd.db.lost-*"))
        if "cairnd.db" in was:
            assert any(hashlib.sha256(path.read_bytes()).hexdigest() == was["cairnd.db"] for path in aside)
        assert "good journal" in recover(home, "checkpoints", check=False).stderr

        top = highest_generation(home)
        home.cairn("up", "--slots", "4")
        shown = home.show(job)
        assert shown["state"] == "PAUSED" and "journal was lost" in shown["reason"]
        assert listed(home, job) == before
        home.go("trainer.forward")
        home.cairn("resume", job)
        assert home.digest(job, seconds=120) == quiet
        assert int(home.show(job)["generation"]) > top + GAP


def test_workers_of_before_are_ended_and_no_generation_comes_twice(quiet):
    with Home(env=PATIENT, faults=HELD) as home:
        job = train_to_checkpoints(home)
        generations = [highest_generation(home)]
        for _ in range(2):  # the second loss: of a generation that left no folder
            before = set(home.pids("cairn-trainer"))
            assert before
            for program in ("cairn", "cairnd"):  # the supervisor first
                home.kill(program)
            until(lambda: not home.pids("cairnd"), 10, "the coordinator is gone")
            for path in (home.home / "state").glob("cairnd.db*"):
                path.unlink()
            recover(home, "checkpoints")
            home.cairn("up", "--slots", "4")
            until(lambda b=before: not any(alive(pid) for pid in b), 30, "the trainers of before end")
            assert home.show(job)["state"] == "PAUSED"
            (home.faults / "trainer.forward.hit").unlink(missing_ok=True)
            home.cairn("resume", job)
            home.wait_state(job, "RUNNING")
            assert len(home.show(job)["workers"]) == len(before)
            generations.append(int(home.show(job)["generation"]))
        assert generations[0] + GAP < generations[1] and generations[1] + GAP - 1 < generations[2], generations
        home.go("trainer.forward")
        assert home.digest(job, seconds=120) == quiet


def test_a_job_whose_last_step_is_there_has_succeeded_and_others_are_told_with_the_reason():
    with Home() as home:
        done_job = home.submit()
        digest = home.digest(done_job)
        twice = home.submit()
        home.digest(twice)
        never = home.submit()
        home.digest(never)
        bad = home.submit()
        home.digest(bad)
        partly = home.submit()
        home.digest(partly)
        before = listed(home, done_job)
        home.cairn("down")
        store = home.dir / "checkpoints"
        shutil.copytree(store / twice, home.dir / "others" / twice)
        for path in store.glob(f"{never}/*/manifest.json"):
            path.unlink()
        for path in store.glob(f"{bad}/*/manifest.json"):
            path.write_text("{}", encoding="utf-8")
        newest = sorted(store.glob(f"{partly}/step-*"))[-1]
        (newest / "shard-00001-of-00002.cairn").unlink()
        (store / "notes").mkdir()
        journal(home).unlink()

        told = recover(home, "checkpoints", home.dir / "others").stdout
        made, left = told.split("Not made anew:")
        rows = {line.split()[0]: line.split()[2] for line in made.splitlines() if line.startswith("j-")}
        assert rows == {done_job: "SUCCEEDED", partly: "PAUSED"}, told
        assert "shard-00001-of-00002.cairn is missing" in made
        assert left.count(f"{twice}: two of the stores have this job") == 2
        assert f"{never}: no checkpoint was ever finished" in left
        assert f"{bad}: none of its checkpoints can be used" in left
        assert "notes: not the name of a job" in left
        home.cairn("up", "--slots", "4")
        shown = home.show(done_job)
        assert shown["state"] == "SUCCEEDED" and shown["final_digest"] == digest
        assert listed(home, done_job) == before
        home.cairn("resume", partly)
        assert home.digest(partly) == digest


def test_a_store_that_was_moved_is_where_the_job_goes_on():
    with Home() as home:
        job = home.submit()
        digest = home.digest(job)
        home.cairn("down")
        newest = sorted((home.dir / "checkpoints" / job).glob("step-*"))[-1]
        shutil.rmtree(newest)
        (home.dir / "checkpoints").rename(home.dir / "moved")
        journal(home).unlink()
        told = recover(home, "moved/").stdout
        assert f"its checkpoints were in {home.dir}/checkpoints" in told
        home.cairn("up", "--slots", "4")
        home.cairn("resume", job)
        assert home.digest(job) == digest
        assert not (home.dir / "checkpoints").exists()


def test_what_recover_refuses():
    with Home() as home:
        job = home.submit()
        home.digest(job)
        assert "serves this home" in recover(home, "checkpoints", check=False).stderr
        home.cairn("down")
        was = contents(home)
        assert "good journal" in recover(home, "checkpoints", check=False).stderr
        assert contents(home) == was
        journal(home).unlink()
        was = contents(home)
        for stores, said in ((["nowhere"], "no such folder"), ([f"checkpoints/{job}"], "the folder of one job"),
                             (["home"], "no job"), ([], "takes the stores")):
            done = recover(home, *stores, check=False)
            assert done.returncode != 0 and said in done.stderr, done.stderr
        assert {k: v for k, v in contents(home).items() if k != "cairnd.db.lock"} == \
            {k: v for k, v in was.items() if k != "cairnd.db.lock"}
        recover(home, "checkpoints", "checkpoints/", home.dir / "checkpoints")  # one store
        home.cairn("up", "--slots", "4")
        assert home.show(job)["state"] == "SUCCEEDED"


def test_a_supervisor_does_not_start_a_coordinator_again_that_has_no_journal():
    with Home(env=PATIENT, faults=HELD) as home:
        train_to_checkpoints(home)
        trainers = set(home.pids("cairn-trainer"))
        home.kill("cairnd", signal.SIGSTOP)
        journal(home).rename(home.dir / "elsewhere.db")
        home.kill("cairnd")
        until(lambda: not home.pids("cairn") and not home.pids("cairnd"), 20, "the supervisor gives up")
        assert trainers == set(home.pids("cairn-trainer"))
        log = (home.home / "log" / "supervisor.log").read_text(encoding="utf-8")
        assert "is not started again" in log
        assert "is missing" in home.cairn("up", "--slots", "4", check=False).stderr
        (home.dir / "elsewhere.db").rename(journal(home))  # with its WAL: nothing was lost
        home.cairn("up", "--slots", "4")
        home.go("trainer.forward")
        until(lambda: not home.pids("cairn-trainer"), 120, "it ends")


def test_a_link_that_leads_nowhere_is_no_new_home():
    home = Home()
    try:
        journal(home).parent.mkdir(parents=True)
        journal(home).symlink_to(home.dir / "not mounted" / "cairnd.db")
        done = home.cairn("up", "--slots", "4", check=False)
        assert done.returncode == 4 and "a link" in done.stderr, done.stderr
        assert home.pids() == {} and journal(home).is_symlink()
    finally:
        home.end_everything()
        shutil.rmtree(home.dir, ignore_errors=True)
