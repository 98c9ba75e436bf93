"""The page's server: who may look and act, JSON of everything, what comes live, and its end."""
import csv
import gzip
import http.client
import io
import json
import os
import re
import resource
import signal
import socket
import stat
import subprocess
import threading
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from home import BIN, Home, until

LONG = dict(train__duration="100000 steps", checkpoint__every="50 steps")


class Browser:
    """Plain HTTP to the observer of a home, as somebody."""

    def __init__(self, home, token=None):
        self.home, self.token = home, token

    @property
    def address(self):
        return urlsplit((self.home.home / "page").read_text(encoding="ascii")).netloc

    def ask(self, path, method="GET", body=None, **headers):
        headers = {name.replace("_", "-"): value for name, value in headers.items()}
        if self.token:
            headers.setdefault("Authorization", f"Bearer {self.token}")
        connection = http.client.HTTPConnection(self.address, timeout=20)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            return reply.status, reply.headers, reply.read()
        finally:
            connection.close()

    @property
    def port(self):
        return int(self.address.rpartition(":")[2])

    def raw(self, method, path, headers="", host=None):
        """What comes back until the server hangs up."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as peer:
            peer.sendall(f"{method} {path} HTTP/1.1\r\nHost: {host or self.address}\r\nConnection: close\r\n"
                         f"Authorization: Bearer {self.token}\r\n{headers}\r\n".encode())
            return b"".join(iter(lambda: peer.recv(65536), b""))

    def json(self, path, **more):
        status, _, body = self.ask(path, **more)
        assert status == 200, (path, status, body)
        return json.loads(body)

    def act(self, path, body=None, **headers):
        return self.ask(path, "POST", body, X_Cairn="1", **headers)

    def events(self, path, seconds=20):
        """(event, data) as they come; ends with the stream, or after so long."""
        connection = http.client.HTTPConnection(self.address, timeout=seconds)
        connection.request("GET", path, headers={"Authorization": f"Bearer {self.token}"})
        reply = connection.getresponse()
        assert reply.status == 200 and reply.headers["Content-Type"] == "text/event-stream"
        end, event = time.monotonic() + seconds, None
        try:
            while time.monotonic() < end:
                line = reply.readline().decode().rstrip("\n")
                if line.startswith("event: "):
                    event = line[7:]
                elif line.startswith("data: "):
                    yield event, json.loads(line[6:])
                elif line == "" and reply.isclosed():
                    return
        finally:
            connection.close()


def token_of(home, name="token"):
    return (home.home / "observer" / name).read_text(encoding="ascii").strip()


@pytest.fixture(scope="module", name="home")
def home_with_jobs():
    with Home() as home:
        home.over = home.submit(eval__every="4 steps")
        home.digest(home.over)
        home.runs = home.submit(**LONG)
        until(lambda: home.show(home.runs)["step"] > 20, 30, "steps")
        until(lambda: len(Browser(home, token_of(home)).json("/api/v1/jobs")["jobs"]) == 2, 30, "the observer has both jobs")
        yield home


@pytest.fixture(name="operator")
def operator_of(home):
    return Browser(home, token_of(home))


@pytest.fixture(name="viewer")
def viewer_of(home):
    return Browser(home, token_of(home, "viewer-token"))


def test_up_says_where_the_page_is():
    with Home() as home:
        said = home.cairn("up").stdout
        url = (home.home / "page").read_text(encoding="ascii")
        assert said == f"page: {url}\n" and url.startswith("http://127.0.0.1:") and url.endswith("/")
        home.cairn("down")
        home.cairn("up")
        assert (home.home / "page").read_text(encoding="ascii") == url  # browsers find it again


def test_what_is_open_and_what_is_not(home):
    stranger = Browser(home)
    status, headers, body = stranger.ask("/")
    assert status == 200 and headers["Content-Type"].startswith("text/html") and b"<html" in body.lower()
    assert "default-src" in headers["Content-Security-Policy"] and headers["X-Content-Type-Options"] == "nosniff"
    assert stranger.ask("/healthz")[0] == 200
    for path in ("session", "jobs", f"jobs/{home.over}", f"jobs/{home.over}/why", f"jobs/{home.over}/curves",
                 f"jobs/{home.over}/metrics.csv", f"jobs/{home.over}/checkpoints", f"jobs/{home.over}/live",
                 f"jobs/{home.over}/logs", "nodes", "system", "live"):
        for browser in (stranger, Browser(home, "0" * 64), Browser(home, "x")):
            status, _, body = browser.ask(f"/api/v1/{path}")
            assert status == 401 and "cairn open" in json.loads(body)["error"], path


def test_json_is_that_of_the_command_line(home, viewer):
    over = viewer.json(f"/api/v1/jobs/{home.over}")
    assert over == home.show(home.over)
    assert json.loads(home.cairn("node", "ls", "-o", "json").stdout)
    until(lambda: [job["id"] for job in viewer.json("/api/v1/jobs")["jobs"]] == [home.runs, home.over], 30, "both jobs")
    assert viewer.json("/api/v1/nodes")["nodes"][0]["state"] == "ready"
    assert viewer.json(f"/api/v1/jobs/{home.over}/checkpoints")["checkpoints"]
    assert viewer.json(f"/api/v1/jobs/{home.over}/why")["text"]
    system = viewer.json("/api/v1/system")
    assert system["up"] and system["coordinator"]["agents"] == 1 and system["observer"]["connections"] >= 1
    assert viewer.json("/api/v1/session")["role"] == "viewer"


def test_who_was_slow_to_answer_once_is_asked_again_soon():
    """Not after twenty times what it took: 80 s."""
    with Home() as home:
        viewer, (coordinator,) = Browser(home, token_of(home, "viewer-token")), home.pids("cairnd")
        os.kill(coordinator, signal.SIGSTOP)
        time.sleep(4)
        os.kill(coordinator, signal.SIGCONT)
        job = home.submit(**LONG)
        until(lambda: job in [one["id"] for one in viewer.json("/api/v1/jobs")["jobs"]], 20, "the new job")


def test_curves_are_the_rows(home, viewer):
    rows = list(csv.DictReader(io.StringIO(home.cairn("metrics", home.over, "-o", "csv").stdout)))
    curves = viewer.json(f"/api/v1/jobs/{home.over}/curves")
    assert curves["rows"] == len(rows) == 12 and curves["next_step"] == 13
    assert curves["columns"]["step"] == [int(row["step"]) for row in rows]
    assert curves["columns"]["loss"] == pytest.approx([float(row["loss"]) for row in rows], rel=1e-6)
    assert curves["columns"]["forward_seconds"] == pytest.approx([float(row["forward_seconds"]) for row in rows], abs=1e-6)
    assert curves["evals"]["step"] == [4, 8, 12]
    assert curves["evals"]["accuracy"] == pytest.approx([float(row["eval_accuracy"]) for row in rows[3::4]], rel=1e-6)
    few = viewer.json(f"/api/v1/jobs/{home.over}/curves?points=3")["columns"]
    assert few["step"] == [4, 8, 12] and few["loss_max"][0] == max(curves["columns"]["loss"][:4])
    status, headers, body = viewer.ask(f"/api/v1/jobs/{home.over}/metrics.csv")
    assert status == 200 and headers["Content-Type"] == "text/csv"
    assert body.decode() == home.cairn("metrics", home.over, "-o", "csv").stdout


def test_what_comes_live(home, viewer):
    steps, jobs = [], 0
    for event, data in viewer.events(f"/api/v1/jobs/{home.runs}/live?from=5"):
        if event == "rows":
            steps += data["columns"]["step"]
        if event == "job":
            jobs += 1
            assert data["id"] == home.runs
        if jobs >= 2 and len(steps) > 100:
            break
    assert steps == list(range(5, 5 + len(steps)))
    event, data = next(viewer.events("/api/v1/live"))
    assert event == "jobs" and [job["id"] for job in data["jobs"]] == [home.runs, home.over]


def test_a_job_that_is_over_ends_its_stream(home, viewer):
    events = list(viewer.events(f"/api/v1/jobs/{home.over}/live"))
    assert [event for event, _ in events] == ["job", "rows", "over"]
    lines = [line for event, data in viewer.events(f"/api/v1/jobs/{home.over}/logs") if event == "lines" for line in data]
    assert {line["rank"] for line in lines} == {0, 1} and all(json.loads(line["line"]) for line in lines)


def test_all_rows_of_a_long_job_come_before_its_end():
    """An event has a thousand at most."""
    with Home() as home:
        job = home.submit(train__duration="2500 steps")
        home.digest(job)
        events = list(Browser(home, token_of(home)).events(f"/api/v1/jobs/{job}/live"))
        steps = [step for event, data in events if event == "rows" for step in data["columns"]["step"]]
        assert steps == list(range(1, 2501)) and events[-1][0] == "over"


def test_a_restart_sends_the_steps_again(home, viewer):
    with Home(env=Home.RESTART) as other:
        job = other.submit(train__duration="100000 steps", checkpoint__every="200 steps",
                           checkpoint__memory_every="none")
        browser = Browser(other, token_of(other))
        until(lambda: other.show(job)["step"] > 250, 60, "steps")
        sent, killed, behind = [], False, 0
        for event, data in browser.events(f"/api/v1/jobs/{job}/live?from=240", seconds=60):
            if event != "rows":
                continue
            sent += list(zip(data["columns"]["step"], data["columns"]["generation"]))
            if not killed and len(sent) > 20:
                for worker in other.show(job)["workers"]:
                    os.kill(worker["pid"], signal.SIGKILL)
                killed = True
            behind = max([behind] + [step for step, generation in sent if generation == 1])
            if sent[-1][1] > 1 and sent[-1][0] > behind:
                break
        newest = dict(sent)  # of each step what came last
        assert sorted(newest) == list(range(min(newest), max(newest) + 1))
        curves = browser.json(f"/api/v1/jobs/{job}/curves?points=4000")["columns"]
        known = dict(zip(curves["step"], curves["generation"]))
        assert all(known[step] == generation for step, generation in newest.items())


def test_actions_are_an_operators(home, operator, viewer):
    stranger = Browser(home)
    before = len(home.show(home.runs)["events"])
    for path in (f"/api/v1/jobs/{home.runs}/pause", f"/api/v1/jobs/{home.runs}/stop", f"/api/v1/jobs/{home.runs}/save",
                 "/api/v1/nodes/here/drain"):
        assert stranger.act(path)[0] == 401
        assert viewer.act(path)[0] == 403
        assert operator.ask(path, "POST")[0] == 403  # no header: a form could send it
        assert operator.act(path, Origin="http://elsewhere.example")[0] == 403
        for origin in ("null", "http://127.0.0.1", "http://localhost", "https://" + operator.address, "",
                       f"http://{operator.address}.elsewhere.example", f"http://elsewhere.example:{operator.port}"):
            assert operator.act(path, Origin=origin)[0] == 403, origin
        twice = f"Origin: http://{operator.address}\r\nOrigin: http://elsewhere.example\r\n"
        assert operator.raw("POST", path, twice + "X-Cairn: 1\r\nContent-Length: 0\r\n").startswith(b"HTTP/1.1 403")
        assert operator.ask(path, "GET", X_Cairn="1")[0] == 405
    shown = home.show(home.runs)
    assert shown["state"] == "RUNNING" and not [e for e in shown["events"][before:] if "pause" in e["kind"]]


def test_each_action_does_it(home, operator):
    own = f"http://{operator.address}"
    status, _, body = operator.act(f"/api/v1/jobs/{home.runs}/save", Origin=own)
    assert status == 200 and json.loads(body)["step"] > 0
    assert operator.act(f"/api/v1/jobs/{home.runs}/pause")[0] == 200
    home.wait_state(home.runs, "PAUSED")
    assert operator.act(f"/api/v1/jobs/{home.runs}/resume")[0] == 200
    home.wait_state(home.runs, "RUNNING")
    node = until(lambda: operator.json("/api/v1/nodes")["nodes"], 20, "the observer asked after it joined")[0]["name"]
    before = home.show(home.runs)["generation"]
    status, _, body = operator.act(f"/api/v1/nodes/{node}/drain", json.dumps({"reason": "fan <b>"}))
    assert status == 200 and json.loads(body)["reason"].count("fan <b>")
    assert operator.act(f"/api/v1/nodes/{node}/undrain")[0] == 200
    until(lambda: (seen := home.show(home.runs))["generation"] > before and seen["state"] == "RUNNING", 60, "it moved")
    status, _, body = operator.act(f"/api/v1/nodes/{node}/undrain")
    assert status == 404 and json.loads(body)["error"]
    assert operator.act(f"/api/v1/nodes/{node}/drain", "nonsense")[0] == 400
    status, _, body = operator.act("/api/v1/jobs/nobody/pause")
    assert status == 404 and "nobody" in json.loads(body)["error"]


def test_who_acted_is_in_the_history(home, operator):
    """Two browsers and a script, each by a name that it is told itself; from loopback, which the audit log says."""
    def signed_in():
        link = urlsplit(home.cairn("open").stdout.strip())
        return Browser(home).ask(f"{link.path}?{link.query}")[1]["Set-Cookie"].split(";")[0]
    stranger, asked = Browser(home), []
    for headers in ({"Cookie": signed_in()}, {"Cookie": signed_in()}, {"Authorization": f"Bearer {operator.token}"}):
        name = stranger.json("/api/v1/session", **headers)["actor"]
        for what, state in (("pause", "PAUSED"), ("resume", "RUNNING")):
            assert stranger.act(f"/api/v1/jobs/{home.runs}/{what}", **headers)[0] == 200
            home.wait_state(home.runs, state)
        asked.append(name)
    assert len(set(asked)) == 3 and re.fullmatch("operator/token:[0-9a-f]{6}", asked[2])
    assert all(re.fullmatch("operator/session:[0-9a-f]{6}", name) for name in asked[:2])
    said = [event["message"] for event in home.show(home.runs)["events"] if event["kind"] in ("pause", "resumed")][-6:]
    assert said == [f"asked by {name}@page" for name in asked for _ in range(2)]
    lines = [json.loads(line) for line in (home.home / "state" / "audit.log").read_text(encoding="utf-8").splitlines()]
    for name in asked:
        assert {"Control/PauseJob", "Control/ResumeJob"} <= {
            line["method"] for line in lines if line["actor"] == f"{name}@page" and line["peer"].endswith(" for 127.0.0.1")}


def let_in(place):
    """The cookie of a browser that `cairn open` lets in."""
    link = urlsplit(place.cairn("open").stdout.strip())
    status, headers, _ = Browser(place).ask(f"{link.path}?{link.query}")
    assert status == 303
    return headers["Set-Cookie"].partition(";")[0]


def test_a_link_lets_a_browser_in_once(home):
    for flag, role in (((), "operator"), (("--viewer",), "viewer")):
        link = urlsplit(home.cairn("open", *flag).stdout.strip())
        path = f"{link.path}?{link.query}"
        assert Browser(home).ask(path, "HEAD")[0] == 405  # it doesn't use it up
        status, headers, _ = Browser(home).ask(path)
        cookie = headers["Set-Cookie"]
        assert status == 303 and headers["Location"] == "/"
        assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and "Path=/api;" in cookie
        assert cookie.startswith(f"cairn_session_{Browser(home).port}=")  # another home's on this machine is another
        shown = Browser(home).json("/api/v1/session", Cookie=cookie.split(";")[0])
        assert shown["role"] == role
        status, _, body = Browser(home).ask(path)
        assert status == 403 and "cairn open" in json.loads(body)["error"]
    assert Browser(home).ask("/open?code=" + "0" * 32)[0] == 403
    assert Browser(home).ask("/open?code=../../token")[0] == 403
    assert Browser(home).ask("/open")[0] == 403


def test_what_let_anybody_in_is_taken_back():
    """By the command, and by the removed file that docs/page.md names; open streams end, too."""
    with Home() as place:
        begin = Browser(place, (place.home / "observer/token").read_text(encoding="ascii").strip())
        session = let_in(place)
        answers = []
        reader = threading.Thread(target=lambda: answers.append(begin.raw("GET", "/api/v1/live")), daemon=True)
        reader.start()
        begin.json("/api/v1/session")
        place.cairn("open", "--revoke")
        assert begin.ask("/api/v1/session")[0] == 401
        assert begin.ask("/api/v1/session", Cookie=session)[0] == 401
        reader.join(30)
        assert not reader.is_alive() and answers[0].startswith(b"HTTP/1.1 200")
        again = Browser(place, (place.home / "observer/token").read_text(encoding="ascii").strip())
        again.json("/api/v1/session")
        (place.home / "observer/key").unlink()
        until(lambda: again.ask("/api/v1/session")[0] == 401, 10, "the key that is gone is noticed")
        newest = Browser(place, (place.home / "observer/token").read_text(encoding="ascii").strip())
        until(lambda: newest.ask("/api/v1/session")[0] == 200, 10, "the new token is good")


def test_a_browser_signs_out(home):
    cookie = let_in(home)
    ask = Browser(home).ask
    assert ask("/api/v1/sign-out", "POST", Cookie=cookie)[0] == 403  # another page's form
    status, headers, _ = ask("/api/v1/sign-out", "POST", Cookie=cookie, X_Cairn="1")
    assert status == 200 and headers["Set-Cookie"].startswith(cookie.partition("=")[0] + "=;")
    assert "Max-Age=0" in headers["Set-Cookie"]
    assert ask("/api/v1/sign-out", "POST", X_Cairn="1")[0] == 401


def test_the_shell_is_sent_packed_and_once(home):
    ask = Browser(home).ask
    plain = ask("/")
    packed = ask("/", Accept_Encoding="gzip, deflate")
    assert packed[1]["Content-Encoding"] == "gzip" and gzip.decompress(packed[2]) == plain[2]
    assert plain[1]["Cache-Control"] == "no-cache" and plain[1]["Cross-Origin-Opener-Policy"] == "same-origin"
    status, headers, body = ask("/", Accept_Encoding="gzip", If_None_Match=packed[1]["ETag"])
    assert status == 304 and body == b"" and headers["Content-Security-Policy"] == plain[1]["Content-Security-Policy"]
    assert ask("/", If_None_Match=packed[1]["ETag"])[0] == 200  # of the other form
    assert ask("/healthz")[1]["Cache-Control"] == "no-store"


def test_an_old_link_is_a_page_for_people(home):
    status, headers, body = Browser(home).ask("/open?code=0", Accept="text/html,*/*")
    assert status == 403 and headers["Cache-Control"] == "no-store" and b"<html" in body
    status, _, body = Browser(home).ask("/open?code=0")
    assert status == 403 and "cairn open" in json.loads(body)["error"]


def test_scripts_show_the_token_by_a_file(home):
    """The line of docs/page.md: nothing of the token on curl's command line."""
    page = (Path(__file__).parents[2] / "docs/page.md").read_text(encoding="utf-8")
    line = re.search(r"^    (curl .*api/v1/jobs)$", page, re.M)[1]
    assert "token" not in line
    done = subprocess.run(["bash", "-c", line], env=home.env, capture_output=True, text=True, timeout=60, check=True)
    assert "jobs" in json.loads(done.stdout)


def test_other_names_lead_nowhere(home, operator):
    for host in ("evil.example", f"evil.example:{operator.address.split(':')[1]}", ""):
        assert operator.ask("/api/v1/jobs", Host=host)[0] in (400, 421)
    assert operator.raw("GET", "/api/v1/jobs", "Host: evil.example\r\n").startswith(b"HTTP/1.1 421")
    assert operator.raw("GET", "/api/v1/jobs", "Host: " + operator.address + "\r\n", host="evil.example").startswith(b"HTTP/1.1 421")
    assert operator.raw("GET", "/api/v1/session").startswith(b"HTTP/1.1 200")


def test_garbage_is_refused(home, operator):
    assert operator.ask("/api/v1/nothing")[0] == 404
    assert operator.ask("/api/v1/jobs/")[0] == 404
    assert operator.ask("/api/v1/jobs/none-such")[0] == 404
    assert operator.ask("/api/v1/jobs/none-such/curves")[0] == 404
    assert operator.ask("/api/v1/jobs/" + "x" * 4000)[0] in (404, 414)
    assert operator.act(f"/api/v1/nodes/here/drain", "x" * 100000)[0] == 413
    assert operator.ask("/api/v1/jobs", "DELETE")[0] == 405
    host, port = operator.address.split(":")
    for junk in (b"\x00" * 5000, b"GET /" + b"a" * 100000 + b" HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00",
                 b"POST /api/v1/jobs/x/stop HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: -5\r\n\r\n"):
        with socket.create_connection((host, int(port)), timeout=10) as peer:
            try:
                peer.sendall(junk)
                peer.shutdown(socket.SHUT_WR)
                peer.recv(4096)
            except OSError:
                pass
    assert operator.ask("/healthz")[0] == 200


def test_a_head_has_no_body(home, operator):
    """Of a stream the library would send the end of one."""
    for path, status in (("live", 405), (f"jobs/{home.over}/live", 405), (f"jobs/{home.over}/logs", 405),
                         (f"jobs/{home.over}/metrics.csv", 405), ("jobs", 200)):
        head, _, body = operator.raw("HEAD", f"/api/v1/{path}").partition(b"\r\n\r\n")
        assert int(head.split()[1]) == status and not body, path


def test_a_body_without_end_is_ended(home, operator):
    with socket.create_connection(("127.0.0.1", operator.port), timeout=20) as peer:
        peer.sendall(f"POST /healthz HTTP/1.1\r\nHost: {operator.address}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        with pytest.raises(OSError):
            for _ in range(10000):
                peer.sendall(b"4000\r\n" + b"x" * 0x4000 + b"\r\n")
    assert operator.ask("/healthz")[0] == 200


def test_a_name_means_the_newest_job_of_it():
    """Rows are kept by id: those of two jobs never mix."""
    with Home() as home:
        first = home.submit()
        home.digest(first)
        name = home.show(first)["name"]
        browser = Browser(home, token_of(home))
        assert browser.json(f"/api/v1/jobs/{name}/curves")["job"] == first
        second = home.submit(train__duration="5 steps")
        home.digest(second)
        curves = browser.json(f"/api/v1/jobs/{name}/curves")
        assert curves["job"] == second and curves["columns"]["step"] == [1, 2, 3, 4, 5]
        rows = [data for event, data in browser.events(f"/api/v1/jobs/{name}/live") if event == "rows"]
        assert rows[0]["job"] == second and rows[0]["rows"] == 5
        assert browser.ask("/api/v1/jobs/" + "x" * 100 + "/curves")[0] == 404


def test_who_waits_for_a_hung_coordinator_waits_once():
    """Not for each of those who asked for the same rows before him: eight would be 40 s."""
    with Home() as home:
        job = home.submit()
        home.digest(job)
        browser = Browser(home, token_of(home))
        until(lambda: browser.json("/api/v1/jobs")["jobs"], 10, "the job is listed")
        coordinator, = home.pids("cairnd")
        answers = []

        def ask():
            try:
                answers.append(browser.ask(f"/api/v1/jobs/{job}/curves")[0])
            except OSError as problem:
                answers.append(problem)
        os.kill(coordinator, signal.SIGSTOP)
        try:
            askers = [threading.Thread(target=ask) for _ in range(8)]
            for asker in askers:
                asker.start()
            for asker in askers:
                asker.join()
        finally:
            os.kill(coordinator, signal.SIGCONT)
        assert answers == [503] * 8


def test_a_save_may_take_its_time(home, operator):
    """Longer than what else is asked of a coordinator: it waits for a step."""
    workers = [worker["pid"] for worker in home.show(home.runs)["workers"]]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    timer = threading.Timer(6, lambda: [os.kill(pid, signal.SIGCONT) for pid in workers])
    timer.start()
    try:
        status, _, body = operator.act(f"/api/v1/jobs/{home.runs}/save")
    finally:
        timer.join()
    assert status == 200 and json.loads(body)["step"] > 0, body


def test_a_browser_is_started_without_the_code_on_its_command_line(home):
    tools = home.dir / "tools"
    tools.mkdir()
    said = home.dir / "said"
    (tools / "xdg-open").write_text(f'#!/bin/sh\nprintf "%s\\n" "$@" > {said}.new\nmv {said}.new {said}\n', encoding="ascii")
    (tools / "xdg-open").chmod(0o755)
    env = {**home.env, "DISPLAY": ":99", "PATH": f"{tools}:{os.environ['PATH']}"}
    link = subprocess.run([BIN / "cairn", "open"], env=env, check=True, timeout=20, capture_output=True, text=True).stdout.strip()
    until(said.exists, 20, "the browser")
    leader = Path(said.read_text(encoding="utf-8").strip())
    assert link.partition("code=")[2] not in str(leader)
    assert stat.S_IMODE(leader.stat().st_mode) == 0o600 and f"url={link}" in leader.read_text(encoding="utf-8")


def started_alone(home):
    """An observer that can write no file; (its address, what lies in HOME/page)."""
    page = home.home / "page"
    process = subprocess.Popen(
        [BIN / "cairn-observer"], env=home.env, stderr=subprocess.PIPE, text=True, restore_signals=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY)))
    try:
        for line in process.stderr:
            if "the page is at" in line:
                url = json.loads(line)["msg"].split()[-1]
                with socket.create_connection(urlsplit(url).netloc.split(":"), timeout=20):
                    return url, page.read_text(encoding="ascii") if page.exists() else None
        raise AssertionError(f"it ended: {process.wait()}")
    finally:
        process.kill()
        process.communicate()


def test_on_a_full_disk_it_serves():
    with Home() as home:
        home.cairn("down")
        before = (home.home / "page").read_text(encoding="ascii")
        assert started_alone(home) == (before, before)
        with socket.create_server(("127.0.0.1", urlsplit(before).port)):  # somebody else is there now
            url, page = started_alone(home)
            assert url != before and page is None  # nobody is led to him


def test_the_observer_is_nobodys_need():
    """Killed, it is started again, where it was; a coordinator that is away is said; both keep who was let in."""
    with Home() as home:
        job = home.submit(**LONG)
        browser = Browser(home, token_of(home))
        until(lambda: home.show(job)["step"] > 5, 30, "steps")
        before, address = home.show(job), browser.address
        home.kill("cairn-observer")
        until(lambda: home.pids("cairn-observer"), 10, "another observer")

        def answers():
            try:
                return browser.ask(f"/api/v1/jobs/{job}")[0] == 200
            except OSError:
                return False
        until(answers, 10, "the page")
        assert browser.address == address
        after = home.show(job)
        assert after["generation"] == before["generation"] and after["step"] >= before["step"]

        events = browser.events("/api/v1/live", seconds=30)
        assert next(events)[0] == "jobs"
        coordinator, = home.pids("cairnd")
        os.kill(coordinator, signal.SIGSTOP)
        assert "error" in next(data for event, data in events if event == "down")
        status, _, body = browser.ask(f"/api/v1/jobs/{job}")
        assert status in (503, 504) and json.loads(body)["error"]
        assert not browser.json("/api/v1/system")["up"]
        os.kill(coordinator, signal.SIGCONT)
        assert next(event for event, _ in events if event == "jobs") == "jobs"
        until(lambda: browser.json("/api/v1/system")["up"], 10, "up again")


def test_no_page_where_none_is_wanted():
    with Home() as home:
        home.cairn("down")
        assert "page:" not in home.cairn("up", "--page", "none").stdout
        assert not home.pids("cairn-observer")
        refused = home.cairn("open", check=False)
        assert refused.returncode == 5 and "cairn up" in refused.stderr


def test_beyond_this_machine_it_is_refused_without_certificates():
    with Home() as home:
        env = {**home.env, "CAIRN_HOME": str(home.dir / "other")}
        Path(env["CAIRN_HOME"]).mkdir()
        done = subprocess.run([BIN / "cairn-observer", "--listen", "0.0.0.0:0"], env=env, timeout=20,
                              capture_output=True, text=True, check=False)
        assert done.returncode == 2 and "ssh -L" in done.stderr and "cairn cert init" in done.stderr
        home.cairn("down")
        for address in ("0.0.0.0:0", "localhost:7080", "7080", "", ":7080", "a b:80", "[fd00::7:80", "there:", "there:99999999"):
            refused = home.cairn("up", "--page", address, check=False)
            assert refused.returncode == 2 and "ssh -L" in refused.stderr, address
        assert not home.pids("cairnd")
