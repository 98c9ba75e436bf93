"""The tensors of a program's state, with names and boxes, and what else the state holds."""
from __future__ import annotations

import collections
import fnmatch
import hashlib
import sys
from typing import TYPE_CHECKING, Any, Iterable, NamedTuple, Optional, TypeGuard

import torch

from .. import errors, plain
from ..session import COPY_NOW, PRIVATE, REPLICATED, SHARDED
from ..stored import DTYPES

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

BY_DTYPE = {getattr(torch, name): number for name, number in DTYPES.items() if hasattr(torch, name)}
BY_NAME = {name: getattr(torch, name) for name in DTYPES if hasattr(torch, name)}
NAME_MAX = 127
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.")  # of torch.compile and of activation checkpointing


class Piece(NamedTuple):
    """A tensor as this rank has it. local is detached; of a sharded one it is the box."""

    name: str
    local: torch.Tensor
    kind: int
    shape: tuple[int, ...]
    start: Optional[tuple[int, ...]]
    extent: Optional[tuple[int, ...]]
    flags: int
    row_major: bool  # the library can copy from its memory

    def row(self) -> tuple[Any, ...]:
        """What `Session.layout` wants to know; it has to stay the same."""
        return (self.name, BY_DTYPE[self.local.dtype], self.kind, self.shape, self.flags, self.start, self.extent)


def short(name: str) -> str:
    """A name that fits: of a longer one its begin, and a hash of it."""
    if len(name.encode()) <= NAME_MAX:
        return name
    return name.encode()[:90].decode(errors="ignore") + "~" + hashlib.sha256(name.encode()).hexdigest()[:32]


def unwrapped(module: Any) -> Any:
    """The module within DistributedDataParallel, DataParallel and torch.compile's wrapper."""
    while isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)) or hasattr(module, "_orig_mod"):
        module = module._orig_mod if hasattr(module, "_orig_mod") else module.module
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and any(isinstance(part, fsdp.FullyShardedDataParallel) for part in module.modules()):
        raise errors.Invalid("FullyShardedDataParallel (FSDP1) gathers its state by collectives: use torch.distributed.fsdp.fully_shard")
    return module


def plain_key(key: str) -> str:
    """A key of a state dict without what wrappers add to it."""
    for wrapper in WRAPPERS:
        key = key.replace(wrapper, "")
    return key


def is_dtensor(value: Any) -> TypeGuard["DTensor"]:
    tensor = sys.modules.get("torch.distributed.tensor")
    return tensor is not None and isinstance(value, tensor.DTensor)


def box_of(value: Any, name: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Start and extent of a DTensor's local part."""
    from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
    for placement in value.placements:
        if placement.is_partial():
            raise errors.Invalid(f"{name} is a partial DTensor: sums that are not summed yet can't be saved")
    extent, start = compute_local_shape_and_global_offset(value.shape, value.device_mesh, value.placements)
    local = tuple(value.to_local().shape)
    if local != tuple(extent):
        raise errors.Invalid(f"{name}: this rank has {local} of it, and its placements {value.placements} say {tuple(extent)}")
    if 0 in extent:
        start = tuple(0 for _ in extent)  # nothing, wherever
    return tuple(start), tuple(extent)


def is_row_major(local: torch.Tensor) -> bool:
    """Whether its memory holds its elements one after the other, as they are."""
    return local.device.type == "cpu" and local.is_contiguous() and not local.is_conj() and not local.is_neg()


def identity(value: torch.Tensor) -> tuple[Any, ...]:
    """Equal for two tensors that are the same memory, seen the same way: tied weights."""
    local = value.to_local() if is_dtensor(value) else value
    return (local.device, local.data_ptr(), tuple(local.shape), local.stride(), local.dtype) if local.numel() else (id(value),)


class Known(NamedTuple):
    """A tensor that the walk before found: while it is the same there is nothing to look at."""

    value: torch.Tensor
    address: int
    shape: torch.Size
    stride: tuple[int, ...]
    asked: tuple[int, int]  # kind and flags
    same: tuple[Any, ...]
    piece: Piece


class Gathered:
    """What one walk over the state finds: `pieces` in order, `aliases` of tied ones, and trees of the rest."""

    def __init__(self, private: Iterable[str] = (), known: Optional[dict[str, Known]] = None) -> None:
        """private: patterns of names of tensors that differ by rank. known: of the walk before, and for the next one."""
        self._known = {} if known is None else known
        self.pieces: list[Piece] = []
        self.aliases: dict[str, str] = {}
        self._private = tuple(private)
        self._seen: dict[tuple[Any, ...], str] = {}
        self._keep: list[torch.Tensor] = []  # nothing that is seen may be freed meanwhile: addresses are used again

    def add(self, name: str, value: torch.Tensor, kind: int, flags: int = 0) -> str:
        """Adds a tensor; returns the name under which it is saved."""
        before = self._known.get(name)
        if before is not None and before.value is value and before.asked == (kind, flags) and before.shape == value.shape \
                and before.stride == value.stride() and before.address == value.data_ptr() and before.same not in self._seen:
            self._seen[before.same] = before.piece.name
            self.pieces.append(before.piece)
            return before.piece.name
        asked, full, name = (kind, flags), name, short(name)
        check(name, value)
        same = identity(value)
        other = self._seen.get(same)
        if other is not None:
            if other != name:
                self.aliases[name] = other
            return other
        self._seen[same] = name
        self._keep.append(value)
        piece = self._piece(name, value, kind, flags)
        self.pieces.append(piece)
        if piece.kind != SHARDED and not is_dtensor(value):
            self._known[full] = Known(value, value.data_ptr(), value.shape, value.stride(), asked, same, piece)
        return name

    def _piece(self, name: str, value: torch.Tensor, kind: int, flags: int) -> Piece:
        start = extent = None
        local = value.detach()
        if is_dtensor(value):
            if any(not placement.is_replicate() for placement in value.placements):
                kind = SHARDED
                start, extent = box_of(value, name)
            local = value.to_local().detach()
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in self._private):
            if kind == SHARDED:
                raise errors.Invalid(f"{name} is sharded, and can't be private as well")
            kind = PRIVATE
        if kind == PRIVATE:
            flags |= COPY_NOW
        return Piece(name, local, kind, tuple(value.shape), start, extent, flags, is_row_major(local))

    def tree(self, value: Any, place: str, kind: int, flags: int = 0) -> Any:
        """The value with each tensor in it added, and a Reference in its place."""
        if isinstance(value, torch.Tensor):
            return Reference(self.add(place, value, kind, flags))
        if type(value) in (dict, collections.OrderedDict):  # a module's state_dict() is the latter
            return type(value)((key, self.tree(item, f"{place}.{key}", kind, flags)) for key, item in value.items())
        if type(value) in (list, tuple):
            return type(value)(self.tree(item, f"{place}.{at}", kind, flags) for at, item in enumerate(value))
        return value


class Reference(NamedTuple):
    """Stands for a tensor in a tree."""

    name: str


def check(name: str, value: torch.Tensor) -> None:
    """Refuses what can't be saved, by its name."""
    if type(value).__name__ in ("UninitializedParameter", "UninitializedBuffer"):
        raise errors.Invalid(f"{name} has no shape yet: run the lazy module once before")
    if value.layout != torch.strided or value.is_quantized or value.is_nested:
        raise errors.Invalid(f"{name} is sparse, quantized or nested: only dense tensors can be saved")
    if value.device.type == "meta":
        raise errors.Invalid(f"{name} is on the meta device: it has no values")
    if value.dtype not in BY_DTYPE:
        raise errors.Invalid(f"{name} is {value.dtype}, which can't be saved")
    if value.dim() > 8:
        raise errors.Invalid(f"{name} has {value.dim()} dimensions; there can be 8")


def encode_hook(value: Any, place: str) -> Optional[dict[str, Any]]:
    """For plain.encode: references, dtypes, devices, sizes."""
    if isinstance(value, Reference):
        return {plain.TAG: "tensor", "v": value.name}
    if isinstance(value, torch.dtype):
        return {plain.TAG: "torch.dtype", "v": str(value).removeprefix("torch.")}
    if isinstance(value, torch.device):
        return {plain.TAG: "torch.device", "v": str(value)}
    if isinstance(value, torch.Size):
        return {plain.TAG: "torch.Size", "v": list(value)}
    return None


def decode_hook(value: dict[str, Any]) -> Any:
    """For plain.decode: tensors stay References."""
    tag, item = value[plain.TAG], value["v"]
    if tag == "tensor" and isinstance(item, str):
        return Reference(item)
    if tag == "torch.dtype" and item in BY_NAME:
        return BY_NAME[item]
    if tag == "torch.device":
        return torch.device(item)
    if tag == "torch.Size":
        return torch.Size(item)
    raise errors.Corrupt(f"a value of an unknown kind: {tag!r}")


def model_tensors(module: torch.nn.Module, prefix: str, into: Gathered) -> dict[str, Any]:
    """Adds parameters (the same on all ranks, or sharded) and buffers (each rank's). Returns what isn't a tensor."""
    module = unwrapped(module)
    rest = {}
    for key, value in module.state_dict(keep_vars=True).items():
        name = plain_key(key)
        if not isinstance(value, torch.Tensor):
            rest[key] = into.tree(value, f"{prefix}.{name}", PRIVATE)
        else:
            into.add(f"{prefix}.{name}", value, REPLICATED if isinstance(value, torch.nn.Parameter) else PRIVATE)
    return rest


def parameter_names(models: Iterable[tuple[str, torch.nn.Module]], optimizer: Any) -> list[str]:
    """A name for each parameter of the optimizer, by its number in state_dict()."""
    known: dict[int, str] = {}
    models = list(models)
    for prefix, module in models:
        for name, parameter in unwrapped(module).named_parameters():
            known.setdefault(id(parameter), plain_key(name) if len(models) == 1 else f"{prefix}.{plain_key(name)}")
    names = []
    for group_at, group in enumerate(optimizer.param_groups):
        for at, parameter in enumerate(group["params"]):
            names.append(known.get(id(parameter), f"group{group_at}.{at}"))
    return names


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """The optimizer's parameters, by their number in state_dict()."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def optimizer_tensors(optimizer: Any, prefix: str, names: list[str], into: Gathered) -> dict[str, Any]:
    """Adds an optimizer's tensors under the names of their parameters; returns state_dict() with references, keyed by those names."""
    found = optimizer.state_dict()
    if set(found) != {"state", "param_groups"}:
        return {"other": into.tree(found, prefix, PRIVATE)}
    parameters = parameters_of(optimizer)
    state: dict[str, dict[str, Any]] = {}
    for number, values in found["state"].items():
        sharded = isinstance(number, int) and is_dtensor(parameters[number])
        name = names[number] if isinstance(number, int) else str(number)
        state[name] = {}
        for key, value in values.items():
            kind = REPLICATED
            if sharded and isinstance(value, torch.Tensor) and not is_dtensor(value) and value.dim():
                kind = PRIVATE  # an optimizer that knows nothing of shards keeps what its rank has
            state[name][key] = into.tree(value, f"{prefix}.state.{name}.{key}", kind)
    groups = [{**group, "params": [names[number] for number in group["params"]]} for group in found["param_groups"]]
    return {"state": state, "groups": into.tree(groups, f"{prefix}.groups", REPLICATED)}
