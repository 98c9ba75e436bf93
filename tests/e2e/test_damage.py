"""A damaged checkpoint is always found, never loaded, and the one before takes its place."""
import random
import shutil
from pathlib import Path

import pytest

from home import Home, until

LONG = {"train__duration": "2000 steps", "checkpoint__every": "100 steps", "checkpoint__keep__last": 3}


def flip(path, at, rng):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def shards(folder):
    return sorted(folder.glob("shard-*.cairn"))


DAMAGES = {
    "a flipped byte in the middle of a shard": lambda f, o, r: flip(shards(f)[1], shards(f)[1].stat().st_size // 2, r),
    "a flipped byte in a header": lambda f, o, r: flip(shards(f)[0], 20, r),
    "a truncated shard": lambda f, o, r: shards(f)[0].write_bytes(shards(f)[0].read_bytes()[:-100]),
    "a missing shard": lambda f, o, r: shards(f)[1].unlink(),
    "another step's shard": lambda f, o, r: shutil.copy(shards(o)[0], shards(f)[0]),
    "a flipped byte in the manifest": lambda f, o, r: flip(f / "manifest.json", 40, r),
}


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home() as home:
        yield home


@pytest.fixture(scope="module", name="quiet")
def quiet_digest(home):
    return home.run(**LONG)


def paused_job(home):
    """A job with at least two checkpoints that waits to be resumed: its folders, newest first."""
    job = home.submit(**LONG)
    until(lambda: len(home.show(job)["checkpoints"]) >= 2, 30, "two checkpoints")
    home.cairn("pause", job)
    shown = home.wait_state(job, "PAUSED")
    return job, [Path(c["path"]) for c in shown["checkpoints"]]


@pytest.mark.parametrize("name", DAMAGES)
def test_the_job_falls_back_from(home, quiet, name):
    rng = random.Random(name)
    job, folders = paused_job(home)
    DAMAGES[name](folders[0], folders[1], rng)
    assert home.cairn("ckpt", "verify", folders[0], check=False).returncode == 8
    home.cairn("resume", job)
    assert home.digest(job) == quiet
    assert not folders[0].exists() or (folders[0] / "manifest.json").exists()
    events = [event["kind"] + " " + event["message"] for event in home.show(job)["events"]]
    assert any("quarantine" in e or "bad-" in e or "damage" in e for e in events), events


def test_random_changes_of_every_region_are_found(home, quiet):
    assert quiet
    rng = random.Random(5)
    job, folders = paused_job(home)
    folder = folders[0]
    shard = shards(folder)[0]
    size = shard.stat().st_size
    regions = [(shard, 0, 4096), (shard, 4096, 4096 + 80), (shard, 4200, size // 2),
               (shard, size - 4096, size), (folder / "manifest.json", 0, (folder / "manifest.json").stat().st_size)]
    for path, first, last in regions:
        good = path.read_bytes()
        for _ in range(10):
            at = rng.randrange(first, last)
            flip(path, at, rng)
            done = home.cairn("ckpt", "verify", folder, check=False)
            assert done.returncode == 8, (path.name, at, done.returncode, done.stdout, done.stderr)
            path.write_bytes(good)
    assert home.cairn("ckpt", "verify", folder).returncode == 0
    home.cairn("kill", job)


def test_an_empty_folder_is_no_checkpoint(home, tmp_path):
    assert home.cairn("ckpt", "verify", tmp_path, check=False).returncode in (3, 8)


def test_with_every_checkpoint_damaged_the_job_starts_again_and_says_so(home, quiet):
    job, folders = paused_job(home)
    rng = random.Random(6)
    for folder in folders:
        flip(shards(folder)[0], 5000, rng)
    home.cairn("resume", job)
    assert home.digest(job) == quiet
