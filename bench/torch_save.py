#!/usr/bin/env python3
"""How long PyTorch's ways to save keep the caller: the yardstick of bench/stall. One JSON line per case.

    torch_save.py --bytes N [--rounds N] [--dir DIR]

A state of N bytes in the tensors of a ResNet-18 and its momentum, scaled. torch.save: until the file is written and
synced. torch.distributed.checkpoint.async_save: until the call returns; the save itself then goes on in a thread and
is waited for. Medians after one round to warm up.
"""
import argparse
import json
import os
import shutil
import statistics
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

# Widths of the layers' weights, as shares of the whole; 122 tensors with the momentum.
LAYERS = ([(64, 3, 7, 7)] + [(64, 64, 3, 3)] * 4 + [(128, 64, 3, 3)] + [(128, 128, 3, 3)] * 3 + [(256, 128, 3, 3)] +
          [(256, 256, 3, 3)] * 3 + [(512, 256, 3, 3)] + [(512, 512, 3, 3)] * 3)


def state_of(size):
    shapes = LAYERS + [(shape[0],) for shape in LAYERS for _ in range(2)]
    counts = [torch.Size(shape).numel() for shape in shapes]
    scale = size / 8 / sum(counts)
    made = {}
    for part in ("parameters", "momentum"):
        made[part] = {f"{part}.{i}": torch.randn(max(1, round(count * scale)))
                      for i, count in enumerate(counts)}
    return made


def save(state, folder):
    path = os.path.join(folder, "state.pt")
    begin = time.monotonic()
    with open(path, "wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    seconds = time.monotonic() - begin
    os.unlink(path)
    return seconds, seconds


def async_save(state, folder):
    path = os.path.join(folder, "dcp")
    begin = time.monotonic()
    future = dcp.async_save(state, checkpoint_id=path)
    stalled = time.monotonic() - begin
    future.result()
    whole = time.monotonic() - begin
    shutil.rmtree(path)
    return stalled, whole


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--bytes", type=int, required=True)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dir", default=".")
    args = parser.parse_args()
    torch.set_num_threads(1)
    state = state_of(args.bytes)
    with tempfile.TemporaryDirectory(dir=args.dir) as folder:
        dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        times = {"torch.save": [], "async_save": [], "async_save until saved": []}
        for _ in range(args.rounds + 1):
            times["torch.save"].append(save(state, folder)[0])
            stalled, whole = async_save(state, folder)
            times["async_save"].append(stalled)
            times["async_save until saved"].append(whole)
        dist.destroy_process_group()
    for case, values in times.items():
        print(json.dumps({"case": case, "value": statistics.median(values[1:]), "unit": "s"}), flush=True)


main()
