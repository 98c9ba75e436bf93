"""Programs of PyTorch, as their users wrote them, under a job file of six lines: by torchrun's conventions, with Lightning, Accelerate
and Transformers. PyTorch is installed by a full run (CAIRN_PEER); without it these are skipped."""
import os
import re
import signal
import statistics
import subprocess
import time
from pathlib import Path

import pytest

from home import ROOT, Home, until

SAMPLE = 2
PEER = os.environ.get("CAIRN_PEER")
SCRIPTS = ROOT / "tests/torch"
pytestmark = pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")


def text(run, more=""):
    return f"""\
name: {run.split(".")[0]}
command:
  run: [{PEER}/bin/python, {SCRIPTS}/{run}]
  progress: 'step (\\d+)'{more}
workers: {{count: 2}}
"""


def logs(home, job):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{job}/*/*.log")))


def said(home, job, word):
    return sorted(set(re.findall(rf"^{word} (\S+)$", logs(home, job), re.M)))


def torchrun(folder, *run):
    """The digest that the script prints under torchrun itself."""
    done = subprocess.run([f"{PEER}/bin/python", "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", *run], cwd=folder,
                          capture_output=True, text=True, check=True, timeout=600)
    return re.search(r"^digest (\S+)$", done.stdout, re.M).group(1)


@pytest.fixture(scope="module")
def quiet(tmp_path_factory):
    return torchrun(tmp_path_factory.mktemp("torchrun"), str(SCRIPTS / "ddp.py"), "60")


def program_of(home, rank):
    """The process of that rank: the youngest child of its worker, whose oldest may be the interpreter that forked it."""
    for pid in home.pids("cairn-trainer"):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if arguments[arguments.index(b"--rank") + 1] == str(rank).encode():
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()[-1])
    return None


def kill_at(home, job, step, rank):
    """Kills that rank's process once the job is at a step; returns the seconds to the next step that is new."""
    until(lambda: home.show(job)["step"] >= step, 120, f"step {step}")
    at = home.show(job)["step"]
    os.kill(program_of(home, rank), signal.SIGKILL)
    begin = time.monotonic()
    until(lambda: home.show(job)["step"] > at or home.show(job)["state"] == "SUCCEEDED", 120, "a step that is new")
    return time.monotonic() - begin


@pytest.mark.parametrize("more", ("", "\n  preload: [torch]"))
def test_a_script_for_torchrun_computes_what_it_computes_there(more, quiet):
    with Home() as home:
        job = home.submit(text("ddp.py, '60', '0.05'", more))
        home.wait_state(job, "SUCCEEDED", seconds=200)
        assert said(home, job, "digest") == [quiet]


@pytest.mark.parametrize("more", ("", "\n  preload: [torch]"))
def test_and_so_it_does_after_kills(more, quiet):
    """Of two ranks all starts add in one order; more ranks need buckets that are settled."""
    with Home() as home:
        job = home.submit(text("ddp.py, '60', '0.05'", more))
        took = [kill_at(home, job, step, rank) for step, rank in ((15, 1), (35, 0))]
        home.wait_state(job, "SUCCEEDED", seconds=300)
        assert home.show(job)["restarts"] == 2
        assert said(home, job, "digest") == [quiet]
        print("to the next new step:", statistics.median(took))


@pytest.mark.parametrize("script", ("lightning_example.py", "accelerate_example.py", "transformers_example.py"))
def test_frameworks_start_unchanged_and_come_back(script):
    with Home() as home:
        job = home.submit(text(script))
        kill_at(home, job, 12, 1)
        home.wait_state(job, "SUCCEEDED", seconds=300)
        assert said(home, job, "done") == ["2"]
        assert home.show(job)["restarts"] == 1


@pytest.mark.parametrize("what", ("hang", "stop"))
def test_py_spy_tells_of_a_program_that_can_not(what):
    """Where faulthandler is off, and SIGABRT ignored, the line of a hung process is read from its memory; that of a stopped one, too."""
    if not Path(f"{PEER}/bin/py-spy").exists():
        pytest.skip("py-spy is no part of this environment")
    script = ("import signal, time, faulthandler\nfaulthandler.disable()\nsignal.signal(signal.SIGABRT, signal.SIG_IGN)\n"
              "def hang_here():\n    time.sleep(1000)\nprint('step 1', flush=True)\nhang_here()\n")
    with Home() as home:
        (home.dir / "hang.py").write_text(script, encoding="utf-8")
        job = home.submit(text("ddp.py"), command__run=f"[{PEER}/bin/python, hang.py]", command__hang="2 s", workers__count=1,
                          command__workdir=str(home.dir), command__restart__budget=1,
                          command__env=f"{{PATH: \"{PEER}/bin:/usr/bin:/bin\"}}")
        if what == "stop":
            until(lambda: home.show(job)["step"] == 1, 30, "step 1")
            os.kill(program_of(home, 0), signal.SIGSTOP)
        shown = home.wait_state(job, "FAILED", seconds=60)
        line = "in hang.py, line 5 in hang_here"
        assert (f"it is {line}" if what == "hang" else f"it is stopped (state T), {line}") in shown["reason"], shown["reason"]
