"""Plain Python values as bytes and back, exactly, and nothing that is executed when it is read.

It is JSON with tags. Floats keep their bits, keys of dictionaries their type, tuples are tuples. What can't be held is refused by its
place: `scheduler.callback is a function: …`. Other packages bring types of their own along: a hook gets what is not plain, and returns a
dictionary for it, or None; the other way round it gets the dictionary.
"""
from __future__ import annotations

import base64
import collections
import json
import math
import struct
import sys
from typing import Any, Callable, Optional

from . import errors

TAG = "$"
DEPTH_MAX = 64
MAPPINGS: dict[str, type] = {"dict": dict, "ordered": collections.OrderedDict, "counter": collections.Counter}
SEQUENCES: dict[str, type] = {"tuple": tuple, "set": set, "frozenset": frozenset, "deque": collections.deque}
KINDS = {kind: tag for tag, kind in {**MAPPINGS, **SEQUENCES}.items()}

Encode = Callable[[Any, str], Optional[dict[str, Any]]]
Decode = Callable[[dict[str, Any]], Any]


def text_of(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def bytes_of(text: str) -> bytes:
    return base64.b64decode(text, validate=True)


def _mapping(value: Any, tag: str, place: str, hook: Optional[Encode], depth: int) -> Any:
    if tag == "dict" and TAG not in value and all(type(key) is str for key in value):
        return {key: _tree(item, f"{place}.{key}", hook, depth) for key, item in value.items()}
    pairs = [[_tree(key, f"a key of {place}", hook, depth), _tree(item, f"{place}.{key}", hook, depth)] for key, item in value.items()]
    return {TAG: tag, "v": pairs}


def _number(value: Any) -> Optional[dict[str, Any]]:
    """NumPy's arrays and numbers, if NumPy is there at all."""
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, (numpy.ndarray, numpy.generic)) or value.dtype.hasobject or value.dtype.kind == "V":
        return None
    tag = "array" if isinstance(value, numpy.ndarray) else "number"
    return {TAG: tag, "dtype": value.dtype.str, "shape": list(value.shape), "v": text_of(value.tobytes())}


def _tree(value: Any, place: str, hook: Optional[Encode], depth: int) -> Any:
    if depth > DEPTH_MAX:
        raise errors.Invalid(f"{place} lies deeper than {DEPTH_MAX} levels")
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {TAG: "float", "v": struct.pack(">d", value).hex()}
    if kind is list:
        return [_tree(item, f"{place}[{at}]", hook, depth + 1) for at, item in enumerate(value)]
    tag = KINDS.get(kind)
    if tag in MAPPINGS:
        return _mapping(value, tag, place, hook, depth + 1)
    if tag is not None:
        items = [_tree(item, f"{place}[{at}]", hook, depth + 1) for at, item in enumerate(value)]
        return {TAG: tag, "v": items, "most": value.maxlen} if tag == "deque" else {TAG: tag, "v": items}
    if kind in (bytes, bytearray):
        return {TAG: kind.__name__, "v": text_of(value)}
    if kind is complex:
        return {TAG: "complex", "v": struct.pack(">dd", value.real, value.imag).hex()}
    made = hook(value, place) if hook else None
    made = made or _number(value)
    if made is None:
        raise errors.Invalid(f"{place} is a {kind.__module__}.{kind.__qualname__}: only plain values can be saved "
                             "(numbers, texts, bytes, lists, tuples, sets, dictionaries, arrays, tensors)")
    return made


def tree(value: Any, place: str, hook: Optional[Encode] = None) -> Any:
    """What `pack` makes bytes of. `place` names the value in errors; see above for the hook."""
    return _tree(value, place, hook, 0)


def pack(made: Any) -> bytes:
    """The bytes of what `tree` made, or of dictionaries of such."""
    return json.dumps(made, allow_nan=False, separators=(",", ":")).encode("ascii")


def encode(value: Any, place: str = "value", hook: Optional[Encode] = None) -> bytes:
    """The bytes of a value."""
    return pack(tree(value, place, hook))


def _array(value: dict[str, Any]) -> Any:
    import numpy
    data = numpy.frombuffer(bytes_of(value["v"]), dtype=numpy.dtype(value["dtype"]))
    return data[0] if value[TAG] == "number" else data.reshape(value["shape"]).copy()


def _tagged(value: dict[str, Any], hook: Optional[Decode], depth: int) -> Any:
    tag = value[TAG]
    if tag in MAPPINGS:
        return MAPPINGS[tag]({_value(key, hook, depth): _value(item, hook, depth) for key, item in value["v"]})
    if tag in SEQUENCES:
        items = [_value(item, hook, depth) for item in value["v"]]
        return collections.deque(items, value["most"]) if tag == "deque" else SEQUENCES[tag](items)
    if tag in ("bytes", "bytearray"):
        return bytes_of(value["v"]) if tag == "bytes" else bytearray(bytes_of(value["v"]))
    if tag == "float":
        return struct.unpack(">d", bytes.fromhex(value["v"]))[0]
    if tag == "complex":
        return complex(*struct.unpack(">dd", bytes.fromhex(value["v"])))
    if tag in ("array", "number"):
        return _array(value)
    if hook is None:
        raise errors.Corrupt(f"a value of an unknown kind: {tag!r}")
    return hook(value)


def _value(value: Any, hook: Optional[Decode], depth: int) -> Any:
    if depth > DEPTH_MAX + 1:
        raise errors.Corrupt("values lie deeper than they can have been written")
    if isinstance(value, list):
        return [_value(item, hook, depth + 1) for item in value]
    if not isinstance(value, dict):
        return value
    if TAG in value:
        return _tagged(value, hook, depth + 1)
    return {key: _value(item, hook, depth + 1) for key, item in value.items()}


def decode(data: bytes, hook: Optional[Decode] = None) -> Any:
    """The value of such bytes; `cairn.Corrupt` if they are none."""
    try:
        return _value(json.loads(data), hook, 0)
    except (ValueError, KeyError, TypeError, AttributeError, struct.error, RecursionError, ImportError) as error:
        if isinstance(error, errors.Error):
            raise
        raise errors.Corrupt(f"stored values can't be read: {error}") from error
