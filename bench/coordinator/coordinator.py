#!/usr/bin/python3
"""coordinator: what one cairnd on one core bears. Its agents and trainers are played (bench/coordinator/fleet.h).

    coordinator [CASE...] [--ranks N] [--jobs N] [--queued N] [--ended N] [--alive N] [--minutes N] [--bin DIR]
                [--old DIR] [--processes N]

cairnd runs on the first core, all else on the others; checkpoints go to /dev/shm, as what a file system takes for a
file isn't the coordinator's. Prints JSON lines and a table; value and goal of each case:

    form      one job of --ranks: cairnd's processor time from submission to RUNNING           2 s
    save      the same job: that of a save, from the first report to the commit's last word,
              less what it takes at rest in that time                                          0.1 s
    many      --jobs jobs of 2 ranks, a row of metrics per second each, 5 beats/s per rank:
              p99 of a small call, asked 20 times a second; share of the core;                 250 ms, 0.6
              nodes and generations lost; memory at the end and at the begin                   0, 1.1
    queue     --queued jobs wait: from a worker's exit to the order to start the next one      50 ms
    start     a journal of --ended ended and --alive running jobs: from exec to serving        2 s
              (of both also what of it is processor time: that doesn't depend on what else the machine does)
    lone      one call, one event at a time: a submission, a save's begin to its folder;
              yardstick: --old's binary, else an fsync of the same file system
    storm     --nodes agents with 8 trainers each, all over TLS: cairnd is killed and started anew;
              until all are back; its processor time and memory for each of their connections;     120 s, 1.2 ms, 106 KiB
              nodes and generations lost

The journal of `start` is made by a cairnd: --alive running jobs and some that have ended, which are then copied in its
tables, under other ids, until there are --ended.
"""
import argparse
import atexit
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
CASES = ("form", "save", "many", "queue", "start", "lone", "storm")
SLOTS = 8

JOB = """\
name: fleet
model: {{arch: mlp, hidden: 8, classes: 10}}
data: {{train: {{format: synthetic, samples: {ranks}}}}}
train:
  duration: {steps} steps
  global_batch: {ranks}
  lanes: {ranks}
  optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
  schedule: {{name: constant}}
  seed: 1
workers: {{count: {ranks}, device: cpu}}
checkpoint: {{every: {every} steps, keep: {{last: 2}}, store: {store}}}
"""
FOREVER = 100_000_000


def say(text):
    print(text, file=sys.stderr, flush=True)


def report(case, value, unit, yardstick_value, yardstick="goal"):
    ratio = value / yardstick_value if yardstick_value else value
    print(json.dumps({"bench": "coordinator", "case": case, "value": round(value, 4), "unit": unit,
                      "yardstick": yardstick, "yardstick_value": round(yardstick_value, 4),
                      "ratio": round(ratio, 4)}), flush=True)
    say(f"{case:30} {value:12.3f} {unit:8} {yardstick} {yardstick_value:g}: {ratio:.2f}")


def now():
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


class Fleet:
    """Processes that play agents and trainers, and the events that they print."""

    def __init__(self, place, nodes, slots, processes, *args):
        self.place, self.players, self.events = place, [], []
        each = -(-nodes // processes)
        for i in range(processes):
            out = place.dir / f"fleet-{len(place.fleets)}-{i}"
            count = min(each, nodes - i * each)
            if count <= 0:
                break
            with out.open("wb") as sink, (place.dir / "fleet.err").open("ab") as err:
                player = subprocess.Popen(
                    [HERE / "fleet", "play", "--first", str(i * each), "--nodes", str(count), "--slots", str(slots),
                     "--watch", str(place.daemon.pid), *map(str, args)],
                    env=place.env, stdin=subprocess.PIPE, stdout=sink, stderr=err)
            self.players.append((player, out.open(encoding="utf-8")))
        place.fleets.append(self)
        place.until(lambda: len(place.json("node", "ls")) == nodes, 120, f"{nodes} nodes")

    def read(self):
        """All events so far, those of a process in order."""
        for player, source in self.players:
            at = source.tell()
            for line in source:
                if not line.endswith("\n"):
                    source.seek(at)  # it is being written
                    break
                at += len(line.encode())
                self.events.append(json.loads(line))
            if player.poll() not in (None, 0):
                raise SystemExit(f"fleet ended with {player.returncode}: {self.place.dir}/fleet.err")
        return self.events

    def count(self, name):
        return sum(event["ev"] == name for event in self.read())

    def stop(self):
        """What the players counted."""
        for player, _ in self.players:
            player.stdin.close()
        for player, _ in self.players:
            player.wait()
        sums = [event for event in self.read() if event["ev"] == "sum"]
        return {key: sum(one[key] for one in sums) for key in ("beats", "rows", "started", "losses")}


def coordinator_class(Home):
    class Coordinator(Home):
        """cairnd alone, in a home of its own."""

        def __init__(self, binaries):
            super().__init__(env={"CAIRN_HANG_MS": "30000"})
            self.binaries, self.fleets, self.daemon, self.listen = Path(binaries).resolve(), [], None, []
            self.store = Path(tempfile.mkdtemp(prefix="cairn-bench-", dir="/dev/shm"))
            del self.env["CAIRN_WATCHDOG_MS"]

        def __enter__(self):
            atexit.register(shutil.rmtree, self.store, ignore_errors=True)
            self.start()
            return self

        def __exit__(self, kind, value, trace):
            for fleet in self.fleets:
                for player, _ in fleet.players:
                    player.kill()
                    player.wait()
            self.end()
            if kind is not None:
                self.print_logs()
            shutil.rmtree(self.dir, ignore_errors=True)
            shutil.rmtree(self.store, ignore_errors=True)

        def start(self):
            """Returns the time of exec."""
            (self.home / "log").mkdir(parents=True, exist_ok=True)
            with (self.home / "log/cairnd.log").open("ab") as log:
                begin = now()
                self.daemon = subprocess.Popen([self.binaries / "cairnd", *self.listen], env=self.env, stderr=log,
                                               preexec_fn=lambda: os.sched_setaffinity(0, CORES[:1]))
            return begin

        def start_tls(self):
            """Anew, on a port that stays; what its players are told of it."""
            self.end()
            self.cairn("cert", "init", "--cluster", "bench")
            tls, address = self.home / "tls", self.home / "cairnd.addr"
            files = [text for end, name in (("cert", "coordinator.crt"), ("key", "coordinator.key"), ("ca", "ca.crt"))
                     for text in (f"--tls-{end}", tls / name)]
            # None that the system gives to who connects, which its players do all the time.
            self.listen = ["--listen", f"127.0.0.1:{20000 + os.getpid() % 10000}", *files]
            self.start()
            self.until(address.exists, 20, "it listens")
            return ["--target", f"ipv4:{self.listen[1]}", "--tls", tls]

        def end(self):
            if self.daemon:
                self.daemon.kill()
                self.daemon.wait()

        def until(self, condition, seconds, what):
            deadline = time.monotonic() + seconds
            while not condition():
                if self.daemon.poll() is not None:
                    raise SystemExit(f"cairnd ended with {self.daemon.returncode} before: {what}")
                if time.monotonic() > deadline:
                    raise AssertionError(f"not within {seconds} s: {what}")
                time.sleep(0.1)

        def cairn(self, *args, timeout=120, check=True):
            done = subprocess.run([self.binaries / "cairn", *map(str, args)], env=self.env, cwd=self.dir,
                                  timeout=timeout, capture_output=True, text=True, check=False)
            if check and done.returncode != 0:
                raise AssertionError(f"cairn {' '.join(map(str, args))}: exit {done.returncode}\n{done.stderr}")
            return done

        def json(self, *args):
            """Rows of a list; [] while nobody answers."""
            done = self.cairn(*args, "-o", "jsonl", check=False)
            return [json.loads(line) for line in done.stdout.splitlines()] if done.returncode == 0 else []

        def fleet_call(self, *args):
            done = subprocess.run([HERE / "fleet", *map(str, args)], env=self.env, cwd=self.dir, capture_output=True,
                                  text=True, check=False)
            if done.returncode != 0:
                raise AssertionError(f"fleet {args}: {done.stderr}")
            return [json.loads(line) for line in done.stdout.splitlines()]

        def submit_many(self, count, **values):
            """Of each submission: its job, and how long the call took."""
            path = self.dir / "many.yaml"
            path.write_text(JOB.format(store=self.store, **values), encoding="utf-8")
            return self.fleet_call("submit", "--file", path, "--count", count)

        def spent(self):
            """Seconds of processor time: of all threads, of the core's."""
            text = Path(f"/proc/{self.daemon.pid}/task/{self.daemon.pid}/schedstat").read_text(encoding="utf-8")
            return time.clock_gettime((~self.daemon.pid << 3) | 2), int(text.split()[0]) / 1e9

        def rss_mb(self):
            status = Path(f"/proc/{self.daemon.pid}/status").read_text(encoding="utf-8")
            return int(status.split("VmRSS:")[1].split()[0]) / 1024

    return Coordinator


# ---- one large job ----

def one_fleet(place, ranks, args, *more):
    return Fleet(place, -(-ranks // SLOTS), SLOTS, args.processes or 1 + ranks // 300, *more)


def tell_form(place, fleet, args):
    before = place.spent()
    begin = time.monotonic()
    job = place.submit_many(1, ranks=args.ranks, steps=FOREVER, every=args.save_every)[0]["id"]
    place.until(lambda: fleet.count("ready") >= args.ranks, args.patience, f"{args.ranks} ranks ready")
    place.until(lambda: place.show(job)["state"] == "RUNNING", 60, "RUNNING")
    wall = time.monotonic() - begin
    after = place.spent()
    report(f"form/{args.ranks}", after[0] - before[0], "s", 2)
    say(f"    of that the core's thread {after[1] - before[1]:.2f} s; {wall:.1f} s went by; "
        f"generation {place.show(job)['generation']}; {place.rss_mb():.0f} MB")
    return job


def saves_of(events, ranks):
    """{step: [events from the first begin to the last commit]} of the saves that all ranks saw through."""
    steps = {}
    for event in sorted(events, key=lambda event: event["t"]):
        if event["ev"] in ("begin", "folder", "report", "committed"):
            steps.setdefault(event["step"], []).append(event)
    return {step: found for step, found in steps.items()
            if sum(event["ev"] == "committed" for event in found) >= ranks}


def between(found, name, key):
    """From the first event of that name to the last commit, seconds."""
    first = next(event for event in found if event["ev"] == name)
    return (found[-1][key] - first[key]) / 1e9


def tell_save(place, fleet, args):
    before, begin = place.spent(), time.monotonic()
    place.until(lambda: len(saves_of(fleet.read(), args.ranks)) >= args.saves, args.patience, f"{args.saves} saves")
    spent, wall = place.spent()[0] - before[0], time.monotonic() - begin
    saves = list(saves_of(fleet.read(), args.ranks).values())
    in_saves = sum(between(found, "begin", "cpu") for found in saves)
    rest = max(spent - in_saves, 0) / max(wall - sum(between(found, "begin", "t") for found in saves), 0.1)
    gross = [between(found, "report", "cpu") for found in saves]
    net = [value - rest * between(found, "report", "t") for value, found in zip(gross, saves)]
    whole = [between(found, "begin", "cpu") for found in saves]
    report(f"save/{args.ranks}", statistics.median(net), "s", 0.1)
    core = statistics.median(between(found, "report", "core") for found in saves)
    say(f"    {len(saves)} saves; with what it takes at rest ({rest:.3f} of the core) {statistics.median(gross):.3f} s, "
        f"the core's thread {core:.3f} s, from the first begin {statistics.median(whole):.3f} s; "
        f"{statistics.median(between(found, 'report', 't') for found in saves):.2f} s went by")


def case_one_job(Coordinator, args, wanted):
    with Coordinator(args.bin) as place:
        fleet = one_fleet(place, args.ranks, args, "--beat-ms", 1000, "--pieces", args.pieces)
        job = tell_form(place, fleet, args)
        if "save" in wanted:
            tell_save(place, fleet, args)
        shown = place.show(job)
        if shown["generation"] != 1:
            say("    LOST: " + json.dumps([event["message"] for event in shown["events"]][-8:]))


# ---- many jobs ----

def losses_of(place, jobs):
    """Generations and nodes that were lost."""
    rows = [row for row in place.json("ps") if row["id"] in jobs]
    lost = sum(row["state"] != "RUNNING" or row["generation"] != 1 for row in rows) + len(jobs) - len(rows)
    return lost, sum(row["state"] != "ready" for row in place.json("node", "ls"))


def case_many(Coordinator, args, _):
    with Coordinator(args.bin) as place:
        fleet = one_fleet(place, 2 * args.jobs, args, "--beat-ms", 200, "--step-ms", 1000)
        begin, before = time.monotonic(), place.spent()
        jobs = {row["id"] for row in place.submit_many(args.jobs, ranks=2, steps=FOREVER, every=FOREVER)}
        place.until(lambda: fleet.count("ready") >= 2 * args.jobs, args.patience, f"{args.jobs} jobs")
        time.sleep(5)  # what is measured is how it goes on, not how it began
        say(f"    {args.jobs} jobs run after {time.monotonic() - begin:.1f} s and "
            f"{place.spent()[0] - before[0]:.1f} s of processor time")
        before, begin, rss = place.spent(), time.monotonic(), place.rss_mb()
        probe = place.fleet_call("probe", "--rate", 20, "--seconds", int(args.minutes * 60))[0]
        after, wall, rss_end = place.spent(), time.monotonic() - begin, place.rss_mb()
        generations, nodes = losses_of(place, jobs)
        report(f"many/{args.jobs}/call p99", probe["p99_ms"], "ms", 250)
        report(f"many/{args.jobs}/share of a core", (after[0] - before[0]) / wall, "", 0.6)
        report(f"many/{args.jobs}/lost", generations + nodes, "", 0)
        report(f"many/{args.jobs}/memory", rss_end / rss, "", 1.1)
        counted = fleet.stop()
        say(f"    calls: median {probe['p50_ms']:.1f} ms, longest {probe['max_ms']:.0f} ms; the core's thread "
            f"{(after[1] - before[1]) / wall:.3f} of the core; {generations} generations and {nodes} nodes lost, "
            f"{counted['losses']} streams; {rss:.0f} MB, at the end {rss_end:.0f} MB; "
            f"{counted['beats']} beats and {counted['rows']} rows in all")


# ---- a queue ----

def placed_after(events):
    """[(ms, ms of processor time)] from each exit to the next order to start."""
    found, exited = [], None
    for event in sorted(events, key=lambda event: event["t"]):
        if event["ev"] == "exited" and exited is None:
            exited = event
        elif event["ev"] == "start" and exited:
            found.append(((event["t"] - exited["t"]) / 1e6, (event["cpu"] - exited["cpu"]) / 1e6))
            exited = None
    return found


def case_queue(Coordinator, args, _):
    with Coordinator(args.bin) as place:
        fleet = Fleet(place, 1, SLOTS, 1)
        before, begin = place.spent(), time.monotonic()
        jobs = place.submit_many(SLOTS + args.queued, ranks=1, steps=FOREVER, every=FOREVER)
        place.until(lambda: fleet.count("ready") >= SLOTS, 60, "the first jobs run")
        say(f"    {args.queued} jobs queued after {time.monotonic() - begin:.1f} s and "
            f"{place.spent()[0] - before[0]:.1f} s of processor time; the last submission took {jobs[-1]['ms']:.0f} ms")
        time.sleep(1)
        for i in range(args.rounds):
            place.cairn("kill", jobs[i]["id"])
            place.until(lambda i=i: fleet.count("ready") >= SLOTS + i + 1, 60, "the next job runs")
        found = placed_after(fleet.read())
        report(f"queue/{args.queued}", statistics.median(ms for ms, _ in found), "ms", 50)
        report(f"queue/{args.queued}/processor", statistics.median(ms for _, ms in found), "ms", 50)
        say(f"    longest {max(ms for ms, _ in found):.1f} ms; {place.rss_mb():.0f} MB")


# ---- a start ----

def copy_ended(db, ended, wanted):
    """Rows of the ended jobs again, under other ids, until there are so many jobs. A table's own number of a row (SQLite's
    rowid under a name) is left to SQLite."""
    tables = {}
    for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"):
        info = list(db.execute(f"PRAGMA table_info({name})"))
        columns, keys = [row[1] for row in info], [row for row in info if row[5]]
        own = keys[0][1] if len(keys) == 1 and keys[0][2] == "INTEGER" else None
        key = "id" if name == "jobs" else "job"
        if key in columns:
            tables[name] = (key, [column for column in columns if column != own])
    seq = db.execute("SELECT max(seq) FROM jobs").fetchone()[0]
    for number in range(wanted - len(ended)):
        old, new = ended[number % len(ended)], f"j-copy{number:06d}"
        seq += 1
        for name, (key, columns) in tables.items():
            picked = [":new" if c == key else ":seq" if c == "seq" else c for c in columns]
            db.execute(f"INSERT INTO {name}({','.join(columns)}) SELECT {','.join(picked)} FROM {name} WHERE {key} = :old",
                       {"new": new, "old": old, "seq": seq})
    db.commit()


def make_journal(place, args):
    ranks, models = 2, min(20, args.ended // 2)  # the others are copies of these
    fleet = one_fleet(place, ranks * max(args.alive, models), args, "--step-ms", 200, "--beat-ms", 1000)
    ended = place.submit_many(models, ranks=ranks, steps=FOREVER, every=20)
    place.until(lambda: fleet.count("committed") >= 3 * ranks * models, 300, "three saves of each")
    for row in ended:
        place.cairn("kill", row["id"])
    place.until(lambda: sum(row["state"] == "KILLED" for row in place.json("ps")) == models, 60, "jobs have ended")
    place.submit_many(args.alive, ranks=ranks, steps=FOREVER, every=FOREVER)
    place.until(lambda: fleet.count("ready") >= ranks * (models + args.alive), 300, "jobs run")
    place.end()
    fleet.stop()
    path = place.home / "state/cairnd.db"
    with sqlite3.connect(path) as db:
        copy_ended(db, [row["id"] for row in ended], args.ended)
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size / 1e6


def case_start(Coordinator, args, _):
    with Coordinator(args.bin) as place:
        size = make_journal(place, args)
        took, spent = [], []
        for _ in range(3):
            begin = place.start()
            took.append((place.fleet_call("probe", "--seconds", 0)[0]["t"] - begin) / 1e9)
            spent.append(place.spent()[0])
            rss = place.rss_mb()
            listed = len(place.json("ps"))
            place.end()
        report(f"start/{args.ended}+{args.alive}", statistics.median(took), "s", 2)
        report(f"start/{args.ended}+{args.alive}/processor", statistics.median(spent), "s", 2)
        say(f"    {rss:.0f} MB; journal {size:.0f} MB; "
            f"{listed} jobs are listed")


# ---- one event at a time ----

def fsync_ms(folder):
    path, took = folder / "fsync", []
    with path.open("wb") as file:
        for _ in range(100):
            begin = now()
            file.write(bytes(4096))
            file.flush()
            os.fsync(file.fileno())
            took.append((now() - begin) / 1e6)
    return statistics.median(took)


def lone_times(Coordinator, binaries, args):
    with Coordinator(binaries) as place:
        fleet = Fleet(place, 1, 1, 1, "--step-ms", 250)
        place.submit_many(1, ranks=1, steps=FOREVER, every=1)
        place.until(lambda: len(saves_of(fleet.read(), 1)) >= 5 * args.rounds, 300, "saves")
        folders = []
        for found in saves_of(fleet.read(), 1).values():
            at = {event["ev"]: event["t"] for event in found}
            folders.append((at["folder"] - at["begin"]) / 1e6)
    with Coordinator(binaries) as place:
        fleet = Fleet(place, 1, 1, 1)
        place.submit_many(1, ranks=1, steps=FOREVER, every=FOREVER)
        place.until(lambda: fleet.count("ready") == 1, 60, "the first job runs")
        calls = [row["ms"] for row in place.submit_many(5 * args.rounds, ranks=1, steps=FOREVER, every=FOREVER)]
        return statistics.median(calls), statistics.median(folders), fsync_ms(place.dir)


def case_lone(Coordinator, args, _):
    ours = lone_times(Coordinator, args.bin, args)
    if args.old:
        old = lone_times(Coordinator, args.old, args)
        report("lone/submission", ours[0], "ms", old[0], "old binary")
        report("lone/folder of a save", ours[1], "ms", old[1], "old binary")
    report("lone/submission", ours[0], "ms", ours[2], "an fsync")
    report("lone/folder of a save", ours[1], "ms", ours[2], "an fsync")


# ---- all come back at once ----

def returned(fleet, since):
    """When agents and trainers were back, after that time."""
    return sorted(event["t"] for event in fleet.read() if event["ev"] in ("agent", "back") and event["t"] >= since)


def judged(place):
    """What the log of cairnd says of nodes that it gave up."""
    log = (place.home / "log/cairnd.log").read_text(encoding="utf-8", errors="replace")
    return [line for line in log.splitlines() if "is silent" in line or "fell silent" in line]


def case_storm(Coordinator, args, _):
    with Coordinator(args.bin) as place:
        dial, each = place.start_tls(), 125
        bare = place.rss_mb()
        processes = args.processes or -(-args.nodes // 50)
        # Each second is more than two cores carry with the players on them, too: some of these starve and are silent.
        fleet = Fleet(place, args.nodes, SLOTS, processes, *dial, "--beat-ms", 2000)
        jobs, started = set(), 0
        while started < args.nodes:  # one after the other: how they come is not what is measured
            more = min(args.nodes - started, each)
            jobs |= {row["id"] for row in place.submit_many(1, ranks=SLOTS * more, steps=FOREVER, every=FOREVER)}
            started += more
            place.until(lambda: fleet.count("ready") >= SLOTS * started, args.patience, f"{started} nodes train")
        time.sleep(5)
        before, peers = len(judged(place)), (1 + SLOTS) * args.nodes
        place.end()
        begin = place.start()
        place.until(lambda: len(returned(fleet, begin)) >= peers, args.patience, "all are back")
        back, spent, rss = returned(fleet, begin), place.spent()[0], place.rss_mb()
        time.sleep(15)  # whom it hasn't heard by then it judges
        generations, nodes = losses_of(place, jobs)
        report(f"storm/{args.nodes}/back", (back[peers - 1] - begin) / 1e9, "s", 120)
        report(f"storm/{args.nodes}/processor", spent * 1e3 / peers, "ms", 1.2, "a prototype")
        report(f"storm/{args.nodes}/memory", (rss - bare) * 1024 / peers, "KiB", 106, "a prototype")
        report(f"storm/{args.nodes}/lost", generations + nodes, "", 0)
        said = judged(place)[before:]
        say(f"    half were back after {(back[peers // 2] - begin) / 1e9:.1f} s; {peers} connections, "
            f"{len(returned(fleet, begin))} openings; {spent:.1f} s of processor time, {rss:.0f} MB; {generations} "
            f"generations and {nodes} nodes lost; {len(said)} lines about silent nodes" + "".join(f"\n    {line}" for line in said[:3]))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="; ".join(CASES) + "; none: all")
    for name, value, text in (("ranks", 1000, "of the one job"), ("saves", 3, "of it"), ("save-every", 15, "seconds"),
                              ("pieces", 64, "hashes in a report"), ("jobs", 1000, "that run"), ("queued", 1000, ""),
                              ("ended", 10000, ""), ("alive", 100, ""), ("nodes", 1000, "that come back"), ("rounds", 20, ""),
                              ("processes", 0, "that play; 0: enough"), ("patience", 900, "seconds, for a case")):
        parser.add_argument(f"--{name}", type=int, default=value, help=text)
    parser.add_argument("--minutes", type=float, default=1, help="of `many`; 10 shows whether memory stays flat")
    parser.add_argument("--old", help="binaries to compare with")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    wanted = args.cases or CASES
    if not set(wanted) <= set(CASES):
        parser.error("cases: " + ", ".join(CASES))
    sys.path.insert(0, args.source)
    from home import Home

    os.sched_setaffinity(0, CORES[1:] or CORES)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    runs = {case: globals()[f"case_{case}"] for case in wanted if case not in ("form", "save")}
    if {"form", "save"} & set(wanted):
        runs = {"form": case_one_job, **runs}
    failed = 0
    for case, run in runs.items():
        say(f"{case}:")
        try:
            run(coordinator_class(Home), args, wanted)
        except AssertionError as error:
            failed = 1
            say(f"    FAILED: {error}")
            print(json.dumps({"bench": "coordinator", "case": case, "failed": str(error)[:500]}), flush=True)
    sys.exit(failed)


CORES = sorted(os.sched_getaffinity(0))
main()
