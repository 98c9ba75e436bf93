"""Data are pinned: what isn't the data that a job began with is waited for, by file and node, and never trained on."""
import gzip
import json
import random
import shutil
import sqlite3
import struct
from contextlib import closing

import pytest

from home import TINY, Home, until
from test_suspect import can_mount, node

TEXT = (TINY.replace("{arch: mlp, hidden: 32, classes: 10}", "{arch: gpt2, layers: 1, heads: 2, width: 16, context: 16}")
        .replace("train: {format: synthetic, samples: 384}", "train: {format: text, path: data/text.txt}")
        .replace("eval: {format: synthetic, samples: 100}", "eval: {format: text, path: data/eval.txt}"))
IMAGES = TINY.replace("train: {format: synthetic, samples: 384}",
                      "train: {format: idx, images: data/images.gz, labels: data/labels.gz}")


def longer(text):
    """Long enough for a pause: it is announced for a step beyond all that are trained by then."""
    return (text.replace("duration: 12 steps", "duration: 1200 steps").replace("every: 4 steps", "every: 400 steps")
            .replace("eval: {every: 6 steps}", "eval: {every: 600 steps}"))


LONG_TEXT, LONG_IMAGES = longer(TEXT), longer(IMAGES)
IN_STEP_6 = "trainer.forward,rank=0,step=6:wait"


def write_data(home, folder="data"):
    made = home.dir / folder
    made.mkdir()
    some = random.Random(3)
    (made / "text.txt").write_bytes(some.randbytes(20000))
    (made / "eval.txt").write_bytes(some.randbytes(2000))
    with gzip.open(made / "images.gz", "wb") as file:
        file.write(struct.pack(">IIII", 0x803, 96, 28, 28) + some.randbytes(784 * 96))
    with gzip.open(made / "labels.gz", "wb") as file:
        file.write(struct.pack(">II", 0x801, 96) + bytes(i % 10 for i in range(96)))
    return made


def flip(path, at):
    """Changes one byte in place, and not the size; again: it is as it was."""
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 1]))


def paused(home, text):
    """A job of a home with IN_STEP_6 that began to train, and is paused."""
    job = home.submit(text)
    home.wait_hit("trainer.forward")
    home.cairn("pause", job)
    home.go("trainer.forward")
    home.wait_state(job, "PAUSED")
    return job


def waits_for(home, job, path):
    """The job waits for that file, and says so with the node's name."""
    def says():
        shown = home.try_show(job)
        return shown and shown["state"] == "RECOVERING" and str(path) in shown["reason"] and shown
    shown = until(says, 60, f"{job} waits for {path}")
    name = json.loads(home.cairn("node", "ls", "-o", "json").stdout)
    names = [entry["name"] for entry in (name if isinstance(name, list) else name["nodes"])]
    assert any(f"node {each}:" in shown["reason"] for each in names), (shown["reason"], names)
    assert str(path) in home.cairn("why", job).stdout
    return shown


def test_text_that_is_edited_while_a_job_trains_on_it_is_waited_for():
    with Home() as home:
        write_data(home)
        quiet = home.run(TEXT)
    with Home(faults=IN_STEP_6) as home:
        path = write_data(home) / "text.txt"
        job = home.submit(TEXT)
        home.wait_hit("trainer.forward")
        for at in range(0, 20000, 7):  # wherever the steps to come read
            flip(path, at)
        home.go("trainer.forward")
        tried = waits_for(home, job, path)["generation"]
        until(lambda: home.show(job)["generation"] > tried + 1, 60, "it is tried again, and again")
        assert home.show(job)["state"] in ("RECOVERING", "PLACING", "FORMING")
        for at in range(0, 20000, 7):
            flip(path, at)
        assert home.digest(job, seconds=90) == quiet


def test_data_that_are_edited_while_a_job_is_paused_are_waited_for():
    with Home(faults=IN_STEP_6) as home:
        data = write_data(home)
        job = paused(home, LONG_IMAGES)
        kept = (data / "labels.gz").read_bytes()
        with gzip.open(data / "labels.gz", "wb") as file:
            file.write(struct.pack(">II", 0x801, 96) + bytes((i + 1) % 10 for i in range(96)))
        home.cairn("resume", job)
        waits_for(home, job, data / "labels.gz")
        (data / "labels.gz").unlink()  # nor is a missing one a mistake of the job file any more
        until(lambda: "no such file" in home.show(job)["reason"], 60, "the missing file is told")
        assert home.show(job)["state"] != "FAILED"
        (data / "labels.gz").write_bytes(kept)
        digest = home.digest(job, seconds=90)
        assert digest == home.run(LONG_IMAGES)


def test_another_copy_of_the_data_on_a_node_is_waited_for():
    with Home(faults=IN_STEP_6, slots=1) as home:
        if not can_mount(home):
            pytest.skip("no mount namespace of our own")
        data = write_data(home)
        other = home.dir / "other"
        shutil.copytree(data, other)
        flip(other / "text.txt", 12345)
        with node(home, "another", 2):
            job = paused(home, LONG_TEXT)
        with node(home, "another", 2, (data, other)):
            home.cairn("resume", job)
            shown = waits_for(home, job, data / "text.txt")
            assert "node another:" in shown["reason"]
            flip(other / "text.txt", 12345)
            digest = home.digest(job, seconds=90)
        assert digest == home.run(LONG_TEXT, workers__count=1)


def test_nodes_that_differ_from_the_beginning_are_told_and_what_they_agree_on_counts():
    with Home(slots=1) as home:
        if not can_mount(home):
            pytest.skip("no mount namespace of our own")
        data = write_data(home)
        other = home.dir / "other"
        shutil.copytree(data, other)
        flip(other / "text.txt", 12345)
        quiet = home.run(TEXT, workers__count=1)
        with node(home, "another", 1, (data, other)):
            until(lambda: home.cairn("node", "ls").stdout.count("ready") >= 2, 20, "two nodes")
            job = home.submit(TEXT)
            waits_for(home, job, data / "text.txt")
            flip(other / "text.txt", 12345)
            assert home.digest(job, seconds=90) == quiet


def test_data_that_nobody_touched_are_hashed_once_on_a_node():
    longer = {"train__duration": "100 steps"}
    with Home(faults="trainer.forward,rank=0,step=6:wait") as home:
        text = write_data(home) / "text.txt"
        text.write_bytes(random.Random(4).randbytes(5 << 20))

        def kept():
            """Each hashing would make another file; that of the evaluation is too small to be kept."""
            (path,) = (home.home / "sums").glob("*/*.sums")
            info = path.stat()
            return info.st_ino, info.st_mtime_ns
        job = home.submit(TEXT, **longer)  # a pause may come some steps later
        home.wait_hit("trainer.forward")
        home.cairn("pause", job)
        home.go("trainer.forward")
        home.wait_state(job, "PAUSED")
        before = kept()
        home.cairn("resume", job)
        digest = home.digest(job)
        assert kept() == before
        text.touch()
        assert digest == home.run(TEXT, **longer)
        assert kept() != before


def test_a_job_that_began_before_data_were_pinned_goes_on():
    with Home(faults=IN_STEP_6) as home:
        data = write_data(home)
        job = paused(home, LONG_TEXT)
        home.cairn("down", timeout=40)
        until(lambda: not home.pids(), 10, "no process is left after down")
        with closing(sqlite3.connect(home.home / "state" / "cairnd.db")) as base:
            (pins,) = base.execute("SELECT pins FROM jobs").fetchone()
            assert str(data / "text.txt") in pins
            base.execute("UPDATE jobs SET pins = ?", (pins[:pins.index(',"data":{')] + "}",))
            base.commit()
        home.cairn("up", "--slots", "4")
        home.cairn("resume", job)
        digest = home.digest(job)
        assert digest == home.run(LONG_TEXT)


def test_nodes_without_the_data_are_named_and_left():
    with Home(slots=1) as home:
        if not can_mount(home):
            pytest.skip("no mount namespace of our own")
        data = write_data(home)
        quiet = home.run(TEXT, workers__count=1)
        empty = home.dir / "empty"
        empty.mkdir()
        with node(home, "without1", 2, (data, empty)), node(home, "without2", 2, (data, empty)):
            until(lambda: home.cairn("node", "ls").stdout.count("ready") >= 3, 20, "three nodes")
            job = home.submit(TEXT)  # of two workers: the home's own node has one slot
            shown = home.wait_state(job, "FAILED")
            assert "node without" in shown["reason"] and f"{data}/text.txt: no such file" in shown["reason"], shown
            names = shown["reason"].split("it failed on 2 nodes: ")[-1]
            assert set(names.split(", ")) == {"without1", "without2"} and shown["step"] == 0, shown
            with node(home, "with", 2):
                until(lambda: home.cairn("node", "ls").stdout.count("ready") >= 4, 20, "four nodes")
                job = home.submit(TEXT)
                assert home.digest(job, seconds=90) == quiet
                said = [event["message"] for event in home.show(job)["events"] if event["kind"] == "fault"]
                assert len(said) <= 2 and all("node without" in message for message in said), said
                assert {worker["node"] for worker in home.show(job)["workers"]} == {"with"}


def test_weights_that_a_node_does_not_have_are_named():
    with Home() as home:
        home.env["CAIRN_ADDR"] = f"unix:{home.home}/cairnd.sock"  # its nodes may be elsewhere: submit looks at nothing
        job = home.submit(TEXT.replace("arch: gpt2,", "arch: gpt2, weights: weights.safetensors,")
                          .replace("format: text, path: data/text.txt", "format: synthetic, samples: 384")
                          .replace("format: text, path: data/eval.txt", "format: synthetic, samples: 100"))
        shown = home.wait_state(job, "FAILED")
        assert "node " in shown["reason"] and f"{home.dir}/weights.safetensors" in shown["reason"], shown
