"""Writes safetensors files, tensor by tensor."""
from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from .pickles import DTYPES, Refused

_NAMES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "int64": "I64", "int32": "I32", "int16": "I16",
          "int8": "I8", "uint8": "U8", "bool": "BOOL", "uint16": "U16", "uint32": "U32", "uint64": "U64", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "complex64": "C64"}


def write(path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]], data: Iterable[tuple[str, bytes | bytearray | memoryview]]) -> None:
    """Writes a file under its name once it is complete and on the disk. data: of each tensor, in the order of `tensors`.

    Raises Refused for a dtype that the format hasn't, and OSError.
    """
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, size) in tensors.items():
        if dtype not in _NAMES:
            raise Refused(f"{name} is {dtype}, which safetensors files can't hold")
        if name == "__metadata__":
            raise Refused("no tensor can have the name __metadata__ in a safetensors file")
        count = math.prod(size) * DTYPES[dtype]
        header[name] = {"dtype": _NAMES[dtype], "shape": list(size), "data_offsets": [at, at + count]}
        at += count
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "xb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            for (name, each), (asked, (dtype, size)) in zip(data, tensors.items(), strict=True):
                if name != asked or len(each) != math.prod(size) * DTYPES[dtype]:
                    raise Refused(f"{name} has {len(each)} bytes")
                file.write(each)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
