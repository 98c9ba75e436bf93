"""What JSON of Cairn must look like: by the descriptors of proto/cairn/v1, with the rules of proto/text/json.h.

    Contract().check(value, "Job")           a message: every field, no other key, each of its type
    Contract().check(value, {"path": str})   an object of its own, with exactly these keys

A shape is a message's name, a type (float: written as one, 1.0), a dict, [shape] for a list, Maybe(shape) for null,
Map(shape) for any keys, OneOf(shapes), or a compiled pattern. read() is as json.loads, but without NaN and double keys.
"""
import json
import re
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from google.protobuf import descriptor_pb2

PROTO = Path(__file__).resolve().parents[2] / "proto"
FILES = ("cairn/v1/common.proto", "cairn/v1/control.proto")
FIELD = descriptor_pb2.FieldDescriptorProto
HEX = re.compile(r"([0-9a-f]{2})*")

INTEGERS = {  # smallest, largest
    **dict.fromkeys((FIELD.TYPE_INT32, FIELD.TYPE_SINT32, FIELD.TYPE_SFIXED32), (-1 << 31, (1 << 31) - 1)),
    **dict.fromkeys((FIELD.TYPE_UINT32, FIELD.TYPE_FIXED32), (0, (1 << 32) - 1)),
    **dict.fromkeys((FIELD.TYPE_INT64, FIELD.TYPE_SINT64, FIELD.TYPE_SFIXED64), (-1 << 63, (1 << 63) - 1)),
    **dict.fromkeys((FIELD.TYPE_UINT64, FIELD.TYPE_FIXED64), (0, (1 << 63) - 1)),
}


@dataclass(frozen=True)
class Maybe:
    shape: object


@dataclass(frozen=True)
class Map:
    shape: object
    needs: tuple = ()  # keys that are there


class OneOf:
    def __init__(self, *shapes):
        self.shapes = shapes


NUMBER = OneOf(int, float)


class Broken(AssertionError):
    """Where it stands in the text, and what is wrong there."""


def read(text):
    def unique(pairs):
        keys = [key for key, _ in pairs]
        if len(set(keys)) != len(keys):
            raise Broken(f"a key stands twice: {keys}")
        return dict(pairs)

    def refuse(word):
        raise Broken(f"{word} is no JSON")
    return json.loads(text, object_pairs_hook=unique, parse_constant=refuse)


def _prefix(name):
    """"JOB_STATE_" of JobState."""
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).upper() + "_"


class Contract:
    def __init__(self):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "set")
            subprocess.run(["protoc", f"-I{PROTO}", f"--descriptor_set_out={out}", *FILES], check=True)
            files = descriptor_pb2.FileDescriptorSet.FromString(out.read_bytes()).file
        self.messages, self.enums = {}, {}
        for file in files:
            self.messages.update({f".{file.package}.{one.name}": one for one in file.message_type})
            self.enums.update({f".{file.package}.{one.name}": one for one in file.enum_type})

    def check(self, value, shape, at="$"):
        if isinstance(shape, str):
            self._message(value, f".cairn.v1.{shape}", at)
        elif isinstance(shape, dict):
            self._keys(value, shape, at)
            for key, inner in shape.items():
                self.check(value[key], inner, f"{at}.{key}")
        elif isinstance(shape, list):
            self._is(value, list, at)
            for i, one in enumerate(value):
                self.check(one, shape[0], f"{at}[{i}]")
        elif isinstance(shape, Maybe):
            if value is not None:
                self.check(value, shape.shape, at)
        elif isinstance(shape, Map):
            self._is(value, dict, at)
            if not set(shape.needs) <= set(value):
                raise Broken(f"{at}: {sorted(set(shape.needs) - set(value))} is missing")
            for key, one in value.items():
                self.check(one, shape.shape, f"{at}.{key}")
        elif isinstance(shape, OneOf):
            self._any(value, shape, at)
        elif isinstance(shape, re.Pattern):
            self._is(value, str, at)
            if not shape.fullmatch(value):
                raise Broken(f"{at}: {value!r} isn't as {shape.pattern}")
        else:
            self._is(value, shape, at)

    def _any(self, value, shape, at):
        said = []
        for one in shape.shapes:
            try:
                self.check(value, one, at)
                return
            except Broken as broken:
                said.append(str(broken))
        raise Broken("; ".join(said))

    @staticmethod
    def _is(value, kind, at):
        if type(value) is not kind:  # True is an int, too
            raise Broken(f"{at}: {value!r:.100} is no {kind.__name__}")

    def _keys(self, value, expected, at):
        self._is(value, dict, at)
        if set(value) != set(expected):
            raise Broken(f"{at}: unknown {sorted(set(value) - set(expected))}, missing {sorted(set(expected) - set(value))}")

    def _message(self, value, name, at):
        message = self.messages[name]
        self._keys(value, [field.name for field in message.field], at)
        for field in message.field:
            self._field(value[field.name], field, f"{at}.{field.name}")

    def _field(self, value, field, at):
        if field.label == FIELD.LABEL_REPEATED:
            if field.type_name.endswith(".LostSeconds"):
                self.check(value, Map(Maybe(float)), at)
                return
            self._is(value, list, at)
            for i, one in enumerate(value):
                self._single(one, field, f"{at}[{i}]")
        elif value is not None or not (field.HasField("oneof_index") or field.type == FIELD.TYPE_MESSAGE):
            self._single(value, field, at)

    def _single(self, value, field, at):
        kind = field.type
        if kind == FIELD.TYPE_MESSAGE:
            self._message(value, field.type_name, at)
        elif kind == FIELD.TYPE_ENUM:
            self._enum(value, field.type_name, at)
        elif kind in (FIELD.TYPE_DOUBLE, FIELD.TYPE_FLOAT):
            self.check(value, Maybe(float), at)
        elif kind == FIELD.TYPE_BYTES:
            self.check(value, HEX, at)
        elif kind in INTEGERS:
            self._is(value, int, at)
            if not INTEGERS[kind][0] <= value <= INTEGERS[kind][1]:
                raise Broken(f"{at}: {value} is out of range")
        else:
            self._is(value, {FIELD.TYPE_BOOL: bool, FIELD.TYPE_STRING: str}[kind], at)

    def _enum(self, value, name, at):
        prefix = _prefix(name.rsplit(".", 1)[1])
        words = [one.name.removeprefix(prefix) for one in self.enums[name].value]
        if value not in words:
            raise Broken(f"{at}: {value!r} is none of {words}")
