"""`cairn metrics`: a row for each step, as CSV, JSON lines and a table, whatever happened to the job."""
import csv
import io
import json
import os
import signal
import subprocess

import pytest

from home import BIN, Home, until

HEADER = ("step,generation,loss,lr,grad_norm,eval_loss,eval_accuracy,samples_per_second,seconds,epoch,unix_seconds,"
          "data_seconds,forward_seconds,backward_seconds,communication_seconds,optimizer_seconds,snapshot_seconds")
STEPS = 120


@pytest.fixture(scope="module", name="home")
def home_with_a_job_that_went_back():
    """Twice all of its workers died, and nothing but checkpoints was left."""
    with Home(env=Home.RESTART, faults="trainer.reduce,step=50,generation=1:kill;"
              "trainer.reduce,step=70,generation=2:kill") as home:
        home.job = home.submit(train__duration=f"{STEPS} steps", eval__every="20 steps", checkpoint__every="30 steps",
                               checkpoint__memory_every="none")
        home.digest(home.job)
        yield home


def rows_of(home, *more):
    done = home.cairn("metrics", home.job, "-o", "csv", *more)
    assert done.stdout.splitlines()[0] == HEADER
    return list(csv.DictReader(io.StringIO(done.stdout)))


def test_csv_has_one_row_for_each_step(home):
    rows = rows_of(home)
    assert [int(row["step"]) for row in rows] == list(range(1, STEPS + 1))
    generations = [int(row["generation"]) for row in rows]
    assert generations == sorted(generations) and generations[-1] == home.show(home.job)["generation"] > 1
    for row in rows:
        evaluated = int(row["step"]) % 20 == 0
        assert (row["eval_loss"] != "") == (row["eval_accuracy"] != "") == evaluated
        assert 0 < float(row["loss"]) < 10 and float(row["seconds"]) > 0 and float(row["samples_per_second"]) > 0
        assert float(row["epoch"]) == int(row["step"]) / 16
        parts = sum(float(row[name]) for name in row if name.endswith("_seconds") and name != "unix_seconds")
        assert parts > 0


def test_json_lines_have_the_same_names_and_values(home):
    lines = [json.loads(line) for line in home.cairn("metrics", home.job, "-o", "jsonl").stdout.splitlines()]
    for line, row in zip(lines, rows_of(home), strict=True):
        assert list(line) == HEADER.split(",")
        for name, value in line.items():
            assert (row[name] == "") if value is None else float(row[name]) == value


def test_since_a_step_or_a_while(home):
    assert [int(row["step"]) for row in rows_of(home, "--since", str(STEPS - 3))] == [STEPS - 2, STEPS - 1, STEPS]
    assert rows_of(home, "--since", str(STEPS)) == []
    assert len(rows_of(home, "--since", "1h")) == STEPS and len(rows_of(home, "--since", "0")) == STEPS
    until(lambda: not rows_of(home, "--since", "1s"), 20, "all are older than that")
    done = home.cairn("metrics", home.job, "--since", "soon", check=False)
    assert done.returncode == 2 and "--since takes a step, or a time" in done.stderr


def test_a_table_for_people(home):
    head, *lines = home.cairn("metrics", home.job, "--since", "117").stdout.splitlines()
    assert head.split()[:5] == ["STEP", "ATTEMPT", "LOSS", "LR", "NORM"]
    assert [line.split()[0] for line in lines] == ["118", "119", "120"] and lines[0].split()[5] == "-"
    done = home.cairn("ps", "-o", "csv", check=False)
    assert done.returncode == 2 and "table, wide, json, jsonl or name" in done.stderr


def test_following_ends_with_the_job_or_with_ctrl_c():
    with Home() as home:
        job = home.submit(train__duration="1000000 steps")
        until(lambda: home.show(job)["step"] > 5, 20, "it trains")
        with subprocess.Popen([BIN / "cairn", "metrics", job, "-f", "-o", "jsonl"], env=home.env,
                              stdout=subprocess.PIPE, text=True) as follow, \
                subprocess.Popen([BIN / "cairn", "metrics", job, "-f"], env=home.env, stdout=subprocess.PIPE) as left:
            assert left.stdout.readline()
            seen = [json.loads(follow.stdout.readline())["step"] for _ in range(20)]
            assert seen == list(range(1, 21))
            os.kill(left.pid, signal.SIGINT)
            assert left.wait(20) == 130
            home.cairn("stop", job)
            last = [json.loads(line)["step"] for line in follow.stdout][-1]
            assert follow.wait(20) == 0 and last == home.show(job)["step"]
