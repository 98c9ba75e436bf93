"""A program without PyTorch for tests: trains two numbers by hand, prints them exactly.

    plain_program.py STEPS [die|last STEP]
"""
import array
import os
import random
import signal
import sys

import cairn

F64, I64 = cairn.DTYPES["float64"], cairn.DTYPES["int64"]


def main(total, die=0, last=0):
    weights, seen = array.array("d", [1.0, -2.0, 0.5]), array.array("q", [0])
    random.seed(5)
    with cairn.Session.open() as session:
        state = session.restore()
        step = 0
        if state is not None:
            step = state.step
            state.read_into("weights", weights)
            state = state.of(session.rank)
            state.read_into("seen", seen)
            random.setstate(eval(state.blob("random")))  # its own words
        print(f"from {step} alone {session.alone}", flush=True)
        session.layout([("weights", F64, cairn.REPLICATED, (3,)), ("seen", I64, cairn.PRIVATE, (1,), cairn.COPY_NOW)], blob_bytes=32768)
        session.ready(step, total)
        while step < total:
            gradient = [random.random() * weight for weight in weights]
            session.copied()
            for at, slope in enumerate(gradient):
                weights[at] -= 0.1 * slope
            seen[0] += session.rank + 1
            step += 1
            if step == last:
                session.last(step, "it is good enough ×")
                total = step
            due = session.step(step)
            session.log({"loss": weights[0]})
            if due and session.begin(step, array.array("Q", [weights.buffer_info()[0], seen.buffer_info()[0]])):
                session.blob("random", repr(random.getstate()).encode())
                session.start()
            if step == die:
                session.copied()
                os.kill(os.getpid(), signal.SIGKILL)
            if due == cairn.SAVE_AND_EXIT:
                break
        session.finish(step)
    print(f"digest {[weight.hex() for weight in weights]} {seen[0]} {random.random()!r}")


if __name__ == "__main__":
    main(int(sys.argv[1]), **{sys.argv[2]: int(sys.argv[3])} if len(sys.argv) > 3 else {})
