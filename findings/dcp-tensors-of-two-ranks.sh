#!/usr/bin/env bash
# PyTorch 2.15.0: what torch.distributed.checkpoint saves of a data-parallel model is no rank's: of tensors that every rank has, it
# takes each from another rank, by their sizes. Batch norm's running mean and variance differ by rank.
#
# Expected: the state of one rank, as every tutorial has rank 0 save; or an error, for the ranks' tensors of one name differ.
# Seen, torch 2.15.0, two ranks, gloo, DistributedDataParallel, dcp.save of the module's state dict, dcp.load by one process:
#   1.running_mean is rank 1's
#   1.running_var is rank 1's
#   4.running_mean is rank 0's
#   4.running_var is rank 0's
#   a model with these two belongs to no rank
# Who goes on from it computes something else than any rank would have. Nothing warns. The ranks share out what is the same on all of
# them, so that they write as much each; that the bytes are the same nobody looks at.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" -m torch.distributed.run --standalone --nproc-per-node=2 <<'P'
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Linear(16, 32),
                            torch.nn.BatchNorm1d(32), torch.nn.Linear(32, 4))
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(ddp.parameters(), 0.1)
torch.manual_seed(rank + 1)  # each rank has its own data
for _ in range(5):
    optimizer.zero_grad()
    ddp(torch.randn(16, 8)).square().mean().backward()
    optimizer.step()
state = model.state_dict()
dcp.save(state, checkpoint_id="saved")
ranks = [None, None]
dist.all_gather_object(ranks, {name: tensor.clone() for name, tensor in state.items()})
if rank == 0:
    loaded = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    dcp.load(loaded, checkpoint_id="saved", no_dist=True)
    owner = {}
    for name in state:
        equal = [torch.equal(loaded[name], ranks[r][name]) for r in (0, 1)]
        if "running" in name:
            assert equal.count(True) == 1, (name, equal)
            owner[name] = equal.index(True)
            print(f"{name} is rank {owner[name]}'s")
        else:
            assert equal == [True, True], name
    assert len(set(owner.values())) == 2, "this has changed"
    print("a model with these two belongs to no rank")
dist.destroy_process_group()
P
