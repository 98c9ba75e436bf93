"""Cairn for Keras 3 on its PyTorch backend (KERAS_BACKEND=torch): a callback of fit().

    batches = cairn.torch.Batches(len(dataset), batch=64, seed=1)
    loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches)
    model.fit(loader, epochs=3, callbacks=[cairn.keras.Callback(batches)])

Under Cairn a run that was killed goes on with the step after the newest copy, at the same place of its epoch. Without Cairn the
callback gives each epoch its batches, and does nothing else.
"""
from __future__ import annotations

import warnings
from typing import Any

import keras
import torch
from keras.src.backend.common import global_state  # the one place where the seeds of unseeded draws are

from .session import Session
from .torch.data import Batches
from .torch.guest import Guest, GuestState

__all__ = ["Callback"]


class _Variables(torch.nn.Module):
    """Variables of Keras as parameters of a module, which share their memory."""

    def __init__(self, variables: list[Any]) -> None:
        super().__init__()
        for variable in variables:
            name, number = variable.path.replace(".", "_"), 1
            while name in self._parameters:
                number += 1
                name = f"{variable.path.replace('.', '_')}_{number}"
            self.register_parameter(name, torch.nn.Parameter(variable.value.detach(), requires_grad=False))


class Callback(keras.callbacks.Callback):
    """Saves and restores a run of fit() through Cairn. Put it last of the callbacks.

    batches  the cairn.torch.Batches that the DataLoader has as batch_sampler. Arrays are shuffled by Keras, anew after a restart, and are
             refused here: a torch.utils.data.TensorDataset of them has the order of Batches.
    session  a session that is open already; None: one is opened.

    Exact are weights, optimizer, seeds of layers, PyTorch's, NumPy's and Python's random states, metrics of the epoch under way,
    validation, and the order of the data. Not saved is what other callbacks keep for themselves: EarlyStopping and ReduceLROnPlateau
    count anew, the History has the epochs since the restart. In an epoch that was cut the numbers of batches that callbacks get begin
    at 0 again. A run that ends before its last step (EarlyStopping) ends the job. Copies are made between two steps, not beside them. One process: fit() on PyTorch knows no others. A model whose call Keras can't trace is to be built before.
    """

    def __init__(self, batches: Batches, *, session: Session | None = None) -> None:
        super().__init__()
        if keras.backend.backend() != "torch":
            raise ValueError(f"cairn.keras: the backend is {keras.backend.backend()}; KERAS_BACKEND=torch is what this is for")
        self._batches = batches
        self._guest = Guest(session, batches)
        self._epoch = self._steps = self._first = 0  # of the epoch; its first batch, where a restart has cut it
        self._finished = 0
        self._metrics: list[tuple[Any, torch.Tensor]] = []

    def on_train_begin(self, logs: Any = None) -> None:
        guest, model = self._guest, self.model
        self._steps = int(self.params.get("steps") or 0)
        if guest.idle:
            return
        if guest.session.size > 1:
            raise ValueError("cairn.keras: fit() on PyTorch trains in one process; with several use cairn.torch.State and a loop")
        if not self._steps or self._steps != len(self._batches):
            raise ValueError("cairn.keras: an epoch is to have as many steps as Batches: fit() gets the DataLoader with "
                             "batch_sampler=batches, and no steps_per_epoch")
        seeds = global_state.get_global_attribute("global_seed_generator")
        kinds = {"model": model.variables + ([seeds.state] if seeds is not None else []), "metrics": model.metrics_variables,
                 "optimizer": model.optimizer.variables if model.optimizer is not None else []}
        state = GuestState(model={name: _Variables(variables) for name, variables in kinds.items() if variables})
        start = self._finished = guest.begin(state, int(self.params["epochs"]) * self._steps, self._steps)
        if start:
            model._initial_epoch = min(start, guest.total - 1) // self._steps
            self._first = start - model._initial_epoch * self._steps
            self._metrics = [(each, each.value.detach().clone()) for each in model.metrics_variables]

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch
        self._batches.start = epoch * self._steps + self._first
        if self._first:  # the loader ends where the epoch does, which Keras takes for too few data
            self._batches.stop = (epoch + 1) * self._steps
            warnings.filterwarnings("ignore", message="Your input ran out of data", module="keras")
        for variable, value in self._metrics:  # Keras has set them to 0
            variable.assign(value)
        self._metrics = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._guest.idle:
            finished = self._epoch * self._steps + self._first + batch
            self._guest.before(finished, finished)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._finished = self._epoch * self._steps + self._first + batch + 1
        if not self._guest.idle and logs and "loss" in logs and batch % 10 == 0:
            self._guest.session.log({"loss": logs["loss"]}, self._finished)

    def _end_cut_epoch(self) -> None:
        """At the end of a whole epoch Keras makes an iterator that it doesn't use, for which a DataLoader draws a random number."""
        if self._first:
            if not self.model.stop_training:
                torch.empty((), dtype=torch.int64).random_()
            self._first, self._batches.stop = 0, None

    def on_test_begin(self, logs: Any = None) -> None:
        self._end_cut_epoch()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._end_cut_epoch()
        if not self._guest.idle and logs and "val_loss" in logs:
            self._guest.session.log({"eval_loss": logs["val_loss"]}, (epoch + 1) * self._steps)

    def on_train_end(self, logs: Any = None) -> None:
        if not self._guest.idle:
            self._guest.end(self._finished, "fit() was ended by stop_training")
