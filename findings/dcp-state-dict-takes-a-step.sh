#!/usr/bin/env bash
# PyTorch 2.15.0: get_optimizer_state_dict before the first step takes a step. Who saves a checkpoint at step 0 trains another model
# than who doesn't.
#
# Expected: reading a state changes nothing.
# Seen, torch 2.15.0, AdamW, five steps:
#   without it: AdamW counts 5 steps, hooks after a step ran 5 times
#   with it before the first step: AdamW counts 6 steps, hooks ran 6 times, weights differ
# An optimizer has no state before its first step, so the function makes some by a step with a rate and gradients of zero. The weights
# stay, but the counter that the correction of the moments uses doesn't go back.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict


def train(reads):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    calls = []
    optimizer.register_step_post_hook(lambda *_: calls.append(1))
    if reads:
        get_optimizer_state_dict(model, optimizer)
    for _ in range(5):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
    return model.weight.detach(), int(optimizer.state[model.weight]["step"]), len(calls)


(quiet, steps, hooks), (read, more_steps, more_hooks) = train(False), train(True)
differ = not torch.equal(quiet, read)
print(f"without it: AdamW counts {steps} steps, hooks after a step ran {hooks} times")
print(f"with it before the first step: AdamW counts {more_steps} steps, hooks ran {more_hooks} times, weights "
      f"{'differ' if differ else 'are equal'}")
assert (steps, hooks, more_steps, more_hooks, differ) == (5, 5, 6, 6, True), "this has changed"
P
