"""Trains with DistributedDataParallel: ordered.py BUCKET_MB HOOK DIE. HOOK is "ordered" or "none". Rank 0 prints a digest. If DIE is
a step, the last rank is gone there, and the others say that they heard of it."""
import hashlib
import os
import sys

import torch
import torch.distributed as dist

from cairn.torch.ordered import ordered


def main():
    bucket, hook, die = float(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(40, 300), torch.nn.ReLU(), torch.nn.Linear(300, 200), torch.nn.ReLU(),
                              torch.nn.Linear(200, 7))
    model = torch.nn.parallel.DistributedDataParallel(net, bucket_cap_mb=bucket)
    if hook == "ordered":
        assert ordered(model) is model
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(5):
        draw = torch.Generator().manual_seed(step * size + rank)
        loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 40, generator=draw)), torch.randint(7, (16,), generator=draw))
        optimizer.zero_grad()
        if step == die and rank == size - 1:
            os._exit(0)
        try:
            loss.backward()
        except RuntimeError:
            print("heard", flush=True)
            os._exit(0)
        optimizer.step()
    if rank == 0:
        print("digest", hashlib.sha256(b"".join(each.detach().numpy().tobytes() for each in net.parameters())).hexdigest())
    dist.destroy_process_group()


main()
