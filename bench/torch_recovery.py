#!/usr/bin/env python3
"""A worker under torchrun, the yardstick of bench/recovery, which starts it.

    torchrun ... torch_recovery.py DIR

Two or more ranks on Gloo train a network of ResNet-18's size, with a checkpoint in DIR every 5 steps, and go on from
it when torchrun starts them anew. DIR/steps gets a line "SECONDS STEP RANK PID" at each step's end, by the monotonic
clock.
"""
import os
import sys
import time

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

EVERY = 5


def main():
    path = os.path.join(sys.argv[1], "newest.pt")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(784, 2048), torch.nn.ReLU(), torch.nn.Linear(2048, 4608),
                                torch.nn.ReLU(), torch.nn.Linear(4608, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    step = 0
    if os.path.exists(path):
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
    parallel = DistributedDataParallel(model)
    inputs, labels = torch.randn(8, 784), torch.randint(0, 10, (8,))
    with open(os.path.join(sys.argv[1], "steps"), "a", encoding="utf-8") as steps:
        while True:
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(parallel(inputs), labels).backward()
            optimizer.step()
            step += 1
            steps.write(f"{time.monotonic()} {step} {rank} {os.getpid()}\n")
            steps.flush()
            if step % EVERY == 0 and rank == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step},
                           path + ".new")
                os.replace(path + ".new", path)


main()
