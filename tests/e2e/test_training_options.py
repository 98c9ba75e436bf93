"""Optimizers, learning rates, the average of the weights, ends that come early: a job ends with the bits of one in which
nothing failed, on another layout, and `cairn ckpt export` writes the average."""
import json
import struct

import pytest

from home import Home

TEXT = """
name: options
model: {arch: mlp, hidden: 600, classes: 10}
data:
  train: {format: synthetic, samples: 480}
  eval: {format: synthetic, samples: 60}
train:
  duration: 30 steps
  global_batch: 24
  lanes: 8
  optimizer: {name: lion, lr: 0.001}
  schedule: {name: wsd, warmup: 5 steps, decay: 10 steps}
  ema: 0.9
  seed: 7
eval: {every: 10 steps}
workers: {count: 3}
checkpoint: {every: 10 steps}
"""
# Of each the optimizer, a layout for the run that fails, and where it does.
WAYS = {
    "lion": ("{name: lion, lr: 0.001}", {"parallel__zero": 1}, "trainer.update"),
    "lamb": ("{name: lamb, lr: 0.01, weight_decay: 0.1}", {"parallel__zero": 1}, "trainer.norm"),
    "muon": ("{name: muon, lr: 0.01}", {"parallel__pipeline": 2, "workers__count": 4}, "trainer.update"),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_worker_dies_within_a_step(name):
    optimizer, layout, point = WAYS[name]
    with Home() as home:
        wanted = home.run(TEXT, train__optimizer=optimizer, workers__count=1)
    with Home(faults=f"{point},rank=1,step=17:kill") as home:
        job = home.submit(TEXT, train__optimizer=optimizer, **layout)
        assert home.digest(job) == wanted
        assert len(home.show(job)["recoveries"]) == 1


def tensors(path):
    """The bytes of each tensor of a safetensors file."""
    data = path.read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    return {name: data[8 + size:][slice(*row["data_offsets"])] for name, row in header.items() if name != "__metadata__"}


def test_the_average_is_exported_and_evaluated():
    with Home() as home:
        job = home.submit(TEXT)
        digest = home.digest(job)
        files = {}
        for only in ("model", "ema", "all"):
            home.cairn("ckpt", "export", job, home.dir / only, "--only", only, "--names", "cairn")
            files[only] = tensors(home.dir / only)
        assert files["ema"].keys() == files["model"].keys()
        assert all(files["ema"][name] == files["all"]["ema/" + name] != files["model"][name] for name in files["ema"])
        loss = home.show(job)["checkpoints"][0]["eval_loss"]
        other = home.submit(TEXT, train__eval_ema="true")
        assert home.digest(other) == digest
        assert home.show(other)["checkpoints"][0]["eval_loss"] != loss
        plain = home.submit(TEXT, train__ema=0)
        assert home.digest(plain) != digest
        done = home.cairn("ckpt", "export", plain, home.dir / "none", "--only", "ema", check=False)
        assert done.returncode == 2 and "train.ema" in done.stderr
        assert not (home.dir / "none").exists()


# Nothing is better by so much: the third evaluation ends the job.
STOPS = {"train__stop": "{metric: eval_loss, patience: 2, min_delta: 100}", "eval__every": "6 steps",
         "checkpoint__every": "7 steps"}


def check_early_end(home, job, wanted):
    assert home.digest(job) == wanted
    shown = home.show(job)
    assert max(c["step"] for c in shown["checkpoints"]) == shown["step"] == shown["total_steps"] == 18
    assert len(shown["recoveries"]) == 1
    assert "ends at step 18 of 30" in home.cairn("why", job).stdout


@pytest.mark.parametrize("point", ["trainer.eval,rank=2,step=18", "trainer.update,rank=0,step=17",
                                   "trainer.finishing,rank=1"])
def test_a_job_that_gets_no_better_ends_early_at_one_step(point):
    with Home() as home:
        wanted = home.run(TEXT, **STOPS, workers__count=1, checkpoint__memory_every=0)
    with Home(faults=f"{point}:kill") as home:
        job = home.submit(TEXT, **STOPS)
        check_early_end(home, job, wanted)
