#!/usr/bin/python3
"""The real TensorBoard for the tests, in a virtual environment of its own.

    library.py install    puts it into FOLDER (environment CAIRN_TENSORBOARD); scripts/packages tests calls it
"""
import os
import shutil
import subprocess
import sys
from pathlib import Path

FOLDER = Path(os.environ.get("CAIRN_TENSORBOARD", Path.home() / ".cache" / "cairn-tests" / "tensorboard"))
PYTHON = FOLDER / "bin" / "python"


def missing():
    """Why it can't be used; None if it can."""
    return None if (FOLDER / "ready").exists() else f"tensorboard is not installed: run {Path(__file__).name} install"


def readers():
    """What `--load_fast` may be: the reader in Rust isn't there on every machine."""
    fast = list(FOLDER.glob("lib/python*/site-packages/tensorboard_data_server/bin/server"))
    return ["true", "false"] if fast else ["false"]


def install():
    if missing() is None:
        return
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["/usr/bin/python3", "-m", "venv", FOLDER], check=True)
    subprocess.run([PYTHON, "-m", "pip", "install", "-q", "--disable-pip-version-check",
                    "-r", Path(__file__).with_name("tensorboard.txt")], check=True)
    (FOLDER / "ready").touch()


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit(__doc__)
    install()
