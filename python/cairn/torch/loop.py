"""The loop: what `cairn.torch.steps` does."""
from __future__ import annotations

import sys
import warnings
from typing import Any, Callable, Iterator, Optional

import torch

from ..session import Session
from . import randoms
from .data import Batches
from .gather import unwrapped
from .state import State


def settle(model: torch.nn.Module, run: Callable[[], Any], times: int = 2) -> None:
    """Lets DistributedDataParallel settle its buckets: calls `run`, a forward and a backward, twice, and undoes what they changed.

        cairn.torch.settle(model, lambda: criterion(model(x), y).backward())

    DistributedDataParallel adds gradients in buckets, which it arranges anew after the first backward. From three processes on, sums in
    other buckets have other bits: the first step after a restart would differ from what it is without one. All ranks call this, before the
    state is restored, with a batch of the usual shape. Buffers, random states and gradients are as before; hooks of the program's own are
    called. The optimizer must not make a step in it.
    """
    before = randoms.capture()
    buffers = [(buffer, buffer.detach().clone()) for buffer in unwrapped(model).buffers()]
    gradients = [(parameter, parameter.grad) for parameter in model.parameters()]
    for parameter, _ in gradients:
        parameter.grad = None
    for _ in range(times):
        run()
        for parameter, _ in gradients:
            parameter.grad = None
    with torch.no_grad():
        for buffer, value in buffers:
            buffer.copy_(value)
    for parameter, gradient in gradients:
        parameter.grad = gradient
    randoms.restore(before)


def _unsettled(state: State, session: Session) -> bool:
    return session.size > 2 and any(isinstance(model, torch.nn.parallel.DistributedDataParallel) and not _has_settled(model)
                                    for _, model in state.models)


def _has_settled(model: Any) -> bool:
    try:
        return bool(model._get_ddp_logging_data().get("has_rebuilt_buckets"))
    except (AttributeError, RuntimeError):
        return False


def _batches_of(loader: Any) -> Optional[Batches]:
    """The Batches that a loader draws from, if it does."""
    for holder in (loader, getattr(loader, "batch_sampler", None), getattr(loader, "sampler", None)):
        if isinstance(holder, Batches):
            return holder
    inner = getattr(loader, "base_dataloader", None)  # of Accelerate
    return _batches_of(inner) if inner is not None else None


def _batches(loader: Any, start: int, total: int) -> Iterator[Any]:
    """An iterator whose first batch is that of step `start`."""
    keyed = _batches_of(loader)
    if keyed is not None:
        keyed.start, keyed.stop = start, total
        return iter(loader)
    if start:
        warnings.warn("cairn: this loader begins anew, with other data than without the restart: DataLoader(batch_sampler="
                      "cairn.torch.Batches(…)) begins where it has to", stacklevel=3)
    return _endless(loader)


def _endless(loader: Any) -> Iterator[Any]:
    """Epoch after epoch. The first iterator is made at once: a DataLoader's draws a random number."""
    first = iter(loader)

    def batches() -> Iterator[Any]:
        found = False
        for batch in first:
            found = True
            yield batch
        while found:
            yield from loader
        raise ValueError("the loader has no batch")
    return batches()


def _settle(state: State, session: Session, total: int, loader: Any, run: Optional[Callable[..., Any]]) -> None:
    """Before a state is restored: its buckets, or a warning."""
    if run is None:
        if _unsettled(state, session):
            warnings.warn("cairn: with three processes or more, the first step after a restart adds gradients in another order than "
                          "without one. steps(…, settle=lambda batch: loss_of(batch).backward()) makes it exact.", stacklevel=4)
        return
    batch: tuple[Any, ...] = ()
    if loader is not None:
        iterator = _batches(loader, 0, total)
        batch = (next(iterator),)
        del iterator
    for _, model in state.models:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            settle(model, lambda: run(*batch))


def steps(session: Session, state: State, total: int, loader: Any = None, *, per_epoch: int = 0,
          settle: Optional[Callable[..., Any]] = None, leave: bool = True) -> Iterator[Any]:
    """The steps that are left of `total`, each with its batch: `(step, batch)`, or `step` without a loader. step is how many steps are
    finished: 0 for the first.

        for step, (x, y) in cairn.torch.steps(session, state, total=1000, loader=loader):
            ...                                     # forward, backward, optimizer.step()

    Before the first step the newest state is restored, if there is one. After each step, when the loop asks for the next, what is due is
    saved; after the last it waits until that is kept on all ranks. A loop that is left by `break` saves nothing of the step it is in.

    loader: best a DataLoader with `Batches`. Any other begins anew after a restart, which is said. settle: a function of a batch that makes
    a forward and a backward; on a restart it is called twice before the state is restored (help(cairn.torch.settle)). It is needed for
    equal bits with DistributedDataParallel on three processes or more. per_epoch: steps of an epoch, to show.

    `session.stop(reason)` ends the loop with the step under way, and with it the job: early stopping, for example.

    When the job is paused, or this process has to leave, the state is saved and the process ends with code 0, by SystemExit. With
    leave=False the loop ends instead, and `session.exit_due` tells why.
    """
    if session.has_state:
        _settle(state, session, total, loader, settle)
    start = state.restore(session, total, per_epoch, random_too=False)
    batches = None if loader is None else _batches(loader, start, total)
    state.restore_random()  # after the loader's iterator, which draws from it
    finished = start
    if start >= total and not session.alone:
        state.step(session, finished)
    while finished < total:
        if batches is None:
            yield finished
        else:
            yield finished, next(batches)
        finished += 1
        if session.stopping is not None and finished < total:
            session.last(finished, session.stopping)
            total = finished
        state.step(session, finished)
        if session.exit_due and finished < total and state.finish(session, finished):
            del batches
            if leave:
                sys.exit(0)
            return
    state.finish(session, finished)
