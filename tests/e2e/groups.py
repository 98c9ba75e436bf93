"""Workers that each have a control group of their own, which bounds their memory: by a program that takes the trainer's
place, makes the group and becomes the trainer."""
import os
import shutil
import time
from pathlib import Path

import home

ROOT = Path("/sys/fs/cgroup")
V2 = {"limit": "memory.max", "swap": "memory.swap.max", "peak": "memory.peak", "events": "memory.events"}
V1 = {"limit": "memory.limit_in_bytes", "swap": "memory.memsw.limit_in_bytes", "peak": "memory.max_usage_in_bytes",
      "events": "memory.oom_control"}

WRAPPER = """#!/bin/sh
group={parent}/{prefix}$$
mkdir "$group" && echo {limit} > "$group/{limit_file}" || exit 125
[ ! -e "$group/{swap_file}" ] || echo {swap} > "$group/{swap_file}" || exit 125
echo $$ > "$group/cgroup.procs" || exit 125
exec {trainer} "$@"
"""


class CannotBe(Exception):
    """Here no group can be made, and why."""


def find_parent():
    """A group in which this process may make others that bound memory, and the names of their files."""
    tried = []
    for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines():
        _, controllers, own = line.split(":", 2)
        if controllers == "":
            # Below this process, or beside it: but for the root a group has processes, or children with controllers.
            for group in (ROOT / own.lstrip("/"), (ROOT / own.lstrip("/")).parent):
                control = group / "cgroup.subtree_control"
                if control.exists() and "memory" in control.read_text(encoding="ascii").split():
                    tried.append((group, V2))
        elif "memory" in controllers.split(","):
            tried.append((ROOT / "memory" / own.lstrip("/"), V1))
    why = "no control group whose children have the memory controller"
    for parent, files in tried:
        probe = parent / f"cairn-probe-{os.getpid()}"
        try:
            probe.mkdir()
            probe.rmdir()
            return parent, files
        except OSError as error:
            why = str(error)
    raise CannotBe(why)


class Groups:
    """`bin` has the programs, with a trainer that is bound to `limit` bytes."""

    def __init__(self, folder, limit):
        self.parent, self.files = find_parent()
        self.prefix = f"cairn-{os.getpid()}-"
        self.bin = Path(folder) / "bin"
        self.bin.mkdir()
        real = self.bin / "real"
        real.mkdir()
        for program in ("cairn", "cairnd", "cairn-agent"):
            shutil.copy2(home.BIN / program, self.bin / program)
        shutil.copy2(home.BIN / "cairn-trainer", real / "cairn-trainer")
        wrapper = self.bin / "cairn-trainer"
        wrapper.write_text(WRAPPER.format(parent=self.parent, prefix=self.prefix, limit=limit,
                                          limit_file=self.files["limit"], swap_file=self.files["swap"],
                                          swap=0 if self.files is V2 else limit, trainer=real / "cairn-trainer"),
                           encoding="ascii")
        wrapper.chmod(0o755)

    def __enter__(self):
        return self

    def __exit__(self, kind, value, trace):
        for group in self.each():
            for _ in range(100):
                try:
                    group.rmdir()
                    break
                except OSError:
                    time.sleep(0.05)

    def each(self):
        return sorted(self.parent.glob(f"{self.prefix}*"))

    def peaks(self):
        """The most bytes that each group had, files that it wrote and read among them."""
        return [int((group / self.files["peak"]).read_text(encoding="ascii")) for group in self.each()]

    def kills(self):
        """How often one was killed because it wanted more."""
        counts = (dict(line.split() for line in (group / self.files["events"]).read_text(encoding="ascii").splitlines())
                  for group in self.each())
        return sum(int(count.get("oom_kill", 0)) for count in counts)
