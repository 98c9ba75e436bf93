"""When checkpoints are taken and which of them stay; what SIGTERM and SIGUSR1 do to a worker."""
import json
import os
import signal

import pytest

from home import Home, until

LONG = {"train__duration": "4000 steps", "checkpoint__every": "4000 steps"}


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home() as home:
        yield home


@pytest.fixture(scope="module", name="quiet")
def quiet_digest(home):
    return home.run(**LONG)


def steps(home, job):
    return sorted(int(c["step"]) for c in home.show(job)["checkpoints"])


def events(home, job, kind):
    return [e["message"] for e in home.show(job)["events"] if e["kind"] == kind]


def losses(home, job):
    """{step: loss} of the last 1000 steps of a job that has ended."""
    watched = home.cairn("watch", job, "-o", "jsonl").stdout.splitlines()
    return {int(row["step"]): float(row["loss"]) for line in watched for row in json.loads(line).get("rows", [])}


def training(home, job, step=20):
    until(lambda: int(home.show(job)["step"]) > step, 30, "the job trains")


def workers(home, job):
    return [int(w["pid"]) for w in home.show(job)["workers"]]


# when


def test_checkpoints_by_time_come_again_and_again(home, quiet):
    job = home.submit(train__duration="4000 steps", checkpoint__every="300 ms",
                      checkpoint__keep__last=100)
    assert home.digest(job) == quiet
    assert len(steps(home, job)) >= 2, steps(home, job)
    assert float(home.show(job)["checkpoint_plan"]["interval_s"]) == 0.3


def test_auto_says_what_it_goes_by(home, quiet):
    job = home.submit(train__duration="4000 steps", checkpoint__every="auto")
    training(home, job)
    home.cairn("save", job, timeout=60)  # measured by this one
    until(lambda: events(home, job, "interval"), 30, "the interval follows from a measurement")
    plan = home.show(job)["checkpoint_plan"]
    assert float(plan["cost_s"]) > 0 and float(plan["interval_s"]) >= 10
    assert float(plan["mtbf_s"]) >= 86000  # a node without failures
    why = home.cairn("why", job).stdout
    assert "Checkpoints: auto, every" in why and "Young, Daly" in why, why
    assert home.digest(job) == quiet


# what stays


def test_the_last_the_best_and_every_so_many_stay(home):
    job = home.submit(train__duration="1000 steps", eval__every="50 steps",
                      checkpoint__every="50 steps", checkpoint__keep__last=2,
                      checkpoint__keep__best="{metric: loss, n: 2}",
                      checkpoint__keep__every="250 steps")
    home.digest(job)
    # A save that finds the one before still under way may be left out.
    saved = sorted(int(m.split()[1].rstrip(",")) for m in events(home, job, "saved"))
    loss = losses(home, job)
    best = sorted(saved, key=loss.get)[:2]
    must = set(saved[-2:]) | {step for step in saved if step % 250 == 0} | set(best)
    until(lambda: len(steps(home, job)) <= len(must), 30, "retention is through")
    kept = {int(c["step"]): c for c in home.show(job)["checkpoints"]}
    assert must == set(kept), (saved, best, sorted(kept))
    assert all(float(c["loss"]) > 0 and float(c["eval_loss"]) > 0 for c in kept.values()), kept
    for ckpt in kept.values():
        home.cairn("ckpt", "verify", ckpt["path"])


def read_through(shown):
    """The steps of the newest and of all that it is read through."""
    by_step = {int(c["step"]): c for c in shown}
    step, chain = max(by_step), set()
    while step in by_step and step not in chain:
        chain.add(step)
        if int(by_step[step]["parent_generation"]) > 0:
            step = int(by_step[step]["parent_step"])
    return chain


def test_differences_keep_what_they_are_read_through(home, quiet):
    job = home.submit(train__duration="4000 steps", checkpoint__every="400 steps",
                      checkpoint__delta="true", checkpoint__keep__last=1)
    assert home.digest(job) == quiet
    until(lambda: set(steps(home, job)) == read_through(home.show(job)["checkpoints"]), 30, "retention is through")
    shown = home.show(job)["checkpoints"]
    there = {int(c["step"]) for c in shown}
    for ckpt in shown:
        if int(ckpt["parent_generation"]) > 0:
            assert int(ckpt["parent_step"]) in there, shown
        home.cairn("ckpt", "verify", ckpt["path"])


# a notice


def told(home, rank, notice, reached):
    """A job that was `reached` after that rank's notice: the job and the workers it had. On a busy
    machine it may be through before."""
    for _ in range(5):
        job = home.submit(**LONG)
        training(home, job)
        pids = workers(home, job)
        os.kill(pids[rank], notice)
        until(lambda: reached(job) or home.show(job)["state"] == "SUCCEEDED", 60, "it was told")
        if reached(job):
            return job, pids
    raise AssertionError("no job was told in time")


def test_sigterm_saves_leaves_and_goes_on(home, quiet):
    job, _ = told(home, 1, signal.SIGTERM, lambda job: home.show(job)["generation"] == 2)
    assert events(home, job, "preempted")
    assert home.digest(job) == quiet
    shown = home.show(job)
    assert shown["restarts"] == 1 and not events(home, job, "fault"), shown["events"]
    forming = events(home, job, "forming")[-1]
    saved = steps(home, job)[0]
    assert f"from the checkpoint of step {saved}" in forming, (forming, saved)


def test_sigusr1_saves_and_stays(home, quiet):
    def early(job):
        saved = steps(home, job)
        return saved and saved[0] < 4000

    job, pids = told(home, 0, signal.SIGUSR1, early)
    if home.show(job)["state"] == "RUNNING":
        assert workers(home, job) == pids
    assert home.digest(job) == quiet
    assert home.show(job)["restarts"] == 0


def test_who_can_not_save_in_time_goes_all_the_same():
    with Home(env={"CAIRN_GRACE_MS": "200"}, faults="save.snapshot,rank=1:wait") as home:
        job = home.submit(**LONG)
        training(home, job)
        pid = workers(home, job)[1]
        os.kill(pid, signal.SIGTERM)
        until(lambda: pid not in home.pids(), 20, "it left")
