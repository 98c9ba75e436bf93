"""A rank's session with Cairn."""
from __future__ import annotations

import os
import sys
import warnings
import weakref
from types import TracebackType
from typing import Any, Mapping, Optional, Sequence, Union

from . import errors
from .stored import Stored

NOTHING, COPY, SAVE, SAVE_AND_EXIT = range(4)  # what is due: enum cairn_due
COPY_NOW = 1
REPLICATED, SHARDED, PRIVATE = 1, 2, 3
CLIENT = "cairn (Python)"


class Session:
    """What a program says to Cairn, and Cairn to it; `Session.open()` makes one.

    With PyTorch, `cairn.torch.steps` makes all these calls. A program of another kind makes them itself:

        with cairn.Session.open() as session:
            state = session.restore()                  # None: begin anew
            step = state.step if state else 0
            session.layout([("weights", dtype, kind, shape)], blob_bytes=4096)
            session.ready(step, total)
            while step < total:
                ...                                    # compute, then wait with `session.copied()`, then change the state
                step += 1
                due = session.step(step)
                if due and session.begin(step, [address]):
                    session.blob("random", random_state)
                    session.start()
                if due == cairn.SAVE_AND_EXIT:
                    break
            session.finish(step)

    Without Cairn (`python train.py`) the same calls do nothing: `session.alone` is true, nothing is ever due.

    Attributes: `rank`, `size`, `generation` (which start of the program this is, from 1 on), `job`, `alone`, `exit_due` (a save before
    leaving was due: end with code 0 after `finish`), `stopping` (what `stop` said; None).
    """

    job: str
    rank: int
    size: int
    generation: int
    has_state: bool
    alone: bool
    exit_due: bool
    stopping: Optional[str]

    def __init__(self, connection: Any = None) -> None:
        """`Session.open()` is for people; connection: what `_cairn.open` returned, or None."""
        self._connection = connection
        self.alone = connection is None
        self.exit_due = False
        self.stopping = None
        self._finished = 0
        self._unknown: set[str] = set()
        if connection is None:
            self.job, self.generation, self.has_state = "", 1, False
            self.rank = int(os.environ.get("RANK", "0"))
            self.size = int(os.environ.get("WORLD_SIZE", "1"))
        else:
            self.job, self.generation, self.rank, self.size, has_state, _, _ = connection.info()
            self.has_state = bool(has_state)
            this = weakref.ref(self)
            os.register_at_fork(after_in_child=lambda: _forget(this))
            # Before an interpreter that ends frees what is being copied.
            weakref.finalize(self, connection.close)

    @classmethod
    def open(cls, *, sigterm: bool = True) -> "Session":
        """Connects to Cairn, where the program runs under it; else returns a session that does nothing.

        sigterm: SIGTERM to this process asks for a save, whatever the process does just then, and training ends after it. A handler of
        the program's own, if one is installed before, stays, and this one isn't.
        """
        if "CAIRN_SOCKET" not in os.environ:
            return cls(None)
        from . import _cairn
        try:
            return cls(_cairn.open(f"{CLIENT} {version()}", sigterm))
        except errors.NotFound:
            return cls(None)

    # ---- the state to go on from ----

    def restore(self) -> Optional[Stored]:
        """The state to go on from; None: there is none, begin anew."""
        if self._connection is None:
            return None
        found = self._connection.restore()
        return None if found is None else Stored(found)

    def layout(self, tensors: Sequence[Sequence[Any]], blob_bytes: int = 0) -> None:
        """Describes what is saved: (name, dtype, kind, shape[, flags[, start, extent]]) for each tensor.

        dtype and kind have the numbers of `library/cairn.h`; `cairn.DTYPES` has the dtypes by name. start and extent are the box that
        this rank has of a SHARDED one. blob_bytes: most bytes that the blobs of a save have together.
        """
        if self._connection is None:
            return
        rows = []
        for name, dtype, kind, shape, *rest in tensors:
            flags, start, extent = (list(rest) + [0, None, None][len(rest):])
            rows.append((name, dtype, kind, flags, tuple(shape), start, extent))
        self._connection.layout(rows, blob_bytes)

    def ready(self, step: int, total: int, per_epoch: int = 0) -> None:
        """Says that training begins after `step` finished steps, and ends after `total`."""
        self._finished = step
        if self._connection is not None:
            self._connection.ready(step, total, per_epoch)

    # ---- steps ----

    def step(self, finished: int) -> int:
        """Notes that so many steps are finished. Returns what is due: NOTHING, COPY, SAVE or SAVE_AND_EXIT."""
        self._finished = finished
        if self._connection is None:
            return NOTHING
        due: int = self._connection.step(finished)
        if due == SAVE_AND_EXIT:
            self.exit_due = True
        return due

    def beat(self) -> None:
        """Notes that something goes on within a step: an evaluation, a download. Any thread."""
        if self._connection is not None:
            self._connection.beat()

    # ---- saves ----

    def begin(self, finished: int, addresses: Optional[Sequence[int]] = None) -> bool:
        """Begins a save; False: there is nothing to do. addresses: where each tensor is, in the order of the layout (an array("Q")
        is quickest). The memory has to stay, and stay the same, until `copied`."""
        return self._connection is not None and bool(self._connection.save_begin(finished, addresses))

    def blob(self, name: str, data: Union[bytes, bytearray, memoryview]) -> None:
        """Adds bytes of this rank to the save."""
        if self._connection is not None:
            self._connection.save_blob(name, data)

    def start(self) -> None:
        """Begins to copy, beside what the program does next."""
        if self._connection is not None:
            self._connection.save_start()

    def copied(self) -> None:
        """Waits until the save is copied, and the state may change. Returns at once if none is under way."""
        if self._connection is not None:
            self._connection.save_copied()

    def cancel(self) -> None:
        """Gives up a save that was begun and not started."""
        if self._connection is not None:
            self._connection.save_cancel()

    def finish(self, finished: int) -> None:
        """Waits until the save of the last step, or of one before leaving, is kept on all ranks."""
        if self._connection is not None:
            self._connection.finish(finished)

    def last(self, finished: int, reason: str = "the program ends") -> None:
        """Says that the program ends by itself with this step, before `total` (early stopping), and waits until all ranks have said so.

        After the step, best before anything of it is saved. Then its save is due, and `finish` follows; the job is done, and `cairn why`
        tells the reason. All ranks say the same step, or the job fails.
        """
        self.stopping = None
        if self._connection is not None:
            self._connection.last(finished, reason.encode()[:127].decode(errors="ignore"))

    def stop(self, reason: str = "the program stops") -> None:
        """Ends a loop of `cairn.torch.steps` with the step that is under way, before its last one; all ranks do so in the same step."""
        self.stopping = reason

    # ---- words ----

    def want(self, reason: str = "the program asks", *, leaves: bool = False, grace: float = 0.0) -> None:
        """Asks for a save soon; leaves: this process has to end within so many seconds. Any thread."""
        if self._connection is not None:
            self._connection.want(leaves, int(grace * 1000), reason)

    def log(self, numbers: Mapping[str, Any], step: Optional[int] = None) -> None:
        """Shows numbers of a step: "loss", "lr", "grad_norm", "eval_loss", "eval_accuracy", "samples_per_s". Rank 0's count.

        Values are what `float()` takes; a tensor on a GPU is waited for. Other names are left out, with a warning once.
        """
        if self._connection is None or not numbers:
            return
        names = tuple(numbers)
        values = tuple(float(value.detach() if hasattr(value, "detach") else value) for value in numbers.values())
        if not self._connection.log(self._finished if step is None else step, names, values):
            new = set(names) - self._unknown - {"loss", "lr", "grad_norm", "eval_loss", "eval_accuracy", "samples_per_s"}
            self._unknown |= new
            if new:
                warnings.warn(f"cairn shows no numbers of this name: {', '.join(sorted(new))}", stacklevel=2)

    def fail(self, message: str) -> None:
        """Says why this process is about to fail; `cairn why` tells it."""
        if self._connection is not None:
            self._connection.fail(message)

    def close(self) -> None:
        """Ends the connection, which says nothing about the job."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, kind: Optional[type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]) -> None:
        """Says why, if an exception ends the program; then closes."""
        if error is not None and not isinstance(error, (SystemExit, KeyboardInterrupt, GeneratorExit, errors.Stale, errors.Closed)):
            try:
                self.fail(f"{type(error).__name__}: {error}"[:1000])
            except errors.Error:
                pass  # the exception itself says more
        try:
            self.close()
        except errors.Error as failed:
            print(f"cairn: {failed}", file=sys.stderr)


def _forget(this: "weakref.ref[Session]") -> None:
    """In a forked child: the connection is its parent's."""
    session = this()
    if session is not None and session._connection is not None:
        session._connection.close()


def version() -> str:
    """The package's version, as its metadata has it; "source" where it isn't installed."""
    from importlib import metadata
    try:
        return metadata.version("cairn")
    except metadata.PackageNotFoundError:
        return "source"
