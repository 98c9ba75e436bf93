"""Cairn for Transformers' Trainer: a callback.

    trainer = Trainer(model=model, args=arguments, train_dataset=dataset)
    trainer.add_callback(cairn.transformers.Callback(trainer))
    trainer.train()

Under Cairn a run that was killed goes on with the step after the newest copy. Without Cairn the callback does nothing.
"""
from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from .session import Session
from .torch.guest import ROOM, Guest, GuestState, Plain, order
from .torch.restoring import Reader

__all__ = ["Callback"]


class Callback(TrainerCallback):
    """Saves and restores a run of transformers.Trainer through Cairn.

    trainer  the Trainer that it is added to; its train() finds Cairn's state, and prefers it to `resume_from_checkpoint`.
    session  a session that is open already; None: one is opened.
    ordered  DistributedDataParallel sums gradients in the order of the ranks: equal bits after a restart of three processes or more.

    Exact are weights, optimizer, scheduler, scaler, random states, the order of data and what is evaluated and saved when, with gradient
    accumulation and any number of epochs. The order is the Trainer's own: a function of seed and epoch, so passed-over batches are
    drawn as indices and not read. Not exact: random numbers that a dataset or a collator draws (masks, augmentations), since batches
    are read one ahead; cairn.torch.seeded makes those of a dataset functions of the sample. Nor datasets without a length, another number of processes (the Trainer counts batches, not samples), and the mean
    loss that is logged, which is over the steps since the restart. FSDP and DeepSpeed by Accelerate are not supported.
    A run that ends before its last step (EarlyStoppingCallback) ends the job: what is saved then is its result.
    """

    def __init__(self, trainer: Any, *, session: Session | None = None, ordered: bool = False) -> None:
        self._trainer, self._ordered = trainer, ordered
        self._guest = Guest(session, None)
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if not self._guest.idle:
            self._own_train, trainer.train = trainer.train, self._train

    def _train(self, resume_from_checkpoint: Any = None, **more: Any) -> Any:
        """Trainer.train(): where there is a state of Cairn's, the Trainer is led through its own way of resuming, without its files."""
        session, trainer = self._guest.session, self._trainer
        found = session.restore()
        if found is None:
            return self._own_train(resume_from_checkpoint=resume_from_checkpoint, **more)
        saved = Reader(found, session.rank).rest["extra"]["extra.trainer"]["state"]
        with tempfile.TemporaryDirectory(prefix="cairn-") as folder:
            Path(folder, "trainer_state.json").write_text(saved["json"], encoding="utf-8")
            for name in ("_load_from_checkpoint", "_load_optimizer_and_scheduler", "_load_scaler", "_load_rng_state"):
                if not hasattr(trainer, name):
                    raise RuntimeError(f"cairn.transformers: this version of Transformers has no Trainer.{name}")
                setattr(trainer, name, lambda *_, **__: None)
            return self._own_train(resume_from_checkpoint=folder, **more)

    def _json(self) -> dict[str, Any]:
        """trainer_state.json, as a checkpoint of the Trainer has it."""
        state, handler = self._trainer.state, self._trainer.callback_handler
        for each in [*handler.callbacks, self._trainer.control]:
            if isinstance(each, ExportableState):
                name, value = type(each).__name__, each.state()
                kept = state.stateful_callbacks.get(name)
                if isinstance(kept, list):
                    kept.append(value)
                else:
                    state.stateful_callbacks[name] = value
        from dataclasses import asdict
        return {"json": json.dumps(asdict(state), sort_keys=True)}

    def on_train_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        trainer, guest = self._trainer, self._guest
        if self._ordered:
            order(trainer.model_wrapped)
        if guest.idle:
            return
        saved = GuestState(model=trainer.model_wrapped, optimizer=trainer.optimizer, scheduler=trainer.lr_scheduler,
                      scaler=getattr(trainer.accelerator, "scaler", None), room=ROOM,
                      extra={"trainer": Plain(self._json, lambda _: None)})
        guest.batches = True  # type: ignore[assignment]  # the Trainer passes over batches itself
        guest.begin(saved, int(state.max_steps))

    def on_step_begin(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        if not self._guest.idle:
            self._guest.before(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any] | None = None, **objects: Any) -> None:
        names = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm", "eval_loss": "eval_loss", "eval_accuracy": "eval_accuracy"}
        if not self._guest.idle and logs:
            self._guest.session.log({names[name]: value for name, value in logs.items() if name in names}, state.global_step)

    def on_train_end(self, args: Any, state: Any, control: Any, **objects: Any) -> None:
        self._guest.end(state.global_step, "train() was ended by should_training_stop")
