"""The wheel: its name, its metadata, its record, and that pip installs it into an environment that has nothing."""
import base64
import csv
import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
WHEELS = Path(os.environ.get("CAIRN_WHEELS", HERE.parent.parent / "build/dev/wheels"))
PEER = os.environ.get("CAIRN_PEER")


@pytest.fixture(scope="module")
def wheel():
    found = list(WHEELS.glob("cairn-*.whl"))
    assert len(found) == 1 and found[0].name.endswith("-cp311-abi3-linux_x86_64.whl")
    return found[0]


def test_its_record_has_every_file(wheel):
    with zipfile.ZipFile(wheel) as opened:
        names = opened.namelist()
        info = next(name for name in names if name.endswith("/RECORD"))
        rows = {row[0]: row[1:] for row in csv.reader(opened.read(info).decode().splitlines())}
        assert sorted(rows) == sorted(names)
        for name, (digest, size) in rows.items():
            data = opened.read(name)
            if name != info:
                found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
                assert digest == "sha256=" + found and int(size) == len(data)
        for wanted in ("cairn/_cairn.abi3.so", "cairn/py.typed", "cairn/torch/state.py"):
            assert wanted in names
        assert not any("__pycache__" in name or name.endswith((".c", ".h")) for name in names)
        metadata = opened.read(info.replace("RECORD", "METADATA")).decode()
        assert "Name: cairn\n" in metadata and "Requires-Python: >=3.11\n" in metadata
        assert b"Tag: cp311-abi3-linux_x86_64\n" in opened.read(info.replace("RECORD", "WHEEL"))


def install(python, wheel, target):
    """pip of that Python puts it into a folder of its own, with nothing from a network."""
    subprocess.run([python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--target", target, wheel], check=True, timeout=300)
    text = "import cairn, cairn._cairn; print(cairn.__file__, cairn.session.version(), cairn._cairn.permute(1, 0, 5, 0, 5))"
    env = {name: value for name, value in os.environ.items() if not name.startswith("CAIRN_")}
    done = subprocess.run([python, "-c", text], env={**env, "PYTHONPATH": str(target)}, capture_output=True, text=True, check=True, timeout=60)
    where, version, *_ = done.stdout.split()
    assert where.startswith(str(target)) and version == wheel.name.split("-")[1]


def test_pip_installs_it_into_a_fresh_environment(wheel, tmp_path):
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True, timeout=300)
    install(tmp_path / "venv/bin/python", wheel, tmp_path / "there")


@pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")
def test_pip_installs_it_beside_pytorch(wheel, tmp_path):
    install(f"{PEER}/bin/python", wheel, tmp_path / "there")
