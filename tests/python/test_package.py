"""The package over the real library and a worker's process that is played: nothing here needs PyTorch."""
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from fake_worker import FAIL, HELLO, LAST, LAYOUT, WANT, Worker

HERE = Path(__file__).resolve().parent
PACKAGE = os.environ.get("CAIRN_PYTHON", str(HERE.parent.parent / "build/dev/python"))
STEPS = "9"
CONNECT = "import cairn; s = cairn.Session.open()\n"
ONE = CONNECT + "s.layout([('w', 1, 1, (2,))], 64); s.ready(0, 9)\n"


def run(*arguments, worker=None, rank=0, size=1, code=0):
    """What a program prints; it must end with that code."""
    env = {**os.environ, "PYTHONPATH": PACKAGE, "RANK": str(rank), "WORLD_SIZE": str(size)}
    env.pop("CAIRN_SOCKET", None)
    if worker is not None:
        env["CAIRN_SOCKET"] = worker.name
    done = subprocess.run([sys.executable, *map(str, arguments)], env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout + done.stderr


def digest(text):
    return re.search(r"^digest (.*)$", text, re.M).group(1)


def test_a_program_without_cairn_runs_alone():
    text = run(HERE / "plain_program.py", STEPS)
    assert "from 0 alone True" in text and digest(text)


def test_a_killed_program_ends_as_a_quiet_one(tmp_path):
    quiet = digest(run(HERE / "plain_program.py", STEPS))
    with Worker(tmp_path) as worker:
        run(HERE / "plain_program.py", STEPS, "die", "4", worker=worker, code=-9)
        # Copied is before told: the kill may come between.
        assert worker.saved in ([1, 2, 3], [1, 2, 3, 4]) and worker.layout.names() == ["weights", "seen"]
        text = run(HERE / "plain_program.py", STEPS, worker=worker)
    assert re.search("from [34] alone False", text) and digest(text) == quiet
    assert worker.saved[-1] == 9


def test_each_rank_gets_its_own_back(tmp_path):
    digests = []
    for rank in (0, 1):
        digests.append(digest(run(HERE / "plain_program.py", STEPS, rank=rank, size=2)))
        with Worker(tmp_path, rank, 2) as worker:
            run(HERE / "plain_program.py", STEPS, "die", "4", worker=worker, code=-9)
    for rank in (0, 1):
        with Worker(tmp_path, rank, 2) as worker:
            text = run(HERE / "plain_program.py", STEPS, worker=worker)
        assert re.search("from [34] ", text)
        # Without Cairn there is no rank to count by but RANK.
        assert digest(text) == digests[rank]


def test_a_session_ends_after_a_save_before_leaving(tmp_path):
    with Worker(tmp_path, leave=5) as worker:
        run(HERE / "plain_program.py", STEPS, worker=worker)
        assert worker.saved[-1] == 5
        worker.leave = 0
        assert "from 5" in run(HERE / "plain_program.py", STEPS, worker=worker)


def test_a_session_may_end_before_its_last_step(tmp_path):
    with Worker(tmp_path) as worker:
        text = run(HERE / "plain_program.py", STEPS, "last", "5", worker=worker)
    assert worker.saved[-1] == 5 and digest(text) == digest(run(HERE / "plain_program.py", "5"))
    said = dict(worker.log)[LAST]
    assert said[:8] == struct.pack("<Q", 5) and said[8:].rstrip(b"\0").decode() == "it is good enough ×"


def test_a_flipped_byte_is_found(tmp_path):
    with Worker(tmp_path) as worker:
        run(HERE / "plain_program.py", STEPS, "die", "4", worker=worker, code=-9)
        step, (path,) = worker.newest()
        data = bytearray(path.read_bytes())
        at = data.rindex(struct.pack("<q", step))  # `seen`, which lies last in the area
        data[at] ^= 1
        path.write_bytes(data)
        text = run(HERE / "plain_program.py", STEPS, worker=worker, code=1)
    assert "cairn.errors.Corrupt" in text and "damaged" in text
    assert any(kind == FAIL and b"Corrupt" in body for kind, body in worker.log)


@pytest.mark.parametrize("program, said", [
    (CONNECT + "s.layout([('w', 1, 1, (2,)), ('w', 1, 1, (2,))])", "Invalid: two tensors are named w"),
    (CONNECT + "s.layout([('x' * 128, 1, 1, (2,))])", "is no name"),
    (CONNECT + "s.layout([('w', 99, 1, (2,))])", "Invalid: tensor w: its dtype is unknown"),
    (CONNECT + "s.layout([('w', 1, 1, (1,) * 9)])", "9 dimensions; there can be 8"),
    (CONNECT + "s.layout([('w', 1, 2, (4,), 0, (2,), (3,))])", "Invalid: tensor w: its box is outside of it"),
    (CONNECT + "s.layout([('w', 1, 2, (4,), 0, (2, 0), (2,))])", "its box has other dimensions than its shape"),
    (CONNECT + "s.ready(0, 9)", "Invalid: ready comes once, after the layout"),
    (CONNECT + "s.step(-1)", "OverflowError"),
    (CONNECT + "s.step('x')", "TypeError"),
    (ONE + "s.begin(1, [1, 2])", "Invalid: another number of addresses than of tensors"),
    (ONE + "s.begin(1, ['x'])", "TypeError"),
    (ONE + "s.blob('b', b'')", "Invalid: blobs come after cairn_save_begin"),
    (ONE + "import array; w = array.array('f', [1, 2]); s.begin(1, [w.buffer_info()[0]]); s.blob('b', bytes(4096))", "Full: blob b is more"),
    (ONE + "s.close(); s.step(1); s._connection = None", ""),
    (CONNECT + "c = s._connection; c.close(); c.close(); c.step(1)", "Closed: the session is closed"),
    (CONNECT + "t = cairn.Session.open()", "Refused: this process is connected already"),
    ("import cairn; cairn.load('/nowhere')", "NotFound"),
    ("import cairn._cairn as c; c.Connection()", "TypeError"),
    ("import cairn._cairn as c; c.permute(1, 0, 10, 5, 6)", "ValueError"),
])
def test_mistakes_are_told_in_words(tmp_path, program, said):
    with Worker(tmp_path) as worker:
        text = run("-c", program, worker=worker, code=1 if said else 0)
    assert said in text and "Segmentation" not in text


def test_a_worker_that_refuses_is_heard(tmp_path):
    with Worker(tmp_path, answers={LAYOUT: (-302, "rank 1 has another layout")}) as worker:
        assert "Changed: rank 1 has another layout" in run("-c", ONE, worker=worker, code=1)
    with Worker(tmp_path, answers={HELLO: (-108, "another process is connected")}) as worker:
        assert "Refused: another process is connected" in run("-c", CONNECT, worker=worker, code=1)


def test_an_exception_of_the_program_is_told(tmp_path):
    with Worker(tmp_path) as worker:
        run("-c", "import cairn\nwith cairn.Session.open() as s:\n    raise KeyError('weights of layer 3')", worker=worker, code=1)
        run("-c", "import cairn, sys\nwith cairn.Session.open() as s:\n    sys.exit(0)", worker=worker)
    assert [body for kind, body in worker.log if kind == FAIL] == [b"KeyError: 'weights of layer 3'"]


def test_a_program_that_fails_while_it_is_copied_ends_by_its_own_mistake(tmp_path):
    program = """
import array, ctypes, mmap
import cairn
def main():
    size = 64 << 20
    memory = mmap.mmap(-1, size)
    s = cairn.Session.open()
    s.layout([('w', cairn.DTYPES['uint8'], cairn.REPLICATED, (size,))], 64)
    s.ready(0, 9)
    s.step(1)
    s.begin(1, array.array('Q', [ctypes.addressof(ctypes.c_char.from_buffer(memory))]))
    s.start()
    raise KeyError('mine')
main()
"""
    with Worker(tmp_path) as worker:
        assert "KeyError: 'mine'" in run("-c", program, worker=worker, code=1)


def test_numbers_reach_the_worker_and_others_are_left_out(tmp_path):
    program = ONE + "s.step(1); s.log({'loss': 0.25, 'lr': 1, 'speed': 3.0}); s.log({'speed': 1}); import time; s.copied(); s.want('soon'); s.close()"
    with Worker(tmp_path) as worker:
        text = run("-c", program, worker=worker)
    assert text.count("no numbers of this name: speed") == 1
    assert (1, {0: 0.25, 1: 1.0}) in worker.rows
    assert any(kind == WANT and b"soon" in body for kind, body in worker.log)


def test_a_forked_child_has_no_connection(tmp_path):
    program = ONE + """
import os
pid = os.fork()
if pid == 0:
    try:
        s.step(1)
    except cairn.Closed as error:
        os._exit(7)
    os._exit(8)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
assert s.step(1) == 1
"""
    with Worker(tmp_path) as worker:
        run("-c", program, worker=worker)


def test_sigterm_asks_for_a_save_while_the_program_is_busy(tmp_path):
    program = ONE + """
import os, signal, time
os.kill(os.getpid(), signal.SIGTERM)
begin = time.monotonic()
while time.monotonic() < begin + 0.5:
    sum(range(10000))
print("alive")
"""
    with Worker(tmp_path) as worker:
        assert "alive" in run("-c", program, worker=worker)
        assert any(kind == WANT and struct.unpack_from("<I", body)[0] == 1 for kind, body in worker.log)


def test_a_handler_of_the_programs_own_stays(tmp_path):
    program = """
import cairn, os, signal
signal.signal(signal.SIGTERM, lambda *_: print("mine"))
s = cairn.Session.open()
os.kill(os.getpid(), signal.SIGTERM)
print("alive")
"""
    with Worker(tmp_path) as worker:
        text = run("-c", program, worker=worker)
        assert "mine" in text and "alive" in text
        assert not any(kind == WANT for kind, _ in worker.log)


def test_help_teaches():
    text = run("-c", "import cairn, cairn.errors; help(cairn); help(cairn.Session); help(cairn.errors)")
    for word in ("cairn.torch.steps(session, state, total=1000, loader=loader)", "Connects to Cairn", "This start of the program is over"):
        assert word in text


def test_the_package_needs_nothing_else():
    assert run("-c", "import sys, cairn, cairn._cairn; print([m for m in ('numpy', 'torch') if m in sys.modules])").strip() == "[]"


def test_the_extension_shows_its_entry_and_needs_libc_alone():
    path = f"{PACKAGE}/cairn/_cairn.abi3.so"
    shown = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    assert [line.split()[-1] for line in shown.splitlines()] == ["PyInit__cairn"]
    needed = subprocess.run(["objdump", "-p", path], capture_output=True, text=True, check=True).stdout
    assert re.findall(r"NEEDED\s+(\S+)", needed) in (["libc.so.6"], ["libc.so.6", "ld-linux-x86-64.so.2"])


@pytest.mark.parametrize("value", [
    None, True, 0, -1, 1 << 200, 1.5, -0.0, float("inf"), "text\ud800", b"\0\xff", (1, (2,)), {1: "a", (2, 3): None, "$": 1}, {1, 2}, [[]], 3 + 4j])
def test_plain_values_come_back_as_they_were(value):
    sys.path.insert(0, PACKAGE)
    from cairn import plain
    back = plain.decode(plain.encode(value))
    assert back == value and type(back) is type(value) and repr(back) == repr(value)
