"""The coordinator's memory over a run.

Its own pages (RssAnon) are sampled each second, by life, as chaos kills it now and then. Three numbers:

  ratio  the median of the last minute over that of the first (of a warm one: quiet runs came before)
  slope  MiB a minute over the second half, by age within lives: one line for all of them, each life with its own
         height (least squares), of samples from AGE_S on: what grows while it lives
  level  MiB a minute over the second half, by time across lives: medians of their samples from AGE_S on: what
         grows with the journal

Bounds. An hour of chaos is some ten jobs of each kind and a few thousand rows of the journal, of which the coordinator
keeps in memory what `show` needs: below 64 KiB a job. With 3 jobs a minute at most, that is 0.2 MiB a minute; what
an allocator keeps after a peak comes on top, once a life. A leak of 1 KiB for each report of a step (three jobs, some
hundred steps a second together) would be 6 MiB a minute and more. SLOPE_MIB lies between; it is judged where the second
half is long enough that one allocator's step of a MiB doesn't decide it (JUDGED_S).
"""
from statistics import median

AGE_S = 20
JUDGED_S = 300
SLOPE_MIB = 0.5
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
        half = [(now, pid, mib) for now, pid, mib in self.samples
                if now >= (begin + end) / 2 and now - self.born[pid] >= AGE_S]
        lives = {pid: [(now, mib) for now, other, mib in half if other == pid] for pid in {pid for _, pid, _ in half}}
        levels = [("all", median(now for now, _ in own) / 60, median(mib for _, mib in own)) for own in lives.values()]
        return {
            "samples": len(self.samples), "lives": len(self.born), "seconds": round(end - begin),
            "start_mib": round(median(mib for now, _, mib in self.samples if now < begin + 60), 2),
            "end_mib": round(median(mib for now, _, mib in self.samples if now > end - 60), 2),
            "most_mib": round(max(mib for _, _, mib in self.samples), 2),
            "slope_mib_per_min": round(slope([(pid, (now - self.born[pid]) / 60, mib) for now, pid, mib in half]), 3),
            "level_mib_per_min": round(slope(levels), 3),
        }

    def violations(self):
        n = self.numbers()
        if not n["samples"]:
            return ["the coordinator's memory was never seen"]
        lines = []
        if n["end_mib"] > max(n["start_mib"] * RATIO, n["start_mib"] + SLACK_MIB):
            lines.append(f"the coordinator grew from {n['start_mib']} to {n['end_mib']} MiB")
        if n["seconds"] / 2 >= JUDGED_S:
            for name in ("slope_mib_per_min", "level_mib_per_min"):
                if n[name] > SLOPE_MIB:
                    lines.append(f"the coordinator's memory grows by {n[name]} MiB a minute ({name})")
        return lines
