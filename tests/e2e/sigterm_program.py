"""A program of a user's for test_torch_sigterm.py: DistributedDataParallel on two processes, with places that it doesn't come out of soon.

    sigterm_program.py FOLDER STEPS SECONDS PLACE@STEP ...

At each such step, once, rank 0 is in that place for about so many seconds, and rank 1 waits for it:

    collective  in a Gloo collective that rank 1 joins late     evaluation  in an evaluation
    compile     in torch.compile, with inductor's C++           extension   in C code that holds Python's lock
    warmup      before cairn_ready (STEP: finished steps that it goes on from)
    filling     stopped (SIGSTOP) while it fills in a save

FOLDER gets `PLACE.RANK` when the rank is there, and `pid.RANK`. The digest is printed at the end.
"""
import hashlib
import os
import signal
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset

import cairn
import cairn.torch
from held import hold_lock

FOLDER, STEPS, SECONDS = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
PLACES = [(place, int(step)) for place, step in (word.split("@") for word in sys.argv[4:])]
RANK = int(os.environ["RANK"])


def collective(_):
    if RANK == 1:
        time.sleep(SECONDS)
    dist.all_reduce(torch.zeros(4))


def compile_model(_):
    """Compiles function after function: inductor, and a C++ compiler that it waits for."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(dir=FOLDER)
    end, number = time.monotonic() + SECONDS, 1
    while RANK == 0 and time.monotonic() < end:
        torch._dynamo.reset()

        def function(x, times=number):
            for i in range(8 * times):
                x = torch.sin(x * (i + times)).cumsum(0)
            return x
        torch.compile(function, dynamic=False)(torch.ones(64 + number))
        number += 1


def evaluation(model):
    end = time.monotonic() + SECONDS
    model.eval()
    with torch.no_grad():
        while RANK == 0 and time.monotonic() < end:
            model.module(torch.ones(256, 32))
    model.train()


def extension(_):
    if RANK == 0:
        hold_lock(SECONDS)


def filling(_):
    os.kill(os.getpid(), signal.SIGSTOP)


ACTIONS = {"collective": collective, "compile": compile_model, "evaluation": evaluation, "extension": extension}


def enter(place, action, model):
    mark = FOLDER / f"{place}.{RANK}"
    if not mark.exists():
        mark.touch()
        action(model)


def fill_slowly(session, at):
    """Has this rank stopped between the begin of the save of that step and its blobs."""
    blob = session.blob

    def stopped(name, data):
        if session._finished == at and RANK == 0:
            enter("filling", filling, None)
        blob(name, data)
    session.blob = stopped


def main():
    (FOLDER / f"pid.{RANK}").write_text(str(os.getpid()), encoding="utf-8")
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(3)
    model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2),
                                                        torch.nn.Linear(64, 10)))
    torch.manual_seed(100 + RANK)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    dataset = TensorDataset(torch.randn(120, 32, generator=torch.Generator().manual_seed(1)), torch.arange(120) % 10)
    loader = DataLoader(dataset, batch_sampler=cairn.torch.Batches(len(dataset), 24, 7))
    with cairn.Session.open() as session:
        found = session.restore()
        begin = 0 if found is None else found.step
        del found
        waits = [step for place, step in PLACES if place == "warmup" and step <= begin]
        if waits:
            enter(f"warmup{max(waits)}", lambda _: time.sleep(SECONDS), model)
        fill_slowly(session, dict(PLACES).get("filling"))
        state = cairn.torch.State(model=model, optimizer=optimizer)
        for step, (x, y) in cairn.torch.steps(session, state, STEPS, loader):
            time.sleep(0.1)
            for place, _ in (each for each in PLACES if each[1] == step and each[0] in ACTIONS):
                enter(place, ACTIONS[place], model)
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            print(f"step {step + 1}", flush=True)
    found = hashlib.sha256()
    for tensor in model.state_dict().values():
        found.update(tensor.numpy().tobytes())
    print(f"digest {found.hexdigest()[:16]} {torch.rand(()).item()!r}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
