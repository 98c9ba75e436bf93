"""Sharded states through torch.distributed.checkpoint: saved by four processes, read by one, two and four. Cairn is played."""
import os
from pathlib import Path

import pytest

from torch_peer import PROGRAMS, digest, needs_peer, run_ranks

pytestmark = needs_peer
HERE = Path(__file__).parent


@pytest.mark.parametrize("how", ("save", "plan"))
def test_a_sharded_state_is_read_by_other_numbers_of_processes(tmp_path, how):
    """fully_shard over two processes and tensor parallelism over two; sizes that can't be cut evenly, Adam's state, its groups."""
    more = {"CAIRN_FAKE": tmp_path, "CAIRN_FAKE_EVERY": 2, "CAIRN_FAKE_WAIT": 1,
            "PYTHONPATH": os.pathsep.join((str(HERE), str(HERE.parents[1] / "python")))}
    saved = digest(run_ranks(4, PROGRAMS / "sharded.py", how, 4, **more)[0])
    for size in (4, 2, 1):
        assert digest(run_ranks(size, PROGRAMS / "sharded.py", "load", 4, **more)[0]) == saved, size
