"""Starts programs that need PyTorch, in the virtual environment that CAIRN_PEER names."""
import os
import re
import socket
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ROOT / "tests/python/programs"
PEER = os.environ.get("CAIRN_PEER")
needs_peer = pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")
PYTHON = f"{PEER}/bin/python"


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


def environment(**more):
    """Of a program of a user: none of Cairn's variables, and the package."""
    ours = {name: value for name, value in os.environ.items() if not name.startswith("CAIRN_")}
    path = os.environ.get("CAIRN_PYTHON", str(ROOT / "python"))
    return ours | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1"} | {name: str(value) for name, value in more.items()}


def has(module):
    """Whether that environment has it."""
    return subprocess.run([PYTHON, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"],
                          check=False).returncode == 0


def run(*arguments, cwd=None, **more):
    """What a program of one process prints; it must end with 0."""
    done = subprocess.run([PYTHON, *map(str, arguments)], cwd=cwd, env=environment(**more), capture_output=True, text=True, timeout=300,
                          check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def run_ranks(size, *arguments, cwd=None, code=0, **more):
    """What each of so many processes prints, by rank; they are told who is who as by torchrun."""
    port = free_port()
    started = [subprocess.Popen([PYTHON, *map(str, arguments)], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env=environment(RANK=rank, WORLD_SIZE=size, LOCAL_RANK=rank, LOCAL_WORLD_SIZE=size,
                                                MASTER_ADDR="127.0.0.1", MASTER_PORT=port, **more)) for rank in range(size)]
    try:
        said = [process.communicate(timeout=300) for process in started]
    finally:
        for process in started:
            process.kill()
            process.wait()
    assert [process.returncode for process in started] == [code] * size, said
    return [out for out, _ in said]


def digest(text):
    return re.search(r"^digest (\S+)$", text, re.M).group(1)
