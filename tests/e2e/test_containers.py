"""What programs do in a container: as process 1, with its variables, with its /dev/shm of 64 MB.

Spaces of processes and of mounts of their own stand for the container; the image itself: tests/images."""
import json
import os
import re
import signal
import subprocess
from contextlib import contextmanager

import pytest

from home import BIN, TINY, Home, alive, until
from test_leave import REASON, UNSHARE, USER, child_of

pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

LONG = {"train__duration": "4000 steps", "checkpoint__every": "100000 steps", "eval__every": "100000 steps"}
AT = 200


# ---- process 1


@contextmanager
def process_1(home, *command, env=None, log="process-1.log"):
    """(the process that ends with the program's code, its pid)"""
    with open(home.dir / log, "ab") as out:
        process = subprocess.Popen([*UNSHARE, BIN / command[0], *command[1:]], env=env or home.env, cwd=home.dir,
                                   stdin=subprocess.DEVNULL, stdout=out, stderr=out)
    try:
        until(lambda: child_of(process.pid), 10, "it starts")
        yield process, child_of(process.pid)[0]
    finally:
        process.kill()  # and its child with it
        process.wait()


def answers(home):
    return home.cairn("ps", check=False).returncode == 0


def leave_orphans(pid):
    """Two processes whose parent ends before them, as a health check or `podman exec` leaves them."""
    user = ["-U", "--preserve-credentials"] if USER else []
    before = child_of(pid)
    subprocess.run(["nsenter", "-t", str(pid), *user, "-p", "-m", "--", "sh", "-c", "sleep 0.5 & sleep 0.5 & exit 0"],
                   check=True)
    orphans = set(child_of(pid)) - set(before)
    assert len(orphans) == 2
    return orphans


class Apart(Home):
    """Nothing runs until a test starts it."""

    def __enter__(self):
        self.home.mkdir(0o700)
        return self


@pytest.mark.parametrize("program", ["cairnd", "cairn-observer", "cairn up --foreground --page none"])
def test_process_1_takes_away_the_dead_and_ends_on_sigterm(program):
    with Apart() as home, process_1(home, *program.split()) as (process, pid):
        if program == "cairn-observer":
            until(lambda: (home.home / "page").exists(), 20, "the page is there")
        else:
            until(lambda: answers(home), 20, "the coordinator answers")
        orphans = leave_orphans(pid)
        until(lambda: not orphans & set(child_of(pid)), 10, "they are reaped")
        assert alive(pid)
        os.kill(pid, signal.SIGTERM)
        assert process.wait(60) == 0


def test_up_that_would_return_refuses_to_be_process_1():
    with Apart() as home:
        done = subprocess.run([*UNSHARE, BIN / "cairn", "up"], env=home.env, cwd=home.dir, capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == 2 and "cairn up --foreground" in done.stderr, done
        assert not home.pids()


def test_a_container_that_is_stopped_and_started_goes_on_with_the_same_bits():
    with Home() as home:
        quiet = home.run(TINY, **LONG)
    with Apart(faults=f"trainer.forward,rank=0,step={AT}:wait") as home:
        up = ("cairn", "up", "--foreground", "--page", "none", "--slots", "4")
        with process_1(home, *up) as (process, pid):
            until(lambda: answers(home), 20, "the coordinator answers")
            job = home.submit(**LONG)
            home.wait_hit("trainer.forward")
            os.kill(pid, signal.SIGTERM)
            home.go("trainer.forward")
            assert process.wait(60) == 0
        with process_1(home, *up) as (process, pid):
            until(lambda: answers(home), 20, "the coordinator answers")
            assert home.digest(job) == quiet
            shown = home.show(job)
            assert shown["lost_seconds"].get("replay", 0) == 0 and shown["generation"] == 2
            forming = next(e["message"] for e in shown["events"] if (e["kind"], e["generation"]) == ("forming", 2))
            assert AT <= int(re.search(r"from the checkpoint of step (\d+)", forming)[1]) < 4000, forming
            os.kill(pid, signal.SIGTERM)
            assert process.wait(60) == 0


@pytest.mark.parametrize("variable", ["container", "KUBERNETES_SERVICE_HOST", None])
def test_an_agent_in_a_container_leaves_though_another_is_process_1(variable):
    """`podman run --init`: an init is process 1."""
    def state():
        rows = map(json.loads, home.cairn("node", "ls", "-o", "jsonl").stdout.splitlines())
        return next((row["state"] for row in rows if row["name"] == "pod"), None)
    with Home() as home:
        env = {name: value for name, value in home.env.items() if name not in ("container", "SLURM_JOB_ID")}
        command = [BIN / "cairn-agent", "--name", "pod", "--slots", "1"]
        with subprocess.Popen(command, env={**env, variable: "oci"} if variable else env, stderr=subprocess.DEVNULL) as agent:
            until(lambda: state() == "ready", 20, "its node is ready")
            agent.terminate()
            assert agent.wait(60) == 0
            until(lambda: state() not in ("ready", "draining"), 30, "it is known")
            assert (state() == "left") == (variable is not None)


# ---- /dev/shm of 64 MB


LARGE = {"model__hidden": 16384, "train__duration": "6 steps", "checkpoint__every": "1000 steps", "eval__every": "6 steps",
         "train__global_batch": 4}  # 99 MiB of state, three files of half of it for each of two workers
MOUNT = ["unshare", *USER, "-m", "sh", "-c", 'mount -t tmpfs -o mode=1777,size="$SHM" tmpfs /dev/shm && exec "$@"', "sh"]


class Small(Home):
    """All its processes have a /dev/shm of their own: a container's."""

    def __init__(self, size="64m", **more):
        super().__init__(**more)
        self.env["SHM"] = size

    def cairn(self, *args, **more):
        if args[0] not in ("up", "plan"):
            return super().cairn(*args, **more)
        done = subprocess.run([*MOUNT, BIN / "cairn", *map(str, args)], env=self.env, cwd=self.dir, timeout=120,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done

    def inside(self, *command):
        """Where the workers are."""
        pid = next(iter(self.pids("cairn-agent")))
        user = ["-U", "--preserve-credentials"] if USER else []
        return subprocess.run(["nsenter", "-t", str(pid), *user, "-m", "--", *command], check=True)


def told(home, job):
    return [event["message"] for event in home.show(job)["events"] if event["kind"] == "copies"]


@pytest.fixture(scope="module", name="large")
def digest_of_large():
    with Home() as home:
        return home.run(**LARGE)


@pytest.mark.parametrize("every", ["auto", "1 step"])
def test_a_state_that_finds_no_room_trains_on_without_copies_and_it_is_told_once(large, every):
    with Small(env=Home.RESTART, faults="trainer.forward,rank=0,step=3:wait") as home:
        sets = {**LARGE, "checkpoint__memory_every": every}
        job = home.submit(**sets)
        home.wait_hit("trainer.forward")
        shown = home.show(job)
        assert shown["memory_every"] == 0, shown
        assert re.search(r"^node \S+: copies of 2 workers .* 64\.0 MiB .*--shm-size=\d+m.* CAIRN_COPIES$",
                         shown["memory_reason"]), shown["memory_reason"]
        plan = home.cairn("plan", home.dir / "job-0.yaml", *(f"--set={k.replace('__', '.')}={v}" for k, v in sets.items()))
        assert re.search(r"^copies +none in memory.*--shm-size=", plan.stdout, re.M), plan.stdout
        home.kill("cairn-trainer")  # nothing is left of them: it begins anew
        assert home.digest(job) == large
        assert home.show(job)["generation"] == 2
        assert len(told(home, job)) == 1 and "--shm-size=" in told(home, job)[0], told(home, job)
        assert "none in memory between saves: node " in home.cairn("why", job).stdout
        assert not any("SIGBUS" in event["message"] for event in home.show(job)["events"])


def test_with_the_room_that_is_asked_for_there_are_copies(large):
    with Small("64m", faults="trainer.forward,rank=0,step=3:wait") as home:
        job = home.submit(**LARGE, checkpoint__memory_every="1 step")
        home.wait_hit("trainer.forward")
        wanted = re.search(r"--shm-size=(\d+)m", home.show(job)["memory_reason"])[1]
        home.cairn("kill", job)
    with Small(f"{wanted}m", faults="trainer.forward,rank=0,step=3:wait") as home:
        job = home.submit(**LARGE, checkpoint__memory_every="1 step")
        home.wait_hit("trainer.forward")
        shown = home.show(job)
        assert shown["memory_every"] == 1 and shown["memory_reason"] == "" and not told(home, job), shown
        home.kill("cairn-trainer")
        home.go("trainer.forward")
        assert home.digest(job) == large
        assert any("restored from memory" in event["message"] for event in home.show(job)["events"])


def test_room_that_another_took_meanwhile_is_told_and_ends_nothing(large):
    """There is room as the generation begins. Files are made beside the first step."""
    with Small("400m", faults="trainer.forward,rank=0,step=0:wait") as home:
        job = home.submit(**LARGE, checkpoint__memory_every="2 steps")
        home.wait_hit("trainer.forward")
        shown = home.show(job)
        assert shown["memory_every"] == 2 and shown["memory_reason"] == "", shown
        home.inside("fallocate", "-l", "380M", "/dev/shm/another")
        home.go("trainer.forward")
        assert home.digest(job) == large
        assert len(told(home, job)) == 1, told(home, job)
        assert re.search(r"with a lack: a copy file of .* no space left: .*--shm-size", told(home, job)[0])
        assert home.show(job)["generation"] == 1
