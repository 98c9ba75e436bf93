"""A training program of each framework, for bench/pytorch/frameworks.py: frameworks_program.py LOOP alone|cairn. Dropout, shuffled data
and noise in the dataset, as programs have them. Alone it saves every 10 steps and goes on as the framework's documentation says."""
import hashlib
import os
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests/python/programs"))
from samples import Data, Tokens, gpt2, loss_of, net  # noqa: E402

LOOP, UNDER = sys.argv[1], sys.argv[2] == "cairn"
SIZE, BATCH, EPOCHS, EVERY = 160, 8, 3, 10
TOTAL = SIZE // BATCH * EPOCHS
if UNDER:
    import cairn
    import cairn.torch


def say(step):
    print(f"step {step} at {time.time():.3f}", flush=True)
    time.sleep(0.02)


def digest(tensors):
    print("digest", hashlib.sha256(b"".join(each.detach().cpu().contiguous().numpy().tobytes() for each in tensors)).hexdigest(), flush=True)


def plain():
    """DistributedDataParallel of one process, saved by torch.distributed.checkpoint; the place in the epoch is counted, as many do."""
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(net())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    if UNDER:
        loader = torch.utils.data.DataLoader(Data(SIZE), batch_sampler=cairn.torch.Batches(SIZE, BATCH, 1))
        with cairn.Session.open() as session:
            for step, batch in cairn.torch.steps(session, cairn.torch.State(model=model, optimizer=optimizer), TOTAL, loader):
                optimizer.zero_grad()
                loss_of(model, batch).backward()
                optimizer.step()
                say(step + 1)
        return digest(model.state_dict().values())
    loader, step = torch.utils.data.DataLoader(Data(SIZE), batch_size=BATCH, shuffle=True), 0
    saved = sorted((int(name[5:]) for name in os.listdir() if name.startswith("save.") and os.path.exists(f"{name}/.metadata")))
    if saved:
        step = saved[-1]
        weights, moments = get_state_dict(model, optimizer)
        dcp.load({"model": weights, "optimizer": moments}, checkpoint_id=f"save.{step}")
        set_state_dict(model, optimizer, model_state_dict=weights, optim_state_dict=moments)
    first = step
    for epoch in range(first // len(loader), EPOCHS):
        for at, batch in enumerate(loader):
            if epoch * len(loader) + at < first:
                continue
            optimizer.zero_grad()
            loss_of(model, batch).backward()
            optimizer.step()
            step += 1
            say(step)
            if step % EVERY == 0:
                weights, moments = get_state_dict(model, optimizer)
                dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=f"save.{step}")
    return digest(model.state_dict().values())


def with_lightning():
    import lightning
    from lightning.pytorch.callbacks import ModelCheckpoint

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = net()

        def training_step(self, batch, _):
            return loss_of(self.net, batch)

        def on_train_batch_end(self, *_):
            say(self.trainer.global_step)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=0.01)

    module = Module()
    if UNDER:
        import cairn.lightning
        batches = cairn.torch.Batches(SIZE, BATCH, 1)
        loader, callbacks = torch.utils.data.DataLoader(Data(SIZE), batch_sampler=batches), [cairn.lightning.Callback(batches)]
    else:
        loader = torch.utils.data.DataLoader(Data(SIZE), batch_size=BATCH, shuffle=True)
        callbacks = [ModelCheckpoint("save", save_last=True, every_n_train_steps=EVERY)]
    trainer = lightning.Trainer(accelerator="cpu", devices=1, max_epochs=EPOCHS, logger=False, enable_progress_bar=False,
                                enable_model_summary=False, enable_checkpointing=not UNDER, callbacks=callbacks)
    last = "save/last.ckpt"
    trainer.fit(module, loader, ckpt_path=last if os.path.exists(last) else None)
    return digest(module.net.state_dict().values())


def with_transformers():
    from transformers import Trainer, TrainerCallback, TrainingArguments
    from transformers.trainer_utils import get_last_checkpoint

    class Say(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            say(state.global_step)

    model = gpt2()
    arguments = TrainingArguments("save", use_cpu=True, num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH, report_to=[],
                                  save_strategy="no" if UNDER else "steps", save_steps=EVERY, disable_tqdm=True)
    trainer = Trainer(model=model, args=arguments, train_dataset=Tokens(SIZE), callbacks=[Say()])
    if UNDER:
        import cairn.transformers
        trainer.add_callback(cairn.transformers.Callback(trainer))
    trainer.train(resume_from_checkpoint=get_last_checkpoint("save") if os.path.isdir("save") and not UNDER else None)
    return digest(model.state_dict().values())


def with_accelerate():
    from accelerate import Accelerator
    accelerator = Accelerator(cpu=True)
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    if UNDER:
        import cairn.accelerate
        model, optimizer = accelerator.prepare(module, optimizer)
        loader = torch.utils.data.DataLoader(Data(SIZE), batch_sampler=cairn.torch.Batches(SIZE, BATCH, 1))
        with cairn.Session.open() as session:
            for step, batch in cairn.accelerate.steps(accelerator, session, TOTAL, loader):
                accelerator.backward(loss_of(model, batch))
                optimizer.step()
                optimizer.zero_grad()
                say(step + 1)
        return digest(module.state_dict().values())
    loader = torch.utils.data.DataLoader(Data(SIZE), batch_size=BATCH, shuffle=True)
    model, optimizer, loader = accelerator.prepare(module, optimizer, loader)
    saved = sorted(int(name[5:]) for name in os.listdir() if name.startswith("save.") and os.path.exists(f"{name}/done"))
    step = saved[-1] if saved else 0
    if step:
        accelerator.load_state(f"save.{step}")
    for epoch in range(step // len(loader), EPOCHS):
        part = accelerator.skip_first_batches(loader, step % len(loader)) if step % len(loader) else loader
        for batch in part:
            accelerator.backward(loss_of(model, batch))
            optimizer.step()
            optimizer.zero_grad()
            step += 1
            say(step)
            if step % EVERY == 0:
                accelerator.save_state(f"save.{step}")
                with open(f"save.{step}/done", "w", encoding="utf-8"):
                    pass
    return digest(module.state_dict().values())


def with_keras():
    import keras
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(64), keras.layers.BatchNormalization(), keras.layers.ReLU(),
                              keras.layers.Dropout(0.3), keras.layers.Dense(4)])
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

    class Say(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            say(int(self.model.optimizer.iterations))

    if UNDER:
        import cairn.keras
        batches = cairn.torch.Batches(SIZE, BATCH, 1)
        model.fit(torch.utils.data.DataLoader(Data(SIZE), batch_sampler=batches), epochs=EPOCHS, verbose=0,
                  callbacks=[Say(), cairn.keras.Callback(batches)])
        return digest([torch.as_tensor(each) for each in model.get_weights()])
    data = [Data(SIZE)[at] for at in range(SIZE)]
    numbers, labels = torch.stack([each[0] for each in data]).numpy(), torch.tensor([each[1] for each in data]).numpy()
    model.fit(numbers, labels, batch_size=BATCH, epochs=EPOCHS, verbose=0,
              callbacks=[keras.callbacks.BackupAndRestore("save", save_freq=EVERY), Say()])
    return digest([torch.as_tensor(each) for each in model.get_weights()])


torch.set_num_threads(1)
torch.manual_seed(1)
{"plain": plain, "lightning": with_lightning, "transformers": with_transformers, "accelerate": with_accelerate, "keras": with_keras}[LOOP]()
