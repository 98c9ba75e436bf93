"""The state of a PyTorch program."""
from __future__ import annotations

import hashlib
import random
import sys
import time
import warnings
from typing import Any, Iterable, Mapping, Optional

import torch

from .. import errors, plain
from ..session import COPY_NOW, NOTHING, PRIVATE, Session
from ..stored import Stored
from . import randoms
from .gather import Gathered, Known, Piece, Reference, encode_hook, model_tensors, optimizer_tensors, parameter_names, parameters_of, unwrapped
from .restoring import BLOB, Reader, extra_tree, private_names, restore_extra, restore_model, restore_optimizer
from .staging import Staging

FORMING_MAX = 100  # steps without an update of every optimizer


def _named(what: Any, name: str) -> list[tuple[str, Any]]:
    """One object, or a dictionary or a list of them, with names."""
    if what is None:
        return []
    if isinstance(what, Mapping):
        return [(f"{name}.{key}", item) for key, item in what.items()]
    if isinstance(what, (list, tuple)):
        return [(f"{name}.{at}", item) for at, item in enumerate(what)]
    return [(name, what)]


class State:
    """What is saved of a PyTorch program, and set again after a failure.

        state = cairn.torch.State(model=model, optimizer=optimizer, scheduler=scheduler, scaler=scaler)

    model, optimizer, scheduler, scaler: an object, or a dictionary of several (`model={"net": net, "average": average}`). extra: a
    dictionary of anything else: objects with state_dict and load_state_dict, generators of PyTorch's and NumPy's, tensors, dictionaries
    and lists of plain values. Its tensors are each rank's own.

    What is saved:
      - Parameters and the optimizer's tensors: once, since all ranks hold the same (DistributedDataParallel sees to it), or as boxes
        where they are DTensors (`fully_shard`, tensor parallelism). Tied ones once. Names: `model.layer.weight`,
        `optimizer.state.layer.weight.exp_avg`.
      - Buffers (batch norm's): each rank's own. So is what matches one of the patterns in `private` ("model.head.*").
      - The rest of the optimizer, scheduler, scaler and extra, as plain values; other objects are refused by their names.
      - Random states: Python's, NumPy's global one, PyTorch's of the CPU and of the GPUs.
      - gradients=True: gradients, each rank's own, for programs that count a step before the optimizer's. Gradients that `fully_shard`
        holds back are not among them.
    Not saved: where a plain DataLoader is (use `Batches`), what its workers have drawn (use `seeded`), what lives elsewhere.

    Copies are made beside the next forward and backward. The optimizer's step waits for them, by a hook; parameters must not change
    before it otherwise, unless `state.copied()` is called before.

    A state has a fixed set of tensors. Adam, for one, makes its own in the first update: so on a fresh start nothing is saved before each
    optimizer has made a step. Parameters that get their first gradient later are refused then, and LBFGS always.

    `steps` makes all calls that follow. Loops of other people's: restore, step and finish are enough.
    """

    def __init__(self, *, model: Any, optimizer: Any = None, scheduler: Any = None, scaler: Any = None,
                 extra: Optional[Mapping[str, Any]] = None, private: Iterable[str] = (), gradients: bool = False, room: int = 0) -> None:
        """room: bytes beyond what plain values take now, for those that grow."""
        self.models = _named(model, "model")
        self.optimizers = [(name, getattr(item, "optimizer", item)) for name, item in _named(optimizer, "optimizer")]
        self.others = _named(scheduler, "scheduler") + _named(scaler, "scaler")
        self.extra = [(f"extra.{name}", item) for name, item in (extra or {}).items()]
        self._private = tuple([private] if isinstance(private, str) else private)
        self._gradients = gradients
        self._room = room
        self._rows: Optional[list[Any]] = None  # of the layout
        self._known: dict[str, Known] = {}
        self._names: dict[str, tuple[list[int], list[str]]] = {}
        self._staging = Staging()
        self._session: Optional[Session] = None
        self._total = self._per_epoch = 0
        self._held: Any = None  # tensors of the save under way
        self._to_start = False  # a save is begun, and its tensors are on their way from a GPU
        self._random: Optional[dict[str, Any]] = None
        self._stepped: set[str] = set()
        self._unready = 0
        self._hooked = all([self._hook(name, item) for name, item in self.optimizers]) and bool(self.optimizers)

    # ---- what the state is ----

    def gather(self) -> tuple[list[Piece], dict[str, Any]]:
        """All tensors, and the rest as a tree of plain values."""
        into = Gathered(self._private, self._known)
        tree: dict[str, Any] = {"version": 1}
        tree["model"] = {name: model_tensors(item, name, into) for name, item in self.models}
        tree["optimizer"] = {}
        for name, item in self.optimizers:
            tree["optimizer"][name] = optimizer_tensors(item, name, self._names_of(name, item), into)
        tree["other"] = {name: into.tree(item.state_dict(), name, PRIVATE) for name, item in self.others}
        tree["extra"] = {name: extra_tree(item, name, into) for name, item in self.extra}
        if self._gradients:
            tree["gradients"] = self._add_gradients(into)
        tree["aliases"] = into.aliases
        return into.pieces, tree

    def _names_of(self, name: str, optimizer: Any) -> list[str]:
        """A name for each parameter; looked for again only where the optimizer has others."""
        ids = [id(parameter) for parameter in parameters_of(optimizer)]
        if name not in self._names or self._names[name][0] != ids:
            self._names[name] = (ids, parameter_names(self.models, optimizer))
        return self._names[name][1]

    def _add_gradients(self, into: Gathered) -> dict[str, Any]:
        found = {}
        for prefix, module in self.models:
            for name, parameter in unwrapped(module).named_parameters():
                if parameter.requires_grad:
                    gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                    saved = into.add(f"gradient.{prefix}.{name}", gradient, PRIVATE, COPY_NOW)
                    found[f"{prefix}.{name}"] = None if parameter.grad is None else Reference(saved)
        return found

    # ---- restoring ----

    def restore(self, session: Session, total: int, per_epoch: int = 0, *, random_too: bool = True) -> int:
        """Sets everything to the newest state, and tells Cairn that training begins. Returns the number of finished steps; 0 if there is
        no state. random_too False: `restore_random()` follows, after what draws random numbers meanwhile."""
        self._session, self._total, self._per_epoch = session, total, per_epoch
        try:
            if not session.alone:
                self._refuse_growing()
            found = session.restore()
            if found is None:
                if not self.optimizers:
                    self._ready(0)
                return 0
            self.load(found, session.rank, session.size)
        except errors.Error as error:
            session.fail(str(error))
            raise
        if random_too:
            self.restore_random()
        self._ready(found.step)
        return found.step

    def _refuse_growing(self) -> None:
        for name, item in self.optimizers:
            if isinstance(item, torch.optim.LBFGS):
                raise errors.Invalid(f"{name} is LBFGS, whose history grows: what is saved has a fixed set of tensors")

    def load(self, found: Stored, rank: int = 0, size: int = 1) -> None:
        """Sets everything but random states to a stored state, of `cairn.load` for example."""
        reader = Reader(found, rank)
        if not reader.rest:
            raise errors.NotFound(f"this state wasn't saved by cairn.torch: it has no blob {BLOB}")
        for name, module in self.models:
            restore_model(module, name, reader.rest["model"].get(name, {}), reader)
        for name, item in self.optimizers:
            restore_optimizer(item, self._names_of(name, item), self._part(reader, "optimizer", name), reader)
        for name, item in self.others:
            saved = reader.resolve(self._part(reader, "other", name))
            if saved:
                item.load_state_dict(saved)
        for name, item in self.extra:
            restore_extra(item, name, self._part(reader, "extra", name), reader)
        if self._gradients:
            self._load_gradients(reader)
        self._random = reader.rest["random"] if reader.own else {"step": found.step, "rank": rank}
        if size != found.ranks:
            self._warn_of_size(found, size)

    @staticmethod
    def _part(reader: Reader, kind: str, name: str) -> Any:
        if name not in reader.rest[kind]:
            raise errors.Changed(f"the state was saved without {name}")
        return reader.rest[kind][name]

    def _load_gradients(self, reader: Reader) -> None:
        saved = reader.rest.get("gradients", {})
        for prefix, module in self.models:
            for name, parameter in unwrapped(module).named_parameters():
                reference = saved.get(f"{prefix}.{name}")
                parameter.grad = None if reference is None else reader.like(reference.name, parameter).to(parameter.device)

    @staticmethod
    def _warn_of_size(found: Stored, size: int) -> None:
        own = len(list(private_names(found)))
        warnings.warn(f"cairn: {found.ranks} processes saved this state, and {size} go on. {own} tensors were each one's own (batch norm's "
                      "buffers, gradients), and so are random states: new processes get those of others, or are seeded anew. Results are "
                      "those of another run.", stacklevel=3)

    def restore_random(self) -> None:
        """Sets the random states that `restore` has read."""
        found, self._random = self._random, None
        if found is None:
            return
        if "torch" in found:
            randoms.restore(found)
            return
        seed = int.from_bytes(hashlib.sha256(f"{found['step']} {found['rank']}".encode()).digest()[:4], "little")
        random.seed(seed)
        torch.manual_seed(seed)
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed(seed)

    # ---- steps ----

    def step(self, session: Session, finished: int) -> int:
        """Notes that so many steps are finished, and saves what is due. Returns what was due."""
        if session.alone:
            return NOTHING
        if self._rows is None and not self._may_be_ready(finished):
            return NOTHING
        if self._rows is None:
            self._ready(finished)
        due = session.step(finished)
        if due != NOTHING:
            self.save(session, finished)
        return due

    def _may_be_ready(self, finished: int) -> bool:
        waits = sorted({name for name, _ in self.optimizers} - self._stepped) if self._hooked else []
        self._unready += 1
        if waits and self._unready == FORMING_MAX:
            warnings.warn(f"cairn: {', '.join(waits)} made no step in {FORMING_MAX} steps; until each one has, nothing is saved", stacklevel=3)
        return not waits or finished >= self._total

    def _ready(self, finished: int) -> None:
        session = self._session
        assert session is not None
        if session.alone:
            return
        pieces, tree = self.gather()
        self._rows = [piece.row() for piece in pieces]
        blob = self._blob(tree)
        session.layout(self._rows, 2 * len(blob) + 65536 + self._room)
        session.ready(finished, self._total, self._per_epoch)

    def _blob(self, tree: dict[str, Any]) -> bytes:
        made: dict[str, Any] = {"version": tree["version"], "random": plain.tree(randoms.capture(), "random states")}
        for kind in ("model", "optimizer", "other"):
            made[kind] = {name: plain.tree(part, name, encode_hook) for name, part in tree[kind].items()}
        made["extra"] = {name: {way: plain.tree(part, name, encode_hook) for way, part in parts.items()} for name, parts in tree["extra"].items()}
        for kind in ("gradients", "aliases"):
            made[kind] = plain.tree(tree.get(kind, {}), kind, encode_hook)
        return plain.pack(made)

    def save(self, session: Session, finished: int) -> None:
        """Saves now; `step` calls it when it is due."""
        self.copied()
        session.copied()
        pieces, tree = self.gather()
        self._check_rows([piece.row() for piece in pieces])
        blob = self._blob(tree)
        addresses = self._staging.addresses(pieces)
        if not session.begin(finished, addresses):
            return
        try:
            session.blob(BLOB, blob)
        except errors.Full as error:
            session.cancel()
            raise errors.Full(f"plain values take {len(blob)} bytes, more than when training began: State(room=…) makes room") from error
        self._held = pieces
        if self._staging.in_use:
            self._to_start = True
        else:
            session.start()
        if not self._hooked:
            self.copied()

    def _check_rows(self, rows: list[Any]) -> None:
        if rows == self._rows or self._rows is None:
            return
        before, now = {row[0]: row for row in self._rows}, {row[0]: row for row in rows}
        for name in sorted(set(before) | set(now)):
            if before.get(name) == now.get(name):
                continue
            what = "is new" if name not in before else "is gone" if name not in now else f"was {before[name][1:]}, now {now[name][1:]}"
            raise errors.Changed(f"{name} {what}: the tensors of a state are those that it had when training began, after the first update")
        raise errors.Changed("the tensors of the state have another order than when training began")

    def copied(self) -> None:
        """Waits until the save under way is copied, so that the state may change. Hooks call it before each optimizer's step."""
        session = self._session
        if self._held is None or session is None:
            return
        try:
            if self._to_start:
                self._to_start = False
                self._staging.wait()
                session.start()
            else:
                session.copied()
        except (errors.Full, errors.StorageError, errors.NoMemory, errors.Again) as error:
            warnings.warn(f"cairn: this save is given up, training goes on: {error}", stacklevel=2)
        finally:
            self._held = None

    def finish(self, session: Session, finished: int) -> bool:
        """After the last step, or when `session.exit_due`: waits until it is kept on all ranks. False: another rank has passed that step,
        train on."""
        if session.alone:
            return True
        self.copied()
        while True:
            try:
                session.finish(finished)
                return True
            except errors.Refused:
                session.exit_due = False
                return False
            except errors.Again:  # a full store: it is saved once more
                time.sleep(0.05)
                self.save(session, finished)
                self.copied()

    def _hook(self, name: str, optimizer: Any) -> bool:
        if not hasattr(optimizer, "register_step_pre_hook") or not hasattr(optimizer, "register_step_post_hook"):
            return False
        optimizer.register_step_pre_hook(lambda *_: self.copied())
        optimizer.register_step_post_hook(lambda *_: self._stepped.add(name))
        return True

