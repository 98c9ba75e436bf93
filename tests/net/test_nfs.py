"""Checkpoints on a real NFS server, each machine with caches of its own: whatever dies while they are written.

The cases of tests/e2e/test_kill_matrix.py that concern the store, over NFSv3 and v4. In a full run only, where ganesha is
installed. CAIRN_CASES=rank1-kill-save.fsync chooses some.
"""
import json
import os
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import nfs
from fleet import Fleet, until
from rooms import missing

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "e2e"))
from test_kill_matrix import COMMIT_PHASES, SAVE_PHASES, armed, cases  # pylint: disable=wrong-import-position

REASON = missing() or (nfs.missing() if os.environ.get("CAIRN_TEST_FULL") else "in a full run")
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")
PROGRAMS = {"agent": ["cairn-agent"], "coordinator": ["cairnd"], "trainers": ["cairn-trainer"],
            "everything": ["cairn-agent", "cairnd", "cairn-trainer"]}
NODES = 3
STEPS, EVERY = 12, 4
NO_COORDINATOR = 5  # exit status


def store_cases():
    """Without those in which a supervisor has to find that an agent or a coordinator is stopped: there is none here."""
    return [(who, action, phase) for who, action, phase in cases()
            if phase in SAVE_PHASES + COMMIT_PHASES and not (action == "stop" and who in PROGRAMS)]


class Supervised:
    """Starts the coordinator and agents of a fleet again, as a service manager would."""

    def __init__(self, fleet):
        self.fleet, self.over = fleet, threading.Event()
        self.thread = threading.Thread(target=self._watch)

    def __enter__(self):
        self.thread.start()

    def __exit__(self, *_):
        self.over.set()
        self.thread.join()

    def _watch(self):
        while not self.over.wait(0.1):
            if self.fleet.cairnd.poll() is not None:
                self.fleet.start_coordinator(serves=False)
            for number, agent in list(self.fleet.agents.items()):
                if agent.poll() is not None:
                    self.fleet.start_agent(number)


def ended(fleet, job, seconds):
    """What is shown of it then."""
    def reached():
        done = fleet.cairn("show", job, "-o", "json", check=False)
        shown = json.loads(done.stdout) if done.returncode == 0 else {"state": "not told"}
        return shown if shown["state"] in ("SUCCEEDED", "FAILED") else None
    return until(reached, seconds, f"{job} ends")


def never_damaged(shown):
    for event in shown["events"]:
        assert not any(word in event["message"] for word in ("damage", "corrupt", "set aside")), event["message"]


def verify(fleet, job):
    """Retention may come, and end the coordinator, once the job has ended: it is asked when it is back."""
    def answered():
        done = fleet.cairn("ckpt", "verify", job, check=False)
        return None if done.returncode == NO_COORDINATOR else done
    done = until(answered, 30, "the coordinator verifies")
    assert done.returncode == 0, done.stderr


def run_case(version, who, action, phase, quiet):
    rank = {"rank0": 0, "rank1": 1}.get(who)
    own = rank is not None or (who == "coordinator" and phase in COMMIT_PHASES)
    at = rank if own or phase in COMMIT_PHASES else 0
    env = {"CAIRN_FAULT": armed(phase, action if own else "wait", at), "CAIRN_FAULT_DIR": "/run/shared/faults",
           "CAIRN_HANG_MS": "2500"}
    with Fleet(NODES, env=env, more=1, begin=nfs.on_nfs(version)) as fleet, Supervised(fleet):
        faults = fleet.dir / "faults"
        faults.mkdir(exist_ok=True)
        job = fleet.submit(2, STEPS, EVERY, checkpoint__store=f"{nfs.STORE}/")
        if not own:
            until((faults / f"{phase}.hit").exists, 30, f"{phase} reached")
            for machine in fleet.room.machines.values():
                for program in PROGRAMS[who]:
                    machine.signal(signal.SIGKILL, program)
            (faults / f"{phase}.go").touch()
        shown = ended(fleet, job, 150)
        assert shown["state"] == "SUCCEEDED", shown["reason"]
        assert (faults / f"{phase}.hit").exists(), f"{phase} was never reached"
        assert shown["final_digest"] == quiet
        never_damaged(shown)
        verify(fleet, job)


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    with Fleet(1, slots=2) as fleet:
        return fleet.digest(fleet.submit(2, STEPS, EVERY))


@pytest.mark.parametrize("version", [3, 4])
def test_every_kill_while_the_store_is_on_nfs_ends_with_the_digest_of_the_quiet_run(quiet, version):
    chosen = [case for case in store_cases() if os.environ.get("CAIRN_CASES", "") in "-".join(case)]
    failed = []

    def attempt(case):
        begin = time.monotonic()
        try:
            run_case(version, *case, quiet)
            print(f"ok   v{version}", *case, f"{time.monotonic() - begin:.1f} s", flush=True)
        except Exception as error:  # the others shall be seen, too
            failed.append(case)
            print(f"FAIL v{version}", *case, error, flush=True)

    with ThreadPoolExecutor(max_workers=2) as pool:
        list(pool.map(attempt, chosen))
    print(f"NFSv{version}: {len(chosen)} cases, {len(failed)} failed, load {os.getloadavg()[0]:.1f}")
    assert not failed, failed
