"""Data loaders of every kind beside a session of the real library, and gRPC in the same process: nobody hangs. Needs PyTorch (CAIRN_PEER)."""
import os
import subprocess
from pathlib import Path

import pytest

from fake_worker import Worker

HERE = Path(__file__).resolve().parent
PACKAGE = os.environ.get("CAIRN_PYTHON", str(HERE.parent.parent / "build/dev/python"))
PEER = os.environ.get("CAIRN_PEER")
EPOCHS = os.environ.get("CAIRN_LOADER_EPOCHS", "1")
pytestmark = pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")


def run(tmp_path, *arguments, path=PACKAGE):
    with Worker(tmp_path) as worker:
        env = {**os.environ, "PYTHONPATH": path, "CAIRN_SOCKET": worker.name, "OMP_NUM_THREADS": "1"}
        done = subprocess.run([f"{PEER}/bin/python", HERE / "loaders_program.py", *arguments], env=env, capture_output=True, text=True,
                              timeout=60 * int(EPOCHS) + 120, check=False)
        assert done.returncode == 0 and "done" in done.stdout, done.stdout + done.stderr
        assert worker.saved[-1] == 8 * int(EPOCHS)


@pytest.mark.parametrize("way", ("fork", "spawn", "forkserver"))
def test_loaders_of_eight_workers_end(tmp_path, way):
    run(tmp_path, way, EPOCHS)


def test_grpc_lives_in_the_same_process(tmp_path):
    system = "/usr/lib/python3/dist-packages"
    if not Path(system, "grpc").exists():
        pytest.skip("python3-grpcio isn't installed")
    links = tmp_path / "links"
    links.mkdir()
    for name in ("grpc", "google"):
        if Path(system, name).exists():
            (links / name).symlink_to(Path(system, name))
    for found in Path(system).glob("six.py"):
        (links / "six.py").symlink_to(found)
    run(tmp_path, "fork", EPOCHS, "grpc", path=f"{PACKAGE}:{links}")
