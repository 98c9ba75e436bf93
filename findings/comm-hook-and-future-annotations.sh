#!/usr/bin/env bash
# PyTorch 2.15.0: a DDP communication hook with the right annotations is refused, with a message that asks for these annotations, if its
# module begins with `from __future__ import annotations`.
#
# Expected: the hook is taken, as the same text without that line is (its annotations name the same class).
# Seen, torch 2.15.0, one process with Gloo:
#   without the line: taken
#   with the line: ValueError: Communication hook: bucket annotation should be dist.GradBucket.
# The check compares inspect.signature's annotation with the class, and with that line the annotation is the text "dist.GradBucket".
# Without annotations the hook is taken either way.
set -eu
work=$(mktemp -d)
. "$(dirname "$0")/lib/packages.sh"
packages torch==2.15.0
look_at "$python" <<'P'
import os

import torch
import torch.distributed as dist

HOOK = """
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook


def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    return allreduce_hook(state, bucket)
"""


def seen(text):
    names = {}
    exec(compile(text, "hook", "exec", dont_inherit=True), names)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2))
    try:
        model.register_comm_hook(None, names["hook"])
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "taken"


dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
without, future = seen(HOOK), seen("from __future__ import annotations\n" + HOOK)
print("without the line:", without)
print("with the line:", future)
dist.destroy_process_group()
assert without == "taken" and "bucket annotation should be dist.GradBucket" in future, "this has changed"
P
