"""Whole jobs on the device of this machine: real processes, real kills, NCCL between two workers that share it.

Two nodes offer the one device, so that a job of two workers finds two slots; each rank is a host of its own for NCCL
(CAIRN_SHARED_DEVICE). CAIRN_LIBRARIES, if set, is where the programs find their libraries. Skipped without a device.
"""
import functools
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "e2e"))
from home import BIN, Home, until  # noqa: E402

MODULE = os.environ.get("CAIRN_CUDA_MODULE", str(BIN / "cairn-cuda.so"))
KEPT = {name: os.environ[name] for name in ("CAIRN_NVML", "CAIRN_FAKE_CUDA", "FAKE_NVML_DIR") if name in os.environ}
ENV = {**KEPT, "CAIRN_CUDA_MODULE": MODULE, "CAIRN_SHARED_DEVICE": "1", "CAIRN_HANG_MS": "6000", "CAIRN_WATCHDOG_MS": "8000"}
if "CAIRN_LIBRARIES" in os.environ:
    ENV["LD_LIBRARY_PATH"] = os.environ["CAIRN_LIBRARIES"]

STEPS = int(os.environ.get("CAIRN_STEPS", "600"))
MODELS = {
    "gpt2": ("{arch: gpt2, layers: 4, heads: 6, width: 384, context: 256, vocab: 5000, dropout: 0.1}",
             "{name: adamw, lr: 1e-3, weight_decay: 0.1, no_decay: [bias, norm]}"),
    "resnet18": ("{arch: resnet18, classes: 10}", "{name: sgd, lr: 0.01, momentum: 0.9, weight_decay: 5e-4}"),
}
JOB = """\
name: on-a-device
model: MODEL
data:
  train: {format: synthetic, samples: 3072}
  eval: {format: synthetic, samples: 100}
train:
  duration: STEPS steps
  global_batch: 32
  lanes: 4
  optimizer: OPTIMIZER
  schedule: {name: cosine, warmup: 10 steps}
  clip_norm: 1
  precision: bf16
  seed: 17
eval: {every: EIGHTH steps}
workers: {count: 1, device: cuda}
checkpoint: {every: QUARTER steps, keep: {last: 2}, store: checkpoints/}
"""


def job_of(model):
    text = JOB
    for name, value in (("MODEL", MODELS[model][0]), ("OPTIMIZER", MODELS[model][1]), ("STEPS", STEPS),
                        ("EIGHTH", STEPS // 8), ("QUARTER", STEPS // 4)):
        text = text.replace(name, str(value))
    return text


def home_with():
    return Home(env=ENV, slots=1)


@functools.cache
def quiet(model):
    """The digest of a run of one worker without a failure."""
    with home_with() as home:
        return home.run(job_of(model), seconds=60)


@pytest.fixture(scope="session", autouse=True)
def there_is_a_device():
    done = subprocess.run([BIN / "cairn-trainer", "--check", "cuda"], env={**os.environ, **ENV}, capture_output=True,
                          text=True, check=False)
    if "device cuda: " in done.stderr:
        pytest.skip(done.stderr.strip() or done.stdout.strip())


@contextmanager
def second_node(home):
    with open(home.home / "log" / "another.log", "ab") as log, \
            subprocess.Popen([BIN / "cairn-agent", "--name", "another", "--slots", "1"], env=home.env, cwd=home.dir,
                             stdout=log, stderr=log) as agent:
        try:
            until(lambda: any(row.split()[:2] == ["another", "ready"]
                              for row in home.cairn("node", "ls", check=False).stdout.splitlines()), 20, "two nodes")
            yield
        finally:
            agent.kill()


def pids(shown):
    return {worker["rank"]: worker["pid"] for worker in shown["workers"] if worker["state"] != "gone"}


def at_step(home, job, step):
    """The job, once it is there."""
    return until(lambda: (s := home.show(job))["step"] >= step and s, 60, f"step {step}")


@pytest.mark.parametrize("model", MODELS)
def test_a_killed_worker_changes_no_bit(model):
    digest = quiet(model)
    with home_with() as home:
        job = home.submit(job_of(model))
        os.kill(pids(at_step(home, job, STEPS // 3))[0], signal.SIGKILL)
        assert home.digest(job, seconds=60) == digest
        assert home.show(job)["restarts"] == 1


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGSTOP])
def test_a_survivor_goes_on_beside_a_newcomer_as_if_one_worker_had_done_all(model, sent):
    digest = quiet(model)
    with home_with() as home, second_node(home):
        job = home.submit(job_of(model), workers__count=2)
        before = pids(at_step(home, job, STEPS // 3))
        os.kill(before[1], sent)
        until(lambda: pids(home.show(job)).get(1) not in (None, before[1]), 60, "another worker")
        after = pids(home.show(job))
        assert home.digest(job, seconds=90) == digest
        told = [(one["kind"], one["steps_lost"]) for one in home.show(job)["recoveries"]]
        print(home.cairn("why", job).stdout)
        assert told == [("live", 0)] and after[0] == before[0], told


@pytest.mark.parametrize("layout", ["{zero: 1}", "{pipeline: 2}"])
def test_layouts_change_no_bit(layout):
    digest = quiet("gpt2")
    with home_with() as home, second_node(home):
        assert home.run(job_of("gpt2") + f"parallel: {layout}\n", seconds=90, workers__count=2) == digest
