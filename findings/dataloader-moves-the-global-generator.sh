#!/usr/bin/env bash
# PyTorch 2.15.0: an iterator over a DataLoader that neither shuffles nor has workers draws a number of the process's global
# generator. So an evaluation more or less changes the dropout of every step that follows.
#
# Expected: random numbers are drawn where something is random: by a sampler that shuffles, or for seeds of workers.
# Seen, torch 2.15.0:
#   shuffle=False, num_workers=0: the next random number is another one
#   with a generator of its own: it is as without the loader
# Who resumes in the middle of an epoch, or skips an evaluation that was done before a failure, has other dropout masks than a run
# without failures, although the generator's state was saved and restored. A loader with `generator=` leaves the global one alone.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import torch
from torch.utils.data import DataLoader


def after(**options):
    torch.manual_seed(0)
    if options:
        for _ in DataLoader(list(range(8)), batch_size=4, shuffle=False, num_workers=0, **options):
            pass
    return torch.rand(1).item()


quiet, plain, own = after(), after(drop_last=False), after(generator=torch.Generator())
print("shuffle=False, num_workers=0: the next random number is", "the same" if plain == quiet else "another one")
print("with a generator of its own: it is", "as without the loader" if own == quiet else "another one")
assert plain != quiet and own == quiet, "this has changed"
P
