"""Memory that a copy is taken from, where the state's own can't be.

On the CPU that are tensors whose elements have gaps or another order (`channels_last`): they are made row-major right away. A tensor on a
GPU is copied to pinned memory of the host on a stream of its own, beside the next forward and backward; what is on the CPU in such a
state is copied right away. So the library gets memory that nobody changes, and nobody waits for it before the optimizer's step but for
the GPU's copies. The GPU's part was never run on a GPU.
"""
from __future__ import annotations

from array import array
from typing import Any, Optional

import torch

from .. import errors
from .gather import Piece


class Staging:
    """Where the tensors of one layout are while they are saved."""

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}  # of the host, by name; used again for each save
        self._borrowed: list[torch.Tensor] = []  # until copied
        self._stream: Optional[Any] = None

    def addresses(self, pieces: list[Piece]) -> "array[int]":
        """Begins to stage what has to be; returns where each tensor will be once `wait` has returned."""
        devices = {piece.local.device for piece in pieces if piece.local.device.type != "cpu"}
        if devices:
            if len(devices) > 1 or next(iter(devices)).type != "cuda":
                raise errors.Invalid(f"a state on {sorted(map(str, devices))}: it can be on one GPU for a process, and on the CPU")
            return self._stage_all(pieces, next(iter(devices)))
        self._borrowed = [self._row_major(piece) for piece in pieces]
        return array("Q", [tensor.data_ptr() for tensor in self._borrowed])

    @property
    def in_use(self) -> bool:
        """Whether tensors are on their way from a GPU, for which `wait` waits. What the library copies is staged then."""
        return self._stream is not None

    def wait(self) -> None:
        """Waits for the GPU's copies; the state may change from then on, whatever the library still copies."""
        if self._stream is not None:
            self._stream.synchronize()

    def _row_major(self, piece: Piece) -> torch.Tensor:
        return piece.local if piece.row_major else self._host(piece, False).copy_(piece.local)

    def _host(self, piece: Piece, pinned: bool) -> torch.Tensor:
        kept = self._kept.get(piece.name)
        if kept is None:
            kept = torch.empty(tuple(piece.local.shape), dtype=piece.local.dtype, pin_memory=pinned)
            self._kept[piece.name] = kept
        return kept

    def _stage_all(self, pieces: list[Piece], device: torch.device) -> "array[int]":
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        # What changes in the next forward is copied on the GPU first, in the order of the program.
        sources = [piece.local.clone() if piece.flags and piece.local.device.type == "cuda" else piece.local for piece in pieces]
        self._stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(self._stream):
            for piece, source in zip(pieces, sources):
                self._host(piece, True).copy_(source, non_blocking=True)
                if source.device.type == "cuda":
                    source.record_stream(self._stream)
        return array("Q", [self._kept[piece.name].data_ptr() for piece in pieces])
