"""A DistributedDataParallel program that Cairn saves, for bench/pytorch/recovery.py: recovery_program.py STEPS PAUSE_S [MIB].
MIB: megabytes of state beside that of the model."""
import sys
import time

import torch
import torch.distributed as dist

import cairn
import cairn.torch

STEPS, PAUSE_S, MIB = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0


def main():
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    net.more = torch.nn.Parameter(torch.zeros(MIB << 18), requires_grad=False)
    model = torch.nn.parallel.DistributedDataParallel(net)
    optimizer = torch.optim.SGD([each for each in net.parameters() if each.requires_grad], lr=0.1, momentum=0.9)
    waited = []
    with cairn.Session.open() as session:
        state = cairn.torch.State(model=model, optimizer=optimizer)
        begun = time.perf_counter()
        for step in cairn.torch.steps(session, state, STEPS):
            draw = torch.Generator().manual_seed(step * size + rank)
            loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 32, generator=draw)), torch.randint(10, (16,), generator=draw))
            optimizer.zero_grad()
            loss.backward()
            end = time.perf_counter() + PAUSE_S
            while time.perf_counter() < end:  # computes, as a longer backward pass does
                torch.mm(torch.ones(64, 64), torch.ones(64, 64))
            at = time.perf_counter()
            state.copied()
            waited.append(time.perf_counter() - at)
            optimizer.step()
            if rank == 0:
                print(f"step {step + 1} loss {loss.item():.4f} at {time.time():.3f}", flush=True)
        took = time.perf_counter() - begun
    if rank == 0:
        print(f"took {took / STEPS * 1000:.3f} ms a step, waited {max(waited) * 1000:.3f} ms at most", flush=True)
    dist.destroy_process_group()


main()
