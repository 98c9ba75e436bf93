"""A program of a user's for tests: trains on synthetic data with much that has state, and prints a digest.

    torch_program.py STEPS OPTION ...    sgd | adamw | scaler | dropout | batchnorm | accumulate | micro | bf16 | workers | settle | channels | slow
                                         kill=STEP:PLACE ...   SIGKILL to rank KILL_RANK at forward, backward, optimizer or save, each once:
                                                               KILL_MARK.PLACE is made then
"""
import contextlib
import hashlib
import os
import random
import signal
import sys
import time
from pathlib import Path

if "CAIRN_FAKE" in os.environ:
    import fake_cairn  # noqa: F401
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

import cairn
import cairn.torch


class Net(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.first = nn.Conv2d(1, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6) if "batchnorm" in options else nn.Identity()
        self.drop = nn.Dropout(0.3 if "dropout" in options else 0.0)
        self.hidden = nn.Linear(6 * 64, 48)
        self.middle = nn.Linear(48, 48)
        self.last = nn.Linear(48, 10)

    def forward(self, x):
        x = self.drop(F.relu(self.norm(self.first(x)))).flatten(1)
        return self.last(F.relu(self.middle(F.relu(self.hidden(x)))))


class Data(Dataset):
    """Samples with random noise: Python's, NumPy's (if it is there) and PyTorch's."""

    def __len__(self):
        return 150

    def __getitem__(self, index):
        x = torch.randn(1, 8, 8, generator=torch.Generator().manual_seed(index))
        return x + 0.1 * torch.randn(1, 8, 8) + 0.01 * random.random(), index % 10


class Killer:
    def __init__(self, options):
        words = [word[5:].split(":") for word in options if word.startswith("kill=")]
        self.kills = {(int(step), place) for step, place in words}
        self.mark = os.environ.get("KILL_MARK", "")
        self.now = 0

    def __call__(self, place, step=None):
        self.now = self.now if step is None else step
        if (self.now, place) not in self.kills or os.environ.get("KILL_RANK", "0") != os.environ.get("RANK", "0"):
            return
        mark = Path(f"{self.mark}.{place}")
        if not mark.exists():
            mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)


def digest(model, optimizer):
    found = hashlib.sha256()
    for tensor in list(model.state_dict().values()) + [value for state in optimizer.state_dict()["state"].values()
                                                       for value in state.values() if isinstance(value, torch.Tensor)]:
        found.update(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def main(total, options):
    torch.set_num_threads(1)
    rank, size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if size > 1:
        dist.init_process_group("gloo")
    kill = Killer(options)
    torch.manual_seed(3)
    random.seed(11 + rank)
    net = Net(options)
    if "bf16" in options:
        net = net.to(torch.bfloat16)
    if "channels" in options:
        net = net.to(memory_format=torch.channels_last)
    torch.manual_seed(100 + rank)  # dropout differs by rank
    model = DistributedDataParallel(net, bucket_cap_mb=0.01) if size > 1 else net
    net.middle.register_full_backward_hook(lambda *_: kill("backward"))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01) if "adamw" in options else torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, total)
    milestones = torch.optim.lr_scheduler.MultiStepLR(optimizer, [5, 9], 0.5)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4, enabled="scaler" in options)
    seen = {"samples": 0, "history": [(0, float("inf"))]}
    optimizer.register_step_post_hook(lambda *_: kill("optimizer"))

    session = cairn.Session.open()
    state = cairn.torch.State(model=model, optimizer=optimizer, scheduler=[scheduler, milestones], scaler=scaler, extra={"seen": seen},
                              gradients="micro" in options)
    dataset = cairn.torch.seeded(Data(), 5) if "workers" in options else Data()
    batches = cairn.torch.Batches(len(dataset), 24, 7)
    loader = DataLoader(dataset, batch_sampler=batches, num_workers=2 if "workers" in options else 0,
                        multiprocessing_context="fork" if "workers" in options else None)

    def loss_of(batch):
        x, y = batch
        if "channels" in options:
            x = x.to(memory_format=torch.channels_last)
        return F.cross_entropy(model(x.to(net.last.weight.dtype)), y)

    with session:
        for step, batch in cairn.torch.steps(session, state, total, loader, settle=(lambda batch: loss_of(batch).backward())
                                             if "settle" in options else None):
            time.sleep(0.2 if "slow" in options else 0)
            kill("forward", step)
            if "micro" not in options:
                optimizer.zero_grad()
            if "accumulate" in options:
                with model.no_sync() if size > 1 else contextlib.nullcontext():
                    scaler.scale(loss_of(batch)).backward()
            loss = loss_of(batch)
            scaler.scale(loss).backward()
            if "micro" not in options or step % 3 == 2:
                scaler.step(optimizer)
                scaler.update()
                if "micro" in options:
                    optimizer.zero_grad()
            scheduler.step()
            milestones.step()
            seen["samples"] += len(batch[1])
            seen["history"].append((step, float(loss.detach())))
            session.log({"loss": loss})
            if step % 5 == 0:
                print(f"step {step + 1}", flush=True)
            kill("save", step)
    print(f"digest {digest(net, optimizer)} {seen['samples']} {scaler.state_dict() and scaler.get_scale()} {scheduler.get_last_lr()[0]!r} "
          f"{random.random()!r} {torch.rand(()).item()!r}", flush=True)
    if size > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
