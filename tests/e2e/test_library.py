"""A program of the user's own that lets Cairn save its state (examples/library.c): whatever is killed, it goes on where it was,
at most one finished step is done again, and what it computes is what it computes undisturbed."""
import json
import os
import re
import signal
import struct
import subprocess
from pathlib import Path

import pytest

from home import BIN, Home, alive, until
from test_full_disk import fill, own_mounts, small_store  # noqa: F401

STEPS = 40
JOB = f"""\
name: mine
command:
  run: [{BIN}/library_example, "{STEPS}", "50", out/state]
  folder: out
workers: {{count: 2}}
checkpoint: {{every: 1000 steps, store: checkpoints/, memory_every: 1 step}}
"""
EVERY_TEN = {"checkpoint__every": "10 steps", "checkpoint__keep__last": 9}
FROM_STORE = {**EVERY_TEN, "checkpoint__memory_every": "none"}


def result(home):
    return [(home.dir / f"out/state.{rank}").read_text(encoding="utf-8") for rank in range(2)]


def printed(home, job, rank):
    """The steps that the rank's program finished, one after the other."""
    return [int(step) for step in re.findall(r"^step (\d+)$", log(home, job, rank), re.M)]


def messages(home, job):
    return [event["message"] for event in home.show(job)["events"]]


def log(home, job, rank):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{job}/*/r{rank}.log")))


def program_of(home, rank):
    for pid in home.pids("library_example"):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    return None


def await_step(home, job, step):
    until(lambda: f"\nstep {step}\n" in log(home, job, 0), 30, f"step {step}")


@pytest.fixture(scope="module", name="quiet")
def quiet_result():
    with Home() as home:
        job = home.submit(JOB)
        digest = home.digest(job)
        until(lambda: not list(home.copies.glob(f"*/{job}/*")), 10, "nothing is left in memory")
        return digest, result(home)


def at_most_one_step_again(home, job):
    """Each rank printed some steps twice: no more than one that all ranks had finished."""
    steps = [printed(home, job, rank) for rank in range(2)]
    jumps = [[(a, b) for a, b in zip(one, one[1:]) if b <= a] for one in steps]
    assert jumps[0] or jumps[1] or all(one == sorted(set(one)) for one in steps), steps
    for a, b in zip(*jumps):  # both began again at the same step
        assert a[1] == b[1]
        assert a[1] >= min(a[0], b[0]), (a, b)
    return jumps


KILLS = {
    "the program of rank 0": lambda home: os.kill(program_of(home, 0), signal.SIGKILL),
    "the program of rank 1": lambda home: os.kill(program_of(home, 1), signal.SIGKILL),
    "both programs": lambda home: home.kill("library_example"),
    "a worker": lambda home: os.kill(next(iter(home.pids("cairn-trainer"))), signal.SIGKILL),
    "both workers": lambda home: home.kill("cairn-trainer"),
    "everything but the coordinator": lambda home: [home.kill(name) for name in ("cairn-agent", "cairn-trainer", "library_example")],
    "everything": lambda home: [home.kill(name) for name in ("cairnd", "cairn-agent", "cairn-trainer", "library_example")],
}


@pytest.mark.parametrize("step", (1, 17, 33))
@pytest.mark.parametrize("what", KILLS)
def test_it_goes_on_where_it_was(what, step, quiet):
    with Home() as home:
        job = home.submit(JOB)
        await_step(home, job, step)
        KILLS[what](home)
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        at_most_one_step_again(home, job)


@pytest.mark.parametrize("step", (15, 23))
def test_it_may_end_before_its_last_step(step):
    with Home() as home:
        job = home.submit(JOB.replace("out/state]", 'out/state, "23"]'))
        await_step(home, job, step)
        home.kill("library_example")
        shown = home.wait_state(job, "SUCCEEDED")
        assert shown["step"] == 23 and max(printed(home, job, 0)) == max(printed(home, job, 1)) == 23
        said = [each for each in messages(home, job) if "the program ends by itself with step 23, before its last one, 40: it is good enough" in each]
        assert said, messages(home, job)
        alone = home.dir / "alone"
        subprocess.run([f"{BIN}/library_example", "40", "0", alone, "23"], check=True, stdout=subprocess.DEVNULL)
        assert result(home)[0] == alone.with_suffix(".0").read_text(encoding="utf-8")
        home.cairn("ckpt", "verify", job)


def test_ranks_that_end_with_different_steps_fail():
    with Home() as home:
        job = home.submit(re.sub(r"run: .*", f"run: 'exec {BIN}/library_example 40 50 out/state $((23 + 4 * RANK))'", JOB))
        home.wait_state(job, "FAILED")
        why = home.cairn("why", job).stdout
        assert "another rank ends with step 23: all ranks have to end with the same step" in why, why


@pytest.mark.parametrize("who", ("cairnd", "cairn-agent"))
def test_who_only_watches_may_die_and_nothing_stops(who, quiet):
    with Home() as home:
        job = home.submit(JOB, **EVERY_TEN)
        await_step(home, job, 17)
        home.kill(who)
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        if who == "cairnd":
            assert printed(home, job, 0) == printed(home, job, 1) == list(range(1, STEPS + 1))


def test_it_pauses_with_a_save_and_resumes(quiet):
    with Home() as home:
        job = home.submit(JOB)
        await_step(home, job, 12)
        home.cairn("pause", job)
        shown = home.wait_state(job, "PAUSED")
        assert shown["checkpoints"] and shown["checkpoints"][0]["status"] == "good"
        assert not home.pids("library_example")
        home.cairn("resume", job)
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        assert printed(home, job, 0) == list(range(1, STEPS + 1))


def test_the_one_before_is_used_where_the_newest_is_damaged_and_that_is_said(quiet):
    with Home() as home:
        job = home.submit(JOB, **FROM_STORE)
        until(lambda: len(home.show(job)["checkpoints"]) >= 2, 30, "two checkpoints")
        home.cairn("pause", job)
        shown = home.wait_state(job, "PAUSED")
        folder = Path(shown["checkpoints"][0]["path"])
        shard = sorted(folder.glob("shard-*.cairn"))[1]
        data = bytearray(shard.read_bytes())
        data[4096 + 200] ^= 4
        shard.write_bytes(bytes(data))
        home.cairn("resume", job)
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        said = "\n".join(messages(home, job))
        assert folder.name in said or "damaged" in said, said
        assert any(c["status"] != "good" for c in home.show(job)["checkpoints"]), home.show(job)["checkpoints"]


def test_its_checkpoints_are_as_any_others():
    with Home() as home:
        job = home.submit(JOB, **EVERY_TEN)
        home.wait_state(job, "SUCCEEDED")
        listed = home.cairn("ckpt", "ls", job).stdout
        assert re.findall(r"^ +(\d+) ", listed, re.M) == ["40", "30", "20", "10"], listed
        home.cairn("ckpt", "verify", job)
        older, newer = (f"{job}@{step}" for step in (30, 40))
        assert home.cairn("ckpt", "digest", older).stdout != home.cairn("ckpt", "digest", newer).stdout
        assert home.cairn("ckpt", "diff", newer, newer).stdout.startswith("equal: 0 of ")
        differing = home.cairn("ckpt", "diff", older, newer, check=False)
        assert differing.returncode == 1 and re.findall(r"^\((\w+)\) ", differing.stdout, re.M) == ["bytes", "ranks"], differing.stdout


def test_who_writes_its_tensors_is_named_and_does():
    """They are float64, or each rank's own: a checkpoint's table has no such tensors."""
    with Home() as home:
        job = home.submit(JOB)
        path = home.wait_state(job, "SUCCEEDED")["checkpoints"][0]["path"]
        done = home.cairn("ckpt", "export", job, "all.safetensors", check=False)
        assert done.returncode == 4 and f"'python3 -m cairn export {path} all.safetensors' writes all" in done.stderr, done.stderr
        package = Path(BIN).parent / "python"
        if not (package / "cairn").exists():
            pytest.skip("this build has no Python package")
        subprocess.run(["/usr/bin/python3", "-m", "cairn", "export", path, "all.safetensors", "--rank", "1"], cwd=home.dir, check=True,
                       env={**home.env, "PYTHONPATH": str(package)})
        data = (home.dir / "all.safetensors").read_bytes()
        header = json.loads(data[8:8 + struct.unpack_from("<Q", data)[0]])
        assert {name: each["dtype"] for name, each in header.items() if name != "__metadata__"} == \
            {"weights": "F64", "momentum": "F64", "seen": "U64"}, header


def test_a_program_that_ends_before_its_last_step_has_failed():
    with Home() as home:
        job = home.submit(JOB, command__run="[/bin/true]", command__restart__on_exit_codes="[75]")
        shown = home.wait_state(job, "FAILED")
        assert "ended with code 0 before it called cairn_ready" in shown["reason"], shown


@pytest.mark.parametrize("told", ("program", "worker"))
def test_who_is_told_to_go_saves_first(told, quiet):
    with Home() as home:
        job = home.submit(JOB)
        await_step(home, job, 12)
        pid = program_of(home, 1) if told == "program" else max(home.pids("cairn-trainer"))
        os.kill(pid, signal.SIGTERM)
        until(lambda: not alive(pid), 20, "it has ended")
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        assert printed(home, job, 0) == list(range(1, STEPS + 1))


def test_who_does_not_come_to_the_last_step_has_an_older_copy_saved(quiet):
    with Home() as home:
        job = home.submit(JOB, checkpoint__grace="2 s")
        await_step(home, job, 12)
        home.kill("library_example", signal.SIGSTOP)
        home.cairn("pause", job)
        shown = home.wait_state(job, "PAUSED")
        steps = [printed(home, job, rank)[-1] for rank in range(2)]
        assert shown["checkpoints"][0]["status"] == "good" and shown["checkpoints"][0]["step"] >= min(steps) - 1, shown["checkpoints"]
        assert not home.pids("library_example")
        home.cairn("resume", job)
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]


def test_a_full_store_stops_no_step_and_the_last_save_waits_for_room(quiet):
    with small_store() as home:
        job = home.submit(JOB, **EVERY_TEN, name="full")
        await_step(home, job, 2)
        fill(home.dir / "checkpoints/foreign")
        until(lambda: all((home.dir / f"out/state.{rank}").exists() for rank in range(2)), 20, "all steps are done")
        assert home.show(job)["state"] not in ("SUCCEEDED", "FAILED") and not home.show(job)["checkpoints"]
        (home.dir / "checkpoints/foreign").unlink()
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        assert home.show(job)["restarts"] == 0


def test_a_flipped_byte_in_memory_is_found_and_the_checkpoint_is_used(quiet):
    with Home() as home:
        job = home.submit(JOB, **EVERY_TEN)
        until(lambda: home.show(job)["checkpoints"], 30, "a checkpoint")
        home.kill("cairnd", signal.SIGSTOP)
        home.kill("library_example")
        until(lambda: not home.pids("library_example"), 10, "the programs are gone")
        for path in home.copies.glob(f"*/{job}/g1-r1-*.copy"):
            data = bytearray(path.read_bytes())
            data[struct.unpack_from("<Q", data, 64 + 216)[0] + 100] ^= 1  # where the rank's area begins
            path.write_bytes(bytes(data))
        home.kill("cairnd", signal.SIGCONT)
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        said = "\n".join(messages(home, job))
        assert "copy in memory of step" in said and "share 1 of 2" in said, said
        assert printed(home, job, 0).count(1) == 1  # it didn't begin anew
