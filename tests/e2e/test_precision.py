"""Equal bits for every number of workers and with a kill: text models and image models, fp32 and bf16; also where
values are computed again in place of being kept.

Of 1, 2 and 4 workers one number each, drawn by a seed (CAIRN_SEED); CAIRN_TEST_FULL: all.
"""
import functools
import os
import random

import pytest

from home import Home

TEXT = """\
name: text
model: {arch: gpt2, layers: 2, heads: 2, width: 64, context: 32, dropout: 0.1}
data:
  train: {format: text, path: train.txt, tokenizer: bytes}
  eval: {format: text, path: eval.txt, tokenizer: bytes}
train:
  duration: 8 steps
  global_batch: 8
  lanes: 4
  optimizer: {name: adamw, lr: 1e-3, weight_decay: 0.1}
  schedule: {name: cosine, warmup: 2 steps}
  clip_norm: 1.0
  seed: 3
eval: {every: 4 steps}
workers: {count: 2}
checkpoint: {every: 3 steps, keep: {last: 2}, store: checkpoints/, memory_every: none}
"""

IMAGES = """\
name: images
model: {arch: resnet18, classes: 10}
data:
  train: {format: synthetic, samples: 64}
  eval: {format: synthetic, samples: 20}
train:
  duration: 5 steps
  global_batch: 8
  lanes: 4
  optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 5e-4}
  seed: 3
eval: {every: 5 steps}
workers: {count: 2}
checkpoint: {every: 2 steps, keep: {last: 2}, store: checkpoints/, memory_every: none}
"""

VIT = IMAGES.replace("arch: resnet18, classes: 10", "arch: vit, classes: 10, layers: 2, heads: 2, width: 32, patch: 7, dropout: 0.1")
BERT = TEXT.replace("arch: gpt2", "arch: bert")
LLAMA = TEXT.replace("arch: gpt2", "arch: llama").replace("heads: 2", "heads: 4, kv_heads: 2").replace(", dropout: 0.1", "")


def write_text(home):
    words = [f"{a}{b} " for a in ("the", "a", "no", "every") for b in (" ship", " storm", " star", "where")]
    text = "".join(words[i * i % 13] + words[i * 7 % 16] for i in range(600))
    (home.dir / "train.txt").write_text(text, encoding="utf-8")
    (home.dir / "eval.txt").write_text(text[100:1500], encoding="utf-8")


def run(job, workers, precision, faults=None, recompute="none"):
    with Home(faults=faults) as home:
        write_text(home)
        digest = home.run(job, seconds=120, workers__count=workers, train__precision=precision,
                          train__recompute=recompute)
        restarts = home.show(home.cairn("ps", "-o", "name").stdout.split()[0])["restarts"]
        assert restarts >= (1 if faults else 0)
        return digest


@functools.cache
def quiet(job, precision):
    return run(job, 1, precision)


def numbers_of_workers(job, precision):
    every = (1, 2, 4)
    if "CAIRN_TEST_FULL" in os.environ:
        return every
    return [random.Random(f"{os.environ.get('CAIRN_SEED', '1')} {job} {precision}").choice(every)]


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("job", [TEXT, IMAGES, LLAMA, VIT, BERT], ids=["gpt2", "resnet18", "llama", "vit", "bert"])
def test_workers_and_kills_change_no_bit(job, precision):
    for workers in numbers_of_workers(job[:40], precision):
        rank = workers - 1
        assert run(job, workers, precision, f"trainer.backward,rank={rank},step=3:kill") == quiet(job, precision), workers


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("job", [TEXT, IMAGES], ids=["gpt2", "resnet18"])
def test_what_is_computed_again_changes_no_bit(job, recompute):
    for workers in numbers_of_workers(job[:20], recompute):
        rank = workers - 1
        assert run(job, workers, "bf16", f"trainer.backward,rank={rank},step=3:kill", recompute) == quiet(job, "bf16")


def test_precision_changes_the_result():
    assert quiet(TEXT, "fp32") != quiet(TEXT, "bf16")
