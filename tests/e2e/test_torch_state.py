"""A PyTorch program with cairn.torch, as a job: whatever is killed, and wherever it is, it ends with the bits that it has without Cairn.
PyTorch is installed by a full run (CAIRN_PEER); without it these are skipped."""
import json
import os
import re
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

from home import BIN, ROOT, Home, until

SAMPLE = 2
PEER = os.environ.get("CAIRN_PEER")
PROGRAM = ROOT / "tests/python/torch_program.py"
PACKAGE = os.environ.get("CAIRN_PYTHON", str(Path(BIN).parent / "python"))
STEPS = 14
pytestmark = pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")


def text(size, options, more="", env="", processes=1):
    words = ", ".join(f'"{word}"' for word in (STEPS, *options))
    return f"""\
name: mine
command:
  run: [{PEER}/bin/python, {PROGRAM}, {words}]
  processes: {processes}
  env: {{PYTHONPATH: "{PACKAGE}"{env}}}{more}
workers: {{count: {size // processes}}}
checkpoint: {{every: 5 steps, store: checkpoints/, memory_every: 1 step}}
"""


def digests(output):
    return sorted(re.findall(r"^(?:\[\d+\] )?digest (.*)$", output, re.M))


def alone(size, options):
    """What the program prints without Cairn, on so many processes."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = str(found.getsockname()[1])
    env = {name: value for name, value in os.environ.items() if not name.startswith("CAIRN_")}
    env |= {"PYTHONPATH": PACKAGE, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1"}
    started = [subprocess.Popen([f"{PEER}/bin/python", PROGRAM, str(STEPS), *options], env={**env, "RANK": str(rank)}, text=True,
                                stdout=subprocess.PIPE) for rank in range(size)]
    return digests("\n".join(each.communicate(timeout=300)[0] for each in started))


def output(home, job):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{job}/*/*.log")))


def await_steps(home, job, step):
    until(lambda: home.show(job)["step"] >= step, 120, f"step {step}")


CASES = [
    (2, ("adamw", "batchnorm", "dropout", "workers"), 7, "forward"),
    (2, ("sgd", "scaler", "accumulate", "dropout"), 6, "backward"),
    (3, ("sgd", "batchnorm", "settle"), 8, "optimizer"),
    (4, ("adamw", "bf16", "dropout", "settle"), 5, "save"),
    (1, ("sgd", "micro", "batchnorm"), 10, "forward"),
]


@pytest.mark.parametrize("size, options, at, place", CASES, ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value))
def test_a_kill_anywhere_changes_no_bit(size, options, at, place, tmp_path):
    mark = tmp_path / "killed"
    with Home(slots=size) as home:
        job = home.submit(text(size, (*options, f"kill={at}:{place}"), env=f', KILL_MARK: "{mark}", KILL_RANK: "{size - 1}"'))
        home.wait_state(job, "SUCCEEDED", seconds=240)
        assert Path(f"{mark}.{place}").exists()
        said = output(home, job)
        assert digests(said) == alone(size, options), said[-3000:]
        assert home.cairn("ckpt", "verify", job)


SIZES = (2, 3, 4)
PLACES = {"forward": 3, "backward": 6, "optimizer": 9, "save": 11}  # each in another step
KINDS = (("adamw", "batchnorm"), ("sgd", "dropout"), ("adamw", "workers"), ("sgd", "accumulate", "scaler"), ("adamw", "bf16"))
# Runs groups of processes, forked from one that has imported PyTorch.
ALONE = """
import json, os, runpy, sys, torch, torch.distributed, torch._dynamo
for port, size, words in json.loads(sys.argv[2]):
    print("group", flush=True)
    os.environ.update(MASTER_PORT=str(port), WORLD_SIZE=str(size))
    for rank in range(size):
        if os.fork() == 0:
            os.environ["RANK"] = str(rank)
            sys.argv[1:] = words
            runpy.run_path(sys.argv[0], run_name="__main__")
            sys.stdout.flush()
            os._exit(0)
    assert all(os.wait()[1] == 0 for rank in range(size))
"""


def kind_of(size, options):
    return (*options, "settle") if size > 2 else options  # the order of more than two numbers' sum


def all_alone(cases):
    """The digests of each case without Cairn and without a kill."""
    found = [socket.create_server(("127.0.0.1", 0)) for _ in cases]
    groups = [(one.getsockname()[1], size, [str(STEPS), *options]) for one, (size, options) in zip(found, cases)]
    for one in found:
        one.close()
    env = {name: value for name, value in os.environ.items() if not name.startswith(("CAIRN_", "PYTHONUNBUFFERED"))}
    env |= {"PYTHONPATH": PACKAGE, "MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1"}  # lines are whole: their end isn't written apart
    done = subprocess.run([f"{PEER}/bin/python", "-c", f"import sys; sys.argv[0] = sys.argv[1]\n{ALONE}", PROGRAM, json.dumps(groups)],
                          env=env, capture_output=True, text=True, timeout=600, check=True)
    return dict(zip(cases, [digests(part) for part in done.stdout.split("group\n")[1:]]))


@pytest.mark.skipif(not os.environ.get("CAIRN_TEST_FULL"), reason="takes minutes: a full run")
def test_a_kill_in_each_place_of_each_kind_of_state_on_two_to_four_processes(tmp_path):
    """A job for each kind and number, in which the last rank is killed once in each place."""
    cases = [(size, kind_of(size, options)) for size in SIZES for options in KINDS]
    quiet = all_alone(cases)
    with Home(slots=4) as home:
        jobs = {}
        for size, options in cases:
            mark = tmp_path / "-".join((str(size), *options))
            kills = [f"kill={at}:{place}" for place, at in PLACES.items()]
            jobs[size, options] = mark, home.submit(text(size, (*options, *kills), "\n  preload: [torch, torch._dynamo]",
                                                         f', KILL_MARK: "{mark}", KILL_RANK: "{size - 1}"', processes=2 if size == 4 else 1))
        for (size, options), (mark, job) in jobs.items():
            home.wait_state(job, "SUCCEEDED", seconds=900)
            killed = [place for place in PLACES if Path(f"{mark}.{place}").exists()]
            assert killed == list(PLACES), (size, options)
            said = output(home, job)
            assert digests(said) == quiet[size, options] and len(quiet[size, options]) == size, said[-3000:]
            print(f"case {size} {'+'.join(options)}: {len(killed)} kills, {home.show(job)['restarts']} restarts")


def test_workers_killed_together_go_on_from_memory():
    options = ("adamw", "batchnorm", "dropout", "slow")
    with Home() as home:
        job = home.submit(text(2, options, "\n  preload: [torch]"))
        await_steps(home, job, 6)
        home.kill("cairn-trainer")
        home.wait_state(job, "SUCCEEDED", seconds=240)
        assert digests(output(home, job)) == alone(2, options)


def test_a_pause_saves_and_a_checkpoint_is_read_without_a_coordinator():
    options = ("sgd", "batchnorm", "dropout", "slow")
    with Home() as home:
        job = home.submit(text(2, options))
        await_steps(home, job, 4)
        home.cairn("pause", job)
        shown = home.wait_state(job, "PAUSED", seconds=60)
        path = shown["checkpoints"][0]["path"]
        program = ("import cairn, cairn.torch; s = cairn.load({0!r}); t = cairn.torch.load({0!r}, rank=1); print(s.step, s.ranks, "
                   "s['model.first.weight'].shape, t['model.norm.running_mean'].dtype, (s.of(1)['model.norm.running_mean'] == "
                   "t['model.norm.running_mean'].numpy()).all(), sorted(t.under('optimizer.state.last.weight.')))").format(path)
        done = subprocess.run([f"{PEER}/bin/python", "-c", program], env={**os.environ, "PYTHONPATH": PACKAGE}, capture_output=True, text=True,
                              check=True, timeout=60)
        assert re.fullmatch(r"\d+ 2 \(6, 1, 3, 3\) torch\.float32 True \['momentum_buffer'\]\n", done.stdout), done.stdout
        home.cairn("resume", job)
        home.wait_state(job, "SUCCEEDED", seconds=240)
        assert digests(output(home, job)) == alone(2, options)


def test_sigterm_saves_and_training_goes_on():
    options = ("sgd", "dropout", "slow")
    with Home() as home:
        job = home.submit(text(1, options))
        await_steps(home, job, 4)
        for pid in home.pids("cairn-trainer"):
            child = int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()[-1])
            os.kill(child, signal.SIGTERM)
        time.sleep(0.1)
        home.wait_state(job, "SUCCEEDED", seconds=240)
        assert digests(output(home, job)) == alone(1, options)
