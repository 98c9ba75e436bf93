"""Where chaos happens: one machine with an embedded Cairn, or several machines as namespaces.

Both are made of what other tests use (tests/e2e/home.py, tests/net/fleet.py) and offer the same calls. All pids are the
host's. What starts processes has to be called by the main thread: some die with the thread that made them.
"""
import ctypes
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "dev" / "bin")).parent
for variable, program in (("CAIRN_FAULTY_FS", "faulty_fs"), ("CAIRN_WIRE_DELAY", "wire_delay")):
    os.environ.setdefault(variable, str(BUILD / "tests" / program))
sys.path[1:1] = [str(ROOT / "tests" / "e2e"), str(ROOT / "tests" / "net")]
# pylint: disable=wrong-import-position
import faulty
import faults as net_faults
import rooms
from fleet import BIN, Fleet
from home import Home, alive, until
from test_full_disk import CLONE_NEWNS, fill, mount

# Where a worker can be made to exit by itself, and the rank that does (common/fault.h).
POINTS = [("trainer.forward", 0), ("trainer.backward", 1), ("trainer.reduce", 0), ("trainer.update", 1),
          ("trainer.forming", 0), ("save.write", 1), ("trainer.finishing", 0)]
DAEMONS = ("cairnd", "cairn-agent")
PROGRAMS = (*DAEMONS, "cairn-trainer", "cairn")
ENV = {"CAIRN_HANG_MS": "20000", "CAIRN_WATCHDOG_MS": "15000"}
STORE_MB = 1024
MACHINES, SLOTS = 3, 4
CROWDED_SLOTS = 2  # of a machine, where more jobs are there than workers find room


@dataclass(frozen=True, order=True)
class Worker:
    job: str
    rank: int  # at its start, as is the generation
    generation: int
    pid: int
    inner: int  # its pid as it sees itself
    machine: int


def no_own_mounts():
    """From now on mounts are this process's and its children's; else why not."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNS) != 0:
        return f"no mount namespace of our own: {os.strerror(ctypes.get_errno())}"
    return mount("--make-rprivate", "/").stderr.strip()


def ppid_of(pid):
    """0: it is gone."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[1])
    except OSError:
        return 0


def descendants():
    """Of this process: {pid: name}, zombies not."""
    parents, found = {}, {os.getpid(): ""}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and alive(entry.name):
            parents[int(entry.name)] = ppid_of(entry.name)
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found and pid not in found}
        for pid in more:
            try:
                found[pid] = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
            except OSError:
                found[pid] = "?"
        grown = bool(more)
    del found[os.getpid()]
    return found


def worker_at(pid, machine):
    """None: it is no worker, or not any more."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
        status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
        said = dict(zip(words[1::2], words[2::2]))
        inner = int(next(line for line in status.splitlines() if line.startswith("NSpid:")).split()[-1])
        return Worker(said["--job"], int(said["--rank"]), int(said["--generation"]), pid, inner, machine)
    except (OSError, KeyError, ValueError, StopIteration):
        return None


class World:
    """What both have in common. `lacks`: {what faults may need: why it isn't here}."""

    def __init__(self):
        self.lacks = {}
        trainer = (BIN / "cairn-trainer").read_bytes()
        if POINTS[0][0].encode() not in trainer:
            self.lacks["points"] = "built without fault points"
        if faulty.missing():
            self.lacks["faulty store"] = faulty.missing()

    def prepare_folders(self, folder):
        """The store and the fault points of a test's folder, before anything starts."""
        for point, _ in POINTS:
            (folder / "faults" / f"{point}.hit").touch()
        store = folder / "checkpoints"
        store.mkdir(mode=0o777, exist_ok=True)
        self.store = store
        mounted = mount("-t", "tmpfs", "-o", f"size={STORE_MB}m,mode=1777", "tmpfs", store)
        if mounted.returncode != 0:
            self.lacks["small store"] = f"no tmpfs can be mounted: {mounted.stderr.strip()}"

    @staticmethod
    def armed():
        return ";".join(f"{point},rank={rank}:exit1" for point, rank in POINTS)

    def arm(self, point):
        (self.folder / "faults" / f"{point}.hit").unlink(missing_ok=True)

    def fired(self, point):
        """The pid, as it sees itself, of who exited there; None: nobody yet."""
        try:
            return int((self.folder / "faults" / f"{point}.hit").read_text(encoding="utf-8") or 0)
        except (FileNotFoundError, ValueError):
            return None

    def disarm(self, point):
        (self.folder / "faults" / f"{point}.hit").touch()

    def ask(self, *args, timeout=60):
        """As cairn(), which may say no or, with the exit status 124, nothing in time."""
        try:
            return self.cairn(*args, check=False, timeout=timeout)
        except subprocess.TimeoutExpired:
            return subprocess.CompletedProcess(args, 124, "", f"no answer in {timeout} s")

    def try_show(self, job):
        """As JSON; None while the coordinator doesn't answer."""
        done = self.ask("show", job, "-o", "json")
        return json.loads(done.stdout) if done.returncode == 0 else None

    def submit(self, name, text):
        (self.folder / f"{name}.yaml").write_text(text, encoding="utf-8")
        return self.ask("submit", f"{self.folder_seen}/{name}.yaml", "-o", "name")

    def pids(self, program):
        """{pid: machine}, in a stable order. What a program has just forked is none of it, though it looks like it."""
        found = [(machine, pid) for machine in self.machines for pid in self.pids_of(machine, program)]
        every = {pid for _, pid in found}
        return {pid: machine for machine, pid in sorted(found) if ppid_of(pid) not in every}

    def workers(self):
        found = [worker_at(pid, machine) for pid, machine in self.pids("cairn-trainer").items()]
        return sorted(worker for worker in found if worker)

    def fill(self):
        """All at once, then what is left of it."""
        foreign, room = self.store / "foreign", os.statvfs(self.store)
        with foreign.open("wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, room.f_bavail * room.f_frsize))
            except OSError:
                pass  # somebody else was faster
        fill(self.store / "rest")

    def unfill(self):
        for name in ("foreign", "rest"):
            (self.store / name).unlink(missing_ok=True)

    def disk_mib(self):
        """What was written beside the store: journals, logs, what is known of jobs."""
        total = 0
        for folder in self.places()[1]:
            for path in folder.rglob("*"):
                try:
                    total += path.lstat().st_size
                except OSError:
                    pass
        return round(total / 2**20, 1)

    def logs(self):
        patterns = ("*.log", "**/log/*.log", "**/jobs/*/*/*.log")
        return sorted(path for pattern in patterns for path in self.folder.glob(pattern))


class OneMachine(World):
    """`cairn up`, whose supervisor starts again what dies."""
    name = "home"
    machines = (1,)

    def __init__(self, slots=SLOTS):
        super().__init__()
        self.base = Home(env={**ENV, "CAIRN_FAULT": self.armed()}, slots=MACHINES * slots)
        self.folder = self.folder_seen = self.base.dir
        self.mount = None
        reason = no_own_mounts()
        if reason:
            self.lacks["small store"] = self.lacks["faulty store"] = reason
        for need in ("network", "delay"):
            self.lacks[need] = rooms.missing() or "on one machine nothing can be cut"

    def __enter__(self):
        self.prepare_folders(self.folder)
        self.store_seen = str(self.store)
        if "faulty store" not in self.lacks:
            self.mount = faulty.Mount(self.store, self.folder / "mounted").__enter__()
            self.store_seen = str(self.mount.at)
        self.base.__enter__()
        return self

    def __exit__(self, kind, value, trace):
        self.base.__exit__(None, value, trace)
        if self.mount:
            self.mount.__exit__(None, None, None)
        subprocess.run(["umount", "-l", self.store], capture_output=True, check=False)
        shutil.rmtree(self.folder, ignore_errors=True)

    def cairn(self, *args, check=True, timeout=30):
        return self.base.cairn(*args, check=check, timeout=timeout)

    def pids_of(self, _, program):
        return self.base.pids(program)

    def start_coordinator(self):
        """The supervisor does."""

    def start_agent(self, machine):
        """The supervisor does."""

    def disk(self, _, *rules):
        self.mount.set(*rules)

    def places(self):
        """(copies, homes): folders of the host."""
        return [self.base.copies], [self.base.home]

    def sockets(self):
        return [path for path in self.folder.rglob("*") if path.is_socket()]

    def remains(self):
        """After the end: processes of the home, and its folder of copies."""
        return [f"{name} (pid {pid})" for pid, name in self.base.pids().items()] + [
            str(path) for path in (self.base.copies, self.folder) if path.exists()]


class Machines(World):
    """A coordinator on machine 1, agents on the others; nobody but chaos starts again what dies."""
    name = "rooms"
    machines = tuple(range(1, 2 + MACHINES))
    nodes = machines[1:]

    def __init__(self, slots=SLOTS):
        super().__init__()
        self.folder_seen = "/run/shared"
        reason = no_own_mounts()
        if reason:
            self.lacks["small store"] = reason
        self.base = Fleet(MACHINES, slots=slots, begin=self.begin, env={
            **ENV, "CAIRN_FAULT": self.armed(), "CAIRN_FAULT_DIR": "/run/shared/faults"})
        self.folder = self.base.dir
        if net_faults.no_delay():
            self.lacks["delay"] = net_faults.no_delay()
        self.stores = {}

    def begin(self, fleet):
        if "faulty store" in self.lacks:
            return
        from test_shared import Store  # skips itself where it can't work
        shutil.copy(faulty.PROGRAM, fleet.dir / "faulty_fs")
        self.stores = {number: Store(fleet, number, "/run/shared/checkpoints", 0) for number in self.machines}

    def __enter__(self):
        (self.folder / "faults").mkdir()
        self.prepare_folders(self.folder)
        self.store_seen = "/run/shared/checkpoints" if "faulty store" in self.lacks else "/run/faulty"
        self.base.__enter__()
        return self

    def __exit__(self, kind, value, trace):
        self.base.room.__exit__()
        subprocess.run(["umount", "-l", self.store], capture_output=True, check=False)
        self.base.__exit__(None, value, trace)

    @property
    def room(self):
        return self.base.room

    def cairn(self, *args, check=True, timeout=30):
        return self.base.cairn(*args, check=check, timeout=timeout)

    def pids_of(self, machine, program):
        return self.room[machine].pids(program)

    def start_coordinator(self):
        self.gone(self.base.cairnd, 1)
        self.base.start_coordinator(serves=False)

    def start_agent(self, machine):
        self.gone(self.base.agents[machine], machine)
        self.base.start_agent(machine)

    def gone(self, process, machine):
        """What entered a machine to start a program there stopped with it, and has to see that it is gone."""
        for entered in self.room[machine].entered:
            entered.send_signal(signal.SIGCONT)
        until(lambda: process.poll() is not None, 60, "a daemon that was killed is gone")

    def disk(self, machine, *rules):
        self.stores[machine].set(*rules)

    def _inside(self, machine, path):
        return Path(f"/proc/{self.room[machine].init}/root{path}")

    def places(self):
        return ([self._inside(machine, "/dev/shm") for machine in self.machines],
                [self.folder / f"disk-{machine}" for machine in self.machines])

    def sockets(self):
        roots = [self.folder, *(self._inside(machine, "/tmp") for machine in self.machines)]
        return [path for root in roots for path in root.rglob("*") if path.is_socket()]

    def remains(self):
        return [str(self.folder)] if self.folder.exists() else []


def quiet_for(seconds, condition):
    """Whether a condition comes true in time."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.2)
    return True
