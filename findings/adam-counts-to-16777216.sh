#!/usr/bin/env bash
# PyTorch 2.15.0: Adam's counter of steps stops at 16,777,216. It is a float32, which has no number between that and 16,777,218.
#
# Expected: a counter counts. Steps of 5 ms are that many in a day.
# Seen, torch 2.15.0:
#   AdamW: step 16777216 after three steps from 16777215
#   Adafactor: step 16777216 after three steps from 16777215
# Adam's own numbers no longer depend on it by then. Adafactor's rate does, as do programs that read their position from the optimizer.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import torch

for make in (torch.optim.AdamW, torch.optim.Adafactor):
    model = torch.nn.Linear(2, 2)
    optimizer = make(model.parameters())
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    for state in optimizer.state.values():
        state["step"].fill_(16777215)
    for _ in range(3):
        optimizer.step()
    step = int(optimizer.state[model.weight]["step"])
    print(f"{make.__name__}: step {step} after three steps from 16777215")
    assert step == 16777216, "this has changed"
P
