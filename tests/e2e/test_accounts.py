"""Other accounts of the same machine: what they made, hold or listen at is never used, removed or signalled."""
import fcntl
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest

from home import BIN, Home, alive, until

NOBODY = 65534
AS_NOBODY = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="needs a second account, and so root")


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def logged(home, name):
    return (home.home / "log" / name).read_text(encoding="utf-8")


class Quiet(Home):
    """A home that nobody has started yet; open to others on the way to it."""

    def __enter__(self):
        os.chmod(self.dir, 0o755)
        return self

    def run_as_nobody(self, code, *args):
        """A Python process of another account that says "ready" when it is."""
        child = subprocess.Popen([sys.executable, "-c", code, *map(str, args)], stdout=subprocess.PIPE, text=True,
                                 cwd="/", **AS_NOBODY)
        assert child.stdout.readline() == "ready\n"
        return child

    def __exit__(self, kind, value, trace):
        if self.home.exists() and os.stat(self.home).st_uid != os.geteuid():
            os.chown(self.home, os.geteuid(), os.getegid())
            os.chmod(self.home, 0o700)
        super().__exit__(kind, value, trace)


def end(child):
    child.kill()
    child.wait()


# ---- copies in memory ----


def default_copies(home):
    digits = 0xcbf29ce484222325
    for byte in str(home.home).encode():
        digits = (digits ^ byte) * 0x100000001b3 % 2**64
    return Path(f"/dev/shm/cairn-{os.geteuid()}-{digits:016x}")


@root_only
def test_nothing_is_removed_behind_what_another_account_made():
    with Quiet() as home:
        del home.env["CAIRN_COPIES"]
        ours = home.dir / "ours"
        (ours / "empty").mkdir(parents=True)
        for name in ("thesis.tex", "g1-r0-0.copy"):
            (ours / name).write_text("mine", encoding="utf-8")
        base = default_copies(home)
        node = base / socket.gethostname()
        node.mkdir(parents=True)
        (node / "j-0000000000").symlink_to(ours)
        for path in (base, node):
            os.chown(path, NOBODY, NOBODY)
        kept = []
        try:
            home.cairn("up", "--slots", "2")
            time.sleep(1)  # for orders to forget what no job needs
            assert sorted(path.name for path in ours.iterdir()) == ["empty", "g1-r0-0.copy", "thesis.tex"]
            reason = until(lambda: json.loads(home.cairn("node", "ls", "-o", "json").stdout)[0]["reason"], 20, "it is told")
            assert str(base) in reason and "belongs to nobody" in reason and "copies in memory lie in" in reason
            kept = [Path(path.read_text(encoding="utf-8")) for path in (home.home / "agent").glob("*.copies")]
            job = home.submit(checkpoint__memory_every="1 steps", train__duration="100000 steps")
            until(lambda: list(kept[0].glob(f"*/{job}/*.copy")), 30, "copies lie elsewhere")
            home.cairn("kill", job)
            until(lambda: not kept[0].exists(), 20, "and go with the job")
            assert sorted(path.name for path in ours.iterdir()) == ["empty", "g1-r0-0.copy", "thesis.tex"]
            home.cairn("down")
            home.cairn("up", "--slots", "2")  # it keeps to the new place
            assert [Path(path.read_text(encoding="utf-8")) for path in (home.home / "agent").glob("*.copies")] == kept
        finally:
            shutil.rmtree(base, ignore_errors=True)
            for path in kept:
                shutil.rmtree(path, ignore_errors=True)


# ---- homes ----


@root_only
def test_somebody_elses_home_is_refused_by_all_programs():
    with Quiet() as home:
        home.home.mkdir(mode=0o755)
        (home.home / "log").mkdir()
        target = home.dir / "root's own"
        target.touch()
        (home.home / "log" / "cairnd.log").symlink_to(target)
        os.chown(home.home, NOBODY, NOBODY)
        for program in ("cairn up", "cairn down", "cairnd", "cairn-agent", "cairn-observer"):
            done = subprocess.run([BIN / program.split()[0], *program.split()[1:]], env=home.env, cwd=home.dir, timeout=60,
                                  capture_output=True, text=True, check=False)
            assert done.returncode != 0, program
            assert "belongs to nobody (mode 0755)" in done.stderr, (program, done.stderr)
        assert target.read_text(encoding="utf-8") == ""


def test_a_home_that_others_may_write_to_is_refused():
    with Quiet() as home:
        home.home.mkdir()
        os.chmod(home.home, 0o775)
        done = home.cairn("up", check=False)
        assert done.returncode == 4 and "may write to" in done.stderr and "mode 0775" in done.stderr, done.stderr
        assert f"chmod 700 {home.home}" in done.stderr


def test_a_home_of_before_is_closed_and_all_in_it():
    with Quiet() as home:
        home.home.mkdir()
        os.chmod(home.home, 0o755)
        said = home.cairn("up", "--slots", "2").stderr
        assert f"{home.home} could be read by others (mode 0755)" in said
        assert mode(home.home) == 0o700
        job = home.submit()
        home.wait_state(job, "SUCCEEDED")
        for path in [*home.home.glob("log/*"), *home.home.glob("jobs/*/*/r*.log"), *home.home.glob("jobs/*/*/*.flight"),
                     home.home / "supervisor.lock", home.home / "state" / "seal"]:
            assert mode(path) == 0o600, path
        assert "could be read" not in home.cairn("up").stderr


@pytest.mark.parametrize("name", ["run #1", "a,b", "50%41?x=y", "x" * 200])
def test_a_home_of_any_name_is_served(name):
    with Quiet() as home:
        home.home = home.dir / name
        home.env["CAIRN_HOME"] = str(home.home)
        home.cairn("up", "--slots", "2")
        home.run()
        assert (home.home / "cairnd.sock").exists()
        home.cairn("down")
        assert not list(home.home.glob("cairnd.sock*"))


@root_only
def test_a_caller_in_another_space_of_processes_is_known_by_its_user():
    with Quiet() as home:
        with subprocess.Popen(["unshare", "-pf", "--mount-proc", BIN / "cairn", "up", "--foreground", "--grace", "5s"],
                              env=home.env, cwd=home.dir, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as space:
            try:
                until(lambda: home.cairn("ps", check=False).returncode == 0, 20, "it is let in")
                inner = home.pids("cairn")
                assert "already up" in home.cairn("up").stdout + home.cairn("up").stderr
                home.cairn("down", timeout=60)  # which finds its process by the lock
                assert inner and space.wait(60) == 0
            finally:
                home.end_everything()
                space.kill()


# ---- the supervisor's lock ----


HOLD = "import fcntl, sys, time; f = open(sys.argv[1]); fcntl.flock(f, int(sys.argv[2])); print('ready', flush=True); time.sleep(600)"


@root_only
@pytest.mark.parametrize("how", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_who_holds_the_lock_is_named(how):
    with Quiet() as home:
        home.home.mkdir()
        os.chmod(home.home, 0o755)  # as homes were
        lock = home.home / "supervisor.lock"
        lock.touch()
        os.chmod(lock, 0o644)
        other = subprocess.Popen(["sleep", "600"])
        lock.write_text(f"{other.pid}\n", encoding="utf-8")  # a number that is another's by now
        holder = home.run_as_nobody(HOLD, lock, how)
        try:
            done = home.cairn("up", check=False)
            assert done.returncode == 4, done.stderr
            assert f"held by process {holder.pid} (python3" in done.stderr and "of user nobody" in done.stderr, done.stderr
            home.cairn("down", check=False)
            assert alive(other.pid) and alive(holder.pid)
            end(holder)
            home.cairn("up", "--slots", "2")
            assert mode(lock) == 0o600
            home.cairn("down")
            assert lock.read_text(encoding="utf-8") == "" and alive(other.pid)
        finally:
            end(holder)
            end(other)


@root_only
def test_other_accounts_processes_are_not_the_homes():
    with Quiet() as home:
        home.home.mkdir(mode=0o755)
        program = home.dir / "cairnd"
        shutil.copy("/bin/sleep", program)
        os.chmod(program, 0o755)
        other = subprocess.Popen([program, "600"], env=home.env, cwd="/", **AS_NOBODY)
        try:
            home.cairn("up", "--slots", "2")
            assert "died" not in logged(home, "supervisor.log")
            home.cairn("down")
            assert alive(other.pid)
        finally:
            end(other)


# ---- sockets, tokens and keys ----


LISTEN = """
import os, socket, sys
kind = socket.AF_UNIX if sys.argv[1] == "unix" else socket.AF_INET
s = socket.socket(kind)
s.bind(sys.argv[2] if kind == socket.AF_UNIX else ("127.0.0.1", int(sys.argv[2])))
s.listen()
print("ready", flush=True)
got = s.accept()[0].recv(65536)
open(sys.argv[3], "wb").write(got)
"""


@root_only
def test_another_accounts_socket_is_sent_nothing():
    with Quiet() as home:
        public = home.dir / "public"
        public.mkdir()
        os.chmod(public, 0o1777)
        stranger = home.run_as_nobody(LISTEN, "unix", public / "s", public / "got")
        try:
            home.env["CAIRN_ADDR"] = f"unix:{public / 's'}"
            done = home.cairn("ps", check=False)
            assert done.returncode == 4 and "belongs to nobody" in done.stderr, done.stderr
            time.sleep(0.2)
            assert not (public / "got").exists() and stranger.poll() is None
        finally:
            end(stranger)
            del home.env["CAIRN_ADDR"]


def test_the_token_is_another_with_each_start_and_agents_go_on():
    with Quiet() as home:
        home.cairn("up", "--slots", "2", "--listen", "127.0.0.1:0")
        first = (home.home / "token").read_text(encoding="utf-8")
        assert mode(home.home / "token") == 0o600
        address = (home.home / "cairnd.addr").read_text(encoding="utf-8")
        env = {**home.env, "CAIRN_HOME": str(home.dir / "node"), "CAIRN_COPIES": str(home.copies) + "-node"}
        with subprocess.Popen([BIN / "cairn-agent", "--name", "n2", "--slots", "1", "--coordinator", address, "--token-file",
                               home.home / "token"], env=env, stderr=subprocess.DEVNULL) as agent:
            try:
                until(lambda: "n2" in home.cairn("node", "ls").stdout, 20, "it joined")
                home.cairn("down")
                home.cairn("up", "--slots", "2", "--listen", address)
                assert (home.home / "token").read_text(encoding="utf-8") != first
                until(lambda: any(node["name"] == "n2" and node["state"] == "ready"
                                  for node in json.loads(home.cairn("node", "ls", "-o", "json").stdout)), 30, "it joined again")
                home.env["CAIRN_ADDR"] = address
                assert "n2" in home.cairn("node", "ls").stdout
                os.chmod(home.home / "token", 0o644)
                done = home.cairn("ps", check=False)
                assert done.returncode != 0 and "chmod 600" in done.stderr, done.stderr
                del home.env["CAIRN_ADDR"]
            finally:
                agent.kill()


@root_only
def test_the_token_goes_to_no_other_accounts_listener():
    with Quiet() as home:
        home.cairn("up", "--slots", "2", "--listen", "127.0.0.1:0")
        address = (home.home / "cairnd.addr").read_text(encoding="utf-8")
        home.cairn("down")
        public = home.dir / "public"
        public.mkdir()
        os.chmod(public, 0o1777)
        stranger = home.run_as_nobody(LISTEN, "tcp", address.rsplit(":", 1)[1], public / "got")
        try:
            home.env["CAIRN_ADDR"] = address
            done = home.cairn("ps", check=False)
            assert done.returncode == 4 and "nobody listens at" in done.stderr, done.stderr
            time.sleep(0.2)
            assert not (public / "got").exists() and stranger.poll() is None
        finally:
            end(stranger)
            del home.env["CAIRN_ADDR"]


def test_keys_that_others_can_read_are_told_and_some_refused():
    with Quiet() as home:
        home.cairn("cert", "init", "--cluster", "lab")
        home.cairn("cert", "operator", "alice")
        tls = home.home / "tls"
        assert home.cairn("cert", "check", tls / "operator-alice.crt").returncode == 0
        os.chmod(tls / "operator-alice.key", 0o644)
        done = home.cairn("cert", "check", tls / "operator-alice.crt", check=False)
        assert done.returncode != 0 and f"chmod 600 {tls / 'operator-alice.key'}" in done.stderr
        os.chmod(tls / "ca.key", 0o640)
        done = home.cairn("cert", "operator", "bob", check=False)
        assert done.returncode != 0 and f"chmod 600 {tls / 'ca.key'}" in done.stderr, done.stderr
        assert not (tls / "operator-bob.crt").exists()
        home.cairn("up", "--slots", "2")
        home.cairn("down")
        os.chmod(home.home / "state" / "seal", 0o644)
        done = home.cairn("up", check=False)
        assert done.returncode == 4 and "chmod 600" in done.stderr and "seal" in done.stderr, done.stderr


def test_a_stopped_supervisor_is_ended_by_its_process():
    with Home(slots=2) as home:
        home.kill("cairn", signal.SIGSTOP)
        home.cairn("down", timeout=60)
        assert home.pids() == {}
