"""A program with torchft's DistributedDataParallel, for bench/pytorch/recovery.py, as torchft's own example has it: one process per replica.

    torchft_program.py REPLICA any|all     prints each step that it committed, or only those in which all replicas took part"""
import os
import socket
import sys
import time
from datetime import timedelta

import torch
from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

REPLICA, ALL, SIZE = sys.argv[1], sys.argv[2] == "all", int(os.environ["REPLICAS"])


def main():
    torch.set_num_threads(1)
    torch.manual_seed(1)
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def load(state):
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
    manager = Manager(ProcessGroupGloo(timeout=timedelta(seconds=5)), load, lambda: {"model": net.state_dict(), "optimizer": optimizer.state_dict()},
                      min_replica_size=1, replica_id=f"bench_{REPLICA}", timeout=timedelta(seconds=30), rank=0, world_size=1,
                      store_addr="127.0.0.1", store_port=port)
    model, steps = DistributedDataParallel(manager, net), Optimizer(manager, optimizer)
    while store:
        steps.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(torch.randn(16, 32)), torch.randint(10, (16,)))
        loss.backward()
        before = manager.current_step()
        steps.step()
        if manager.current_step() > before and (not ALL or manager.num_participants() == SIZE):
            print(f"step {manager.current_step()} loss {loss.item():.4f} at {time.time():.3f}", flush=True)
        time.sleep(0.02)


main()
