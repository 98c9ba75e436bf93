"""Several processes of a program in each worker, saved by Cairn (examples/library.c): the bits are those of a worker for each process,
whoever is killed. The processes don't talk to each other, so each is somewhere else."""
import os
import re
import signal
from pathlib import Path

import pytest

from home import BIN, Home, alive, until

SAMPLE = 2
STEPS = 60


def text(workers, processes, every=10):
    return f"""\
name: mine
command:
  run: [{BIN}/library_example, "{STEPS}", "60", out/state]
  folder: out
  processes: {processes}
workers: {{count: {workers}}}
checkpoint: {{every: {every} steps, store: checkpoints/, memory_every: 1 step}}
"""


def result(home, ranks=4):
    return [(home.dir / f"out/state.{rank}").read_text(encoding="utf-8") for rank in range(ranks)]


def log(home, job):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{job}/*/*.log")))


def program_of(home, rank):
    for pid in home.pids("library_example"):
        if f"RANK={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
            return pid
    return None


def await_step(home, job, step):
    until(lambda: home.show(job)["step"] >= step, 30, f"step {step}")


@pytest.fixture(scope="module", name="quiet")
def quiet_result():
    """Of a worker for each process."""
    with Home(slots=4) as home:
        return home.digest(home.submit(text(4, 1))), result(home)


KILLS = {
    "a process": lambda home: os.kill(program_of(home, 3), signal.SIGKILL),
    "the first process": lambda home: os.kill(program_of(home, 0), signal.SIGKILL),
    "a worker": lambda home: os.kill(next(iter(home.pids("cairn-trainer"))), signal.SIGKILL),
    "everything": lambda home: [home.kill(name) for name in ("cairnd", "cairn-agent", "cairn-trainer", "library_example")],
}


@pytest.mark.parametrize("what", KILLS)
@pytest.mark.parametrize("workers", (1, 2))
def test_it_has_the_bits_of_a_worker_for_each_process(workers, what, quiet):
    with Home(slots=workers) as home:
        job = home.submit(text(workers, 4 // workers))
        await_step(home, job, 12)
        KILLS[what](home)
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        shown = home.show(job)
        assert [checkpoint["step"] for checkpoint in shown["checkpoints"]][0] == STEPS, shown["checkpoints"]
        home.cairn("ckpt", "verify", job)
        # A worker's processes have copies of the same steps, and nobody began anew; two workers may be many steps apart.
        assert workers > 1 or all(len(re.findall(rf"^\[{rank}\] step 1$", log(home, job), re.M)) <= 1 for rank in range(4))


@pytest.mark.parametrize("told", ("pause", "program", "worker"))
def test_who_is_told_to_go_saves_first(told, quiet):
    with Home(slots=2) as home:
        job = home.submit(text(2, 2, every=1000))
        await_step(home, job, 12)
        if told == "pause":
            home.cairn("pause", job)
            shown = home.wait_state(job, "PAUSED")
            assert shown["checkpoints"] and not home.pids("library_example")
            home.cairn("resume", job)
        else:
            pid = program_of(home, 1) if told == "program" else max(home.pids("cairn-trainer"))
            os.kill(pid, signal.SIGTERM)
            until(lambda: not alive(pid), 20, "it has ended")
        assert home.digest(job) == quiet[0]
        assert result(home) == quiet[1]
        for rank in range(4):
            assert [int(step) for step in re.findall(rf"^\[{rank}\] step (\d+)$", log(home, job), re.M)] == list(range(1, STEPS + 1))


def test_a_process_that_is_stopped_is_named():
    with Home(slots=1) as home:
        job = home.submit(text(1, 2), command__hang="2 s")
        await_step(home, job, 5)
        os.kill(program_of(home, 1), signal.SIGSTOP)
        until(lambda: "the program of rank 1 shows no progress" in home.cairn("why", job).stdout, 30, "it is named")
        home.wait_state(job, "SUCCEEDED")


def test_one_that_ends_too_early_is_named():
    with Home(slots=1) as home:
        job = home.submit(text(1, 2), command__run=f"'[ $RANK = 1 ] || exec {BIN}/library_example {STEPS} 60 out/state'",
                          command__restart__on_exit_codes="[75]")
        shown = home.wait_state(job, "FAILED")
        assert "the program of rank 1 ended with code 0 before it called cairn_ready" in shown["reason"], shown
