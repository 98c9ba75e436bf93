"""Lightning, Transformers' Trainer, Accelerate and Keras: killed, and gone on to the bits of the run that was not. Cairn is played."""
import os
import subprocess
import time
from pathlib import Path

import pytest

import torch_peer
from torch_peer import PROGRAMS, PYTHON, digest, environment, free_port, needs_peer, run_ranks

pytestmark = needs_peer
HERE = Path(__file__).parent


def killed(size, folder, *arguments):
    """Starts the ranks until all end well; when one is gone the others are ended. Returns what rank 0 said, and the starts."""
    (folder / "fake").mkdir(exist_ok=True)
    for start in range(1, 6):
        port, outputs = free_port(), []
        more = {"CAIRN_FAKE": folder / "fake", "CAIRN_FAKE_EVERY": 1, "KILL_MARK": folder / "killed", "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size,
                "PYTHONPATH": f"{HERE}:{HERE.parents[1] / 'python'}"}
        ranks = []
        for rank in range(size):
            outputs.append(open(folder / f"out.{start}.{rank}", "w+", encoding="utf-8"))
            ranks.append(subprocess.Popen([PYTHON, *map(str, arguments)], cwd=folder, stdout=outputs[-1], stderr=subprocess.STDOUT,
                                          env=environment(**more, RANK=rank, LOCAL_RANK=rank)))
        try:
            end = time.monotonic() + 240
            while any(each.poll() is None for each in ranks) and not any(each.poll() for each in ranks) and time.monotonic() < end:
                time.sleep(0.05)
        finally:
            for each in ranks:
                each.kill()
                each.wait()
        texts = []
        for output in outputs:
            output.seek(0)
            texts.append(output.read())
            output.close()
        if all(each.returncode == 0 for each in ranks):
            return texts[0], start
        assert any(each.returncode == -9 for each in ranks) and start == 1, "\n".join(texts)
    raise AssertionError("it never ends")


@pytest.mark.parametrize("framework", ("lightning", "transformers", "accelerate"))
@pytest.mark.parametrize("size,kill,accumulate", ((1, 11, 1), (1, 8, 2), (2, 16, 1), (3, 13, 1)))
def test_a_killed_run_has_the_bits_of_a_quiet_one(tmp_path, framework, size, kill, accumulate):
    """Step 8 and 16 are the first of an epoch; masks, noise, dropout and batch norm draw and differ by rank."""
    program = (PROGRAMS / "frameworks.py", framework, kill, accumulate)
    quiet = digest(run_ranks(size, *program, cwd=tmp_path, PYTHONPATH=os.pathsep.join((str(HERE), str(HERE.parents[1] / "python"))),
                             CAIRN_FAKE_NONE=1, **fake(tmp_path / "quiet"))[0])
    said, starts = killed(size, tmp_path, *program)
    assert starts == 2
    assert digest(said) == quiet


@pytest.mark.parametrize("kill", (8, 11, 16))
def test_keras_too(tmp_path, kill):
    """Its fit() trains in one process. Step 8 is the last of its first epoch, 16 of its second; the metrics of the last epoch count, too."""
    if not torch_peer.has("keras"):
        pytest.skip("Keras is no part of this environment")
    program = (PROGRAMS / "frameworks.py", "keras", kill, 1)
    path = os.pathsep.join((str(HERE), str(HERE.parents[1] / "python")))
    quiet = digest(torch_peer.run(*program, cwd=tmp_path, PYTHONPATH=path, **fake(tmp_path / "quiet")))
    said, starts = killed(1, tmp_path, *program)
    assert starts == 2
    assert digest(said) == quiet


@pytest.mark.parametrize("framework,size", (("lightning", 2), ("transformers", 1), ("accelerate", 2), ("keras", 1)))
def test_a_run_that_ends_early_has_the_bits_of_a_quiet_one(tmp_path, framework, size):
    """In the second of its epochs, three steps after it was killed."""
    if not torch_peer.has(framework):
        pytest.skip(f"{framework} is no part of this environment")
    program = (PROGRAMS / "frameworks.py", framework, 11, 1, 14)
    quiet = digest(run_ranks(size, *program, cwd=tmp_path, PYTHONPATH=os.pathsep.join((str(HERE), str(HERE.parents[1] / "python"))),
                             **fake(tmp_path / "quiet"))[0])
    said, starts = killed(size, tmp_path, *program)
    assert starts == 2
    assert digest(said) == quiet
    for rank in range(size):
        assert (tmp_path / f"fake/last-{rank}").read_text(encoding="utf-8").startswith("14 ")


def fake(folder):
    folder.mkdir()
    return {"CAIRN_FAKE": folder, "CAIRN_FAKE_EVERY": 1000}
