"""cairn.torch over a stand-in for the C library: what is saved, killed and restored ends with the bits of a quiet run. Needs PyTorch
(CAIRN_PEER)."""
import os
import re
import socket
import subprocess
import time
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PEER = os.environ.get("CAIRN_PEER")
pytestmark = pytest.mark.skipif(not PEER, reason="PyTorch is installed by a full run")
STEPS = 12


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def start(program, folder, size, *arguments, **environment):
    """One start of the program on `size` processes: their exit codes and outputs. Who is left when one fails is killed."""
    port = free_port()
    running = []
    for rank in range(size):
        env = {**os.environ, "PYTHONPATH": f"{HERE.parent.parent}/python:{HERE}", "RANK": str(rank), "WORLD_SIZE": str(size), "OMP_NUM_THREADS": "1",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "CAIRN_FAKE": str(folder), **environment}
        env.pop("CAIRN_SOCKET", None)
        running.append(subprocess.Popen([f"{PEER}/bin/python", HERE / program, *arguments], env=env, stdout=subprocess.PIPE,
                                        stderr=subprocess.STDOUT, text=True))
    until = time.monotonic() + 240
    while any(each.poll() is None for each in running) and time.monotonic() < until:
        if any(each.poll() not in (None, 0) for each in running):
            break
        time.sleep(0.05)
    for each in running:
        if each.poll() is None:
            each.kill()
    return [each.wait() for each in running], [each.communicate()[0] for each in running]


def digests(outputs):
    return [re.findall(r"^digest (.*)$", output, re.M) for output in outputs]


def quiet(size, *options, steps=STEPS):
    codes, outputs = start("torch_program.py", "", size, str(steps), *options)
    assert codes == [0] * size, outputs
    return digests(outputs)


def killed(folder, size, options, at, place, rank=0, steps=STEPS):
    """The digests of a run of which a rank was killed once."""
    mark = folder / "killed"
    saves = folder / "saves"
    saves.mkdir()
    for _ in range(4):
        codes, outputs = start("torch_program.py", saves, size, str(steps), *options, f"kill={at}:{place}", KILL_MARK=str(mark),
                               KILL_RANK=str(rank))
        if codes == [0] * size:
            assert mark.exists(), "nobody was killed"
            assert "anew" not in "".join(outputs)
            return digests(outputs)
        assert -9 in codes, outputs
    raise AssertionError(outputs)


CASES = [
    (1, ("sgd", "batchnorm", "dropout"), 7, "forward"),
    (1, ("adamw", "scaler", "accumulate"), 6, "optimizer"),
    (1, ("sgd", "micro", "batchnorm"), 7, "backward"),
    (1, ("adamw", "bf16", "dropout"), 8, "save"),
    (1, ("sgd", "workers", "dropout"), 5, "backward"),
    (1, ("adamw", "channels", "batchnorm"), 5, "save"),
    (2, ("adamw", "batchnorm", "dropout", "workers"), 7, "forward"),
    (2, ("sgd", "scaler", "accumulate", "dropout"), 4, "backward"),
    (2, ("adamw", "bf16", "batchnorm"), 9, "optimizer"),
    (3, ("sgd", "batchnorm", "dropout", "settle"), 6, "save"),
    (4, ("adamw", "batchnorm", "dropout", "workers", "settle"), 5, "forward"),
]


@pytest.mark.parametrize("size, options, at, place", CASES, ids=lambda value: "+".join(value) if isinstance(value, tuple) else str(value))
def test_a_killed_run_ends_with_the_bits_of_a_quiet_one(tmp_path, size, options, at, place):
    assert killed(tmp_path, size, options, at, place, rank=size - 1) == quiet(size, *options)


def sharded(folder, size, mode, **environment):
    """The digest of all that is saved, put together, of a run that ends at step 4, or of what it went on from there."""
    codes, outputs = start("sharded_program.py", folder, size, "4", mode, CAIRN_FAKE_WAIT="1", **environment)
    assert codes == [0] * size, outputs
    found = {re.search(r"^digest (\S+) from (\w+) tied True count 4$", output, re.M).groups() for output in outputs}
    assert len(found) == 1, found
    return found.pop()


@pytest.mark.parametrize("size, mode, others", [(2, "fsdp", ((3, "fsdp"), (1, "plain"))), (4, "both", ((2, "tensor"), (2, "fsdp")))])
def test_sharded_states_are_put_together_on_other_processes(tmp_path, size, mode, others):
    """Rows are uneven: 13 on 2, 3 and 4 processes."""
    digest, begun = sharded(tmp_path, size, mode)
    assert begun == "0"
    for then, mode_then in others:
        assert sharded(tmp_path, then, mode_then) == (digest, "None")  # no step was left
