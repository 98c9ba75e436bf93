#!/usr/bin/env bash
# PyTorch 2.15.0: after optimizer.load_state_dict(snapshot) the optimizer's moments are the snapshot's tensors. The next step changes
# the snapshot, so going back to it a second time goes somewhere else. A module's load_state_dict copies.
#
# Expected: loading copies, as it does for modules.
# Seen, torch 2.15.0, a snapshot by copy.deepcopy, loaded, one more step:
#   SGD with momentum: the snapshot has changed
#   AdamW: the snapshot has changed
#   the module: the snapshot is as it was
# Moments that are of another dtype or device than their parameter are copied, so it depends on those. Who keeps a snapshot in memory to
# go back to after a bad step loads a copy of it.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import copy

import torch


def flat(state):
    return torch.cat([tensor.flatten() for tensors in state.values() for tensor in (tensors.values() if isinstance(tensors, dict) else [tensors])])


def look(make):
    torch.manual_seed(0)
    model = torch.nn.Linear(2, 2)
    optimizer = make(model.parameters())

    def step():
        optimizer.zero_grad()
        model(torch.ones(1, 2)).square().sum().backward()
        optimizer.step()

    step()
    moments, weights = copy.deepcopy(optimizer.state_dict()), copy.deepcopy(model.state_dict())
    before = flat(moments["state"]).clone(), flat(weights).clone()
    optimizer.load_state_dict(moments)
    model.load_state_dict(weights)
    step()
    return [not torch.equal(old, flat(new)) for old, new in zip(before, (moments["state"], weights))]


for name, make in (("SGD with momentum", lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)), ("AdamW", torch.optim.AdamW)):
    changed, weights_changed = look(make)
    print(f"{name}: the snapshot {'has changed' if changed else 'is as it was'}")
    assert changed and not weights_changed, "this has changed"
print("the module: the snapshot is as it was")
P
