"""Copies in memory: all workers of a job are killed at once, and at most one finished step is lost."""
import os
import re
import shutil
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from home import BIN, Home, alive, until

# No checkpoint before the end: what is not lost comes from memory.
EVERY_STEP = {"checkpoint__every": "1000 steps", "checkpoint__memory_every": "1 step"}


def events(home, job):
    return [e["message"] for e in home.show(job)["events"]]


def restored_steps(home, job):
    found = (re.search(r"restored from memory: step (\d+)", text) for text in events(home, job))
    return [int(m.group(1)) for m in found if m]


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


@pytest.mark.parametrize("step", [1, 2, 7, 11])
def test_at_most_one_finished_step_is_lost(quiet, step):
    with Home(faults=stop_at(step)) as home:
        job = killed_at(home, step)
        assert home.digest(job) == quiet
        # Rank 0 had finished `step` steps; its copy may not have been whole yet.
        assert restored_steps(home, job) in ([step], [step - 1] if step > 1 else [])
        until(lambda: not copies(home, job), 10, "the copies went with the job")


def test_the_coordinator_may_die_with_the_workers(quiet):
    with Home(faults=stop_at(7)) as home:
        job = home.submit(**EVERY_STEP)
        home.wait_hit("trainer.forward")
        home.kill("cairnd")
        kill_workers(home)
        assert home.digest(job) == quiet
        assert restored_steps(home, job)[0] in (6, 7)


def test_the_agent_may_die_with_the_workers(quiet):
    with Home(faults=stop_at(7)) as home:
        job = home.submit(**EVERY_STEP)
        home.wait_hit("trainer.forward")
        home.kill("cairn-agent")
        kill_workers(home)
        assert home.digest(job) == quiet
        assert restored_steps(home, job)[0] in (6, 7)


def test_the_coordinator_sends_the_same_plan_after_its_restart(quiet):
    with Home(faults=stop_at(7) + ";coordinator.plan,generation=2,rank=1:kill") as home:
        job = killed_at(home, 7)
        assert home.digest(job) == quiet
        assert restored_steps(home, job)[0] in (6, 7)


def test_killed_again_while_it_restores(quiet):
    with Home(faults=stop_at(7) + ";trainer.restore,rank=1:kill") as home:
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
    with Home(faults=faults) as home:
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


def test_what_a_killed_job_leaves_is_removed_by_the_next_agent():
    with Home(faults=stop_at(7)) as home:
        job = home.submit(**EVERY_STEP)
        home.wait_hit("trainer.forward")
        assert copies(home, job)
        home.kill("cairn-agent", signal.SIGSTOP)
        home.cairn("kill", job)
        home.kill("cairn-trainer")
        home.kill("cairn-agent")
        stranger = home.copies / copies(home, job)[0].parent.parent.name / "j-nobodys"
        stranger.mkdir()
        (stranger / "g1-r0-0.copy").write_bytes(b"x")
        until(lambda: not copies(home), 30, "the next agent removes what no job needs")
        assert not list(Path(home.copies).glob("*/*"))


def test_shares_travel_between_nodes(quiet):
    with Home(faults=stop_at(7), slots=1) as home:
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


# ---- copies at another node

AT_A_PEER = {**EVERY_STEP, "checkpoint__peers": "1"}
FIRST_FROM_A_PEER = 8  # number of the first slot that holds another node's copy


def start_agent(home, name):
    command = [BIN / "cairn-agent", "--name", name, "--slots", "1"]
    return subprocess.Popen(command, env=home.env, cwd=home.dir, stderr=subprocess.DEVNULL)


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
    found = {}
    for path in copies(home, job):
        generation, rank, number = map(int, re.fullmatch(r"g(\d+)-r(\d+)-(\d+)\.copy", path.name).groups())
        whole = whole_copy(path)
        if number >= FIRST_FROM_A_PEER and whole is not None:
            assert whole[:2] == (generation, rank)
            found[path] = whole
    return found


def both_at_peers(home, job, step):
    """Each rank's copy of that step, or a newer one, is at the other node."""
    found = from_peers(home, job)
    return {rank for _, rank, at in found.values() if at >= step} == {0, 1} and found


def folder_of(home, job, name):
    """The copies of a node's job, by the process of the worker that runs there."""
    ranks = [w["rank"] for w in home.show(job)["workers"] if w["node"] == name]
    assert len(ranks) == 1, home.show(job)["workers"]
    own = [path.parent for path in copies(home, job)
           if path.name.startswith(f"g1-r{ranks[0]}-") and path not in from_peers(home, job)]
    return ranks[0], own[0]


def worker_of(home, rank):
    for pid in home.pids("cairn-trainer"):
        args = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if f"{rank}".encode() in args:
            return pid
    raise AssertionError(f"no worker of rank {rank}")


def lose_node(home, job, agent, name):
    """Its agent and worker are killed, its memory is gone."""
    rank, folder = folder_of(home, job, name)
    worker = worker_of(home, rank)
    agent.kill()
    agent.wait()
    os.kill(worker, signal.SIGKILL)
    until(lambda: not alive(worker), 10, "the worker is gone")
    shutil.rmtree(folder)
    return rank


def test_a_lost_node_loses_no_step(quiet):
    with Home(faults=stop_at(7), slots=1) as home:
        agent = start_agent(home, "another")
        job = home.submit(**AT_A_PEER)
        home.wait_hit("trainer.forward")
        until(lambda: both_at_peers(home, job, 6), 30, "copies are at the other node")
        lose_node(home, job, agent, "another")
        home.go("trainer.forward")
        agent = start_agent(home, "another")
        try:
            assert home.digest(job) == quiet
            assert restored_steps(home, job)[0] in (6, 7)
            until(lambda: not copies(home, job), 10, "the copies went with the job, on both nodes")
        finally:
            agent.terminate()
            agent.wait()
