"""Job files with a command: what `cairn plan` and `cairn submit` say of them before anything runs."""
import os
import subprocess

import pytest

from home import BIN, TINY, Home

JOB = """name: mine
command:
  run: [python3, train.py, --name, "a b"]
  env: {LR: 0.1}
  folder: out
  progress: 'step (\\d+)'
workers: {count: 2, min: 1}
"""


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home(slots=1) as home:
        yield home


def write(home, text):
    path = home.dir / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def plan(home, name, given):
    return subprocess.run([BIN / "cairn", "plan", name], env=home.env, cwd=home.dir, input=given, timeout=60, capture_output=True,
                          text=True, check=False)


def test_plan_says_what_would_be_started(home):
    path = write(home, JOB)
    for name, given in ((path, ""), ("-", JOB)):
        done = plan(home, name, given)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        assert "command       python3 train.py --name 'a b'\n" in done.stdout
        assert f"starts in     {home.dir}\n" in done.stdout
        assert "environment   LR=0.1\n" in done.stdout
        assert f"writes to     {home.dir}/out" in done.stdout
        assert "WORLD_SIZE 2 or less" in done.stdout
        assert "nan" not in done.stdout.lower() and "parameters" not in done.stdout
    done = plan(home, "-", TINY)  # the trainer reads it, after all
    assert "parameters" in done.stdout, done.stdout
    done = home.cairn("plan", path, "--set", "model.arch=mlp", check=False)
    assert done.returncode == 2 and "model is not for a job with a command" in done.stderr


def test_plan_says_what_would_be_saved(home):
    done = plan(home, "-", JOB)
    assert "checkpoints   none: what it goes on from, it saves itself\n" in done.stdout
    path = write(home, JOB + "checkpoint: {every: 10 steps, keep: {last: 2, every: 50 steps, best: {metric: eval_loss}}}\n")
    done = plan(home, path, "")
    assert done.returncode == 0 and done.stderr == "", done.stderr
    assert f"checkpoints   every 10 steps, to {home.dir}/checkpoints\n" in done.stdout
    assert "kept          the last 2, those of every 50 steps, the best 1 by eval_loss\n" in done.stdout
    assert "copies        every 1 step, on the node of the workers\n" in done.stdout
    done = home.cairn("plan", path, "--set", "checkpoint={every: auto, memory_every: none}")
    assert "copies        those that become checkpoints\n" in done.stdout, done.stdout
    done = home.cairn("plan", path, "--set", "command.processes=2", check=False)
    assert done.returncode == 2 and "saves the state of one process per worker" in done.stderr
    assert "set command.processes to 1 and workers.count to 4, or remove checkpoint" in done.stderr


@pytest.mark.parametrize("change, said", [
    ("command.workdir=nowhere", "mine.yaml: the job file has mistakes"),
    ("command.workdir=nowhere", "command.workdir: {dir}/nowhere: there is no such folder"),
    ("command.workdir=mine.yaml", "command.workdir: {dir}/mine.yaml is no folder"),
    ("command.run=[./nothing]", "command.run: {dir}/./nothing: there is no such file"),
    ("command.run=[./mine.yaml]", "may not run {dir}/./mine.yaml (mode"),
    ("command.run=[/]", "command.run: / is a folder"),
    ("command.folder=/proc/x", "can make nothing in /proc"),
    ("command=null", "there is neither a model nor a command"),
    ("command.env.RANK=1", "command.env can't set RANK"),
    ("checkpoint.store=/proc/x", "can make nothing in /proc"),
    ("checkpoint.store=s3://bucket/x", "can't be in S3"),
    ("checkpoint.peers=1", "copies of its state stay on their node"),
])
def test_submit_refuses_what_can_not_run(home, change, said):
    path = write(home, JOB)
    os.chmod(path, 0o644)
    done = home.cairn("submit", path, "--set", change, check=False)
    assert done.returncode == 2 and said.format(dir=home.dir) in done.stderr, done.stderr


def test_a_program_that_is_to_be_saved_has_a_store(home):
    """It gets no slot."""
    keeper = home.submit(TINY.replace("12 steps", "100000 steps").replace("count: 2", "count: 1"))
    path = write(home, JOB.replace("folder: out", "grace: 5 s") + "checkpoint: {every: 10 steps}\n")
    name = home.cairn("submit", path, "-o", "name").stdout.strip()
    assert home.show(name)["store"] == f"{home.dir}/checkpoints/{name}"
    shown = home.cairn("show", name).stdout
    assert "command      python3 train.py" in shown and f"store        {home.dir}/checkpoints/{name}\n" in shown, shown
    assert "memory_every: 1 step\n" in home.show(name)["job_file"], home.show(name)["job_file"]
    why = home.cairn("why", name).stdout
    assert "Checkpoints: every 10 steps." in why and "nan" not in why.lower(), why
    done = home.cairn("save", name, check=False)
    assert done.returncode == 4 and "is QUEUED: there is nothing to save" in done.stderr, done.stderr
    assert home.cairn("ckpt", "ls", name, check=False).returncode == 0
    home.cairn("kill", name)
    home.cairn("kill", keeper)


def test_a_program_without_a_path_is_looked_for_where_it_runs(home):
    """Two jobs can't have one folder. Neither gets a slot: what happens then is told elsewhere."""
    keeper = home.submit(TINY.replace("12 steps", "100000 steps").replace("count: 2", "count: 1"))
    path = write(home, JOB.replace("python3", "no-such-program-here"))
    first = home.cairn("submit", path, "-o", "name").stdout.strip()
    again = home.cairn("submit", path, check=False)
    assert again.returncode == 4, again.stderr
    assert f"command.folder: mine ({first}) writes to {home.dir}/out and isn't over" in again.stderr
    shown = home.cairn("show", first).stdout
    assert "command      no-such-program-here train.py --name 'a b'\n" in shown and "store" not in shown, shown
    assert home.show(first)["model"] == "command" and home.show(first)["store"] == ""
    wide = home.cairn("ps", "--columns", "id,model,command,step,progress,speed,eta,mfu").stdout
    assert "no-such-program-here" in wide and "nan" not in wide.lower(), wide
    why = home.cairn("why", first).stdout
    assert "Checkpoints: none" in why and "nan" not in why.lower(), why
    home.cairn("kill", first)
    second = home.cairn("submit", path, "-o", "name").stdout.strip()
    home.cairn("kill", second)
    home.cairn("kill", keeper)
