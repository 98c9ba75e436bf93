#!/usr/bin/python3
"""Random faults on real processes, by a seed, while three jobs train: everything ends as in a quiet run.

    chaos.py --minutes M --seed S --rate R   R faults a minute for so long
    chaos.py --crowd N ...                   N more jobs at a time, on half of the slots: some always wait
    chaos.py --short                         what CTest runs: a minute; the seed is by the commit
    chaos.py --list ...                      the schedule, and nothing else

The jobs (jobs.py) are submitted again as they end. A violation is: a job that doesn't end as SUCCEEDED with the digest
of the quiet run of its file; a coordinator or an agent that ends without having been killed; anything that is left over
when all is over (leftovers.py); a coordinator whose memory grows (memory.py); a program that says that it has a bug.
Then the exit status is 1 and the command that repeats the run is printed; what cairn's programs wrote is kept. 77:
skipped.

The schedule (what, when, for how long, which one of a stable order) is a function of --seed, --minutes, --rate and of
the kinds that work here; who stands in that order when the time comes, and where it is in its work, is not.
"""
import argparse
import heapq
import itertools
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import leftovers
from jobs import Keeper, job_files
from kinds import KINDS
from memory import Memory
from report import Report
from schedule import schedule
from world import BIN, CROWDED_SLOTS, DAEMONS, ROOT, SLOTS, Machines, OneMachine, descendants, quiet_for
import rooms

SHORT = {"minutes": 0.6, "rate": 24, "scale": 0.1}
SHORT_SEEDS = (1, 2, 3, 5, 8, 13, 21, 34)
SETTLE_S = 30
DISK_S = 30  # between two looks at what the programs wrote
SKIPPED = 77


def kinds_for(world, args):
    return [kind for kind in KINDS if kind.needs not in world.lacks and kind.name not in args.without]


class Run:
    """The main thread's loop. keepers: the slots, in order."""

    def __init__(self, world, report, args):
        self.world, self.report, self.args = world, report, args
        self.kinds = kinds_for(world, args)
        self.skipped = {kind.name: world.lacks[kind.needs] for kind in KINDS if kind.needs in world.lacks}
        self.keepers, self.memory, self.quiet = [], Memory(), {}
        self.held = set()
        self.todo, self.serial = [], itertools.count()  # (when, serial, function)
        self.daemons, self.killed, self.askers = {}, set(), []
        self.measured = -DISK_S

    def later(self, when, function):
        heapq.heappush(self.todo, (when, next(self.serial), function))

    def expect_end(self, pid):
        self.killed.add(pid)

    def ask(self, command, job, *words):
        """As a person would, not waiting for the answer."""
        def does():
            done = self.world.ask(command, job, *words, timeout=90)
            self.report.asked[f"{command}: exit {done.returncode}"] += 1
            if "no answer in 90 s" in done.stderr:
                self.report.violation(f"cairn {command} {job} didn't return within 90 s")
        self.askers.append(threading.Thread(target=does, daemon=True))
        self.askers[-1].start()

    # faults

    def begin_event(self, event):
        kind = next(kind for kind in self.kinds if kind.name == event.kind)
        if self.held & set(kind.holds):
            self.later(self.report.now() + 0.2, lambda: self.begin_event(event))
            return
        done = kind.does(self, event)
        if done is None:
            self.report.no_victim(kind.name)
            return
        if done.victim:
            self.report.fault(kind.name, done.victim, done.job)
        if done.undo:
            self.held |= set(kind.holds)
            self.later(self.report.now() + event.seconds, lambda: self.end_event(kind, done))

    def end_event(self, kind, done):
        self.held -= set(kind.holds)
        victim = done.undo()
        if done.victim:
            return
        if victim:  # who it was is known only now
            self.report.fault(kind.name, victim, None)
        else:
            self.report.no_victim(kind.name)

    # what is looked at each second

    def look(self):
        now = {pid: program for program in DAEMONS for pid in self.world.pids(program)}
        for pid, program in self.daemons.items():
            if pid not in now and pid not in self.killed:
                self.report.violation(f"{program} (pid {pid}) ended, and nobody killed it")
        self.daemons = now
        for pid, program in now.items():
            if program == "cairnd":
                self.memory.sample(self.report.now(), pid)
        if self.report.now() >= self.measured + DISK_S:
            self.measured = self.report.now()
            self.report.disk_mib.append(self.world.disk_mib())

    def loop(self, until):
        """Does what is due until a condition is true."""
        looked = 0.0
        while not until():
            now = self.report.now()
            while self.todo and self.todo[0][0] <= now:
                heapq.heappop(self.todo)[2]()
            if now - looked >= 1:
                looked = now
                self.look()
            time.sleep(0.05)

    # the parts of a run

    def train(self, files, over, prefix="", crowd=0):
        """Jobs of these files, by slot, until over(); then the last ones end, or time is up."""
        self.keepers = [Keeper(self.world, arch, files[arch], self.quiet, self.report, prefix) for arch in files]
        for number, (arch, row) in zip(range(crowd), itertools.cycle(files.items())):
            self.keepers.append(Keeper(self.world, arch, row[1:] + row[:1], self.quiet, self.report, f"crowd{number}-"))
        for keeper in self.keepers:
            keeper.start()
        try:
            self.loop(lambda: over() and not self.todo)
            for keeper in self.keepers:
                keeper.last = True
            end = self.report.now() + self.args.patience
            self.loop(lambda: not any(keeper.is_alive() for keeper in self.keepers) or self.report.now() > end)
        except BaseException:
            for keeper in self.keepers:
                keeper.abandoned = True
            raise
        finally:
            for keeper in self.keepers:
                keeper.give_up.set()
            for thread in (*self.keepers, *self.askers):
                thread.join(100)
        return [job for keeper in self.keepers for job in (*keeper.ended, keeper.job)]

    def quiet_runs(self, files):
        """One of each file: what the digests have to be. Files of a model differ in nothing that may change it."""
        begin, jobs = self.report.now(), []
        for turn in range(max(len(row) for row in files.values())):
            jobs += self.train({arch: [row[turn % len(row)]] for arch, row in files.items()}, lambda: True, "quiet-")
        for arch, row in files.items():
            if len({self.quiet.get(file.name) for file in row}) != 1:
                self.report.violation(f"quiet runs of {arch} differ: {self.quiet}")
        if any(job.shown is None or job.shown["generation"] != 1 for job in jobs):
            self.report.line("a quiet run needed a second generation: the machine is slow or the network is not quiet")
        self.report.line(f"quiet runs took {self.report.now() - begin:.0f} s")
        return jobs

    def nothing_left(self, jobs, before):
        ids = {job.id: job.name for job in jobs}
        bad = {job.id for job in jobs if not job.good}
        checks = {
            "processes": lambda: leftovers.processes(self.world),
            "copies in memory": lambda: leftovers.copies(self.world),
            "folders and records": lambda: leftovers.files(self.world, ids),
            "sockets": lambda: leftovers.sockets(self.world),
            "checkpoints": lambda: leftovers.store(self.world, ids, bad),
            "descriptors": lambda: leftovers.more_descriptors(before, leftovers.of_daemons(self.world, DAEMONS)),
        }
        for name, check in checks.items():
            quiet_for(SETTLE_S, lambda check=check: not check())
            lines = check()
            self.report.left_over[name] = len(lines)
            for line in lines:
                self.report.violation(f"left over: {line}")
        for line in leftovers.unknown_jobs(self.world, ids):
            self.report.violation(line)
        for line in leftovers.bugs(self.world):
            self.report.violation(f"a bug, by its own words: {line}")

    def whole(self, files):
        begin = self.report.now()
        quiet = self.quiet_runs(files)
        before = leftovers.of_daemons(self.world, DAEMONS)
        start = self.report.now()
        for event in schedule(self.args.seed, self.args.minutes, self.args.rate, self.kinds, len(files)):
            self.later(start + event.at, lambda event=event: self.begin_event(event))
        self.memory = Memory()
        turn = self.args.seed
        turned = {arch: row[turn % len(row):] + row[:turn % len(row)] for arch, row in files.items()}
        jobs = self.train(turned, lambda: self.report.now() >= start + self.args.minutes * 60, crowd=self.args.crowd)
        jobs = [job for job in jobs if job is not None]
        jobs = list({job.id: job for job in jobs}.values())
        self.nothing_left([*quiet, *jobs], before)
        for line in self.memory.violations():
            self.report.violation(line)
        self.report.jobs = [job for job in self.report.jobs if job not in quiet]
        return jobs, self.report.now() - begin


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rate", type=float, default=6, help="faults a minute")
    parser.add_argument("--crowd", type=int, default=0, help="more jobs at a time, on half of the slots")
    parser.add_argument("--scale", type=float, default=1, help="of the jobs' numbers of steps")
    parser.add_argument("--world", choices=("rooms", "home", "auto"), default="auto")
    parser.add_argument("--patience", type=float, default=900, help="seconds that the last jobs have to end")
    parser.add_argument("--out", type=Path, help="folder of the log and the summary")
    parser.add_argument("--without", nargs="+", default=[], choices=[kind.name for kind in KINDS], metavar="KIND")
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--full-only", action="store_true", help="skipped without CAIRN_TEST_FULL")
    parser.add_argument("--list", action="store_true")
    args = parser.parse_args()
    if args.short:
        vars(args).update(SHORT)
        commit = subprocess.run(["git", "-C", ROOT, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
        args.seed = SHORT_SEEDS[int(commit.stdout.strip() or "0", 16) % len(SHORT_SEEDS)]
    return args


def command_of(args, name):
    words = ["tests/chaos/chaos.py", "--minutes", args.minutes, "--seed", args.seed, "--rate", args.rate,
             "--scale", args.scale, "--world", name]
    if args.crowd:
        words += ["--crowd", args.crowd]
    if args.without:
        words += ["--without", *args.without]
    return f"CAIRN_BIN={BIN} /usr/bin/python3 " + " ".join(shlex.quote(str(word)) for word in words)


def in_world(world, report, args):
    """The whole run; its summary."""
    with world:
        run = Run(world, report, args)
        for name, reason in run.skipped.items():
            report.line(f"skipped: {name}: {reason}")
        files = job_files(args.scale, world.store_seen, 1 if args.short else None)
        jobs = []
        try:
            jobs, _ = run.whole(files)
        except Exception as error:  # pylint: disable=broad-except
            report.violation(f"chaos itself failed: {type(error).__name__}: {error}")
            raise
        finally:
            run.memory.write(report.folder / "memory.tsv")
            if report.violations:
                keep_logs(world, report)
            summary = report.summary(
                {"seed": args.seed, "minutes": args.minutes, "rate": args.rate, "scale": args.scale,
                 "world": world.name, "seconds": round(report.now(), 1), "command": command_of(args, world.name)},
                jobs, run.memory.numbers(), [kind.name for kind in run.kinds], run.skipped)
    quiet_for(SETTLE_S, lambda: not world.remains() and not descendants())
    remains = [*world.remains(), *(f"process {pid} ({name})" for pid, name in descendants().items())]
    report.left_over["after the end"] = len(remains)
    for what in remains:
        report.violation(f"left over after the end: {what}")
    return summary


def keep_logs(world, report):
    for path in world.logs():
        kept = report.folder / "logs" / path.relative_to(world.folder)
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, kept)


def main():
    args = arguments()
    if args.full_only and not os.environ.get("CAIRN_TEST_FULL"):
        print("skipped: in a full run only")
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    reason = rooms.missing() if args.world == "auto" else None
    slots = CROWDED_SLOTS if args.crowd else SLOTS
    world = OneMachine(slots) if args.world == "home" or reason else Machines(slots)
    if args.list:
        for event in schedule(args.seed, args.minutes, args.rate, kinds_for(world, args), 3):
            print(event)
        shutil.rmtree(world.folder)
        return 0
    report = Report(args.out or Path(tempfile.mkdtemp(prefix="cairn-chaos-")))
    report.line(f"log and summary: {report.folder}; {command_of(args, world.name)}")
    summary = in_world(world, report, args)
    report.write(summary)
    return 1 if report.violations else 0


if __name__ == "__main__":
    sys.exit(main())
