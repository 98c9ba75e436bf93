"""Checkpoints of others: files of torch.save, folders of DCP and of torch_checkpointing. Nothing that they contain is executed."""
from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

from .boxes import Whole, contiguous, extent_of
from .pickles import BYTES_MAX, DTYPES, Name, Reader, Record, Refused, Tensor

_LEGACY_MAGIC = 0x1950a86a20f9469cfc6c
VALUES_MAX = 1 << 20  # tensors and other values of a checkpoint
DEPTH_MAX = 64
_DTENSOR = "torch.distributed.tensor.DTensor"


def named(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """(name, leaf) of nested dictionaries and lists, with a dot between the parts of a name; bounded."""
    left = VALUES_MAX
    waiting: list[tuple[str, Any, int]] = [(path, value, 0)]
    while waiting:
        path, value, depth = waiting.pop()
        left -= 1
        if left < 0 or depth > DEPTH_MAX:
            raise Refused(f"more than {VALUES_MAX} values, or one that is nested more than {DEPTH_MAX} times")
        plain = isinstance(value, (Tensor, Record, Name))
        if isinstance(value, dict):
            items = [(f"{path}.{key}" if path else str(key), each, depth + 1) for key, each in value.items()]
        elif isinstance(value, (list, tuple)) and not plain:
            items = [(f"{path}.{key}" if path else str(key), each, depth + 1) for key, each in enumerate(value)]
        else:
            yield path, value
            continue
        waiting.extend(reversed(items))


class TorchFile:
    """A file, or a stretch of one, that torch.save wrote: the zip of today, or the sequence of pickles before it."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        self.file, self.name = file, name
        try:
            self.value = self._open_zip() if zipfile.is_zipfile(file) else self._open_legacy()
        except (Refused, zipfile.BadZipFile, KeyError, EOFError, NotImplementedError, RuntimeError) as error:
            raise Refused(f"{name}: {error}") from error

    def _open_zip(self) -> Any:
        self.zip: zipfile.ZipFile | None = zipfile.ZipFile(self.file)
        pickles = [each for each in self.zip.namelist() if each.endswith("/data.pkl")]
        if len(pickles) != 1:
            raise Refused("it isn't a file of torch.save: it has no data.pkl" + (", or several" if pickles else ""))
        self.folder = pickles[0].removesuffix("data.pkl")
        if self.zip.getinfo(pickles[0]).file_size > BYTES_MAX:
            raise Refused("its pickle is too large")
        order = self.folder + "byteorder"
        if order in self.zip.namelist() and self.zip.read(order) != b"little":
            raise Refused("it was written on a machine with another order of bytes")
        if self.folder + "constants.pkl" in self.zip.namelist():
            raise Refused("it is a TorchScript program, not a state dict")
        return Reader(self.zip.read(pickles[0])).read()

    def _open_legacy(self) -> Any:
        self.zip = None
        self.file.seek(0)
        data = self.file.read(BYTES_MAX + 1)
        head = Reader(data)
        if data[:2] != b"\x80\x02" or head.read() != _LEGACY_MAGIC:
            raise Refused("it isn't a file of torch.save")
        at = head.at
        for _ in range(2):  # version of the protocol, the machine's sizes
            passed = Reader(data, at)
            passed.read()
            at = passed.at
        value, keys = Reader(data, at), None
        state = value.read()
        keys = Reader(data, value.at)
        self.places: dict[str, tuple[int, int]] = {}
        sizes = {each.storage.key: DTYPES[each.storage.dtype] for _, each in named(state) if isinstance(each, Tensor)}
        order, at = keys.read(), keys.at
        for key in order if isinstance(order, list) else ():
            if str(key) not in sizes:
                raise Refused(f"the storage {key} is nobody's")
            self.file.seek(at)
            count = int.from_bytes(self.file.read(8), "little") * sizes[str(key)]
            self.places[str(key)] = (at + 8, count)
            at += 8 + count
        return state

    def bytes_of(self, tensor: Tensor) -> bytes | memoryview:
        """Row-major bytes."""
        element = DTYPES[tensor.storage.dtype]
        begin, count = tensor.offset * DTYPES[tensor.dtype], extent_of(tensor) * DTYPES[tensor.dtype]
        if begin + count > tensor.storage.count * element:
            raise Refused(f"{self.name}: a tensor ends behind its storage")
        if not count:
            return b""
        if self.zip is not None:
            try:
                with self.zip.open(f"{self.folder}data/{tensor.storage.key}") as data:
                    data.seek(begin)
                    found = data.read(count)
            except (KeyError, zipfile.BadZipFile) as error:
                raise Refused(f"{self.name}: {error}") from error
        else:
            at, size = self.places.get(tensor.storage.key, (0, 0))
            if begin + count > size:
                raise Refused(f"{self.name}: a storage is missing")
            self.file.seek(at + begin)
            found = self.file.read(count)
        if len(found) != count:
            raise Refused(f"{self.name}: a storage is cut off")
        return contiguous(tensor, found)


class Part:
    """One tensor of a source: what it is, and how to get its bytes."""

    def __init__(self, dtype: str, size: tuple[int, ...], read: Any) -> None:
        self.dtype, self.size, self.read = dtype, size, read


Found = tuple[dict[str, Part], list[str]]  # tensors by name; names of what is none


def _sort(found: Iterator[tuple[str, Any]], part: Any) -> Found:
    tensors: dict[str, Part] = {}
    others: list[str] = []
    for name, value in found:
        made = part(name, value)
        if made is None:
            others.append(name)
        elif name in tensors:
            raise Refused(f"two tensors have the name {name}")
        else:
            tensors[name] = made
    return tensors, others


def open_file(path: Path) -> Found:
    """A `.pt` or `.pth` file."""
    source = TorchFile(open(path, "rb"), path.name)

    def part(name: str, value: Any) -> Part | None:
        if isinstance(value, Record):
            raise Refused(f"{path.name}: {name} is a {value.name.rsplit('.', 1)[-1]}: a file of one rank has only a part of it")
        return Part(value.dtype, value.size, lambda: source.bytes_of(value)) if isinstance(value, Tensor) else None

    return _sort(named(source.value), part)


class _Window(io.RawIOBase):
    """A stretch of a file, as a file."""

    def __init__(self, path: Path, offset: int, length: int) -> None:
        self.file, self.offset, self.length, self.position = open(path, "rb"), offset, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        self.position = max(0, offset + (0, self.position, self.length)[whence])
        return self.position

    def readinto(self, buffer: Any) -> int:
        self.file.seek(self.offset + self.position)
        data = self.file.read(max(0, min(len(buffer), self.length - self.position)))
        buffer[:len(data)] = data
        self.position += len(data)
        return len(data)

    def close(self) -> None:
        self.file.close()
        super().close()


def _dcp_chunk(folder: Path, name: str, info: Record) -> tuple[TorchFile, Any]:
    relative, offset, length = info["relative_path"], info["offset"], info["length"]
    if not isinstance(relative, str) or "/" in relative or relative in ("", "..") or type(offset) is not int or type(length) is not int:
        raise Refused(f"{name}: its place is {relative!r}")
    if info.get("transform_descriptors"):
        raise Refused(f"{name} was transformed when it was stored ({', '.join(map(str, info.get('transform_descriptors')))})")
    file = TorchFile(io.BufferedReader(_Window(folder / relative, offset, length)), f"{relative}, {name}")
    return file, file.value


def _dcp_size(name: str, record: Record) -> tuple[str, tuple[int, ...]]:
    properties, size = record["properties"], record["size"]
    state = properties.state if isinstance(properties, Record) else None
    dtype = state[0] if isinstance(state, tuple) and state else None
    if not isinstance(dtype, Name) or dtype.text.removeprefix("torch.") not in DTYPES or not isinstance(size, tuple):
        raise Refused(f"{name}: its dtype or size isn't one")
    if any(type(each) is not int or each < 0 for each in size) or math.prod(size) >= 1 << 46:
        raise Refused(f"{name}: its size is {size}")
    return dtype.text.removeprefix("torch."), size


def open_dcp(folder: Path) -> Found:
    """A folder of torch.distributed.checkpoint: `.metadata` and `__*.distcp`, whatever number of ranks saved it."""
    with open(folder / ".metadata", "rb") as file:
        metadata = Reader(file.read(BYTES_MAX + 1)).read()
    if not isinstance(metadata, Record) or not isinstance(metadata["state_dict_metadata"], dict) or \
            not isinstance(metadata["storage_data"], dict):
        raise Refused(f"{folder}: its .metadata isn't DCP's")
    places: dict[str, list[tuple[Record, Record]]] = {}
    for index, info in metadata["storage_data"].items():
        places.setdefault(index["fqn"], []).append((index, info))

    def part(name: str, record: Any) -> Part | None:
        if not isinstance(record, Record) or not record.name.endswith(".TensorStorageMetadata"):
            return None
        dtype, size = _dcp_size(name, record)

        def read() -> bytearray:
            whole = Whole(name, dtype, size)
            for index, info in places.get(name, ()):
                file, tensor = _dcp_chunk(folder, name, info)
                if not isinstance(tensor, Tensor) or tensor.dtype != dtype:
                    raise Refused(f"{name}: what is stored of it is no tensor of {dtype}")
                whole.put(index.get("offset") or (0,) * len(size), tensor.size, file.bytes_of(tensor))
            return whole.done()

        return Part(dtype, size, read)

    return _sort(iter(metadata["state_dict_metadata"].items()), part)


def _placed(name: str, value: Record, meshes: list[int]) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Shape, start and extent of a rank's part of a DTensor, by the rule of torch.chunk."""
    spec = value["_spec"]
    shape = tuple(spec["tensor_meta"].arguments[0])
    start, extent = [0] * len(shape), list(shape)
    for coordinate, size, placement in zip(spec["mesh"]["_coordinate_on_dim"], meshes, spec["placements"], strict=True):
        if placement.name.endswith(".Replicate"):
            continue
        if not placement.name.endswith(".Shard"):
            raise Refused(f"{name} is spread in a way that isn't known: {placement.name}")
        dimension = placement["dim"] % len(shape)
        chunk = -(-extent[dimension] // size)
        begin = min(coordinate * chunk, extent[dimension])
        start[dimension] += begin
        extent[dimension] = min(chunk, extent[dimension] - begin)
    return shape, tuple(start), tuple(extent)


def open_ranks(folder: Path) -> Found:
    """A folder of torch_checkpointing: ITEM_RANK.pt of each item and rank. Plain tensors are those of rank 0."""
    files: dict[str, dict[int, TorchFile]] = {}
    for path in sorted(folder.iterdir()):
        match = re.fullmatch(r"(.+)_(\d{1,6})\.pt", path.name)
        if match:
            files.setdefault(match[1], {})[int(match[2])] = TorchFile(open(path, "rb"), path.name)
    if not files:
        raise Refused(f"{folder} has no .metadata of DCP, and no ITEM_RANK.pt of torch_checkpointing")
    values: dict[str, list[tuple[int, TorchFile, Any]]] = {}
    for item, ranks in files.items():
        for rank, file in sorted(ranks.items()):
            for name, value in named(file.value, item):
                values.setdefault(name, []).append((rank, file, value))

    def part(name: str, owners: list[tuple[int, TorchFile, Any]]) -> Part | None:
        rank, file, value = owners[0]
        if isinstance(value, Tensor):
            return Part(value.dtype, value.size, lambda: file.bytes_of(value))
        if not isinstance(value, Record) or value.name != _DTENSOR:
            return None
        coordinates = [each["_spec"]["mesh"]["_coordinate_on_dim"] for _, _, each in owners]
        meshes = [1 + max(each) for each in zip(*coordinates)]
        local = value["_local_tensor"]
        shape = _placed(name, value, meshes)[0]

        def read() -> bytearray:
            whole = Whole(name, local.dtype, shape)
            for _, source, each in owners:
                _, start, extent = _placed(name, each, meshes)
                whole.put(start, extent, source.bytes_of(each["_local_tensor"]))
            return whole.done()

        return Part(local.dtype, shape, read)

    return _sort(iter(values.items()), part)
