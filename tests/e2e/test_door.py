"""What strangers can do to the port, and what too large a message does: nothing to jobs, nodes and people."""
import hashlib
import hmac
import json
import os
import resource
import socket
import ssl
import subprocess
import threading
import time

import grpc
import pytest

from home import BIN, Home, until
from test_tls import CALL_S, TlsHome, messages  # noqa: F401 (messages: the fixture pb)

FULL = os.environ.get("CAIRN_TEST_FULL") == "1"
MESSAGE = 4 << 20  # LIMIT_MESSAGE_BYTES
HELLO = 256 << 10  # LIMIT_HELLO_BYTES
STRANGERS = 10_000 if FULL else 300
HANDSHAKE_S = 10
# Long enough that strangers come and go while it trains.
LONG = {"train__duration": "6000 steps" if FULL else "2000 steps", "checkpoint__every": "500 steps",
        "eval__every": "10000 steps"}


def session_refused(channel, service, message, order, metadata=None):
    call = channel.stream_stream(f"/cairn.v1.{service}/Session", type(message).SerializeToString, order.FromString)
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call(iter([message]), timeout=CALL_S, metadata=metadata):
            pass
    return caught.value.code(), caught.value.details()


class DoorHome(TlsHome):
    def __enter__(self):
        super().__enter__()
        self.start_agent(*self.files("node-n1"))
        until(lambda: "n1" in self.cairn("node", "ls").stdout, 20, "the agent joined")
        return self

    @property
    def daemon(self):
        return self.children[0].pid

    def descriptors(self):
        return len(os.listdir(f"/proc/{self.daemon}/fd"))

    def peak_mib(self):
        with open(f"/proc/{self.daemon}/status", encoding="utf-8") as file:
            return int(file.read().split("VmHWM:")[1].split()[0]) // 1024

    def state_of(self, name):
        rows = map(json.loads, self.cairn("node", "ls", "-o", "jsonl").stdout.splitlines())
        return next((row["state"] for row in rows if row["name"] == name), None)

    def dial(self):
        host, _, port = self.address.rpartition(":")
        return socket.create_connection((host, int(port)), timeout=20)

    def sealed(self):
        """A token that this coordinator could have made, of no generation."""
        key = (self.home / "state" / "seal").read_bytes()
        half = os.urandom(16).hex()
        return half + hmac.new(key, half.encode(), hashlib.sha256).hexdigest()[:32]


@pytest.fixture(scope="module", name="home")
def one_home():
    with DoorHome() as home:
        yield home


@pytest.fixture(scope="module", name="quiet")
def weights_without_strangers():
    with Home() as plain:
        return plain.run(**LONG)


def fill(message, size):
    """Its bytes, of exactly that size: the rest is a field that nobody knows."""
    bare = message.SerializeToString()
    rest = size - len(bare) - 2  # of the tag: number 2000, bytes
    length = next(n for n in range(1, 6) if rest - n < 1 << 7 * n)
    rest -= length
    varint = bytes((rest >> 7 * i & 127) | (128 if i < length - 1 else 0) for i in range(length))
    whole = bare + b"\x82\x7d" + varint + bytes(rest)
    assert len(whole) == size
    return whole


def raw(channel, path, kind="unary_unary"):
    return getattr(channel, kind)(path, lambda data: data, lambda data: data)


def ended(call):
    """How a call ended that the server ended."""
    with pytest.raises(grpc.RpcError) as caught:
        for _ in call:
            pass
    return caught.value.code(), caught.value.details()


# ---- messages at their limits ----

def test_control_takes_a_message_of_the_limit_and_none_over_it(home, pb):
    call = raw(home.channel("viewer-bob"), "/cairn.v1.Control/ListJobs")
    request = pb.control.ListJobsRequest(page_size=1)
    assert call(fill(request, MESSAGE), timeout=20) is not None
    with pytest.raises(grpc.RpcError) as caught:
        call(fill(request, MESSAGE + 1), timeout=20)
    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in caught.value.details()
    assert call(fill(request, 100), timeout=20) is not None


class Talk:
    """A stream whose messages are said one by one."""

    def __init__(self, channel, path, metadata=None):
        self.next, self.waiting, self.end = [], threading.Condition(), False
        self.call = raw(channel, path, "stream_stream")(self.said(), timeout=60, metadata=metadata)

    def said(self):
        while True:
            with self.waiting:
                self.waiting.wait_for(lambda: self.next or self.end)
                if not self.next:
                    return
                message = self.next.pop(0)
            yield message

    def say(self, message):
        with self.waiting:
            self.next.append(message)
            self.waiting.notify()

    def hang_up(self):
        with self.waiting:
            self.end = True
            self.waiting.notify()


def test_an_agent_says_messages_of_the_limit_and_none_over_it(home, pb):
    version = subprocess.run([BIN / "cairnd", "--version"], capture_output=True, text=True, check=True).stdout.split()[1]
    hello = pb.fleet.AgentMessage(hello=pb.fleet.AgentHello(node="n2", host="127.0.0.1", slots=0, boot_id="b",
                                                         version=version))
    beat = pb.fleet.AgentMessage(beat=pb.fleet.AgentBeat())
    channel = home.channel("node-n2")
    talk = Talk(channel, "/cairn.v1.Fleet/Session")
    talk.say(fill(hello, HELLO))
    until(lambda: home.state_of("n2") == "ready", 20, "a hello of the limit is taken")
    talk.say(fill(beat, MESSAGE))
    talk.say(fill(beat, MESSAGE + 1))
    code, words = ended(talk.call)  # the beat before was taken, or this would be INVALID_ARGUMENT, and sooner
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and "larger than max" in words
    talk.hang_up()
    again = Talk(channel, "/cairn.v1.Fleet/Session")
    again.say(fill(hello, HELLO + 1))
    code, words = ended(again.call)
    assert code == grpc.StatusCode.RESOURCE_EXHAUSTED and "first message" in words and "too large" in words
    again.hang_up()
    assert home.state_of("n1") == "ready"


def test_a_trainer_says_a_small_hello(home, pb):
    """With a token of no generation: who got as far as the core is told that his generation is over."""
    hello = pb.training.TrainerMessage(hello=pb.training.TrainerHello(job="j-0000000000", generation=1, rank=0))
    bearer = (("authorization", f"Bearer {home.sealed()}"),)
    for size, expected in ((HELLO, grpc.StatusCode.FAILED_PRECONDITION), (HELLO + 1, grpc.StatusCode.RESOURCE_EXHAUSTED),
                           (MESSAGE + 1, grpc.StatusCode.RESOURCE_EXHAUSTED)):
        call = raw(home.channel(), "/cairn.v1.Training/Session", "stream_stream")
        code, words = ended(call(iter([fill(hello, size)]), timeout=20, metadata=bearer))
        assert code == expected, (size, code, words)


def test_a_guessed_token_opens_nothing(home, pb):
    hello = pb.training.TrainerMessage(hello=pb.training.TrainerHello(job="j-0000000000", generation=1, rank=0))
    sealed = home.sealed()
    wrong = sealed[:-1] + ("0" if sealed[-1] != "0" else "1")
    for token in (None, "", "x", wrong, sealed + "0", sealed[:32]):
        bearer = (("authorization", f"Bearer {token}"),) if token is not None else None
        code, words = session_refused(home.channel(), "Training", hello, pb.training.TrainerOrder, bearer)
        assert code == grpc.StatusCode.UNAUTHENTICATED and "token of its generation" in words, (token, code, words)


def test_of_strangers_nothing_is_received(home):
    """What they send stays in their own memory: gRPC's core would hold all of a message before it looks at its size."""
    before = home.peak_mib()
    for path, kind in (("/cairn.v1.Training/Session", "stream_stream"), ("/cairn.v1.Fleet/Session", "stream_stream"),
                       ("/cairn.v1.Fleet/Join", "unary_unary"), ("/cairn.v1.Control/SubmitJob", "unary_unary"),
                       ("/no.such/One", "unary_unary")):
        call, large = raw(home.channel(), path, kind), bytes(128 << 20)
        with pytest.raises(grpc.RpcError) as caught:
            if kind == "unary_unary":
                call(large, timeout=20)
            else:
                list(call(iter([large]), timeout=20))
        assert caught.value.code() in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.UNIMPLEMENTED), path
    assert home.peak_mib() - before < 64, (before, home.peak_mib())


# ---- connections that nobody uses ----

def half_open(home, tls):
    """Connected; with tls: through TLS, and then no word of HTTP/2."""
    sock = home.dial()
    if not tls:
        return sock
    context = ssl.create_default_context(cafile=home.tls / "ca.crt")
    context.set_alpn_protocols(["h2"])
    return context.wrap_socket(sock, server_hostname="cairnd")


def wait_closed(socks, seconds):
    """The server closed each."""
    end = time.monotonic() + seconds
    for sock in socks:
        sock.settimeout(max(end - time.monotonic(), 0.1))
        try:
            while sock.recv(4096):
                pass
        except (ConnectionError, ssl.SSLError):
            pass
        sock.close()


@pytest.mark.parametrize("tls", [False, True], ids=["tcp", "tls"])
def test_half_open_connections_harm_nobody(home, quiet, tls):
    """A job trains, the node stays, people are answered; they are closed in time, and their descriptors come back."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    before = home.descriptors()
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 0, 30, "it trains")
    socks, slowest, most = [], 0.0, 0
    for _ in range(STRANGERS):
        try:
            socks.append(half_open(home, tls))
        except (OSError, ssl.SSLError):
            continue  # shown out while it came
        if len(socks) % (STRANGERS // 10) == 0:
            begin = time.monotonic()
            home.cairn("ps")
            assert home.by("viewer-bob", "ps").returncode == 0
            slowest, most = max(slowest, time.monotonic() - begin), max(most, home.descriptors())
    assert len(socks) > STRANGERS * 0.9
    wait_closed(socks, 3 * HANDSHAKE_S)
    until(lambda: home.descriptors() <= before + 20, 20, "their descriptors are back")
    assert home.digest(job, seconds=120) == quiet
    shown = home.show(job)
    assert shown["generation"] == 1, shown["events"]
    assert "node n1 is silent" not in home.log_of("cairnd")
    print(f"{len(socks)} connections; two calls took {slowest:.2f} s at most; {most} descriptors at most")


def test_descriptors_are_left_for_this_machine():
    """More strangers than descriptors: people on this machine are answered, a job trains and saves."""
    with DoorHome() as home:
        resource.prlimit(home.daemon, resource.RLIMIT_NOFILE, (300, 300))
        socks = [home.dial() for _ in range(400)]
        until(lambda: home.descriptors() >= 220, 20, "they have what they can get")
        assert home.descriptors() < 300
        until(lambda: "connections were closed, as there are too many" in home.log_of("cairnd"), 10, "its log says so")
        assert home.log_of("cairnd").count("connections were closed") == 1
        home.cairn("ps")
        wait_closed(socks, 3 * HANDSHAKE_S)
        home.run()
