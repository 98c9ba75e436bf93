"""Random states of a process: Python's, NumPy's, PyTorch's on the CPU and on every GPU in use."""
from __future__ import annotations

import random
import struct
import sys
from typing import Any

import torch


def capture() -> dict[str, Any]:
    """All of them, as plain values. NumPy's is its global one; generators of the program's own go to `State(extra=…)`."""
    version, words, gauss = random.getstate()
    found: dict[str, Any] = {"python": (version, struct.pack(f"<{len(words)}I", *words), gauss)}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, position, has_gauss, cached = numpy.random.get_state()
        found["numpy"] = (name, keys.tobytes(), int(position), int(has_gauss), float(cached))
    found["torch"] = torch.get_rng_state().numpy().tobytes() if numpy is not None else bytes(torch.get_rng_state().tolist())
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        found["cuda"] = [bytes(torch.cuda.get_rng_state(at).tolist()) for at in range(torch.cuda.device_count())]
    return found


def restore(found: dict[str, Any]) -> None:
    """Sets what was captured."""
    version, words, gauss = found["python"]
    random.setstate((version, struct.unpack(f"<{len(words) // 4}I", words), gauss))
    if "numpy" in found:
        import numpy
        name, keys, position, has_gauss, cached = found["numpy"]
        numpy.random.set_state((name, numpy.frombuffer(keys, dtype=numpy.uint32), position, has_gauss, cached))
    torch.set_rng_state(torch.frombuffer(bytearray(found["torch"]), dtype=torch.uint8))
    for at, state in enumerate(found.get("cuda", ())):
        if torch.cuda.is_available() and at < torch.cuda.device_count():
            torch.cuda.set_rng_state(torch.frombuffer(bytearray(state), dtype=torch.uint8), at)
