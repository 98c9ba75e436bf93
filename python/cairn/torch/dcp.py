"""torch.distributed.checkpoint (DCP) over Cairn's checkpoints.

Read one of a job's, on any number of processes, into any sharding:

    state = {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}
    dcp.load(state, storage_reader=cairn.torch.dcp.StorageReader("checkpoints/j-0123456789/step-000000000100.g1"))

Let a program that makes its state dicts for DCP save them through Cairn, and go on from them:

    found, start = session.restore(), 0
    if found is not None:
        state, start = state_dict(), found.step
        dcp.load(state, storage_reader=cairn.torch.dcp.StorageReader(found))
        set_model_state_dict(model, state["model"])
        set_optimizer_state_dict(model, optimizer, state["optimizer"])
    writer = cairn.torch.dcp.StorageWriter(session, total=1000, start=start)
    for step in range(start, 1000):
        ...
        writer.save(state_dict(), step + 1)
    writer.wait(1000)

Random states and the place in the data are not in such a state, unless the program adds them. cairn.torch.State has them, does the same
without DCP's collectives, and copies beside the next step.
"""
from __future__ import annotations

import io
import os
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata, MetadataIndex, StorageMeta,
                                                   TensorProperties, TensorStorageMetadata)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, SavePlan, SavePlanner, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from .. import errors, plain
from ..session import NOTHING, SHARDED, Session
from ..stored import Stored
from ..stored import load as load_stored
from .gather import BY_DTYPE, BY_NAME, short
from .restoring import Reader

BLOB = "cairn.dcp"

__all__ = ["StorageReader", "StorageWriter"]


def _saved(value: Any) -> bytes:
    """A value as DCP keeps what is no tensor."""
    out = io.BytesIO()
    torch.save(value, out)
    return out.getvalue()


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class StorageReader(dcp.StorageReader):
    """Reads a checkpoint of Cairn's through dcp.load.

    source   the checkpoint's folder, or what cairn.load or Session.restore returned
    rank     whose private tensors (batch norm's buffers) and plain values; None: rank 0's

    Names are those of State: `model.layer.weight`, `optimizer.state.layer.weight.exp_avg`, `optimizer.param_groups.0.lr`; they are what
    DCP calls {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}. Each rank reads its boxes
    only, and every byte that it reads is checked. A dtype that differs from the target's is refused, where DCP would cast in silence.
    """

    def __init__(self, source: str | os.PathLike[str] | Stored, rank: int | None = None) -> None:
        self._found = source if isinstance(source, Stored) else load_stored(source)
        self._rank = rank or 0
        self._reader = Reader(self._found, self._rank)
        self._bytes = self._values()

    def _values(self) -> dict[str, bytes]:
        """What is no tensor, by its name in DCP."""
        if (BLOB, 0) in self._found.blobs:
            values: dict[str, bytes] = {}
            for rank in range(self._found.ranks):
                values.update(plain.decode(self._found.blob(BLOB, rank)))
            return values
        found: dict[str, bytes] = {}
        for name, saved in self._reader.rest.get("optimizer", {}).items():
            for at, group in enumerate(self._reader.resolve(saved.get("groups", []))):
                found.update({f"{name}.param_groups.{at}.{key}": _saved(value) for key, value in group.items()})
        return found

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP's own. The checkpoint is the one that was given."""

    def read_metadata(self, *_: Any, **__: Any) -> Metadata:
        tensors: dict[str, Any] = {}
        for name in [*self._found.tensors, *self._reader.aliases]:
            described = self._found.describe(self._reader.name_of(name))
            size = torch.Size(described.shape)
            tensors[name] = TensorStorageMetadata(TensorProperties(dtype=BY_NAME[described.dtype]), size,
                                                  [ChunkStorageMetadata(torch.Size([0] * len(size)), size)])
        values = {name: BytesStorageMetadata() for name in self._bytes}
        return Metadata({**tensors, **values}, storage_meta=StorageMeta())

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any, **__: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            name = item.storage_index.fqn
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(self._bytes[name]))
                continue
            target = planner.resolve_tensor(item).detach()
            described = self._found.describe(self._reader.name_of(name))
            if target.dtype != BY_NAME[described.dtype]:
                raise errors.Changed(f"{name} was saved as {described.dtype}; now it is {target.dtype}")
            box = torch.empty(tuple(item.lengths), dtype=target.dtype)
            if box.numel():
                owner = self._rank if self._rank in described.ranks else described.ranks[0]
                self._found.of(owner).read_into(described.name, box.data_ptr(), box.numel() * box.element_size(),
                                                start=tuple(item.storage_offsets), extent=tuple(item.lengths))
            with torch.no_grad():
                target.copy_(box.view(target.shape))
            planner.commit_tensor(item, target)
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return os.path.exists(os.path.join(checkpoint_id, "manifest.json"))


class StorageWriter(dcp.StorageWriter):
    """Hands DCP's save plans to a Session.

    session  an open one
    total    steps in all
    start    finished steps, after a restart
    room     bytes beyond what values that are no tensors take in the first save

    Call save() after each step; dcp.save with this writer is its own business, when something is due, and once at the first step, to
    learn what there is. Each tensor is stored once, by the rank that DCP's plan gives it to. Returning, it has copied all. Several
    boxes of one tensor on one rank are refused.
    """

    def __init__(self, session: Session, total: int, start: int = 0, room: int = 65536) -> None:
        self._session, self._total, self._finished, self._room = session, total, start, room
        self._rows: list[Any] | None = None
        self._due = NOTHING

    def save(self, state_dict: dict[str, Any], finished: int, **more: Any) -> int:
        """Notes that so many steps are finished, and saves if something is due. Returns what was due; after SAVE_AND_EXIT follow
        wait() and the program's end. more: what dcp.save takes."""
        if self._session.alone:
            return NOTHING
        self._finished = finished
        self._due = NOTHING if self._rows is None else self._session.step(finished)
        if self._rows is None or self._due != NOTHING:
            dcp.save(state_dict, storage_writer=self, **more)
        return self._due

    def wait(self, finished: int) -> None:
        """After the last step, or when `session.exit_due`: waits until its save is kept on all ranks."""
        self._session.finish(finished)

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """DCP's own. Cairn's manifest makes the checkpoint."""

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """DCP's own."""

    def set_up_storage_writer(self, is_coordinator: bool, *_: Any, **__: Any) -> None:
        pass

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        return plans

    def _read_plan(self, plan: SavePlan, planner: SavePlanner) -> tuple[list[Any], list[torch.Tensor], dict[str, bytes]]:
        rows, tensors, values = [], [], {}
        names: set[str] = set()
        for item in plan.items:
            data, name = planner.resolve_data(item), short(item.index.fqn)
            if item.type == WriteItemType.BYTE_IO:
                values[item.index.fqn] = data.getvalue()
                continue
            assert item.tensor_data is not None
            if name in names:
                raise errors.Invalid(f"{name}: this rank has several parts of it, and can save one")
            if data.dtype not in BY_DTYPE:
                raise errors.Invalid(f"{name} is {data.dtype}, which can't be saved")
            names.add(name)
            chunk = item.tensor_data.chunk
            rows.append((name, BY_DTYPE[data.dtype], SHARDED, tuple(item.tensor_data.size), 0, tuple(chunk.offsets), tuple(chunk.sizes)))
            tensors.append(data.detach().cpu().contiguous())
        return rows, tensors, values

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        rows, tensors, values = self._read_plan(plan, planner)
        blob = plain.encode(values, "values")
        session = self._session
        if self._rows is None:
            self._rows = rows
            session.layout(rows, 2 * len(blob) + self._room)
            session.ready(self._finished, self._total)
            self._due = session.step(self._finished)
        elif rows != self._rows:
            raise errors.Changed("the plan isn't that of the first save: names, dtypes, shapes and boxes have to stay")
        if self._due != NOTHING and session.begin(self._finished, [tensor.data_ptr() for tensor in tensors]):
            session.blob(BLOB, blob)
            session.start()
            session.copied()
        return _done([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return False
