"""The coordinator's memory over a run.

Its own pages (RssAnon) are sampled each second, by life, as chaos kills it now and then. Three numbers:

  ratio  the median of the last minute over that of the first (of a warm one: quiet runs came before)
  slope  MiB a minute over the second half, by age within lives: one line for all of them, each life with its own
         height (least squares), of samples that are older than WARM_S: what grows while it lives
  level  MiB a minute over the second half, by time across lives: medians of their samples of one span of ages,
         YOUNG_S: what grows with the journal

Bounds. One life of 8.5 minutes (seed 12, eight faults a minute) began with 8.6 MiB, came to between 11.5 and 15 within
four minutes, with peaks of 18.7, and stayed there: half-minutes' means moved by 1.5 MiB up and down and were the lowest,
11.6, in its last minutes. So a life is judged once it is warm, and where there are enough such samples (JUDGED_S) that a
peak doesn't make a slope: 1.5 MiB in that time is 0.15 a minute. A leak of 1 KiB for each report of a step (three jobs,
some hundred steps a second together) would be 6 MiB a minute and more. SLOPE_MIB lies between. What is slower is left to
the ratio: 8 MiB more than at first.
"""
from statistics import median

WARM_S = 240
YOUNG_S = (20, 80)
JUDGED_S = 600  # of samples, one each second
SLOPE_MIB = 1.0
RATIO = 1.5
SLACK_MIB = 8  # a small process's ratio says little


def own_mib(pid):
    """None: it is gone."""
    try:
        with open(f"/proc/{pid}/status", encoding="utf-8") as file:
            return next(int(line.split()[1]) / 1024 for line in file if line.startswith("RssAnon:"))
    except (OSError, StopIteration):
        return None


def slope(points):
    """Per unit of x, of [(group, x, y)]: each group has its own mean. 0: nothing to tell it from."""
    groups = {}
    for group, x, y in points:
        groups.setdefault(group, []).append((x, y))
    above = below = 0.0
    for pairs in groups.values():
        mean_x = sum(x for x, _ in pairs) / len(pairs)
        mean_y = sum(y for _, y in pairs) / len(pairs)
        above += sum((x - mean_x) * (y - mean_y) for x, y in pairs)
        below += sum((x - mean_x) ** 2 for x, _ in pairs)
    return above / below if below else 0.0


class Memory:
    def __init__(self):
        self.samples = []  # (time in s, pid, MiB)
        self.born = {}

    def sample(self, now, pid):
        mib = own_mib(pid)
        if mib is not None:
            self.born.setdefault(pid, now)
            self.samples.append((now, pid, mib))

    def write(self, path):
        lines = [f"{now:.1f}\t{pid}\t{mib:.3f}\n" for now, pid, mib in self.samples]
        path.write_text("".join(["seconds\tpid\tMiB\n", *lines]), encoding="utf-8")

    def numbers(self):
        if not self.samples:
            return {"samples": 0}
        begin, end = self.samples[0][0], self.samples[-1][0]
        half = [(pid, now, now - self.born[pid], mib) for now, pid, mib in self.samples if now >= (begin + end) / 2]
        warm = [(pid, age / 60, mib) for pid, _, age, mib in half if age >= WARM_S]
        young = {}
        for pid, now, age, mib in half:
            if YOUNG_S[0] <= age <= YOUNG_S[1]:
                young.setdefault(pid, []).append((now / 60, mib))
        levels = [("all", median(now for now, _ in own), median(mib for _, mib in own)) for own in young.values()]
        return {
            "samples": len(self.samples), "lives": len(self.born), "seconds": round(end - begin),
            "start_mib": round(median(mib for now, _, mib in self.samples if now < begin + 60), 2),
            "end_mib": round(median(mib for now, _, mib in self.samples if now > end - 60), 2),
            "most_mib": round(max(mib for _, _, mib in self.samples), 2),
            "slope_mib_per_min": round(slope(warm), 3), "slope_samples": len(warm),
            "level_mib_per_min": round(slope(levels), 3),
        }

    def violations(self):
        n = self.numbers()
        if not n["samples"]:
            return ["the coordinator's memory was never seen"]
        lines = []
        if n["end_mib"] > max(n["start_mib"] * RATIO, n["start_mib"] + SLACK_MIB):
            lines.append(f"the coordinator grew from {n['start_mib']} to {n['end_mib']} MiB")
        enough = {"slope_mib_per_min": n["slope_samples"], "level_mib_per_min": n["seconds"] / 2}
        for name, samples in enough.items():
            if samples >= JUDGED_S and n[name] > SLOPE_MIB:
                lines.append(f"the coordinator's memory grows by {n[name]} MiB a minute ({name})")
        return lines
