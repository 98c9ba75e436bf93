"""Copies in memory: all workers of a job are killed at once, and at most one finished step is lost."""
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import time
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

import pytest

from home import BIN, TINY, Home, alive, until

# No checkpoint before the end: what is not lost comes from memory.
EVERY_STEP = {"checkpoint__every": "1000 steps", "checkpoint__memory_every": "1 step"}


def events(home, job):
    return [e["message"] for e in home.show(job)["events"]]


def restored_steps(home, job):
    found = (re.search(r"restored from memory: step (\d+)", text) for text in events(home, job))
    return [int(m.group(1)) for m in found if m]


def saved_steps(home, job):
    return [int(re.search(r"\d+", e["message"])[0]) for e in home.show(job)["events"] if e["kind"] == "saved"]


def copies(home, job=None):
    return sorted(home.copies.glob(f"*/{job or '*'}/*"))


def stop_at(step, rank=0):
    return f"trainer.forward,rank={rank},step={step}:wait"


def kill_workers(home):
    pids = home.pids("cairn-trainer")
    assert len(pids) == 2, pids
    home.kill("cairn-trainer")
    until(lambda: not any(alive(pid) for pid in pids), 10, "the workers are gone")


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    with Home() as home:
        digest = home.run(checkpoint__every="1000 steps")
        until(lambda: not copies(home), 10, "nothing is left in memory")
        return digest


def killed_at(home, step):
    job = home.submit(**EVERY_STEP)
    home.wait_hit("trainer.forward")
    kill_workers(home)
    return job


@pytest.mark.parametrize("every", ["1 step", "none"])
def test_a_store_that_hangs_stops_no_training_and_is_no_hang(every):
    with Home(env={**Home.RESTART, **Home.HANGS}, faults="save.write,rank=1:wait") as home:
        job = home.submit(train__duration="1500 steps", eval__every="1500 steps", checkpoint__every="300 steps",
                          checkpoint__keep__last="9", checkpoint__memory_every=every)
        home.wait_hit("save.write")
        until(lambda: home.show(job)["step"] == 1500, 30, "all steps are done")
        held = time.monotonic() + 3  # longer than CAIRN_HANG_MS
        until(lambda: time.monotonic() > held, 5, "the last save waits")
        home.go("save.write")
        shown = home.wait_state(job, "SUCCEEDED")
        assert shown["generation"] == 1, shown["events"]
        assert {300, 1500} <= set(saved_steps(home, job))


@pytest.mark.parametrize("step", [1, 2, 7, 11])
def test_at_most_one_finished_step_is_lost(quiet, step):
    with Home(env=Home.RESTART, faults=stop_at(step)) as home:
        job = killed_at(home, step)
        assert home.digest(job) == quiet
        # Rank 0 had finished `step` steps; its copy may not have been whole yet.
        assert restored_steps(home, job) in ([step], [step - 1] if step > 1 else [])
        assert any("killed by signal 9 (Killed): last in" in text for text in events(home, job))
        until(lambda: not copies(home, job), 10, "the copies went with the job")


def test_the_coordinator_may_die_with_the_workers(quiet):
    with Home(env=Home.RESTART, faults=stop_at(7)) as home:
        job = home.submit(**EVERY_STEP)
        home.wait_hit("trainer.forward")
        home.kill("cairnd")
        kill_workers(home)
        assert home.digest(job) == quiet
        assert restored_steps(home, job)[0] in (6, 7)


def test_the_agent_may_die_with_the_workers(quiet):
    with Home(env=Home.RESTART, faults=stop_at(7)) as home:
        job = home.submit(**EVERY_STEP)
        home.wait_hit("trainer.forward")
        home.kill("cairn-agent")
        kill_workers(home)
        assert home.digest(job) == quiet
        assert restored_steps(home, job)[0] in (6, 7)


def test_the_coordinator_sends_the_same_plan_after_its_restart(quiet):
    with Home(env=Home.RESTART, faults=stop_at(7) + ";coordinator.plan,generation=2,rank=1:kill") as home:
        job = killed_at(home, 7)
        assert home.digest(job) == quiet
        assert restored_steps(home, job)[0] in (6, 7)


def test_killed_again_while_it_restores(quiet):
    with Home(env=Home.RESTART, faults=stop_at(7) + ";trainer.restore,rank=1:kill") as home:
        job = killed_at(home, 7)
        assert home.digest(job) == quiet
        steps = restored_steps(home, job)
        assert len(steps) == 2 and steps[0] == steps[1]


DAMAGES = {
    "a flipped bit in the data": lambda f: flip(f, f.stat().st_size - 4096 - 64),
    "a flipped bit in the hashes": lambda f: flip(f, 8192),
    "a flipped bit in the seal": lambda f: flip(f, 3),
    "a file that was cut": lambda f: os.truncate(f, 4096),
    "a file that is gone": lambda f: f.unlink(),
}


def flip(path, at):
    """Where the file holds something, from `at` on down."""
    data = bytearray(path.read_bytes())
    while at > 0 and data[at] == 0:
        at -= 1
    data[at] ^= 4
    path.write_bytes(bytes(data))


@pytest.mark.parametrize("name", DAMAGES)
def test_the_store_is_used_instead_of(name):
    # With a checkpoint of step 4, all copies that are newer are damaged.
    sets = {"checkpoint__every": "4 steps", "checkpoint__memory_every": "1 step"}
    with Home() as home:
        quiet = home.run(**sets)
    faults = stop_at(7) + ";trainer.forming,generation=2,rank=0:wait"
    with Home(env=Home.RESTART, faults=faults) as home:
        job = home.submit(**sets)
        home.wait_hit("trainer.forward")
        until(lambda: any(c["step"] == 4 for c in home.show(job)["checkpoints"]), 10, "step 4 is committed")
        # Offered whole, damaged once the plan names them.
        kill_workers(home)
        home.wait_hit("trainer.forming")
        taken = restored_steps(home, job)
        assert taken and taken[0] in (6, 7)
        for path in copies(home, job):
            if path.name.startswith("g1-r1-"):
                DAMAGES[name](path)
        home.go("trainer.forming")
        assert home.digest(job) == quiet
        assert restored_steps(home, job) == taken  # once
        assert any("not tried again" in text for text in events(home, job))
        assert home.show(job)["generation"] == 3
        until(lambda: not copies(home, job), 10, "the copies went with the job")


def test_a_bound_that_is_too_small_is_the_users_to_change():
    with Home() as home:
        job = home.submit(model__hidden=4096, checkpoint__memory="16 MiB", **EVERY_STEP)
        shown = home.wait_state(job, "FAILED")
        assert "checkpoint.memory" in shown["reason"], shown["reason"]


LARGE = {"model__hidden": 2048, "checkpoint__every": "1000 steps"}
NO_COPIES = "copies between checkpoints: there are none"
NO_BOUND = "a checkpoint: it takes more than is allowed"


def told_of_the_bound(home, job):
    """Generations in which rank 0 warned."""
    lines = [line for log in home.home.glob(f"jobs/{job}/g*/*.log") for line in log.read_text().splitlines()]
    return [json.loads(line)["generation"] for line in lines if "MiB of checkpoint.memory" in line]


@pytest.fixture(scope="module", name="quiet_large")
def quiet_digest_of_large():
    with Home() as home:
        return home.run(**LARGE)


@pytest.mark.parametrize("sets, fewer, lack", [
    ({"checkpoint__memory": "31 MiB", "checkpoint__memory_every": "1 step"}, 1, NO_COPIES),
    ({"checkpoint__memory": "23 MiB"}, 1, NO_BOUND),
    # The largest of two stages is left with one worker.
    ({"checkpoint__memory": "23 MiB", "workers__count": 3, "parallel__stages": "[{workers: 2}, {workers: 1}]"}, 2,
     NO_BOUND)])
def test_with_fewer_workers_the_bound_is_too_small_and_the_job_goes_on(quiet_large, sets, fewer, lack):
    with Home(faults=stop_at(5) + ";trainer.update,generation=2:wait", slots=3) as home:
        job = home.submit(**LARGE, **sets)
        home.wait_hit("trainer.forward")
        home.cairn("set", job, f"workers.count={fewer}")
        home.go("trainer.forward")
        home.wait_hit("trainer.update")
        shown = home.show(job)
        assert len(shown["workers"]) == fewer and shown["memory_every"] == 0
        assert shown["memory_reason"].endswith(f"MiB of checkpoint.memory for {lack}"), shown
        assert told_of_the_bound(home, job) == [2]
        home.go("trainer.update")
        assert home.digest(job) == quiet_large


def test_what_a_killed_job_leaves_is_removed_by_the_next_agent():
    with Home(env=Home.RESTART, faults=stop_at(7)) as home:
        job = home.submit(**EVERY_STEP)
        home.wait_hit("trainer.forward")
        assert copies(home, job)
        home.kill("cairn-agent", signal.SIGSTOP)
        home.cairn("kill", job)
        home.kill("cairn-trainer")
        home.kill("cairn-agent")
        stranger = home.copies / copies(home, job)[0].parent.parent.name / "j-0000000000"
        stranger.mkdir(0o700)
        (stranger / "g1-r0-0.copy").write_bytes(b"x")
        until(lambda: not copies(home), 30, "the next agent removes what no job needs")
        assert not list(Path(home.copies).glob("*/*"))


def test_shares_travel_between_nodes(quiet):
    with Home(env=Home.RESTART, faults=stop_at(7), slots=1) as home:
        command = [BIN / "cairn-agent", "--name", "another", "--slots", "1"]
        with subprocess.Popen(command, env=home.env, cwd=home.dir, stderr=subprocess.DEVNULL) as agent:
            job = home.submit(**EVERY_STEP)
            home.wait_hit("trainer.forward")
            assert len({worker["node"] for worker in home.show(job)["workers"]}) == 2
            assert len({path.parent.parent for path in copies(home, job)}) == 2
            kill_workers(home)
            assert home.digest(job) == quiet
            assert restored_steps(home, job)[0] in (6, 7)
            until(lambda: not copies(home, job), 10, "the copies went with the job, on both nodes")
            agent.terminate()


# ---- a job that says nothing about checkpoints

PLAIN = re.sub(r"checkpoint: .*\n", "", TINY)
SIXTY = {"train__duration": "60 steps", "eval__every": "60 steps"}


@pytest.fixture(scope="module", name="quiet_plain")
def quiet_digest_of_plain():
    with Home() as home:
        return home.run(PLAIN, **SIXTY)


@pytest.mark.parametrize("step", [12, 40])
def test_copies_are_on_by_default(quiet_plain, step):
    with Home(env=Home.RESTART, faults=stop_at(step)) as home:
        job = home.submit(PLAIN, **SIXTY)
        home.wait_hit("trainer.forward")
        shown = home.show(job)
        assert shown["memory_every"] >= 1 and shown["memory_bytes"] > 0 and not shown["memory_reason"], shown
        assert re.search(r"copies +in memory after every .*MiB per worker", home.cairn("show", job).stdout)
        assert not shown["checkpoints"]
        kill_workers(home)
        assert home.digest(job) == quiet_plain
        # After every step at first; after step 16 as often as it was agreed then.
        restored, = restored_steps(home, job)
        assert min(step, 16) - 1 <= restored <= step
        until(lambda: not copies(home, job), 10, "the copies went with the job")


def test_without_room_there_are_none_and_it_says_why(quiet_plain):
    env = {**Home.RESTART, "CAIRN_COPIES_FREE": "1000000"}
    with Home(env=env, faults=stop_at(12)) as home:
        job = home.submit(PLAIN, **SIXTY)
        home.wait_hit("trainer.forward")
        shown = home.show(job)
        assert shown["memory_every"] == 0
        assert "more than a quarter of the 1.0 MiB of CAIRN_COPIES_FREE" in shown["memory_reason"], shown
        text = home.cairn("show", job).stdout
        assert re.search(r"copies +none in memory: node ", text), text
        plan = home.cairn("plan", home.dir / "job-0.yaml").stdout
        assert "copies     none in memory, with all workers here: copies of 2 workers" in plan, plan
        kill_workers(home)
        assert home.digest(job) == quiet_plain
        assert not restored_steps(home, job)


def test_a_bound_that_is_too_small_for_them_refuses_nothing():
    with Home(faults=stop_at(5)) as home:
        job = home.submit(PLAIN, model__hidden=4096, checkpoint__memory="32 MiB")
        home.wait_hit("trainer.forward")
        shown = home.show(job)
        assert shown["memory_every"] == 0 and "MiB of checkpoint.memory" in shown["memory_reason"], shown
        home.go("trainer.forward")
        home.wait_state(job, "SUCCEEDED")


def test_one_worker_without_room_turns_them_off_for_all():
    with Home(faults=stop_at(5), slots=1) as home:
        env = {**home.env, "CAIRN_COPIES_FREE": "1000000"}
        command = [BIN / "cairn-agent", "--name", "another", "--slots", "1"]
        with subprocess.Popen(command, env=env, cwd=home.dir, stderr=subprocess.DEVNULL) as agent:
            job = home.submit(PLAIN)
            home.wait_hit("trainer.forward")
            shown = home.show(job)
            assert shown["memory_every"] == 0, shown
            assert shown["memory_reason"].startswith("node another: copies of 1 worker"), shown
            home.go("trainer.forward")
            home.wait_state(job, "SUCCEEDED")
            agent.terminate()


# ---- copies at another node

AT_A_PEER = {**EVERY_STEP, "checkpoint__peers": "1"}
FIRST_FROM_A_PEER = 8  # number of the first slot that holds another node's copy


@contextmanager
def node(home, slots=1):
    """Another node than the one that the home has."""
    command = [BIN / "cairn-agent", "--name", "another", "--slots", str(slots)]
    with subprocess.Popen(command, env=home.env, cwd=home.dir, stderr=subprocess.DEVNULL) as agent:
        try:
            yield agent
        finally:
            agent.terminate()


def both_ready(home):
    return home.cairn("node", "ls").stdout.count("ready") == 2


def whole_copy(path):
    """(generation, rank, step) of a sealed slot, else None."""
    try:
        front = path.read_bytes()[:256]
    except OSError:
        return None
    if front[:8] != b"CAIRNMEM":
        return None
    generation, step, rank = struct.unpack_from("<QQI", front, 64 + 128)
    return generation, rank, step


def from_peers(home, job):
    """Whole copies that came from another node: {path: (generation, rank, step)}."""
    found = {}
    for path in copies(home, job):
        generation, rank, number = map(int, re.fullmatch(r"g(\d+)-r(\d+)-(\d+)\.copy", path.name).groups())
        whole = whole_copy(path)
        # Another name and head: about to be used again.
        if number >= FIRST_FROM_A_PEER and whole is not None and whole[:2] == (generation, rank):
            found[path] = whole
    return found


def wait_for_peers(home, job, step, ranks):
    """Until each rank's copy of that step, or a newer one, is at the other node."""
    def there():
        return {rank for _, rank, at in from_peers(home, job).values() if at >= step} == set(range(ranks))
    until(there, 30, f"copies of step {step} are at other nodes")


def workers_of(home, name):
    """{pid: folder for copies} of the workers on that node."""
    found = {}
    for pid in home.pids("cairn-trainer"):
        args = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        folder = Path(args[args.index("--copies") + 1])
        if folder.parent.name == name:
            found[pid] = folder
    return found


def lose(home, agent):
    """The other node's agent and workers are killed, its memory is gone."""
    workers = workers_of(home, "another")
    assert workers
    agent.kill()
    agent.wait()
    for pid in workers:
        os.kill(pid, signal.SIGKILL)
    until(lambda: not any(alive(pid) for pid in workers), 10, "the workers are gone")
    shutil.rmtree(next(iter(workers.values())))


def test_a_node_that_the_job_left_keeps_no_copies():
    faults = stop_at(5) + "".join(f";trainer.{point},generation=2,step={step}:wait"
                                  for point, step in (("backward", 6), ("reduced", 11)))
    sets = {"workers__count": 1, "checkpoint__every": "8 steps", "checkpoint__memory_every": "1 step"}
    with Home(env=Home.RESTART, faults=faults, slots=2) as home:
        with node(home) as agent:  # the tightest fit
            until(lambda: both_ready(home), 20, "a node that is not ready yet is not placed on")
            job = home.submit(**sets)
            home.wait_hit("trainer.forward")
            (worker, folder), = workers_of(home, "another").items()
            agent.kill()
            agent.wait()
        os.kill(worker, signal.SIGKILL)
        home.wait_hit("trainer.backward")
        assert not workers_of(home, "another")
        with node(home):
            until(lambda: both_ready(home), 20, "the node is back")
            assert list(folder.iterdir()), "a generation that has saved nothing may fall back to them"
            home.go("trainer.backward")
            home.wait_hit("trainer.reduced")
            until(lambda: not folder.exists(), 20, "its copies went with the first checkpoint from elsewhere")
            assert home.show(job)["state"] == "RUNNING" and copies(home, job)
            home.go("trainer.reduced")
            home.wait_state(job, "SUCCEEDED")


@pytest.mark.parametrize("slots", [1, 2])
def test_a_lost_node_takes_no_step_with_it(quiet, slots):
    with Home(env=Home.RESTART, faults=stop_at(7), slots=1) as home:
        with node(home, slots) as agent:
            job = home.submit(workers__count=1 + slots, **AT_A_PEER)
            home.wait_hit("trainer.forward")
            assert len(workers_of(home, "another")) == slots
            wait_for_peers(home, job, 6, 1 + slots)
            lose(home, agent)
        with node(home, slots):
            assert home.digest(job) == quiet
            assert restored_steps(home, job)[0] in (6, 7)
            until(lambda: not copies(home, job), 10, "the copies went with the job, on both nodes")


def test_a_node_may_be_lost_in_each_generation(quiet):
    faults = stop_at(5) + ";trainer.reduced,rank=0,generation=2,step=9:wait"
    with Home(env=Home.RESTART, faults=faults, slots=1) as home:
        with node(home) as agent:
            job = home.submit(**AT_A_PEER)
            home.wait_hit("trainer.forward")
            wait_for_peers(home, job, 4, 2)
            lose(home, agent)
        with node(home) as agent:
            home.wait_hit("trainer.reduced")
            wait_for_peers(home, job, 8, 2)
            lose(home, agent)
        with node(home):
            assert home.digest(job) == quiet
            first, second = restored_steps(home, job)
            assert first in (4, 5) and second in (8, 9)


@pytest.mark.parametrize("sets", [{}, {"parallel__zero": "1"}, {"parallel__pipeline": "3"}])
def test_a_lost_node_takes_no_step_with_it_though_nobody_comes_in_its_place(sets):
    """Two workers go on from the copies of three: each reads what it has now."""
    with Home() as home:
        quiet = home.run(UNEVEN, workers__count=1)
    with Home(env=Home.RESTART, faults=stop_at(7), slots=2) as home:
        with node(home) as agent:
            until(lambda: both_ready(home), 20, "two nodes")
            job = home.submit(UNEVEN, **{**AT_A_PEER, **sets, "workers__count": "3", "workers__min": "2"})
            home.wait_hit("trainer.forward")
            wait_for_peers(home, job, 6, 3)
            lose(home, agent)
        assert home.digest(job, seconds=120) == quiet
        assert restored_steps(home, job)[0] in (6, 7)
        assert home.show(job)["workers_count"] == 3 and len(home.show(job)["workers"]) == 2


def test_a_lost_worker_leaves_no_memory_for_peers_copies_and_the_job_goes_on(quiet_large):
    """Of three on two nodes one holds two peers, and all have larger shares than four had."""
    faults = "trainer.backward,rank=3,step=7,generation=1:kill;trainer.update,generation=2:wait"
    sets = {**LARGE, **AT_A_PEER, "workers__count": 4, "workers__min": 3, "checkpoint__memory": "52 MiB"}
    with Home(faults=faults, slots=2) as home, node(home, 2):
        until(lambda: both_ready(home), 20, "two nodes")
        job = home.submit(**sets)
        home.wait_hit("trainer.update")
        shown = home.show(job)
        assert shown["memory_every"] == 1
        assert shown["memory_reason"].endswith("for copies at other nodes: there are none"), shown
        assert shown["memory_reason"] in home.cairn("show", job).stdout
        assert told_of_the_bound(home, job) == [2]
        home.go("trainer.update")
        assert home.digest(job) == quiet_large


# The first of two stages has all but a seventieth of the parameters.
UNEVEN = """
name: uneven
model: {arch: mlp, hidden: 1200, classes: 10}
data:
  train: {format: synthetic, samples: 200}
train:
  duration: 12 steps
  global_batch: 16
  lanes: 4
  optimizer: {name: adamw, lr: 0.001}
  seed: 7
workers: {count: 2}
"""


def test_a_node_is_lost_with_a_stage_of_another_size_than_its_peers():
    with Home() as home:
        quiet = home.run(UNEVEN, workers__count=1)
    with Home(env=Home.RESTART, faults=stop_at(7), slots=1) as home:
        with node(home) as agent:
            job = home.submit(UNEVEN, parallel__pipeline=2, **AT_A_PEER)
            home.wait_hit("trainer.forward")
            wait_for_peers(home, job, 6, 2)
            sizes = sorted(path.stat().st_size for path in from_peers(home, job))
            assert sizes[-1] > 4 * sizes[0]
            lose(home, agent)
        with node(home):
            assert home.digest(job) == quiet
            assert restored_steps(home, job)[0] in (6, 7)


@pytest.mark.parametrize("name", DAMAGES)
def test_the_store_is_used_instead_of_a_peers_copy_that_is(name):
    sets = {"checkpoint__every": "4 steps", "checkpoint__memory_every": "1 step", "checkpoint__peers": "1"}
    with Home() as home:
        quiet = home.run(**sets)  # on one node: without
    faults = stop_at(7) + ";trainer.forming,generation=2,rank=0:wait"
    with Home(env=Home.RESTART, faults=faults, slots=1) as home:
        with node(home) as agent:
            job = home.submit(**sets)
            home.wait_hit("trainer.forward")
            until(lambda: any(c["step"] == 4 for c in home.show(job)["checkpoints"]), 10, "step 4 is committed")
            wait_for_peers(home, job, 6, 2)
            lose(home, agent)
        with node(home):
            home.wait_hit("trainer.forming")
            taken = restored_steps(home, job)
            assert taken and taken[0] in (6, 7)
            for path in from_peers(home, job):
                DAMAGES[name](path)
            home.go("trainer.forming")
            assert home.digest(job) == quiet
            assert restored_steps(home, job) == taken  # once
            assert any("not tried again" in text for text in events(home, job))


def test_a_copy_that_came_damaged_costs_its_round_only(quiet):
    with Home(env=Home.RESTART, faults=stop_at(7) + ";peers.received,rank=1:eio", slots=1) as home:
        with node(home) as agent:
            job = home.submit(**AT_A_PEER)
            home.wait_hit("trainer.forward")
            wait_for_peers(home, job, 6, 2)
            log = (home.home / f"jobs/{job}/g1/r1.log").read_text()
            assert log.count("as received: input/output error") == 1 and "no more copies" not in log, log
            lose(home, agent)
        with node(home):
            assert home.digest(job) == quiet
            assert restored_steps(home, job)[0] in (6, 7)


def test_an_exchange_that_fails_ends_no_job(quiet):
    faults = stop_at(7) + ";trainer.forming,rank=0,generation=1:wait"
    with Home(env=Home.RESTART, faults=faults, slots=1) as home, node(home):
        job = home.submit(**AT_A_PEER)
        home.wait_hit("trainer.forming")
        folders = set(workers_of(home, "another").values())
        assert len(folders) == 1
        folder = folders.pop()
        blocked = [folder / f"g1-r{rank}-{FIRST_FROM_A_PEER}.copy" for rank in (0, 1)]  # one is its ward's
        for path in blocked:
            path.mkdir()
        home.go("trainer.forming")
        home.wait_hit("trainer.forward")

        def warnings():
            logs = home.home.glob(f"jobs/{job}/g1/*.log")
            return [log.read_text().count("no more copies at other nodes") for log in logs]
        until(lambda: warnings() == [1, 1], 20, "both workers warn")
        until(lambda: not any(path.name.endswith(f"-{FIRST_FROM_A_PEER}.copy") and path.is_file()
                              for path in copies(home, job)), 10, "what the other one had begun to receive is gone")
        home.go("trainer.forward")
        assert home.digest(job) == quiet
        assert home.show(job)["generation"] == 1
        assert warnings() == [1, 1]
        until(lambda: not copies(home, job), 10, "all of it went with the job")


def test_rounds_pause_for_as_long_as_their_share_of_the_time_wants():
    with Home(env={"CAIRN_LOG": "debug"}, slots=1) as home, node(home):
        job = home.submit(train__duration="2000 steps", **AT_A_PEER)
        log = home.home / f"jobs/{job}/g1/r0.log"

        def rounds():
            """(end, how long it took), in seconds."""
            lines = [json.loads(line) for line in log.read_text().splitlines() if "round to step" in line]
            return [(datetime.fromisoformat(line["ts"][:-1]).timestamp(),
                     float(re.search(r"took ([\d.]+) ms", line["msg"])[1]) / 1e3) for line in lines]
        until(lambda: log.exists() and len(rounds()) >= 2, 150, "two rounds")  # a slow one makes the next one late
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")
        seen = rounds()
        for (end, took), (next_end, next_took) in zip(seen, seen[1:]):
            assert next_end - end >= 49 * took + next_took - 0.002, seen  # the log's times are whole milliseconds
