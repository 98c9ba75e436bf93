"""A program of somebody's own, as `command:` jobs run them: started by torchrun's variables, it adds up numbers with its peers over
sockets, saves by itself, and goes on from what it saved. What it is to do besides, a variable says: AT=STEP:RANK:WHAT."""
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path

RANK, SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(os.environ["CAIRN_FOLDER"])
STEPS, STEP_S = int(os.environ.get("STEPS", "20")), float(os.environ.get("STEP_S", "0.02"))


def connect():
    """To all peers at rank 0, to rank 0 elsewhere."""
    address = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if RANK == 0:
        time.sleep(float(os.environ.get("LISTEN_S", "0")))
        with socket.create_server(address) as server:
            return [server.accept()[0] for _ in range(SIZE - 1)]
    for _ in range(500):
        try:
            return [socket.create_connection(address)]
        except ConnectionRefusedError:
            print("refused in generation", os.environ["CAIRN_GENERATION"], flush=True)
            time.sleep(0.02)
    raise SystemExit("rank 0 doesn't come")


def receive(peer):
    data = b""
    while len(data) < 8:
        part = peer.recv(8 - len(data))
        if not part:
            raise ConnectionError("Connection closed by peer")
        data += part
    return struct.unpack("!q", data)[0]


def add_up(peers, number):
    if RANK == 0:
        number += sum(receive(peer) for peer in peers)
    for peer in peers:
        peer.sendall(struct.pack("!q", number))
    return number if RANK == 0 else receive(peers[0])


def once(name):
    """True the first time, over all generations."""
    try:
        (FOLDER / name).touch(exist_ok=False)
        return True
    except FileExistsError:
        return False


def hang_here():
    while True:
        time.sleep(0.1)


def act(what):
    if what == "kill" and once("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "hang" and once("hung"):
        hang_here()
    if what == "stop" and once("stopped"):
        os.kill(os.getpid(), signal.SIGSTOP)
    if what.startswith("exit") and once("exited"):
        raise SystemExit(int(what[4:]))
    if what == "raise":
        raise ValueError("the loss is a banana")


def save(step, total):
    (FOLDER / "new").write_text(json.dumps([step, total]), encoding="utf-8")
    (FOLDER / "new").rename(FOLDER / "state")


def main():
    print("environment", json.dumps(dict(os.environ)), flush=True)
    told = []
    signal.signal(signal.SIGTERM, lambda *_: told.append(1))
    if os.environ.get("LOADER"):
        # In a session of its own, as daemons are; it would tell if SIGTERM came to it.
        subprocess.Popen([sys.executable, "-c", "import signal, time, pathlib, sys\n"
                          "signal.signal(signal.SIGTERM, lambda *_: pathlib.Path(sys.argv[1], 'loader-told').touch())\n"
                          "time.sleep(1000)", str(FOLDER)], start_new_session=True)
    peers = connect()
    begin, total = json.loads((FOLDER / "state").read_text(encoding="utf-8")) if (FOLDER / "state").exists() else (0, 0)
    at, rank, what = (os.environ.get("AT") or "-1:-1:").split(":")
    for step in range(begin, STEPS):
        if step == int(at) and RANK == int(rank):
            act(what)
        total = (total * 31 + add_up(peers, step * (RANK + 1))) % 1_000_003
        time.sleep(STEP_S)
        leaves = add_up(peers, len(told)) > 0
        if RANK == 0:
            print(f"step {step + 1} total {total}")
            if leaves or (step + 1) % 5 == 0:
                save(step + 1, total)
        if leaves:
            return
    if RANK == 0:
        (FOLDER / "result").write_text(str(total), encoding="utf-8")


main()
