"""A real job that goes back again and again, and an observer that dies meanwhile: what TensorBoard reads in the end is
what `cairn metrics` has, each step once."""
import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "e2e")]
from home import Home, until  # noqa: E402
from library import PYTHON, missing  # noqa: E402

KILLS = 20 if os.environ.get("CAIRN_TEST_FULL") else 6
COLUMNS = {"train/loss": "loss", "optim/lr": "lr", "val/loss": "eval_loss", "time/step": "seconds"}

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def kill_workers(home, job):
    """All at once, and what they held in memory isn't used: it goes back to its checkpoint."""
    generation = home.show(job)["generation"]
    for worker in home.show(job)["workers"]:
        try:
            os.kill(worker["pid"], signal.SIGKILL)
        except ProcessLookupError:
            pass
    until(lambda: (home.try_show(job) or {"generation": 0})["generation"] > generation, 60, "the next generation")


def saved_by(home, job, generation):
    return any(int(ckpt["generation"]) == generation for ckpt in home.show(job)["checkpoints"])


def written(home):
    """{tag: [[step, value], ...]} of its event files."""
    folder, = home.home.glob("tensorboard/*")
    done = subprocess.run([PYTHON, HERE / "read_back.py", folder], check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)["scalars"]


def is_written_beyond_a_checkpoint(home, job):
    shown = home.show(job)
    saved = max(int(ckpt["step"]) for ckpt in shown["checkpoints"])
    return saved + 5 < written(home)["train/loss"][-1][0] and shown["step"] < saved + 500


def test_a_job_that_was_killed_has_one_clean_curve(tmp_path):
    chance = random.Random(3)
    with Home(env=Home.RESTART, faults="trainer.refresh:slow10") as home:
        job = home.submit(train__duration="100000000 steps", eval__every="50 steps", checkpoint__every="800 steps",
                          checkpoint__memory_every="none")
        for kill in range(KILLS):
            step = home.show(job)["step"]
            until(lambda: home.show(job)["step"] > step + chance.randrange(100, 300), 60, "steps")
            time.sleep(chance.random())
            if kill % 2 == 0:  # rows of its own stay: the next one begins where it saved
                until(lambda: saved_by(home, job, home.show(job)["generation"]), 60, "a checkpoint of this generation")
            if kill == 3:  # it doesn't see the next generation, which makes rows anew that are written
                until(lambda: is_written_beyond_a_checkpoint(home, job), 60, "rows")
                observers = home.pids("cairn-observer")
                home.kill("cairn-observer", signal.SIGSTOP)
            kill_workers(home, job)
            if kill == 1:
                home.kill("cairn-observer")
            if kill == 4:
                assert home.pids("cairn-observer") == observers
                home.kill("cairn-observer", signal.SIGCONT)
        step = home.show(job)["step"]
        until(lambda: home.show(job)["step"] > step + 200, 60, "steps")
        home.cairn("stop", job)
        home.wait_state(job, "STOPPED")
        rows = list(csv.DictReader(io.StringIO(home.cairn("metrics", job, "-o", "csv").stdout)))
        assert len({row["generation"] for row in rows}) > KILLS / 2
        folder, = home.home.glob("tensorboard/*")
        assert folder.name == f"tiny-{job}"
        until(lambda: len(written(home)["train/loss"]) == len(rows), 120, "all rows")
        found = written(home)
        for tag, column in COLUMNS.items():
            known = [row for row in rows if row[column] != ""]
            assert [step for step, _ in found[tag]] == [int(row["step"]) for row in known], tag
            assert [value for _, value in found[tag]] == pytest.approx([float(row[column]) for row in known], rel=1e-6)
