"""How long Session.step takes where nothing is due, for bench/pytorch/recovery.py; prints nanoseconds."""
import time

import cairn

COUNT = 1_000_000
with cairn.Session.open() as session:
    session.restore()
    session.layout([("one", 1, 1, (1,))], 64)
    session.ready(0, COUNT + 1)
    call = session.step
    begun = time.perf_counter_ns()
    for at in range(1, COUNT + 1):
        call(at)
    took = (time.perf_counter_ns() - begun) / COUNT
    print(f"step() {took:.0f} ns", flush=True)
    import array
    import ctypes
    value = ctypes.c_float(1)
    session.step(COUNT + 1)
    session.begin(COUNT + 1, array.array("Q", [ctypes.addressof(value)]))
    session.start()
    session.finish(COUNT + 1)
