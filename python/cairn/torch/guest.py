"""What the callbacks for others' training loops have in common."""
from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch

from .. import plain
from ..session import Session
from . import randoms
from .data import Batches
from .gather import encode_hook
from .ordered import ordered
from .state import State

ROOM = 4 << 20  # for plain values of a loop that grow: histories of metrics


class Plain:
    """An object with state_dict and load_state_dict, of two functions."""

    def __init__(self, get: Callable[[], dict[str, Any]], put: Callable[[dict[str, Any]], None]) -> None:
        self.state_dict, self.load_state_dict = get, put


class GuestState(State):
    """A state whose random states are those before the data of the next step were drawn, where that was in this process."""

    drawn: dict[str, Any] | None = None

    def randoms_again(self) -> None:
        """Sets the random states that were read, and keeps them: they may be set once more."""
        kept = self._random
        self.restore_random()
        self._random = kept

    def _blob(self, tree: dict[str, Any]) -> bytes:
        return plain.encode({**tree, "random": self.drawn or randoms.capture()}, "state", encode_hook)


class Guest:
    """A session and a state in a loop of others.

    The loop calls begin() once all objects exist, before() when the batch of the next step is there and nothing of it is computed,
    and end() when all steps are done. What is saved is what is there in before(): evaluations and ends of epochs are behind it.
    """

    def __init__(self, session: Session | None, batches: Batches | None) -> None:
        self.session = Session.open() if session is None else session
        self.batches = batches
        self.state: GuestState | None = None
        self.start = self.finished = self.total = 0
        self._random_too = False
        self._at, self._drawn = -1, {}  # the batch that was asked for last, and the random states before it
        if batches is not None and not self.session.alone:
            self._draw, batches.at = batches.at, self._note  # type: ignore[method-assign]

    @property
    def idle(self) -> bool:
        """Whether there is no Cairn, so that nothing is to be done."""
        return self.session.alone

    def _note(self, at: int) -> list[int]:
        """Batches.at: without loader workers the dataset draws right after it, with them it is called ahead."""
        if self._random_too and self.state is not None:
            self.state.randoms_again()
        self._at, self._drawn = at, randoms.capture()
        return self._draw(at)

    def begin(self, state: GuestState, total: int, per_epoch: int = 0) -> int:
        """Restores; returns the finished steps."""
        self.state, self.total = state, total
        self.start = self.finished = state.restore(self.session, total, per_epoch, random_too=False)
        self._random_too = self.start > 0
        if self.start and self.batches is None:
            warnings.warn("cairn: the data's order after this restart is the framework's; with cairn.torch.Batches it is a function of "
                          "the step", stacklevel=3)
        return self.start

    def before(self, finished: int, batch: int | None = None) -> None:
        """Before a step, when so many are finished: puts random states back after a restart, else saves what is due. batch: the number
        of the step's first one, of Batches. Ends the process with code 0, by SystemExit, when it has to leave."""
        assert self.state is not None
        drawn_here = batch is not None and batch == self._at
        self.state.drawn = self._drawn if drawn_here else None
        if self._random_too:
            self._random_too = False
            if not drawn_here:
                self.state.restore_random()
        if finished <= self.finished:
            return
        self.finished = finished
        self.state.step(self.session, finished)
        if self.session.exit_due and finished < self.total and self.state.finish(self.session, finished):
            self.session.close()
            sys.exit(0)

    def end(self, finished: int, reason: str) -> None:
        """After the last step: saves, and waits until it is kept. reason: why that was before `total`, if it was."""
        if self.state is None or self.idle:
            return
        if 0 < finished < self.total:
            self.session.last(finished, reason)
        if finished > 0:
            self.state.step(self.session, finished)
            self.state.finish(self.session, finished)
        self.state.copied()
        self.session.copied()


def order(model: Any) -> None:
    """Sums gradients in the order of the ranks, where that is DistributedDataParallel's to do."""
    if isinstance(model, torch.nn.parallel.DistributedDataParallel):
        ordered(model)
