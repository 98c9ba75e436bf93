"""`cairn logs`: which lines, in words and as they were written, and how far the job is."""
import json
import os
import re
import shutil
import signal
import subprocess
import time

import pytest

from home import BIN, Home, until


@pytest.fixture(scope="module", name="home")
def home_with_a_job_that_lost_a_worker():
    with Home(faults="trainer.reduce,rank=1,step=30,generation=1:kill") as home:
        home.job = home.submit(train__duration="60 steps", eval__every="20 steps")
        home.digest(home.job)
        yield home


def lines_of(home, *more):
    return home.cairn("logs", home.job, *more).stdout.splitlines()


def test_json_lines_are_what_the_workers_wrote(home):
    entries = [json.loads(line) for line in lines_of(home, "-o", "jsonl")]
    assert entries and all(entry["program"] == "cairn-trainer" and entry["job"] == home.job for entry in entries)
    assert {"ts", "level", "rank", "generation", "msg"} <= set(entries[0])
    assert len(entries) == len(lines_of(home))


def test_levels_patterns_and_times_choose_lines(home):
    everything = lines_of(home)
    errors = lines_of(home, "--level", "error")
    assert 0 < len(errors) < len(everything) and all("  error: " in line for line in errors)
    assert lines_of(home, "--level", "info") == everything and set(errors) <= set(lines_of(home, "--level", "warn"))
    found = lines_of(home, "--grep", "training from|^done")
    assert found and all(re.search("training from|  done", line) for line in found)
    assert found == [line for line in everything if line in found]
    assert lines_of(home, "--since", "1h") == everything
    until(lambda: not lines_of(home, "--since", "1s"), 20, "all are older than that")
    for wrong, what in ((("--level", "loud"), "--level takes"), (("--since", "soon"), "--since takes"),
                        (("--grep", "("), "--grep '('")):
        done = home.cairn("logs", home.job, *wrong, check=False)
        assert done.returncode == 2 and what in done.stderr, done


def test_following_shows_how_far_it_is():
    with Home() as home:
        job = home.submit(train__duration="1000000 steps", eval__every="1000 steps", checkpoint__every="1000000 steps")
        until(lambda: home.show(job)["step"] > 5, 20, "it trains")
        def follow(*more, into=subprocess.PIPE):
            return subprocess.Popen([BIN / "cairn", "logs", job, "-f", *more], env=home.env, stdout=into, text=True)
        with open(home.dir / "quiet", "w+", encoding="utf-8") as file, follow() as seen, \
                follow("-q", into=file) as quiet:
            progress = r"--  [-\d]+T\d\d:\d\d:\d\d\.\d\d\dZ  step (\d+)  loss [\d.e+-]+( *evaluation: loss [\d.e+-]+, accuracy [\d.]+)?\n"
            evaluated = 0
            while evaluated < 2:
                line = seen.stdout.readline()
                found = re.fullmatch(progress, line)
                assert found or re.match(r"r\d  ", line), line
                evaluated += bool(found and found.group(2))
            reached, newest, until_s = home.show(job)["step"], 0, time.monotonic() + 30
            while newest < reached:  # what it shows is no old news
                found = re.fullmatch(progress, seen.stdout.readline())
                newest = int(found.group(1)) if found else newest
                assert time.monotonic() < until_s, (newest, reached)
            home.cairn("kill", job)
            seen.stdout.read()
            assert seen.wait(20) == quiet.wait(20) == 0
            file.seek(0)
            said = file.read()
            assert "training from" in said and "--  " not in said
        with follow() as left:
            assert "training from" in left.stdout.read() and left.wait(20) == 0  # it is over


def test_ctrl_c_leaves(home):
    with Home() as other:
        job = other.submit(train__duration="1000000 steps")
        until(lambda: other.show(job)["step"] > 5, 20, "it trains")
        with subprocess.Popen([BIN / "cairn", "logs", job, "-f"], env=other.env, stdout=subprocess.PIPE) as follow:
            assert follow.stdout.readline()
            os.kill(follow.pid, signal.SIGINT)
            assert follow.wait(20) == 130
    assert lines_of(home)


def put_lines(path, count):
    with open(path, "a", encoding="utf-8") as log:
        for i in range(count):
            log.write(f"chatter {i:08}\n")


def test_logs_are_turned_over():
    """Those of programs and of workers: bounded, and who follows one goes on."""
    with Home(env={"CAIRN_LOG_BYTES": "30000"}) as home:
        job = home.submit(train__duration="1000000 steps")
        until(lambda: home.show(job)["step"] > 5, 20, "it trains")
        log = home.home / "jobs" / job / "g1" / "r0.log"
        with subprocess.Popen([BIN / "cairn", "logs", job, "-f", "-q", "--rank", "0"], env=home.env, stdout=subprocess.PIPE,
                              text=True) as follow:
            put_lines(log, 2000)
            while "chatter 00001999" not in follow.stdout.readline():
                pass
            until(lambda: "[cairn: this log was too long" in log.read_text(), 30, "it begins anew")
            with open(log, "a", encoding="utf-8") as more:
                more.write("after that\n")
            while "this log was too long" not in follow.stdout.readline():
                pass
            while "after that" not in follow.stdout.readline():
                pass
            follow.kill()
        assert "chatter 00001999" in (log.parent / "r0.log.1").read_text()
        for name in ("cairnd", "agent", "observer", "supervisor"):
            path = home.home / "log" / f"{name}.log"
            put_lines(path, 2000)
            until(lambda path=path: path.stat().st_size < 30000, 20, f"{path} is emptied")
            kept = path.parent / f"{path.name}.1"
            assert "chatter 00001999" in kept.read_text() and kept.stat().st_mode & 0o777 == 0o600
        home.kill("cairnd")  # programs go on in their files
        until(lambda: "started cairnd" in (home.home / "log" / "supervisor.log").read_text(), 20, "it is started")


def test_a_refusal_is_told_however_long_the_log_is():
    home = Home()
    try:
        for name in ("state", "log"):
            (home.home / name).mkdir(parents=True)
        (home.home / "state" / "cairnd.db").write_text("no journal " * 1000, encoding="ascii")
        with open(home.home / "log" / "cairnd.log", "wb") as log:
            log.truncate(100 << 20)  # as a version before left it
        done = home.cairn("up", "--slots", "1", check=False)
        assert done.returncode == 4 and "cairnd.db" in done.stderr and "can't start" not in done.stderr, done
    finally:
        home.end_everything()
        shutil.rmtree(home.dir, ignore_errors=True)
