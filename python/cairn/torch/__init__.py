"""Cairn for PyTorch: a program's state, its loop, its data.

    State      what is saved and set again: model, optimizer, scheduler, scaler, random states   help(cairn.torch.State)
    steps      the loop: restores, saves what is due, ends when it has to                        help(cairn.torch.steps)
    Batches    which samples a step gets, on any number of processes                             help(cairn.torch.Batches)
    seeded     a dataset whose augmentations are the same after a restart                        help(cairn.torch.seeded)
    generator  random numbers for a sample                                                       help(cairn.torch.generator)
    settle     equal bits after a restart, with three processes or more                          help(cairn.torch.settle)
    ordered    gradients summed in the order of the ranks                                        help(cairn.torch.ordered)
    Lanes      one result for any number of processes                                            help(cairn.torch.Lanes)
    load       a checkpoint's tensors, without a coordinator                                     help(cairn.torch.load)
    convert    others' checkpoints as safetensors files                                          help(cairn.torch.convert)
    dcp        a module: torch.distributed.checkpoint reads from Cairn, and saves through it     help("cairn.torch.dcp")

A program of the usual kind, on one process or, under torchrun or Cairn, on several:

    with cairn.Session.open() as session:
        state = cairn.torch.State(model=model, optimizer=optimizer)
        loader = DataLoader(dataset, batch_sampler=cairn.torch.Batches(len(dataset), batch=64, seed=1), num_workers=2)
        for step, (x, y) in cairn.torch.steps(session, state, total=1000, loader=loader):
            optimizer.zero_grad()
            criterion(model(x), y).backward()
            optimizer.step()
"""
from ..convert import convert
from .data import Batches, generator, seeded
from .lanes import Lane, Lanes
from .loop import settle, steps
from .ordered import ordered
from .restoring import Tensors, load
from .state import State

__all__ = ["State", "steps", "settle", "Batches", "seeded", "generator", "load", "Tensors", "ordered", "Lanes", "Lane", "convert"]
