"""Writes the tensors of a checkpoint of Cairn's to a safetensors file.

    python -m cairn export CHECKPOINT DEST.safetensors [--part model] [--rank 0]

CHECKPOINT is a checkpoint's folder, as `cairn ckpt ls JOB -o wide` tells it; no coordinator is needed. Tensors that were sharded are put
together. Of those that each rank had of its own (batch norm's buffers) the file gets rank 0's, or those of `--rank`. Tied tensors are
written under each of their names. `--part model` takes only what is below `model.` and leaves this beginning off, so that the file has the
names of the module's state_dict:

    model.load_state_dict(safetensors.torch.load_file("model.safetensors"))

Every byte is checked as it is read. Plain values (learning rates, random states) are no tensors, and aren't in the file.
"""
from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from .. import plain
from ..stored import PRIVATE, Stored, load
from .pickles import Refused
from .safetensors import write

BLOB = "cairn.torch"


def _tied(stored: Stored, rank: int) -> dict[str, str]:
    """Other names of tensors that cairn.torch.State has saved once."""
    if (BLOB, rank) not in stored.blobs:
        return {}
    saved: Any = plain.decode(stored.blob(BLOB, rank), lambda value: None)
    return dict(saved.get("aliases", {})) if isinstance(saved, dict) else {}


def export(source: str | os.PathLike[str], dest: str | os.PathLike[str], part: str | None = None, rank: int = 0) -> tuple[int, int]:
    """Writes the file; returns how many tensors and bytes it has. Needs neither PyTorch nor safetensors.

    part     only what is below this name, without it
    rank     whose private tensors
    Raises   cairn.Error where the checkpoint can't be read; cairn.convert.Refused, a ValueError; OSError. There is no file then.

    At most one tensor is in memory at a time.
    """
    if not Path(source, "manifest.json").is_file():
        raise Refused(f"{source} is no checkpoint of Cairn's: a folder that has a manifest.json")
    stored = load(source).of(rank)
    if not 0 <= rank < stored.ranks:
        raise Refused(f"{source} has ranks 0 to {stored.ranks - 1}, and no rank {rank}")
    names = {name: name for name, each in stored.tensors.items() if each.kind != PRIVATE or rank in each.ranks}
    names.update({tied: name for tied, name in _tied(stored, rank).items() if name in names})
    if part is not None:
        names = {name.removeprefix(part + "."): saved for name, saved in names.items() if name.startswith(part + ".")}
    if not names:
        raise Refused(f"{source} has no tensors" + (f" below {part}" if part else ""))
    order = {name: stored.describe(names[name]) for name in sorted(names)}
    write(Path(dest), {name: (each.dtype, each.shape) for name, each in order.items()},
          ((name, stored.raw(each.name)) for name, each in order.items()))
    return len(order), Path(dest).stat().st_size
