#!/usr/bin/env python3
"""Where a step's time goes on a GPU: adds up what bench/gpu_timeline.c wrote.

    gpu_timeline.py FILE [--update NAME] [--step N] [--rows N]

A step ends with the last kernel whose name has NAME in it (by default an optimizer's); the middle one is shown unless
--step names another. Prints the steps' lengths, then of that step how long the device was busy and its kernels, the
longest first.
"""
import argparse
import collections


def read(path):
    """(start, duration, name) of all that ran, in order."""
    events = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for line in lines:
            if line[0] == "K":
                parts = line.rstrip("\n").split(" ", 8)
                events.append((int(parts[1]), int(parts[2]), parts[8]))
            elif line[0] in "MS":
                parts = line.split()
                kind = {"1": "copy to the device", "2": "copy to the host"}.get(parts[-1], "copy")
                events.append((int(parts[1]), int(parts[2]), kind if line[0] == "M" else "fill"))
    return sorted(events)


def ends_of_steps(events, updates):
    """Where updates end: those without another kernel of the forward pass between belong together."""
    marks = [i for i, event in enumerate(events) if any(name in event[2] for name in updates)]
    return [a for a, b in zip(marks, marks[1:] + [None]) if b is None or b - a > 20]


def busy_ns(events):
    total, end = 0, 0
    for start, duration, _ in events:
        total += max(0, start + duration - max(start, end))
        end = max(end, start + duration)
    return total


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("file")
    parser.add_argument("--update", default="adamw_each,sgd_each")
    parser.add_argument("--step", type=int)
    parser.add_argument("--rows", type=int, default=40)
    args = parser.parse_args()
    events = read(args.file)
    ends = ends_of_steps(events, args.update.split(","))
    if len(ends) < 2:
        raise SystemExit(f"{args.file}: no two updates")
    print("steps, ms:", " ".join(f"{(events[b][0] - events[a][0]) / 1e6:.2f}" for a, b in zip(ends, ends[1:])))
    step = len(ends) // 2 if args.step is None else args.step
    first, last = ends[step - 1], ends[step]
    chosen = events[first:last]
    print(f"step {step}: {(events[last][0] - events[first][0]) / 1e6:.2f} ms, "
          f"busy {busy_ns(chosen) / 1e6:.2f}, {len(chosen)} launches")
    sums = collections.defaultdict(lambda: [0, 0])
    for _, duration, name in chosen:
        sums[name][0] += 1
        sums[name][1] += duration
    for name, (count, total) in sorted(sums.items(), key=lambda row: -row[1][1])[:args.rows]:
        print(f"{total / 1e6:9.3f} ms {count:4d} x {total / count / 1e3:9.1f} us  {name[:110]}")


if __name__ == "__main__":
    main()
