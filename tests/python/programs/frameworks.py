"""Trains with a framework: frameworks.py lightning|transformers|accelerate|keras KILL ACCUMULATE [STOP]. At step KILL the last rank is gone, if KILL_MARK
names a file, which isn't there yet. SLOW is how many seconds each batch takes longer. Rank 0 prints a digest of weights and optimizer. With
CAIRN_FAKE Cairn is played. STOP is a step after which it ends by itself."""
import hashlib
import os
import signal
import sys
import time
from pathlib import Path

if "CAIRN_FAKE" in os.environ:
    import fake_cairn  # noqa: F401
import torch

import cairn
import cairn.torch
from samples import Data, Tokens, gpt2, loss_of, net

TOTAL, SIZE, BATCH = 22, 96, 12
KILL, ACCUMULATE = int(sys.argv[2]), int(sys.argv[3])
STOP = int(sys.argv[4]) if len(sys.argv) > 4 else 0
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def may_end(step):
    time.sleep(float(os.environ.get("SLOW", "0")))
    mark = os.environ.get("KILL_MARK")
    if step == KILL and RANK == WORLD - 1 and mark and not Path(mark).exists():
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)


def say(module, optimizer):
    found = hashlib.sha256()
    for tensor in [*module.state_dict().values(), *(each for state in optimizer.state_dict()["state"].values() for each in state.values())]:
        if isinstance(tensor, torch.Tensor):
            found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    if RANK == 0:
        print("digest", found.hexdigest())


def with_lightning():
    import lightning
    import cairn.lightning

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(7)
            self.net = net()

        def training_step(self, batch, at):
            may_end(self.trainer.fit_loop.epoch_loop.total_batch_idx)
            return loss_of(self.net, batch)

        def on_train_batch_end(self, *_):
            if self.trainer.global_step == STOP:
                self.trainer.should_stop = True

        def validation_step(self, batch, at):
            self.log("eval", loss_of(self.net, batch))

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "eval"}}

    module = Module()
    batches = cairn.torch.Batches(SIZE, BATCH, 5)
    loader = torch.utils.data.DataLoader(Data(SIZE), batch_sampler=batches)
    torch.manual_seed(100 + RANK)
    trainer = lightning.Trainer(accelerator="cpu", devices=WORLD, strategy="ddp" if WORLD > 1 else "auto", max_epochs=3, logger=False,
                                enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
                                accumulate_grad_batches=ACCUMULATE, use_distributed_sampler=False,
                                callbacks=[cairn.lightning.Callback(batches, ordered=WORLD > 2)])
    trainer.fit(module, loader, torch.utils.data.DataLoader(Data(SIZE), batch_size=32))
    say(module.net, trainer.optimizers[0])


def with_transformers():
    from transformers import Trainer, TrainerCallback, TrainingArguments
    import cairn.transformers

    class End(TrainerCallback):
        def on_substep_end(self, args, state, control, **kwargs):
            may_end(state.global_step)

        def on_pre_optimizer_step(self, args, state, control, **kwargs):
            may_end(state.global_step)

        def on_step_end(self, args, state, control, **kwargs):
            control.should_training_stop = control.should_training_stop or state.global_step == STOP

    torch.manual_seed(7)
    model = gpt2()
    arguments = TrainingArguments("out", use_cpu=True, ddp_backend="gloo", max_steps=TOTAL, save_strategy="no", report_to=[], disable_tqdm=True,
                                  per_device_train_batch_size=BATCH // WORLD // ACCUMULATE, gradient_accumulation_steps=ACCUMULATE,
                                  eval_strategy="steps", eval_steps=4, logging_steps=3)
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(SIZE), eval_dataset=Tokens(SIZE), callbacks=[End()])
    trainer.add_callback(cairn.transformers.Callback(trainer, ordered=WORLD > 2))
    trainer.train()
    say(model, getattr(trainer.optimizer, "optimizer", trainer.optimizer))


def with_accelerate():
    from accelerate import Accelerator
    import cairn.accelerate
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    torch.manual_seed(7)
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    model, optimizer, scheduler = accelerator.prepare(module, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 5, 0.5))
    cairn.torch.ordered(model)
    loader = torch.utils.data.DataLoader(Data(SIZE), batch_sampler=cairn.torch.Batches(SIZE, BATCH, 5))
    torch.manual_seed(100 + RANK)
    with cairn.Session.open() as session:
        for step, batch in cairn.accelerate.steps(accelerator, session, TOTAL, loader):
            with accelerator.accumulate(model):
                accelerator.backward(loss_of(model, batch))
                may_end(step)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            if step + 1 == STOP:
                session.stop("it is good enough")
    say(module, optimizer)


def with_keras():
    import keras
    import cairn.keras

    class End(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            may_end(int(self.model.optimizer.iterations))
            if int(self.model.optimizer.iterations) == STOP:
                self.model.stop_training = True

    keras.utils.set_random_seed(7)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64), keras.layers.BatchNormalization(), keras.layers.ReLU(),
                              keras.layers.Dropout(0.3), keras.layers.GaussianNoise(0.1), keras.layers.Dense(4)])
    model.compile(keras.optimizers.AdamW(keras.optimizers.schedules.CosineDecay(0.01, 24)), metrics=["accuracy"],
                  loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    batches = cairn.torch.Batches(SIZE, BATCH, 5)
    history = model.fit(torch.utils.data.DataLoader(Data(SIZE), batch_sampler=batches), epochs=3, verbose=0,
                        validation_data=torch.utils.data.DataLoader(Data(SIZE), batch_size=32), callbacks=[End(), cairn.keras.Callback(batches)])
    values = [torch.as_tensor(each) for each in (*model.get_weights(), *(each.numpy() for each in model.optimizer.variables))]
    logs = repr([values[-1] for _, values in sorted(history.history.items())])
    print("digest", hashlib.sha256(b"".join(each.numpy().tobytes() for each in values) + logs.encode()).hexdigest())


torch.set_num_threads(1)
os.environ["KERAS_BACKEND"] = "torch"
{"lightning": with_lightning, "transformers": with_transformers, "accelerate": with_accelerate, "keras": with_keras}[sys.argv[1]]()
if torch.distributed.is_initialized():
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
