"""What chaos looks for is found where it is planted; its schedule is a function of the seed."""
import os
import signal
import socket
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
# pylint: disable=wrong-import-position
import leftovers
from jobs import Job, Keeper, cause, job_files, recoveries
from kinds import KINDS, NOBODY, spare_kill
from memory import JUDGED_S, YOUNG_S, Memory
from report import Report, markdown_of, text_of
from schedule import schedule
from world import Worker


def test_the_schedule_is_the_seeds():
    first = schedule(7, 60, 6, KINDS, 3)
    assert first == schedule(7, 60, 6, KINDS, 3) and len(first) == 360
    assert first != schedule(8, 60, 6, KINDS, 3)
    assert [event.at for event in first] == sorted(event.at for event in first) and first[-1].at < 3600
    assert {event.kind for event in first} == {kind.name for kind in KINDS}  # each comes in an hour
    counts = Counter(event.kind for event in first)
    assert counts["worker-kill"] > counts["worker-hang"]
    for event in first:
        least, most = next(kind.seconds for kind in KINDS if kind.name == event.kind)
        assert least <= event.seconds <= most and event.choose("abc") in "abc"


def test_kinds_have_names_of_their_own_and_known_needs():
    assert len({kind.name for kind in KINDS}) == len(KINDS)
    assert {kind.needs for kind in KINDS} <= {"", "points", "network", "delay", "faulty store", "small store"}


@pytest.mark.parametrize("scale", [1, 0.01])
def test_files_of_a_model_differ_in_nothing_that_changes_digests(scale):
    for row in job_files(scale, "/s", None).values():
        assert len(row) > 1 and len({file.name for file in row}) == len(row)
        texts = [file.text("x").split("workers:")[0] for file in row]
        assert len(set(texts)) == 1


def sampled(mib_at, lives=((0, 1),), seconds=4 * JUDGED_S):
    memory = Memory()
    for begin, pid in lives:
        end = min([other for other, _ in lives if other > begin], default=seconds)
        memory.born[pid] = begin
        memory.samples += [(now, pid, mib_at(now, now - begin)) for now in range(begin, end)]
    return memory


def test_memory_that_grows_is_a_violation():
    assert sampled(lambda now, age: 20 + (now % 7) / 10).violations() == []
    assert any("slope_mib" in line for line in sampled(lambda now, age: 20 + 1.2 * age / 60).violations())
    short = sampled(lambda now, age: 20 + now / 20, seconds=60)  # nothing is said of a minute's slope
    assert short.violations() == []
    lives = [(begin, begin + 1) for begin in range(0, 4 * JUDGED_S, 2 * YOUNG_S[1])]
    across = sampled(lambda now, age: 20 + 1.2 * (now - age) / 60, lives)
    assert across.numbers()["slope_mib_per_min"] == 0
    assert any("level_mib" in line for line in across.violations())
    assert any("grew from" in line for line in sampled(lambda now, age: 20 if now < 1900 else 40).violations())


def test_descriptors_that_stay_open_are_found():
    before = {("cairnd", 1): ["/a", "socket:[N]"]}
    assert leftovers.more_descriptors(before, {("cairnd", 1): ["/a", "/b", "socket:[N]"]}) == []
    many = leftovers.more_descriptors(before, {("cairnd", 1): ["/a"] + ["socket:[N]"] * 9})
    assert len(many) == 1 and "had 2" in many[0]
    assert "removed" in leftovers.more_descriptors(before, {("cairnd", 1): ["/dev/shm/x.copy (deleted)"]})[0]


def test_a_spare_is_found_by_its_number():
    """The pid that is shown is one of its own machine: here it is somebody else's."""
    with subprocess.Popen(["sleep", "60"]) as spare:
        workers = [Worker("j-1", 0, 1, os.getpid(), 7, 2), Worker("j-1", 5, 1, spare.pid, 8, 2)]
        shown = {"spares": [{"number": 5, "pid": os.getpid()}]}
        run = SimpleNamespace(world=SimpleNamespace(workers=lambda: workers),
                              keepers=[SimpleNamespace(job=None),
                                       SimpleNamespace(job=SimpleNamespace(id="j-1", shown=shown))])
        done = spare_kill(run, SimpleNamespace(slot=0))
        assert done.victim == "worker 5, machine 2"
        assert spare.wait(10) == -signal.SIGKILL
        shown["spares"] = []
        assert spare_kill(run, SimpleNamespace(slot=0)) is NOBODY


@pytest.fixture(name="world")
def a_world(tmp_path):
    store, copies, home = (tmp_path / name for name in ("store", "copies", "home"))
    for folder in (store, copies, home / "jobs" / "j-1", home / "agent"):
        folder.mkdir(parents=True)
    return SimpleNamespace(store=store, folder=tmp_path, places=lambda: ([copies], [home]),
                           sockets=lambda: [path for path in tmp_path.rglob("*") if path.is_socket()],
                           logs=lambda: sorted(tmp_path.glob("*.log")),
                           workers=lambda: [], pids=lambda program: {1: 1})


def test_files_that_stay_are_found(world):
    jobs = {"j-1": "one"}
    assert leftovers.files(world, jobs) + leftovers.store(world, jobs) + leftovers.sockets(world) == []
    assert leftovers.copies(world) == []
    (world.folder / "copies" / "j-1").mkdir()
    (world.folder / "home" / "jobs" / "j-2").mkdir()
    (world.folder / "home" / "agent" / "j-1.g1.r0.json").touch()
    assert len(leftovers.files(world, jobs)) == 2 and len(leftovers.copies(world)) == 1
    (world.store / "j-1").mkdir()
    (world.store / "j-1" / "store-mark").touch()
    assert leftovers.store(world, jobs) == []
    (world.store / "j-1" / "step-000000000003.g1").mkdir()
    (world.store / "j-9").mkdir()
    assert len(leftovers.store(world, jobs)) == 2 and len(leftovers.store(world, jobs, {"j-1"})) == 1
    for name in ("a", "b"):
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(str(world.folder / name))
    assert len(leftovers.sockets(world)) == 1
    (world.folder / "x.log").write_text("fine\nserver/core/a.c:9: bug: not true: x\n", encoding="utf-8")
    assert len(leftovers.bugs(world)) == 1


def test_processes_that_stay_are_found(world):
    assert leftovers.processes(world) == []
    world.workers = lambda: [SimpleNamespace(pid=7, job="j-1", rank=0)]
    world.pids = lambda program: {1: 1, 2: 1}
    assert len(leftovers.processes(world)) == 3


SHOWN = {"state": "SUCCEEDED", "step": 9, "generation": 3, "reason": "", "final_digest": "aa", "checkpoints": [],
         "lost_seconds": {"detect": 1.0},
         "submitted_at": "2026-01-01T00:00:00.000Z", "ended_at": "2026-01-01T00:00:10.000Z",
         "events": [{"generation": 1, "kind": "forming", "message": "with 2 workers, from the beginning", "time": "0"},
                    {"generation": 1, "kind": "recovering", "message": "a new generation follows", "time": "1"},
                    {"generation": 2, "kind": "forming", "message": "from the checkpoint of step 4", "time": "1"},
                    {"generation": 2, "kind": "recovering", "message": "a new generation follows", "time": "1"},
                    {"generation": 3, "kind": "forming", "message": "from the checkpoint of step 4", "time": "2"},
                    {"generation": 3, "kind": "memory", "message": "restored from memory: step 8", "time": "3"},
                    {"generation": 4, "kind": "forming", "message": "from the checkpoint of step 8", "time": "4"},
                    {"generation": 2, "kind": "fault", "time": "2",
                     "message": "process gone: rank 1: killed by signal 9 (Killed): last in phase save of step 180"}]}


def keeper_of(tmp_path, **shown):
    answer = SimpleNamespace(returncode=0, stdout=shown.pop("stored", "aa"), stderr="")
    world = SimpleNamespace(try_show=lambda job: {**SHOWN, **shown}, ask=lambda *args, timeout=0: answer)
    keeper = Keeper(world, "mlp", [], {"mlp-store": "aa"}, Report(tmp_path))
    job = Job(job_files(1, "/s", 1)["mlp"][0], "mlp-store-001", "j-1")
    job.hear(world.try_show("j-1"))
    keeper.over(job)
    return keeper.report, job


@pytest.mark.parametrize("shown,said", [({}, None), ({"final_digest": "bb"}, "the quiet run with aa"),
                                        ({"stored": "bb"}, "stored is bb"), ({"state": "FAILED"}, "is FAILED")])
def test_how_a_job_ends_is_judged(tmp_path, shown, said):
    report, _ = keeper_of(tmp_path, **shown)
    assert len(report.violations) == (said is not None)
    assert said is None or said in report.violations[0]


def test_the_summary_counts(tmp_path):
    report, job = keeper_of(tmp_path)
    report.fault("worker-kill", "rank 1", job)
    assert recoveries(SHOWN) == {2: "checkpoint", 3: "memory"}
    what = {"seed": 1, "minutes": 1, "rate": 1, "world": "home", "command": "again"}
    summary = report.summary(what, [job], Memory().numbers(), ["worker-kill", "job-save"], {"net-cut": "no"})
    assert summary["faults_by_kind"] == {"worker-kill": 1, "job-save": 0}
    assert summary["recoveries_by_kind"] == {"checkpoint": 1, "memory": 1}
    assert summary["goodput"] == 0.9 and summary["jobs_succeeded"] == 1
    assert summary["failures_by_cause"] == {cause(SHOWN["events"][-1]["message"]): 1}
    assert "repeat: again" in list(text_of(summary))
    rows = list(markdown_of(summary))
    assert "| worker-kill | 1 |" in rows and "| memory | 1 |" in rows and rows[-1] == "0 violations."
    assert "1 of 1 succeeded, digests equal" in rows[2]
