"""Takes over checkpoints of others (not Cairn's: `python -m cairn export`) as safetensors files, without executing anything that they contain.

    python -m cairn import SOURCE DEST.safetensors [--part model]

SOURCE is a file of torch.save (`.pt`, `.pth`), a folder of torch.distributed.checkpoint, or one of torch_checkpointing, saved by any
number of ranks. Tensors in nested dictionaries get names with dots: `model.layer.weight`. `--part model` takes only those below
`model.` and leaves this beginning off: a file that the job file's `model.weights` can name. Values that are no tensors are named and
left out.

Such files are pickles, which may run any program when they are loaded. Here they are only read: see cairn.convert.pickles.
"""
from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from .pickles import Refused
from .safetensors import write
from .sources import Found, open_dcp, open_file, open_ranks

__all__ = ["Converted", "Refused", "convert"]


class Converted(NamedTuple):
    """What came of a conversion."""

    tensors: int
    bytes: int
    left_out: list[str]  # names of what is no tensor


def _open(source: Path) -> Found:
    if not source.is_dir():
        return open_file(source)
    if (source / "manifest.json").is_file():
        raise Refused(f"{source} is a checkpoint of Cairn's: python -m cairn export")
    return open_dcp(source) if (source / ".metadata").exists() else open_ranks(source)


def convert(source: str | os.PathLike[str], dest: str | os.PathLike[str], part: str | None = None) -> Converted:
    """Writes the tensors of a checkpoint of others to a safetensors file; needs neither PyTorch nor safetensors.

    part     only what is below this name, without it
    Raises   cairn.convert.Refused, a ValueError, with what was found and where; OSError. There is no file then.

    At most one tensor is in memory at a time.
    """
    tensors, others = _open(Path(source))
    if part is not None:
        tensors = {name.removeprefix(part + "."): each for name, each in tensors.items() if name.startswith(part + ".")}
        others = [name for name in others if name.startswith(part + ".")]
    if not tensors:
        raise Refused(f"{source} has no tensors" + (f" below {part}" if part else ""))
    order = sorted(tensors)
    write(Path(dest), {name: (tensors[name].dtype, tensors[name].size) for name in order}, ((name, tensors[name].read()) for name in order))
    return Converted(len(order), Path(dest).stat().st_size, others)
