"""A stored state, put into the program's objects."""
from __future__ import annotations

import collections
import os
from typing import Any, Iterable, Iterator, Mapping, Union

import torch

from .. import errors, plain
from ..stored import PRIVATE, Stored
from ..stored import load as load_stored
from .gather import (BY_NAME, Gathered, Reference, box_of, decode_hook, identity, is_dtensor, is_row_major, parameters_of, plain_key, short,
                     unwrapped)

BLOB = "cairn.torch"


class Reader:
    """Reads tensors of a stored state as one rank needs them."""

    def __init__(self, found: Stored, rank: int) -> None:
        """rank: who reads. Where that rank saved nothing, it gets what another one did."""
        self.found = found
        self.owner = rank if rank < found.ranks else rank % max(found.ranks, 1)
        self.own = rank < found.ranks
        self.rest: dict[str, Any] = {}
        if (BLOB, self.owner) in found.blobs:
            self.rest = plain.decode(found.blob(BLOB, self.owner), decode_hook)
            if not isinstance(self.rest, dict) or self.rest.get("version") != 1:
                raise errors.Version("this state was saved by another version of cairn.torch")
        self.aliases: dict[str, str] = self.rest.get("aliases", {})

    def name_of(self, name: str) -> str:
        """The name under which a tensor was saved: tied ones have one of several."""
        name = short(name)
        name = name if name in self.found.tensors else self.aliases.get(name, name)
        self.found.describe(name)
        return name

    def into(self, name: str, target: torch.Tensor) -> None:
        """Reads into a tensor's memory; of a DTensor the box that this rank has."""
        name = self.name_of(name)
        described = self.found.describe(name)
        if described.shape != tuple(target.shape) or BY_NAME[described.dtype] != target.dtype:
            raise errors.Changed(f"{name} was saved as {described.dtype} of {described.shape}; now it is "
                                 f"{str(target.dtype).removeprefix('torch.')} of {tuple(target.shape)}")
        start = extent = None
        local = target.detach()
        if is_dtensor(target):
            local = target.to_local().detach()
            if any(not placement.is_replicate() for placement in target.placements):
                start, extent = box_of(target, name)
        if local.numel() == 0:
            return
        whole = local if is_row_major(local) else torch.empty(tuple(local.shape), dtype=local.dtype)
        owner = self.owner if described.kind == PRIVATE and self.owner in described.ranks else described.ranks[0]
        self.found.of(owner).read_into(name, whole.data_ptr(), whole.numel() * whole.element_size(), start=start, extent=extent)
        if whole is not local:
            with torch.no_grad():
                local.copy_(whole)

    def whole(self, name: str) -> torch.Tensor:
        """A tensor of its own, on the CPU."""
        described = self.found.describe(self.name_of(name))
        made = torch.empty(described.shape, dtype=BY_NAME[described.dtype])
        self.into(name, made)
        return made

    def like(self, name: str, parameter: torch.Tensor) -> torch.Tensor:
        """A tensor that lies as a parameter does: sharded as it is, if it has its shape."""
        described = self.found.describe(self.name_of(name))
        if not is_dtensor(parameter) or described.shape != tuple(parameter.shape):
            return self.whole(name)
        from torch.distributed.tensor import DTensor
        local = torch.empty(tuple(parameter.to_local().shape), dtype=BY_NAME[described.dtype], device=parameter.to_local().device)
        made = DTensor.from_local(local, parameter.device_mesh, parameter.placements, run_check=False, shape=parameter.shape,
                                  stride=parameter.stride())
        self.into(name, made)
        return made

    def resolve(self, tree: Any) -> Any:
        """A tree with its tensors."""
        if isinstance(tree, Reference):
            return self.whole(tree.name)
        if type(tree) in (dict, collections.OrderedDict):
            return type(tree)((key, self.resolve(item)) for key, item in tree.items())
        if type(tree) in (list, tuple):
            return type(tree)(self.resolve(item) for item in tree)
        return tree


def restore_model(module: torch.nn.Module, prefix: str, rest: dict[str, Any], reader: Reader) -> None:
    """Reads a module's tensors in place; each memory once."""
    module = unwrapped(module)
    seen = set()
    keep = []
    for key, value in module.state_dict(keep_vars=True).items():
        if not isinstance(value, torch.Tensor):
            continue
        same = identity(value)
        if same not in seen:
            seen.add(same)
            keep.append(value)
            reader.into(f"{prefix}.{plain_key(key)}", value)
    if rest:
        module.load_state_dict(reader.resolve(rest), strict=False)


def restore_optimizer(optimizer: Any, names: list[str], rest: dict[str, Any], reader: Reader) -> None:
    """Gives an optimizer its state, and its groups' numbers."""
    if "other" in rest:
        optimizer.load_state_dict(reader.resolve(rest["other"]))
        return
    numbers = {name: number for number, name in enumerate(names)}
    parameters = parameters_of(optimizer)
    unknown = sorted({name for group in rest["groups"] for name in group["params"]} - set(numbers))
    if unknown:
        raise errors.Changed(f"the optimizer had a parameter {unknown[0]}, and now it has none ({len(unknown)} such)")
    state: dict[Any, Any] = {}
    for name, values in rest["state"].items():
        number = numbers.get(name)
        state[name if number is None else number] = {
            key: reader.like(value.name, parameters[number]) if number is not None and isinstance(value, Reference) else reader.resolve(value)
            for key, value in values.items()}
    groups = [{**reader.resolve({key: value for key, value in group.items() if key != "params"}),
               "params": [numbers[name] for name in group["params"]]} for group in rest["groups"]]
    optimizer.load_state_dict({"state": state, "param_groups": groups})
    for number, parameter in enumerate(parameters):
        for key, value in state.get(number, {}).items():
            now = optimizer.state[parameter].get(key)
            if isinstance(value, torch.Tensor) and isinstance(now, torch.Tensor) and now.dtype != value.dtype:
                optimizer.state[parameter][key] = value.to(now.device)  # load_state_dict made it the parameter's dtype


def extra_tree(value: Any, place: str, into: Gathered) -> Any:
    """What is saved of an object of the program's own."""
    if isinstance(value, torch.Generator):
        return {"generator": bytes(value.get_state().tolist())}
    if hasattr(value, "bit_generator"):
        return {"numpy": value.bit_generator.state}
    if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
        return {"state": into.tree(value.state_dict(), place, PRIVATE)}
    if isinstance(value, (torch.Tensor, dict, list)):
        return {"value": into.tree(value, place, PRIVATE)}
    raise errors.Invalid(f"{place} is a {type(value).__qualname__}, which can't be set again in place: put it into a dictionary, or an "
                         "object with state_dict and load_state_dict")


def restore_extra(value: Any, place: str, tree: dict[str, Any], reader: Reader) -> None:
    """Sets an object of the program's own, in place."""
    if isinstance(value, torch.Generator):
        value.set_state(torch.frombuffer(bytearray(tree["generator"]), dtype=torch.uint8))
    elif hasattr(value, "bit_generator"):
        value.bit_generator.state = tree["numpy"]
    elif isinstance(value, torch.Tensor):
        reader.into(tree["value"].name, value)
    elif isinstance(value, dict):
        made = reader.resolve(tree["value"])
        value.clear()
        value.update(made)
    elif isinstance(value, list):
        value[:] = reader.resolve(tree["value"])
    else:
        value.load_state_dict(reader.resolve(tree["state"]))


class Tensors(Mapping[str, torch.Tensor]):
    """A stored state as a mapping from names to tensors, each read when it is asked for; tied ones under all their names."""

    def __init__(self, found: Stored, rank: int = 0) -> None:
        """rank: whose private tensors."""
        self.reader = Reader(found, rank)
        self.step, self.ranks, self.job = found.step, found.ranks, found.job

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.reader.found.tensors and name not in self.reader.aliases:
            raise KeyError(name)
        return self.reader.whole(name)

    def __iter__(self) -> Iterator[str]:
        yield from self.reader.found.tensors
        yield from self.reader.aliases

    def __len__(self) -> int:
        return len(self.reader.found.tensors) + len(self.reader.aliases)

    def under(self, prefix: str) -> dict[str, torch.Tensor]:
        """All tensors whose names begin so, without that: `under("model.")` is what load_state_dict takes."""
        return {name.removeprefix(prefix): self[name] for name in self if name.startswith(prefix)}


def load(path: Union[str, "os.PathLike[str]"], rank: int = 0) -> Tensors:
    """Opens a checkpoint's folder; needs no coordinator.

        state = cairn.torch.load("checkpoints/j-0123456789/step-000000000100.g1")
        model.load_state_dict(state.under("model."))
    """
    return Tensors(load_stored(path), rank)


def private_names(found: Stored) -> Iterable[str]:
    """Names of tensors that each rank has of its own."""
    return (name for name, described in found.tensors.items() if described.kind == PRIVATE)
