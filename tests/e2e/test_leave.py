"""A node that leaves: SIGTERM to an agent whose end is the end of its trainers. Nobody loses a step by it.

The agent is process 1 of a space of processes of its own, as in a container; `cairn up` has another one, to go to.
"""
import json
import os
import re
import shutil
import signal
import subprocess
import time
from contextlib import contextmanager
from datetime import datetime

import pytest

from home import BIN, TINY, Home, alive, until
from test_suspect import node

USER = [] if os.geteuid() == 0 else ["-U", "-r"]
UNSHARE = ["unshare", *USER, "-p", "-f", "--mount-proc", "--kill-child"]
POD = "pod"
SETS = {"train__duration": "1000 steps", "checkpoint__every": "100000 steps", "eval__every": "100000 steps"}
HELD = "trainer.forward"  # there a worker waits until the test lets it go, so that nothing ends too early
AT = 200


def home_of(slots=3, faults="", hang_ms=20000):
    """Nothing is a hang that only waits for a busy machine."""
    return Home(env={"CAIRN_HANG_MS": str(hang_ms)}, faults=f"{HELD},rank=0,step={AT}:wait{faults}", slots=slots)


def missing():
    if shutil.which("unshare") is None:
        return "unshare is not installed"
    done = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True, check=False)
    return None if done.returncode == 0 else f"no space of processes here: {done.stderr.strip()}"


REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="utf-8") as file:
        return [int(child) for child in file.read().split()]


@contextmanager
def pod(home, *args, slots=2):
    """(the process that ends with the agent's code, the agent's pid)"""
    with open(home.home / "log" / "pod.log", "ab") as log:
        process = subprocess.Popen([*UNSHARE, BIN / "cairn-agent", "--name", POD, "--slots", str(slots), *args],
                                   env=home.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        until(lambda: state_of(home) == "ready", 20, "the pod's node is ready")
        yield process, child_of(process.pid)[0]
    finally:
        process.kill()  # and its child with it
        process.wait()


def node_of(home):
    listed = home.cairn("node", "ls", "-o", "jsonl", check=False).stdout  # nothing while the coordinator is away
    rows = [json.loads(line) for line in listed.splitlines()]
    return next((row for row in rows if row["name"] == POD), {"state": "not there"})


def state_of(home):
    return node_of(home)["state"]


def places(home, job):
    return {worker["node"] for worker in home.show(job)["workers"]}


def trains_in_pod(home, **sets):
    """A job that runs there, as it is the fullest node that fits, and waits in a step; what it has finished."""
    job = home.submit(TINY, **{**SETS, **sets})
    home.wait_hit(HELD)
    until(lambda: home.show(job)["step"] >= AT, 30, "it trains")
    assert places(home, job) == {POD}
    return job, AT


def go_on(home):
    """The job's worker, now that its node drains: there is enough left to train until all have heard of it."""
    until(lambda: state_of(home) == "draining", 30, "it drains")
    home.go(HELD)


def workers_are_back(home, job):
    shown = home.try_show(job)
    return shown and all(worker["state"] == "running" for worker in shown["workers"])


def told(home, job, what):
    return [event["message"] for event in home.show(job)["events"] if event["kind"] == what]


def from_step(home, job, generation):
    text = next(t for t in told(home, job, "forming") if t.startswith(f"generation {generation} "))
    found = re.search(r"from the checkpoint of step (\d+)", text)
    return int(found[1]) if found else 0


@pytest.fixture(scope="module")
def quiet():
    with Home() as home:
        return home.run(TINY, **SETS)


def lost_nothing(home, job, step, quiet):
    assert home.digest(job) == quiet
    shown = home.show(job)
    assert shown["generation"] == 2 and places(home, job) != {POD}
    assert from_step(home, job, 2) >= step
    assert told(home, job, "preempted") and not told(home, job, "fault")
    assert shown["lost_seconds"].get("replay", 0) == 0  # it never trained a step twice
    saved = max(at(event) for event in shown["events"] if (event["kind"], event["generation"]) == ("saved", 1))
    runs = min(at(event) for event in shown["events"] if (event["kind"], event["generation"]) == ("running", 2))
    print(f"the next generation runs {runs - saved:.2f} s after the save, load {os.getloadavg()[0]:.1f}")


def at(event):
    return datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()


def test_a_pod_that_is_deleted_loses_no_step(quiet):
    with home_of() as home, pod(home) as (process, agent):
        job, step = trains_in_pod(home)
        os.kill(agent, signal.SIGTERM)
        os.kill(agent, signal.SIGTERM)  # again: shortens nothing
        go_on(home)
        assert process.wait(60) == 0
        assert state_of(home) == "left"
        lost_nothing(home, job, step, quiet)
        assert state_of(home) == "left"  # and isn't lost later
        with pod(home) as (process, agent):  # of the same name
            assert state_of(home) == "ready"
            os.kill(agent, signal.SIGTERM)
            assert process.wait(60) == 0  # with nothing to wait for
        assert state_of(home) == "left"


def test_a_signal_to_every_process_at_once_loses_no_step(quiet):
    """As Slurm ends a job: its trainers are told to go, too, before or after their agent."""
    with home_of() as home, pod(home) as (process, agent):
        job, step = trains_in_pod(home)
        for pid in [*child_of(agent), agent]:
            os.kill(pid, signal.SIGTERM)
        go_on(home)
        assert process.wait(60) == 0
        assert state_of(home) == "left"
        lost_nothing(home, job, step, quiet)


def test_a_coordinator_that_is_killed_meanwhile_changes_nothing(quiet):
    with home_of() as home, pod(home) as (process, agent):
        job, step = trains_in_pod(home)
        home.kill("cairnd")
        os.kill(agent, signal.SIGTERM)
        until(lambda: workers_are_back(home, job), 30, "its workers are heard again")
        go_on(home)
        assert process.wait(60) == 0
        lost_nothing(home, job, step, quiet)


def test_who_is_not_done_in_time_is_killed_and_the_node_has_left(quiet):
    with home_of() as home, pod(home, "--grace", "0.01") as (process, agent):
        job, _ = trains_in_pod(home, checkpoint__every="100 steps")
        os.kill(agent, signal.SIGTERM)
        assert process.wait(60) == 0
        assert state_of(home) == "left"
        assert home.digest(job) == quiet


def test_a_save_that_takes_longer_than_a_hang_is_waited_for_within_the_grace(quiet):
    """Half a minute of it in a full run."""
    hang_ms, held = (10000, 30) if "CAIRN_TEST_FULL" in os.environ else (5000, 7)
    with home_of(faults=";save.write,rank=1:wait", hang_ms=hang_ms) as home, \
            pod(home, "--grace", "600") as (process, agent):
        job, step = trains_in_pod(home)
        os.kill(agent, signal.SIGTERM)
        go_on(home)
        home.wait_hit("save.write")
        time.sleep(held)  # a store that is slow
        assert process.poll() is None and state_of(home) == "draining"
        assert home.show(job)["generation"] == 1
        home.go("save.write")
        assert process.wait(60) == 0
        assert state_of(home) == "left"
        lost_nothing(home, job, step, quiet)


def test_nothing_is_placed_on_a_node_that_drains(quiet):
    """Its trainers are stopped, so that they can't save: the node waits, and takes nothing."""
    with home_of() as home, pod(home, "--grace", "600") as (process, agent):
        first, _ = trains_in_pod(home)
        for pid in child_of(agent):
            os.kill(pid, signal.SIGSTOP)
        os.kill(agent, signal.SIGTERM)
        until(lambda: state_of(home) == "draining", 10, "it drains")
        assert node_of(home)["reason"] == "SIGTERM"
        second = home.submit(TINY, **SETS, workers__count=3)
        until(lambda: home.show(second)["state"] == "RUNNING", 30, "the second runs")
        assert POD not in places(home, second)
        assert process.poll() is None
        for pid in child_of(agent):
            os.kill(pid, signal.SIGCONT)
        home.go(HELD)
        assert process.wait(60) == 0
        assert home.digest(first, 90) == quiet


def test_a_node_that_people_drain_is_left_and_taken_back(quiet):
    with home_of() as home, pod(home) as (_, agent):
        job, step = trains_in_pod(home)
        shown = json.loads(home.cairn("node", "drain", POD, "--reason", "new disks", "-o", "jsonl").stdout)
        assert (shown["state"], shown["reason"]) == ("draining", "new disks")
        go_on(home)
        until(lambda: home.show(job)["generation"] == 2, 30, "its job moves")
        assert places(home, job) != {POD}
        home.kill("cairnd")  # the next one knows of it
        until(lambda: home.try_show(job) and state_of(home) == "draining", 30, "it is drained still")
        wide = home.submit(TINY, workers__count=4)
        until(lambda: "drained" in home.show(wide)["reason"], 30, "the reason to wait")
        assert home.cairn("node", "drain", "nobody", check=False).returncode != 0
        home.cairn("node", "undrain", POD)
        assert home.cairn("node", "undrain", POD, check=False).returncode != 0
        assert state_of(home) == "ready"
        home.wait_state(wide, "SUCCEEDED")
        lost_nothing(home, job, step, quiet)
        assert alive(agent)


def test_a_drain_with_a_deadline_ends_workers_that_do_not_save(quiet):
    with home_of() as home, pod(home):
        job, _ = trains_in_pod(home)
        workers = [pid for pid in home.pids("cairn-trainer")]
        for pid in workers:
            os.kill(pid, signal.SIGSTOP)
        home.cairn("node", "drain", POD, "--deadline", "2s")
        until(lambda: home.show(job)["generation"] == 2, 25, "its job moves")
        assert places(home, job) != {POD} and not any(alive(pid) for pid in workers)
        assert any("deadline" in event["message"] for event in home.show(job)["events"])
        assert home.digest(job) == quiet


def test_a_drained_node_that_is_off_is_shown_and_taken_back():
    with Home() as home:
        with pod(home) as (process, agent):
            home.cairn("node", "drain", POD)
            os.kill(agent, signal.SIGTERM)
            process.wait(30)
        home.kill("cairnd")  # the next one has never seen it
        until(lambda: home.cairn("node", "ls", check=False).returncode == 0 and node_of(home), 30, "it is listed")
        home.cairn("node", "undrain", POD)


def test_an_agent_that_is_told_so_leaves_and_stays_until_it_is_called_back(quiet):
    with home_of(4) as home, pod(home, "--stay-on-term") as (process, agent):
        job, step = trains_in_pod(home)
        os.kill(agent, signal.SIGUSR1)
        go_on(home)
        until(lambda: state_of(home) == "left", 30, "the node has left")
        assert node_of(home)["reason"] == "SIGUSR1"
        assert POD not in places(home, job) and process.poll() is None
        os.kill(agent, signal.SIGUSR1)
        until(lambda: state_of(home) == "ready", 20, "it is back")
        os.kill(agent, signal.SIGUSR1)
        until(lambda: state_of(home) == "left", 20, "and gone again")
        os.kill(agent, signal.SIGTERM)
        assert process.wait(60) == 0
        lost_nothing(home, job, step, quiet)


def test_a_machine_that_gets_another_name_is_not_counted_twice():
    def states():
        return {row["name"]: row for row in map(json.loads, home.cairn("node", "ls", "-o", "jsonl").stdout.splitlines())}
    with Home(slots=1) as home:
        with node(home, "before", 2):
            until(lambda: states().get("before", {}).get("state") == "ready", 20, "it is there")
        with node(home, "after", 2):
            until(lambda: states().get("before", {}).get("state") == "left", 20, "the old name has left")
            assert states()["before"]["reason"] == "its machine is node after now"
            row = states()["after"]
            assert row["state"] == "ready" and row["address"] == row["host"] and row["boot_id"] and row["version"]
            wide = home.submit(TINY, workers__count=4)  # of 1 + 2; with the old one it were 5
            home.run(TINY, workers__count=2)  # is not held back by it
            assert home.show(wide)["state"] == "QUEUED"


def test_process_1_takes_away_the_dead_that_others_leave():
    with Home() as home, pod(home) as (_, agent):
        subprocess.run(["nsenter", "-t", str(agent), *(["-U", "--preserve-credentials"] if USER else []), "-p", "-m", "--",
                        "sh", "-c", "sleep 0.3 & sleep 0.3 & exit 0"], check=True)
        orphans = child_of(agent)
        assert len(orphans) == 2
        until(lambda: not child_of(agent), 10, "they are reaped")
        assert not any(alive(pid) for pid in orphans) and alive(agent)


def test_an_agent_that_stays_leaves_its_trainers(quiet):
    """--stay-on-term, also as process 1: as everywhere else, only that its trainers die with it."""
    with home_of() as home, pod(home, "--stay-on-term") as (process, agent):
        job, _ = trains_in_pod(home, checkpoint__every="100 steps")
        os.kill(agent, signal.SIGTERM)
        assert process.wait(60) == 0
        time.sleep(0.2)
        assert state_of(home) != "left"
        assert home.digest(job, 90) == quiet
