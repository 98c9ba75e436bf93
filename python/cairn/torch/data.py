"""Data whose order and random numbers are functions of the step, so that a restart begins where it has to."""
from __future__ import annotations

import hashlib
import os
import random
import sys
from typing import Any, Iterator, Optional

import torch
from torch.utils.data import Dataset, Sampler

RUN = 4096  # positions of the permutation that are computed at once


class Sample(int):
    """The index of a sample, and the epoch in which it is drawn."""

    epoch: int = 0

    def __new__(cls, index: int, epoch: int = 0) -> "Sample":
        made = super().__new__(cls, index)
        made.epoch = epoch
        return made

    def __reduce__(self) -> Any:
        return (Sample, (int(self), self.epoch))


class Batches(Sampler[list[int]]):
    """Which samples a step gets: a function of seed and step alone.

        batches = cairn.torch.Batches(len(dataset), batch=64, seed=1)
        loader = DataLoader(dataset, batch_sampler=batches, num_workers=2)

    batch is that of all processes together. Each gets its part of it, in the order of ranks, so any number of processes shares the same
    batch. Epochs follow one another without a gap: the batch that an epoch ends in has the next one's first samples, too.

    A restart begins at step s without reading what came before: `cairn.torch.steps` sets `start`, and `stop`. Iterating yields one list of
    indices per step, from start to stop (None: without end). rank and size: of torch.distributed, or RANK and WORLD_SIZE.
    """

    def __init__(self, dataset_size: int, batch: int, seed: int, *, rank: Optional[int] = None, size: Optional[int] = None,
                 start: int = 0, stop: Optional[int] = None) -> None:
        if dataset_size < 1 or batch < 1:
            raise ValueError("Batches needs at least one sample, and one in a batch")
        self.dataset_size, self.batch, self.seed = dataset_size, batch, seed
        self.rank, self.size = _who(rank, size)
        if not 0 <= self.rank < self.size <= batch:
            raise ValueError(f"rank {self.rank} of {self.size} with a batch of {batch}: each process needs a sample")
        self.start, self.stop = start, stop

    def at(self, step: int) -> list[int]:
        """This process's samples of a step."""
        first = step * self.batch + self.batch * self.rank // self.size
        last = step * self.batch + self.batch * (self.rank + 1) // self.size
        found: list[int] = []
        while first < last:
            epoch, position = divmod(first, self.dataset_size)
            count = min(last - first, self.dataset_size - position, RUN)
            found += [Sample(index, epoch) for index in _permute(self.seed, epoch, self.dataset_size, position, count)]
            first += count
        return found

    def __iter__(self) -> Iterator[list[int]]:
        step = self.start
        while self.stop is None or step < self.stop:
            yield self.at(step)
            step += 1

    def __len__(self) -> int:
        if self.stop is None:
            return self.dataset_size // self.batch
        return max(0, self.stop - self.start)


def _who(rank: Optional[int], size: Optional[int]) -> tuple[int, int]:
    if rank is not None and size is not None:
        return rank, size
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _permute(seed: int, epoch: int, n: int, first: int, count: int) -> list[int]:
    from cairn import _cairn
    return _cairn.permute(seed & 0xffffffffffffffff, epoch, n, first, count)


def key(seed: int, epoch: int, sample: int) -> int:
    """64 bits for a sample in an epoch."""
    return int.from_bytes(hashlib.blake2b(f"{seed} {epoch} {sample}".encode(), digest_size=8).digest(), "little")


def generator(seed: int, epoch: int, sample: int, device: Any = "cpu") -> torch.Generator:
    """A generator that is the same for a sample in an epoch, whoever draws from it, and whenever."""
    made = torch.Generator(device=device)
    made.manual_seed(key(seed, epoch, sample) >> 1)
    return made


class seeded(Dataset[Any]):
    """A dataset whose random augmentations are functions of seed, epoch and sample, in whatever process they run.

        dataset = cairn.torch.seeded(dataset, seed=1)

    Before each sample Python's, NumPy's and PyTorch's random numbers are seeded for it; afterwards they are what they were. The epoch
    comes with the index, from `Batches`.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        numpy = sys.modules.get("numpy")
        number = key(self.seed, getattr(index, "epoch", 0), int(index))
        before = random.getstate(), torch.get_rng_state(), numpy.random.get_state() if numpy else None
        random.seed(number)
        torch.default_generator.manual_seed(number >> 1)
        if numpy:
            numpy.random.seed(number & 0xffffffff)
        try:
            return self.dataset[int(index)]
        finally:
            random.setstate(before[0])
            torch.set_rng_state(before[1])
            if numpy:
                numpy.random.set_state(before[2])
