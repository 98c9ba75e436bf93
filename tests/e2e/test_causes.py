"""What failed first is named by `cairn why`, whatever it is: 24 faults, each played with real processes.

A fault is a function that plays it and returns what `why` then says; its decorator has what must stand there: the
first failure of the job, by its cause, the rank or node that is blamed, and words of the evidence. What ends no
generation (a store that refuses, a slow worker) is told by an event or by the reason. A sample of them by CAIRN_SEED;
all with CAIRN_TEST_FULL.
"""
import ctypes
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import pytest

from home import BIN, TINY, Home, until
from test_damage import flip, paused_job, shards
from test_data import IN_STEP_6, LONG_IMAGES, LONG_TEXT, paused, write_data
from test_lanes import LANES, LENGTH, PACED, slow
from test_memory import copies, kill_workers, stop_at
from test_memory import flip as flip_copy
from test_store_away import HALF, waits
from test_store_away import paused as paused_in_store
from test_suspect import node, ready
from test_undying import undying
from test_wrong import AUDITS

FULL = "CAIRN_TEST_FULL" in os.environ
SAMPLE = 6
SHARE = 0.95  # of those played, that are named
CLONE_NEWNS = 0x00020000


@dataclass(frozen=True)
class Fault:
    name: str
    play: Callable
    cause: str = ""  # of the first failure; "": it is none, an event or the reason tells it
    rank: int = None  # that is blamed, if it must be that one
    node: str = ""  # likewise
    says: str = ""  # found in its message
    event: str = ""  # its kind; says: found in the message
    reason: bool = False  # says: found in why the job waits
    then: tuple = ()  # cause and words of the next failure, where the first is what came of it


@dataclass
class Told:
    why: dict  # -o json
    text: str


FAULTS = []
RESULTS = {}  # of those that were played: why it isn't named; "": it is


def fault(**expected):
    def add(play):
        FAULTS.append(Fault(play.__name__, play, **expected))
        return play
    return add


def told(home, job):
    return Told(json.loads(home.cairn("why", job, "-o", "json").stdout), home.cairn("why", job).stdout)


def failures(why):
    """Oldest first."""
    every = why["job"]["recoveries"] + ([why["ending"]] if why["ending"] else [])
    return [one for one in every if one["cause"] != "planned"]


def missed(one, said):
    """What isn't named; "": nothing."""
    job = said.why["job"]
    if one.event:
        events = [event["message"] for event in job["events"] if event["kind"] == one.event]
        return "" if any(re.search(one.says, message) for message in events) else f"events {one.event}: {events}"
    if one.reason:
        return "" if re.search(one.says, job["reason"]) else f"reason: {job['reason']!r}"
    if not failures(said.why):
        return f"there is no failure; reason: {job['reason']!r}"
    first = failures(said.why)[0]
    right = (first["cause"] == one.cause and re.search(one.says, first["message"]) and
             (one.rank is None or first["rank"] == one.rank) and (not one.node or first["node"] == one.node))
    if not right:
        return f"first: {first}"
    if one.then and not any(later["cause"] == one.then[0] and re.search(one.then[1], later["message"])
                            for later in failures(said.why)[1:]):
        return f"then: {failures(said.why)[1:]}"
    return "" if f"{one.cause}, rank {first['rank']} on" in said.text or first["rank"] < 0 else "the text lacks it"


# ---- processes ----

def struck(rank, how, faults="trainer.forward,rank={rank},step=6:wait", **sets):
    """how(home, job) while that rank waits within a step."""
    point = faults.format(rank=rank)
    with Home(faults=point) as home:
        job = home.submit(**sets)
        home.wait_hit(point.split(",", maxsplit=1)[0])
        how(home, job)
        home.digest(job)
        return told(home, job)


def pid_of(home, job, rank):
    return next(worker["pid"] for worker in home.show(job)["workers"] if worker["rank"] == rank)


def signalled(rank, sig):
    return struck(rank, lambda home, job: os.kill(pid_of(home, job, rank), sig))


@fault(cause="process gone", rank=1, says="killed by signal 9")
def killed():
    return signalled(1, signal.SIGKILL)


@fault(cause="process gone", rank=0, says="killed by signal 6")
def aborted():
    return signalled(0, signal.SIGABRT)


def ends_by_itself(point):
    with Home(faults=point) as home:
        job = home.submit(workers__count=3)
        home.digest(job)
        return told(home, job)


@fault(cause="process gone", rank=2, says="killed by signal 11")
def segmentation_fault():
    return ends_by_itself("trainer.backward,rank=2,step=6:segv")


@fault(cause="process gone", rank=1, says="exit(ed with)? (code|status) 1")
def exits_without_a_word():
    return ends_by_itself("trainer.update,rank=1,step=6:exit1")


@fault(cause="out of memory", rank=1, says="memory")
def out_of_memory():
    """A bound of the address space, too small for the parameters."""
    wide = TINY.replace("hidden: 32", "hidden: 10000")
    with Home(faults="trainer.start,rank=1:wait") as home:
        job = home.submit(wide)
        home.wait_hit("trainer.start")
        pid = pid_of(home, job, 1)
        used = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[0]) * resource.getpagesize()
        resource.prlimit(pid, resource.RLIMIT_AS, (used + (16 << 20), used + (16 << 20)))
        home.go("trainer.start")
        until(lambda: home.show(job)["generation"] > 1, 60, "another generation")
        home.cairn("kill", job)
        return told(home, job)


@fault(cause="hang", rank=1, says="silent while its process lives")
def killed_and_undying():
    """It is as one that hangs, until its end."""
    with Home(faults="trainer.forward,rank=1,step=6:wait", slots=3) as home:
        job = home.submit()
        home.wait_hit("trainer.forward")
        pid = pid_of(home, job, 1)
        with undying(pid):
            os.kill(pid, signal.SIGKILL)
            home.digest(job, seconds=90)
            said = told(home, job)
        assert "SIGKILL doesn't end it" in said.text
        return said


@fault(cause="process gone", rank=1, says="killed by signal 9")
def coordinator_killed_with_a_worker():
    def both(home, job):
        pid = pid_of(home, job, 1)
        home.kill("cairnd")
        os.kill(pid, signal.SIGKILL)
        until(lambda: home.try_show(job), 30, "another coordinator")
    return struck(1, both)


# ---- hangs ----

def hangs(point, rank):
    with Home(env=Home.HANGS, faults=f"{point},rank={rank},step=6:wait") as home:
        job = home.submit(workers__count=3)
        home.wait_hit(point)
        home.digest(job, seconds=90)
        return told(home, job)


@fault(cause="hang", rank=2, says="last seen in phase data")
def hangs_in_data():
    return hangs("trainer.data", 2)


@fault(cause="hang", rank=1, says="has not come to exchange .* in which ranks 0 and 2 wait")
def hangs_in_a_collective():
    return hangs("comm.exchange", 1)


# ---- numbers ----

@fault(cause="numeric", rank=1, says="loss")
def loss_is_not_a_number():
    with Home(faults="trainer.loss,rank=1,step=200:nan") as home:
        job = home.submit(**AUDITS, workers__count=3)
        home.digest(job)
        return told(home, job)


@fault(cause="numeric", says="gradient")
def gradient_is_not_finite():
    with Home(faults="trainer.gradient,rank=1,step=200:nan") as home:
        job = home.submit(**AUDITS, workers__count=3)
        home.digest(job)
        return told(home, job)


@fault(cause="computed wrongly", rank=1)
def wrong_bit_in_each_gradient():
    with Home(faults="trainer.gradient,rank=1,generation=1,from=200:flips") as home:
        job = home.submit(**AUDITS, workers__count=3)
        home.digest(job)
        return told(home, job)


@fault(event="lanes-moved", says=r"worker 1 on node")
def slow_worker():
    with Home(faults=";".join([PACED, slow(1, 4, step=50)])) as home:
        job = home.submit(**LANES, **LENGTH)
        home.digest(job, seconds=120)
        return told(home, job)


# ---- the store ----

@fault(event="store-full", says="(room|space)")
def disk_full():
    with Home(faults="save.write,rank=1,nth=1:enospc") as home:
        job = home.submit(train__duration="400 steps", checkpoint__every="40 steps")
        home.digest(job)
        return told(home, job)


@contextmanager
def own_mounts():
    """Mounts of this process and its children, gone with them."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        pytest.skip(f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}")
    made = subprocess.run(["mount", "--make-rprivate", "/"], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no mount namespace of our own: {made.stderr}")
    yield lambda *args: subprocess.run(["mount", *map(str, args)], check=True)


@fault(event="store-fails", says="making the folder: refused: /")
def store_is_read_only():
    with own_mounts() as mount, Home(faults="trainer.forward,rank=0,step=60:wait") as home:
        store = home.dir / "checkpoints"
        store.mkdir()
        mount("-t", "tmpfs", "-o", "size=64m", "tmpfs", store)
        try:
            job = home.submit(train__duration="400 steps", checkpoint__every="40 steps")
            home.wait_hit("trainer.forward")
            until(lambda: home.show(job)["checkpoints"], 20, "a checkpoint")
            mount("-o", "remount,ro", store)
            home.go("trainer.forward")
            until(lambda: any(event["kind"] == "store-fails" for event in home.show(job)["events"]), 30, "it is told")
            said = told(home, job)
            mount("-o", "remount,rw", store)
            home.digest(job)
            return said
        finally:
            subprocess.run(["umount", "-l", store], check=False)


@fault(reason=True, says="store-mark")
def store_is_away():
    with Home(faults=HALF) as home:
        job, _ = paused_in_store(home)
        store, aside = home.dir / "checkpoints", home.dir / "aside"
        store.rename(aside)
        home.cairn("resume", job)
        waits(home, job, str(store))
        said = told(home, job)
        aside.rename(store)
        home.digest(job)
        return said


@fault(cause="damaged checkpoint", says="shard")
def damaged_checkpoint():
    with Home() as home:
        job, folders = paused_job(home)
        flip(shards(folders[0])[1], shards(folders[0])[1].stat().st_size // 2, random.Random(1))
        home.cairn("resume", job)
        home.digest(job)
        return told(home, job)


@fault(cause="damaged checkpoint", says="copy in memory of step 7, share 1 of 2: is damaged")
def damaged_copy_in_memory():
    """The failure after the one that made the copies of use. Both ranks read it: either may say it first."""
    with Home(env=Home.RESTART, faults=stop_at(7) + ";trainer.forming,generation=2,rank=0:wait") as home:
        job = home.submit(checkpoint__every="4 steps", checkpoint__memory_every="1 step")
        home.wait_hit("trainer.forward")
        until(lambda: any(c["step"] == 4 for c in home.show(job)["checkpoints"]), 10, "step 4 is committed")
        kill_workers(home)
        home.wait_hit("trainer.forming")
        for path in copies(home, job):
            if path.name.startswith("g1-r1-"):
                flip_copy(path, path.stat().st_size - 4096 - 64)
        home.go("trainer.forming")
        home.digest(job)
        said = told(home, job)
        said.why["job"]["recoveries"].pop(0)
        return said


# ---- data ----

@fault(cause="data", says=r"node \S+: /\S+labels\.gz: no such file")
def data_file_is_gone():
    with Home(faults=IN_STEP_6) as home:
        labels = write_data(home) / "labels.gz"
        job = paused(home, LONG_IMAGES)
        kept = labels.read_bytes()
        labels.unlink()
        home.cairn("resume", job)
        until(lambda: str(labels) in home.show(job)["reason"], 60, "it waits for the file")
        said = told(home, job)
        labels.write_bytes(kept)
        home.digest(job, seconds=90)
        return said


@fault(cause="process gone", says=r"killed by signal 7", then=("data", r"node \S+: .*text\.txt"))
def data_file_is_cut():
    """While it is mapped, which ends a worker; those that are started next see why."""
    with Home(faults=IN_STEP_6) as home:
        text = write_data(home) / "text.txt"
        kept = text.read_bytes()
        job = home.submit(LONG_TEXT)
        home.wait_hit("trainer.forward")
        os.truncate(text, 4096)
        home.go("trainer.forward")
        until(lambda: str(text) in home.show(job)["reason"], 60, "it waits for the file")
        said = told(home, job)
        text.write_bytes(kept)
        home.digest(job, seconds=90)
        return said


# ---- nodes ----

def two_nodes(how, faults="trainer.forward,rank=1,step=6:wait", **sets):
    """how(home, job, agent): something happens to the second node while its worker waits within a step."""
    with Home(faults=faults, slots=1) as home, node(home, "another", 1) as agent:
        until(lambda: "another" in ready(home), 20, "two nodes")
        job = home.submit(**sets)
        home.wait_hit("trainer.forward")
        how(home, job, agent)
        return told(home, job)


def lost(home, job):
    """What is seen first, that a peer is gone, is told anew once the node is known to be."""
    def state():
        nodes = json.loads(home.cairn("node", "ls", "-o", "json").stdout)
        return next(one["state"] for one in nodes if one["name"] == "another")
    until(lambda: state() == "lost", 90, "the node is lost")  # at first it is only unsupervised
    until(lambda: failures(told(home, job).why), 60, "a failure is told")


def worker_at(home, job, name):
    return next(worker for worker in home.show(job)["workers"] if worker["node"] == name)


@fault(cause="node lost", node="another")
def node_is_lost():
    """Agent and worker end at the same moment, and nobody is there to tell how."""
    def both(home, job, agent):
        pid = worker_at(home, job, "another")["pid"]
        for victim in (agent.pid, pid):
            os.kill(victim, signal.SIGKILL)
        home.go("trainer.forward")
        lost(home, job)
    return two_nodes(both)


@fault(cause="node lost", node="another")
def agent_and_worker_stand_still():
    def both(home, job, agent):
        pid = worker_at(home, job, "another")["pid"]
        for victim in (agent.pid, pid):
            os.kill(victim, signal.SIGSTOP)
        home.go("trainer.forward")
        lost(home, job)
        for victim in (agent.pid, pid):
            os.kill(victim, signal.SIGCONT)
    return two_nodes(both)


@contextmanager
def other_version(home):
    """Programs whose trainer says that it is of another version."""
    folder = home.dir / "other"
    shutil.copytree(BIN, folder)
    trainer = folder / "cairn-trainer"
    mine = subprocess.run([BIN / "cairn-trainer", "--version"], capture_output=True, text=True, check=True).stdout.split()[-1]
    theirs = re.sub(r"^\d+", lambda major: str((int(major[0]) + 1) % 10), mine)
    image = trainer.read_bytes()
    assert len(mine) == len(theirs) and b"\0%b\0" % mine.encode() in image
    trainer.write_bytes(image.replace(b"\0%b\0" % mine.encode(), b"\0%b\0" % theirs.encode()))
    with subprocess.Popen([folder / "cairn-agent", "--name", "another", "--slots", "1"], env=home.env, cwd=home.dir,
                          stderr=subprocess.DEVNULL) as agent:
        try:
            yield mine, theirs
        finally:
            agent.terminate()


@fault(cause="formation", node="another", says=r"of version \S+, .*on node another of version \S+: install the same")
def another_version():
    with Home(slots=1) as home, other_version(home) as versions:
        until(lambda: "another" in ready(home), 20, "two nodes")
        job = home.submit()
        until(lambda: failures(told(home, job).why), 60, "a failure is told")
        said = told(home, job)
        assert all(version in failures(said.why)[0]["message"] for version in versions)
        home.cairn("kill", job)
        return said


@fault(cause="path", says=r"can't reach each other")
def network_cut_between_two_nodes():
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "net"))
    import fleet  # pylint: disable=import-outside-toplevel
    import rooms  # pylint: disable=import-outside-toplevel
    if (reason := rooms.missing()) is not None:
        pytest.skip(reason)
    with fleet.Fleet(3) as made:
        job = made.submit(2, 10_000_000, 10000)
        made.wait_step(job, 100)
        pair = made.nodes_of(job)
        made.room.cut(*pair)
        made.wait_generation(job, 2, 30)
        said = told(made, job)
        assert all(f"node{number}" in failures(said.why)[0]["message"] for number in pair)
        return said


# ---- the matrix ----

def sample():
    return FAULTS if FULL else random.Random(int(os.environ.get("CAIRN_SEED", "1"))).sample(FAULTS, SAMPLE)


@pytest.mark.parametrize("one", sample(), ids=lambda one: one.name)
def test_what_failed_first_is_named(one):
    said = one.play()
    RESULTS[one.name] = missed(one, said)
    if RESULTS[one.name]:
        print(said.text)
    assert RESULTS[one.name] == "", one.name


def test_enough_of_them_are(capsys):
    assert len(FAULTS) == 24
    named = sum(why == "" for why in RESULTS.values())
    with capsys.disabled():
        print(f"\nnamed: {named} of {len(RESULTS)}", *(f"  {name}: {why}" for name, why in RESULTS.items() if why), sep="\n")
    assert named >= SHARE * len(RESULTS)
