"""Data and models of the programs with frameworks, of the tests (frameworks.py) and of bench/pytorch/frameworks_program.py: noise in the
dataset, batch norm and dropout, as programs have them; a small GPT-2 on tokens."""
import torch


class Data(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, index):
        draw = torch.Generator().manual_seed(int(index))
        return torch.randn(16, generator=draw) + 0.1 * torch.randn(16), int(index) % 4


class Tokens(Data):
    def __getitem__(self, index):
        tokens = torch.randint(64, (8,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


def net():
    return torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.BatchNorm1d(64), torch.nn.ReLU(), torch.nn.Dropout(0.3),
                               torch.nn.Linear(64, 4))


def loss_of(model, batch):
    return torch.nn.functional.cross_entropy(model(batch[0]), batch[1])


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=8, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0))
