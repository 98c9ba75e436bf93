"""A coordinator that answers every call, with words of the worst kind in every text of its answers."""
import contextlib
import json
import subprocess
import sys
from concurrent import futures

import grpc
from google.protobuf.descriptor import FieldDescriptor

from home import ROOT

CONTROLS = [chr(c) for c in range(1, 32) if chr(c) not in "\n\t"] + ["\x7f"]
MARKS = [chr(c) for c in [*range(0x80, 0xA0), 0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)]]
# Asks a terminal where its cursor is, paints, clears, sets the title, and each character alone.
WORDS = "\x1b[6n\x1b[35m\x1b[2J\x1b]0;title\x07\x9b6n\u202e" + "".join(CONTROLS + MARKS) + "end"
TIME = "2026-01-02T03:04:05.678Z"


def messages(folder):
    """Python's module of proto/cairn/v1/control.proto."""
    subprocess.run(["protoc", f"-I{ROOT / 'proto'}", f"--python_out={folder}", "cairn/v1/common.proto", "cairn/v1/control.proto"],
                   check=True)
    sys.path.insert(0, str(folder))
    from cairn.v1 import control_pb2  # pylint: disable=import-error,import-outside-toplevel
    return control_pb2


def fill(message, words, depth=0):
    """Every text is `words`, every list has one of it; a job is over."""
    for field in message.DESCRIPTOR.fields:
        many = field.label == FieldDescriptor.LABEL_REPEATED
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            if depth < 4 and not field.message_type.GetOptions().map_entry:
                at = getattr(message, field.name)
                fill(at.add() if many else at, words, depth + 1)
        elif field.type == FieldDescriptor.TYPE_STRING:
            value = "" if field.name.endswith("page_token") else TIME if field.name.endswith("_at") else words
            if many:
                getattr(message, field.name).append(value)
            else:
                setattr(message, field.name, value)
        elif field.type == FieldDescriptor.TYPE_ENUM and field.enum_type.name == "JobState":
            setattr(message, field.name, field.enum_type.values_by_name["JOB_STATE_FAILED"].number
                    if "JOB_STATE_FAILED" in field.enum_type.values_by_name else field.enum_type.values_by_name["FAILED"].number)
        elif field.type in (FieldDescriptor.TYPE_UINT64, FieldDescriptor.TYPE_UINT32) and not many:
            setattr(message, field.name, 1)
    return message


class Hostile(grpc.GenericRpcHandler):
    """lines: what StreamLogs answers; words: what stands in all texts. A job named `refused` is refused, in such words, too."""

    def __init__(self, control, socket, lines, words=WORDS):
        self.control, self.lines, self.words = control, lines, words
        self.methods = control.DESCRIPTOR.services_by_name["Control"].methods_by_name
        self.server = grpc.server(futures.ThreadPoolExecutor(max_workers=4), handlers=(self,))
        self.server.add_insecure_port(f"unix:{socket}")
        self.server.start()

    def service(self, details):
        method = self.methods.get(details.method.rsplit("/", 1)[1])
        if method is None:
            return None
        kind = method.output_type._concrete_class
        asked = method.input_type._concrete_class

        def answer(request, context):
            if getattr(request, "job", "") == "refused":
                context.abort(grpc.StatusCode.NOT_FOUND, WORDS)
            return fill(kind(), self.words)

        def answers(request, context):
            made = answer(request, context)
            for line in self.lines if method.name == "StreamLogs" else [None]:
                if line is not None:
                    made.line = line
                yield made

        make = grpc.unary_stream_rpc_method_handler if method.server_streaming else grpc.unary_unary_rpc_method_handler
        return make(answers if method.server_streaming else answer, asked.FromString, kind.SerializeToString)


@contextlib.contextmanager
def served(folder, socket, lines, words=WORDS):
    """In a process of its own: tests fork, and gRPC's threads don't bear that."""
    ask = json.dumps({"folder": str(folder), "socket": str(socket), "lines": lines, "words": words})
    with subprocess.Popen([sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            process.stdin.write(ask + "\n")
            process.stdin.flush()
            assert process.stdout.readline() == "serves\n"
            yield
        finally:
            process.kill()


def main():
    ask = json.loads(sys.stdin.readline())
    hostile = Hostile(messages(ask["folder"]), ask["socket"], ask["lines"], ask["words"])
    print("serves", flush=True)
    hostile.server.wait_for_termination()


if __name__ == "__main__":
    main()
