"""Tensors as bytes: taken out of storages with any strides, and put together from boxes."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from .pickles import DTYPES, Refused, Tensor

_FORMATS = {1: "B", 2: "H", 4: "I", 8: "Q"}


def strides_of(size: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides, in elements."""
    return tuple(math.prod(size[at + 1:]) for at in range(len(size)))


def extent_of(tensor: Tensor) -> int:
    """Elements of the storage from the tensor's first to behind its last one."""
    if 0 in tensor.size:
        return 0
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.size, tensor.stride))


def _indices(size: Sequence[int], stride: Sequence[int]) -> Iterator[int]:
    """Offsets of all elements of the outer dimensions."""
    if not size:
        yield 0
        return
    for outer in range(size[0]):
        for inner in _indices(size[1:], stride[1:]):
            yield outer * stride[0] + inner


def contiguous(tensor: Tensor, data: bytes) -> bytes | memoryview:
    """Row-major bytes of a tensor. data: those of its storage that it spans, from its first element on."""
    element = DTYPES[tensor.dtype]
    if len(data) != extent_of(tensor) * element:
        raise Refused(f"a tensor of {tensor.size} has {len(data)} bytes")
    real = [(size, stride) for size, stride in zip(tensor.size, tensor.stride) if size != 1]
    size, stride = [each[0] for each in real], [each[1] for each in real]
    if 0 in size or tuple(stride) == strides_of(size):
        return memoryview(data)[:math.prod(size) * element]
    if element == 16:
        size, stride, element = [*size, 2], [each * 2 for each in stride] + [1], 8
    view = memoryview(data).cast(_FORMATS[element])
    last, step = size[-1], stride[-1]
    rows = (view[at:at + (last - 1) * step + 1:step or 1] for at in _indices(size[:-1], stride[:-1]))
    return b"".join(row.tobytes() * (last if step == 0 else 1) for row in rows)


class Whole:
    """A tensor that is put together from boxes, which may overlap where they are the same."""

    def __init__(self, name: str, dtype: str, size: Sequence[int]) -> None:
        self.name, self.dtype, self.size = name, dtype, tuple(size)
        self.bytes = bytearray(math.prod(size) * DTYPES[dtype])
        self.boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], None] = {}

    def put(self, start: Sequence[int], extent: Sequence[int], data: bytes | memoryview) -> None:
        """data: the box, row-major. A box that is there already is left alone."""
        fits = len(start) == len(extent) == len(self.size) and all(
            0 <= at and at + count <= size for at, count, size in zip(start, extent, self.size))
        element = DTYPES[self.dtype]
        if not fits or len(data) != math.prod(extent) * element:
            raise Refused(f"{self.name}: a part of {tuple(extent)} at {tuple(start)} doesn't fit into {self.size}")
        box = (tuple(start), tuple(extent))
        if box in self.boxes or 0 in extent:
            return
        for other, size in self.boxes:
            if all(at < there + count and there < at + mine for at, mine, there, count in zip(start, extent, other, size)):
                raise Refused(f"{self.name}: two different parts overlap at {tuple(start)}")
        self.boxes[box] = None
        run = extent[-1] * element if extent else element
        strides = strides_of(self.size)
        begin = sum(at * stride for at, stride in zip(start, strides)) * element
        view = memoryview(data).cast("B")
        for number, at in enumerate(_indices(extent[:-1], strides[:-1])):
            self.bytes[begin + at * element:begin + at * element + run] = view[number * run:(number + 1) * run]

    def done(self) -> bytearray:
        """All bytes; raises Refused if some were never put."""
        if sum(math.prod(extent) for _, extent in self.boxes) != math.prod(self.size):
            raise Refused(f"{self.name}: some of its parts are missing")
        return self.bytes
