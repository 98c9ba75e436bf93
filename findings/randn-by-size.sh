#!/usr/bin/env bash
# PyTorch 2.15.0: after the same seed torch.randn(15) and torch.randn(16) have no number in common, not even the first. torch.rand gives
# the shorter one as the beginning of the longer.
#
# Expected: a generator gives a sequence, and a longer tensor takes more of it.
# Seen, torch 2.15.0 on a CPU:
#   torch.rand: 15 of 15 equal
#   torch.randn: 0 of 15 equal
#   torch.randn, 24 and 32 numbers: 8 of 24 equal
# From 16 numbers on they are made by sixteens, and where their number is no multiple of 16 the last 16 are made anew. So noise that is
# keyed by a sample's number changes with the size of what it is drawn for, such as the last, smaller batch or another crop.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import torch


def equal(draw, few, many):
    torch.manual_seed(0)
    a = draw(few)
    torch.manual_seed(0)
    return int((a == draw(many)[:few]).sum())


rand, randn, more = equal(torch.rand, 15, 16), equal(torch.randn, 15, 16), equal(torch.randn, 24, 32)
print(f"torch.rand: {rand} of 15 equal")
print(f"torch.randn: {randn} of 15 equal")
print(f"torch.randn, 24 and 32 numbers: {more} of 24 equal")
assert rand == 15 and randn == 0 and 0 < more < 24, "this has changed"
P
