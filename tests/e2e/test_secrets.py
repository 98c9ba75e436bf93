"""Nothing secret is where it doesn't belong: two jobs run, one over TLS on a machine that joined by an invite, one with
the bearer token of loopback, and each goes on after a kill; then every file, answer, environment and command line
is searched for each secret, as text and as the bytes that it stands for."""
import base64
import json
import os
import signal
import sqlite3
import stat
import threading
from pathlib import Path

import pytest

from home import until
from test_credentials import LONG, PlainHome
from test_join import Machine, secret_of, state
from test_tls import TlsHome


class Watcher(threading.Thread):
    """All that environments and command lines of the homes' processes ever held, as often as it can look."""

    def __init__(self, *homes):
        super().__init__(daemon=True)
        self.marks = [str(home.dir).encode() for home in homes]
        self.seen, self.programs = set(), set()
        self.over = threading.Event()

    def look(self):
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                environ, line = (entry / "environ").read_bytes(), (entry / "cmdline").read_bytes()
                if any(mark in environ or mark in line for mark in self.marks):
                    self.seen.update((environ, line))
                    self.programs.add(Path(os.readlink(entry / "exe")).name)
            except OSError:
                pass

    def run(self):
        while not self.over.wait(0.01):
            self.look()


def tokens(home):
    """Of all jobs' newest generations, by the journal, which is private."""
    for path in (home.home / "state").glob("cairnd.db*"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    with sqlite3.connect(f"file:{home.home}/state/cairnd.db?mode=ro", uri=True) as journal:
        found = {json.loads(row[0])["token"] for row in journal.execute("SELECT state FROM jobs")}
    assert all(len(token) >= 32 for token in found), found
    return found


def key_lines(path):
    """Without the last, which holds nothing but the public key."""
    return path.read_text(encoding="utf-8").splitlines()[1:-2]


def train(home):
    """A job that is killed once; what the journal knew of its tokens, and what people are told of it."""
    job = home.submit(LONG, workers__count=2)
    until(lambda: home.show(job)["state"] == "RUNNING", 60, "it trains")
    found = tokens(home)
    os.kill(home.show(job)["workers"][0]["pid"], signal.SIGKILL)
    until(lambda: home.show(job)["generation"] == 2 and home.show(job)["state"] == "RUNNING", 60, "it goes on")
    found |= tokens(home)
    home.cairn("save", job)
    home.cairn("stop", job)
    home.wait_state(job, "STOPPED")
    assert len(found) == 2
    told = [home.cairn(*args).stdout for args in (
        ("show", job), ("show", job, "-o", "json"), ("why", job), ("why", job, "-o", "json"), ("logs", job),
        ("ps", "-o", "json"), ("node", "ls", "-o", "json"), ("ckpt", "ls", job, "-o", "json"))]
    return found, "\n".join(told).encode()


def forms(secret):
    """As text, and as the bytes that hexadecimal or base64 stands for."""
    out = [secret.encode()]
    try:
        out.append(bytes.fromhex(secret))
    except ValueError:
        out.append(base64.b64decode(secret + "=" * (-len(secret) % 4)))
    return out


@pytest.fixture(scope="module", name="run")
def one_run():
    with TlsHome() as home, PlainHome() as plain:
        watcher = Watcher(home, plain)
        watcher.start()
        invite = home.dir / "one.invite"
        assert home.by("operator-alice", "node", "invite", "-o", invite).returncode == 0
        machine = Machine(home, "m1")
        joined = machine.join(invite)
        until(lambda: state(home, "m1") == "ready", 20, "it joined")
        plain.start_agent()
        until(lambda: state(plain, "n1") == "ready", 20, "the agent on loopback joined")
        assert home.by("viewer-bob", "ps").returncode == 0
        generations, told = train(home)
        more, more_told = train(plain)
        watcher.over.set()
        watcher.join()
        keys = [line for path in [*home.tls.glob("*.key"), *(machine.dir / "tls").glob("*.key")] for line in key_lines(path)]
        secrets = {"a generation's token": sorted(generations | more), "the invite's secret": [secret_of(invite)],
                   "the bearer token": [(plain.home / "token").read_text(encoding="utf-8")], "a private key": keys}
        joined.kill()  # nobody else does, as its home is its own
        yield home, plain, watcher, secrets, told + more_told


def own(path, what):
    """Where a secret belongs."""
    return {"a generation's token": path.name.startswith("cairnd.db"), "the invite's secret": path.suffix == ".invite",
            "the bearer token": path.name == "token", "a private key": path.suffix == ".key"}[what]


def test_no_file_holds_a_secret_that_is_not_its_own(run):
    home, plain, _, secrets, _ = run
    files = [path for one in (home, plain) for folder in (one.dir, one.copies) if folder.exists()
             for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    names = {path.name for path in files}
    assert {"audit.log", "cairnd.db", "cairnd.log", "token", "one.invite"} <= names, names
    found, homes = [], set()
    for path in files:
        held = path.read_bytes()
        for what, values in secrets.items():
            if any(form in held for value in values for form in forms(value)):
                if own(path, what):
                    homes.add(what)
                    assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
                else:
                    found.append((what, path))
    assert not found
    assert homes == set(secrets), "the search finds what is there"


def test_no_process_shows_a_secret(run):
    _, _, watcher, secrets, _ = run
    assert {"cairnd", "cairn-agent", "cairn-trainer", "cairn"} <= watcher.programs, watcher.programs
    for what, values in secrets.items():
        for value in values:
            assert not [held for held in watcher.seen for form in forms(value) if form in held], what


def test_no_answer_holds_a_secret(run):
    *_, secrets, told = run
    assert b'"generation": 2' in told or b'"generation":2' in told
    for what, values in secrets.items():
        assert not [value for value in values for form in forms(value) if form in told], what
