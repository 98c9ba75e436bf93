"""Cairn for Lightning: a callback.

    batches = cairn.torch.Batches(len(dataset), batch=64, seed=1)
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=2)
    trainer = lightning.Trainer(max_epochs=3, use_distributed_sampler=False, callbacks=[cairn.lightning.Callback(batches)])
    trainer.fit(model, loader)

Under Cairn a run that was killed goes on with the step after the newest copy, at the same place of its epoch. Without Cairn the
callback does nothing.
"""
from __future__ import annotations

from typing import Any

import lightning.pytorch
import torch

from .session import Session
from .torch.data import Batches
from .torch.guest import ROOM, Guest, GuestState, Plain, order

__all__ = ["Callback"]


class Callback(lightning.pytorch.Callback):
    """Saves and restores a Lightning run through Cairn.

    batches  the cairn.torch.Batches that the loader has as batch_sampler. Without it the loader begins anew after a restart, as
             Lightning's own does: another order of data. With several processes, Trainer(use_distributed_sampler=False).
    session  a session that is open already; None: one is opened.
    ordered  DistributedDataParallel sums gradients in the order of the ranks: equal bits after a restart of three processes or more.

    Exact are weights, optimizers, schedulers, the scaler of mixed precision, random states, loops and the states of other callbacks,
    with gradient accumulation, validation and several epochs. What a LightningModule keeps beside its parameters and buffers
    (on_save_checkpoint) isn't saved; nor are sums of metrics of the epoch under way: those logged on_epoch are of the steps since the
    restart. Manual optimization is refused: how many steps there will be isn't known. Lightning's own handler of SIGTERM, which ends a
    run in the middle with code 0, is left out under Cairn: the library saves then. Where Cairn has a state, `ckpt_path` is ignored.
    A run that ends before its last step (EarlyStopping, should_stop, max_time) ends the job: what is saved then is its result.
    """

    def __init__(self, batches: Batches | None = None, *, session: Session | None = None, ordered: bool = False) -> None:
        super().__init__()
        self._guest = Guest(session, batches)
        self._ordered = ordered

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        if self._ordered:
            order(trainer.strategy.model)
        guest = self._guest
        if guest.idle:
            return
        if not pl_module.automatic_optimization:
            raise ValueError("cairn.lightning.Callback: manual optimization isn't supported; use cairn.torch.State and Session yourself")
        connector = trainer._accelerator_connector
        if guest.batches is not None and trainer.world_size > 1 and connector.use_distributed_sampler:
            raise ValueError("cairn.lightning.Callback: Trainer(use_distributed_sampler=False) is needed: cairn.torch.Batches has each "
                             "process's part already, and Lightning would replace it")
        trainer._signal_connector.register_signal_handlers = lambda: None
        extra = {"loops": Plain(trainer.fit_loop.state_dict, trainer.fit_loop.load_state_dict), "callbacks": self._callbacks(trainer)}
        data = trainer.datamodule
        if data is not None:
            extra["datamodule"] = Plain(data.state_dict, data.load_state_dict)
        state = GuestState(model=trainer.strategy.model, optimizer=list(trainer.optimizers), extra=extra, room=ROOM,
                      scheduler=[each.scheduler for each in trainer.lr_scheduler_configs],
                      scaler=getattr(trainer.precision_plugin, "scaler", None))
        total = int(trainer.estimated_stepping_batches)
        if guest.begin(state, total):
            trainer._checkpoint_connector._loaded_checkpoint = {}
            if guest.batches is not None:
                guest.batches.start = self._batch(trainer)

    @staticmethod
    def _batch(trainer: Any) -> int:
        """The number, over all epochs, of the batch that is to be trained on next; after a restart."""
        return int(trainer.fit_loop.epoch_loop.batch_progress.total.completed)

    @staticmethod
    def _callbacks(trainer: Any) -> Plain:
        def get() -> dict[str, Any]:
            return {each.state_key: each.state_dict() for each in trainer.callbacks}

        def put(saved: dict[str, Any]) -> None:
            for each in trainer.callbacks:
                if saved.get(each.state_key):
                    each.load_state_dict(saved[each.state_key])
        return Plain(get, put)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """The iterator of the second epoch, and of later ones, is made after this."""
        if self._guest.batches is not None:
            self._guest.batches.start = self._batch(trainer)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if not self._guest.idle and batch_idx % trainer.accumulate_grad_batches == 0:
            self._guest.before(trainer.global_step, self._batch(trainer))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        if not self._guest.idle and isinstance(loss, torch.Tensor) and trainer.global_step % trainer.log_every_n_steps == 0:
            self._guest.session.log({"loss": loss}, trainer.global_step)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        names = [type(each).__name__ for each in trainer.callbacks if getattr(each, "stopped_epoch", 0)]
        self._guest.end(trainer.global_step, f"fit() was ended by {', '.join(names) or 'should_stop'}")

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        if not isinstance(exception, (SystemExit, KeyboardInterrupt)):
            self._guest.session.fail(f"{type(exception).__name__}: {exception}"[:1000])
