"""The command line without a coordinator: folders that aren't Cairn's, words that it doesn't know, shells."""
import json
import os
import shutil
import subprocess

import pytest

from home import BIN, ROOT

GOLDEN = ROOT / "tests" / "golden" / "checkpoint"


@pytest.fixture(name="line")
def one_line(tmp_path):
    """Calls of `cairn` in a folder of its own, with a home where nothing runs."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
    env["CAIRN_HOME"] = str(tmp_path / "home")

    def call(*args, code=0, **options):
        done = subprocess.run([BIN / "cairn", *map(str, args)], env=env, cwd=tmp_path, text=True, check=False,
                              timeout=60, **{"stdin": subprocess.DEVNULL, "capture_output": True, **options})
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return done

    call.env, call.dir = env, tmp_path
    return call


# ---- folders that aren't Cairn's ----

def checkpoint(folder, version="v2"):
    made = shutil.copytree(GOLDEN / version / "j-0123456789" / "step-000000000040.g2", folder)
    assert (made / "manifest.json").exists()
    return made


@pytest.mark.parametrize("name", ["web", "step-by-step", "step-1-web", "bad-habits", "step-000000000008.g1"])
def test_rm_touches_no_folder_of_other_programs(line, name):
    folder = line.dir / name
    folder.mkdir()
    (folder / "manifest.json").write_text('{"name": "an extension", "cairn_checkpoint": 2}')
    (folder / "shard-of-glass.cairn").touch()
    for words in ([folder], [folder, "--force"]):
        said = line("ckpt", "rm", *words, code=4).stderr
        assert "nothing of Cairn's is in it" in said, said
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "shard-of-glass.cairn"]
    for path in folder.iterdir():
        path.unlink()
    if not name.startswith("step-0"):
        assert "nothing of Cairn's is in it" in line("ckpt", "rm", folder, code=4).stderr
        assert folder.exists()
        for verb in ("verify", "scrub", "show", "digest"):
            assert "no checkpoint here" in line("ckpt", verb, folder, code=3).stderr


def test_rm_says_what_stays(line):
    folder = checkpoint(line.dir / "a copy")
    ours = len(list(folder.iterdir()))
    (folder / "notes\x1b[2J.txt").touch()
    said = line("ckpt", "rm", folder).stderr
    assert f"removed {ours} files; these stay: notes" in said, said
    assert [path.name for path in folder.iterdir()] == ["notes\x1b[2J.txt"]
    assert "nothing of Cairn's" in line("ckpt", "rm", folder, code=4).stderr


def test_rm_takes_every_version_and_damage_only_by_force(line):
    line("ckpt", "rm", checkpoint(line.dir / "old", "v1"))
    assert not (line.dir / "old").exists()
    for first in (b"{", b"\0"):  # from a later byte, from the first
        folder = checkpoint(line.dir / "damaged")
        manifest = folder / "manifest.json"
        manifest.write_bytes(first + manifest.read_bytes()[1:-40])
        line("ckpt", "verify", folder, code=8)
        assert "--force" in line("ckpt", "rm", folder, code=4).stderr and manifest.exists()
        line("ckpt", "rm", folder, "--force")
        assert not folder.exists()
    folder.mkdir()
    manifest.write_text('{"cairn_checkpoint":2,"job":')  # no shard: who knows whose it is
    line("ckpt", "rm", folder, "--force", code=4)
    assert manifest.exists()
    later = checkpoint(line.dir / "later")
    manifest = later / "manifest.json"
    manifest.write_text(manifest.read_text().replace('{"cairn_checkpoint":2', '{"cairn_checkpoint":99'))
    line("ckpt", "rm", later)
    assert not later.exists()
    line("ckpt", "rm", checkpoint(line.dir / "bad-step-000000000008.g1.2"), "-o", "name")
