"""A program of a user's in plain Python, for test_held.py: two ranks that add numbers, one of which is held somewhere.

    held_program.py FOLDER STEPS PLACE STEP

At that step, once, rank 0 is for a long time
    late       waiting for rank 1, which comes late        extension  in C code that holds Python's lock
    stopped    stopped (SIGSTOP) while it fills in the save of that step
FOLDER gets `PLACE.RANK` when the rank is there, `pid.RANK`, and `STEP.RANK` as each step is finished.
"""
import array
import os
import signal
import sys
import time
from pathlib import Path

import cairn
from held import hold_lock

FOLDER, STEPS, PLACE, AT = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
RANK = int(os.environ["RANK"])
LONG_S = 600


def enter(place, step):
    """Whether the program is to be held here; once."""
    mark = FOLDER / f"{place}.{RANK}"
    if (place, step) != (PLACE, AT) or mark.exists():
        return False
    mark.touch()
    return True


def meet(step):
    """As a collective: waits for the other rank."""
    (FOLDER / f"{step}.{RANK}").touch()
    while not (FOLDER / f"{step}.{1 - RANK}").exists():
        time.sleep(0.005)


def main():
    (FOLDER / f"pid.{RANK}").write_text(str(os.getpid()), encoding="utf-8")
    weights = array.array("d", [1.0, -2.0, 0.5])
    with cairn.Session.open() as session:
        state, step = session.restore(), 0
        if state is not None:
            step = state.step
            state.read_into("weights", weights)
        session.layout([("weights", cairn.DTYPES["float64"], cairn.REPLICATED, (3,))], blob_bytes=64)
        session.ready(step, STEPS)
        while step < STEPS:
            time.sleep(0.03)
            if enter("extension", step) and RANK == 0:
                hold_lock(LONG_S)
            if enter("late", step) and RANK == 1:
                time.sleep(LONG_S)
            meet(step)
            session.copied()
            for at in range(3):
                weights[at] += 1.0 / (step + at + 1)
            step += 1
            due = session.step(step)
            if due and session.begin(step, [weights.buffer_info()[0]]):
                if enter("stopped", step) and RANK == 0:
                    os.kill(os.getpid(), signal.SIGSTOP)
                session.blob("rank", bytes([RANK]))
                session.start()
            if due == cairn.SAVE_AND_EXIT:
                break
        session.finish(step)
    print(f"at {step}: {[weight.hex() for weight in weights]}", flush=True)


if __name__ == "__main__":
    main()
