#!/usr/bin/env bash
# torch 2.15.0: torch.optim.Muon orthogonalizes in bfloat16 whatever the parameters are, float64 included. A reference run in float64
# has updates with two or three digits, and its distance from a float32 run says nothing about rounding.
#
# Expected: the Newton-Schulz iteration runs in the parameters' own type; a float64 step differs from a float32 one by about 1e-7.
# Seen, torch 2.15.0, a 64 x 64 matrix of float64:
#   the update of a float64 parameter is 1.5e-02 off an iteration in float64
#   each of its 4096 elements is a bfloat16 number: True
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import torch


def orthogonalized(x):
    """Jordan 2024: five steps of the quintic iteration, from a matrix of norm 1."""
    a, b, c = 3.4445, -4.775, 2.0315
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.T
        x = a * x + (b * gram + c * gram @ gram) @ x
    return x


torch.manual_seed(1)
gradient = torch.randn(64, 64, dtype=torch.float64)
weight = torch.nn.Parameter(torch.zeros(64, 64, dtype=torch.float64))
weight.grad = gradient.clone()
torch.optim.Muon([weight], lr=1.0, weight_decay=0, momentum=0, nesterov=False).step()
update = -weight.detach()
wanted = orthogonalized(gradient)
off = float((update - wanted).norm() / wanted.norm())
rounded = torch.equal(update, update.bfloat16().double())
print(f"the update of a float64 parameter is {off:.1e} off an iteration in float64")
print(f"each of its {update.numel()} elements is a bfloat16 number: {rounded}")
assert off > 1e-3 and rounded, "this has changed"
P
