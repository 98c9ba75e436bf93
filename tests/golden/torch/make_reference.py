#!/usr/bin/env python3
"""Loss curves of PyTorch from Cairn's own initial weights and batches: writes MODEL.json here.

    make_reference.py [--check]      needs torch and numpy; 2 minutes on one core

Weights are drawn as trainer/init.h says, batches as tests/unit/test_models_golden.c says, so nothing big has
to be stored. Each curve is computed in float32 and in float64; a case is only worth keeping where the two agree
far better than the tolerance (1e-4), which the script checks. --check compares with the files that are there.
"""
import argparse
import json
import math
import os
import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

RNG_INIT, RNG_SYNTHETIC = 2, 5
HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [
    {"model": "mlp", "batch": 32, "hidden": 256, "lr": 0.02},
    {"model": "mlp", "name": "mlp-adamw", "batch": 32, "hidden": 64, "lr": 0.001, "optimizer": "adamw",
     "weight_decay": 0.01},
    {"model": "mlp", "name": "mlp-clip", "batch": 32, "hidden": 64, "lr": 0.1, "clip_norm": 0.25},
    {"model": "lenet", "batch": 32, "lr": 0.02},
    {"model": "resnet18", "batch": 16, "lr": 2e-5},
    {"model": "resnet18", "name": "resnet18-lanes", "batch": 16, "lanes": 2, "micro": 4, "lr": 2e-5},
]


def philox(counter, key):
    """Philox4x32-10 of uint32 arrays [4][n] under a 64-bit key."""
    c = [np.asarray(w, dtype=np.uint64) for w in counter]
    k0, k1 = key & 0xFFFFFFFF, key >> 32
    low = np.uint64(0xFFFFFFFF)
    for _ in range(10):
        p0, p1 = np.uint64(0xD2511F53) * c[0], np.uint64(0xCD9E8D57) * c[2]
        c = [(p1 >> np.uint64(32)) ^ c[1] ^ np.uint64(k0), p1 & low,
             (p0 >> np.uint64(32)) ^ c[3] ^ np.uint64(k1), p0 & low]
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c


def rng_key(seed, purpose):
    w = philox([[purpose], [0], [0], [0]], seed)
    return int(w[1][0]) << 32 | int(w[0][0])


def word(key, a, b, c, d):
    n = np.broadcast(a, b, c, d).shape
    return philox([np.broadcast_to(np.asarray(x, dtype=np.uint64), n) for x in (a, b, c, d)], key)[0]


def uniform(words):
    return (words >> np.uint64(8)).astype(np.float32) * np.float32(2.0 ** -24)


def init_(net, seed):
    key = rng_key(seed, RNG_INIT)
    fans = {}
    for name, module in net.named_modules():
        if isinstance(module, (nn.Conv2d, nn.Linear)):
            fan = module.weight[0].numel()
            fans[name + ".weight"] = fans[name + ".bias"] = fan
    for index, (name, p) in enumerate(net.named_parameters()):
        if name not in fans:  # batch norm keeps 1 and 0
            continue
        u = uniform(word(key, np.arange(p.numel()), index, 0, 0))
        bound = np.float32(1.0 / math.sqrt(fans[name]))
        value = (np.float32(2) * u - np.float32(1)) * bound
        with torch.no_grad():
            p.copy_(torch.from_numpy(value.reshape(p.shape)))


def batch_of(seed, first, count, shape, classes):
    """Samples first … first + count - 1: a random label, its class's pattern plus noise."""
    key = rng_key(seed, RNG_SYNTHETIC)
    pixel = np.arange(int(np.prod(shape)))[None, :]
    sample = np.arange(first, first + count)
    y = (word(key, 0, sample, 1, 0) * np.uint64(classes)) >> np.uint64(32)
    noise = uniform(word(key, pixel, sample[:, None], 0, 0))
    pattern = uniform(word(key, pixel, y[:, None], 2, 0))
    x = (noise + pattern - np.float32(1)).reshape(count, *shape)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))


class BasicBlock(nn.Module):
    """Modules in the order in which Cairn's tape has them."""

    def __init__(self, cin, cout, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(cin, cout, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(cout)
        self.conv2 = nn.Conv2d(cout, cout, 3, 1, 1, bias=False)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False),
                                            nn.BatchNorm2d(cout))
        self.bn2 = nn.BatchNorm2d(cout)

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet18(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        cin = 64
        for stage in range(4):
            cout = 64 << stage
            stride = 2 if stage > 0 else 1
            self.add_module(f"layer{stage + 1}", nn.Sequential(BasicBlock(cin, cout, stride),
                                                               BasicBlock(cout, cout, 1)))
            cin = cout
        self.fc = nn.Linear(512, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class LeNet(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 6, 5, padding=2)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(400, 120), nn.Linear(120, 84), nn.Linear(84, classes)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2).flatten(1)
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class MLP(nn.Module):
    def __init__(self, pixels, hidden, classes):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(pixels, hidden), nn.Linear(hidden, classes)

    def forward(self, x):
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def build(case):
    if case["model"] == "mlp":
        return MLP(28 * 28, case["hidden"], 10)
    return LeNet(1, 10) if case["model"] == "lenet" else ResNet18(1, 10)


class MeanStatistics:
    """One running update per step, from the mean over micro-batches, as Cairn does it."""

    def __init__(self, net):
        self.norms = [m for m in net.modules() if isinstance(m, nn.BatchNorm2d)]
        self.before = []

    def begin(self):
        self.before = [(m.running_mean.clone(), m.running_var.clone()) for m in self.norms]
        self.sums = [(torch.zeros_like(m.running_mean), torch.zeros_like(m.running_var))
                     for m in self.norms]
        for m in self.norms:
            m.momentum = 1.0  # each micro-batch leaves its own values

    def take(self):
        for m, (mean, var) in zip(self.norms, self.sums):
            mean += m.running_mean
            var += m.running_var

    def end(self, count):
        for m, (mean, var), (old_mean, old_var) in zip(self.norms, self.sums, self.before):
            m.running_mean.copy_(0.9 * old_mean + 0.1 * mean / count)
            m.running_var.copy_(0.9 * old_var + 0.1 * var / count)


def train(case, dtype):
    net = build(case)
    init_(net, case["seed"])
    net = net.to(dtype)
    if case["optimizer"] == "adamw":
        opt = torch.optim.AdamW(net.parameters(), lr=case["lr"], weight_decay=case["weight_decay"])
    else:
        opt = torch.optim.SGD(net.parameters(), lr=case["lr"], momentum=0.9,
                              weight_decay=case["weight_decay"])
    statistics = MeanStatistics(net)
    losses, batch = [], case["batch"]
    for step in range(case["steps"]):
        x, y = batch_of(case["seed"], step % case["batches"] * batch, batch, (1, 28, 28), 10)
        opt.zero_grad()
        statistics.begin()
        total = 0.0
        for xm, ym in zip(x.split(case["micro"]), y.split(case["micro"])):
            loss = F.cross_entropy(net(xm.to(dtype)), ym, reduction="sum") / batch
            loss.backward()
            statistics.take()
            total += float(loss.detach())
        with torch.no_grad():
            statistics.end(batch // case["micro"])
        if case["clip_norm"] > 0:
            nn.utils.clip_grad_norm_(net.parameters(), case["clip_norm"])
        opt.step()
        losses.append(total)
    net.eval()
    x, y = batch_of(case["seed"], 0, batch, (1, 28, 28), 10)
    with torch.no_grad():
        eval_loss = float(F.cross_entropy(net(x.to(dtype)), y))
    return losses, eval_loss


def difference(left, right):
    return max(abs(a - b) / abs(b) for a, b in zip(left[0] + [left[1]], right[0] + [right[1]]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    torch.set_num_threads(1)
    bad = 0
    for given in CASES:
        case = {"name": given["model"], "seed": 17, "steps": 20, "batches": 4, "lanes": 1, "hidden": 0,
                "optimizer": "sgd", "weight_decay": 5e-4, "clip_norm": 0.0, "micro": given["batch"]}
        case.update(given)
        single, double = train(case, torch.float32), train(case, torch.float64)
        noise = difference(single, double)
        print(f"{case['name']}: loss {single[0][0]:.5f} → {single[0][-1]:.5f}, evaluated "
              f"{single[1]:.5f}; float32 against float64 {noise:.1e}")
        bad += noise > 3e-5
        case.update(torch=torch.__version__, float32_against_float64=float(f"{noise:.2g}"),
                    losses=[float(f"{x:.8g}") for x in single[0]], eval_loss=float(f"{single[1]:.8g}"))
        path = os.path.join(HERE, case["name"] + ".json")
        if check:
            with open(path, encoding="utf-8") as f:
                old = json.load(f)
            bad += difference((old["losses"], old["eval_loss"]), single) > 3e-5
        else:
            with open(path, "w", encoding="utf-8") as f:
                json.dump(case, f, indent=1)
                f.write("\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
