"""Reads the pickles of others' checkpoints without running anything.

A pickle is a program for a small stack machine, which may call any function. This reader knows the instructions that a state dict of
tensors needs. Names of functions and classes stay names: those of a short table make a tensor, a dictionary or a Record of what they
were given, and any other is refused by its name. Memory is bounded by the pickle's own size.
"""
from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

BYTES_MAX = 256 << 20  # of a pickle, without the tensors' data
LONG_MAX = 64  # bytes of an integer

STORAGES = {"FloatStorage": "float32", "BFloat16Storage": "bfloat16", "HalfStorage": "float16", "DoubleStorage": "float64",
            "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8", "ByteStorage": "uint8",
            "BoolStorage": "bool", "ComplexFloatStorage": "complex64", "ComplexDoubleStorage": "complex128",
            "UntypedStorage": "uint8"}
DTYPES = {"float32": 4, "bfloat16": 2, "float16": 2, "float64": 8, "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
          "uint16": 2, "uint32": 4, "uint64": 8, "float8_e4m3fn": 1, "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
          "float8_e8m0fnu": 1, "complex64": 8, "complex128": 16}
_METADATA = "torch.distributed.checkpoint.metadata."
_RECORDS = {_METADATA + name for name in ("Metadata", "TensorStorageMetadata", "BytesStorageMetadata", "ChunkStorageMetadata",
                                          "TensorProperties", "MetadataIndex", "StorageMeta", "_MEM_FORMAT_ENCODING")} | {
    "torch.distributed.checkpoint.filesystem._StorageInfo", "torch.distributed.checkpoint.filesystem._StoragePrefix",
    "torch.distributed.tensor.DTensor", "torch.distributed.tensor._dtensor_spec.DTensorSpec",
    "torch.distributed.tensor._dtensor_spec.TensorMeta", "torch.distributed.tensor._dtensor_spec.ShardOrderEntry",
    "torch.distributed.tensor.placement_types.Shard", "torch.distributed.tensor.placement_types.Replicate",
    "torch.distributed.device_mesh.DeviceMesh", "torch.distributed._mesh_layout._MeshLayout",
    "torch.distributed._mesh_layout._FlatLayout", "torch.device"}


class Refused(ValueError):
    """What a source has can't be taken over; the text says which, and why."""


class Name(NamedTuple):
    """A name that a pickle gives: nothing was imported."""

    text: str


class Storage(NamedTuple):
    """The memory of one or more tensors, by its key in the file."""

    key: str
    dtype: str
    count: int


class Tensor(NamedTuple):
    """A tensor as it lies in a storage; in elements."""

    storage: Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: str


class Record:
    """An object of a class of the table, as its name, arguments and state."""

    def __init__(self, name: str, arguments: tuple[Any, ...]) -> None:
        self.name, self.arguments = name, arguments
        self.state: Any = None

    def __getitem__(self, key: str) -> Any:
        if not isinstance(self.state, dict) or key not in self.state:
            raise Refused(f"{self.name} without {key}")
        return self.state[key]

    def get(self, key: str) -> Any:
        return self.state.get(key) if isinstance(self.state, dict) else None


def _numbers(value: Any) -> tuple[int, ...]:
    if not isinstance(value, (tuple, list)) or any(type(each) is not int or not 0 <= each < 1 << 62 for each in value) or len(value) > 32:
        raise Refused(f"{value!r:.60} where a tensor's sizes should be")
    return tuple(value)


def _tensor(storage: Any, offset: Any, size: Any, stride: Any, dtype: Any = None) -> Tensor:
    if not isinstance(storage, Storage) or type(offset) is not int or offset < 0:
        raise Refused("a tensor without a storage")
    name = storage.dtype if dtype is None else dtype.text.removeprefix("torch.") if isinstance(dtype, Name) else ""
    if name not in DTYPES:
        raise Refused(f"a tensor of the dtype {name or dtype!r}")
    sizes, strides = _numbers(size), _numbers(stride)
    if len(sizes) != len(strides):
        raise Refused("a tensor with more sizes than strides, or fewer")
    return Tensor(storage, offset, sizes, strides, name)


def _wrapped(arguments: tuple[Any, ...]) -> Any:
    """A DTensor: torch._tensor._rebuild_from_type_v2(function, type, arguments, state)."""
    if len(arguments) != 4 or not isinstance(arguments[1], Name) or arguments[1].text not in (
            "torch.distributed.tensor.DTensor", "torch.nn.parameter.Parameter"):
        raise Refused(f"a tensor of the class {getattr(arguments[1], 'text', '?')}" if len(arguments) > 1 else "a tensor of no class")
    if arguments[1].text.endswith("Parameter"):
        return _call(arguments[0], arguments[2])
    made = Record(arguments[1].text, ())
    made.state = {}
    for state in arguments[3] if isinstance(arguments[3], tuple) else (arguments[3],):  # attributes, and those in slots
        made.state.update(state if isinstance(state, dict) else {})
    return made


def _call(name: Any, arguments: Any) -> Any:
    """What a function of the table makes; none is called."""
    if not isinstance(name, Name) or not isinstance(arguments, tuple):
        raise Refused("a call of something without a name")
    text = name.text
    if text in ("torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor") and len(arguments) >= 4:
        return _tensor(*arguments[:4])
    if text == "torch._utils._rebuild_tensor_v3" and len(arguments) >= 7:
        return _tensor(*arguments[:4], arguments[6])
    if text in ("torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state") and arguments:
        return arguments[0]
    if text == "torch._tensor._rebuild_from_type_v2":
        return _wrapped(arguments)
    if text == "collections.OrderedDict":
        return dict(arguments[0]) if arguments else {}
    if text in ("torch.Size", "builtins.set") and len(arguments) <= 1:
        return tuple(arguments[0]) if arguments else ()
    if text.startswith("pathlib."):
        return "/".join(str(each) for each in arguments)
    if text in ("torch.serialization._get_layout", "builtins.getattr"):
        return None  # a layout, a memory format: ours are strided and contiguous
    if text in _RECORDS:
        return Record(text, arguments)
    raise Refused(f"it needs {text}, which is not a matter of tensors")


_CALLS = {"torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor", "torch._utils._rebuild_tensor_v3",
          "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state", "torch._tensor._rebuild_from_type_v2",
          "torch._utils._rebuild_wrapper_subclass", "torch.nn.parameter.Parameter", "collections.OrderedDict", "torch.Size",
          "builtins.set", "torch.serialization._get_layout", "builtins.getattr", "pathlib.PosixPath", "pathlib._local.PosixPath"}


def _named(module: str, name: str) -> Name:
    text = f"{module}.{name}".replace("__builtin__.", "builtins.")
    if text in _CALLS or text in _RECORDS or text.removeprefix("torch.") in STORAGES or text.removeprefix("torch.") in DTYPES or \
            text == "torch.storage.UntypedStorage":
        return Name(text)
    raise Refused(f"it needs {text}, which is not a matter of tensors")


def _persistent(identity: Any) -> Storage:
    """('storage', type, key, location, count[, view])."""
    if not isinstance(identity, tuple) or len(identity) < 5 or identity[0] not in ("storage", b"storage") or \
            not isinstance(identity[1], Name) or type(identity[4]) is not int or identity[4] < 0:
        raise Refused("a reference to something that is no storage of a tensor")
    dtype = STORAGES.get(identity[1].text.rsplit(".", 1)[-1])
    if dtype is None or (len(identity) > 5 and identity[5] is not None):
        raise Refused(f"a storage of the type {identity[1].text}")
    return Storage(str(identity[2]), dtype, identity[4])


_MARK = object()


class Reader:
    """Reads one pickle of `data` from `at`; `at` is behind it then."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        if len(data) > BYTES_MAX:
            raise Refused(f"a pickle of {len(data)} bytes: the most is {BYTES_MAX}")
        self.data, self.at = data, at
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def read(self) -> Any:
        """Raises Refused for anything that isn't data, or is cut off."""
        try:
            while True:
                code = self.data[self.at]
                self.at += 1
                if code == 0x2e:  # STOP
                    return self.stack.pop()
                action = _ACTIONS.get(code)
                if action is None:
                    known = pickletools.code2op.get(chr(code))
                    raise Refused(f"the pickle's instruction {known.name if known else hex(code)} is none that tensors need")
                action(self)
        except (IndexError, struct.error, UnicodeDecodeError, TypeError, KeyError, ValueError) as error:
            if isinstance(error, Refused):
                raise
            raise Refused(f"the pickle is damaged at byte {self.at}: {error}") from error

    def take(self, count: int) -> bytes:
        if count > len(self.data) - self.at:
            raise Refused(f"the pickle is cut off at byte {self.at}")
        self.at += count
        return self.data[self.at - count:self.at]

    def number(self, kind: str) -> Any:
        return struct.unpack(kind, self.take(struct.calcsize(kind)))[0]

    def line(self) -> str:
        end = self.data.index(b"\n", self.at)
        return self.take(end + 1 - self.at)[:-1].decode("utf-8")

    def since_mark(self) -> list[Any]:
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
        if at < 0:
            raise Refused("the pickle has a mark too few")
        items = self.stack[at + 1:]
        del self.stack[at:]
        return items

    def last(self, kind: type) -> Any:
        if not isinstance(self.stack[-1], kind):
            raise Refused(f"a {kind.__name__} is changed that is none")
        return self.stack[-1]


def _text(kind: str, decode: str | None) -> Callable[[Reader], None]:
    def action(reader: Reader) -> None:
        data = reader.take(reader.number(kind))
        reader.stack.append(data.decode(decode, "surrogatepass") if decode else data)
    return action


def _value(value: Any) -> Callable[[Reader], None]:
    return lambda reader: reader.stack.append(value() if callable(value) else value)


def _tuple(count: int) -> Callable[[Reader], None]:
    def action(reader: Reader) -> None:
        items = [reader.stack.pop() for _ in range(count)]
        reader.stack.append(tuple(reversed(items)))
    return action


def _long(kind: str) -> Callable[[Reader], None]:
    def action(reader: Reader) -> None:
        count = reader.number(kind)
        if not 0 <= count <= LONG_MAX:
            raise Refused(f"an integer of {count} bytes")
        reader.stack.append(int.from_bytes(reader.take(count), "little", signed=True))
    return action


def _set_items(reader: Reader, items: list[Any]) -> None:
    reader.last(dict).update(zip(items[::2], items[1::2], strict=True))


def _setitem(reader: Reader) -> None:
    value, key = reader.stack.pop(), reader.stack.pop()
    _set_items(reader, [key, value])


def _append(reader: Reader) -> None:
    value = reader.stack.pop()
    reader.last(list).append(value)


def _stack_global(reader: Reader) -> None:
    name, module = reader.stack.pop(), reader.stack.pop()
    reader.stack.append(_named(str(module), str(name)))


def _reduce(reader: Reader) -> None:
    arguments, name = reader.stack.pop(), reader.stack.pop()
    reader.stack.append(_call(name, arguments))


def _newobj(reader: Reader) -> None:
    arguments, name = reader.stack.pop(), reader.stack.pop()
    if not isinstance(name, Name) or name.text not in _RECORDS:
        raise Refused(f"an object of {getattr(name, 'text', '?')}")
    reader.stack.append(Record(name.text, arguments))


def _build(reader: Reader) -> None:
    state = reader.stack.pop()
    if isinstance(reader.stack[-1], Record):
        reader.stack[-1].state = state
    elif not isinstance(reader.stack[-1], dict):  # attributes of an OrderedDict: versions of modules
        raise Refused("attributes of something that has none")


def _with_mark(use: Callable[[Reader, list[Any]], None]) -> Callable[[Reader], None]:
    return lambda reader: use(reader, reader.since_mark())


def _memo(kind: str | None) -> Callable[[Reader], None]:
    def action(reader: Reader) -> None:
        reader.memo[len(reader.memo) if kind is None else reader.number(kind)] = reader.stack[-1]
    return action


_ACTIONS: dict[int, Callable[[Reader], None]] = {ord(code): action for code, action in {
    "\x80": lambda reader: reader.take(1), "\x95": lambda reader: reader.take(8), "(": _value(_MARK),
    "N": _value(None), "\x88": _value(True), "\x89": _value(False), "}": _value(dict), "]": _value(list), ")": _value(tuple),
    "\x8f": _value(list), "J": lambda reader: reader.stack.append(reader.number("<i")),
    "K": lambda reader: reader.stack.append(reader.number("<B")), "M": lambda reader: reader.stack.append(reader.number("<H")),
    "\x8a": _long("<B"), "\x8b": _long("<i"), "G": lambda reader: reader.stack.append(reader.number(">d")),
    "X": _text("<I", "utf-8"), "\x8c": _text("<B", "utf-8"), "\x8d": _text("<Q", "utf-8"), "T": _text("<i", "latin-1"),
    "U": _text("<B", "latin-1"), "B": _text("<I", None), "C": _text("<B", None), "\x8e": _text("<Q", None),
    "\x85": _tuple(1), "\x86": _tuple(2), "\x87": _tuple(3),
    "t": _with_mark(lambda reader, items: reader.stack.append(tuple(items))),
    "u": _with_mark(_set_items), "e": _with_mark(lambda reader, items: reader.last(list).extend(items)),
    "\x90": _with_mark(lambda reader, items: reader.last(list).extend(items)), "s": _setitem, "a": _append,
    "c": lambda reader: reader.stack.append(_named(reader.line(), reader.line())), "\x93": _stack_global,
    "R": _reduce, "\x81": _newobj, "b": _build, "Q": lambda reader: reader.stack.append(_persistent(reader.stack.pop())),
    "q": _memo("<B"), "r": _memo("<I"), "\x94": _memo(None),
    "h": lambda reader: reader.stack.append(reader.memo[reader.number("<B")]),
    "j": lambda reader: reader.stack.append(reader.memo[reader.number("<I")]),
}.items()}
