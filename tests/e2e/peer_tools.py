"""What other people's libraries say of files that Cairn wrote. Run by the peer's Python: torch,
safetensors, transformers. Prints one JSON object.

    peer_tools.py bert-loss DIR TEXT SEED        mean loss of what from_pretrained reads there, of tokens masked as Cairn does it
    peer_tools.py bert-make DIR CONFIG           a new BertForMaskedLM, by save_pretrained
    peer_tools.py gpt2-loss FILE TEXT CONFIG     mean loss of transformers' GPT2LMHeadModel
    peer_tools.py gpt2-make DIR CONFIG           a new GPT2LMHeadModel, by save_pretrained
    peer_tools.py llama-loss DIR TEXT            mean loss of what from_pretrained reads there
    peer_tools.py llama-make DIR CONFIG          a new LlamaForCausalLM, by save_pretrained
    peer_tools.py resnet18-loss FILE IMAGES LABELS
    peer_tools.py vit-loss DIR IMAGES LABELS     mean loss of what from_pretrained reads there
    peer_tools.py vit-make DIR CONFIG            a new ViTForImageClassification, by save_pretrained
    peer_tools.py rewrite FILE OUT               load and save by the safetensors library
"""
import json
import sys
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn import functional as F


def gpt2(config):
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(
        n_layer=config["layers"], n_head=config["heads"], n_embd=config["width"],
        n_positions=config["context"], vocab_size=config["vocab"], bos_token_id=0, eos_token_id=0,
        attn_pdrop=0, embd_pdrop=0, resid_pdrop=0))


def gpt2_loss(path, text, config):
    config = json.loads(config)
    model = gpt2(config).eval()
    keys = model.load_state_dict(load_file(path), strict=False)
    assert keys.unexpected_keys == [] and keys.missing_keys in ([], ["lm_head.weight"]), keys
    model.tie_weights()
    return loss_of(model, text, config["context"])


def loss_of(model, text, context):
    data = list(open(text, "rb").read())
    total = count = 0
    with torch.no_grad():
        for at in range(0, len(data) - context, context):
            window = torch.tensor(data[at:at + context + 1])
            logits = model(window[None, :-1]).logits[0]
            total += F.cross_entropy(logits.double(), window[1:], reduction="sum").item()
            count += context
    return {"loss": total / count, "targets": count}


def make(model, folder):
    with torch.no_grad():
        for parameter in model.parameters():  # biases are zero otherwise
            parameter.add_(0.05 * torch.randn_like(parameter))
    model.save_pretrained(folder)
    return {"tensors": len(load_file(f"{folder}/model.safetensors"))}


def gpt2_make(folder, config):
    torch.manual_seed(4)
    return make(gpt2(json.loads(config)), folder)


def llama_make(folder, config):
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(4)
    return make(LlamaForCausalLM(LlamaConfig(**json.loads(config))), folder)


def llama_loss(folder, text):
    from transformers import AutoModelForCausalLM
    model, about = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(about[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), about
    return loss_of(model.eval(), text, model.config.max_position_embeddings)


def bert_make(folder, config):
    from transformers import BertConfig, BertForMaskedLM
    torch.manual_seed(4)
    return make(BertForMaskedLM(BertConfig(**json.loads(config))), folder)


def masked(window, sample, seed, vocab, mask=3, share=0.15):
    """What the model reads and what it has to guess: trainer/data/batch.h, in evaluation."""
    import numpy as np
    sys.path.append(str(Path(__file__).parents[1] / "golden/torch"))
    from make_reference import philox, rng_key, uniform
    place = np.arange(len(window))
    draw = philox([place, place * 0 + 1, place * 0 + sample, place * 0 + 0xFFFFFFFF], rng_key(seed, 3))
    token = np.array(window) + mask + 1
    guessed, kind = uniform(draw[0]) < np.float32(share), uniform(draw[1])
    other = mask + 1 + (draw[2] * np.uint64(vocab - mask - 1) >> np.uint64(32)).astype(np.int64)
    shown = np.where(~guessed | (kind >= np.float32(0.9)), token, np.where(kind < np.float32(0.8), mask, other))
    return torch.from_numpy(shown), torch.from_numpy(np.where(guessed, token, -1))


def bert_loss(folder, text, seed):
    from transformers import AutoModelForMaskedLM
    model, about = AutoModelForMaskedLM.from_pretrained(folder, output_loading_info=True)
    assert not any(about[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), about
    data, context = list(open(text, "rb").read()), model.config.max_position_embeddings
    total = count = 0
    with torch.no_grad():
        for sample in range(len(data) // context):
            shown, labels = masked(data[sample * context:(sample + 1) * context], sample, int(seed), model.config.vocab_size)
            logits = model.eval()(shown[None]).logits[0].double()
            total += F.cross_entropy(logits, labels, reduction="sum", ignore_index=-1).item()
            count += int((labels >= 0).sum())
    return {"loss": total / count, "targets": count}


def vit_make(folder, config):
    from transformers import ViTConfig, ViTForImageClassification
    torch.manual_seed(4)
    return make(ViTForImageClassification(ViTConfig(**json.loads(config))), folder)


def vit_loss(folder, images, labels):
    from transformers import AutoModelForImageClassification
    model, about = AutoModelForImageClassification.from_pretrained(folder, output_loading_info=True)
    assert not any(about[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), about
    with torch.no_grad():
        return image_loss(lambda pixels: model.eval()(pixels).logits, images, labels)


class Block(nn.Module):
    """torchvision's BasicBlock."""
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        shortcut = x if self.downsample is None else self.downsample(x)
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet18(nn.Module):
    """The small-image form: a 3x3 stem of stride 1, no max-pool; names as torchvision's."""
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 64, 3, 1, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = [64, 64, 128, 256, 512]
        for i in range(1, 5):
            first = Block(widths[i - 1], widths[i], 1 if i == 1 else 2)
            setattr(self, f"layer{i}", nn.Sequential(first, Block(widths[i], widths[i], 1)))
        self.fc = nn.Linear(512, 10)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return self.fc(x.mean((2, 3)))


def image_loss(model, images, labels):
    pixels = torch.frombuffer(bytearray(open(images, "rb").read()[16:]), dtype=torch.uint8)
    targets = torch.frombuffer(bytearray(open(labels, "rb").read()[8:]), dtype=torch.uint8)
    logits = model(pixels.reshape(-1, 1, 28, 28).float() / 255)
    return {"loss": F.cross_entropy(logits.double(), targets.long()).item()}


def resnet18_loss(path, images, labels):
    model = ResNet18()
    model.load_state_dict(load_file(path))  # strict: every name, num_batches_tracked, too
    with torch.no_grad():
        found = image_loss(model.eval(), images, labels)
    return {**found, "batches": int(model.bn1.num_batches_tracked)}


def rewrite(path, out):
    tensors = load_file(path)
    save_file(tensors, out, metadata={"format": "pt"})
    return {"tensors": len(tensors)}


COMMANDS = {"bert-loss": bert_loss, "bert-make": bert_make, "gpt2-loss": gpt2_loss, "gpt2-make": gpt2_make, "llama-loss": llama_loss, "llama-make": llama_make,
            "resnet18-loss": resnet18_loss, "rewrite": rewrite, "vit-loss": vit_loss, "vit-make": vit_make}

if __name__ == "__main__":
    print(json.dumps(COMMANDS[sys.argv[1]](*sys.argv[2:])))
