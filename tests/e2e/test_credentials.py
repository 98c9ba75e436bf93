"""A test per wrong credential, against one coordinator that speaks TLS and one on loopback with a token.

Each shows on all services that it is for that nothing can be done with it, and that the caller's line and the
coordinator's log say what is wrong and what to do. What somebody with a good certificate may do is in test_tls.py,
nodes that are forgotten in test_join.py.
"""
import json
import os
import signal
import sqlite3
import subprocess
import time

import grpc
import pytest

from home import BIN, TINY, Home, until
from test_join import Machine
from test_tls import CONFIG, TlsHome, messages  # noqa: F401 (messages: the fixture pb)

CALL_S = 10
LONG = (TINY.replace("duration: 12 steps", "duration: 10000000 steps").replace("count: 2", "count: 1")
        .replace("every: 4 steps", "every: 10000000 steps").replace("eval: {every: 6 steps}\n", ""))

def stamp(seconds):
    """So many seconds from now, as openssl wants it."""
    return time.strftime("%y%m%d%H%M%SZ", time.gmtime(time.time() + seconds))


def make_certificate(home, stem, who, since, until_s, use="clientAuth"):
    """One of the home's authority, as no command of Cairn's would make it."""
    folder = home.dir / f"made-{stem}"
    folder.mkdir()
    (folder / "index").touch()
    (folder / "serial").write_text(os.urandom(8).hex() + "\n", encoding="utf-8")
    conf = CONFIG.format(dir=folder).replace("clientAuth", use).replace("node/n2", who)
    (folder / "conf").write_text(conf, encoding="utf-8")
    key = home.tls / f"{stem}.key"
    subprocess.run(["openssl", "genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", key],
                   check=True, capture_output=True)
    os.chmod(key, 0o600)
    subprocess.run(["openssl", "req", "-new", "-key", key, "-subj", "/CN=x", "-out", folder / "csr"], check=True)
    subprocess.run(["openssl", "ca", "-batch", "-notext", "-config", folder / "conf", "-extensions", "node", "-in",
                    folder / "csr", "-cert", home.tls / "ca.crt", "-keyfile", home.tls / "ca.key", "-startdate",
                    stamp(since), "-enddate", stamp(until_s), "-out", home.tls / f"{stem}.crt"],
                   check=True, capture_output=True)


DAY = 86400
# stem -> (arguments of make_certificate after `who`, what `cairn` and the agent say of it)
MADE = {"expired": ((-2 * DAY, -DAY), "expired on"),
        "not_yet_valid": ((DAY, 2 * DAY), "here it is"),
        "wrong_use": ((-DAY, DAY, "serverAuth"), "for another use")}


class Place:
    """A home with TLS, node n1 and two jobs on it, and a home on loopback whose callers need the token."""

    def __init__(self, home, plain, pb):
        self.home, self.plain, self.pb = home, plain, pb
        self.other = home.dir / "other"
        self.elsewhere = {**home.env, "CAIRN_HOME": str(home.dir / "elsewhere"),  # another machine's, for its agent
                          "CAIRN_COPIES": str(home.copies / "elsewhere")}
        for stem, (life, _) in MADE.items():
            make_certificate(home, f"operator-{stem}", "operator/alice", *life)
            make_certificate(home, f"node-{stem}", "node/n3", *life)
        home.cairn("cert", "init", "--cluster", "lab", "--dir", self.other)
        for role, name in (("operator", "alice"), ("node", "n3")):
            home.cairn("cert", role, name, "--dir", self.other)
        for stem in ("operator-alice", "node-n3"):  # beside the authority that they are not of
            for end in ("crt", "key"):
                target = home.tls / f"{stem.split('-')[0]}-other_authority.{end}"
                target.write_bytes((self.other / f"{stem}.{end}").read_bytes())
                os.chmod(target, 0o600)
        home.start_agent(*home.files("node-n1"))
        until(lambda: "n1" in home.cairn("node", "ls").stdout, 20, "the agent joined")
        self.victim, neighbour = home.submit(LONG), home.submit(LONG)
        for job in (self.victim, neighbour):
            until(lambda job=job: home.show(job)["state"] == "RUNNING", 60, "it trains")
        self.old_token, self.neighbours_token = self.token(self.victim), self.token(neighbour)
        home.cairn("kill", neighbour)
        home.wait_state(neighbour, "KILLED")
        os.kill(home.show(self.victim)["workers"][0]["pid"], signal.SIGKILL)
        until(lambda: home.show(self.victim)["generation"] == 2 and home.show(self.victim)["state"] == "RUNNING", 60,
              "another generation")
        self.address = (plain.home / "cairnd.addr").read_text(encoding="utf-8")
        self.known = self.all_there_is()

    def token(self, job):
        """Of the job's generation."""
        with sqlite3.connect(f"file:{self.home.home}/state/cairnd.db?mode=ro", uri=True) as journal:
            return json.loads(journal.execute("SELECT state FROM jobs WHERE id=?", (job,)).fetchone()[0])["token"]

    def all_there_is(self):
        """What a stranger might have changed."""
        jobs = [json.loads(line) for home in (self.home, self.plain)
                for line in home.cairn("ps", "-o", "jsonl").stdout.splitlines()]
        nodes = [json.loads(line) for home in (self.home, self.plain)
                 for line in home.cairn("node", "ls", "-o", "jsonl").stdout.splitlines()]
        return ({(job["id"], job["state"], job["generation"], job["restarts"]) for job in jobs},
                {(node["name"], node["state"]) for node in nodes})

    # what a stranger tries

    def unary(self, channel, method, request, reply, metadata=None):
        call = channel.unary_unary(f"/cairn.v1.{method}", type(request).SerializeToString, reply.FromString)
        try:
            call(request, timeout=CALL_S, metadata=metadata)
        except grpc.RpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    def session(self, channel, service, message, order, metadata=None):
        call = channel.stream_stream(f"/cairn.v1.{service}/Session", type(message).SerializeToString, order.FromString)
        try:
            for _ in call(iter([message]), timeout=CALL_S, metadata=metadata):
                pass
        except grpc.RpcError as error:
            return error.code(), error.details()
        return grpc.StatusCode.OK, ""

    def kill(self, channel, metadata=None):
        request = self.pb.control.JobRequest(job=self.victim)
        return self.unary(channel, "Control/KillJob", request, self.pb.control.Job, metadata)

    def look(self, channel, metadata=None):
        request = self.pb.control.ListJobsRequest()
        return self.unary(channel, "Control/ListJobs", request, self.pb.control.ListJobsReply, metadata)

    def join(self, channel, node="n3", metadata=None):
        hello = self.pb.fleet.AgentHello(node=node, host="127.0.0.1", slots=1, boot_id="b")
        return self.session(channel, "Fleet", self.pb.fleet.AgentMessage(hello=hello), self.pb.fleet.AgentOrder, metadata)

    def train(self, channel, token=None, generation=2):
        hello = self.pb.training.TrainerHello(job=self.victim, generation=generation, rank=0)
        metadata = (("authorization", f"Bearer {token}"),) if token is not None else None
        return self.session(channel, "Training", self.pb.training.TrainerMessage(hello=hello),
                            self.pb.training.TrainerOrder, metadata)

    def everywhere(self, channel):
        """The answers of the three services."""
        return [self.kill(channel), self.look(channel), self.join(channel), self.train(channel, "0" * 64)]

    def run(self, program, *args, env=None):
        """(exit code, what it said) of a program that ends by itself, or (None, ...) within some seconds."""
        env = env or (self.elsewhere if program == "cairn-agent" else self.home.env)
        with subprocess.Popen([BIN / program, *map(str, args)], env=env, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
            try:
                return child.wait(timeout=20), child.stderr.read()
            except subprocess.TimeoutExpired:
                child.kill()
                return None, child.stderr.read()

    def agent_says(self, words, *args):
        """An agent that tries on: until its log has the words, a line."""
        with subprocess.Popen([BIN / "cairn-agent", *map(str, args)], env=self.elsewhere, stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as child:
            try:
                return next((line for line in child.stderr if words in line), "")
            finally:
                child.kill()


def log_says(home, attempt, *words):
    """A line of the coordinator's log with the words follows the attempt. Refusals are logged at a bounded rate:
    it is tried again where there is none."""
    def said():
        begin = len(home.log_of("cairnd"))
        attempt()
        end = time.monotonic() + 1
        while time.monotonic() < end:
            if any(all(word in line for word in words) for line in home.log_of("cairnd")[begin:].splitlines()):
                return True
            time.sleep(0.02)
        return False
    until(said, 30, f"the log says {words}")


class PlainHome(Home):
    """cairnd on loopback, where callers need the token."""

    def __enter__(self):
        self.home.mkdir()
        self.agents = []
        with (self.dir / "cairnd.log").open("ab") as log:
            self.daemon = subprocess.Popen([BIN / "cairnd", "--listen", "127.0.0.1:0"], env=self.env, stderr=log,
                                           stdin=subprocess.DEVNULL)
        until(lambda: (self.home / "cairnd.addr").exists() and self.cairn("ps", check=False).returncode == 0, 20,
              "the coordinator serves")
        return self

    def __exit__(self, kind, value, trace):
        super().__exit__(kind, value, trace)
        for child in (self.daemon, *self.agents):
            child.wait()

    def start_agent(self):
        """n1, which dials TCP with the token."""
        address = (self.home / "cairnd.addr").read_text(encoding="utf-8")
        with (self.dir / "agent.log").open("ab") as log:
            self.agents.append(subprocess.Popen([BIN / "cairn-agent", "--coordinator", address, "--name", "n1", "--slots",
                                                 "4"], env=self.env, stderr=log, stdin=subprocess.DEVNULL))

    def log_of(self, _):
        return (self.dir / "cairnd.log").read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="module", name="place")
def one_place(pb):
    with TlsHome(env={"CAIRN_HANG_MS": "60000"}) as home, PlainHome() as plain:
        yield Place(home, plain, pb)


@pytest.fixture(autouse=True)
def nothing_was_done(place):
    yield
    assert place.all_there_is() == place.known


# ---- connections that TLS itself refuses; gRPC says so ten times in ten seconds at most ----

def test_plaintext_to_the_tls_port(place):
    with grpc.insecure_channel(place.home.address) as channel:
        assert {code for code, _ in place.everywhere(channel)} == {grpc.StatusCode.UNAVAILABLE}

    def attempt():
        with grpc.insecure_channel(place.home.address) as channel:
            place.look(channel)
    log_says(place.home, attempt, "speaks no TLS", "--tls-cert", "cairn cert")
    code, said = place.run("cairn", "--addr", place.home.address, "ps")
    assert code == 5 and said.count("\n") == 1 and "it may speak TLS: --tls-cert" in said, said
    (place.home.dir / "any-token").write_text("a" * 64, encoding="utf-8")
    os.chmod(place.home.dir / "any-token", 0o600)
    assert place.agent_says("it may speak TLS: --tls-cert", "--coordinator", place.home.address, "--name", "n3",
                            "--token-file", place.home.dir / "any-token")


@pytest.mark.parametrize("wrong", [*MADE, "other_authority"])
def test_certificate(place, wrong):
    """Expired, not yet valid, made for serving only, of another authority."""
    words = MADE[wrong][1] if wrong in MADE else "wasn't signed by the authority"
    for stem in (f"operator-{wrong}", f"node-{wrong}"):
        with place.home.channel(stem) as channel:
            assert {code for code, _ in place.everywhere(channel)} == {grpc.StatusCode.UNAVAILABLE}

    def attempt():
        with place.home.channel(f"operator-{wrong}") as channel:
            place.look(channel)
    if wrong == "expired":  # of the others it says the same
        log_says(place.home, attempt, "a connection was refused", "cairn cert check")
    code, said = place.run("cairn", "--addr", place.home.address, *place.home.files(f"operator-{wrong}"), "ps")
    assert code == 2 and said.count("\n") == 1 and words in said, said
    code, said = place.run("cairn-agent", "--coordinator", place.home.address, *place.home.files(f"node-{wrong}"))
    assert code == 2 and words in said, said


def test_other_authority_at_both_ends(place):
    """Its certificate fits the authority that it trusts: it is the coordinator that it doesn't believe."""
    files = ["--tls-cert", place.other / "operator-alice.crt", "--tls-key", place.other / "operator-alice.key",
             "--tls-ca", place.other / "ca.crt"]
    code, said = place.run("cairn", "--addr", place.home.address, *files, "ps")
    assert code == 5 and said.count("\n") == 1 and "take the ca.crt of that coordinator" in said, said


def test_coordinators_certificate(place):
    """For serving: who stole it can't call with it."""
    with place.home.channel("coordinator") as channel:
        assert {code for code, _ in place.everywhere(channel)} == {grpc.StatusCode.UNAVAILABLE}
    code, said = place.run("cairn", "--addr", place.home.address, *place.home.files("coordinator"), "ps")
    assert code == 2 and "is the certificate of a coordinator" in said, said


def test_tls_to_the_plaintext_port(place):
    credentials = grpc.ssl_channel_credentials((place.home.tls / "ca.crt").read_bytes())
    with grpc.secure_channel(place.address, credentials) as channel:
        assert {code for code, _ in place.everywhere(channel)} == {grpc.StatusCode.UNAVAILABLE}
    code, said = place.run("cairn", "--addr", place.address, *place.home.files("operator-alice"), "ps")
    assert code == 5 and said.count("\n") == 1 and "it speaks no TLS: leave out --tls-cert" in said, said
    assert place.agent_says("it speaks no TLS: leave out --tls-cert", "--coordinator", place.address,
                            *place.home.files("node-n1"))


# ---- certificates that are not for this ----

def test_no_certificate(place):
    wanted = ("this coordinator wants a certificate", "cairn cert")
    with place.home.channel() as channel:
        for token in (None, (place.plain.home / "token").read_text(encoding="utf-8")):
            metadata = (("authorization", f"Bearer {token}"),) if token else None
            for code, said in (place.kill(channel, metadata), place.look(channel, metadata),
                               place.join(channel, "n1", metadata)):
                assert code == grpc.StatusCode.UNAUTHENTICATED and all(word in said for word in wanted), said
        code, said = place.train(channel)
        assert code == grpc.StatusCode.UNAUTHENTICATED and "its agent gives it" in said
        log_says(place.home, lambda: place.kill(channel), "nobody at ipv4:127.0.0.1:", "may not call Control/KillJob",
                 *wanted)


def test_viewer_who_kills(place):
    with place.home.channel("viewer-bob") as channel:
        code, said = place.kill(channel)
        assert code == grpc.StatusCode.PERMISSION_DENIED and "a viewer's certificate is for looking" in said
        assert place.look(channel)[0] == grpc.StatusCode.OK
        code, said = place.join(channel)
        assert code == grpc.StatusCode.PERMISSION_DENIED
        log_says(place.home, lambda: place.kill(channel), "viewer/bob at ipv4:127.0.0.1:", "Control/KillJob",
                 "this takes an operator's", "cairn cert operator NAME")
    done = place.home.by("viewer-bob", "kill", place.victim)
    assert done.returncode == 4 and done.stderr.count("\n") == 1 and "cairn cert operator NAME" in done.stderr


def test_operator_as_an_agent(place):
    with place.home.channel("operator-alice") as channel:
        code, said = place.join(channel)
        assert code == grpc.StatusCode.PERMISSION_DENIED and "an agent needs a node's" in said
        log_says(place.home, lambda: place.join(channel), "operator/alice at ", "Fleet/Session", "cairn cert node NAME")
    code, said = place.run("cairn-agent", "--coordinator", place.home.address, "--name", "n3",
                           *place.home.files("operator-alice"))
    assert code == 2 and "that of a node is needed here" in said, said


def test_node_that_commands(place):
    with place.home.channel("node-n1") as channel:
        for code, said in (place.kill(channel), place.look(channel)):
            assert code == grpc.StatusCode.PERMISSION_DENIED and "a node's certificate is for its agent" in said
        log_says(place.home, lambda: place.kill(channel), "node/n1 at ", "Control/KillJob", "cairn cert operator NAME")
    code, said = place.run("cairn", "--addr", place.home.address, *place.home.files("node-n1"), "kill", place.victim)
    assert code == 2 and said.count("\n") == 1 and "is the certificate of a node" in said, said


def test_another_nodes_name(place):
    with place.home.channel("node-n2") as channel:
        code, said = place.join(channel, "n1")
        assert code == grpc.StatusCode.PERMISSION_DENIED and "node n2's and the hello says n1" in said
        log_says(place.home, lambda: place.join(channel, "n1"), "node/n2 at ", "Fleet/Session", "--name n2",
                 "cairn cert node n1")
    code, said = place.run("cairn-agent", "--coordinator", place.home.address, "--name", "n1",
                           *place.home.files("node-n2"))
    assert code == 2 and "is node n2's, not n1's" in said, said


# ---- tokens of generations ----

@pytest.mark.parametrize("whose", ["another_job", "an_old_generation", "nobody", "a_prefix", "a_node"])
def test_trainers_token(place, whose):
    token = place.token(place.victim)
    assert token != place.old_token
    wrong = {"another_job": place.neighbours_token, "an_old_generation": place.old_token, "nobody": "0" * 64,
             "a_prefix": token[:-1], "a_node": None}[whose]
    with place.home.channel("node-n1" if whose == "a_node" else None) as channel:
        code, said = place.train(channel, wrong)
        words = "workers get theirs from the agent" if whose in ("another_job", "an_old_generation") else \
            "this is none that this coordinator made"
        assert code == grpc.StatusCode.UNAUTHENTICATED and words in said, said
        if whose == "nobody":
            log_says(place.home, lambda: place.train(channel, wrong), "nobody at ", "Training/Session", words)
        if whose == "another_job":
            log_says(place.home, lambda: place.train(channel, wrong), "may not call Training/Session",
                     "not the token of this job and generation")
        if whose == "an_old_generation":  # as itself
            code, said = place.train(channel, wrong, generation=1)
            assert code == grpc.StatusCode.FAILED_PRECONDITION and "this generation is over" in said


# ---- invites ----

def test_replayed_invite(place):
    home, invite = place.home, place.home.dir / "once.invite"
    home.cairn("node", "invite", "-o", invite)
    first = Machine(home, "m1")
    agent = first.join(invite)
    until(lambda: (first.dir / "tls" / "node-m1.crt").exists(), 20, "it joined")
    agent.kill()
    second = Machine(home, "m2")
    log_says(home, lambda: second.refused(invite), "nobody at ", "Fleet/Join", "this invite is used up",
             "cairn node invite")
    said = second.refused(invite)
    assert "this invite is used up" in said and "'cairn node invite' makes another" in said, said
    assert not (second.dir / "tls" / "node-m2.crt").exists()
    home.cairn("node", "forget", "m1")
    place.known = place.all_there_is()
    assert place.known[1] == {("n1", "ready"), ("m1", "forgotten")}


# ---- the token of loopback ----

@pytest.mark.parametrize("wrong", ["none", "another", "longer", "shorter", "a_generations"])
def test_bearer_token(place, wrong):
    good = (place.plain.home / "token").read_text(encoding="utf-8")
    token = {"none": None, "another": "f" * 64, "longer": good + "0", "shorter": good[:-1],
             "a_generations": place.token(place.victim)}[wrong]
    metadata = (("authorization", f"Bearer {token}"),) if token else None
    words = ("the bearer token of CAIRN_HOME/token is missing or wrong",)
    with grpc.insecure_channel(place.address) as channel:
        for code, said in (place.kill(channel, metadata), place.look(channel, metadata),
                           place.join(channel, "n3", metadata)):
            assert code == grpc.StatusCode.UNAUTHENTICATED and words[0] in said, said
        assert place.train(channel, token)[0] == grpc.StatusCode.UNAUTHENTICATED  # none of this coordinator
        if wrong in ("none", "another"):
            log_says(place.plain, lambda: place.kill(channel, metadata), "nobody at ", "Control/KillJob", *words)
        assert place.look(channel, (("authorization", f"Bearer {good}"),))[0] == grpc.StatusCode.OK
    file = place.plain.dir / f"token-{wrong}"
    file.write_text(token or "", encoding="utf-8")
    os.chmod(file, 0o600)
    env = {**place.plain.env, "CAIRN_TOKEN_FILE": str(file)}
    code, said = place.run("cairn", "--addr", place.address, "ps", env=env)
    assert code != 0 and said.count("\n") == 1 and words[0] in said, said


def test_all_of_it_is_in_the_audit_log(place):
    """Nothing that a stranger asked for was done by anybody but `local`, this file. One comes here, too: this may be
    the first case that is run."""
    with place.home.channel() as channel, grpc.insecure_channel(place.address) as plain:
        assert {place.kill(channel)[0], place.kill(plain)[0]} == {grpc.StatusCode.UNAUTHENTICATED}
    for home in (place.home, place.plain):
        def strangers(state=home.home / "state"):
            lines = [json.loads(line) for log in (state / "audit.log", state / "refused.log") if log.exists()
                     for line in log.read_text("utf-8").splitlines()]
            return [line for line in lines if line.get("actor", "local") != "local"]
        until(strangers, 10, "the stranger is in the log")
        done = [line for line in strangers() if line["code"] == "OK"]
        assert {line["method"] for line in done} <= {"Fleet/Join"}, done
