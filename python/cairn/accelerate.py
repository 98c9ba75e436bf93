"""Cairn for Accelerate: its objects as a state, in a loop of your own.

    accelerator = Accelerator()
    model, optimizer, scheduler = accelerator.prepare(model, optimizer, scheduler)      # not the loader
    loader = DataLoader(dataset, batch_sampler=cairn.torch.Batches(len(dataset), batch=64, seed=1))
    with cairn.Session.open() as session:
        for step, (x, y) in cairn.accelerate.steps(accelerator, session, total=1000, loader=loader):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model(x), y))
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

Without Cairn it is a loop over the loader.
"""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import accelerate
from accelerate.utils import send_to_device

from .session import Session
from .torch import loop
from .torch.guest import Plain
from .torch.state import State

__all__ = ["state_of", "steps"]


def state_of(accelerator: accelerate.Accelerator, extra: dict[str, Any] | None = None) -> State:
    """The state of all that an Accelerator has prepared, and of what was registered by register_for_checkpointing().

    A step is a batch. With gradient accumulation a copy may fall between two of one update: gradients are saved then, and the place in
    it. DeepSpeed, Megatron and FSDP by plugin are refused: they keep parts of the state for themselves.
    """
    if str(accelerator.distributed_type.value).upper() in ("DEEPSPEED", "MEGATRON_LM", "FSDP"):
        raise ValueError(f"cairn.accelerate: {accelerator.distributed_type.value} isn't supported; cairn.torch.State takes fully_shard's models")

    def get() -> dict[str, Any]:
        return {"step": accelerator.step}

    def put(saved: dict[str, Any]) -> None:
        accelerator.step = saved["step"]

    named = {"accelerator": Plain(get, put), **{f"registered.{at}": each for at, each in enumerate(accelerator._custom_objects)},
             **(extra or {})}
    return State(model=list(accelerator._models), optimizer=list(accelerator._optimizers), scheduler=list(accelerator._schedulers),
                 scaler=accelerator.scaler, extra=named, gradients=accelerator.gradient_accumulation_steps > 1)


def steps(accelerator: accelerate.Accelerator, session: Session, total: int, loader: Any, *, extra: dict[str, Any] | None = None,
          **more: Any) -> Iterator[Any]:
    """cairn.torch.steps over all that the Accelerator has prepared; batches come on its device.

    loader   has cairn.torch.Batches as batch_sampler, and was not prepared: Accelerate would cut each process's part once more
    total    batches in all; one is a step
    extra    more to save, as State's
    more     what cairn.torch.steps takes

    Exact is all that State is; from three processes on with cairn.torch.ordered(model), after prepare(). `accelerator.skip_first_batches`, `save_state` and `load_state` have nothing to do.
    """
    if hasattr(loader, "base_dataloader"):
        raise ValueError("cairn.accelerate: the loader was prepared; leave it out of accelerator.prepare()")
    state = state_of(accelerator, extra)
    for step, batch in loop.steps(session, state, total, loader, **more):
        yield step, send_to_device(batch, accelerator.device)
