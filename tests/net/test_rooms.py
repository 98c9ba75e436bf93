"""The rooms themselves: machines are apart, faults do what they say, nothing is left behind."""
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import nfs
from faults import no_delay
from rooms import Room, missing

sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "e2e"))
import faulty  # pylint: disable=wrong-import-position

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 9), family=family)
print("ready", flush=True)
while True:
    other, _ = server.accept()
    while data := other.recv(1 << 20):
        other.sendall(data)
    print("FIN", flush=True)
"""
CLIENT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], 9), timeout=float(sys.argv[2])) as other:
        other.sendall(b"hello")
        print("heard" if other.recv(100) == b"hello" else "closed")
except OSError:
    print("nothing")
"""
TIMED = """
import socket, sys, threading, time
start, size = time.monotonic(), int(sys.argv[2])
with socket.create_connection((sys.argv[1], 9), timeout=60) as other:
    other.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    threading.Thread(target=other.sendall, args=(bytes(size),)).start()
    while size:
        size -= len(other.recv(1 << 20))
    print(time.monotonic() - start)
"""
HOLDER = """
import socket, sys
other = socket.create_connection((sys.argv[1], 9))
print("ready", flush=True)
other.recv(1)
print("FIN", flush=True)
"""


@pytest.fixture
def room():
    with Room(3) as made:
        yield made


def python(machine, text, *args):
    process = machine.popen(sys.executable, "-c", text, *args, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    return process


def ask(machine, address, seconds=0.5):
    return machine.run(sys.executable, "-c", CLIENT, address, str(seconds)).strip()


def test_machines_are_apart(room):
    assert [room[i].run("hostname").strip() for i in (1, 2, 3)] == ["node1", "node2", "node3"]
    room[1].run("touch", "/tmp/mine", "/dev/shm/mine", "/run/mine")
    for folder in ("/tmp", "/dev/shm", "/run"):
        assert "mine" in room[1].run("ls", folder)
        assert "mine" not in room[2].run("ls", folder)
    boots = {room[i].run("cat", "/proc/sys/kernel/random/boot_id") for i in (1, 2, 3)}
    assert len(boots) == 3 and Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8") not in boots
    assert str(os.getpid()) not in room[1].run("ps", "-e", "-o", "pid=").split()


def test_machines_hear_each_other_until_a_fault(room):
    for address in (room[2].address, room[2].address6):
        python(room[2], SERVER, address)
    for address in (room[2].address, room[2].address6):
        assert ask(room[1], address) == "heard"
    room.cut(1, 2)
    for address in (room[2].address, room[2].address6):
        assert ask(room[1], address) == "nothing"
        assert ask(room[3], address) == "heard"
    room.heal()
    assert room.dropped() == 0
    assert ask(room[1], room[2].address) == "heard"
    room.oneway(2, 1)
    assert ask(room[1], room[2].address) == "nothing"
    room.heal()
    room.loss(1, 2, 99)
    assert ask(room[1], room[2].address) == "nothing"
    room.heal()
    room.isolate(2)
    assert ask(room[3], room[2].address) == "nothing"
    assert "LOWER_UP" in room[2].in_net("ip", "link", "show", "eth0")
    room.join(2)
    assert ask(room[3], room[2].address) == "heard"


def timed(machine, address, size=5):
    """Seconds that so many bytes take to come back: connect, send, receive."""
    said = machine.run(sys.executable, "-c", TIMED, address, str(size))
    return float(said)


@pytest.mark.parametrize("family", ["address", "address6"])
def test_a_long_wire_delays_what_is_received(room, family):
    if no_delay():
        pytest.skip(no_delay())
    address = getattr(room[2], family)
    python(room[2], SERVER, address)
    quick = timed(room[1], address)
    room.delay(2, 50)
    room.delay(1, 30, 20)
    slow = timed(room[1], address)
    print(f"connect and echo: {quick * 1000:.1f} ms, with 50 and 30 to 50 ms of wire {slow * 1000:.1f} ms")
    assert 0.16 <= slow < 0.16 + 0.5  # SYN and its answer, data and theirs
    many = timed(room[1], address, 10_000_000)
    print(f"20 MB there and back: {many:.2f} s")
    assert many < 30
    room.heal()
    assert timed(room[1], address) < 0.16


def test_a_slow_wire_carries_so_much(room):
    python(room[2], SERVER, room[2].address)
    quick = timed(room[1], room[2].address, 1_000_000)
    room.slow(2, "10mbit")
    slow = timed(room[1], room[2].address, 1_000_000)
    print(f"1 MB there and back: {quick:.3f} s, at 10 Mbit/s {slow:.3f} s")
    assert slow > 0.75 > quick
    room.heal()
    assert timed(room[1], room[2].address, 1_000_000) < 0.75


def test_without_a_route_calls_fail_at_once(room):
    for address in (room[2].address, room[2].address6):
        python(room[2], SERVER, address)
    room.no_route(1, 2)
    for address in (room[2].address, room[2].address6):
        start = time.monotonic()
        assert ask(room[1], address, 5) == "nothing"
        assert time.monotonic() - start < 4
        assert ask(room[3], address) == "heard"
    room.heal()
    for address in (room[2].address, room[2].address6):
        assert ask(room[1], address) == "heard"


def test_a_frozen_machine_goes_on(room):
    python(room[2], SERVER, room[2].address)
    room[2].freeze()
    assert ask(room[1], room[2].address) == "nothing" # the kernel takes the connection; nobody answers
    room[2].thaw()
    assert ask(room[1], room[2].address) == "heard"


def test_a_power_cut_sends_no_end_and_a_crash_does():
    with Room(2) as room:
        for power_cut in (False, True):
            python(room[2], SERVER, room[2].address)
            holder = python(room[1], HOLDER, room[2].address)
            boot = room[2].run("cat", "/proc/sys/kernel/random/boot_id")
            if power_cut:
                room[2].power_off()
                assert room[2].init is None
                room[2].boot()
                assert room[2].run("cat", "/proc/sys/kernel/random/boot_id") != boot
                python(room[2], SERVER, room[2].address)
                assert ask(room[1], room[2].address) == "heard"
            else:
                room[2].signal(signal.SIGKILL)
            heard, _, _ = select.select([holder.stdout], [], [], 1)
            assert bool(heard) != power_cut


def processes_with(word):
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and word in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


PLAIN = """
room[1].popen('sh', '-c', 'sleep 1000 & sleep 1000; : WORD')
room[2].popen('setsid', 'sh', '-c', 'sleep 1000; : WORD')
room.slow(1, '10mbit')
"""
RELAY = """
room.delay(2, 50)
room[1].popen('sh', '-c', 'sleep 1000; : WORD')
room[1].popen(sys.executable, '-c', 'import socket, time; other = socket.socket(type=socket.SOCK_DGRAM)\\n'
              f'while True: other.sendto(b"held", ("{room[2].address}", 9)); time.sleep(0.01)')
"""
# A process that nothing can end, as it waits for an answer, in a file system of its machine.
STUCK = """
room[1].run('mkdir', '/run/at', '/run/backing')
room[1].run('sh', '-c', 'echo stat /f hang 1000 >/run/rules')
room[1].popen('/run/programs/faulty_fs', '/run/backing', '/run/at', '/run/rules')
while subprocess.run(room[1].command('mountpoint', '-q', '/run/at')).returncode != 0:
    time.sleep(0.05)
room[1].popen('sh', '-c', 'stat /run/at/f; : WORD')
time.sleep(0.5)
"""
NFS = """
import nfs
room[2].run('mkdir', '/run/programs/export')
nfs.export(room[2], '/run/programs/export', '/run/ganesha/log')
nfs.mount(room[1], '/run/programs/nfs_fuse', f'nfs://{room[2].address}/run/programs/export?version=3&dircache=0', '/run/at')
room[1].popen('sh', '-c', 'cd /run/at && exec 3>f && sleep 1000; : WORD')
"""
RUNNER = """
import subprocess, sys, time
sys.path.insert(0, FOLDER)
from rooms import Room
with Room(2, {PROGRAMS: '/run/programs'}) as room:
    exec(WHAT)
    time.sleep(0.3)
    print(room.init, flush=True)
    time.sleep(1000)
"""


def stands_against(what):
    if what is RELAY:
        return no_delay()
    if what is STUCK:
        return faulty.missing()
    if what is NFS:
        return nfs.missing() if os.environ.get("CAIRN_TEST_FULL") else "in a full run"
    return None


def outside():
    """What a room must not change on its host: mounts, links, control groups."""
    return (sorted(line.split()[4] for line in Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines()),
            sorted(path.name for path in Path("/sys/class/net").iterdir()),
            sorted(str(path) for path in Path("/sys/fs/cgroup").rglob("*") if path.is_dir()))


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("what", [PLAIN, RELAY, STUCK, NFS], ids=["plain", "relay", "stuck", "nfs"])
def test_nothing_outlives_the_runner(sig, what, tmp_path):
    if stands_against(what):
        pytest.skip(stands_against(what))
    before, word = outside(), f"left-behind-{os.getpid()}-{int(sig)}"
    for program in (faulty.PROGRAM, nfs.NFS_FUSE):
        if program:
            shutil.copy(program, tmp_path)
    text = RUNNER.replace("FOLDER", repr(str(Path(__file__).parent))).replace("PROGRAMS", repr(str(tmp_path)))
    text = text.replace("WHAT", repr(what.replace("WORD", word)))
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as runner:
        init = int(runner.stdout.readline())
        inside = os.readlink(f"/proc/{init}/ns/net")
        assert len(processes_with(word.encode())) > 1  # the runner's own line has it, too
        runner.send_signal(sig)
    end = time.monotonic() + 10
    while processes_with(word.encode()) or any(
            space == inside for space in map(net_of, Path("/proc").iterdir()) if space):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert outside() == before


def net_of(entry):
    try:
        return os.readlink(entry / "ns/net") if entry.name.isdigit() else None
    except OSError:
        return None


def test_rooms_stand_side_by_side(room):
    with Room(1) as other:
        assert other[1].address == room[1].address
        other[1].run("touch", "/tmp/other")
        assert "other" not in room[1].run("ls", "/tmp")
