"""A worker's process for tests: speaks library/wire/wire.h with one rank's program, and makes copy files as session/copies/copy_file.h
describes them. Rank 0's copy has all replicated tensors, every copy its rank's area.

    with Worker(folder, rank, size) as worker:      # in a thread
        subprocess.run(program, env={**os.environ, "CAIRN_SOCKET": worker.name})

What is restored are the copies of the newest step that all ranks of one size have.
"""
import array
import contextlib
import ctypes
import os
import re
import secrets
import socket
import struct
import threading
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HELLO, LAYOUT, READY, DUE, BEGIN, COPIED, SETTLE, WANT, ROW, FAIL, LAST = range(1, 12)
HEAD = struct.Struct("<IHHiI")
ENTRY = struct.Struct("<128sIIII8Q8Q8Q")
WIDTHS = (4, 2, 2, 4, 8, 1, 1, 1)  # of the buffers of library/wire/place.h
BUFFERS = ("float32", "bfloat16", "float16", "int32", "int64", "uint8", "bytes", "ranks")
SIZES = (0, 4, 2, 2, 4, 8, 1, 8, 1, 2, 1, 1, 1, 8, 16, 2, 4, 8, 1, 1, 1)
NOTHING, COPY, SAVE, SAVE_AND_EXIT = range(4)


def constant(header, name):
    """A number of the sources, so that this worker changes with them."""
    text = (ROOT / header).read_text(encoding="utf-8")
    value = re.search(rf"#define {name}\s+\(?(\d+)u?(?: << (\d+))?", text)
    return int(value[1]) << int(value[2] or 0)


PIECE = constant("common/limits.h", "PIECE_ELEMENTS")
CHUNK = constant("checkpoint/format/disk.h", "DISK_CHUNK_BYTES")
VERSION = constant("session/copies/copy_file.h", "COPY_VERSION")
WIRE = constant("library/wire/wire.h", "WIRE_VERSION")
BESIDE = 8192
_hashes = ctypes.CDLL("libxxhash.so.0")


class _Hash(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


_hashes.XXH3_128bits.restype = _Hash
_hashes.XXH3_64bits.restype = ctypes.c_uint64
for _each in (_hashes.XXH3_128bits, _hashes.XXH3_64bits):
    _each.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def hash_of(data):
    found = _hashes.XXH3_128bits(data, len(data))
    return struct.pack(">QQ", found.high, found.low)


def round_up(size, to):
    return (size + to - 1) // to * to


class Layout:
    """Bytes of each buffer, of "ranks" this rank's area; as place.c computes them."""

    def __init__(self, body):
        count, blob_bytes = struct.unpack_from("<QQ", body)
        self.entries = [ENTRY.unpack_from(body, 16 + ENTRY.size * at) for at in range(count)]
        self.bytes = [0] * 8
        data = 64 + count * ENTRY.size + 256 * (144 + 8) + blob_bytes
        self.bytes[7] = round_up(data, 64)
        for entry in self.entries:
            dtype, kind, ndim, extent = entry[1], entry[2], entry[3], entry[21:29]
            size = SIZES[dtype]
            for length in extent[:ndim]:
                size *= length
            buffer = 7 if kind != 1 else dtype - 1 if dtype <= 6 else 6
            if buffer == 7:
                self.bytes[7] = round_up(self.bytes[7], 64)
            self.bytes[buffer] += size
        self.bytes[7] = round_up(self.bytes[7], CHUNK)

    def names(self):
        return [entry[0].rstrip(b"\0").decode() for entry in self.entries]


class Worker:
    """One rank's worker; `log` has what the program said."""

    def __init__(self, folder, rank=0, size=1, every=1, leave=0, answers=None):
        self.folder, self.rank, self.size, self.every, self.leave = Path(folder), rank, size, every, leave
        self.answers = answers or {}  # kind: (status, text) instead of doing it
        self.name = "@cairn-test-" + secrets.token_hex(8)
        self.log, self.rows, self.layout, self.total, self.saved = [], [], None, 0, []
        self.page = os.memfd_create("page")
        os.truncate(self.page, 4096)
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind("\0" + self.name[1:])
        self.listener.listen()
        self.thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.listener.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        self.listener.close()
        os.close(self.page)

    # ---- messages ----

    def _serve(self):
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(ConnectionError):  # a program may be killed at any byte
                while self._answer(connection):
                    pass

    def _receive(self, connection, size):
        data = b""
        while len(data) < size:
            part = connection.recv(size - len(data))
            if not part:
                return None
            data += part
        return data

    def _answer(self, connection):
        head = self._receive(connection, HEAD.size)
        if head is None:
            return False
        size, kind, _, _, number = HEAD.unpack(head)
        body = self._receive(connection, size)
        self.log.append((kind, body))
        fd = None
        if kind in self.answers:
            status, text = self.answers[kind]
            data = text.encode()
        else:
            status = 0
            data, fd = getattr(self, "_" + ("hello layout ready due begin copied settle want row fail last".split()[kind - 1]))(body)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))] if fd is not None else []
        connection.sendmsg([HEAD.pack(len(data), kind, 0, status, number) + data], ancillary)
        if fd is not None and kind == BEGIN:
            os.close(fd)
        return True

    def _hello(self, _):
        step, paths = self.newest()
        texts = b"".join(os.fsencode(path) + b"\0" for path in paths)
        return struct.pack("<6IQ4I128s", WIRE, 1, self.rank, self.size, 1 if paths else 0, len(paths), step, 1, len(paths), 1, 0, b"fake") + texts, self.page

    def newest(self):
        """(step, the paths of all shares' copies of it)"""
        found = {}
        for path in self.folder.glob("*.copy"):
            step, rank, size = map(int, path.stem.split("-"))
            found.setdefault((step, size), {})[rank] = path
        whole = [(step, [ranks[rank] for rank in range(size)]) for (step, size), ranks in found.items() if len(ranks) == size]
        return max(whole, default=(0, []))

    def _layout(self, body):
        self.layout = Layout(body)
        return b"", None

    def _ready(self, body):
        _, self.total, _ = struct.unpack("<QQQ", body)
        os.pwrite(self.page, struct.pack("<Q", 0), 16)  # next_due: ask after each step
        return b"", None

    def _due(self, body):
        step, = struct.unpack("<Q", body)
        due = SAVE_AND_EXIT if step == self.leave else SAVE if step == self.total else COPY if step % self.every == 0 else NOTHING
        return struct.pack("<II", due, 0), None

    def _begin(self, body):
        self.step, = struct.unpack("<Q", body)
        self.path = self.folder / f"{self.step}-{self.rank}-{self.size}.new"
        data = self._head()
        self.path.write_bytes(data)
        return struct.pack("<IIQQ", 0, 0, len(data), 0), os.open(self.path, os.O_RDWR)

    def _copied(self, body):
        step, status, _, _ = struct.unpack("<QiIQ", body)
        if status == 0:
            assert step == self.step
            self._seal()
            self.path.rename(self.path.with_suffix(".copy"))
            self.saved.append(step)
        return b"", None

    def _settle(self, _):
        return struct.pack("<Q", max(self.saved, default=0)), None

    def _want(self, _):
        return b"", None

    def _row(self, body):
        step, known, _, *numbers = struct.unpack("<QII6d", body)
        self.rows.append((step, {at: number for at, number in enumerate(numbers) if known >> at & 1}))
        return b"", None

    def _last(self, body):
        self.total, = struct.unpack("<Q", body[:8])
        return b"", None

    def _fail(self, _):
        return b"", None

    # ---- copy files ----

    def _head(self):
        """A file for this rank's share: all but seal, data and the hashes of pieces."""
        sizes = self.layout.bytes
        buffers = [at for at in range(8) if sizes[at]]
        extents, tables, hashes, data = [], b"", 0, 0
        for at, buffer in enumerate(buffers):
            mine, first = sizes[buffer], sizes[7] * self.rank if buffer == 7 else 0
            if buffer != 7 and self.rank:
                continue
            count = mine // WIDTHS[buffer]
            extents.append((at, first // WIDTHS[buffer], count, data, hashes))
            hashes += -(-count // PIECE) * 16
            data = round_up(data + mine, 64)
        blob = struct.pack("<II", 1, self.size) + struct.pack(f"<{self.size}Q", *[sizes[7]] * self.size)
        table = BESIDE
        hashes_at = table + 40 * len(extents)
        blob_at = hashes_at + hashes
        self.head_size = round_up(blob_at + len(blob), 64)
        data_at = round_up(self.head_size, 4096)
        for at, first, count, offset, place in extents:
            tables += struct.pack("<IIQQQQ", at, 0, first, count, data_at + offset, hashes_at + place)
        head = struct.pack("<128sQQIIIIQQQdQQQQQII", b"fake", 1, self.step, self.rank, self.size, len(buffers), 1, 0, 0, 0, 1.0, 0, 0, BESIDE, data_at,
                           table, len(extents), 0)
        for buffer in buffers:
            elements = sizes[buffer] // WIDTHS[buffer] * (self.size if buffer == 7 else 1)
            head += struct.pack("<128sIIQ", BUFFERS[buffer].encode(), min(buffer, 5) + 1, 0, elements)
        head = head.ljust(2544, b"\0") + struct.pack("<128sQQ", b"cairn.areas", blob_at, len(blob))
        file = (bytes(64) + head).ljust(BESIDE, b"\0") + tables + bytes(hashes) + blob
        return file.ljust(data_at + data, b"\0")

    def _seal(self):
        file = bytearray(self.path.read_bytes())
        head = bytes(file[64:self.head_size])
        seal = struct.pack("<8sIIQQ", b"CAIRNMEM", VERSION, 0, self.head_size, len(file)) + hash_of(head) + bytes(8)
        file[:64] = seal + struct.pack("<Q", _hashes.XXH3_64bits(seal, len(seal)))
        self.path.write_bytes(file)
