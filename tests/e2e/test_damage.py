"""A damaged checkpoint is always found, never loaded, tried once at most, and the one before takes its place."""
import ctypes
import ctypes.util
import json
import random
import re
import shutil
import struct
from pathlib import Path

import pytest

from home import Home, until

LONG = {"train__duration": "1000 steps", "checkpoint__every": "50 steps", "checkpoint__keep__last": 3}


def flip(path, at, rng):
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << rng.randrange(8)
    path.write_bytes(bytes(data))


def shards(folder):
    return sorted(folder.glob("shard-*.cairn"))


def footer_of(shard):
    """Where its footer begins: the trailer's first field, 56 bytes from the end."""
    return struct.unpack("<Q", shard.read_bytes()[-56:-48])[0]


DAMAGES = {
    "a flipped byte in the middle of a shard": lambda f, o, r: flip(shards(f)[1], shards(f)[1].stat().st_size // 2, r),
    "a flipped byte in a header": lambda f, o, r: flip(shards(f)[0], 20, r),
    "a flipped byte in a chunk's header": lambda f, o, r: flip(shards(f)[0], 4096 + 30, r),
    "a flipped byte in a footer": lambda f, o, r: flip(shards(f)[1], footer_of(shards(f)[1]) + 60, r),
    "a flipped byte in a trailer": lambda f, o, r: flip(shards(f)[1], -20, r),
    "a truncated shard": lambda f, o, r: shards(f)[0].write_bytes(shards(f)[0].read_bytes()[:-100]),
    "an empty shard": lambda f, o, r: shards(f)[1].write_bytes(b""),
    "a missing shard": lambda f, o, r: shards(f)[1].unlink(),
    "another step's shard": lambda f, o, r: shutil.copy(shards(o)[0], shards(f)[0]),
    "a flipped byte in the manifest": lambda f, o, r: flip(f / "manifest.json", 40, r),
    "a truncated manifest": lambda f, o, r: (f / "manifest.json").write_bytes((f / "manifest.json").read_bytes()[:-1]),
    "a missing manifest": lambda f, o, r: (f / "manifest.json").unlink(),
}


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home() as home:
        yield home


@pytest.fixture(scope="module", name="quiet")
def quiet_digest(home):
    return home.run(**LONG)


def paused_job(home, count=2, **sets):
    """A job with at least so many checkpoints that waits to be resumed: its folders, newest first."""
    for _ in range(10):  # on a busy machine it may be through before it is paused
        job = home.submit(**{**LONG, **sets})
        until(lambda: len(home.show(job)["checkpoints"]) >= count, 30, f"{count} checkpoints")
        home.cairn("pause", job, check=False)
        shown = home.wait_state(job, "PAUSED", "SUCCEEDED")
        if shown["state"] == "PAUSED":
            return job, [Path(c["path"]) for c in shown["checkpoints"] if c["status"] == "good"]
    raise AssertionError("no job could be paused in time")


def step_of(folder):
    return int(re.match(r"step-(\d+)\.g\d+", folder.name)[1])


def said(shown):
    return [event["kind"] + " " + event["message"] for event in shown["events"]]


def tries(shown, folder):
    """How many generations were formed to start from this checkpoint."""
    return sum(bool(re.search(rf"forming .* step {step_of(folder)}\b", e)) for e in said(shown))


def resume_through(home, job, quiet, bad):
    """Resumes: each bad checkpoint is tried once at most and set aside; the result is as ever."""
    before = home.show(job)["restarts"]
    home.cairn("resume", job)
    assert home.digest(job) == quiet
    shown = home.show(job)
    assert shown["restarts"] - before <= len(bad), said(shown)
    for folder in bad:
        assert tries(shown, folder) <= 1, said(shown)
        aside = [e for e in said(shown) if e.startswith("damaged") and f"step {step_of(folder)} " in e]
        assert len(aside) == 1, said(shown)
        # a later save of the same step takes the name's place only in a new generation
        assert not folder.exists(), folder
        assert folder.with_name("bad-" + folder.name).exists(), folder
    return shown


@pytest.mark.parametrize("name", DAMAGES)
def test_the_job_falls_back_from(home, quiet, name):
    rng = random.Random(name)
    job, folders = paused_job(home)
    DAMAGES[name](folders[0], folders[1], rng)
    assert home.cairn("ckpt", "verify", folders[0], check=False).returncode == 8
    shown = resume_through(home, job, quiet, folders[:1])
    assert tries(shown, folders[1]) == 1, said(shown)


def test_with_the_two_newest_damaged_the_third_is_taken(home, quiet):
    rng = random.Random(7)
    job, folders = paused_job(home, 3)
    flip(shards(folders[0])[0], 5000, rng)
    flip(shards(folders[1])[1], footer_of(shards(folders[1])[1]) + 100, rng)
    shown = resume_through(home, job, quiet, folders[:2])
    assert tries(shown, folders[2]) == 1, said(shown)


def test_with_every_checkpoint_damaged_the_job_starts_again_and_says_so(home, quiet):
    job, folders = paused_job(home)
    rng = random.Random(6)
    for folder in folders:
        flip(shards(folder)[0], 5000, rng)
    shown = resume_through(home, job, quiet, folders)
    assert any("no good checkpoint is left" in e for e in said(shown)), said(shown)
    assert sum(e.startswith("forming") and "from the beginning" in e for e in said(shown)) == 2, said(shown)


class Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


def manifest_of_version(text, version):
    """The manifest's bytes with another format version, and the hash of these."""
    library = ctypes.util.find_library("xxhash")
    if library is None:
        pytest.skip("there is no libxxhash to load")
    compute = ctypes.CDLL(library).XXH3_128bits
    compute.argtypes, compute.restype = [ctypes.c_char_p, ctypes.c_size_t], Hash
    body = text[:text.rindex(b',"xxh3_128":"')].replace(b'"cairn_checkpoint":2', b'"cairn_checkpoint":%d' % version)
    is_now = compute(body, len(body))
    return body + b',"xxh3_128":"%016x%016x"}\n' % (is_now.high, is_now.low)


@pytest.mark.parametrize("version", [1, 3])
def test_a_checkpoint_of_another_version_is_waited_for_and_not_set_aside(home, quiet, version):
    job, folders = paused_job(home)
    manifest = folders[0] / "manifest.json"
    before = manifest.read_bytes()
    assert manifest_of_version(before, 2) == before
    manifest.write_bytes(manifest_of_version(before, version))
    both = f"of format version {version}, this build reads 2"
    done = home.cairn("ckpt", "verify", folders[0], check=False)
    assert done.returncode == 4 and both in done.stdout + done.stderr, done
    listed = json.loads(home.cairn("ckpt", "ls", folders[0].parent, "-o", "json").stdout)
    assert [entry["status"] for entry in listed][:2] == ["version", "good"], listed
    home.cairn("resume", job)
    until(lambda: "waits for a build that reads it" in home.show(job)["reason"], 60, "it waits")
    assert both in home.show(job)["reason"], home.show(job)["reason"]
    assert home.cairn("ckpt", "scrub", job, check=False).returncode == 4
    assert folders[0].exists() and all(folder.exists() for folder in folders[1:])
    manifest.write_bytes(before)
    assert home.digest(job) == quiet
    assert not any(e.startswith("damaged") for e in said(home.show(job))), said(home.show(job))


def scrub(home, job):
    """Its exit code, what it says in all, and its results by path."""
    done = home.cairn("ckpt", "scrub", job, "-o", "json", check=False)
    said_all = json.loads(done.stdout)
    return done.returncode, said_all, {Path(r["path"]): r for r in said_all["checkpoints"]}


def test_scrub_of_a_job_that_waits_sets_damage_aside_and_nothing_else(home, quiet):
    job, folders = paused_job(home)
    assert home.cairn("ckpt", "scrub", job).returncode == 0
    flip(shards(folders[0])[0], 5000, random.Random(10))
    aside = folders[0].with_name("bad-" + folders[0].name)
    code, summary, results = scrub(home, job)
    assert code == 8 and summary["damaged"] == summary["set_aside"] == 1, summary
    assert results[folders[0]]["coordinator"] == "bad" and results[folders[0]]["set_aside"] == str(aside), summary
    assert aside.exists() and not folders[0].exists() and all(f.exists() for f in folders[1:])
    code, summary, results = scrub(home, job)  # what is aside is passed over
    assert code == 0 and summary["skipped"] == 1 and folders[1] in results, summary
    before = home.show(job)["restarts"]
    home.cairn("resume", job)
    assert home.digest(job) == quiet
    shown = home.show(job)
    assert tries(shown, folders[0]) == 0 and tries(shown, folders[1]) == 1, said(shown)
    assert shown["restarts"] == before, said(shown)


def test_scrub_of_a_job_that_runs_keeps_its_recovery_from_the_damage(home):
    for _ in range(10):  # on a busy machine it may be through before it is scrubbed, or before it is killed
        job = home.submit(**{**LONG, "train__duration": "20000 steps", "checkpoint__every": "20000 steps"})
        until(lambda: int(home.show(job)["step"]) > 20, 30, "the job trains")
        home.cairn("save", job)
        folder = Path(home.show(job)["checkpoints"][0]["path"])
        flip(shards(folder)[1], 5000, random.Random(11))
        done = home.cairn("ckpt", "scrub", job, check=False)
        if home.show(job)["state"] != "RUNNING":
            continue
        home.kill("cairn-trainer")
        shown = until(lambda: ((s := home.show(job))["generation"] == 2 or s["state"] == "SUCCEEDED") and s, 60,
                      "it recovers")
        if shown["generation"] == 2:
            break
    assert done.returncode == 8 and f"DAMAGED  {folder}" in done.stdout, done
    assert f"set aside as {folder.with_name('bad-' + folder.name)}" in done.stdout, done
    assert "(1 set aside now)" in done.stderr and not folder.exists(), done
    assert tries(home.show(job), folder) == 0, said(home.show(job))
    home.cairn("kill", job)


def test_scrub_of_an_ended_job_sets_damage_aside(home):
    job = home.submit()
    home.wait_state(job, "SUCCEEDED")
    folders = [Path(c["path"]) for c in home.show(job)["checkpoints"]]
    (folders[0] / "manifest.json").unlink()
    code, _, results = scrub(home, job)
    assert code == 8 and results[folders[0]]["coordinator"] == "bad", results
    shown = home.show(job)
    assert shown["state"] == "SUCCEEDED" and shown["reason"] == "", shown["reason"]
    assert [c["status"] for c in shown["checkpoints"]] == ["bad"] + ["good"] * (len(folders) - 1)
    assert home.cairn("ckpt", "scrub", job).returncode == 0


def test_what_dropped_saves_left_goes_and_nothing_else(home, quiet):
    job, folders = paused_job(home)
    store = folders[0].parent
    left, later = store / "step-000000000777.g1", store / "step-000000000778.g9"
    for folder in (left, later):
        folder.mkdir()
        shutil.copy(shards(folders[0])[0], folder)
    home.cairn("resume", job)
    assert home.digest(job) == quiet
    until(lambda: not left.exists(), 30, "the leftover goes")
    assert later.exists()  # of a generation that was never there


def parent_of(folder):
    """The folder that it is a difference to; None: it stands for itself."""
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    if "parent_step" not in manifest:
        return None
    return folder.with_name(f"step-{manifest['parent_step']:012d}.g{manifest['parent_generation']}")


def paused_at_a_difference(home):
    """As paused_job. A base must have been read back, which a busy machine may leave for later."""
    for _ in range(10):
        job, folders = paused_job(home, 3, checkpoint__delta="true", checkpoint__every="100 steps")
        if parent_of(folders[0]) is not None:
            return job, folders
        home.cairn("kill", job)
    raise AssertionError("no newest checkpoint was a difference")


def test_differences_are_restored_through_their_parents(home, quiet):
    job, folders = paused_at_a_difference(home)
    folder = folders[0]
    while folder is not None:  # older ones than these may just be removed: two are kept
        assert home.cairn("ckpt", "verify", folder).returncode == 0
        folder = parent_of(folder)
    home.cairn("resume", job)
    assert home.digest(job) == quiet
    shown = home.show(job)
    assert tries(shown, folders[0]) == 1, said(shown)
    assert not any(e.startswith("damaged") for e in said(shown)), said(shown)


def test_damage_of_a_parent_sets_aside_what_differs_from_it(home, quiet):
    job, folders = paused_at_a_difference(home)
    parent = parent_of(folders[0])
    flip(shards(parent)[0], 5000, random.Random(9))
    verified = home.cairn("ckpt", "verify", folders[0], check=False)
    assert verified.returncode == 8 and parent.name in verified.stdout + verified.stderr, verified
    home.cairn("resume", job)
    assert home.digest(job) == quiet
    shown = home.show(job)
    assert tries(shown, folders[0]) == 1 and tries(shown, parent) <= 1, said(shown)
    assert folders[0].with_name("bad-" + folders[0].name).exists()


def test_damage_that_only_one_rank_meets_is_found_by_the_coordinator_and_costs_one_restart(quiet):
    with Home(faults="restore.read,rank=1:wait") as home:
        job, folders = paused_job(home)
        before = home.show(job)["restarts"]
        home.cairn("resume", job)
        home.wait_hit("restore.read")  # its tables were good
        shard = shards(folders[0])[1]
        flip(shard, 4096 + 104 + 64 + 2000, random.Random(8))
        home.go("restore.read")
        assert home.digest(job) == quiet
        shown = home.show(job)
        assert shown["restarts"] - before == 1, said(shown)
        assert tries(shown, folders[0]) == 1 and tries(shown, folders[1]) == 1, said(shown)
        assert folders[0].with_name("bad-" + folders[0].name).exists()


def test_a_read_that_fails_is_no_damage(quiet):
    with Home(faults="restore.read,rank=1:eio") as home:
        job, folders = paused_job(home)
        home.cairn("resume", job)
        assert home.digest(job) == quiet
        shown = home.show(job)
        assert home.hit("restore.read")
        assert tries(shown, folders[0]) == 2, said(shown)  # the same again
        assert not any(e.startswith("damaged") for e in said(shown)), said(shown)
        assert not list(folders[0].parent.glob("bad-*"))


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
