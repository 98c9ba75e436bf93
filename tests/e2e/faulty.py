"""A checkpoint store behind a file system that misbehaves as told (faulty_fs.c)."""
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from home import until

PROGRAM = os.environ.get("CAIRN_FAULTY_FS", "")


def missing():
    """What stands against it here; "": nothing."""
    if not PROGRAM or not Path(PROGRAM).exists():
        return "faulty_fs was not built: libfuse3-dev is missing"
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        return "/dev/fuse can't be opened here"
    if os.geteuid() != 0 and not shutil.which("fusermount3"):
        return "fusermount3 is missing"
    return ""


needed = pytest.mark.skipif(bool(missing()), reason=missing() or "-")


class Mount:
    """BACKING seen at AT, by the rules that are set; `caches`: seconds that names and missing ones are remembered."""

    def __init__(self, backing, at, caches=0):
        self.backing, self.at, self.caches = Path(backing), Path(at), caches
        self.rules = self.at.parent / f"{self.at.name}.rules"
        self.process = None

    def __enter__(self):
        for folder in (self.backing, self.at):
            folder.mkdir(parents=True, exist_ok=True)
        self.set()
        self.start()
        return self

    def __exit__(self, kind, value, trace):
        self.set()
        self.end()

    def start(self):
        names = f"attr_timeout={self.caches},entry_timeout={self.caches},negative_timeout={self.caches}"
        self.process = subprocess.Popen([PROGRAM, self.backing, self.at, self.rules,
                                         "-o", f"{names},max_threads=64"])
        until(lambda: self.process.poll() is not None or self.at.is_mount(), 10, "the mount")
        if self.process.poll() is not None:
            self.process = None
            pytest.skip("FUSE doesn't mount here")

    def end(self, sig=signal.SIGTERM):
        if self.process is None:
            return
        self.process.send_signal(sig)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None
        subprocess.run(["umount", "-l", self.at], capture_output=True, check=False)

    def set(self, *rules):
        """These lines from now on, and no others."""
        new = self.rules.with_suffix(".new")
        new.write_text("".join(f"{rule}\n" for rule in rules), encoding="utf-8")
        new.rename(self.rules)

    def hits(self, text=""):
        """The calls that a rule changed."""
        try:
            lines = Path(f"{self.rules}.hits").read_text(encoding="utf-8").splitlines()
        except FileNotFoundError:
            return []
        return [line for line in lines if text in line]
