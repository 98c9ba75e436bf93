#!/usr/bin/python3
"""page: what cairn-observer answers in, and what it costs the coordinator and a job, before many long jobs.

    page [--jobs N] [--rows N] [--rounds N] [--pairs N] [--seconds S] [--only PART,PART] [--keep DIR] [--bin DIR] [--source DIR]

The journal is a coordinator's own, of a job that lost workers and ended, and of three that are paused; bench/page_fill
copies the first one until there are JOBS that ended, each with 64 generations, 1,000 events, 100 checkpoints and ROWS
rows of metrics, of which the journal thins what is beyond its bound; those that are paused get the rows, too. Then
`cairn up`, and, one request at a time, median and maximum. With --keep the filled home stays in DIR, and is there again.

    answers   of each request over HTTP: keep: over a connection that stays, fresh: with a connection of its own; cold:
              of a job not looked at since the start, or of news (a second later); warm: the same again at once (goal:
              200 ms); processor time of the coordinator's thread for each (goal: 1 ms). disk: curves of a job whose
              rows aren't in the kernel's memory either
    memory    of cairnd and cairn-observer once the curves of all jobs were looked at
    paint     in Chromium, where there is one: first paint; all jobs, a job's curves are there (goal of first paint: 200 ms)
    live      steps of a job with ten readers of /api/v1/live and of /api/v1/jobs/ID/live, as ten browsers have them,
              and without, SECONDS each in turn: the median of the pairs' ratios (goal: 1.01), with a core free and none
"""
import argparse
import http.client
import json
import os
import re
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

HERE = Path(__file__).resolve().parent
PAUSED, READERS = 3, 10
PAGE_ROWS = 4096  # that the coordinator hands over at a time
GOAL_MS, GOAL_CORE_MS, GOAL_STEP = 200, 1, 1.01

MODEL = """\
name: long
model: {arch: mlp, hidden: 32, classes: 10}
data:
  train: {format: synthetic, samples: 384}
  eval: {format: synthetic, samples: 100}
train:
  duration: 1000000 steps
  global_batch: 24
  lanes: 4
  optimizer: {name: sgd, lr: 0.05, momentum: 0.9, weight_decay: 5e-4}
  schedule: {name: cosine, warmup: 2 steps}
  seed: 17
eval: {every: 500 steps}
workers: {count: 2, device: cpu}
checkpoint: {every: 300 steps, keep: {last: 100}, store: checkpoints/, memory_every: none}
"""
TRAINED = """\
name: trained
model: {{arch: lenet, classes: 10}}
data: {{train: {{format: synthetic, samples: 4096}}}}
train:
  duration: 10000000 steps
  global_batch: 64
  lanes: 2
  optimizer: {{name: sgd, lr: 0.01, momentum: 0.9}}
  schedule: {{name: constant}}
  seed: 1
workers: {{count: {workers}, device: cpu, threads: 1}}
checkpoint: {{every: 10000000 steps, keep: {{last: 1}}, store: checkpoints/, memory_every: none}}
"""


def say(text):
    print(text, file=sys.stderr, flush=True)


def report(case, value, unit, yardstick_value, yardstick="goal"):
    ratio = value / yardstick_value if yardstick_value else value
    print(json.dumps({"bench": "page", "case": case, "value": round(value, 4), "unit": unit, "yardstick": yardstick,
                      "yardstick_value": round(yardstick_value, 4), "ratio": round(ratio, 4)}), flush=True)


# ---- a home with many long jobs ----

def lose_a_worker(home, job):
    """Kills rank 1, and waits until the job is beyond what it had done."""
    before = home.show(job)
    os.kill(before["workers"][1]["pid"], signal.SIGKILL)
    home.until(lambda: home.show(job)["generation"] > before["generation"] and
               home.show(job)["step"] > before["step"] + 50, 120, "it goes on")


def ended_in_journal(home, job):
    with sqlite3.connect(f"file:{home.home}/state/cairnd.db?mode=ro", uri=True) as db:
        return db.execute("SELECT ended FROM jobs WHERE id = ?", (job,)).fetchone()[0]


def make_jobs(home):
    """(one that ended, those that are paused)"""
    ended = home.submit(MODEL)
    home.until(lambda: home.show(ended)["checkpoints"], 120, "a checkpoint")
    for _ in range(2):
        lose_a_worker(home, ended)
    home.cairn("stop", ended)
    home.wait_state(ended, "STOPPED")
    paused = [home.submit(MODEL, name=f"paused-{i}") for i in range(PAUSED)]
    for job in paused:
        home.until(lambda: home.show(job)["step"] > 10, 120, "it trains")  # pylint: disable=cell-var-from-loop
        home.cairn("pause", job)
        home.wait_state(job, "PAUSED")
    home.until(lambda: ended_in_journal(home, ended) == 2, 60, "nothing is left to do for it")
    return ended, paused


def fill(home, args):
    """Rows that a job has in the end."""
    ended, paused = make_jobs(home)
    home.cairn("down", timeout=60)
    begin = time.monotonic()
    journal = home.home / "state/cairnd.db"
    done = subprocess.run([HERE / "page_fill", "--jobs", str(args.jobs), "--rows", str(args.rows), journal, ended, *paused],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"page_fill: exit {done.returncode}: {done.stderr}")
    kept = int(done.stdout)
    say(f"{args.jobs} jobs of {args.rows} rows each, of which the journal keeps {kept}, and {PAUSED} that are paused: "
        f"{journal.stat().st_size / 1e6:.0f} MB, filled in {time.monotonic() - begin:.0f} s")
    return kept


def home_class(Home, until):
    class PageHome(Home):
        """Stays in a folder, if one is named."""
        def __init__(self, keep):
            super().__init__()
            if keep:
                self.home = Path(keep).resolve()
                self.env["CAIRN_HOME"] = str(self.home)
            self.kept = self.home / "bench-rows"

        def up(self):
            self.cairn("up", "--slots", str(self.slots), timeout=120)

    PageHome.until = staticmethod(until)
    return PageHome


# ---- requests ----

class Asker:
    """Asks over HTTP, and reads the whole answer."""

    def __init__(self, home):
        self.address = urlsplit((home.home / "page").read_text(encoding="ascii")).netloc
        self.token = (home.home / "observer/token").read_text(encoding="ascii").strip()
        self.stays = None

    def connect(self):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        connection.connect()
        connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def ask(self, path, fresh=False, begun=False):
        """(milliseconds until all is there, or with begun the first byte; bytes); a connection that idled too long is
        another one's business."""
        begin = time.monotonic()
        if fresh:
            connection = self.connect()
        else:
            self.stays = self.stays or self.connect()
            connection, begin = self.stays, time.monotonic()
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        reply = connection.getresponse()
        body = reply.read(1) if begun else reply.read()
        took = (time.monotonic() - begin) * 1e3
        body += reply.read()
        if reply.status != 200:
            raise SystemExit(f"{path}: {reply.status} {body[:300]}")
        if fresh:
            connection.close()
        return took, body

    def again(self):
        """The next one that stays is a new one: the server ends those that idle."""
        if self.stays:
            self.stays.close()
        self.stays = None
        self.ask("/healthz")


class Core:
    """Processor time of the coordinator's thread."""

    def __init__(self, home):
        self.pid = next(iter(home.pids("cairnd")))
        self.rate = 0
        begin, before = time.monotonic(), self.spent()
        time.sleep(5)
        self.rate = (self.spent() - before) / (time.monotonic() - begin)

    def spent(self):
        text = Path(f"/proc/{self.pid}/task/{self.pid}/schedstat").read_text(encoding="ascii")
        return int(text.split()[0]) / 1e6

    def of(self, run):
        """(what run() gave, milliseconds that it took of the thread beyond what it takes at rest)"""
        begin, before = time.monotonic(), self.spent()
        out = run()
        return out, max(0, self.spent() - before - self.rate * (time.monotonic() - begin))


def memory(pid):
    """Resident, and the most that ever was, MB."""
    text = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    return [int(re.search(rf"{name}:\s+(\d+)", text).group(1)) / 1024 for name in ("VmRSS", "VmHWM")]


def forget_file(home):
    """The kernel has no page of the journal any more."""
    for path in (home.home / "state").glob("cairnd.db*"):
        fd = os.open(path, os.O_RDONLY)
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


class Answers:
    """Of many requests of one kind."""

    def __init__(self, asker, core):
        self.asker, self.core = asker, core

    def tell(self, case, took, core_ms, size, calls=1, goal=GOAL_MS):
        median, most = statistics.median(took), max(took)
        report(f"{case}/median", median, "ms", goal)
        report(f"{case}/max", most, "ms", goal)
        per = sum(core_ms) / len(core_ms)
        report(f"{case}/coordinator", per, "ms", GOAL_CORE_MS * calls)
        more = f" for {calls} calls" if calls > 1 else ""
        say(f"{case:32} {median:8.1f} {most:8.1f} ms ({len(took)})  {size / 1e3:9.1f} kB  coordinator {per:7.3f} ms{more}"
            f"{'  MISSED' if median > goal or per > GOAL_CORE_MS * calls else ''}")

    def measure(self, case, paths, ready=lambda: None, calls=1, warm=True, begun=False):
        """Each path cold and then warm, over a connection that stays and with one of its own in turn."""
        found = {}
        for i, path in enumerate(paths):
            way = "fresh" if i % 2 else "keep"
            ready()
            self.asker.again()
            for temper in ("cold", "warm") if warm else ("cold",):
                (took, body), spent = self.core.of(lambda: self.asker.ask(path, way == "fresh", begun))  # pylint: disable=cell-var-from-loop
                found.setdefault(f"{case}/{temper}/{way}", []).append((took, spent, len(body)))
        for name, rows in sorted(found.items()):
            took, spent, sizes = zip(*rows)
            self.tell(name, took, spent, max(sizes), calls if "/cold/" in name or not warm else 1)


def ended_jobs(asker):
    _, body = asker.ask("/api/v1/jobs")
    return [job["id"] for job in json.loads(body)["jobs"] if job["name"].startswith("long-")]


def settle(home):
    """Until programs that just started have nothing to do any more: event files of paused jobs are written."""
    for name in ("cairn-observer", "cairnd"):
        def spends(pid=next(iter(home.pids(name)))):
            clock = (~pid << 3) | 2
            before = time.clock_gettime(clock)
            time.sleep(3)
            return time.clock_gettime(clock) - before
        home.until(lambda: spends() < 0.3, 120, f"{name} rests")  # pylint: disable=cell-var-from-loop


def part_answers(home, args, kept):
    asker = Asker(home)
    settle(home)
    core = Core(home)
    say(f"at rest the coordinator's thread takes {core.rate:.2f} ms of each second")
    answers, pages, jobs = Answers(asker, core), kept // PAGE_ROWS + 1, ended_jobs(asker)
    one = [f"/api/v1/jobs/{job}" for job in jobs]

    def second():
        time.sleep(1.1)
    for name, path in (("page", "/"), ("jobs", "/api/v1/jobs"), ("nodes", "/api/v1/nodes"), ("metrics", "/metrics"),
                       ("system", "/api/v1/system")):
        answers.measure(name, [path] * args.rounds, second)
    # Others each time: of 64 jobs that ended the coordinator has what it read last
    count = min(args.rounds, len(one) // 4)
    answers.measure("job", one[:count])
    answers.measure("why", [path + "/why" for path in one[count:2 * count]])
    answers.measure("checkpoints", [path + "/checkpoints" for path in one[2 * count:3 * count]])
    curves = [path + "/curves?points=1000" for path in one]
    answers.measure("curves", curves[:-count], calls=pages)
    answers.measure("curves, disk", curves[-count:], lambda: forget_file(home), calls=pages)
    files = [path + "/metrics.csv" for path in one[:min(count, 10)]]
    answers.measure("csv, first byte", files, calls=pages, warm=False, begun=True)


def part_memory(home, args, kept):
    asker = Asker(home)
    for job in ended_jobs(asker):
        asker.ask(f"/api/v1/jobs/{job}/curves?points=1000")
    for program in ("cairnd", "cairn-observer"):
        now, most = memory(next(iter(home.pids(program))))
        bound = 32 * 10 + 100 if program == "cairn-observer" else 200
        report(f"memory/{program}", now, "MB", bound, "bound")
        say(f"memory of {program:15} {now:6.0f} MB, at most {most:.0f} MB")
    del args, kept


# ---- in a browser ----

SEEN = """(() => {
    const look = () => {
        const there = location.hash.startsWith('#/jobs/') ? document.querySelectorAll('.plot canvas').length > 0
            : document.querySelectorAll('.jobs tbody tr').length > %d;
        if (there) { requestAnimationFrame(() => { window.benchSeen = performance.now(); }); } else { requestAnimationFrame(look); }
    };
    requestAnimationFrame(look);
})()"""


def paint(browser, url):
    """(first paint, first contentful paint, what it is about is there), ms since the navigation began"""
    browser.call("Page.navigate", url="about:blank")
    browser.until("location.href === 'about:blank'")
    browser.call("Page.navigate", url=url)
    browser.until("window.benchSeen > 0 && performance.getEntriesByName('first-contentful-paint').length > 0", 60)
    return browser.eval("[...['first-paint', 'first-contentful-paint'].map((name) => "
                        "performance.getEntriesByName(name)[0].startTime), window.benchSeen]")


def part_paint(home, args, kept):
    del kept
    sys.path.insert(0, str(Path(args.source).parent / "page"))
    from browser import Browser, missing

    if missing():
        say(f"paint: {missing()}")
        return
    asker = Asker(home)
    jobs = ended_jobs(asker)
    browser = Browser()
    try:
        browser.call("Page.addScriptToEvaluateOnNewDocument", source=SEEN % min(100, len(jobs) // 2))
        browser.open(home.cairn("open").stdout.split()[0])
        browser.until("window.benchSeen > 0", 60)
        page = f"http://{asker.address}/"
        for case, urls in (("jobs", [page + "?" + str(i) for i in range(args.rounds)]),
                           ("a job's curves", [f"{page}?{i}#/jobs/{jobs[i % len(jobs)]}" for i in range(args.rounds)])):
            found = list(zip(*[paint(browser, url) for url in urls]))
            for name, values in zip(("first paint", "first contentful paint", "all is there"), found):
                report(f"{case}/{name}", statistics.median(values), "ms", GOAL_MS)
                say(f"{case + ', ' + name:40} {statistics.median(values):7.0f} ms, at most {max(values):.0f} ({len(values)})")
        if browser.errors:
            say(f"the page complained: {browser.errors[:3]}")
    finally:
        browser.close()


# ---- beside a job ----

READER = """
import selectors, socket, sys
host, port, token, *paths = sys.argv[1:]
waits, room, total = selectors.DefaultSelector(), bytearray(1 << 18), 0
for path in paths:
    one = socket.create_connection((host, int(port)))
    one.sendall(f"GET {path} HTTP/1.1\\r\\nHost: {host}:{port}\\r\\nAuthorization: Bearer {token}\\r\\n\\r\\n".encode())
    waits.register(one, selectors.EVENT_READ)
while waits.get_map():
    for key, _ in waits.select():
        size = key.fileobj.recv_into(room)
        total += size
        if size == 0:
            waits.unregister(key.fileobj)
"""


def spent_by(pids):
    """Seconds of processor time."""
    return sum(time.clock_gettime((~pid << 3) | 2) for pid in pids)


class Readers:
    """What ten browsers read of a job, by a process of their own; none else is woken for them. As the page does, which has the curves
    by then, they follow from the newest step on: else all rows of a long job would come first."""

    def __init__(self, asker, job):
        host, port = asker.address.split(":")
        step = json.loads(asker.ask(f"/api/v1/jobs/{job}", fresh=True)[1])["step"]
        self.process = subprocess.Popen([sys.executable, "-c", READER, host, port, asker.token] +
                                        ["/api/v1/live", f"/api/v1/jobs/{job}/live?from={step + 1}"] * READERS)

    def end(self):
        """Its processor time."""
        spent = spent_by([self.process.pid])
        self.process.kill()
        self.process.wait()
        return spent


def steps_in(home, job, begin, end):
    """Seconds of the median step that ended in that time."""
    rows = home.cairn("metrics", job, "-o", "jsonl", "--since", "3m", timeout=120).stdout.splitlines()
    at = [row["unix_seconds"] for row in map(json.loads, rows) if begin <= row["unix_seconds"] <= end]
    return (at[-1] - at[0]) / (len(at) - 1), len(at)


def live_pairs(home, asker, job, args):
    """(mean step with, without, shares of a core while there are readers: of observer, cairnd, readers) of each pair"""
    programs = {name: list(home.pids(name)) for name in ("cairn-observer", "cairnd")}
    pairs = []
    for i in range(args.pairs):
        found = {}
        for side in ("with", "without") if i % 2 else ("without", "with"):
            readers = Readers(asker, job) if side == "with" else None
            time.sleep(1)  # they have what they get at first
            before, begin = {name: spent_by(pids) for name, pids in programs.items()}, time.time()
            time.sleep(args.seconds)
            shares = [(spent_by(pids) - before[name]) / args.seconds for name, pids in programs.items()]
            end = time.time()
            if readers:
                shares.append(readers.end() / (args.seconds + 1))
            found[side] = (steps_in(home, job, begin, end)[0], shares)
        pairs.append(found)
    return pairs


def part_live(home, args, kept):
    del kept
    asker = Asker(home)
    for case, workers in (("a core free", 1), ("no core free", 2)):
        job = home.submit(TRAINED.format(workers=workers))
        home.until(lambda: home.show(job)["step"] > 20, 120, "it trains")  # pylint: disable=cell-var-from-loop
        pairs = live_pairs(home, asker, job, args)
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")
        ratios = sorted(one["with"][0] / one["without"][0] for one in pairs)
        low, ratio, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else 3 * ratios
        value, yardstick = (statistics.median(one[side][0] for one in pairs) * 1e3 for side in ("with", "without"))
        report(f"live, {case}/step", value, "ms", yardstick, "without readers")
        shares = [[statistics.median(column) for column in zip(*[one[side][1] for one in pairs])] for side in ("with", "without")]
        report(f"live, {case}/ratio", ratio, "", GOAL_STEP)
        for name, share in zip(("cairn-observer", "cairnd"), shares[0]):
            report(f"live, {case}/{name}", share, "cores", 1, "a core")
        say(f"live, {case}: step {value:.2f} ms with, {yardstick:.2f} without: {ratio:.4f} ({low:.4f} to {high:.4f} in the middle "
            f"half of {len(ratios)} pairs); of a core with: observer {shares[0][0]:.3f}, cairnd {shares[0][1]:.3f}, readers "
            f"{shares[0][2]:.3f}; without: {shares[1][0]:.3f}, {shares[1][1]:.3f}")


PARTS = {"answers": part_answers, "memory": part_memory, "paint": part_paint, "live": part_live}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--rows", type=int, default=100000)
    parser.add_argument("--rounds", type=int, default=20, help="requests of each kind")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=10, help="with readers, and without")
    parser.add_argument("--only", default=",".join(PARTS))
    parser.add_argument("--keep", help="folder for the filled home")
    parser.add_argument("--bin", default=str(HERE.parent / "bin"))
    parser.add_argument("--source", default="@PROJECT_SOURCE_DIR@/tests/e2e", help="folder of home.py")
    args = parser.parse_args()
    parts = args.only.split(",")
    if not set(parts) <= set(PARTS):
        parser.error("--only: " + ", ".join(PARTS))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # its home goes with it
    os.environ["CAIRN_BIN"] = str(Path(args.bin).resolve())
    sys.path.insert(0, args.source)
    from home import Home, until

    with home_class(Home, until)(args.keep) as home:
        if home.kept.exists():
            kept = int(home.kept.read_text(encoding="ascii"))
        else:
            kept = fill(home, args)
            home.kept.write_text(str(kept), encoding="ascii")
            home.up()
        for part in parts:
            say(f"{part}:")
            PARTS[part](home, args, kept)


main()
