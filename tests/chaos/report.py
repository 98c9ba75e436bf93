"""The log of a run, a line per fault, and its summary as text and as JSON."""
import json
import threading
import time
from collections import Counter

from jobs import causes


class Report:
    """Written to by the keepers' threads, too."""

    def __init__(self, folder):
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.begin = time.monotonic()
        self.lock = threading.Lock()
        self.log = (folder / "chaos.log").open("w", encoding="utf-8")
        self.faults, self.nobody, self.violations, self.jobs, self.asked = Counter(), Counter(), [], [], Counter()
        self.left_over = {}  # {what: how many}
        self.disk_mib = []

    def now(self):
        return time.monotonic() - self.begin

    def line(self, text):
        with self.lock:
            line = f"{self.now():8.1f} s  {text}"
            print(line, flush=True)
            self.log.write(line + "\n")
            self.log.flush()

    def fault(self, kind, victim, job):
        self.faults[kind] += 1
        what = f"{job.name} at step {job.step}" if job else "-"
        self.line(f"{kind:<22} {what:<32} {victim}")

    def no_victim(self, kind):
        self.nobody[kind] += 1
        self.line(f"{kind:<22} nobody to do it to")

    def violation(self, text):
        with self.lock:
            self.violations.append(text)
        self.line(f"VIOLATION: {text}")

    def job_ended(self, job):
        with self.lock:
            self.jobs.append(job)
        self.line(f"{job.name} ended in generation {job.shown['generation']} after {len(job.faults)} failures, "
                  f"its digest is the quiet run's")

    def summary(self, what, all_jobs, memory, kinds, skipped):
        """what: {seed, minutes, rate, command, …}; all_jobs: those of the chaos, over or not."""
        lost, seconds = Counter(), 0.0
        for job in self.jobs:
            lost.update({part: float(value) for part, value in job.shown["lost_seconds"].items()})
            seconds += seconds_between(job.shown["submitted_at"], job.shown["ended_at"]) - job.paused_s
        recoveries = Counter(kind for job in all_jobs for kind in job.recoveries.values())
        return {
            **what,
            "faults": sum(self.faults.values()), "faults_by_kind": {kind: self.faults[kind] for kind in kinds},
            "nobody_to_hit": dict(self.nobody), "skipped": skipped,
            "recoveries": sum(recoveries.values()), "recoveries_by_kind": dict(recoveries.most_common()),
            "failures_by_cause": dict(causes(all_jobs).most_common()),
            "asked": dict(self.asked),
            "jobs_submitted": len(all_jobs), "jobs_succeeded": len(self.jobs),
            "generations": sum(job.shown["generation"] for job in self.jobs),
            "job_seconds": round(seconds, 1), "lost_seconds": {part: round(value, 1) for part, value in lost.items()},
            "goodput": round(1 - sum(lost.values()) / seconds, 4) if seconds else None,
            "coordinator_memory": memory, "left_over": self.left_over,
            "disk_mib": {"start": self.disk_mib[0], "end": self.disk_mib[-1], "most": max(self.disk_mib)}
                        if self.disk_mib else {},
            "violations": self.violations,
        }

    def write(self, summary):
        (self.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
        text = "\n".join(text_of(summary)) + "\n"
        (self.folder / "summary.txt").write_text(text, encoding="utf-8")
        (self.folder / "summary.md").write_text("\n".join(markdown_of(summary)) + "\n", encoding="utf-8")
        print(text, flush=True)
        self.log.close()


def seconds_between(start, end):
    from datetime import datetime
    start, end = (datetime.fromisoformat(text.replace("Z", "+00:00")) for text in (start, end))
    return (end - start).total_seconds()


def text_of(s):
    yield f"seed {s['seed']}, {s['minutes']} min in {s['world']}, {s['rate']} faults a minute planned"
    yield (f"{s['faults']} faults, {s['recoveries']} recoveries, {s['jobs_succeeded']} of {s['jobs_submitted']} jobs "
           f"succeeded with the quiet run's digest")
    if s["goodput"] is not None:
        parts = ", ".join(f"{part} {value}" for part, value in s["lost_seconds"].items())
        yield f"goodput {s['goodput']:.1%} of {s['job_seconds']} s of jobs; lost seconds: {parts}"
    m = s["coordinator_memory"]
    if m["samples"]:
        yield (f"coordinator's memory, {m['lives']} lives: {m['start_mib']} MiB at first, {m['end_mib']} at last, "
               f"{m['most_mib']} at most; {m['slope_mib_per_min']} MiB a minute within lives, "
               f"{m['level_mib_per_min']} across them")
    if s["disk_mib"]:
        yield f"written beside the store: {s['disk_mib']['start']} MiB at first, {s['disk_mib']['end']} at last"
    if s["left_over"]:
        yield "left over: " + ", ".join(f"{name} {count}" for name, count in s["left_over"].items())
    for title, rows in (("faults", s["faults_by_kind"]), ("recoveries from", s["recoveries_by_kind"]),
                        ("failures as told", s["failures_by_cause"]), ("people asked", s["asked"]),
                        ("nobody to do it to", s["nobody_to_hit"]), ("skipped", s["skipped"])):
        if rows:
            yield f"{title}:"
            yield from (f"  {count!s:>5}  {name}" if title != "skipped" else f"  {name}: {count}"
                        for name, count in rows.items())
    yield from (f"VIOLATION: {text}" for text in s["violations"])
    yield f"repeat: {s['command']}"


def markdown_of(s):
    """As docs/chaos.md has it: a row for its table, then what was done and what came of it."""
    kinds = sum(count > 0 for count in s["faults_by_kind"].values())
    equal = f"{s['jobs_succeeded']} of {s['jobs_submitted']} succeeded, digests equal"
    goodput = f"{s['goodput']:.1%}" if s["goodput"] is not None else "-"
    m = s["coordinator_memory"]
    memory = (f"{m['start_mib']} MiB at first, {m['end_mib']} at last, {m['most_mib']} at most, {m['lives']} lives"
              if m["samples"] else "-")
    yield "| run | faults | failures that a job told | jobs | goodput | coordinator's memory |"
    yield "| --- | --- | --- | --- | --- | --- |"
    yield (f"| `--minutes {s['minutes']} --seed {s['seed']} --rate {s['rate']}`, {s['world']} | "
           f"{s['faults']} of {kinds} kinds | {sum(s['failures_by_cause'].values())} | "
           f"{equal} | {goodput} | {memory} |")
    for title, rows in (("fault", s["faults_by_kind"]), ("recovery from", s["recoveries_by_kind"]),
                        ("left over", s["left_over"])):
        yield from ("", f"| {title} | |", "| --- | --- |", *(f"| {name} | {count} |" for name, count in rows.items()))
    yield ""
    yield f"{len(s['violations'])} violations."
