#!/usr/bin/env python3
"""What PyTorch reaches on a GPU, the yardstick of bench/gpu: one JSON line per case.

    torch_gpu.py CASE...      gpt2 resnet50 attention layer_norm adamw matmul copy; all without an argument

Steps are timed by events over many steps after a warm-up, data made before. gpt2: 124M, B 32, T 1024, bfloat16
autocast, fused AdamW; resnet50: batch 128, 224x224, channels-last, bfloat16 autocast, SGD with momentum. Both eager
and compiled. The model classes are written here: no other package than torch is needed.
"""
import json
import sys

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda"


def report(case, value, unit, **more):
    print(json.dumps({"case": case, "value": value, "unit": unit, **more}), flush=True)


def seconds(step, repeats, warmup=5):
    for _ in range(warmup):
        step()
    torch.cuda.synchronize()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(repeats):
        step()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / 1e3 / repeats


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc, self.out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.attn(self.ln_1(x)).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self, vocab=50257, width=768, layers=12, heads=12, context=1024):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens, labels):
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), labels.view(-1))


class Bottleneck(nn.Module):
    def __init__(self, cin, mid, stride):
        super().__init__()
        cout = 4 * mid
        self.c1, self.b1 = nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid)
        self.c2, self.b2 = nn.Conv2d(mid, mid, 3, stride, 1, bias=False), nn.BatchNorm2d(mid)
        self.c3, self.b3 = nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout)
        self.down = None
        if stride != 1 or cin != cout:
            self.down = nn.Sequential(nn.Conv2d(cin, cout, 1, stride, bias=False), nn.BatchNorm2d(cout))

    def forward(self, x):
        y = F.relu(self.b1(self.c1(x)), inplace=True)
        y = F.relu(self.b2(self.c2(y)), inplace=True)
        return F.relu(self.b3(self.c3(y)) + (x if self.down is None else self.down(x)), inplace=True)


class ResNet50(nn.Module):
    def __init__(self, classes=1000):
        super().__init__()
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                  nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for stage, count in enumerate((3, 4, 6, 3)):
            for i in range(count):
                layers.append(Bottleneck(channels, 64 << stage, 2 if i == 0 and stage > 0 else 1))
                channels = 256 << stage
        self.features = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
        self.fc = nn.Linear(channels, classes)

    def forward(self, images, labels):
        return F.cross_entropy(self.fc(self.features(images)), labels)


def train(case, model, inputs, optimizer, samples, unit):
    for mode in ("eager", "compiled"):
        run = torch.compile(model) if mode == "compiled" else model

        def step(run=run):
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = run(*inputs)
            loss.backward()
            optimizer.step()

        took = seconds(step, 10)
        report(case, samples / took, unit, mode=mode, step_s=took)


def gpt2(batch=32, length=1024):
    model = GPT2().to(DEVICE)
    tokens = torch.randint(0, 50257, (batch, length + 1), device=DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    train("gpt2", model, (tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()), optimizer, batch * length,
          "tokens/s")


def resnet50(batch=128):
    model = ResNet50().to(DEVICE, memory_format=torch.channels_last)
    images = torch.randn(batch, 3, 224, 224, device=DEVICE).to(memory_format=torch.channels_last)
    labels = torch.randint(0, 1000, (batch,), device=DEVICE)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    train("resnet50", model, (images, labels), optimizer, batch, "images/s")


def attention(batch=32, heads=12, length=1024, dim=64):
    q, k, v = (torch.randn(batch, heads, length, dim, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)
               for _ in range(3))
    flops = 4 * batch * heads * length * length * dim / 2  # causal: half of the square
    with torch.no_grad():
        took = seconds(lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True), 50)
    report("attention_forward", flops / took / 1e12, "TFLOP/s")
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    gradient = torch.randn_like(out)
    took = seconds(lambda: torch.autograd.grad(out, (q, k, v), gradient, retain_graph=True), 50)
    report("attention_backward", 2.5 * flops / took / 1e12, "TFLOP/s")


def layer_norm(rows=32768, width=768):
    x = torch.randn(rows, width, device=DEVICE, dtype=torch.bfloat16)
    norm = nn.LayerNorm(width).to(DEVICE, torch.bfloat16)
    with torch.no_grad():
        took = seconds(lambda: norm(x), 100)
    report("layer_norm_forward", 2 * x.numel() * 2 / took / 1e9, "GB/s")


def adamw(count=124_000_000):
    parameter = torch.zeros(count, device=DEVICE, requires_grad=True)
    parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW([parameter], lr=1e-4, fused=True)
    took = seconds(optimizer.step, 20)
    report("adamw", 28 * count / took / 1e9, "GB/s")


def matmul(n=8192):
    a, b = (torch.randn(n, n, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    took = seconds(lambda: a @ b, 20)
    report("matmul", 2 * n**3 / took / 1e12, "TFLOP/s")


def copy(count=1 << 28):
    a, b = torch.zeros(count, device=DEVICE), torch.empty(count, device=DEVICE)
    took = seconds(lambda: b.copy_(a), 20)
    report("copy", 8 * count / took / 1e9, "GB/s")


CASES = {f.__name__: f for f in (copy, matmul, adamw, layer_norm, attention, resnet50, gpt2)}

if __name__ == "__main__":
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = True
    report("peer", 0, torch.__version__, device=torch.cuda.get_device_name())
    for name in sys.argv[1:] or CASES:
        CASES[name]()
