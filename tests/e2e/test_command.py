"""A program of the user's own in place of a model: it starts as under torchrun, is ended whole, and is started again after
whatever ended it; what it computes then is what it computes undisturbed."""
import json
import os
import re
import signal
import sys
from pathlib import Path

import pytest

from home import ROOT, Home, alive, until

SAMPLE = 4
PROGRAM = ROOT / "tests/e2e/command_program.py"
JOB = f"""\
name: mine
command:
  run: [{sys.executable}, {PROGRAM}]
  folder: out
  progress: 'step (\\d+)'
workers: {{count: 2}}
"""


def result(home):
    return (home.dir / "out/result").read_text(encoding="utf-8")


def submit(home, text=JOB, env=None, **sets):
    words = ", ".join(f'{name}: "{value}"' for name, value in (env or {}).items())
    return home.submit(text, command__env="{" + words + "}", **sets)


@pytest.fixture(scope="module")
def quiet():
    with Home() as home:
        home.wait_state(submit(home), "SUCCEEDED")
        return result(home)


def logs(home, job):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{job}/*/*.log")))


def environments(home, job):
    lines = [line for line in logs(home, job).splitlines() if "environment {" in line]
    return sorted((json.loads(line[line.index("{"):]) for line in lines), key=lambda env: int(env["RANK"]))


def test_it_starts_as_under_torchrun():
    with Home() as home:
        job = submit(home, env={"MINE": "a b"}, command__processes=2)
        home.wait_state(job, "SUCCEEDED")
        found = environments(home, job)
        assert [(env["RANK"], env["LOCAL_RANK"]) for env in found] == [(str(i), str(i)) for i in range(4)]
        for env in found:
            assert (env["WORLD_SIZE"], env["LOCAL_WORLD_SIZE"], env["GROUP_RANK"], env["GROUP_WORLD_SIZE"]) == ("4", "4", "0", "1")
            assert env["MASTER_PORT"] == found[0]["MASTER_PORT"] and int(env["MASTER_PORT"]) > 0 and env["MASTER_ADDR"]
            assert (env["TORCHELASTIC_RESTART_COUNT"], env["TORCHELASTIC_RUN_ID"], env["MINE"]) == ("0", job, "a b")
        shown = home.show(job)
        assert shown["step"] == 20 and shown["restarts"] == 0, shown
        # Each line of several processes says whose it is.
        assert re.search(r"^\[0\] step 20 ", logs(home, job), re.M)


@pytest.mark.parametrize("rank, sets", ((0, {}), (1, {}), (1, {"command__preload": "[json, socket]"})))
def test_who_is_killed_comes_back_and_the_result_is_the_same(rank, sets, quiet):
    with Home() as home:
        job = submit(home, env={"AT": f"12:{rank}:kill"}, **sets)
        shown = home.wait_state(job, "SUCCEEDED")
        assert result(home) == quiet
        assert shown["restarts"] == 1
        why = home.cairn("why", job).stdout
        assert f"the program of rank {rank} was killed by SIGKILL" in why, why
        assert "started cold" not in logs(home, job)


def test_others_are_started_once_rank_0_listens(quiet):
    """As soon as a start before has shown that it does. On a machine that is too slow for that the logs say so."""
    with Home() as home:
        job = submit(home, env={"AT": "12:1:kill", "LISTEN_S": "0.1"}, command__preload="[json, socket]")
        home.wait_state(job, "SUCCEEDED")
        assert result(home) == quiet
        said = logs(home, job)
        assert "refused in generation 1" in said
        seen = "the others are started then" in said and "doesn't listen yet" not in said
        assert not seen or "refused in generation 2" not in said, said


def test_imports_that_start_threads_are_told_and_done_without(quiet):
    with Home() as home:
        (home.dir / "threads.py").write_text("import threading, time\nthreading.Thread(target=time.sleep, args=(99,), daemon=True).start()\n",
                                             encoding="utf-8")
        job = submit(home, env={"PYTHONPATH": str(home.dir)}, command__preload="[threads]")
        home.wait_state(job, "SUCCEEDED")
        assert result(home) == quiet
        assert "preload: an import started 1 threads; processes are started cold" in logs(home, job)


def programs(home):
    """Processes of the job's program, and what they started."""
    return [pid for pid, name in home.pids().items() if name.startswith("python")]


@pytest.mark.parametrize("killed", ("program", "worker", "worker and agent"))
def test_nothing_of_it_is_left_behind(killed, quiet):
    with Home() as home:
        job = submit(home, env={"LOADER": "1", "STEP_S": "0.1"})
        home.wait_state(job, "RUNNING")
        before = until(lambda: len(programs(home)) == 4 and programs(home), 20, "two programs and their loaders")
        if "agent" in killed:
            home.kill("cairn-agent")
        if "worker" in killed:
            os.kill(next(iter(home.pids("cairn-trainer"))), signal.SIGKILL)
        else:
            os.kill(min(before), signal.SIGKILL)
        until(lambda: not any(alive(pid) for pid in before), 20, "all of the generation before is gone")
        home.wait_state(job, "SUCCEEDED")
        assert result(home) == quiet
        until(lambda: not programs(home), 10, "its last generation is gone, too")
        assert not (home.dir / "out/loader-told").exists()


def test_what_never_makes_a_step_is_given_up_soon_with_its_last_words():
    with Home() as home:
        job = submit(home, JOB.replace(f"{PROGRAM}]", "-c, 'import a_module_that_is_missing']"))
        shown = home.wait_state(job, "FAILED")
        assert shown["restarts"] == 2, shown
        why = home.cairn("why", job).stdout
        assert "No module named 'a_module_that_is_missing'" in why and "3 failures in a row before the first step" in why, why


def test_a_code_that_is_not_listed_fails_the_job_with_the_last_words():
    with Home() as home:
        job = submit(home, env={"AT": "3:1:raise"}, command__restart__on_exit_codes="[75]")
        shown = home.wait_state(job, "FAILED")
        assert shown["restarts"] == 0
        assert shown["reason"] == "the program of rank 1 ended with code 1: ValueError: the loss is a banana"


def test_a_code_that_is_listed_starts_it_again(quiet):
    with Home() as home:
        job = submit(home, env={"AT": "3:1:exit75"}, command__restart__on_exit_codes="[75]")
        assert home.wait_state(job, "SUCCEEDED")["restarts"] == 1
        assert result(home) == quiet


def test_so_does_a_pattern():
    with Home() as home:
        job = submit(home, env={"AT": "3:1:raise"}, command__restart__on_exit_codes="[75]", command__restart__budget=2,
                     command__restart__on_output="['loss is a .anana$']")
        shown = home.wait_state(job, "FAILED")
        assert shown["restarts"] == 1 and "ValueError: the loss is a banana" in shown["reason"], shown


@pytest.mark.parametrize("what", ("hang", "stop"))
def test_who_hangs_is_named_with_its_line(what, quiet):
    with Home() as home:
        job = submit(home, env={"AT": f"12:1:{what}"}, command__hang="2 s")
        assert home.wait_state(job, "SUCCEEDED")["restarts"] == 1
        assert result(home) == quiet
        why = home.cairn("why", job).stdout
        if what == "stop":
            assert re.search(r"the program of rank 1 (shows no progress for \d+\.\d s, at step \d+: it )?is stopped \(state T\)", why), why
        else:  # rank 0 shows steps, and waits for rank 1
            assert re.search(r"the program of rank 0 shows no progress for \d+\.\d s, at step 12: it is in command_program.py, "
                             r"line \d+ in receive", why), why
            assert re.search(r"stack +rank 1: the program of rank 1 is in command_program.py, line \d+ in hang_here", why), why


@pytest.mark.parametrize("how", ("pause", "drain"))
def test_told_to_go_it_saves_and_goes_on_later(how, quiet):
    with Home() as home:
        job = submit(home, env={"LOADER": "1", "STEP_S": "0.1"})
        until(lambda: home.show(job)["step"] >= 7, 20, "it is at step 7")
        if how == "pause":
            home.cairn("pause", job)
            home.wait_state(job, "PAUSED")
            saved = json.loads((home.dir / "out/state").read_text(encoding="utf-8"))[0]
            assert saved >= 7
            until(lambda: not programs(home), 10, "nothing of it is left")
            home.cairn("resume", job)
        else:
            for pid in home.pids("cairn-trainer"):
                os.kill(pid, signal.SIGTERM)
        home.wait_state(job, "SUCCEEDED")
        assert result(home) == quiet
        assert not (home.dir / "out/loader-told").exists(), "SIGTERM is for the program alone"


def test_it_does_not_hear_of_the_coordinators_and_the_agents_death(quiet):
    with Home() as home:
        job = submit(home, env={"STEP_S": "0.2"})
        until(lambda: home.show(job)["step"] >= 3, 20, "it is at step 3")
        before = set(programs(home))
        home.kill("cairnd")
        home.kill("cairn-agent")
        shown = home.wait_state(job, "SUCCEEDED")
        assert shown["restarts"] == 0 and result(home) == quiet
        assert len(before) == 2


def test_with_fewer_workers_it_goes_on():
    with Home(slots=2) as home:
        job = submit(home, env={"STEP_S": "0.1"}, workers__min=1)
        until(lambda: home.show(job)["step"] >= 3, 20, "it is at step 3")
        home.cairn("set", job, "workers.count=1")
        home.wait_state(job, "SUCCEEDED")
        assert environments(home, job)[-1]["WORLD_SIZE"] in ("1", "2")
        assert {env["WORLD_SIZE"] for env in environments(home, job)} == {"1", "2"}


def test_with_as_many_workers_again_all_of_them_run():
    with Home(slots=2) as home:
        job = submit(home, env={"STEP_S": "0.1", "STEPS": "150"}, workers__min=1)
        for count in (1, 2):
            until(lambda: home.show(job)["step"] >= 3 * count, 20, f"it is at step {3 * count}")
            home.cairn("set", job, f"workers.count={count}")
            until(lambda: home.show(job)["generation"] == 1 + count and home.show(job)["state"] == "RUNNING", 40,
                  f"{count} workers run")
        home.wait_state(job, "SUCCEEDED")
        assert [env["WORLD_SIZE"] for env in environments(home, job)].count("2") == 4


def test_a_program_that_is_not_there_fails_the_job():
    with Home() as home:
        job = submit(home, JOB.replace(sys.executable, "no-such-program-here"))
        assert "no-such-program-here: No such file or directory" in home.wait_state(job, "FAILED")["reason"]


def test_the_collective_that_a_rank_never_entered_is_named(tmp_path):
    """By what PyTorch's flight recorder wrote, as two processes do whose collective timed out."""
    dumps = ROOT / "tests/golden/torch_trace"
    with Home() as home:
        job = submit(home, env={"TORCH_FR_DUMP_TEMP_FILE": f"{tmp_path}/dump_"}, command__restart__on_exit_codes="[75]",
                     command__run=f"cp {dumps}/gloo.$RANK {tmp_path}/dump_$RANK && sleep 1; exit $RANK")
        shown = home.wait_state(job, "FAILED")
        assert "ended with code 1" in shown["reason"], shown
        assert "by PyTorch's flight recorder collective 5 (gloo:all_reduce) was never entered by rank 1" in shown["reason"], shown
