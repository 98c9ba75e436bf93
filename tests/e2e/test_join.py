"""Who comes in and who is put out: nodes that are forgotten, that join by an invite, that renew themselves."""
import json
import os
import stat
import subprocess
import time
from pathlib import Path

import grpc
import pytest

from home import BIN, until
from test_tls import TlsHome, brief_certificate, messages, refused  # noqa: F401 (messages: the fixture pb)


@pytest.fixture(name="home")
def fresh_home():
    with TlsHome() as home:
        yield home


def state(home, node):
    nodes = [json.loads(line) for line in home.cairn("node", "ls", "-o", "jsonl").stdout.splitlines()]
    return next((one["state"] for one in nodes if one["name"] == node), None)


def end(agent):
    agent.send_signal(2)
    agent.wait()


def restart_coordinator(home):
    home.children[0].terminate()
    home.children[0].wait()
    home.children[0] = home.start("cairnd", "--listen", home.address, *home.files("coordinator"))
    home.children.pop()
    until(lambda: home.cairn("ps", check=False).returncode == 0, 20, "the coordinator serves again")


def test_a_forgotten_node_is_out_until_it_has_a_new_certificate(home):
    agent = home.start_agent(*home.files("node-n1"))
    until(lambda: state(home, "n1") == "ready", 20, "the agent joined")
    refused = home.by("viewer-bob", "node", "forget", "n1")
    assert refused.returncode == 4 and "viewer" in refused.stderr, refused.stderr
    assert state(home, "n1") == "ready"

    done = home.by("operator-alice", "node", "forget", "n1")
    assert done.returncode == 0 and "forgotten" in done.stdout, done.stderr
    until(lambda: "this node was forgotten" in home.log_of("cairn-agent"), 20, "its agent is told, and tries on in vain")
    assert state(home, "n1") == "forgotten"
    restart_coordinator(home)
    assert state(home, "n1") == "forgotten", "the journal has it"
    end(agent)
    told = home.log_of("cairn-agent").count("was forgotten")
    agent = home.start_agent(*home.files("node-n1"))
    until(lambda: home.log_of("cairn-agent").count("was forgotten") > told, 20, "it is refused by that one, too")

    home.start_agent(*home.files("node-n2"))
    until(lambda: state(home, "n2") == "ready", 20, "others are let in")
    end(agent)
    time.sleep(1.1)  # what is issued in that second still counts as before
    for ending in ("crt", "key"):
        (home.tls / f"node-n1.{ending}").unlink()
    home.cairn("cert", "node", "n1")
    home.start_agent(*home.files("node-n1"))
    until(lambda: state(home, "n1") == "ready", 20, "a certificate of later lets it in")


def test_what_ran_on_a_forgotten_node_goes_on_elsewhere(home):
    home.start_agent(*home.files("node-n1"))
    until(lambda: state(home, "n1") == "ready", 20, "the agent joined")
    job = home.submit(train__duration="600 steps", workers__count=2)
    until(lambda: home.show(job)["state"] == "RUNNING", 60, "it trains")
    home.cairn("node", "forget", "n1")
    home.start_agent(*home.files("node-n2"))
    shown = home.wait_state(job, "SUCCEEDED", seconds=120)
    assert {worker["node"] for worker in shown["workers"]} == {"n2"}
    assert shown["generation"] > 1


def test_workers_whose_tokens_another_key_made_go_on(home):
    """As after an update, or where a home was copied without its state/seal."""
    home.start_agent(*home.files("node-n1"))
    until(lambda: state(home, "n1") == "ready", 20, "the agent joined")
    job = home.submit(train__duration="100000 steps", workers__count=2)
    until(lambda: home.show(job)["step"] > 10, 60, "it trains")
    (home.home / "state" / "seal").unlink()
    restart_coordinator(home)
    assert "1 jobs run with tokens that state/seal didn't make" in home.log_of("cairnd")
    there = home.show(job)["step"]
    until(lambda: home.show(job)["step"] > there + 10, 30, "the coordinator hears its workers")
    assert home.show(job)["generation"] == 1
    home.cairn("kill", job)


def test_who_was_never_here_can_be_forgotten_and_a_name_has_to_be_one(home):
    home.cairn("node", "forget", "n1")
    assert state(home, "n1") == "forgotten"
    home.start_agent(*home.files("node-n1"))
    until(lambda: "this node was forgotten" in home.log_of("cairn-agent"), 20, "it is refused")
    bad = home.cairn("node", "forget", "a/b", check=False)
    assert bad.returncode == 2 and "name" in bad.stderr, bad.stderr


# ---- invites ----

class Machine:
    """Another machine's home; what it joins by."""

    def __init__(self, home, name):
        self.home, self.name = home, name
        self.dir = home.dir / f"machine-{name}"
        self.env = {**home.env, "CAIRN_HOME": str(self.dir), "CAIRN_COPIES": str(home.copies / name)}

    def args(self, invite):
        return [str(BIN / "cairn-agent"), "--join", str(invite), "--name", self.name, "--slots", "4"]

    def join(self, invite):
        self.dir.mkdir(exist_ok=True)
        log = (self.dir / "log").open("ab")
        agent = subprocess.Popen(self.args(invite), env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                 start_new_session=True)
        self.home.children.append(agent)
        return agent

    def refused(self, invite):
        done = subprocess.run(self.args(invite), env=self.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 2, done.stderr
        return done.stderr


@pytest.fixture(name="machines")
def agents_end(home):
    made = {}
    yield lambda name: made.setdefault(name, Machine(home, name))
    for child in home.children[1:]:
        if child.poll() is None:
            child.kill()


def secret_of(invite):
    return next(line.split()[1] for line in invite.read_text().splitlines() if line.startswith("secret "))


def holders(secret, home):
    """Where the secret stands in a process, a file of a home, or what a command says."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        for what in ("environ", "cmdline"):
            try:
                if secret.encode() in (entry / what).read_bytes():
                    found.append(entry / what)
            except OSError:
                pass
    for path in home.dir.rglob("*"):
        if path.is_file() and not path.name.endswith(".invite") and secret.encode() in path.read_bytes():
            found.append(path)
    return found


def test_a_machine_joins_by_an_invite_and_needs_it_once(home, machines):
    invite = home.dir / "one.invite"
    done = home.by("operator-alice", "node", "invite", "-o", invite)
    assert done.returncode == 0 and done.stdout == "", done.stderr
    assert stat.S_IMODE(invite.stat().st_mode) == 0o600
    secret = secret_of(invite)
    assert secret not in done.stderr
    again = home.by("operator-alice", "node", "invite", "-o", invite)
    assert again.returncode == 4 and secret_of(invite) == secret, "what is there stays"

    one = machines("m1")
    agent = one.join(invite)
    until(lambda: state(home, "m1") == "ready", 20, "it joined")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (one.dir / "tls").iterdir()}
    assert modes["node-m1.crt"] == 0o600 and modes["node-m1.key"] == 0o600, modes
    assert home.cairn("cert", "check", one.dir / "tls" / "node-m1.crt").returncode == 0
    job = home.submit()
    assert {worker["node"] for worker in home.wait_state(job, "SUCCEEDED")["workers"]} == {"m1"}
    assert not holders(secret, home)
    assert secret not in home.cairn("show", job, "-o", "json").stdout + home.cairn("why", job).stdout

    told = machines("m2").refused(invite)
    assert "this invite is used up" in told and "cairn node invite" in told and secret not in told, told
    assert not (machines("m2").dir / "tls" / "node-m2.crt").exists()

    end(agent)
    invite.unlink()
    restart_coordinator(home)
    one.join(invite)
    until(lambda: state(home, "m1") == "ready", 20, "by what it has, without the invite")


def test_an_invite_for_two_of_any_name_that_is_free(home, machines):
    invite = home.dir / "two.invite"
    home.cairn("node", "invite", "--uses", 2, "-o", invite)
    machines("m1").join(invite)
    until(lambda: state(home, "m1") == "ready", 20, "it joined")
    impostor = Machine(home, "m1")
    impostor.env["CAIRN_HOME"] = str(home.dir / "elsewhere")
    told = impostor.refused(invite)
    assert "a node of the name m1 is there already" in told, told
    machines("m2").join(invite)
    until(lambda: state(home, "m2") == "ready", 20, "a refusal used nothing up")
    assert "used up" in machines("m3").refused(invite)


def test_a_forgotten_node_joins_again(home, machines):
    invite = home.dir / "again.invite"
    home.cairn("node", "invite", "--uses", 2, "-o", invite)
    one = machines("m1")
    agent = one.join(invite)
    until(lambda: state(home, "m1") == "ready", 20, "it joined")
    home.cairn("node", "forget", "m1")
    end(agent)
    for path in (one.dir / "tls").glob("node-m1.*"):
        path.unlink()
    one.join(invite)
    until(lambda: state(home, "m1") == "ready", 20, "by the invite, in the same second even")


def test_invites_that_do_not_count(home, machines):
    invite = home.dir / "brief.invite"
    home.cairn("node", "invite", "--valid", "1s", "-o", invite)
    time.sleep(2.1)
    assert "too old" in machines("m1").refused(invite)

    invite = home.dir / "wrong.invite"
    home.cairn("node", "invite", "-o", invite)
    text = invite.read_text()
    invite.write_text(text.replace(secret_of(invite), "0" * 64))
    assert "this invite is used up" in machines("m1").refused(invite)

    home.cairn("cert", "init", "--cluster", "lab", "--dir", home.dir / "other")
    other = (home.dir / "other" / "ca.crt").read_text()
    invite.write_text(text[:text.index("-----BEGIN")] + other)
    elsewhere = Machine(home, "m4")
    assert "no coordinator there that the invite's authority knows" in elsewhere.refused(invite)

    invite.write_text("secret 12\n" + other)
    told = elsewhere.refused(invite)
    assert "is no invite" in told, told
    invite.write_text(text)
    bad = Machine(home, "-m")
    assert bad.refused(invite)


def test_an_invite_names_what_others_can_dial(tmp_path):
    env = {**os.environ, "CAIRN_HOME": str(tmp_path / "home")}

    def cairn(*args, check=True):
        return subprocess.run([BIN / "cairn", *map(str, args)], env=env, capture_output=True, text=True, timeout=30,
                              check=check)

    def invite(*hosts):
        cairn("cert", "init", *hosts)
        tls = tmp_path / "home" / "tls"
        daemon = subprocess.Popen([BIN / "cairnd", "--listen", "0.0.0.0:0", "--tls-cert", tls / "coordinator.crt",
                                   "--tls-key", tls / "coordinator.key", "--tls-ca", tls / "ca.crt"], env=env,
                                  stderr=subprocess.DEVNULL)
        try:
            until(lambda: cairn("ps", check=False).returncode == 0, 20, "it serves")
            ports.append((tmp_path / "home" / "cairnd.addr").read_text().rsplit(":", 1)[1])
            return cairn("node", "invite", "--to", tmp_path / "x.invite", check=False)
        finally:
            daemon.terminate()
            daemon.wait()

    ports = []
    told = invite()
    assert told.returncode != 0 and "--hosts" in told.stderr, told.stderr
    (tmp_path / "home" / "tls" / "coordinator.crt").unlink()
    (tmp_path / "home" / "tls" / "coordinator.key").unlink()
    assert invite("--hosts", "cairn.example.org,10.0.0.1,fd00::1").returncode == 0
    port = ports[-1]
    lines = (tmp_path / "x.invite").read_text().splitlines()
    assert [line.split()[1] for line in lines if line.startswith("address ")] == [
        f"cairn.example.org:{port}", f"10.0.0.1:{port}", f"[fd00::1]:{port}"]


def test_who_may_invite_and_what_it_takes(home):
    for stem in ("viewer-bob", "node-n1"):
        done = home.by(stem, "node", "invite", "-o", home.dir / "no.invite")
        assert done.returncode != 0 and not (home.dir / "no.invite").exists(), done.stderr
    assert "--to FILE" in home.cairn("node", "invite", check=False).stderr
    assert home.cairn("node", "invite", "--valid", "30d", "-o", home.dir / "no.invite", check=False).returncode == 2
    for _ in range(64):
        home.cairn("node", "invite", "-o", home.dir / "many.invite")
        (home.dir / "many.invite").unlink()
    full = home.cairn("node", "invite", "-o", home.dir / "no.invite", check=False)
    assert "64 invites count already" in full.stderr, full.stderr
    (home.tls / "ca.key").rename(home.dir / "ca.key")
    restart_coordinator(home)
    done = home.cairn("node", "invite", "-o", home.dir / "no.invite", check=False)
    assert done.returncode != 0 and "ca.key" in done.stderr and "cairn cert" in done.stderr, done.stderr


# ---- agents that renew ----

def short_certificate(home, *life):
    """Node n2's, in the place of the one it has."""
    (home.dir / "ca.key").write_bytes((home.tls / "ca.key").read_bytes())
    brief_certificate(home, *life)
    (home.tls / "node-n2.crt").write_bytes((home.tls / "node-brief.crt").read_bytes())
    return home.tls / "node-n2.crt"


def serial(home, cert):
    return json.loads(home.cairn("cert", "show", cert, "-o", "jsonl").stdout)["serial"]


def test_an_agent_renews_its_certificate_in_time(home):
    cert = short_certificate(home, 3600)
    before, key = serial(home, cert), (home.tls / "node-n2.key").read_bytes()
    home.start_agent(*home.files("node-n2"))
    until(lambda: "node-n2.crt is renewed" in home.log_of("cairn-agent"), 20, "it is renewed")
    assert serial(home, cert) != before and (home.tls / "node-n2.key").read_bytes() == key
    assert home.cairn("cert", "check", cert).returncode == 0
    until(lambda: home.log_of("cairn-agent").count("connected to the coordinator") == 2, 20, "it connects with it")
    until(lambda: state(home, "n2") == "ready", 20, "it is there")
    assert home.log_of("cairn-agent").count("is renewed") == 1
    job = home.submit()
    home.wait_state(job, "SUCCEEDED")


def test_a_certificate_that_falls_due_while_the_agent_is_there(home):
    since = time.strftime("%y%m%d%H%M%SZ", time.gmtime(time.time() - 50))
    cert = short_certificate(home, 40, since)  # two thirds of 90 s are over 10 s from now
    before = serial(home, cert)
    home.start_agent(*home.files("node-n2"))
    until(lambda: state(home, "n2") == "ready" and serial(home, cert) == before, 20, "it is there with the old one")
    until(lambda: "is renewed" in home.log_of("cairn-agent"), 39, "then it is renewed")
    until(lambda: home.log_of("cairn-agent").count("connected to the coordinator") == 2, 20, "it connects with it")


def test_an_agent_says_why_it_is_not_renewed(home):
    cert = short_certificate(home, 3600)
    before = cert.read_bytes()
    (home.tls / "ca.key").unlink()
    home.start_agent(*home.files("node-n2"))
    until(lambda: "isn't renewed, trying on" in home.log_of("cairn-agent"), 20, "it says so")
    assert "ca.key" in home.log_of("cairn-agent")
    until(lambda: state(home, "n2") == "ready", 20, "meanwhile it works")
    assert cert.read_bytes() == before


def test_nobody_renews_the_certificate_of_another(home, pb):
    request = pb.fleet.RenewRequest(certificate=(home.tls / "node-n2.crt").read_text())
    code, words = refused(home.channel("node-n1"), "/cairn.v1.Fleet/Renew", request, pb.fleet.JoinReply)
    assert code == grpc.StatusCode.PERMISSION_DENIED and "renews the certificate that it shows" in words
    code, _ = refused(home.channel(), "/cairn.v1.Fleet/Renew", request, pb.fleet.JoinReply)
    assert code == grpc.StatusCode.UNAUTHENTICATED
    home.cairn("node", "forget", "n2")
    code, words = refused(home.channel("node-n2"), "/cairn.v1.Fleet/Renew", request, pb.fleet.JoinReply)
    assert code == grpc.StatusCode.PERMISSION_DENIED and "was forgotten" in words
