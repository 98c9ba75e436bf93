"""One digest for every layout: stages 1 to 4, of one worker, of two and of unequal numbers, with all moments or owned ones, for three
models in two precisions and by four schedules, each with a kill in a phase; and with the layout changed in the middle.

A layout or two of each model and precision, drawn by a seed (CAIRN_SEED); CAIRN_TEST_FULL: all.
"""
import functools
import os
import random

import pytest

from elastic import held_home, paced, sizes
from home import Home

FULL = "CAIRN_TEST_FULL" in os.environ
COMMON = """
train:
  duration: 8 steps
  global_batch: 16
  lanes: 8
  optimizer: {name: adamw, lr: 0.001, weight_decay: 0.1, no_decay: [bias]}
  clip_norm: 1
  seed: 5
eval: {every: 4 steps}
checkpoint: {every: 3 steps, keep: {last: 2}, store: checkpoints/}
"""
MODELS = {
    "mlp": "{arch: mlp, hidden: 700, classes: 10}",
    "resnet18": "{arch: resnet18, classes: 10}",
    "gpt2": "{arch: gpt2, layers: 3, heads: 2, width: 64, context: 16, vocab: 4000, dropout: 0.1}",
}
JOBS = [(model, precision) for model in MODELS for precision in ("fp32", "bf16")]
PHASES = ["trainer.forward", "trainer.backward", "trainer.reduce", "trainer.update"]
# More of them than the mlp has nodes between which it can be cut are not asked of it.
STAGES = {"mlp": (1, 2, 3), "resnet18": (1, 2, 3, 4), "gpt2": (1, 2, 3, 4)}


def text(model):
    samples = 48 if model == "resnet18" else 96
    return (f"name: layouts\nmodel: {MODELS[model]}\n"
            f"data: {{train: {{format: synthetic, samples: {samples}}}, eval: {{format: synthetic, samples: 16}}}}\n{COMMON}")


@functools.cache
def quiet(model, precision, steps=8):
    with Home() as home:
        return home.run(text(model), seconds=300, train__precision=precision, train__duration=f"{steps} steps", workers__count=1)


def layouts(model):
    """(workers of each stage, parallel.zero)"""
    found = []
    for stages in STAGES[model]:
        widths = [(1,) * stages, (2,) * stages]
        if stages > 1:
            widths.append(tuple(1 + i % 2 for i in range(stages)))
        found += [(width, zero) for width in widths for zero in (0, 1)]
    return found


def draw(what, *key):
    """All in a full run; else one."""
    seed = os.environ.get("CAIRN_SEED", "1")
    return what if FULL else [random.Random(f"{seed} {key}").choice(what)]


def keys(widths, zero):
    sets = {"workers__count": sum(widths), "parallel__zero": zero}
    if len(widths) > 1:
        sets["parallel__pipeline"] = len(widths)
        sets["parallel__schedule"] = random.Random(f"{widths} {zero}").choice(["1f1b", "gpipe", "interleaved", "zb-h1"])
        sets["parallel__stages"] = "[" + ", ".join(f"{{workers: {width}}}" for width in widths) + "]"
    return sets


@pytest.mark.parametrize("model,precision", JOBS)
def test_layouts_and_kills_change_no_bit(model, precision):
    for widths, zero in draw(layouts(model), model, precision):
        dice = random.Random(f"{model} {precision} {widths} {zero}")
        fault = f"{dice.choice(PHASES)},rank={dice.randrange(sum(widths))},step=5:kill"
        with Home(faults=fault, slots=8) as home:
            job = home.submit(text(model), train__precision=precision, **keys(widths, zero))
            assert home.digest(job, seconds=300) == quiet(model, precision), (widths, zero, fault)
            assert home.show(job)["restarts"] == 1, (widths, zero, fault)


@pytest.mark.parametrize("model,precision", JOBS if FULL else draw(JOBS, "changed"))
def test_a_layout_is_changed_in_the_middle(model, precision):
    """The wish is three stages of two workers; fewer take what is nearest to it. They leave a while after the order."""
    steps = 24 if model == "resnet18" else 60
    for after, zero in draw([(1, 0), (2, 1), (3, 0), (4, 1), (5, 1)], model, precision, "after"):
        with held_home("trainer.forward,rank=0,step=4:wait", *paced(1, ms=200), slots=8) as home:
            job = home.submit(text(model), train__precision=precision, train__duration=f"{steps} steps",
                              **keys((2, 2, 2), zero), workers__min=1)
            home.wait_hit("trainer.forward")
            home.cairn("set", job, f"workers.count={after}")
            home.go("trainer.forward")
            assert home.digest(job, seconds=300) == quiet(model, precision, steps), (after, zero)
            assert sizes(home, job)[-1] == after
