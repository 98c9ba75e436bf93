"""Stored states as mappings of tensors."""
from __future__ import annotations

import os
from typing import Any, Iterator, Mapping, NamedTuple, Optional, Sequence, Union

from . import errors

DTYPES = {"float32": 1, "bfloat16": 2, "float16": 3, "int32": 4, "int64": 5, "uint8": 6, "float64": 7, "int8": 8, "int16": 9, "bool": 10,
          "float8_e4m3fn": 11, "float8_e5m2": 12, "complex64": 13, "complex128": 14, "uint16": 15, "uint32": 16, "uint64": 17,
          "float8_e4m3fnuz": 18, "float8_e5m2fnuz": 19, "float8_e8m0fnu": 20}
NAMES = {number: name for name, number in DTYPES.items()}
SIZES = {"float32": 4, "bfloat16": 2, "float16": 2, "int32": 4, "int64": 8, "uint8": 1, "float64": 8, "int8": 1, "int16": 2, "bool": 1,
         "float8_e4m3fn": 1, "float8_e5m2": 1, "complex64": 8, "complex128": 16, "uint16": 2, "uint32": 4, "uint64": 8,
         "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "float8_e8m0fnu": 1}
FORMATS = {"float32": "f", "int32": "i", "int64": "q", "uint8": "B", "float64": "d", "int8": "b", "int16": "h", "bool": "?", "uint16": "H",
           "uint32": "I", "uint64": "Q"}
PRIVATE = 3


class Described(NamedTuple):
    """A tensor of a stored state."""

    name: str
    dtype: str
    kind: int
    shape: tuple[int, ...]
    ranks: tuple[int, ...]  # who saved parts of it; of a replicated one (0,)
    number: int


class Stored(Mapping[str, Any]):
    """A stored state: a mapping from names to arrays, each read, and checked, when it is asked for.

    Tensors that were sharded come whole, put together from all boxes. Of private ones (batch norm's buffers, say) these are rank 0's;
    `state.of(2)` is the same mapping with those of rank 2. `step` is how many steps were finished, `ranks` how many processes saved it.

    NumPy gets arrays of the tensor's dtype. NumPy has no bfloat16 and no float8: with the package `ml_dtypes` they have their dtype,
    else bfloat16 comes as float32, which has the same values, and float8 is refused. `cairn.torch.load` gives tensors of every dtype.
    Without NumPy one gets a `memoryview`.
    """

    def __init__(self, found: Any, rank: int = 0) -> None:
        """found: what `_cairn` returned; `cairn.load` is for people."""
        self._found = found
        self._rank = rank
        self.job: str
        self.step: int
        self.ranks: int
        self.job, self.step, self.ranks, tensors, blobs = found.info()
        self.tensors: dict[str, Described] = {}
        for number in range(tensors):
            name, dtype, kind, shape, _, _, owner = found.tensor(number)
            known = self.tensors.get(name)
            if known is None:
                self.tensors[name] = Described(name, NAMES[dtype], kind, shape, (owner,), number)
            else:
                self.tensors[name] = known._replace(ranks=known.ranks + (owner,))
        self.blobs: dict[tuple[str, int], int] = {}
        for number in range(blobs):
            name, size, owner = found.blob(number)
            self.blobs[name, owner] = size

    def of(self, rank: int) -> "Stored":
        """The same state, with that rank's private tensors."""
        other: Stored = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        other._rank = rank
        return other

    def describe(self, name: str) -> Described:
        """What is known of a tensor, without reading it."""
        try:
            return self.tensors[name]
        except KeyError:
            raise errors.NotFound(f"the state has no tensor {name}") from None

    def read_into(self, name: str, target: Any, size: int = 0, *, start: Optional[Sequence[int]] = None,
                  extent: Optional[Sequence[int]] = None) -> None:
        """Reads a box of a tensor, or all of it, into a writable buffer, or to an address with room for size bytes."""
        tensor = self.describe(name)
        if tensor.kind == PRIVATE and self._rank not in tensor.ranks:
            raise errors.NotFound(f"rank {self._rank} saved no {name}")
        arguments = (tensor.number, self._rank, start, extent, target)
        self._found.read(*arguments, size) if isinstance(target, int) else self._found.read(*arguments)

    def raw(self, name: str) -> bytearray:
        """A tensor's bytes, row-major."""
        tensor = self.describe(name)
        size = SIZES[tensor.dtype]
        for extent in tensor.shape:
            size *= extent
        data = bytearray(size)
        self.read_into(name, data)
        return data

    def blob(self, name: str, rank: Optional[int] = None) -> bytes:
        """A blob of a rank's."""
        owner = self._rank if rank is None else rank
        size = self.blobs.get((name, owner))
        if size is None:
            raise errors.NotFound(f"rank {owner} saved no {name}")
        data: bytes = self._found.read_blob(name, owner, size)
        return data

    def __getitem__(self, name: str) -> Any:
        if name not in self.tensors:
            raise KeyError(name)
        return _array(self.tensors[name], self.raw(name))

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"<cairn.Stored: step {self.step} of job {self.job}, {len(self.tensors)} tensors of {self.ranks} ranks>"


def _array(tensor: Described, data: bytearray) -> Any:
    try:
        import numpy
    except ImportError:
        view: Any = memoryview(data)
        return view.cast(FORMATS[tensor.dtype], tensor.shape) if tensor.dtype in FORMATS and tensor.shape else view
    if tensor.dtype in FORMATS or tensor.dtype in ("float16", "complex64", "complex128"):
        return numpy.frombuffer(data, dtype=tensor.dtype).reshape(tensor.shape)
    try:
        import ml_dtypes  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        if tensor.dtype != "bfloat16":
            raise errors.Invalid(f"{tensor.name} is {tensor.dtype}, which NumPy lacks: install ml_dtypes, or use cairn.torch.load") from None
        return (numpy.frombuffer(data, dtype="uint16").astype("uint32") << 16).view("float32").reshape(tensor.shape)
    return numpy.frombuffer(data, dtype=getattr(ml_dtypes, tensor.dtype)).reshape(tensor.shape)


def load(path: Union[str, "os.PathLike[str]"]) -> Stored:
    """Opens a checkpoint's folder: a mapping from names to arrays. Needs no coordinator, and no job that runs. `cairn ckpt ls JOB -o wide`
    tells the folders of a job.

        state = cairn.load("checkpoints/j-0123456789/step-000000000100.g1")
        state.step, state["model.fc.weight"].shape
    """
    from . import _cairn
    return Stored(_cairn.state_open(path))
