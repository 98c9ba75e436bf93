"""cairn.torch.Lanes: one result for every number of workers; cairn.torch.ordered: one for every layout of buckets."""
import pytest

from torch_peer import PROGRAMS, digest, needs_peer, run, run_ranks

pytestmark = needs_peer


@pytest.mark.parametrize("lanes,shares", ((4, ("4", "2,2", "2,1,1", "1,1,1,1", "3,1", "1,3")), (7, ("7", "3,2,2", "1,5,1", "4,3"))))
def test_lanes_have_one_digest_for_all_numbers_of_workers(lanes, shares):
    """Batch norm, dropout, AdamW, a parameter that one lane alone uses, one that none uses, one in bfloat16."""
    found = {share: digest(run_ranks(share.count(",") + 1, PROGRAMS / "lanes.py", lanes, share)[0]) for share in shares}
    assert len(set(found.values())) == 1, found


def test_other_lanes_are_another_computation():
    assert digest(run_ranks(1, PROGRAMS / "lanes.py", 4, "4")[0]) != digest(run_ranks(1, PROGRAMS / "lanes.py", 7, "7")[0])


REFUSED = """
import torch
from cairn.torch.lanes import Lanes
def refused(error, words, make):
    try:
        make()
    except error as seen:
        assert words in str(seen), seen
    else:
        raise AssertionError(words)
class Counts(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(1, dtype=torch.int64))
        self.one = torch.nn.Linear(2, 2)
    def forward(self, x):
        self.seen += len(x)
        return self.one(x)
def through(model, reduce=True):
    lanes = Lanes(2, model)
    for lane in lanes.step(0):
        lane.backward(model(torch.ones(3, 2)).sum())
    return lanes
refused(ValueError, "2 lanes can't be shared as [1]", lambda: Lanes(2, torch.nn.Linear(2, 2), shares=[1]))
refused(TypeError, "SyncBatchNorm", lambda: Lanes(2, torch.nn.Sequential(torch.nn.SyncBatchNorm(2))))
refused(RuntimeError, "the buffer seen changes", lambda: through(Counts()))
refused(RuntimeError, "is sparse", sparse)
print("refused")
"""


def test_what_cannot_be_exact_is_refused_in_words():
    sparse = """
def sparse():
    model = torch.nn.Embedding(4, 2, sparse=True)
    lanes = Lanes(2, model)
    for lane in lanes.step(0):
        lane.backward(model(torch.tensor([1])).sum())
"""
    assert run("-c", REFUSED.replace("refused(ValueError", sparse + "refused(ValueError", 1)) == "refused\n"


@pytest.mark.parametrize("size", (2, 3, 4))
def test_ordered_gradients_do_not_depend_on_buckets(size):
    found = {bucket: digest(run_ranks(size, PROGRAMS / "ordered.py", bucket, "ordered", -1)[0]) for bucket in ("25", "0.2", "0.001")}
    assert len(set(found.values())) == 1, found


def test_unordered_gradients_do():
    """Else the test above would show nothing."""
    assert digest(run_ranks(3, PROGRAMS / "ordered.py", "25", "none", -1)[0]) != \
        digest(run_ranks(3, PROGRAMS / "ordered.py", "0.001", "none", -1)[0])


def test_the_end_of_a_rank_is_heard_of_in_backward():
    assert run_ranks(3, PROGRAMS / "ordered.py", "25", "ordered", 2)[:2] == ["heard\n"] * 2
