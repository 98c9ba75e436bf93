"""A program of a user's for tests: a model that fully_shard and tensor parallelism spread, with tied, bfloat16, float8 and 0-dimensional
tensors, an odd number of rows, and a frozen parameter.

    sharded_program.py STEPS MODE   fsdp | tensor | both | plain
Prints a digest of all that is saved, put together.
"""
import hashlib
import os
import sys

if "CAIRN_FAKE" in os.environ:
    import fake_cairn  # noqa: F401
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

import cairn
import cairn.torch


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(13, 7)  # 13 rows: uneven on 2 and on 4
        self.up = nn.Linear(7, 8)
        self.down = nn.Linear(8, 7)
        self.head = nn.Linear(7, 13, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.full((1,), 1.0))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("small", torch.arange(6.0).to(torch.float8_e4m3fn))
        self.register_buffer("brief", torch.arange(6.0).to(torch.bfloat16))

    def forward(self, x):
        self.count += 1
        h = self.embedding(x).mean(1)
        return self.head(h + self.scale * self.down(F.relu(self.up(h))))


def spread(net, mode, size):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    if mode == "plain":
        return net
    if mode == "fsdp":
        mesh = {"dp": init_device_mesh("cpu", (size,))}
    else:
        mesh = init_device_mesh("cpu", (1, size) if mode == "tensor" else (size // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(net, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    if mode != "tensor":
        fully_shard(net.up, mesh=mesh["dp"])
        fully_shard(net.down, mesh=mesh["dp"])
        fully_shard(net, mesh=mesh["dp"])
    return net


def whole(tensor):
    from torch.distributed.tensor import DTensor
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main(total, mode):
    torch.set_num_threads(1)
    size = int(os.environ.get("WORLD_SIZE", "1"))
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    net = spread(Net(), mode, size)
    net.scale.requires_grad_(True)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    session = cairn.Session.open()
    state = cairn.torch.State(model=net, optimizer=optimizer)
    with session:
        started = None
        for step in cairn.torch.steps(session, state, total, leave=False):
            started = step if started is None else started
            x = torch.randint(0, 13, (12, 3), generator=torch.Generator().manual_seed(step))  # the same on all ranks
            optimizer.zero_grad()
            F.cross_entropy(net(x), x[:, 0]).backward()
            optimizer.step()
    found = hashlib.sha256()
    for name, tensor in sorted(net.state_dict().items()):
        found.update(name.encode() + whole(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    for values in optimizer.state_dict()["state"].values():
        for _, tensor in sorted(values.items()):
            found.update(whole(tensor).contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    tied = net.head.weight is net.embedding.weight
    print(f"digest {found.hexdigest()[:16]} from {started} tied {tied} count {int(net.count)}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
