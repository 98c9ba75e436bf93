"""Trains with Lanes: lanes.py LANES SHARES, where SHARES is a list like 3,1. Rank 0 prints one digest of all that was computed."""
import hashlib
import os
import sys

import torch
import torch.distributed as dist

from cairn.torch.lanes import Lanes

STEPS, BATCH, SEED = 6, 84, 3


class Net(torch.nn.Module):
    """With what depends on how a batch is cut: batch norm, dropout, a parameter that is used now and then, tied and half ones."""

    def __init__(self):
        super().__init__()
        self.one, self.norm = torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8)
        self.two, self.sometimes, self.never = torch.nn.Linear(288, 32), torch.nn.Linear(32, 32), torch.nn.Linear(3, 3)
        self.three, self.scale = torch.nn.Linear(32, 10), torch.nn.Parameter(torch.ones(32, dtype=torch.bfloat16))

    def forward(self, numbers, sometimes):
        x = torch.relu(self.norm(self.one(numbers))).flatten(1)
        x = torch.nn.functional.dropout(torch.relu(self.two(x)), 0.3)
        x = x * self.scale.float()
        return self.three(self.sometimes(x) if sometimes else x)


def main():
    torch.set_num_threads(1)
    count, shares = int(sys.argv[1]), [int(share) for share in sys.argv[2].split(",")]
    if len(shares) > 1:
        dist.init_process_group("gloo")
    torch.manual_seed(SEED + int(os.environ["RANK"]))  # rank 0's weights are everybody's
    net = Net()
    lanes = Lanes(count, net, seed=SEED, shares=shares)
    torch.manual_seed(SEED)
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
    losses = []
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        inputs, labels = torch.randn(BATCH, 1, 8, 8, generator=draw), torch.randint(10, (BATCH,), generator=draw)
        for lane in lanes.step(step):
            lane.backward(torch.nn.functional.cross_entropy(net(lane.part(inputs), lane.index == 2), lane.part(labels)))
        losses.append(lanes.reduce())
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    assert net.never.weight.grad is None and not optimizer.state.get(net.never.weight)
    values = [each.detach().float().numpy().tobytes() for each in (*net.parameters(), *net.buffers(), torch.rand(4))]
    if int(os.environ["RANK"]) == 0:
        print("digest", hashlib.sha256(b"".join(values) + repr(losses).encode()).hexdigest())
    if len(shares) > 1:
        dist.destroy_process_group()


main()
