#!/usr/bin/env python3
"""Learning rates of PyTorch's and transformers' schedulers: writes schedules.json here.

    make_schedules.py    needs torch and transformers; a second

Their warm-ups are s/w at step s of w, Cairn's are (s + 1)/w: rates are kept from step w on. OneCycleLR has no such step.
"""
import json
import os

import torch
from transformers import optimization as theirs

HERE = os.path.dirname(os.path.abspath(__file__))
LR, TOTAL, WARMUP = 0.3, 60, 10


def rates(make, first):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=LR)
    scheduler = make(optimizer)
    out = []
    for _ in range(TOTAL):
        out.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return out[first:]


def cases():
    yield "linear", {}, lambda o: theirs.get_linear_schedule_with_warmup(o, WARMUP, TOTAL)
    for power in (0.5, 1.0, 2.0, 2.7):
        yield "polynomial", {"power": power, "min": 0.1}, \
            lambda o, p=power: theirs.get_polynomial_decay_schedule_with_warmup(o, WARMUP, TOTAL, lr_end=0.1 * LR, power=p)
    yield "inverse_sqrt", {}, lambda o: theirs.get_inverse_sqrt_schedule(o, WARMUP)
    yield "inverse_sqrt", {"warmup": 0}, lambda o: theirs.get_inverse_sqrt_schedule(o, 0)
    yield "cosine", {}, lambda o: theirs.get_cosine_schedule_with_warmup(o, WARMUP, TOTAL)
    for end in (0.0, 0.2):
        yield "wsd", {"decay": 15, "min": end}, \
            lambda o, e=end: theirs.get_wsd_schedule(o, WARMUP, 15, num_training_steps=TOTAL, decay_type="linear",
                                                     min_lr_ratio=e)
    yield "one_cycle", {"start": 0.04, "min": 4e-6}, \
        lambda o: torch.optim.lr_scheduler.OneCycleLR(o, LR, total_steps=TOTAL, pct_start=WARMUP / TOTAL)


def main():
    rows = []
    for name, options, make in cases():
        row = {"name": name, "lr": LR, "total": TOTAL, "warmup": WARMUP, **options}
        row["first"] = 0 if name == "one_cycle" else row["warmup"]
        rows.append({**row, "rates": rates(make, row["first"])})
    with open(os.path.join(HERE, "schedules.json"), "w", encoding="utf-8") as f:
        f.write("[\n" + ",\n".join(" " + json.dumps(row) for row in rows) + "\n]\n")


if __name__ == "__main__":
    main()
