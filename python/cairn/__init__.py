"""Cairn: training that goes on after failures, from a program of your own.

Without a change, `python train.py` runs under Cairn as a job's `command`, and after a failure it is started again. With a few lines it goes
on from the step before the failure, with the same bits:

    import cairn
    import cairn.torch

    with cairn.Session.open() as session:                      # does nothing without Cairn
        state = cairn.torch.State(model=model, optimizer=optimizer, scheduler=scheduler)
        batches = cairn.torch.Batches(len(dataset), batch=64, seed=1)
        loader = torch.utils.data.DataLoader(dataset, batch_sampler=batches, num_workers=2)
        for step, (x, y) in cairn.torch.steps(session, state, total=1000, loader=loader):
            optimizer.zero_grad()
            loss = criterion(model(x), y)
            loss.backward()
            optimizer.step()
            scheduler.step()
            session.log({"loss": loss})

The state is copied to memory that outlives the process, beside the next step; from there Cairn writes checkpoints. The job file, which
`cairn submit` takes, says that they are wanted:

    name: mine
    command: {run: [python3, train.py], preload: [torch]}
    workers: {count: 1}
    checkpoint: {every: 100 steps}

What there is:

  cairn.torch.State            what is saved of a PyTorch program, and what isn't          help(cairn.torch.State)
  cairn.torch.steps            the loop                                                    help(cairn.torch.steps)
  cairn.torch.Batches          which samples a step gets, on any number of processes       help(cairn.torch.Batches)
  cairn.torch                  all that is for PyTorch                                     help("cairn.torch")
  cairn.lightning.Callback     for Lightning's Trainer                                     help("cairn.lightning")
  cairn.transformers.Callback  for Transformers' Trainer                                   help("cairn.transformers")
  cairn.accelerate.steps       for Accelerate                                              help("cairn.accelerate")
  cairn.keras.Callback         for Keras 3 on PyTorch                                      help("cairn.keras")
  cairn.Session                the connection; a program without PyTorch uses it alone     help(cairn.Session)
  cairn.load                   a checkpoint's tensors, without a coordinator               help(cairn.load)
  cairn.Error                  what can go wrong                                           help("cairn.errors")

Each of the modules is imported by its name: `import cairn.torch`. In a shell: `python -m cairn --help`.

`import cairn` imports neither PyTorch nor NumPy.
"""
from .errors import (Again, Changed, Closed, Corrupt, Error, Full, Invalid, NoMemory, NotFound, Refused, Stale, StorageError, TimedOut,
                     Version)
from .session import COPY, COPY_NOW, NOTHING, PRIVATE, REPLICATED, SAVE, SAVE_AND_EXIT, SHARDED, Session
from .stored import DTYPES, Stored, load

__all__ = ["Session", "Stored", "load", "DTYPES", "NOTHING", "COPY", "SAVE", "SAVE_AND_EXIT", "COPY_NOW", "REPLICATED", "SHARDED", "PRIVATE",
           "Error", "Again", "TimedOut", "Invalid", "NoMemory", "StorageError", "Full", "NotFound", "Refused", "Closed", "Corrupt", "Stale",
           "Changed", "Version"]
