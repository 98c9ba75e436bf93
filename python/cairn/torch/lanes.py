"""One result for every number of workers.

The global batch is cut into a fixed number of lanes. A lane's gradient is computed with the same shapes wherever it runs, and the
lanes' gradients are added in the order of a binary tree over the lanes, never in that of the workers. So the weights after a step
have the same bits on 1, 2, 3 or 4 workers, whoever has which lanes.

    lanes = cairn.torch.Lanes(8, model, seed=1)         # not wrapped in DistributedDataParallel
    for step in range(steps):
        indices = ...                                   # of the global batch of this step: the same on all workers
        for lane in lanes.step(step):                   # those of this worker
            inputs, labels = load(lane.part(indices))
            lane.backward(loss_of(model(inputs), labels))   # the mean over the lane's samples
        loss = lanes.reduce()                           # model's gradients are the mean over all lanes now
        optimizer.step()
        optimizer.zero_grad()

Cairn's own trainer adds in the same order (comm/reducer.h).
"""
from __future__ import annotations

import hashlib
import random
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist

_ACCUMULATE = {torch.bfloat16: torch.float32, torch.float16: torch.float32}
_BUCKET = 1 << 23  # elements that are exchanged at a time
_Rows = TypeVar("_Rows", bound=Sequence[Any])


def _key(seed: int, step: int, lane: int) -> int:
    return int.from_bytes(hashlib.blake2b(struct.pack("<qqq", seed, step, lane), digest_size=8).digest(), "little") >> 1


def _seed_all(key: int) -> None:
    torch.manual_seed(key)  # of every device
    random.seed(key)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(key & 0xffffffff)


class _RandomStates:
    """Random states of the process, put back after the lanes: what is drawn outside doesn't depend on who has which."""

    def __init__(self) -> None:
        self.python, self.cpu = random.getstate(), torch.get_rng_state()
        self.numpy = sys.modules["numpy"].random.get_state() if "numpy" in sys.modules else None
        self.devices = torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else None

    def put_back(self) -> None:
        random.setstate(self.python)
        torch.set_rng_state(self.cpu)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)
        if self.devices is not None:
            torch.cuda.set_rng_state_all(self.devices)


class _Tree:
    """The binary tree over `count` leaves. A node is (level, index); it stands for leaves [index << level, (index + 1) << level)."""

    def __init__(self, count: int) -> None:
        self.count, self.height = count, (count - 1).bit_length()

    def push(self, stack: list[tuple[int, int, Any]], level: int, index: int, value: Any, add: Any) -> None:
        """Puts a node on the stack, and adds it to its neighbour as long as the two are siblings. A node with one child is that
        child."""
        while level < self.height:
            if index % 2 == 0:
                if (index + 1) << level < self.count:
                    break
            elif stack and stack[-1][:2] == (level, index - 1):
                value = add(stack.pop()[2], value)
            else:
                break
            level, index = level + 1, index // 2
        stack.append((level, index, value))

    def partials(self, begin: int, end: int) -> list[tuple[int, int]]:
        """The nodes that are left of leaves [begin, end) when all is added that can be, from left to right."""
        stack: list[tuple[int, int, Any]] = []
        for leaf in range(begin, end):
            self.push(stack, 0, leaf, None, lambda left, right: None)
        return [node[:2] for node in stack]


class Lane:
    """A fixed slice of the global batch, and what is random in it."""

    def __init__(self, index: int, count: int, step: int) -> None:
        self.index, self.count, self.step = index, count, step
        self._loss = torch.zeros((), dtype=torch.float64)

    def part(self, rows: _Rows) -> _Rows:
        """This lane's rows of something that has a row for each sample of the global batch: a tensor, a list of indices.

        Raises ValueError where they can't be cut into equal parts: shapes would depend on the lane.
        """
        size, rest = divmod(len(rows), self.count)
        if rest or not size:
            raise ValueError(f"a global batch of {len(rows)} can't be cut into {self.count} equal lanes")
        return rows[self.index * size:(self.index + 1) * size]  # type: ignore[return-value]

    def backward(self, loss: torch.Tensor) -> None:
        """loss.backward(), and notes the loss for the mean that Lanes.reduce() returns."""
        self._loss = self._loss.to(loss.device) + loss.detach().double()
        loss.backward()


class _Vector:
    """What lanes add, of one dtype and device: a flat buffer per lane that is under way, and the tensors it is made of."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype, self.device = dtype, device
        self.places: list[tuple[int, int, int]] = []  # number of the item, begin, end
        self.size = 0
        self.free: list[torch.Tensor] = []

    def add(self, number: int, elements: int) -> None:
        self.places.append((number, self.size, self.size + elements))
        self.size += elements

    def take(self) -> torch.Tensor:
        return self.free.pop() if self.free else torch.empty(self.size, dtype=self.dtype, device=self.device)

    def sum_pair(self, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
        left += right
        self.free.append(right)
        return left


class Lanes:
    """Computes gradients so that their bits don't depend on the number of workers.

    count    lanes in all; at least as many as workers. It and the global batch are part of what is computed: others, other bits.
    model    the module itself. DistributedDataParallel, FSDP and SyncBatchNorm are refused: they communicate by themselves.
    seed     of what is random within a lane (dropout): a function of (seed, step, lane), for Python's, NumPy's and PyTorch's
             global generators. Outside of the lanes these go on as if there had been none.
    shares   lanes of each rank, or None: as even as can be.
    group    a process group, or None: the default one; without one there is one worker.

    Batch norm: each lane normalises by its own samples. Running statistics become the mean over the lanes of what each would have
    made of them. A buffer of integers may change only if it is num_batches_tracked; others are refused.

    What remains yours: the same kind of CPU or GPU on all workers, the same number of threads (torch.set_num_threads), no
    cudnn.benchmark, and torch.use_deterministic_algorithms(True) where operations need it. Parameters and buffers of rank 0 are sent to
    all when this object is made.
    """

    def __init__(self, count: int, model: torch.nn.Module, *, seed: int = 0, shares: Sequence[int] | None = None,
                 group: Any = None) -> None:
        self.group, alone = group, not (dist.is_available() and dist.is_initialized())
        self.rank, self.size = (0, 1) if alone else (dist.get_rank(group), dist.get_world_size(group))
        if shares is None:
            shares = [count // self.size + (rank < count % self.size) for rank in range(self.size)]
        if len(shares) != self.size or sum(shares) != count or min(shares) < 1:
            raise ValueError(f"{count} lanes can't be shared as {list(shares)} by {self.size} workers: each needs one or more")
        self._check(model)
        self.count, self.seed, self.model, self.shares = count, seed, model, list(shares)
        self._tree = _Tree(count)
        self._ranges = [(sum(shares[:rank]), sum(shares[:rank + 1])) for rank in range(self.size)]
        self._parameters = [(name, each) for name, each in model.named_parameters() if each.requires_grad]
        self._buffers = [(name, each) for name, each in model.named_buffers() if each.is_floating_point()]
        self._integers = [(name, each) for name, each in model.named_buffers() if not each.is_floating_point()]
        self._vectors = self._lay_out()
        self._stacks: list[list[tuple[int, int, Any]]] = []
        self._losses: list[tuple[int, int, Any]] = []
        self._flags: torch.Tensor | None = None
        self._done = 0
        if self.size > 1:
            with torch.no_grad():
                for tensor in (*model.parameters(), *model.buffers()):
                    dist.broadcast(tensor.detach(), group=group, group_src=0)

    @staticmethod
    def _check(model: torch.nn.Module) -> None:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            raise TypeError("Lanes wants the module itself: model.module. DistributedDataParallel would add in its own order")
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.SyncBatchNorm):
                raise TypeError(f"Lanes: {name} is a SyncBatchNorm, whose statistics span workers; use BatchNorm")
        for name, parameter in model.named_parameters():
            if hasattr(parameter, "device_mesh"):
                raise TypeError(f"Lanes: {name} is a DTensor: a sharded model communicates by itself")

    def _lay_out(self) -> list[_Vector]:
        vectors: dict[Any, _Vector] = {}
        for number, (_, tensor) in enumerate(self._parameters + self._buffers):
            kind = (_ACCUMULATE.get(tensor.dtype, tensor.dtype), tensor.device)
            vectors.setdefault(kind, _Vector(*kind)).add(number, tensor.numel())
        return list(vectors.values())

    def step(self, step: int) -> Iterator[Lane]:
        """The lanes of this worker, one after the other; step is the number of the step, from which random numbers follow.

        Gradients must be None when it begins, and are None again until reduce().
        """
        held = [name for name, parameter in self._parameters if parameter.grad is not None]
        if held:
            raise RuntimeError(f"Lanes: {held[0]} has a gradient already: optimizer.zero_grad() comes before the lanes")
        self._stacks, self._losses, self._done = [[] for _ in self._vectors], [], 0
        self._flags = torch.zeros(len(self._parameters) + len(self._buffers), dtype=torch.uint8)
        before = [buffer.clone() for _, buffer in self._buffers + self._integers]
        random_states = _RandomStates()
        try:
            for index in range(*self._ranges[self.rank]):
                if self._done:
                    self._restore_buffers(before)
                _seed_all(_key(self.seed, step, index))
                lane = Lane(index, self.count, step)
                yield lane
                self._collect(lane, before)
        finally:
            random_states.put_back()

    def _restore_buffers(self, before: list[torch.Tensor]) -> None:
        with torch.no_grad():
            for (_, buffer), value in zip(self._buffers + self._integers, before):
                buffer.copy_(value)

    @torch.no_grad()
    def _collect(self, lane: Lane, before: list[torch.Tensor]) -> None:
        """Adds the lane that was just computed to its neighbours, as a binary counter counts."""
        assert self._flags is not None
        for (name, buffer), value in zip(self._integers, before[len(self._buffers):]):
            if not name.endswith("num_batches_tracked") and not torch.equal(buffer, value):
                raise RuntimeError(f"Lanes: the buffer {name} changes in a lane, and isn't of numbers that have a mean")
        for number, (_, parameter) in enumerate(self._parameters):
            self._flags[number] |= parameter.grad is not None
        for number, (_, buffer) in enumerate(self._buffers):
            self._flags[len(self._parameters) + number] |= not torch.equal(buffer, before[number])
        for vector, stack in zip(self._vectors, self._stacks):
            flat = vector.take()
            for number, begin, end in vector.places:
                source = self._parameters[number][1].grad if number < len(self._parameters) else \
                    self._buffers[number - len(self._parameters)][1]
                if source is None:
                    flat[begin:end].zero_()
                elif source.layout != torch.strided:
                    raise RuntimeError(f"Lanes: the gradient of {self._parameters[number][0]} is sparse; use sparse=False")
                else:
                    flat[begin:end].copy_(source.reshape(-1))
            self._tree.push(stack, 0, lane.index, flat, vector.sum_pair)
        self._tree.push(self._losses, 0, lane.index, lane._loss, lambda left, right: left + right)
        for _, parameter in self._parameters:
            parameter.grad = None
        self._done += 1

    @torch.no_grad()
    def reduce(self) -> float:
        """Adds what all workers' lanes have computed: the model's gradients are the mean over all lanes. Returns the mean loss.

        All ranks call it, after the loop over their lanes. A parameter that no lane used has no gradient.
        """
        assert self._flags is not None
        if self._done != self.shares[self.rank]:
            raise RuntimeError(f"Lanes: reduce() after {self._done} of this worker's {self.shares[self.rank]} lanes")
        flags = self._shared_flags()
        for vector, stack in zip(self._vectors, self._stacks):
            self._write(vector, self._exchange(vector, [node[2] for node in stack]), flags)
            vector.free += [node[2] for node in stack]
        losses = self._exchange(_Vector(torch.float64, torch.device(self._device())),
                                [node[2].to(self._device()).view(1) for node in self._losses])
        self._done, self._stacks, self._losses = 0, [], []
        return float(losses[0]) / self.count

    def _device(self) -> Any:
        return self._vectors[0].device if self._vectors else "cpu"

    def _shared_flags(self) -> list[int]:
        assert self._flags is not None
        flags = self._flags.to(self._device())
        if self.size > 1:
            dist.all_reduce(flags, op=dist.ReduceOp.MAX, group=self.group)
        return flags.tolist()

    def _exchange(self, vector: _Vector, partials: list[torch.Tensor]) -> torch.Tensor:
        """The sum of all ranks' partial sums, by pieces. Where all are here it is the only one."""
        if self.size == 1:
            return partials[0]
        out = partials[0]
        for begin in range(0, out.numel(), _BUCKET):
            end = min(begin + _BUCKET, out.numel())
            out[begin:end] = self._exchange_bucket(vector, [partial[begin:end] for partial in partials])
        return out

    def _exchange_bucket(self, vector: _Vector, partials: list[torch.Tensor]) -> torch.Tensor:
        """Each rank adds a chunk of all partial sums, and all get all chunks."""
        elements = partials[0].numel()
        chunk = -(-elements // self.size)
        sent = torch.zeros((self.size, len(partials), chunk), dtype=vector.dtype, device=partials[0].device)
        for number, partial in enumerate(partials):
            padded = torch.nn.functional.pad(partial, (0, chunk * self.size - elements))
            sent[:, number] = padded.view(self.size, chunk)
        nodes = [(node, rank) for rank in range(self.size) for node in self._tree.partials(*self._ranges[rank])]
        counts = [len(self._tree.partials(*each)) for each in self._ranges]
        got = torch.empty((sum(counts), chunk), dtype=vector.dtype, device=sent.device)
        dist.all_to_all_single(got, sent.view(-1, chunk), output_split_sizes=counts, input_split_sizes=[len(partials)] * self.size,
                               group=self.group)
        stack: list[tuple[int, int, Any]] = []
        for row, ((level, index), _) in enumerate(nodes):
            self._tree.push(stack, level, index, got[row], lambda left, right: left + right)
        whole = torch.empty(chunk * self.size, dtype=vector.dtype, device=sent.device)
        dist.all_gather_into_tensor(whole, stack[0][2].contiguous(), group=self.group)
        return whole[:elements]

    def _write(self, vector: _Vector, total: torch.Tensor, flags: list[int]) -> None:
        for number, begin, end in vector.places:
            if not flags[number]:
                continue
            mean = total[begin:end] / self.count
            if number < len(self._parameters):
                parameter = self._parameters[number][1]
                parameter.grad = mean.view(parameter.shape).to(parameter.dtype)
            else:
                buffer = self._buffers[number - len(self._parameters)][1]
                buffer.copy_(mean.view(buffer.shape))
