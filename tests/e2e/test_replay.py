"""`cairn audit JOB@A..B`: an interval computed once more comes to the same bits, or says that it doesn't."""
import gzip
import json
import os
import random
import re
import signal
import struct
from contextlib import suppress

import pytest

from home import ROOT, Home, until

JOB = {"train__lanes": 8, "train__global_batch": 24, "train__duration": "300 steps", "checkpoint__every": "50 steps",
       "checkpoint__keep__last": 10, "eval__every": "150 steps"}


def steps_of(home, job):
    """With a checkpoint: some saves may have been dropped on a busy machine."""
    return sorted(ckpt["step"] for ckpt in home.show(job)["checkpoints"])


def audit(home, what, *more):
    return home.cairn("audit", what, *more, check=False)


@pytest.fixture(scope="module", name="home")
def home_with_a_job_that_was_disturbed():
    with Home() as home:
        home.job = home.submit(**JOB, workers__count=3)
        until(lambda: home.show(home.job)["step"] > 60, 20, "it trains")
        with suppress(ProcessLookupError):  # it may be through
            os.kill(home.show(home.job)["workers"][1]["pid"], signal.SIGKILL)
        home.digest(home.job)
        home.steps = steps_of(home, home.job)
        yield home


@pytest.mark.parametrize("first,last", [(None, 0), (0, -1), (-2, -1)])
def test_another_number_of_workers_comes_to_the_same_bits(home, first, last):
    begin = 0 if first is None else home.steps[first]
    done = audit(home, f"{home.job}@{begin}..{home.steps[last]}")
    assert done.returncode == 0 and "the same bits" in done.stdout, (done.stdout, done.stderr)


def test_a_folder_in_a_store_will_do(home):
    folder = next((home.dir / "checkpoints").glob("j-*"))
    begin, end = home.steps[0], home.steps[-1]
    done = audit(home, f"{folder}@{begin}..{end}", "-o", "json")
    said = json.loads(done.stdout)
    assert done.returncode == 0 and said["equal"] is True and said["digest"] == said["computed"], said
    assert (said["from"], said["to"]) == (begin, end)


@pytest.mark.parametrize("word,code", [("100", 2), ("100..100", 2), ("200..100", 2), ("1..x", 2), ("100..", 2),
                                       ("0..210", 3), ("7..300", 3)])
def test_what_cannot_be_computed_is_said(home, word, code):
    done = audit(home, f"{home.job}@{word}")
    assert done.returncode == code and done.stderr, done


def test_a_machine_that_computes_other_bits_is_refused(home, monkeypatch):
    folder = next((home.dir / "checkpoints").glob("j-*"))
    monkeypatch.setitem(home.env, "ONEDNN_MAX_CPU_ISA", "SSE41")  # other than any machine's own
    done = audit(home, f"{folder}@{home.steps[0]}..{home.steps[-1]}")
    assert done.returncode == 4 and "other bits by itself" in done.stderr, (done.stdout, done.stderr)


def test_that_training_fails_is_not_that_bits_differ(home, monkeypatch):
    folder = next((home.dir / "checkpoints").glob("j-*"))
    monkeypatch.setitem(home.env, "CAIRN_FAULT", "trainer.loss,step=280:nan")
    done = audit(home, f"{folder}@{home.steps[-2]}..{home.steps[-1]}")
    assert done.returncode == 10 and done.stderr and "OTHER BITS" not in done.stdout, done


def test_an_error_that_no_audit_within_the_job_can_see_is_found():
    with Home(faults="trainer.weight,generation=1,step=120:flip") as home:
        job = home.submit(**JOB, workers__count=1)
        home.digest(job)
        steps = steps_of(home, job)
        after = next(i for i, step in enumerate(steps) if step > 120)
        for i, (begin, end) in enumerate(zip([0] + steps, steps)):  # from what was wrong on it was right
            done = audit(home, f"{job}@{begin}..{end}")
            assert done.returncode == (1 if i == after else 0), (begin, end, done.stdout, done.stderr)
            assert ("OTHER BITS" in done.stdout) == (i == after)


def many_files(home, letter):
    """A job of as many files as are named, with names of 1000 bytes that end in such letters."""
    folder = home.dir.joinpath("d" * 240, "e" * 240, f"{ord(letter):f<240}")
    folder.mkdir(parents=True)
    for i in range(512):
        name = f"{'train' if i < 256 else 'eval'}{i:03}".ljust(1000 - len(str(folder)), letter)
        (folder / name).write_bytes(struct.pack("<64H", *range(64)))
    text = (ROOT / "examples/gpt2-124m.yaml").read_text(encoding="utf-8")
    for was, small in SMALLER:
        text = re.sub(was, small, text)
    return home.submit(text, data__train__path=f"'{folder}/train*'", data__eval__path=f"'{folder}/eval*'")


def test_names_of_data_that_are_too_long_are_told(home):
    shown = home.wait_state(many_files(home, '"'), "FAILED")  # a letter that takes two in JSON
    assert "move them to a folder with a short name" in shown["reason"], shown["reason"]


def test_a_job_of_as_many_files_as_are_named_can_be_audited(home):
    job = many_files(home, "g")
    home.digest(job)
    done = audit(home, f"{job}@2..4")
    assert done.returncode == 0 and "the same bits" in done.stdout, (done.stdout, done.stderr)


# ---- each example, made small: few steps, small batches; of GPT-2 and BERT few layers, on a CPU ----

SMALLER = [
    (r"(?<=arch: gpt2, )[^}]*", "layers: 4, heads: 2, width: 16, context: 16, vocab: 256"),
    (r"(?<=arch: bert, )[^}]*", "layers: 2, heads: 2, width: 16, context: 16, vocab: 256, mask: 103"),
    (r"(?<=duration: )\d+ \w+", "4 steps"),
    (r"(?<=warmup: )\d+", "2"),
    (r"(?<=global_batch: )\d+", "4"),
    (r"(?<=lanes: )\d+", "4"),
    (r"checkpoint: .*", "checkpoint: {every: 2 steps, keep: {last: 4}}"),
    (r"eval: {every: .*", "eval: {every: 4 steps}"),
    (r"device: cuda", "device: cpu"),
    (r"(?<=train: {format: idx, )[^}]*", "images: images-20000.gz, labels: labels-20000.gz"),
    (r"(?<=eval: {format: idx, )[^}]*", "images: images-40.gz, labels: labels-40.gz"),
    (r"(?<=path: )[^,}]*", "data.bin"),
]


def write_samples(folder):
    """Enough images that loading them takes longer than opening a small model."""
    some = random.Random(5)
    for count in (20000, 40):
        with gzip.open(folder / f"images-{count}.gz", "wb", compresslevel=1) as file:
            file.write(struct.pack(">IIII", 0x803, count, 28, 28) + some.randbytes(784 * count))
        with gzip.open(folder / f"labels-{count}.gz", "wb", compresslevel=1) as file:
            file.write(struct.pack(">II", 0x801, count) + bytes(i % 10 for i in range(count)))
    (folder / "data.bin").write_bytes(struct.pack("<2000H", *(some.randrange(256) for _ in range(2000))))


@pytest.fixture(scope="module", name="samples")
def home_with_samples():
    with Home() as home:
        write_samples(home.dir)
        yield home


@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.yaml") if path.stem != "command"))
def test_every_example_can_be_audited(samples, name):
    text = (ROOT / "examples" / f"{name}.yaml").read_text(encoding="utf-8")
    for was, small in SMALLER:
        text = re.sub(was, small, text)
    job = samples.submit(text)
    samples.digest(job, 120)
    for begin in (0, 2):
        done = audit(samples, f"{job}@{begin}..4")
        assert done.returncode == 0 and "the same bits" in done.stdout, (done.stdout, done.stderr)


@pytest.mark.skipif(not os.environ.get("CAIRN_TEST_FULL"), reason="minutes of one core: in a full run")
def test_the_model_that_no_example_has_can_be_audited(samples):
    text = (ROOT / "examples/resnet50-synthetic.yaml").read_text(encoding="utf-8").replace("resnet50", "resnet152")
    for was, small in SMALLER:
        text = re.sub(was, small, text)
    job = samples.submit(text)
    samples.digest(job, 600)
    for begin in (0, 2):
        done = samples.cairn("audit", f"{job}@{begin}..4", check=False, timeout=600)
        assert done.returncode == 0 and "the same bits" in done.stdout, (done.stdout, done.stderr)
