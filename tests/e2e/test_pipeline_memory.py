"""A GPT-2 that doesn't fit into the memory of one worker trains on four that have a stage each, and ends with the bits
of one worker that has memory enough: each worker in a control group with the same bound."""
import os
import re
import signal
from pathlib import Path

import pytest

import home as home_module
from elastic import workers
from groups import CannotBe, Groups
from home import ROOT, Home

MIB = 1 << 20
LIMIT = 768 * MIB
TEXT = (ROOT / "examples" / "gpt2-pipeline.yaml").read_text(encoding="utf-8")
ALONE = {"parallel__pipeline": 1, "workers__count": 1}


def peak_bytes(pid):
    """The most that lay in memory of a process, so far; 0: it is gone."""
    try:
        found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    except OSError:
        return 0
    return int(found[1]) * 1024 if found else 0


class Watched(Home):
    """Knows the most that each of its workers had in memory."""

    def __init__(self, **options):
        super().__init__(**options)
        self.peak = {}

    def look(self):
        for pid in self.pids("cairn-trainer"):
            self.peak[pid] = max(self.peak.get(pid, 0), peak_bytes(pid))

    def try_show(self, job):
        self.look()
        return super().try_show(job)


@pytest.fixture(scope="module", name="alone")
def digest_and_peak_of_one_worker_without_a_bound():
    with Watched() as home:
        digest = home.run(TEXT, seconds=120, **ALONE)
        return digest, max(home.peak.values())


@pytest.fixture(name="bound")
def programs_whose_workers_are_bound(tmp_path, monkeypatch):
    try:
        groups = Groups(tmp_path, LIMIT)
    except CannotBe as why:
        pytest.skip(f"a worker's memory can't be bound here: {why}")
    with groups:
        monkeypatch.setattr(home_module, "BIN", groups.bin)
        yield groups


def test_one_worker_has_too_little_memory(bound):
    with Home() as home:
        job = home.submit(TEXT, **ALONE)
        shown = home.wait_state(job, "FAILED", seconds=60)
        print(shown["reason"], "peaks", bound.peaks())
        assert bound.kills() >= 1 and "memory" in shown["reason"], shown["reason"]


def test_four_stages_fit_and_one_is_killed(bound, alone):
    digest, whole = alone
    assert whole > 1.5 * LIMIT
    with Watched(faults="trainer.backward,rank=2,step=4:wait") as home:
        job = home.submit(TEXT)
        home.wait_hit("trainer.backward")
        home.look()
        os.kill(workers(home.show(job))[2], signal.SIGKILL)
        assert home.digest(job, seconds=120) == digest
        assert len(home.show(job)["recoveries"]) == 1
        print("MiB of each worker:", [round(peak / MIB) for peak in home.peak.values()],
              "alone:", round(whole / MIB), "groups:", [round(peak / MIB) for peak in bound.peaks()])
        assert len(home.peak) >= 5 and max(home.peak.values()) < LIMIT
        assert bound.kills() == 0


def test_plan_tells_what_each_stage_takes(tmp_path):
    job = tmp_path / "job.yaml"
    job.write_text(TEXT, encoding="utf-8")
    with Home() as home:
        told = home.cairn("plan", job).stdout
        whole = home.cairn("plan", job, "--set", "parallel.pipeline=1", "--set", "workers.count=1").stdout
    stages = re.findall(r"^stage (\d) +nodes (\d+) to (\d+): ([\d.]+) MiB", told, re.M)
    most, = re.findall(r"^worker +([\d.]+) MiB", told, re.M)
    alone, = re.findall(r"^worker +([\d.]+) MiB", whole, re.M)
    assert [int(stage[0]) for stage in stages] == [0, 1, 2, 3]
    assert [int(stage[1]) for stage in stages[1:]] == [int(stage[2]) + 1 for stage in stages[:-1]]
    assert float(most) == max(float(stage[3]) for stage in stages)
    assert float(most) < 0.5 * float(alone)
