"""A DistributedDataParallel script by torchrun's conventions: it knows nothing of Cairn. Each rank trains on its part of made-up
numbers; rank 0 saves now and then; a new start goes on from what was saved."""
import hashlib
import os
import sys
import time

import torch
import torch.distributed as dist

STEPS, FILE = int(sys.argv[1]), "ddp.pt"
PAUSE_S = float(sys.argv[2]) if len(sys.argv) > 2 else 0  # after each step
EVERY = int(sys.argv[3]) if len(sys.argv) > 3 else 10  # a checkpoint


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(
        torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    begin = 0
    if os.path.exists(FILE):
        saved = torch.load(FILE)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        begin = saved["step"]
    for step in range(begin, STEPS):
        generator = torch.Generator().manual_seed(step * size + rank)
        loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 32, generator=generator)),
                                                 torch.randint(10, (16,), generator=generator))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        time.sleep(PAUSE_S)
        if rank == 0:
            print(f"step {step + 1} loss {loss.item():.4f} at {time.time():.3f}", flush=True)
            if (step + 1) % EVERY == 0:
                torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, FILE + ".new")
                os.replace(FILE + ".new", FILE)
    if rank == 0:
        values = b"".join(value.detach().numpy().tobytes() for value in model.module.parameters())
        print("digest", hashlib.sha256(values).hexdigest())
    dist.destroy_process_group()


main()
