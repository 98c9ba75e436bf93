"""The page beyond this machine: TLS, roles, names, who is in the history; what strangers can't do. On loopback: test_page.py."""
import http.client
import json
import os
import re
import socket
import ssl
import subprocess
import threading
import time
from urllib.parse import urlsplit

import pytest

from home import BIN, TINY, Home, until
from test_credentials import DAY, make_certificate

LONG = (TINY.replace("duration: 12 steps", "duration: 10000000 steps").replace("count: 2", "count: 1")
        .replace("every: 4 steps", "every: 10000000 steps").replace("eval: {every: 6 steps}\n", ""))
IDLE_S, HANDSHAKE_S, PER_ADDRESS = 20, 10, 64


def own_address():
    """One of this machine that isn't loopback's; None: it has none."""
    shown = subprocess.run(["ip", "-j", "-4", "addr", "show", "scope", "global", "up"], capture_output=True, text=True,
                           check=False)
    found = json.loads(shown.stdout or "[]") if shown.returncode == 0 else []
    return next((one["local"] for link in found for one in link.get("addr_info", []) if "local" in one), None)


ADDRESS = own_address()
pytestmark = pytest.mark.skipif(ADDRESS is None, reason="this machine has loopback only: no page beyond it can be tried")


class PageHome(Home):
    """Whose page is at an address of this machine that others reach, and whose authority has made certificates."""

    def __enter__(self):
        self.tls = self.home / "tls"
        self.home.mkdir()
        self.cairn("cert", "init", "--cluster", "lab", "--hosts", f"{ADDRESS},cairn.example.org")
        for role, name in (("operator", "alice"), ("viewer", "bob"), ("node", "n1")):
            self.cairn("cert", role, name)
        self.said = self.cairn("up", "--slots", str(self.slots), "--page", f"{ADDRESS}:0").stdout
        return self

    @property
    def url(self):
        return (self.home / "page").read_text(encoding="ascii")

    @property
    def port(self):
        return urlsplit(self.url).port

    def token(self, name="token"):
        return (self.home / "observer" / name).read_text(encoding="ascii").strip()

    def log(self):
        return (self.home / "log" / "observer.log").read_text(encoding="utf-8")

    def audit(self):
        return [json.loads(line) for name in ("audit.log", "refused.log") if (self.home / "state" / name).exists()
                for line in (self.home / "state" / name).read_text(encoding="utf-8").splitlines()]

    def logged(self, **wanted):
        return until(lambda: next((line for line in self.audit() if wanted.items() <= line.items()), None), 10, f"{wanted}")


class Browser:
    """HTTP over TLS, which checks the server's certificate; stem: that of its own, cookie and token: what it shows."""

    def __init__(self, home, stem=None, cookie=None, token=None, source=None):
        self.home, self.cookie, self.token, self.source = home, cookie, token, source
        self.context = ssl.create_default_context(cafile=str(home.tls / "ca.crt"))
        if stem:
            self.context.load_cert_chain(home.tls / f"{stem}.crt", home.tls / f"{stem}.key")

    def connect(self, timeout=20):
        """A connection through its handshake."""
        plain = socket.create_connection((ADDRESS, self.home.port), timeout, (self.source, 0) if self.source else None)
        return self.context.wrap_socket(plain, server_hostname=ADDRESS)

    def ask(self, path, method="GET", body=None, on=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        if self.cookie:
            headers["Cookie"] = self.cookie
        connection = http.client.HTTPConnection(ADDRESS, self.home.port, timeout=20)
        connection.sock = on or self.connect()
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            if not on:
                connection.close()

    def json(self, path):
        status, _, body = self.ask(path)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def act(self, path, body=None, **headers):
        return self.ask(path, "POST", body, X_Cairn="1", **headers)


@pytest.fixture(scope="module", name="home")
def one_home():
    with PageHome() as home:
        home.job = home.submit(LONG)
        until(lambda: home.show(home.job)["step"] > 5, 60, "steps")
        home.node = json.loads(home.cairn("node", "ls", "-o", "json").stdout)[0]["name"]
        home.cairn("cert", "init", "--cluster", "lab", "--dir", home.dir / "other")
        home.cairn("cert", "operator", "alice", "--dir", home.dir / "other")
        for end in ("crt", "key"):
            target = home.tls / f"foreign.{end}"
            target.write_bytes((home.dir / "other" / f"operator-alice.{end}").read_bytes())
        make_certificate(home, "expired", "operator/alice", -2 * DAY, -DAY)
        make_certificate(home, "early", "operator/alice", DAY, 2 * DAY)
        make_certificate(home, "nobody", "chief/alice", -DAY, DAY)
        yield home


def actions(home):
    return [f"/api/v1/jobs/{home.job}/{what}" for what in ("pause", "resume", "stop", "save")] + [
        f"/api/v1/nodes/{home.node}/{what}" for what in ("drain", "undrain")]


LOOKS = ("session", "jobs", "jobs/{job}", "jobs/{job}/why", "jobs/{job}/curves", "jobs/{job}/metrics.csv",
         "jobs/{job}/checkpoints", "jobs/{job}/live", "jobs/{job}/logs", "nodes", "system", "live")


def state_of(home):
    """What somebody might have changed: all that was asked of the job and of the coordinator, and its nodes."""
    asked = [event for event in home.show(home.job)["events"] if "asked by" in event["message"]]
    nodes = json.loads(home.cairn("node", "ls", "-o", "json").stdout)
    return asked, [node["state"] for node in nodes], [line for line in home.audit() if line["code"] == "OK"]


def test_up_says_where_it_is(home):
    assert home.said == f"page: {home.url}\n" and home.url == f"https://{ADDRESS}:{home.port}/"
    again = home.cairn("up", "--page", f"{ADDRESS}:0").stdout
    assert again == home.said
    assert "doesn't name" not in home.log()


def test_without_a_certificate_there_is_the_shell_alone(home):
    before = state_of(home)
    stranger = Browser(home)
    status, headers, body = stranger.ask("/")
    assert status == 200 and b"<html" in body.lower() and "Strict-Transport-Security" not in headers
    assert stranger.ask("/healthz")[0] == 200
    for browser in (stranger, Browser(home, token="0" * 64), Browser(home, cookie=f"cairn_session_{home.port}=x")):
        for path in ("/metrics", *(f"/api/v1/{look.format(job=home.job)}" for look in LOOKS)):
            status, _, body = browser.ask(path)
            assert status == 401 and "cairn cert" in json.loads(body)["error"], path
        for path in actions(home):
            assert browser.act(path)[0] == 401, path
    assert state_of(home) == before


def test_a_viewer_looks_and_does_nothing(home):
    before = state_of(home)
    for viewer in (Browser(home, "viewer-bob"), Browser(home, token=home.token("viewer-token"))):
        for look in LOOKS:
            if not look.endswith(("live", "logs")):
                assert viewer.ask(f"/api/v1/{look.format(job=home.job)}")[0] == 200, look
        for path in actions(home):
            status, _, body = viewer.act(path)
            assert status == 403 and "look" in json.loads(body)["error"], path
    assert Browser(home, "viewer-bob").json("/api/v1/session") == {"role": "viewer", "actor": "viewer/bob", "cluster": "lab"}
    assert state_of(home) == before


def test_a_nodes_and_a_coordinators_certificate_are_for_nothing_here(home):
    before = state_of(home)
    for stem, status, words in (("node-n1", 403, "for its agent"), ("coordinator", 401, "for another use")):
        browser = Browser(home, stem)
        for path in ("/api/v1/jobs", "/metrics"):
            got, _, body = browser.ask(path)
            assert got == status and words in json.loads(body)["error"], (stem, path, body)
        assert {browser.act(path)[0] for path in actions(home)} == {status}
    assert state_of(home) == before


def test_an_operator_acts_and_the_history_names_him(home):
    alice = Browser(home, "operator-alice")
    assert alice.act(actions(home)[3])[0] == 200  # saves
    assert alice.act(actions(home)[0], Origin=home.url[:-1])[0] == 200
    home.wait_state(home.job, "PAUSED")
    assert alice.act(actions(home)[1])[0] == 200
    home.wait_state(home.job, "RUNNING")
    asked = {event["kind"] for event in home.show(home.job)["events"] if event["message"] == "asked by operator/alice@page"}
    assert {"pause", "resumed"} <= asked
    for method in ("PauseJob", "ResumeJob", "SaveCheckpoint"):
        line = home.logged(actor="operator/alice@page", method=f"Control/{method}", about=home.job, code="OK")
        assert re.fullmatch(rf"unix:uid=\d+,pid=\d+ for {re.escape(ADDRESS)}", line["peer"]), line
    status, _, body = alice.act(f"/api/v1/nodes/{home.node}/drain", json.dumps({"reason": "fan"}))
    assert status == 200 and "asked by operator/alice@page" in home.cairn("why", home.job).stdout, body
    assert alice.act(f"/api/v1/nodes/{home.node}/undrain")[0] == 200
    home.wait_state(home.job, "RUNNING")
    assert f"PauseJob of {home.job}, asked for on the page by operator/alice from {ADDRESS}" in home.log()


@pytest.mark.parametrize("stem, words", [("foreign", "wasn't signed by an authority of this cluster"), ("expired", "expired on"),
                                         ("early", "are both clocks right"), ("nobody", "names nobody")])
def test_a_certificate_that_will_not_do_is_refused_whatever_comes_with_it(home, stem, words):
    before = state_of(home)
    for browser in (Browser(home, stem), Browser(home, stem, token=home.token())):
        for path in ("/", "/api/v1/jobs", "/metrics"):
            status, _, body = browser.ask(path)
            assert status == 401 and words in json.loads(body)["error"], (path, body)
        assert {browser.act(path)[0] for path in actions(home)} == {401}
    assert state_of(home) == before


def test_other_names_lead_nowhere(home):
    alice = Browser(home, "operator-alice")
    for host in ("evil.example", f"evil.example:{home.port}", f"{ADDRESS}:1", f"cairn.example.org.evil.example:{home.port}",
                 "127.0.0.2", ""):
        assert alice.ask("/api/v1/jobs", Host=host)[0] in (400, 421), host
    for host in (f"{ADDRESS}:{home.port}", f"cairn.example.org:{home.port}", f"CAIRN.example.org:{home.port}",
                 f"localhost:{home.port}", f"[::1]:{home.port}"):
        assert alice.ask("/api/v1/jobs", Host=host)[0] == 200, host
    _, _, body = alice.ask("/", Host="evil.example")
    assert home.url in json.loads(body)["error"] and "--hosts" in json.loads(body)["error"]


def test_another_page_cannot_make_a_browser_with_a_certificate_act(home):
    """Browsers send certificates by themselves."""
    before = state_of(home)
    alice = Browser(home, "operator-alice")
    for path in actions(home):
        assert alice.ask(path, "POST")[0] == 403  # no header: a form could send it
        for origin in ("http://elsewhere.example", "null", "", f"http://{ADDRESS}:{home.port}", f"https://{ADDRESS}",
                       f"https://{ADDRESS}:{home.port}.elsewhere.example", f"https://elsewhere.example:{home.port}"):
            assert alice.act(path, Origin=origin)[0] == 403, (path, origin)
    assert state_of(home) == before


def test_metrics_want_a_role(home):
    until(lambda: b"\ncairn_job_step{" in Browser(home, "viewer-bob").ask("/metrics")[2], 30, "the observer has the job")
    for browser in (Browser(home, "viewer-bob"), Browser(home, "operator-alice"), Browser(home, token=home.token("viewer-token"))):
        status, headers, body = browser.ask("/metrics")
        assert status == 200 and headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert b"\ncairn_job_step{" in body
    assert Browser(home).ask("/metrics")[0] == 401


def signed_in(home, *flags):
    """The cookie of a browser that followed a link."""
    link = urlsplit(home.cairn("open", *flags).stdout.strip())
    assert link.scheme == "https" and link.netloc == f"{ADDRESS}:{home.port}"
    path = f"{link.path}?{link.query}"
    status, headers, _ = Browser(home).ask(path)
    assert status == 303 and headers["Location"] == "/"
    assert Browser(home).ask(path)[0] == 403  # once
    cookie = headers["Set-Cookie"]
    assert cookie.endswith("; Secure") and "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/api;" in cookie
    return cookie.split(";")[0]


def test_a_link_lets_browsers_in_that_are_told_apart(home):
    first, second = (Browser(home, cookie=signed_in(home)) for _ in range(2))
    names = [browser.json("/api/v1/session") for browser in (first, second)]
    assert all(name["role"] == "operator" and re.fullmatch("operator/session:[0-9a-f]{6}", name["actor"]) for name in names)
    assert names[0]["actor"] != names[1]["actor"]
    for browser, what, state in ((first, "pause", "PAUSED"), (second, "resume", "RUNNING")):
        assert browser.act(f"/api/v1/jobs/{home.job}/{what}")[0] == 200
        home.wait_state(home.job, state)
    said = [event["message"] for event in home.show(home.job)["events"] if event["kind"] in ("pause", "resumed")][-2:]
    assert said == [f"asked by {name['actor']}@page" for name in names]
    viewer = Browser(home, cookie=signed_in(home, "--viewer"))
    assert viewer.json("/api/v1/session")["role"] == "viewer" and viewer.act(actions(home)[0])[0] == 403
    assert Browser(home, "viewer-bob", cookie=first.cookie).json("/api/v1/session")["role"] == "operator"
    assert Browser(home, "viewer-bob", cookie="cairn_session_1=x").json("/api/v1/session")["actor"] == "viewer/bob"


def test_who_speaks_no_tls_is_told_so(home):
    for words in (f"GET / HTTP/1.1\r\nHost: {ADDRESS}:{home.port}\r\n\r\n", "POST /api/v1/jobs/x/stop HTTP/1.0\r\n\r\n"):
        with socket.create_connection((ADDRESS, home.port), timeout=20) as peer:
            peer.sendall(words.encode())
            said = b"".join(iter(lambda: peer.recv(4096), b""))
        assert said.startswith(b"HTTP/1.1 400 ") and b"https://" in said, said
    for junk in (b"\x00" * 100, b"SSH-2.0-x\r\n", b"\x16\x03\x01\xff\xff" + b"x" * 70000, b"\x80\x2e\x01\x00\x02"):
        with socket.create_connection((ADDRESS, home.port), timeout=2 * IDLE_S) as peer:
            try:
                peer.sendall(junk)
                peer.shutdown(socket.SHUT_WR)
                assert b"HTTP" not in b"".join(iter(lambda: peer.recv(4096), b""))
            except OSError:
                pass
    assert Browser(home).ask("/healthz")[0] == 200


def test_old_tls_is_refused(home):
    def version(flag):
        done = subprocess.run(["openssl", "s_client", "-connect", f"{ADDRESS}:{home.port}", flag, "-cipher", "ALL:@SECLEVEL=0"],
                              stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=20, check=False)
        return re.search(r"New, (\S+),", done.stdout + done.stderr).group(1)
    assert [version(flag) for flag in ("-tls1", "-tls1_1", "-tls1_2", "-tls1_3")] == ["(NONE)", "(NONE)", "TLSv1.2", "TLSv1.3"]


def serial(browser):
    with browser.connect() as peer:
        return peer.getpeercert()["serialNumber"]


def test_a_renewed_certificate_is_taken_without_a_restart(home):
    browser = Browser(home, "viewer-bob")
    observer, = home.pids("cairn-observer")
    standing, before = browser.connect(), serial(browser)
    assert browser.ask("/api/v1/session", on=standing)[0] == 200
    home.cairn("cert", "renew", home.tls / "coordinator.crt")
    until(lambda: serial(browser) != before, 10, "the new certificate is shown")
    assert browser.ask("/api/v1/session", on=standing)[0] == 200  # what stands stays
    standing.close()
    assert home.pids("cairn-observer") == {observer: "cairn-observer"}
    assert "the files of TLS have changed" in home.log()
    good, renewed = (home.tls / "coordinator.crt").read_bytes(), serial(browser)
    (home.tls / "coordinator.crt").write_bytes(good[:200])
    until(lambda: serial(browser) == renewed and "has changed and doesn't do" in home.log(), 10, "it goes on with what it has")
    (home.tls / "new.crt").write_bytes(good)
    os.replace(home.tls / "new.crt", home.tls / "coordinator.crt")
    home.cairn("cert", "renew", home.tls / "coordinator.crt")
    until(lambda: serial(browser) != renewed, 10, "and takes the next one")


def test_it_renews_its_certificate_by_itself():
    """Where the coordinator is on loopback, and so renews none."""
    with PageHome() as home:
        home.cairn("down")
        make_certificate(home, "coordinator", f"coordinator/main,IP:{ADDRESS},DNS:cairnd", -DAY, 5 * DAY, "serverAuth")  # nearly over
        home.cairn("up", "--page", f"{ADDRESS}:0")
        browser = Browser(home, "viewer-bob")

        def days_left():
            with browser.connect() as peer:
                return (ssl.cert_time_to_seconds(peer.getpeercert()["notAfter"]) - time.time()) / DAY
        until(lambda: days_left() > 29, 10, "the page shows the renewed one")
        assert "coordinator.crt is renewed" in home.log()
        home.cairn("down")
        make_certificate(home, "late", f"coordinator/main,IP:{ADDRESS},DNS:cairnd", -2 * DAY, -5, "serverAuth")
        for end in ("crt", "key"):
            os.replace(home.tls / f"late.{end}", home.tls / f"coordinator.{end}")
        (home.tls / "ca.key").rename(home.dir / "ca.key")
        said = home.cairn("up", "--page", f"{ADDRESS}:0")  # jobs go on without a page
        assert "no page: " in said.stderr and "page: " not in said.stdout and home.pids("cairnd")
        assert "coordinator.crt expired on" in home.log()
        (home.dir / "ca.key").rename(home.tls / "ca.key")
        until(lambda: is_served(home), 20, "the page is there by itself")
        assert days_left() > 29


def is_served(home):
    try:
        return Browser(home).ask("/healthz")[0] == 200
    except OSError:
        return False


def test_what_is_open_ends_with_the_certificate(home):
    make_certificate(home, "brief", "viewer/bob", -DAY, 8)
    bob = Browser(home, "brief")
    standing = bob.connect(timeout=30)
    assert bob.ask("/api/v1/session", on=standing)[0] == 200
    stream = bob.connect(timeout=30)
    stream.sendall(f"GET /api/v1/live HTTP/1.1\r\nHost: {ADDRESS}:{home.port}\r\nConnection: close\r\n\r\n".encode())
    begun = time.monotonic()
    said = b"".join(iter(lambda: stream.recv(65536), b""))
    assert b"event: jobs" in said and 1 < time.monotonic() - begun < 20
    status, _, body = bob.ask("/api/v1/session", on=standing)
    assert status == 401 and "expired on" in json.loads(body)["error"]


def test_who_says_nothing_holds_the_page_neither_whole_nor_for_good(home):
    """All connections of one address; what is left is others'. Each ends, also with a byte now and then."""
    silent = [socket.create_connection((ADDRESS, home.port), timeout=5, source_address=(ADDRESS, 0)) for _ in range(PER_ADDRESS + 20)]
    begun = time.monotonic()
    try:
        until(lambda: len([1 for peer in silent if is_closed(peer)]) >= 15, 15, "what is beyond an address's share is closed")
        assert Browser(home, "viewer-bob", source="127.0.0.1").ask("/api/v1/session")[0] == 200
        with pytest.raises(OSError):
            Browser(home, "viewer-bob", source=ADDRESS).ask("/api/v1/session")
        dripping = threading.Thread(target=drip, args=(home, begun))
        dripping.start()
        until(lambda: all(is_closed(peer) for peer in silent), IDLE_S + 10, "the silent ones are ended")
        assert Browser(home, "viewer-bob", source=ADDRESS).ask("/api/v1/session")[0] == 200
        dripping.join(timeout=IDLE_S + 10)
        assert not dripping.is_alive()
    finally:
        for peer in silent:
            peer.close()


def is_closed(peer):
    peer.setblocking(False)
    try:
        return peer.recv(64) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def drip(home, begun):
    """A handshake of a byte each half second, until it is ended."""
    hello = bytes.fromhex("1603010200010001fc0303") + bytes(600)
    with socket.create_connection((ADDRESS, home.port), timeout=5, source_address=("127.0.0.1", 0)) as peer:
        try:
            for at in range(200):
                peer.sendall(hello[at:at + 1])
                time.sleep(0.5)
                if is_closed(peer):
                    break
                peer.setblocking(True)
        except OSError:
            pass
    assert time.monotonic() - begun < HANDSHAKE_S + 10


def test_a_message_says_what_is_missing():
    home = Home(slots=1)
    env = {**home.env, "CAIRN_HOME": str(home.dir / "other")}
    (home.dir / "other").mkdir()
    alone = subprocess.run([BIN / "cairn-observer", "--listen", f"{ADDRESS}:0"], env=env, timeout=20, capture_output=True,
                           text=True, check=False)
    assert alone.returncode == 2 and "cairn cert init" in alone.stderr and "ssh -L" in alone.stderr
    with home:
        home.cairn("down")
        refused = home.cairn("up", "--page", f"{ADDRESS}:0", check=False)
        assert refused.returncode == 2 and f"cairn cert init --hosts {ADDRESS}" in refused.stderr, refused.stderr
        assert not home.pids("cairnd")
        home.cairn("cert", "init")
        shown = home.cairn("up", "--page", f"{ADDRESS}:0")
        assert f"coordinator.crt doesn't name {ADDRESS}" in shown.stderr and "page: https://" in shown.stdout
        differs = home.cairn("up", "--page", "127.0.0.1:0", check=False)
        assert differs.returncode == 4 and "already up, but with --page" in differs.stderr
        alone = subprocess.run([BIN / "cairn-observer", "--listen", f"{ADDRESS}:0", "--tls-cert", home.home / "tls" / "ca.crt",
                                "--tls-key", home.home / "tls" / "ca.key", "--tls-ca", home.home / "tls" / "ca.crt"],
                               env=env, timeout=20, capture_output=True, text=True, check=False)
        assert alone.returncode == 2 and "names no node, operator, viewer or coordinator" in alone.stderr
