"""Who is told to go saves, wherever the program is just then: SIGTERM to one of its processes or to a worker, or `cairn pause`. What is
saved is committed before the end, and the job goes on to the bits of a run that nobody disturbed. PyTorch is installed by a full run
(CAIRN_PEER); without it these are skipped."""
import os
import re
import time
from pathlib import Path

import pytest

from held import logs, newest, tell
from home import BIN, ROOT, Home, alive, until

SAMPLE = 1
PEER = os.environ.get("CAIRN_PEER")
PROGRAM = ROOT / "tests/e2e/sigterm_program.py"
PACKAGE = os.environ.get("CAIRN_PYTHON", str(Path(BIN).parent / "python"))
STEPS = 44
# In the order in which the program comes to them.
PLACES = {"warmup0": "warmup@0", "collective": "collective@6", "compile": "compile@13", "warmup13": "warmup@13", "evaluation": "evaluation@20",
          "extension": "extension@27", "filling": "filling@35"}
pytestmark = pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")


def text(folder, seconds, places):
    words = ", ".join(f'"{word}"' for word in (folder, STEPS, seconds, *places))
    return f"""\
name: mine
command:
  run: [{PEER}/bin/python, {PROGRAM}, {words}]
  env: {{PYTHONPATH: "{PACKAGE}"}}
  preload: [torch]
  grace: 2 s
workers: {{count: 2}}
checkpoint: {{every: 35 steps, store: checkpoints/, memory_every: 1 step, grace: 4 s}}
"""


def digests(home, job):
    return sorted(re.findall(r"^digest (.*)$", logs(home, job), re.M))


@pytest.fixture(scope="module", name="quiet")
def quiet_digests(tmp_path_factory):
    with Home() as home:
        job = home.submit(text(tmp_path_factory.mktemp("quiet"), 0, ()))
        home.wait_state(job, "SUCCEEDED", seconds=60)
        found = digests(home, job)
        assert len(found) == 2 and found[0] != found[1], found  # each rank has random numbers of its own
        return found


def go_through(home, job, folder, told, rank, place, said):
    """The program is in that place: somebody is told to go. Notes the case."""
    until(lambda: (folder / f"{place}.0").exists(), 60, f"the program is in {place}")
    time.sleep(0.3)
    who = 1 if place == "filling" and told == "program" else rank  # a stopped process hears nothing
    pid = int((folder / f"pid.{who}").read_text(encoding="utf-8"))
    at = int(PLACES[place].split("@")[1])
    before = time.monotonic()
    waited = tell(home, job, told, pid)
    until(lambda: not alive(waited), 40, f"{told} has ended in {place}")
    took, saved = time.monotonic() - before, newest(home.show(job))
    if told == "pause":
        home.wait_state(job, "PAUSED", seconds=40)
        saved = newest(home.show(job))
    fell = re.findall(r"its copy of step (\d+) is saved instead", logs(home, job))
    said.append((place, took, at, saved, fell[-1:]))
    print(f"case {told} {place} rank {who}: {took:.1f} s, in step {at}, saved {saved}, instead {fell}")
    assert saved >= at - 1, said
    if told == "pause":
        home.cairn("resume", job)


@pytest.mark.parametrize("rank", (0, 1))
@pytest.mark.parametrize("seconds", (1, 6))
@pytest.mark.parametrize("told", ("program", "worker", "pause"))
def test_it_saves_wherever_it_is(told, seconds, rank, quiet, tmp_path):
    said = []
    with Home() as home:
        job = home.submit(text(tmp_path, seconds, PLACES.values()))
        for place in PLACES:
            go_through(home, job, tmp_path, told, rank, place, said)
        home.wait_state(job, "SUCCEEDED", seconds=60)
        assert digests(home, job) == quiet, said
