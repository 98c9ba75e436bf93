"""What a user meets: exit codes, messages, queueing, and mistakes that no retry can mend."""
import gzip
import json
import os
import re
import signal
import struct
from contextlib import contextmanager

import pytest

from elastic import workers
from home import TINY, Home, until


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home(slots=4) as home:
        yield home


def idx_job(home, labels):
    """A job on 48 black images with these labels."""
    images = home.dir / "images.gz"
    with gzip.open(images, "wb") as file:
        file.write(struct.pack(">IIII", 0x803, len(labels), 28, 28) + bytes(784 * len(labels)))
    with gzip.open(home.dir / "labels.gz", "wb") as file:
        file.write(struct.pack(">II", 0x801, len(labels)) + bytes(labels))
    return TINY.replace("train: {format: synthetic, samples: 384}",
                        "train: {format: idx, images: images.gz, labels: labels.gz}")


@contextmanager
def queued(home):
    """All slots are taken meanwhile: what is submitted waits."""
    long = home.submit(train__duration="1000000 steps", workers__count=4)
    home.wait_state(long, "RUNNING")
    yield
    home.cairn("kill", long, "--wait", check=False)


def test_a_missing_file_fails_the_job_at_once_with_its_name(home):
    text = idx_job(home, [1, 2, 3, 9] * 12).replace("images.gz", "no-such.gz")
    (home.dir / "images.gz").rename(home.dir / "no-such.gz")
    with queued(home):
        job = home.submit(text)
        (home.dir / "no-such.gz").unlink()
    shown = home.wait_state(job, "FAILED", seconds=20)
    assert "no-such.gz" in shown["reason"]
    assert shown["restarts"] == 0


def test_a_label_out_of_range_is_told_before_anything_is_queued(home):
    (home.dir / "bad.yaml").write_text(idx_job(home, [1, 2, 3, 99] * 12), encoding="utf-8")
    before = home.cairn("ps").stdout
    done = home.cairn("submit", "bad.yaml", check=False)
    assert done.returncode == 2 and "label 99 of sample 3" in done.stderr and "nothing was submitted" in done.stderr
    again = home.cairn("submit", "bad.yaml", "--set", "data.train.images=labels.gz", "--set", "model.classes=100", check=False)
    assert again.returncode == 2 and "swapped" in again.stderr
    assert home.cairn("ps").stdout.count("\n") == before.count("\n")


def test_a_label_out_of_range_fails_the_job_at_once(home):
    job = home.submit_unseen(idx_job(home, [1, 2, 3, 99] * 12))
    shown = home.wait_state(job, "FAILED", seconds=20)
    assert "99" in shown["reason"] and "label" in shown["reason"]
    assert shown["restarts"] == 0


def test_a_learning_rate_far_too_high_is_told_as_divergence(home):
    job = home.submit(train__optimizer__lr=1000, train__optimizer__weight_decay=1, train__duration="400 steps")
    shown = home.wait_state(job, "FAILED", seconds=60)
    assert "diverged since step" in shown["reason"] and "learning rate" in shown["reason"]
    assert shown["restarts"] <= 6


def test_idx_data_trains(home):
    assert home.run(idx_job(home, [1, 2, 3, 9] * 12))


def test_a_job_that_needs_more_slots_waits_with_the_reason_and_then_runs(home):
    long = home.submit(train__duration="100000 steps", workers__count=3, train__lanes=3)
    home.wait_state(long, "RUNNING")
    waiting = home.submit(workers__count=2)
    shown = until(lambda: next((s for s in [home.show(waiting)] if s["reason"]), None), 10, "a reason")
    assert shown["state"] == "QUEUED"
    assert "slot" in shown["reason"]
    behind = home.submit(workers__count=2)
    assert home.show(behind)["reason"].startswith("waits behind") and waiting in home.show(behind)["reason"]
    home.cairn("kill", long)
    home.wait_state(long, "KILLED")
    assert home.digest(waiting) == home.digest(behind)


def test_a_worker_that_dies_costs_its_job_no_place(home):
    """Another job, which was submitted before, waits for more slots than are free."""
    wide = {"train__duration": "100000 steps", "workers__count": 3, "train__lanes": 3}
    first = home.submit(**wide)
    home.wait_state(first, "RUNNING")
    home.cairn("pause", first, "--wait")
    second = home.submit(**wide)
    shown = home.wait_state(second, "RUNNING")
    until(lambda: home.show(second)["step"] > 0, 30, "a step")
    home.cairn("resume", first)
    until(lambda: "needs 3 slots" in home.show(first)["reason"], 30, "the first one waits")
    os.kill(workers(home.show(second))[1], signal.SIGKILL)
    until(lambda: home.show(second)["generation"] > shown["generation"], 30, "another generation")
    home.wait_state(second, "RUNNING")
    assert home.show(first)["state"] == "QUEUED"
    for job in (first, second):
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")


def test_a_job_wider_than_the_fleet_waits_with_the_reason(home):
    path = home.dir / "wide.yaml"
    path.write_text(TINY, encoding="utf-8")
    said = home.cairn("submit", path, "--set", "workers.count=8", "--set", "train.lanes=8")
    assert "needs 8 slots, but all that is registered has 4" in said.stdout + said.stderr
    job = said.stdout.split()[0]
    shown = home.show(job)
    assert shown["state"] == "QUEUED"
    assert "needs 8 slots" in shown["reason"]
    home.cairn("kill", job)
    assert home.wait_state(job, "KILLED")["reason"] == ""


def test_a_store_that_can_not_be_made_any_more_is_told(home):
    folder = home.dir / "replaced"
    folder.mkdir()
    with queued(home):
        job = home.submit(checkpoint__store=folder / "store")
        folder.rmdir()
        folder.write_text("a file\n", encoding="utf-8")
    shown = until(lambda: next((s for s in [home.show(job)] if "store" in s["reason"]), None), 20, "a reason")
    assert "replaced/store" in shown["reason"], shown["reason"]
    assert "replaced/store" in home.cairn("why", job).stdout
    home.cairn("kill", job)


def test_the_result_of_a_job_is_not_removed_unasked(home):
    job = home.submit()
    home.digest(job)
    done = home.cairn("ckpt", "rm", f"{job}@12", check=False)
    assert done.returncode == 4 and "--force" in done.stderr, done.stderr
    home.cairn("ckpt", "rm", f"{job}@8")
    home.cairn("ckpt", "rm", f"{job}@12", "--force")
    until(lambda: home.show(job)["checkpoints"] == [], 20, "it is removed")


def test_many_saves_are_one_line_of_why(home):
    job = home.submit(train__duration="60 steps", checkpoint__every="4 steps")
    home.digest(job)
    folded = r"steps \d+, \d+( (\.\.\.|and) \d+)? \((\d+) checkpoints\)"
    saved = [line for line in home.cairn("why", job).stdout.splitlines() if " saved " in line]
    assert len(saved) < 10, saved  # other events may stand between
    assert any(re.search(rf"step \d+ +saved +{folded}; the last: step \d+,", line) for line in saved), saved
    shown = [line for line in home.cairn("show", job).stdout.splitlines() if "  saved " in line]
    assert any(re.search(rf"Z  saved +{folded}$", line) for line in shown), shown
    events = [e for e in home.show(job)["events"] if e["kind"] == "saved"]
    wide = [line for line in home.cairn("show", job, "-o", "wide").stdout.splitlines() if "  saved " in line]
    assert len(wide) == len(events) > len(shown)


def test_exit_codes_of_wait(home):
    path = home.dir / "wait.yaml"
    path.write_text(TINY, encoding="utf-8")
    assert home.cairn("submit", path, "--wait", check=False).returncode == 0
    done = home.cairn("submit", path, "--wait", "--timeout", "1", "--set", "train.duration=1000000 steps",
                      "-o", "name", check=False)
    assert done.returncode == 124
    job = done.stdout.strip()
    home.cairn("kill", job)
    broken = home.dir / "broken.yaml"
    broken.write_text(TINY.replace("arch: mlp", "arch: mpl").replace("lanes: 4", "lanes: 5"), encoding="utf-8")
    done = home.cairn("submit", broken, check=False)
    assert done.returncode == 2
    assert "broken.yaml:2:" in done.stderr and "mlp" in done.stderr and "lanes" in done.stderr
    failing = home.dir / "failing.yaml"
    failing.write_text(TINY, encoding="utf-8")
    diverges = ["--set", "train.optimizer.lr=1000", "--set", "train.optimizer.weight_decay=1", "--set", "train.duration=400 steps"]
    assert home.cairn("submit", failing, *diverges, "--wait", timeout=60, check=False).returncode == 10
    assert home.cairn("show", "j-nothing", check=False).returncode == 3
    assert home.cairn("frobnicate", check=False).returncode == 2


def test_stop_saves_first_and_save_commits_now(home):
    job = home.submit(train__duration="1000000 steps", checkpoint__every="1000000 steps")
    until(lambda: home.show(job)["step"] > 10, 30, "the job trains")
    home.cairn("save", job)
    saved = home.show(job)["checkpoints"]
    assert len(saved) == 1
    home.cairn("stop", job)
    shown = home.wait_state(job, "STOPPED")
    assert shown["checkpoints"][0]["step"] > saved[0]["step"]
    home.cairn("resume", job)
    assert home.wait_state(job, "RUNNING")["ended_at"] == ""
    home.cairn("kill", job, "--wait", check=False)


def test_show_is_a_whole_json_object(home):
    job = home.submit()
    home.digest(job)
    shown = home.show(job)
    for field in ("id", "name", "state", "health", "reason", "generation", "step", "total_steps", "loss",
                  "restarts", "lost_seconds", "checkpoints", "workers", "final_digest"):
        assert field in shown, field
    assert isinstance(shown["step"], int)
    listed = json.loads(home.cairn("ps", "-o", "json").stdout)
    assert isinstance(listed, list) and any(row["id"] == job for row in listed)
    assert job in home.cairn("ps", "-o", "name").stdout.split()
    assert "training" in home.cairn("logs", job).stdout
    assert "saved" in home.cairn("why", job).stdout
    why = json.loads(home.cairn("why", job, "-o", "json").stdout)
    assert why["job"]["id"] == job and why["job"]["lost_seconds"] and why["train_seconds"] > 0
    assert [(g["generation"], g["from_step"], g["to_step"], g["cause"]) for g in why["generations"]] == [(1, 0, 12, "")]
    assert why["first_cause"] is None and why["text"] == home.cairn("why", job).stdout
    assert home.cairn("ckpt", "ls", job, "-o", "json").stdout.startswith("[")
    for shell in ("bash", "zsh", "fish"):
        assert "submit" in home.cairn("completion", shell).stdout


def test_nobody_home_is_exit_5(home):
    other = dict(home.env, CAIRN_HOME=str(home.dir / "nobody"))
    kept, home.env = home.env, other
    try:
        assert home.cairn("ps", check=False).returncode == 5
    finally:
        home.env = kept


def test_no_trainer_outlives_its_job(home):
    job = home.submit(train__duration="1000000 steps")
    home.wait_state(job, "RUNNING")
    home.cairn("kill", job)
    until(lambda: not home.pids("cairn-trainer"), 10, "no trainer is left")


def test_ps_lists_what_is_asked_for_and_long_names_stay_in_their_column():
    with Home() as home:
        def names(*more):
            return home.cairn("ps", *more, "-o", "name").stdout.split()

        long = "resnet-" + "x" * 56
        jobs = [home.submit(TINY.replace("name: tiny", f"name: {name}")) for name in ("first", long, "second")]
        for job in jobs:
            home.digest(job)
        running = home.submit(train__duration="1000000 steps")
        home.wait_state(running, "RUNNING")
        assert names() == [running, jobs[2], jobs[1], jobs[0]]
        assert names("--state", "active") == [running] and names("--state", "Running,queued") == [running]
        assert names("--state", "over") == names("--state", "succeeded") == jobs[::-1]
        assert names("--name", "*s*", "-n", "2", "--state", "over") == [jobs[2], jobs[1]]
        assert names("--name", "first") == [jobs[0]] and names("--name", "fir") == [] and names("-n", "0") == []
        lines = home.cairn("ps").stdout.splitlines()
        assert long[:26] + ".." in lines[3] and len(lines[3]) < 140
        assert long in home.cairn("ps", "-o", "wide").stdout
        for wrong, what in (("active,sleeping", "'sleeping' is no state"), ("", "'' is no state"), ("over,", "'' is no state")):
            done = home.cairn("ps", "--state", wrong, check=False)
            assert done.returncode == 2 and what in done.stderr, done
        home.cairn("kill", running)
