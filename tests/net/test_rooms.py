"""The rooms themselves: machines are apart, faults do what they say, nothing is left behind."""
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rooms import Room, missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")

SERVER = """
import socket, sys
family = socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET
server = socket.create_server((sys.argv[1], 9), family=family)
print("ready", flush=True)
while True:
    other, _ = server.accept()
    while data := other.recv(100):
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


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_outlives_the_runner(sig):
    word = f"left-behind-{os.getpid()}-{int(sig)}"
    text = (f"import sys, time; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            "from rooms import Room\n"
            "with Room(2) as room:\n"
            f"    room[1].popen('sh', '-c', 'sleep 1000 & sleep 1000; : {word}')\n"
            f"    room[2].popen('setsid', 'sh', '-c', 'sleep 1000; : {word}')\n"
            "    time.sleep(0.3)\n"
            "    print(room.init, flush=True)\n"
            "    time.sleep(1000)\n")
    with subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True) as runner:
        init = int(runner.stdout.readline())
        inside = os.readlink(f"/proc/{init}/ns/net")
        assert len(processes_with(word.encode())) > 2 # the runner's own line has it, too
        runner.send_signal(sig)
    end = time.monotonic() + 10
    while processes_with(word.encode()) or any(
            space == inside for space in map(net_of, Path("/proc").iterdir()) if space):
        assert time.monotonic() < end
        time.sleep(0.05)


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
