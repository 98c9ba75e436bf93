"""Runs torch_units.py, whose tests need PyTorch (CAIRN_PEER)."""
import os
import re
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PEER = os.environ.get("CAIRN_PEER")


@pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")
def test_units():
    env = {**os.environ, "PYTHONPATH": f"{HERE.parent.parent}/python:{HERE}"}
    done = subprocess.run([f"{PEER}/bin/python", HERE / "torch_units.py"], env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall("^ok ", done.stdout, re.M)) > 20, done.stdout
