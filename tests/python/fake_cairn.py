"""A stand-in for `cairn._cairn`: sessions whose copies are files of a folder, for tests of what lies above it.

    import fake_cairn                # in the program, before `import cairn`; CAIRN_FAKE is the folder, CAIRN_FAKE_EVERY the steps

Each save of a rank is one file, renamed when it is complete. What is restored is the newest step that all ranks of one start have.
A save is copied only when the program waits for it (`save_copied`), so that who changes tensors too early is seen.
"""
import ctypes
import itertools
import json
import os
import pickle
import sys
import time
import types
from pathlib import Path

SIZES = {1: 4, 2: 2, 3: 2, 4: 4, 5: 8, 6: 1, 7: 8, 8: 1, 9: 2, 10: 1, 11: 1, 12: 1, 13: 8, 14: 16, 15: 2, 16: 4, 17: 8, 18: 1, 19: 1, 20: 1}


def refuse(status, why):
    from cairn import errors
    raise errors.of(status, why)


def size_of(dtype, extent):
    size = SIZES[dtype]
    for length in extent:
        size *= length
    return size


class Stored:
    """The files of all ranks of one step."""

    def __init__(self, saves):
        self.saves = saves
        self.rows = []
        for save in saves:
            for row in save["tensors"]:
                if row["kind"] != 1 or save["rank"] == 0:
                    self.rows.append((save["rank"], row))

    def info(self):
        return "fake", self.saves[0]["step"], len(self.saves), len(self.rows), sum(len(save["blobs"]) for save in self.saves)

    def tensor(self, i):
        rank, row = self.rows[i]
        return row["name"], row["dtype"], row["kind"], row["shape"], row["start"], row["extent"], rank

    def blob(self, i):
        every = [(name, len(data), save["rank"]) for save in self.saves for name, data in save["blobs"].items()]
        return every[i]

    def read_blob(self, name, rank, size):
        data = self.saves[rank]["blobs"][name]
        assert len(data) == size
        return data

    def read(self, number, rank, start, extent, target, room=0):
        _, first = self.rows[number]
        start = tuple(start) if start is not None else (0,) * len(first["shape"])
        extent = tuple(extent) if extent is not None else first["shape"]
        size, item = size_of(first["dtype"], extent), SIZES[first["dtype"]]
        data, missing = bytearray(size), size // item
        for owner, row in self.rows:
            if row["name"] != first["name"] or row["kind"] == 3 and owner != rank:
                continue
            ranges = [range(max(a, b), min(a + n, b + m)) for a, n, b, m in zip(start, extent, row["start"], row["extent"])]
            for at in itertools.product(*ranges):
                here = there = 0
                for d, place in enumerate(at):
                    here = here * extent[d] + place - start[d]
                    there = there * row["extent"][d] + place - row["start"][d]
                if data[here * item:(here + 1) * item] != row["data"][there * item:(there + 1) * item]:
                    data[here * item:(here + 1) * item] = row["data"][there * item:(there + 1) * item]
            missing -= sum(1 for _ in itertools.product(*ranges))
            if row["kind"] != 2:
                break
        if missing > 0:
            refuse(-106, f"some of {first['name']} was saved by nobody")
        if isinstance(target, int):
            assert room == size, (first["name"], room, size)
            ctypes.memmove(target, bytes(data), size)
        else:
            memoryview(target).cast("B")[:] = data


class Connection:
    def __init__(self):
        self.folder = Path(os.environ["CAIRN_FAKE"])
        self.rank, self.size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
        self.every = int(os.environ.get("CAIRN_FAKE_EVERY", "1"))
        self.leave = int(os.environ.get("CAIRN_FAKE_LEAVE", "0"))
        self.rows = self.addresses = None
        self.total = 0
        self.log_of = []
        self.saved = None
        self.open = True

    def found(self):
        steps = {}
        for path in self.folder.glob("*.save"):
            step, rank, size = map(int, path.stem.split("-"))
            steps.setdefault((step, size), {})[rank] = path
        whole = [(step, ranks) for (step, size), ranks in steps.items() if len(ranks) == size]
        return max(whole, key=lambda each: each[0], default=None)

    def info(self):
        found = self.found()
        return "fake", 1, self.rank, self.size, found is not None, found[0] if found else 0, 1

    def restore(self):
        found = self.found()
        if found is None:
            return None
        return Stored([pickle.loads(found[1][rank].read_bytes()) for rank in sorted(found[1])])

    def layout(self, rows, blob_bytes):
        assert self.rows is None
        assert len({row[0] for row in rows}) == len(rows) and all(len(row[0].encode()) < 128 for row in rows)
        keys = ("name", "dtype", "kind", "flags", "shape", "start", "extent")
        self.rows = [dict(zip(keys, row)) for row in rows]
        for row in self.rows:
            if row["start"] is None:
                row["start"], row["extent"] = (0,) * len(row["shape"]), row["shape"]
        self.blob_bytes = blob_bytes

    def ready(self, step, total, per_epoch):
        assert self.rows is not None
        self.total = total

    def step(self, finished):
        assert self.total
        if finished == self.leave:
            return 3
        return 2 if finished == self.total else 1 if finished % self.every == 0 else 0

    def save_begin(self, finished, addresses):
        assert self.addresses is None
        assert len(addresses) == len(self.rows)
        self.finished, self.addresses, self.blobs = finished, list(addresses), {}
        return True

    def save_blob(self, name, data):
        if sum(map(len, self.blobs.values())) + len(data) > self.blob_bytes:
            refuse(-105, "more blobs than announced")
        self.blobs[name] = bytes(data)

    def save_start(self):
        self.copy(now=True)

    def copy(self, now):
        for row, address in zip(self.rows, self.addresses):
            if bool(row["flags"] & 1) == now:
                row["data"] = ctypes.string_at(address, size_of(row["dtype"], row["extent"]))

    def save_copied(self):
        if self.addresses is None:
            return
        self.copy(now=False)
        self.addresses = None
        data = pickle.dumps({"step": self.finished, "rank": self.rank, "tensors": self.rows, "blobs": self.blobs})
        path = self.folder / f"{self.finished}-{self.rank}-{self.size}.save"
        path.with_suffix(f".{self.rank}.new").write_bytes(data)
        os.replace(path.with_suffix(f".{self.rank}.new"), path)
        for old in self.folder.glob("*.save"):
            step, rank, size = map(int, old.stem.split("-"))
            if rank == self.rank and step < self.finished - 3:
                old.unlink()
        self.saved = self.finished

    def save_cancel(self):
        self.addresses = None

    def last(self, finished, reason):
        assert 0 < finished <= self.total and reason
        (self.folder / f"last-{self.rank}").write_text(f"{finished} {reason}", encoding="utf-8")
        self.total = finished

    def finish(self, finished):
        self.save_copied()
        assert self.saved == finished
        if os.environ.get("CAIRN_FAKE_WAIT"):
            until = time.monotonic() + 60
            while len(list(self.folder.glob(f"{finished}-*.save"))) < self.size and time.monotonic() < until:
                time.sleep(0.01)

    def beat(self):
        pass

    def want(self, leaves, grace, reason):
        pass

    def log(self, step, names, values):
        with open(self.folder / f"log.{self.rank}", "a", encoding="utf-8") as out:
            out.write(json.dumps([step, dict(zip(names, values))]) + "\n")
        return "other" not in names

    def fail(self, message):
        (self.folder / f"fail.{self.rank}").write_text(message, encoding="utf-8")

    def close(self):
        self.open = False


def permute(seed, epoch, n, first, count):
    import random
    order = list(range(n))
    random.Random(f"{seed} {epoch}").shuffle(order)
    return order[first:first + count]


module = types.ModuleType("cairn._cairn")
module.open = lambda client, sigterm: Connection()
module.permute = permute
sys.modules["cairn._cairn"] = module
if os.environ.get("CAIRN_FAKE"):
    os.environ["CAIRN_SOCKET"] = "fake"
