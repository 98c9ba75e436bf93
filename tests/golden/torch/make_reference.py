#!/usr/bin/env python3
"""Loss curves and gradients of PyTorch from Cairn's own initial weights and batches: writes NAME.json here.

    make_reference.py [--check] [NAME ...]   needs torch, numpy and transformers; 10 minutes on one core
    make_reference.py --live PROGRAM         the real sizes: gpt2 124M, resnet50 and ViT-B/16 at 224x224; PROGRAM
                                             is the build's tests/golden_live, 16 GiB of memory and an hour

Weights are drawn as trainer/tape/initial_values.h says, batches as tests/unit/trainer/training.c says, so nothing big has to be stored.
Each curve is computed in float32 and in float64; a case is only worth keeping where the two agree far better than
the tolerance (1e-4), which the script checks. --check compares with the files that are there.

Cases with "gradients" also keep, of the first step's gradient of each tensor in float64: its norm, the distances
of PyTorch's own gradients in float32 and in autocast to bfloat16, and 32 projections onto vectors of random signs,
by which a test can tell the distance of another gradient to it: the mean of the squares of their differences is the
square of that distance, to within 13 % of the distance (one standard deviation).

A fresh resnet50 is badly conditioned: its gradient in float32 is 1.5 % off in PyTorch itself (signs at ReLUs flip).
The case "resnet50" therefore starts with norms shifted by 2, where few signs are in doubt; "resnet50-fresh" doesn't
(nothing can be said of its gradient in bfloat16: PyTorch's is 130 % off).
"""
import argparse
import inspect
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import _muon

# PyTorch's Muon orthogonalizes in bfloat16; here its own code does so in the gradient's type.
HALF = "grad.to(dtype=torch.bfloat16"
assert inspect.getsource(_muon).count(HALF) == 1
exec(inspect.getsource(_muon).replace(HALF, "grad.to(dtype=grad.dtype"), _muon.__dict__)  # pylint: disable=exec-used
RNG_INIT, RNG_SYNTHETIC = 2, 5
BEHIND = {"cls_token": "projection.bias", "position_embeddings": "projection.bias",
          ".query.bias": ".value.weight", ".key.bias": ".value.weight",
          "predictions.bias": "transform.LayerNorm.bias"}
PROJECTIONS = 32  # of a gradient; the bits of one random word
GELU_TANH = "tanh"
HERE = os.path.dirname(os.path.abspath(__file__))
CASES = [
    {"model": "mlp", "batch": 32, "hidden": 256, "lr": 0.02},
    {"model": "mlp", "name": "mlp-adamw", "batch": 32, "hidden": 64, "lr": 0.001, "optimizer": "adamw",
     "weight_decay": 0.01},
    {"model": "mlp", "name": "mlp-lion", "batch": 32, "hidden": 64, "lr": 1e-4, "optimizer": "lion",
     "weight_decay": 0.1},
    {"model": "mlp", "name": "mlp-muon", "batch": 32, "hidden": 64, "lr": 1e-3, "optimizer": "muon",
     "weight_decay": 0.1},
    {"model": "mlp", "name": "mlp-clip", "batch": 32, "hidden": 64, "lr": 0.1, "clip_norm": 0.25},
    {"model": "lenet", "batch": 32, "lr": 0.02},
    {"model": "resnet18", "batch": 16, "lr": 2e-5},
    {"model": "resnet18", "name": "resnet18-lanes", "batch": 16, "lanes": 2, "micro": 4, "lr": 2e-5},
    {"model": "gpt2", "batch": 8, "lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.1,
     "no_decay": ["bias", "norm"], "steps": 10, "layers": 2, "heads": 4, "embed": 64, "context": 32,
     "vocab": 97, "gradients": True},
    {"model": "vit", "batch": 8, "lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.05, "steps": 10, "layers": 2,
     "heads": 4, "embed": 64, "patch": 7, "gradients": True},
    {"model": "bert", "batch": 8, "lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.01, "no_decay": ["bias", "norm"],
     "steps": 10, "layers": 2, "heads": 4, "embed": 64, "context": 24, "vocab": 11, "gradients": True},
    {"model": "llama", "batch": 8, "lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.1,
     "no_decay": ["bias", "norm"], "steps": 10, "layers": 2, "heads": 4, "kv_heads": 2, "embed": 64,
     "intermediate": 96, "context": 32, "vocab": 97, "gradients": True},
    {"model": "llama", "name": "llama-tied", "batch": 4, "lr": 1e-3, "optimizer": "adamw", "weight_decay": 0.1,
     "no_decay": ["bias", "norm"], "steps": 10, "layers": 1, "heads": 3, "kv_heads": 1, "embed": 48,
     "intermediate": 80, "context": 40, "vocab": 61, "tied": True, "gradients": True},
    {"model": "gpt2", "name": "gpt2-lamb", "batch": 8, "lr": 0.02, "optimizer": "lamb", "weight_decay": 0.01,
     "no_decay": ["bias", "norm"], "steps": 10, "layers": 2, "heads": 4, "embed": 64, "context": 32, "vocab": 97},
    {"model": "gpt2", "name": "gpt2-muon", "batch": 8, "lr": 1e-3, "optimizer": "muon", "weight_decay": 0.1,
     "no_decay": ["bias", "norm"], "steps": 10, "layers": 2, "heads": 4, "embed": 64, "context": 32, "vocab": 97},
    {"model": "resnet50", "batch": 8, "lr": 3e-6, "steps": 10, "channels": 3, "side": 96, "norm_shift": 2.0,
     "gradients": True},
    {"model": "resnet50", "name": "resnet50-fresh", "batch": 4, "lr": 1e-7, "steps": 2, "channels": 3, "side": 48,
     "gradients": True},
]
LIVE = [
    {"model": "gpt2", "batch": 4, "lr": 1e-4, "optimizer": "adamw", "weight_decay": 0.1,
     "no_decay": ["bias", "norm"], "steps": 10, "layers": 12, "heads": 12, "embed": 768, "context": 64,
     "vocab": 50257},
    {"model": "resnet50", "batch": 8, "lr": 3e-6, "steps": 10, "channels": 3, "side": 224, "norm_shift": 2.0},
    {"model": "vit", "batch": 4, "lr": 1e-4, "optimizer": "adamw", "weight_decay": 0.1,
     "no_decay": ["bias", "norm"], "steps": 10, "layers": 12, "heads": 12, "embed": 768, "patch": 16, "channels": 3,
     "side": 224},
]
DEFAULTS = {"seed": 17, "steps": 20, "batches": 4, "lanes": 1, "hidden": 0, "optimizer": "sgd",
            "weight_decay": 5e-4, "no_decay": [], "clip_norm": 0.0, "channels": 1, "side": 28, "layers": 0,
            "heads": 0, "embed": 0, "context": 0, "vocab": 0, "patch": 0,
            "norm_shift": 0.0}
LLAMA = {"kv_heads": 0, "intermediate": 0, "tied": False}  # more of them


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


def normals(words):
    """Normal numbers 0..3 of four words [4][n], operation by operation as trainer/tape/initial_values.c."""
    out = []
    for k in (0, 2):
        m, exponent = np.frexp((words[k].astype(np.float64) + 1) * 2.0 ** -32)
        low = m < 0.70710678118654752440
        m, exponent = np.where(low, m * 2, m), np.where(low, exponent - 1, exponent)
        s = (m - 1) / (m + 1)
        square, total = s * s, np.zeros_like(s)
        for i in range(13, -1, -1):
            total = total * square + 1.0 / float(2 * i + 1)
        log = 2 * s * total + exponent.astype(np.float64) * 0.69314718055994530942
        radius = np.sqrt(-2 * log)
        u = words[k + 1].astype(np.float64) * 2.0 ** -32
        quarter = (4 * u + 0.5).astype(np.int64)
        x = 2 * 3.14159265358979323846 * (u - 0.25 * quarter)

        def series(first, n):
            term = total = first
            for i in range(8):
                term = term * (-(x * x) / float((n + 2 * i + 1) * (n + 2 * i + 2)))
                total = total + term
            return total

        c, s, q = series(np.ones_like(x), 0), series(x, 1), quarter & 3
        out.append(radius * np.choose(q, [c, -s, -c, s]))
        out.append(radius * np.choose(q, [s, c, -s, -c]))
    return out


def draw_normal(key, index, count, std):
    element = np.arange((count + 3) // 4)
    words = philox([element, np.full_like(element, index), np.zeros_like(element), np.zeros_like(element)], key)
    z = np.stack(normals(words), axis=1).reshape(-1)[:count]
    return (np.float64(std) * z).astype(np.float32)


def kind_of(net, name):
    module = net.get_submodule(name.rpartition(".")[0])
    if isinstance(module, (nn.BatchNorm2d, nn.LayerNorm, RootMeanSquare)):
        return "norm"
    if isinstance(module, (nn.Embedding, Tokens)):
        return "embedding"
    return "bias" if name.endswith(".bias") else "weight"


def parameters_of(net):
    """In the order of Cairn's tape, where some come later than PyTorch has them: each behind that of BEHIND."""
    out, held = [], []
    for name, p in net.named_parameters():
        behind = next((other for end, other in BEHIND.items() if name.endswith(end)), None)
        if behind:
            held.append((behind, (name, p)))
            continue
        out.append((name, p))
        out += [pair for other, pair in held if name.endswith(other)]
        held = [pair for pair in held if not name.endswith(pair[0])]
    return out


def init_(net, seed, norm_shift):
    key = rng_key(seed, RNG_INIT)
    transformer = isinstance(net, (GPT2, Llama, ViT, Bert))
    for index, (name, p) in enumerate(parameters_of(net)):
        kind = kind_of(net, name)
        if kind == "norm":  # keeps 1 and 0
            if name.endswith(".bias") and norm_shift != 0:
                nn.init.constant_(p, norm_shift)
            continue
        if transformer and kind == "bias":
            value = np.zeros(p.numel(), dtype=np.float32)
        elif transformer:
            std = np.float32(0.02)
            if name.endswith("c_proj.weight"):
                std = std / np.sqrt(np.float32(2) * np.float32(len(net.transformer.h)))
            value = draw_normal(key, index, p.numel(), std)
        else:
            fan = net.get_parameter(name.rpartition(".")[0] + ".weight")[0].numel()
            u = uniform(word(key, np.arange(p.numel()), index, 0, 0))
            bound = np.float32(1.0 / math.sqrt(fan))
            value = (np.float32(2) * u - np.float32(1)) * bound
        with torch.no_grad():
            p.copy_(torch.from_numpy(value.reshape(p.shape)))


def batch_of(case, first, count):
    """Samples first … first + count - 1: a random label, its class's pattern plus noise."""
    key = rng_key(case["seed"], RNG_SYNTHETIC)
    if case["model"] in ("gpt2", "llama", "bert"):
        return tokens_of(case, key, first, count)
    shape = (case["channels"], case["side"], case["side"])
    pixel = np.arange(int(np.prod(shape)))[None, :]
    sample = np.arange(first, first + count)
    y = (word(key, 0, sample, 1, 0) * np.uint64(10)) >> np.uint64(32)
    noise = uniform(word(key, pixel, sample[:, None], 0, 0))
    pattern = uniform(word(key, pixel, y[:, None], 2, 0))
    x = (noise + pattern - np.float32(1)).reshape(count, *shape)
    return torch.from_numpy(x), torch.from_numpy(y.astype(np.int64))


def tokens_of(case, key, first, count):
    """Random tokens, of which half follow from the one before."""
    length, vocab = case["context"] + 1, case["vocab"]
    out = np.zeros((count, length), dtype=np.int64)
    for i in range(count):
        position = np.arange(length)
        words = philox([position, np.full_like(position, first + i), np.full_like(position, 3),
                        np.zeros_like(position)], key)
        drawn = (words[0] * np.uint64(vocab)) >> np.uint64(32)
        follows = uniform(words[1]) < 0.5
        for p in range(length):
            out[i, p] = (out[i, p - 1] * 3 + 1) % vocab if p > 0 and follows[p] else drawn[p]
    tokens = torch.from_numpy(out)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


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


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        cout = 4 * mid
        self.conv1 = nn.Conv2d(cin, mid, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(mid)
        self.conv2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(mid)
        self.conv3 = nn.Conv2d(mid, cout, 1, bias=False)
        self.downsample = None
        if stride != 1 or cin != cout:
            self.downsample = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False),
                                            nn.BatchNorm2d(cout))
        self.bn3 = nn.BatchNorm2d(cout)

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = self.bn3(self.conv3(F.relu(self.bn2(self.conv2(y)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    def __init__(self, blocks, bottlenecks, channels, side, classes):
        super().__init__()
        self.large = bottlenecks and side > 64
        kernel, stride, pad = (7, 2, 3) if self.large else (3, 1, 1)
        self.conv1 = nn.Conv2d(channels, 64, kernel, stride, pad, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        cin = 64
        for stage, count in enumerate(blocks):
            width, layers = 64 << stage, []
            for block in range(count):
                stride = 2 if stage > 0 and block == 0 else 1
                layers.append((Bottleneck if bottlenecks else BasicBlock)(cin, width, stride))
                cin = width * (4 if bottlenecks else 1)
            self.add_module(f"layer{stage + 1}", nn.Sequential(*layers))
        self.fc = nn.Linear(cin, classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large:
            x = F.max_pool2d(x, 3, 2, 1)
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.fc(x.mean((2, 3)))


class Layer(nn.Module):
    """A block of GPT-2; names as Hugging Face's, weights [out, in]."""

    def __init__(self, embed, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(embed)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(embed, 3 * embed), "c_proj": nn.Linear(embed, embed)})
        self.ln_2 = nn.LayerNorm(embed)
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(embed, 4 * embed), "c_proj": nn.Linear(4 * embed, embed)})

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.attn["c_attn"](self.ln_1(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + self.attn["c_proj"](y)
        y = F.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate=GELU_TANH)
        return x + self.mlp["c_proj"](y)


class GPT2(nn.Module):
    def __init__(self, layers, heads, embed, context, vocab):
        super().__init__()
        self.transformer = nn.ModuleDict({
            "wte": nn.Embedding(vocab, embed), "wpe": nn.Embedding(context, embed),
            "h": nn.ModuleList(Layer(embed, heads) for _ in range(layers)), "ln_f": nn.LayerNorm(embed)})

    def forward(self, tokens):
        t = self.transformer
        x = t["wte"](tokens) + t["wpe"](torch.arange(tokens.shape[1]))
        for layer in t["h"]:
            x = layer(x)
        return F.linear(t["ln_f"](x), t["wte"].weight)


class Tokens(nn.Module):
    """Patches behind a class token, plus positions."""

    def __init__(self, channels, side, patch, embed):
        super().__init__()
        self.patch_embeddings = nn.ModuleDict({"projection": nn.Conv2d(channels, embed, patch, patch)})
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed))
        self.position_embeddings = nn.Parameter(torch.zeros(1, 1 + (side // patch) ** 2, embed))

    def forward(self, x):
        x = self.patch_embeddings["projection"](x).flatten(2).transpose(1, 2)
        return torch.cat([self.cls_token.expand(x.shape[0], -1, -1), x], 1) + self.position_embeddings


class ViTLayer(nn.Module):
    """Names as in Hugging Face's files."""

    def __init__(self, embed, heads):
        super().__init__()
        self.heads = heads
        self.layernorm_before = nn.LayerNorm(embed, eps=1e-12)
        self.attention = nn.ModuleDict({"attention": nn.ModuleDict({name: nn.Linear(embed, embed) for name in
                                                                    ("query", "key", "value")}),
                                        "output": nn.ModuleDict({"dense": nn.Linear(embed, embed)})})
        self.layernorm_after = nn.LayerNorm(embed, eps=1e-12)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(embed, 4 * embed)})
        self.output = nn.ModuleDict({"dense": nn.Linear(4 * embed, embed)})

    def forward(self, x):
        b, t, c = x.shape
        y = self.layernorm_before(x)
        q, k, v = (part(y).view(b, t, self.heads, -1).transpose(1, 2) for part in self.attention["attention"].values())
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, t, c)
        x = x + self.attention["output"]["dense"](y)
        return x + self.output["dense"](F.gelu(self.intermediate["dense"](self.layernorm_after(x))))


class ViT(nn.Module):
    def __init__(self, case):
        super().__init__()
        embed = case["embed"]
        layers = nn.ModuleList(ViTLayer(embed, case["heads"]) for _ in range(case["layers"]))
        self.vit = nn.ModuleDict({
            "embeddings": Tokens(case["channels"], case["side"], case["patch"], embed),
            "encoder": nn.ModuleDict({"layer": layers}), "layernorm": nn.LayerNorm(embed, eps=1e-12)})
        self.classifier = nn.Linear(embed, 10)

    def forward(self, x):
        x = self.vit["embeddings"](x)
        for layer in self.vit["encoder"]["layer"]:
            x = layer(x)
        return self.classifier(self.vit["layernorm"](x)[:, 0])


class RootMeanSquare(nn.Module):
    def __init__(self, embed):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(embed))

    def forward(self, x):
        wide = x if x.dtype == torch.float64 else x.float()
        return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-5) * self.weight


def turn(x):
    """Rotary positions of [batch, heads, tokens, depth], in pairs of both halves."""
    pairs = x.shape[-1] // 2
    angle = torch.outer(torch.arange(x.shape[2]).double(), 10000.0 ** (-torch.arange(pairs).double() / pairs))
    cosine, sine = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    first, second = x[..., :pairs], x[..., pairs:]
    return torch.cat((first * cosine - second * sine, second * cosine + first * sine), -1)


class LlamaLayer(nn.Module):
    """A block of Llama; names as Hugging Face's, modules in the order in which Cairn's tape has them."""

    def __init__(self, case):
        super().__init__()
        embed, wide, self.heads, self.kv = case["embed"], case["intermediate"], case["heads"], case["kv_heads"]
        shared = embed // self.heads * self.kv
        self.input_layernorm = RootMeanSquare(embed)
        self.self_attn = nn.ModuleDict({name: nn.Linear(embed, rows, bias=False) for name, rows in (
            ("q_proj", embed), ("k_proj", shared), ("v_proj", shared), ("o_proj", embed))})
        self.post_attention_layernorm = RootMeanSquare(embed)
        self.mlp = nn.ModuleDict({"gate_proj": nn.Linear(embed, wide, bias=False),
                                  "up_proj": nn.Linear(embed, wide, bias=False),
                                  "down_proj": nn.Linear(wide, embed, bias=False)})

    def forward(self, x):
        b, t, c = x.shape
        y, attn, mlp = self.input_layernorm(x), self.self_attn, self.mlp
        q, k, v = (attn[name](y).view(b, t, -1, c // self.heads).transpose(1, 2)
                   for name in ("q_proj", "k_proj", "v_proj"))
        k, v = (x.repeat_interleave(self.heads // self.kv, 1) for x in (turn(k), v))
        y = F.scaled_dot_product_attention(turn(q), k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
        x = x + attn["o_proj"](y)
        y = self.post_attention_layernorm(x)
        return x + mlp["down_proj"](F.silu(mlp["gate_proj"](y)) * mlp["up_proj"](y))


class Llama(nn.Module):
    def __init__(self, case):
        super().__init__()
        self.model = nn.ModuleDict({
            "embed_tokens": nn.Embedding(case["vocab"], case["embed"]),
            "layers": nn.ModuleList(LlamaLayer(case) for _ in range(case["layers"])),
            "norm": RootMeanSquare(case["embed"])})
        self.lm_head = nn.Linear(case["embed"], case["vocab"], bias=False)
        if case["tied"]:
            self.lm_head.weight = self.model["embed_tokens"].weight

    def forward(self, tokens):
        x = self.model["embed_tokens"](tokens)
        for layer in self.model["layers"]:
            x = layer(x)
        return self.lm_head(self.model["norm"](x))


class BertLayer(nn.Module):
    """Names as Hugging Face's; the modules in the order of Cairn's tape."""

    def __init__(self, embed, heads):
        super().__init__()
        self.heads = heads
        self.attention = nn.ModuleDict({
            "self": nn.ModuleDict({name: nn.Linear(embed, embed) for name in ("query", "key", "value")}),
            "output": nn.ModuleDict({"dense": nn.Linear(embed, embed), "LayerNorm": nn.LayerNorm(embed, eps=1e-12)})})
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(embed, 4 * embed)})
        self.output = nn.ModuleDict({"dense": nn.Linear(4 * embed, embed), "LayerNorm": nn.LayerNorm(embed, eps=1e-12)})

    def forward(self, x, seen):
        b, t, c = x.shape
        q, k, v = (part(x).view(b, t, self.heads, -1).transpose(1, 2) for part in self.attention["self"].values())
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(b, t, c)
        x = self.attention["output"]["LayerNorm"](x + self.attention["output"]["dense"](y))
        y = self.output["dense"](F.gelu(self.intermediate["dense"](x)))
        return self.output["LayerNorm"](x + y)


class Predictions(nn.Module):
    def __init__(self, embed, vocab):
        super().__init__()
        self.transform = nn.ModuleDict({"dense": nn.Linear(embed, embed), "LayerNorm": nn.LayerNorm(embed, eps=1e-12)})
        self.bias = nn.Parameter(torch.zeros(vocab))

    def forward(self, x, table):
        x = self.transform["LayerNorm"](F.gelu(self.transform["dense"](x)))
        return F.linear(x, table, self.bias)


class Bert(nn.Module):
    """Trailing zeros are padding; the second half of the tokens is of kind 1."""

    def __init__(self, case):
        super().__init__()
        embed = case["embed"]
        tables = {"word_embeddings": case["vocab"], "position_embeddings": case["context"], "token_type_embeddings": 2}
        self.bert = nn.ModuleDict({
            "embeddings": nn.ModuleDict({**{name: nn.Embedding(rows, embed) for name, rows in tables.items()},
                                         "LayerNorm": nn.LayerNorm(embed, eps=1e-12)}),
            "encoder": nn.ModuleDict({"layer": nn.ModuleList(BertLayer(embed, case["heads"])
                                                             for _ in range(case["layers"]))})})
        self.cls = nn.ModuleDict({"predictions": Predictions(embed, case["vocab"])})

    def forward(self, tokens):
        place, tables = torch.arange(tokens.shape[1]), self.bert["embeddings"]
        last = torch.where(tokens != 0, place, 0).max(1).values
        x = tables["word_embeddings"](tokens) + tables["position_embeddings"](place)
        x = x + tables["token_type_embeddings"]((place >= tokens.shape[1] // 2).long())
        x = tables["LayerNorm"](x)
        for layer in self.bert["encoder"]["layer"]:
            x = layer(x, (place <= last[:, None])[:, None, None])
        return self.cls["predictions"](x, tables["word_embeddings"].weight)


def logits_off(case):
    """How far a Llama's logits are from those of transformers with the same weights."""
    from transformers import LlamaConfig, LlamaForCausalLM
    net = Llama(case)
    init_(net, case["seed"], 0)
    other = LlamaForCausalLM(LlamaConfig(
        num_hidden_layers=case["layers"], hidden_size=case["embed"], num_attention_heads=case["heads"],
        num_key_value_heads=case["kv_heads"], intermediate_size=case["intermediate"], vocab_size=case["vocab"],
        max_position_embeddings=case["context"], rms_norm_eps=1e-5, tie_word_embeddings=case["tied"]))
    other.load_state_dict(net.state_dict())
    tokens, _ = batch_of(case, 0, case["batch"])
    with torch.no_grad():
        return float((net(tokens) - other.eval()(tokens).logits).abs().max())


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
    if case["model"] == "lenet":
        return LeNet(1, 10)
    if case["model"] == "gpt2":
        return GPT2(case["layers"], case["heads"], case["embed"], case["context"], case["vocab"])
    if case["model"] == "vit":
        return ViT(case)
    if case["model"] == "bert":
        return Bert(case)
    if case["model"] == "llama":
        return Llama(case)
    if case["model"] == "resnet50":
        return ResNet((3, 4, 6, 3), True, case["channels"], case["side"], 10)
    return ResNet((2, 2, 2, 2), False, case["channels"], case["side"], 10)


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


def cast(net, x, dtype):
    return x if isinstance(net, (GPT2, Llama, Bert)) else x.to(dtype)


class Lion(torch.optim.Optimizer):
    """Chen et al., arXiv 2302.06675, algorithm 2, with the authors' betas."""

    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                c = 0.9 * m + 0.1 * p.grad
                p.sub_(group["lr"] * (c.sign() + group["weight_decay"] * p))
                m.copy_(0.99 * m + 0.01 * p.grad)


class Lamb(torch.optim.Optimizer):
    """You et al., arXiv 1904.00962, algorithm 2; each tensor is a layer."""

    def __init__(self, groups, lr):
        super().__init__(groups, {"lr": lr})
        self.t = 0

    @torch.no_grad()
    def step(self):
        self.t += 1
        for group in self.param_groups:
            for p in group["params"]:
                m = self.state[p].setdefault("m", torch.zeros_like(p))
                v = self.state[p].setdefault("v", torch.zeros_like(p))
                m.copy_(0.9 * m + 0.1 * p.grad)
                v.copy_(0.999 * v + 0.001 * p.grad ** 2)
                r = (m / (1 - 0.9 ** self.t)) / ((v / (1 - 0.999 ** self.t)).sqrt() + 1e-6)
                u = r + group["weight_decay"] * p
                weight, update = p.norm(), u.norm()
                p.sub_(group["lr"] * (weight / update if weight > 0 and update > 0 else 1.0) * u)


class Muon:
    """PyTorch's Muon for matrices, and its AdamW for the rest."""

    def __init__(self, net, groups, lr):
        names = {id(p): name for name, p in net.named_parameters()}
        last = list(net.named_parameters())[-1][0].rpartition(".")[0] + ".weight"
        matrices, others = [], []
        for group in groups:
            for p in group["params"]:
                matrix = kind_of(net, names[id(p)]) == "weight" and p.ndim == 2 and names[id(p)] != last
                (matrices if matrix else others).append({**group, "params": [p]})
        self.both = [_muon.Muon(matrices, lr=lr, adjust_lr_fn="match_rms_adamw"),
                     torch.optim.AdamW(others, lr=lr)]

    def zero_grad(self):
        for optimizer in self.both:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self.both:
            optimizer.step()


def optimizer_of(case, net):
    groups = [{"params": [], "weight_decay": case["weight_decay"]}, {"params": [], "weight_decay": 0.0}]
    for name, p in net.named_parameters():
        groups[kind_of(net, name) in case["no_decay"]]["params"].append(p)
    groups = [g for g in groups if g["params"]]
    if case["optimizer"] == "adamw":
        return torch.optim.AdamW(groups, lr=case["lr"])
    if case["optimizer"] == "lion":
        return Lion(groups, case["lr"])
    if case["optimizer"] == "lamb":
        return Lamb(groups, case["lr"])
    if case["optimizer"] == "muon":
        return Muon(net, groups, case["lr"])
    return torch.optim.SGD(groups, lr=case["lr"], momentum=0.9)


def loss_of(net, x, y, half):
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        logits = net(x)
        return F.cross_entropy(logits.flatten(0, -2), y.flatten(), reduction="sum")


def train(case, dtype, half=False):
    """Losses, the evaluated loss, and the gradients of the first step."""
    net = build(case)
    init_(net, case["seed"], case["norm_shift"])
    net = net.to(dtype)
    opt = optimizer_of(case, net)
    statistics = MeanStatistics(net)
    losses, batch, gradients = [], case["batch"], {}
    for step in range(case["steps"]):
        x, y = batch_of(case, step % case["batches"] * batch, batch)
        opt.zero_grad()
        statistics.begin()
        total = 0.0
        for xm, ym in zip(x.split(case["micro"]), y.split(case["micro"])):
            loss = loss_of(net, cast(net, xm, dtype), ym, half) / y.numel()
            loss.backward()
            statistics.take()
            total += float(loss.detach())
        with torch.no_grad():
            statistics.end(batch // case["micro"])
        if step == 0:
            gradients = {name: p.grad.detach().double().numpy().reshape(-1).copy()
                         for name, p in parameters_of(net)}
        if case["clip_norm"] > 0:
            nn.utils.clip_grad_norm_(net.parameters(), case["clip_norm"])
        opt.step()
        losses.append(total)
    net.eval()
    x, y = batch_of(case, 0, batch)
    with torch.no_grad():
        eval_loss = float(loss_of(net, cast(net, x, dtype), y, half)) / y.numel()
    return losses, eval_loss, gradients


def difference(left, right):
    return max(abs(a - b) / abs(b) for a, b in zip(left[0] + [left[1]], right[0] + [right[1]]))


def distance(left, right):
    return float(np.linalg.norm(left - right))


def projections(gradient, seed, index):
    """Onto vectors of ±1: bit j of word 0 of Philox(synthetic key, (element, tensor, 6, 0)) is j's sign."""
    words = word(rng_key(seed, RNG_SYNTHETIC), np.arange(gradient.size), index, 6, 0)
    out = []
    for j in range(PROJECTIONS):
        minus = (words >> np.uint64(j)) & np.uint64(1) == 1
        out.append(float(gradient[~minus].sum() - gradient[minus].sum()))
    return out


def gradient_rows(case, single, double, half):
    """Name, norm, distances of float32 and bfloat16, projections of each tensor."""
    rows = []
    for index, (name, g) in enumerate(double[2].items()):
        own = [float(f"{distance(x[2][name], g):.4g}") for x in (single, half)]
        rows.append([name, float(f"{np.linalg.norm(g):.8g}")] + own +
                    [[float(f"{x:.7g}") for x in projections(g, case["seed"], index)]])
    whole, off32, off16 = (math.hypot(*(row[i] for row in rows)) for i in (1, 2, 3))
    print(f"{case['name']}: the whole gradient {whole:.4g}; float32 off by {off32 / whole:.1e}, bfloat16 by "
          f"{off16 / whole:.1e} of it")
    return rows


def fill(given):
    more = LLAMA if given["model"] == "llama" else {}
    case = {"name": given["model"], **DEFAULTS, **more, "micro": given["batch"]}
    case.update(given)
    return case


def write(case, path):
    rows = case.pop("gradients", None)
    text = json.dumps(case, indent=1)
    if rows:
        lines = ",\n".join("  " + json.dumps(row, separators=(",", ":")) for row in rows)
        text = text[:-2] + ',\n "gradients": [\n' + lines + "\n ]\n}"
    with open(path, "w", encoding="utf-8") as f:
        f.write(text + "\n")


def reference(given, check):
    """Writes a case's file, or compares with it; True if something is wrong."""
    case = fill(given)
    gradients = case.pop("gradients", False)
    single, double = train(case, torch.float32), train(case, torch.float64)
    noise = difference(single, double)
    print(f"{case['name']}: loss {single[0][0]:.5f} → {single[0][-1]:.5f}, evaluated "
          f"{single[1]:.5f}; float32 against float64 {noise:.1e}", flush=True)
    bad = noise > 3e-5
    if case["model"] == "llama":
        off = logits_off(case)
        print(f"{case['name']}: logits differ from those of transformers by {off:.1e} at most")
        bad = bad or off > 1e-4
    path = os.path.join(HERE, case["name"] + ".json")
    if check:
        with open(path, encoding="utf-8") as f:
            old = json.load(f)
        return bad or difference((old["losses"], old["eval_loss"]), single) > 3e-5
    case.update(torch=torch.__version__, float32_against_float64=float(f"{noise:.2g}"),
                losses=[float(f"{x:.8g}") for x in single[0]], eval_loss=float(f"{single[1]:.8g}"))
    if gradients:
        half = train(case, torch.float32, half=True)
        case.update(losses_bf16=[float(f"{x:.8g}") for x in half[0]],
                    gradients=gradient_rows(case, single, double, half))
    write(case, path)
    return bad


def ours(program, case, precision):
    """Losses and first gradient of Cairn: PROGRAM prints the losses and writes the gradient to a file."""
    names = ("model", "optimizer", "seed", "batch", "batches", "steps", "lr", "weight_decay", "channels", "side",
             "layers", "heads", "embed", "context", "vocab", "norm_shift", "patch")
    with tempfile.NamedTemporaryFile() as f:
        out = subprocess.run([program, f.name, precision] + [str(case[n]) for n in names], check=True,
                             stdout=subprocess.PIPE, text=True).stdout
        return [float(line) for line in out.split()], np.fromfile(f.name, dtype=np.float32).astype(np.float64)


def live(program):
    """The real sizes, every element of every gradient."""
    bad = 0
    for given in LIVE:
        case = fill(given)
        single, half = train(case, torch.float32), train(case, torch.float32, half=True)
        whole = math.hypot(*(np.linalg.norm(g) for g in single[2].values()))
        for precision, allowed in (("fp32", None), ("bf16", half)):
            losses, flat = ours(program, case, precision)
            loss = max(abs(a - b) / b for a, b in zip(losses, single[0]))
            at, worst, off, off_allowed = 0, (0.0, ""), 0.0, 0.0
            for name, g in single[2].items():
                mine = flat[at:at + g.size]
                at += g.size
                limit = distance(allowed[2][name], g) if allowed else 1e-3 * np.linalg.norm(g)
                if np.linalg.norm(g) > 1e-6 * whole:  # else only rounding: a shift before a norm has no gradient
                    worst = max(worst, (distance(mine, g) / limit, name))
                off, off_allowed = math.hypot(off, distance(mine, g)), math.hypot(off_allowed, limit)
            print(f"{case['name']} {precision}: losses differ by {loss:.1e} at most; the gradient is at "
                  f"{off / off_allowed:.2f} of what is allowed, the worst tensor's at {worst[0]:.2f} ({worst[1]})",
                  flush=True)
            # In half, a tensor is a quarter off by chance: two ways of rounding are two draws.
            bad += off > off_allowed or worst[0] > (1.25 if allowed else 1) or (not allowed and loss > 1e-4)
    return bad


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--live", metavar="PROGRAM")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.live:
        return 1 if live(options.live) else 0
    bad = 0
    for given in CASES:
        if not options.names or given.get("name", given["model"]) in options.names:
            bad += reference(given, options.check)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
