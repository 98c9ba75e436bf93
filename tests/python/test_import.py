"""`python -m cairn import`: files and folders of others, of which nothing is executed. PyTorch is played by a few names, unless
CAIRN_PEER has it."""
import collections
import io
import json
import os
import pickle
import random
import struct
import subprocess
import sys
import types
import zipfile

import pytest

from torch_peer import PYTHON, ROOT, needs_peer, run, run_ranks

sys.path.insert(0, str(ROOT / "python"))
from cairn.convert import Refused, convert  # noqa: E402
from cairn.convert.boxes import Whole, contiguous  # noqa: E402
from cairn.convert.pickles import Reader, Storage, Tensor  # noqa: E402


class Played:
    """What pickle has to find to write a tensor as PyTorch does."""

    def __init__(self, monkeypatch):
        self.torch, self.utils = types.ModuleType("torch"), types.ModuleType("torch._utils")
        self.torch.FloatStorage = type("FloatStorage", (), {"__module__": "torch", "__qualname__": "FloatStorage"})
        self.utils._rebuild_tensor_v2 = lambda *_: None
        self.utils._rebuild_tensor_v2.__module__, self.utils._rebuild_tensor_v2.__qualname__ = "torch._utils", "_rebuild_tensor_v2"
        self.torch._utils = self.utils
        monkeypatch.setitem(sys.modules, "torch", self.torch)
        monkeypatch.setitem(sys.modules, "torch._utils", self.utils)

    def tensor(self, key, count, size, stride, offset=0):
        played, made = self, type("PlayedTensor", (), {})()
        storage = type("PlayedStorage", (), {})()
        storage.identity = ("storage", self.torch.FloatStorage, key, "cpu", count)
        type(made).__reduce__ = lambda _: (played.utils._rebuild_tensor_v2, (storage, offset, size, stride, False,
                                                                            collections.OrderedDict()))
        return made

    def save(self, path, value, storages, extra=()):
        text = io.BytesIO()
        pickler = pickle.Pickler(text, 2)

        class Own(pickle._Pickler):
            def persistent_id(self, obj):
                return getattr(obj, "identity", None)
        pickler = Own(text, 2)
        pickler.dump(value)
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("a/data.pkl", text.getvalue())
            file.writestr("a/byteorder", "little")
            for key, numbers in storages.items():
                file.writestr(f"a/data/{key}", struct.pack(f"<{len(numbers)}f", *numbers))
            for name, data in extra:
                file.writestr(name, data)
        return text.getvalue()


@pytest.fixture
def played(monkeypatch):
    return Played(monkeypatch)


def read(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    assert size % 8 == 0 and header.pop("__metadata__") == {"format": "pt"}
    return {name: (each["dtype"], each["shape"], list(struct.unpack(
        f"<{(each['data_offsets'][1] - each['data_offsets'][0]) // 4}f", data[8 + size:][slice(*each["data_offsets"])])))
        for name, each in header.items()}


def test_a_file_of_tensors(tmp_path, played):
    numbers = [float(number) for number in range(6)]
    state = {"model": {"w": played.tensor("0", 6, (2, 3), (3, 1)), "turned": played.tensor("0", 6, (3, 2), (1, 3)),
                       "one": played.tensor("0", 6, (), (), 4)}, "epoch": 3, "name": "x"}
    played.save(tmp_path / "a.pt", state, {"0": numbers})
    done = convert(tmp_path / "a.pt", tmp_path / "out")
    assert (done.tensors, done.left_out) == (3, ["epoch", "name"])
    assert read(tmp_path / "out") == {"model.w": ("F32", [2, 3], numbers), "model.turned": ("F32", [3, 2], [0, 3, 1, 4, 2, 5]),
                                      "model.one": ("F32", [], [4])}
    convert(tmp_path / "a.pt", tmp_path / "out", part="model")
    assert set(read(tmp_path / "out")) == {"w", "turned", "one"}


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def test_nothing_is_executed(tmp_path, played, monkeypatch):
    monkeypatch.chdir(tmp_path)
    played.save(tmp_path / "a.pt", {"w": played.tensor("0", 1, (1,), (1,)), "x": Evil()}, {"0": [1.0]})
    done = subprocess.run([sys.executable, "-m", "cairn", "import", "a.pt", "out"], env=dict(os.environ, PYTHONPATH=str(ROOT / "python")),
                          capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cairn: a.pt: it needs posix.system, which is not a matter of tensors\n"
    assert sorted(os.listdir()) == ["a.pt"]


@pytest.mark.parametrize("words,change", (
    ("a tensor ends behind its storage", lambda p: {"w": p.tensor("0", 4, (5,), (1,))}),
    ("a storage is cut off", lambda p: {"w": p.tensor("0", 9, (9,), (1,))}),
    ("There is no item named", lambda p: {"w": p.tensor("7", 4, (4,), (1,))}),
    ("has no tensors", lambda p: {"w": 1}),
    ("where a tensor's sizes should be", lambda p: {"w": p.tensor("0", 4, (-1,), (1,))}),
    ("two tensors have the name a.b", lambda p: {"a": {"b": p.tensor("0", 4, (1,), (1,))}, "a.b": p.tensor("0", 4, (1,), (1,))})))
def test_what_is_wrong_is_said(tmp_path, played, words, change):
    played.save(tmp_path / "a.pt", change(played), {"0": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(Refused, match=words):
        convert(tmp_path / "a.pt", tmp_path / "out")
    assert not (tmp_path / "out").exists() and len(list(tmp_path.iterdir())) == 1


def test_a_damaged_pickle_is_refused_and_nothing_else(tmp_path, played):
    """3,000 damaged ones: each is read, or refused in words."""
    good = played.save(tmp_path / "a.pt", {"model": {f"w{at}": played.tensor("0", 4, (2, 2), (2, 1)) for at in range(4)}, "n": [1, 2.5, "x"]},
                       {"0": [1.0] * 4})
    draw, refused = random.Random(1), 0
    for _ in range(3000):
        bad = bytearray(good)
        for _ in range(draw.randint(1, 4)):
            bad[draw.randrange(len(bad))] = draw.randrange(256)
        try:
            Reader(bytes(bad[:draw.randint(1, len(bad))] if draw.random() < 0.3 else bad)).read()
        except Refused:
            refused += 1
    assert refused > 1000


def test_a_tower_of_references_is_bounded(tmp_path):
    """Each list has the one before twice: 2^60 values in 700 bytes."""
    text = b"\x80\x02]q\x00" + b"".join(b"](h" + bytes([at]) + b"h" + bytes([at]) + b"eq" + bytes([at + 1]) for at in range(60)) + b"."
    with zipfile.ZipFile(tmp_path / "a.pt", "w") as file:
        file.writestr("a/data.pkl", text)
    with pytest.raises(Refused, match="more than"):
        convert(tmp_path / "a.pt", tmp_path / "out")


def test_boxes_of_a_whole():
    whole = Whole("w", "float32", (3, 4))
    box = lambda *numbers: struct.pack(f"<{len(numbers)}f", *numbers)
    whole.put((0, 0), (3, 1), box(0, 4, 8))
    with pytest.raises(Refused, match="missing"):
        whole.done()
    whole.put((0, 1), (2, 3), box(1, 2, 3, 5, 6, 7))
    whole.put((0, 1), (2, 3), box(9, 9, 9, 9, 9, 9))  # replicated: the first one counts
    whole.put((2, 1), (1, 3), box(9, 10, 11))
    assert struct.unpack("<12f", whole.done()) == tuple(range(12))
    with pytest.raises(Refused, match="overlap"):
        whole.put((0, 0), (1, 2), box(1, 2))
    with pytest.raises(Refused, match="doesn't fit"):
        whole.put((2, 2), (1, 3), box(1, 2, 3))
    tensor = Tensor(Storage("0", "complex128", 4), 0, (2, 2), (1, 2), "complex128")
    assert struct.unpack("<8d", contiguous(tensor, struct.pack("<8d", *range(8)))) == (0, 1, 4, 5, 2, 3, 6, 7)


MAKE = """
import sys, torch
import torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh
torch.manual_seed(1)
whole = {"rows": torch.randn(5, 3), "columns": torch.randn(3, 7, dtype=torch.float64), "both": torch.randn(5, 6).bfloat16(),
         "same": torch.randn(4), "one": torch.tensor(2.5), "strided": torch.randn(4, 6)[:, ::2].t()}
if len(sys.argv) > 2:
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
    state = dict(whole, rows=distribute_tensor(whole["rows"], mesh, [Shard(0), Replicate()]),
                 columns=distribute_tensor(whole["columns"], mesh, [Replicate(), Shard(1)]),
                 both=distribute_tensor(whole["both"], mesh, [Shard(0), Shard(1)]))
    if sys.argv[2] == "dcp":
        dcp.save({"model": state, "epoch": 3}, checkpoint_id=sys.argv[1])
    else:
        torch.save(state, f"{sys.argv[1]}/model_{dist.get_rank()}.pt")  # as torch_checkpointing lays it out
    dist.destroy_process_group()
else:
    torch.save({"model": whole}, sys.argv[1] + "/new.pt")
    torch.save({"model": whole}, sys.argv[1] + "/old.pt", _use_new_zipfile_serialization=False)
"""
CHECK = """
import sys
from safetensors.torch import load_file
import torch
expected = torch.load(sys.argv[1] + "/new.pt")["model"]
found = load_file(sys.argv[2])
assert found.keys() == expected.keys(), found.keys()
for name, value in expected.items():
    assert found[name].dtype == value.dtype and torch.equal(found[name], value), name
"""


@needs_peer
def test_files_and_folders_of_pytorch_itself(tmp_path):
    run("-c", MAKE, tmp_path)
    ranks = tmp_path / "ranks"
    ranks.mkdir()
    run_ranks(4, "-c", MAKE, tmp_path / "dcp", "dcp")
    run_ranks(4, "-c", MAKE, ranks, "ranks")
    for source in ("new.pt", "old.pt", "dcp", "ranks"):
        convert(tmp_path / source, tmp_path / "out", part="model")
        run("-c", CHECK, tmp_path, tmp_path / "out")
    (next((tmp_path / "dcp").glob("__3_0.distcp"))).unlink()
    with pytest.raises((Refused, OSError)):
        convert(tmp_path / "dcp", tmp_path / "out", part="model")
    assert PYTHON
