"""FSDP2 and tensor parallelism through DCP: sharded.py save|plan|load STEPS [FOLDER]. `save` trains under State, `plan` saves by DCP's
plans, `load` reads what either saved, in FOLDER, by dcp.load, on another number of processes. All print a digest of the whole state. SLOW is
how many seconds a step takes longer. With CAIRN_FAKE Cairn is played."""
import hashlib
import os
import sys
import time

if "CAIRN_FAKE" in os.environ:
    import fake_cairn
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict, set_model_state_dict, set_optimizer_state_dict
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import cairn
import cairn.torch
import cairn.torch.dcp
from cairn.stored import Stored

HOW, STEPS = sys.argv[1], int(sys.argv[2])


def build():
    torch.manual_seed(5)
    net = torch.nn.Sequential(torch.nn.Linear(10, 14), torch.nn.ReLU(), torch.nn.Linear(14, 5))
    world = dist.get_world_size()
    if world >= 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
        parallelize_module(net, mesh["tensor"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        fully_shard(net, mesh=mesh["data"])
    else:
        fully_shard(net, mesh=init_device_mesh("cpu", (world,)))
    return net, torch.optim.AdamW(net.parameters(), lr=0.01)


def train(net, optimizer, step):
    time.sleep(float(os.environ.get("SLOW", "0")))
    draw = torch.Generator().manual_seed(step)
    optimizer.zero_grad()
    net(torch.randn(6, 10, generator=draw)).pow(2).mean().backward()
    optimizer.step()


def states(net, optimizer):
    return {"model": get_model_state_dict(net), "optimizer": get_optimizer_state_dict(net, optimizer)}


def say(state):
    found = hashlib.sha256()
    for kind in ("model", "optimizer"):
        tensors = state[kind] if kind == "model" else {f"{name}.{key}": value for name, each in state[kind]["state"].items()
                                                       for key, value in each.items()}
        for name in sorted(tensors):
            value = tensors[name]
            whole = value.full_tensor() if isinstance(value, DTensor) else value
            found.update(name.encode() + whole.detach().contiguous().numpy().tobytes())
    found.update(repr(sorted(state["optimizer"]["param_groups"][0].items())).encode())
    if dist.get_rank() == 0:
        print("digest", found.hexdigest())


def restored(session, net, optimizer):
    """The finished steps of the state that DCP reads from Cairn."""
    found = session.restore()
    if found is None:
        return 0
    state = states(net, optimizer)
    dcp.load(state, storage_reader=cairn.torch.dcp.StorageReader(found))
    set_model_state_dict(net, state["model"])
    set_optimizer_state_dict(net, optimizer, state["optimizer"])
    return found.step


def main():
    dist.init_process_group("gloo")
    net, optimizer = build()
    if HOW == "load":
        for parameter in net.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()  # Adam's tensors are there
        stored = cairn.load(sys.argv[3]) if len(sys.argv) > 3 else Stored(fake_cairn.module.open("", False).restore())
        state = states(net, optimizer)
        state["optimizer"]["param_groups"][0]["lr"] = 7.0
        dcp.load(state, storage_reader=cairn.torch.dcp.StorageReader(stored))
        say(state)
        set_optimizer_state_dict(net, optimizer, state["optimizer"])
        assert optimizer.param_groups[0]["lr"] == 0.01
    else:
        with cairn.Session.open() as session:
            if HOW == "plan":
                start = restored(session, net, optimizer)
                writer = cairn.torch.dcp.StorageWriter(session, STEPS, start)
                for step in range(start, STEPS):
                    train(net, optimizer, step)
                    writer.save(states(net, optimizer), step + 1)
                writer.wait(STEPS)
            else:
                for step in cairn.torch.steps(session, cairn.torch.State(model=net, optimizer=optimizer), STEPS):
                    train(net, optimizer, step)
        say(states(net, optimizer))
    dist.barrier()
    dist.destroy_process_group()


main()
