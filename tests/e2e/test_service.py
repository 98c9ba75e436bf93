"""The programs as services of systemd: what they tell it, and what the units ask for. The test is systemd: a socket of datagrams."""
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager

import pytest

from home import BIN, ROOT, Home, TINY, until

UNITS = sorted((ROOT / "deploy/systemd").rglob("*.service"))
NAMES = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "JOURNAL_STREAM"}
LONG = {"train__duration": "100000 steps", "eval__every": "100000 steps", "checkpoint__every": "100000 steps"}


class Manager:
    """Programs that are started as a unit would start them, and what they have told."""

    def __init__(self, home, abstract):
        self.home, self.children = home, []
        self.name = f"@cairn-test-{os.getpid()}-{time.monotonic_ns()}" if abstract else str(home.dir / "notify")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(self.name.replace("@", "\0"))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
        self.socket.settimeout(0.05)
        self.told = {}  # pid: messages

    def start(self, program, *args, usec=1000000):
        log = self.home.dir / f"{program}.log"
        env = {**self.home.env, "NOTIFY_SOCKET": self.name, "WATCHDOG_USEC": str(usec)}
        with open(log, "ab") as file:
            about = os.fstat(file.fileno())
            env["JOURNAL_STREAM"] = f"{about.st_dev}:{about.st_ino}"
            child = subprocess.Popen([BIN / program, *args], env=env, cwd=self.home.dir, stdin=subprocess.DEVNULL,
                                     stdout=file, stderr=file)
        self.children.append(child)
        return child

    def read(self):
        """Takes what has come."""
        while True:
            try:
                text, extra, _, _ = self.socket.recvmsg(4096, socket.CMSG_SPACE(12))
            except (socket.timeout, BlockingIOError):
                return
            pid = int.from_bytes(extra[0][2][:4], "little")
            self.told.setdefault(pid, []).extend(text.decode().splitlines())

    def of(self, child):
        self.read()
        return self.told.get(child.pid, [])

    def wait(self, child, line, count=1):
        until(lambda: self.of(child).count(line) >= count, 20, f"{line}, {count} times: {self.told}")

    def status(self, child):
        return next((line[7:] for line in reversed(self.of(child)) if line.startswith("STATUS=")), "")

    def log(self, program):
        return (self.home.dir / f"{program}.log").read_text(encoding="utf-8")


@contextmanager
def services(abstract=False):
    home = Home()
    try:
        manager = Manager(home, abstract)
        try:
            yield home, manager
        except BaseException:
            home.print_logs()
            for log in home.dir.glob("*.log"):
                print(f"--- {log.name}", *log.read_text(encoding="utf-8").splitlines()[-15:], sep="\n")
            raise
    finally:
        home.end_everything()
        for child in manager.children:
            child.wait()
        manager.socket.close()
        shutil.rmtree(home.dir, ignore_errors=True)
        shutil.rmtree(home.copies, ignore_errors=True)


def answers(home):
    return home.cairn("ps", check=False).returncode == 0


def test_it_serves_when_it_says_so_and_beats_until_it_is_stopped():
    with services() as (home, manager):
        coordinator = manager.start("cairnd", "--listen", "127.0.0.1:0")
        until(lambda: "READY=1" in manager.of(coordinator), 20, "cairnd says that it serves")
        assert answers(home)  # from that moment on
        agent = manager.start("cairn-agent", "--name", "here", "--slots", "2")
        page = manager.start("cairn-observer")
        for child in (agent, page):
            manager.wait(child, "READY=1")
        until(lambda: "127.0.0.1:" in manager.status(coordinator), 5, "where it serves")
        until(lambda: "connected to" in manager.status(agent), 20, "the agent's connection")
        until(lambda: manager.status(page).startswith("the page is at http://127.0.0.1:"), 5, "the page's address")
        for child in (coordinator, agent, page):
            assert manager.of(child).count("READY=1") == 1
            manager.wait(child, "WATCHDOG=1", 3)
            os.kill(child.pid, signal.SIGSTOP)
            until(lambda c=child: open(f"/proc/{c.pid}/stat", encoding="utf-8").read().rsplit(")", 1)[1].split()[0] == "T",
                  5, "it is stopped")
        for child in (coordinator, agent, page):
            before = manager.of(child).count("WATCHDOG=1")
            time.sleep(1.5)  # three beats
            assert manager.of(child).count("WATCHDOG=1") == before  # so systemd would end it
            os.kill(child.pid, signal.SIGCONT)
            manager.wait(child, "WATCHDOG=1", before + 2)
        for child in (page, agent, coordinator):
            assert "STOPPING=1" not in manager.of(child)
            child.send_signal(signal.SIGTERM)
            assert child.wait(timeout=30) == 0
            assert "STOPPING=1" in manager.of(child)


def test_the_journal_gets_the_level_of_each_line():
    with services(abstract=True) as (_, manager):
        child = manager.start("cairnd")
        manager.wait(child, "READY=1")
        lines = manager.log("cairnd").splitlines()
        assert lines and all(re.match(r'<[3467]>\{"ts":"', line) for line in lines), lines


def test_nobody_is_told_what_nobody_asked():
    with services() as (_, manager):
        child = manager.start("cairnd", usec=0)
        manager.wait(child, "READY=1")
        time.sleep(1.5)
        assert "WATCHDOG=1" not in manager.of(child)


def environment(pid):
    with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
        return {entry.split("=", 1)[0] for entry in file.read().split("\0")}


def test_workers_outlive_the_agent_and_know_nothing_of_systemd():
    with services() as (home, manager):
        coordinator = manager.start("cairnd")
        manager.wait(coordinator, "READY=1")
        first = manager.start("cairn-agent", "--name", "here", "--slots", "2")
        job = home.submit(TINY, **LONG)
        home.wait_state(job, "RUNNING")
        trainers = home.pids("cairn-trainer")
        assert len(trainers) == 2
        assert not any(NAMES & environment(pid) for pid in trainers)
        until(lambda: "2 trainers" in manager.status(first), 10, "it tells how many it has")
        first.send_signal(signal.SIGTERM)  # as KillMode=process: to nobody else
        assert first.wait(timeout=30) == 0
        second = manager.start("cairn-agent", "--name", "here", "--slots", "2")
        until(lambda: "2 trainers" in manager.status(second), 20, "they are taken over")
        assert set(home.pids("cairn-trainer")) == set(trainers)
        assert home.show(job)["restarts"] == 0
        home.cairn("kill", job, "--wait")


def test_an_agent_that_leaves_asks_for_the_time_that_its_grace_needs():
    """As at the end of the machine: SIGUSR1 of the unit's ExecStop, then SIGTERM."""
    with services() as (home, manager):
        coordinator = manager.start("cairnd")
        manager.wait(coordinator, "READY=1")
        agent = manager.start("cairn-agent", "--name", "here", "--slots", "2", "--grace", "100")
        job = home.submit(TINY, **LONG)
        home.wait_state(job, "RUNNING")
        until(lambda: home.show(job)["step"] > 3, 30, "it trains")
        agent.send_signal(signal.SIGUSR1)
        agent.send_signal(signal.SIGTERM)
        assert agent.wait(timeout=60) == 0
        told = manager.of(agent)
        asked = max(int(line.split("=")[1]) for line in told[told.index("STOPPING=1"):] if line.startswith("EXTEND_TIMEOUT_USEC="))
        assert asked > 100_000_000
        assert home.cairn("ckpt", "ls", job, "-o", "name").stdout.strip()  # saved, though its interval was far away
        assert not home.pids("cairn-trainer")


def test_up_in_the_foreground_is_a_service():
    with services() as (home, manager):
        child = manager.start("cairn", "up", "--foreground", "--slots", "2")
        manager.wait(child, "READY=1")
        assert answers(home)
        until(lambda: home.pids("cairn-agent"), 10, "its agent")
        manager.wait(child, "WATCHDOG=1", 2)
        job = home.submit(TINY, **LONG)
        home.wait_state(job, "RUNNING")
        assert set(manager.told) == {child.pid}  # its programs leave that to it
        child.send_signal(signal.SIGTERM)
        assert child.wait(timeout=60) == 0
        assert "STOPPING=1" in manager.of(child)
        assert not home.pids()


def run(*args):
    return subprocess.run(args, capture_output=True, text=True, check=False)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd isn't installed")
def test_units_are_well_formed_and_closed(tmp_path):
    for unit in UNITS:  # beside each other, with programs that are here
        text = unit.read_text(encoding="utf-8").replace("/usr/bin/", f"{BIN}/")
        (tmp_path / unit.name).write_text(text, encoding="utf-8")
    done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *map(str, sorted(tmp_path.iterdir())))
    assert done.returncode == 0 and not [line for line in done.stderr.splitlines() if str(tmp_path) in line], done.stderr
    for unit in UNITS:
        if unit.parent.name != "user":
            done = run("systemd-analyze", "security", "--offline=true", "--threshold=30", str(unit))
            assert done.returncode == 0, done.stdout.splitlines()[-1]


def test_units_name_options_that_programs_have():
    """What a person finds in the samples of /etc/cairn is understood."""
    for sample in sorted((ROOT / "deploy/systemd/etc").glob("*.env")):
        text = sample.read_text(encoding="utf-8")
        unit = (ROOT / f"deploy/systemd/{sample.stem}.service").read_text(encoding="utf-8")
        variable = re.search(r"ExecStart=/usr/bin/\S+ \$(\w+)", unit).group(1)
        assert f"EnvironmentFile=-/etc/cairn/{sample.name}" in unit
        options = re.findall(rf"^#{variable}=(.*)", text, re.M)
        assert options, sample
        shown = run(BIN / sample.stem, "--help").stdout
        for line in options:
            assert all(word in shown for word in line.split() if word.startswith("--")), (sample, line)
