"""Gradients that are summed in the order of the ranks.

DistributedDataParallel hands its gradients to the process group in buckets, and the group adds in an order of its own: that of a
ring, which depends on how many ranks there are and where a bucket's borders lie. A fresh DDP object has other buckets in its first
step than in its later ones. So a run of three or more processes that was started again has other bits than one that was not.

    model = torch.nn.parallel.DistributedDataParallel(net)
    cairn.torch.ordered(model)

With it every element is ((rank 0 + rank 1) + rank 2) + ..., divided by the number of ranks, whatever the buckets are. For one digest
over different numbers of processes, see cairn.torch.Lanes.
"""
from __future__ import annotations

from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

_HALF = (torch.bfloat16, torch.float16)
_Model = TypeVar("_Model", bound=torch.nn.Module)


def _sum(parts: list[torch.Tensor], out: torch.Tensor) -> torch.Tensor:
    """The mean of the parts in their order, in out; halves are added as float32 and rounded once."""
    total = parts[0].float() if out.dtype in _HALF else parts[0].clone()
    for part in parts[1:]:
        total += part
    total /= len(parts)
    return out.copy_(total)


def _hook(group, bucket):  # type: ignore[no-untyped-def]
    """A communication hook as DistributedDataParallel.register_comm_hook takes it, which refuses annotations that are texts."""
    buffer = bucket.buffer()
    if buffer.layout != torch.strided:
        raise ValueError("cairn.torch.ordered: sparse gradients can't be summed in order; use sparse=False")
    parts = list(torch.empty((dist.get_world_size(group), buffer.numel()), dtype=buffer.dtype, device=buffer.device))
    work = dist.all_gather(parts, buffer, group=group, async_op=True)

    def gathered(future: torch.futures.Future[Any]) -> torch.Tensor:
        future.value()  # raises what went wrong: a hook that doesn't ask trains on with what memory held
        return _sum(parts, buffer)

    return work.get_future().then(gathered)


def ordered(model: _Model) -> _Model:
    """Lets a DistributedDataParallel model sum its gradients in the order of the ranks, and returns it.

    Call it once, right after the model was wrapped. Each rank receives every other rank's gradients: (ranks - 1) times their size, a
    ring all-reduce about twice. Two ranks need it not: a + b is b + a. The error of a rank that died comes out of backward(). Where one
    process is all there is, a model that isn't wrapped is returned as it is.

    Raises ValueError for sparse gradients, in the first backward pass, TypeError for a model that isn't wrapped, and RuntimeError,
    from PyTorch, where the model has a communication hook already.
    """
    if not isinstance(model, DistributedDataParallel):
        if not dist.is_initialized() or dist.get_world_size() == 1:
            return model
        raise TypeError(f"cairn.torch.ordered wants a DistributedDataParallel model, not {type(model).__name__}")
    model.register_comm_hook(model.process_group, _hook)
    return model
