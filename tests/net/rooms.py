"""Machines for tests: a room of Linux namespaces on this host.

A room holds a bridge; each machine in it has its own processes, network, host name, /tmp, /run, /dev/shm and boot id,
and sees the host's other files. Its address is 10.77.0.I, and fd77::I. Works as root, and as anybody where user
namespaces are allowed; missing(): what stands against it here. Needs iproute2, nftables, util-linux.

    with Room(3) as room:
        room[1].run("hostname")                 # node1
        process = room[2].popen("sleep", "9")   # a host's process: subprocess.Popen of what entered the machine
        room.cut(1, 2)                          # ... and what else fails in a network: faults.py
        room[2].power_off(); room[2].boot()     # nobody hears a FIN; other boot id, empty /tmp, /run, /dev/shm

Nothing outlives the room: its init is killed with it, and dies with the process that made it, however that ends.
All names are the room's own, so that rooms stand side by side.
"""
import ctypes
import os
import shutil
import signal
import subprocess
from pathlib import Path

from faults import PATH, Faults

NET = "10.77.0."
NET6 = "fd77::"
PR_SET_PDEATHSIG = 1
TOOLS = ("unshare", "nsenter", "ip", "nft", "mount", "hostname")

ROOM = """
set -e
mount -t tmpfs tmpfs /run
hostname room
ip link set lo up
ip link add br0 type bridge
ip link set br0 up
nft add table bridge faults
nft 'add chain bridge faults passing { type filter hook forward priority 0; }'
trap : TERM INT
echo ready
while :; do sleep 86400 & wait; done
"""

# $1: its number; the rest: pairs of a host's folder and where it is seen, under /run.
MACHINE = """
set -e
hostname "node$1"
shift
mount -t tmpfs -o mode=0755 tmpfs /run
while [ $# -gt 0 ]; do
    mkdir -p "$2"
    mount --rbind "$1" "$2"
    shift 2
done
for folder in /tmp /dev/shm; do mount -t tmpfs -o mode=1777 tmpfs $folder; done
cat /proc/sys/kernel/random/uuid >/run/boot_id
mount --bind /run/boot_id /proc/sys/kernel/random/boot_id
ip link set lo up
trap : TERM INT
echo ready
while :; do sleep 86400 & wait; done
"""


def die_with_us():
    """In the child, before exec."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def missing():
    """Why there can be no rooms here; None: there can."""
    for tool in TOOLS:
        if shutil.which(tool, path=PATH) is None:
            return f"no rooms: {tool} is not installed"
    try:
        with Room(1):
            return None
    except RoomError as error:
        return f"no rooms: {error}"


class RoomError(Exception):
    pass


def run(*args, check=True):
    done = subprocess.run(args, env={**os.environ, "PATH": PATH}, capture_output=True, text=True, check=False)
    if check and done.returncode != 0:
        raise RoomError(f"{' '.join(args)}: {done.stderr.strip() or done.returncode}")
    return done.stdout


def child_of(pid):
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()
    if len(children) != 1:
        raise RoomError(f"process {pid} has {len(children)} children")
    return int(children[0])


def start(args, generations):
    """Starts what says "ready" once it is; the process and the pid of its child, so many generations down."""
    process = subprocess.Popen(args, env={**os.environ, "PATH": PATH}, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=die_with_us)
    if process.stdout.readline() != "ready\n":
        process.kill()
        raise RoomError(process.communicate()[1].strip() or "its init ended")
    pid = process.pid
    for _ in range(generations):
        pid = child_of(pid)
    return process, pid


class Machine:
    def __init__(self, room, number):
        self.room, self.number = room, number
        self.address, self.address6 = f"{NET}{number}", f"{NET6}{number}"
        self.init = None  # its pid, as the host sees it; None: it is off
        self.entered = []  # of the host: each stops while what it started here is stopped
        self.relay = None  # the process that delays what it receives
        self.boot()

    def boot(self):
        assert self.init is None
        binds = [word for pair in self.room.folders.items() for word in map(str, pair)]
        enter = self.room.enter(self.room.init, "-m", "-u", "-n", "-p")
        _, self.init = start([*enter, "unshare", "-m", "-u", "-i", "-n", "-p", "-f", "--mount-proc", "--kill-child",
                              "sh", "-c", MACHINE, "machine", str(self.number), *binds], 2)
        link, mac = f"m{self.number}", f"02:00:00:00:00:{self.number:02x}"
        self.room.in_net("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "address", mac,
                         "netns", str(self.init))
        self.room.in_net("ip", "link", "set", link, "master", "br0", "up")
        self.in_net("ip", "addr", "add", f"{self.address}/24", "dev", "eth0")
        self.in_net("ip", "addr", "add", f"{self.address6}/64", "dev", "eth0", "nodad")
        self.in_net("ip", "link", "set", "eth0", "up")
        self.in_net("ip", "route", "add", "default", "dev", "eth0")

    def command(self, *args):
        """What runs it there, from the host."""
        return [*self.room.enter(self.init, "-m", "-u", "-i", "-n", "-p"), *map(str, args)]

    def run(self, *args, check=True):
        return run(*self.command(*args), check=check)

    def popen(self, *args, **kwargs):
        self.entered.append(subprocess.Popen(self.command(*args), preexec_fn=die_with_us, **kwargs))
        return self.entered[-1]

    def in_net(self, *args):
        return run(*self.room.enter(self.init, "-n"), *args)

    def pids(self, program=None):
        """Its processes but for its init, as the host sees them: {pid: name of the program}."""
        space, found = os.readlink(f"/proc/{self.init}/ns/pid"), {}
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and int(entry.name) != self.init and os.readlink(entry / "ns/pid") == space:
                    found[int(entry.name)] = Path(os.readlink(entry / "exe")).name
            except OSError:
                pass
        return {pid: name for pid, name in found.items() if program in (None, name)}

    def signal(self, sig, program=None):
        for pid in self.pids(program):
            try:
                os.kill(pid, sig)
            except ProcessLookupError:
                pass

    def freeze(self):
        self.signal(signal.SIGSTOP)

    def thaw(self):
        self.signal(signal.SIGCONT)
        for process in self.entered:
            process.send_signal(signal.SIGCONT)

    def power_off(self):
        """The link goes first: nobody hears of it."""
        self.room.in_net("ip", "link", "del", f"m{self.number}")
        os.kill(self.init, signal.SIGKILL)
        self.init = self.relay = None


class Room(Faults):
    """folders: {of the host: where machines see it, under /run}: what they share, and programs."""

    def __init__(self, machines, folders=None):
        self.count, self.folders = machines, dict(folders or {})
        self.process = self.init = None
        self.machines = {}

    def __getitem__(self, number):
        return self.machines[number]

    def __enter__(self):
        user = [] if os.geteuid() == 0 else ["-U", "-r"]
        self.process, self.init = start(["unshare", *user, "-m", "-u", "-n", "-p", "-f", "--mount-proc", "--kill-child",
                                         "sh", "-c", ROOM], 1)
        try:
            for number in range(1, self.count + 1):
                self.machines[number] = Machine(self, number)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for machine in self.machines.values():
            for process in machine.entered: # who waits for a process of the room, or it can't end
                process.send_signal(signal.SIGCONT)
        if self.process is not None:
            os.kill(self.init, signal.SIGKILL)
            self.process.communicate()
            self.process = None

    @staticmethod
    def enter(pid, *spaces):
        user = [] if os.geteuid() == 0 else ["-U", "--preserve-credentials"]
        return ["nsenter", "-t", str(pid), *user, *spaces, "--"]

    def in_net(self, *args):
        return run(*self.enter(self.init, "-n"), *args)
