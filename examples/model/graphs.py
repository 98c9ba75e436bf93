#!/usr/bin/python3
"""Writes Cairn's own models as job files with graphs (docs/model.md): a program may write what is long.

    graphs.py FOLDER      writes mlp.yaml, lenet.yaml, resnet18.yaml, resnet50.yaml, resnet152.yaml and gpt2.yaml
"""
import struct
import sys
from pathlib import Path

IMAGES = """name: graph-{name}
model:
  input: [{input}]
  graph:
{nodes}
data: {{train: {{format: synthetic, samples: 1024}}}}
train: {{duration: 20 steps, global_batch: {batch}, lanes: 4, optimizer: {{lr: 0.05, momentum: 0.9}}}}
"""
TOKENS = """name: graph-{name}
model:
  context: 1024
  graph:
{nodes}
data: {{train: {{format: synthetic, samples: 1024}}}}
train: {{duration: 20 steps, global_batch: {batch}, lanes: 4, optimizer: {{name: adamw, lr: 0.0003, weight_decay: 0.1}}}}
"""


def node(op, name=None, **keys):
    words = {True: "true", False: "false"}
    pairs = ([("name", name)] if name else []) + [("op", op)] + [
        (key, words[value] if isinstance(value, bool) else value) for key, value in keys.items()]
    return "    - {" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}"


def mlp():
    return [node("flatten"), node("linear", "fc1", out=256, activation="relu"), node("linear", "fc2", out=10)]


def lenet():
    return [node("conv2d", "conv1", out=6, kernel=5, pad=2), node("relu"), node("max_pool", kernel=2),
            node("conv2d", "conv2", out=16, kernel=5), node("relu"), node("max_pool", kernel=2), node("flatten"),
            node("linear", "fc1", out=120, activation="relu"), node("linear", "fc2", out=84, activation="relu"),
            node("linear", "fc3", out=10)]


def conv(name, out, kernel, stride=1, **keys):
    keys = {"out": out, "kernel": kernel} | ({"stride": stride} if stride > 1 else {}) | (
        {"pad": kernel // 2} if kernel > 1 else {}) | {"bias": False} | keys
    return node("conv2d", name, **keys)


def block(prefix, before, width, stride, deep, same):
    """A residual block, and the name of its last node."""
    sizes = [(width, 1, 1), (width, 3, stride), (4 * width, 1, 1)] if deep else [(width, 3, stride), (width, 3, 1)]
    rows = []
    for i, (out, kernel, step) in enumerate(sizes):
        rows.append(conv(f"{prefix}.conv{i + 1}", out, kernel, step))
        if i + 1 < len(sizes):
            rows.append(node("batch_norm", f"{prefix}.bn{i + 1}", relu=True))
    last, added = f"{prefix}.bn{len(sizes)}", before
    keys = {}
    if not same:
        rows.append(conv(f"{prefix}.downsample.0", sizes[-1][0], 1, stride, **{"from": before}))
        rows.append(node("batch_norm", f"{prefix}.downsample.1"))
        added, keys = f"{prefix}.downsample.1", {"from": f"{prefix}.conv{len(sizes)}"}
    return rows + [node("batch_norm", last, **keys, residual=added, relu=True)], last


def resnet(blocks, deep):
    rows = [conv("conv1", 64, 7, 2) if deep else conv("conv1", 64, 3), node("batch_norm", "bn1", relu=True)]
    before = "bn1"
    if deep:
        rows.append(node("max_pool", "pool1", kernel=3, stride=2, pad=1))
        before = "pool1"
    for stage, count in enumerate(blocks):
        for number in range(count):
            more, before = block(f"layer{stage + 1}.{number}", before, 64 << stage, 2 if stage and not number else 1, deep,
                                 number > 0 or (stage == 0 and not deep))
            rows += more
    return rows + [node("global_avg_pool"), node("linear", "fc", out=10)]


def single(value):
    """A float32 in as many digits as tell it from all others."""
    return f"{struct.unpack('f', struct.pack('f', value))[0]:.9g}"


def gpt2(layers=12, heads=12, width=768, vocab=50257):
    rows = [node("embedding", "transformer.wte", rows=vocab, out=width, position="transformer.wpe", std=0.02)]
    before = "transformer.wte"
    residual = single(float(single(0.02)) / float(single((2.0 * layers) ** 0.5)))
    for i in range(layers):
        h = f"transformer.h.{i}"
        rows += [node("layer_norm", f"{h}.ln_1"), node("linear", f"{h}.attn.c_attn", out=3 * width, std=0.02),
                 node("attention", heads=heads),
                 node("linear", f"{h}.attn.c_proj", out=width, residual=before, std=residual),
                 node("layer_norm", f"{h}.ln_2"),
                 node("linear", f"{h}.mlp.c_fc", out=4 * width, activation="gelu", std=0.02),
                 node("linear", f"{h}.mlp.c_proj", out=width, residual=f"{h}.attn.c_proj", std=residual)]
        before = f"{h}.mlp.c_proj"
    return rows + [node("layer_norm", "transformer.ln_f"),
                   node("linear", "lm_head", out=vocab, bias=False, tied="transformer.wte")]


def main():
    folder = Path(sys.argv[1])
    small, large = "1, 28, 28", "3, 224, 224"
    for name, shape, batch, nodes in [("mlp", small, 64, mlp()), ("lenet", small, 64, lenet()),
                                      ("resnet18", small, 64, resnet([2, 2, 2, 2], False)),
                                      ("resnet50", large, 16, resnet([3, 4, 6, 3], True)),
                                      ("resnet152", large, 16, resnet([3, 8, 36, 3], True)),
                                      ("gpt2", None, 8, gpt2())]:
        form = IMAGES if shape else TOKENS
        text = form.format(name=name, input=shape, nodes="\n".join(nodes), batch=batch)
        (folder / f"{name}.yaml").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
