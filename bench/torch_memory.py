#!/usr/bin/env python3
"""Trains a model in PyTorch for a few steps: the yardstick of bench/memory. Prints the seconds of a step, and the MiB
that forward and backward add at their most to what lies in memory before (gradients have their places by then), as JSON.

    torch_memory.py MODEL --mode none|checkpoint [--batch N] [--seq TOKENS] [--steps N]

checkpoint: torch.utils.checkpoint over each residual block or layer, without reentrance, as its documentation advises.
"""
import argparse
import json
import re
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

DEPTHS = {"resnet50": (3, 4, 6, 3), "resnet152": (3, 8, 36, 3)}


def normed(inputs, outputs, kernel, stride=1):
    return nn.Sequential(nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Three convolutions (1, 3, 1) beside a path that leaves the image as it is."""

    def __init__(self, inputs, width, stride):
        super().__init__()
        outputs = width * 4
        self.parts = nn.ModuleList([normed(inputs, width, 1), normed(width, width, 3, stride), normed(width, outputs, 1)])
        self.short = normed(inputs, outputs, 1, stride) if stride > 1 or inputs != outputs else nn.Identity()

    def forward(self, x):
        y = x
        for part in self.parts[:-1]:
            y = F.relu(part(y), inplace=True)
        return F.relu(self.parts[-1](y) + self.short(x), inplace=True)


class ResNet(nn.Module):
    def __init__(self, name, checkpoints):
        super().__init__()
        self.checkpoints = checkpoints
        self.stem = normed(3, 64, 7, 2)
        inputs, blocks = 64, []
        for stage, depth in enumerate(DEPTHS[name]):
            for index in range(depth):
                blocks.append(Block(inputs, 64 << stage, 2 if stage > 0 and index == 0 else 1))
                inputs = 256 << stage
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inputs, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.stem(x), inplace=True), 3, 2, 1)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpoints else block(x)
        return self.head(x.mean((2, 3)))


def text_model(checkpoints):
    from transformers import GPT2Config, GPT2LMHeadModel  # only for this model
    model = GPT2LMHeadModel(GPT2Config(resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))
    if checkpoints:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def in_memory(name):
    return int(re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(encoding="ascii"))[1]) / 1024


def step(optimizer, loss_of):
    """MiB that the activations took at their most"""
    optimizer.zero_grad(set_to_none=False)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is counted from here on
    before = in_memory("VmRSS")
    loss_of().backward()
    activations = in_memory("VmHWM") - before
    optimizer.step()
    return activations


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--mode", default="none", choices=["none", "checkpoint"])
    for name, default in (("batch", 8), ("seq", 256), ("steps", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(1)
    checkpoints = options.mode == "checkpoint"
    if options.model == "gpt2":
        model = text_model(checkpoints)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
        tokens = torch.randint(50257, (options.batch, options.seq))
        loss_of = lambda: model(tokens, labels=tokens).loss
    else:
        model = ResNet(options.model, checkpoints)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        images = torch.randn(options.batch, 3, 224, 224)
        labels = torch.randint(10, (options.batch,))
        loss_of = lambda: F.cross_entropy(model(images), labels)
    model.train()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    seconds, activations = [], []
    for _ in range(options.steps):
        begin = time.monotonic()
        activations.append(step(optimizer, loss_of))
        seconds.append(time.monotonic() - begin)
    print(json.dumps({"seconds": statistics.median(seconds), "activations": max(activations)}))


if __name__ == "__main__":
    main()
