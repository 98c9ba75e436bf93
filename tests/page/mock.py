#!/usr/bin/python3
"""A stand-in for cairn-observer: the page and its API, told by world.py.

    mock.py PAGE.html PAGE.csp [--port N]     steps go on, a worker dies now and then; until Ctrl-C

Tests have one in their own process: `with Mock(html, csp) as mock`.
"""
import argparse
import json
import re
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from world import World, reduced

HEARTBEAT_S = 0.5


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    # ---- answers ----

    def answer(self, status, body, kind, **headers):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def reply(self, message, status=200):
        self.answer(status, json.dumps(message).encode(), "application/json")

    def refuse(self, status, why):
        self.reply({"error": why}, status)

    def stream(self, events):
        """events(): yields (name, data), or None where there is nothing to say."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            for event in events:
                text = ": ping\n\n" if event is None else f"event: {event[0]}\ndata: {json.dumps(event[1])}\n\n"
                self.wfile.write(text.encode())
                self.wfile.flush()
        except OSError:
            pass  # the browser left

    # ---- requests ----

    def do_GET(self):
        mock, url = self.server.mock, urlsplit(self.path)
        mock.requests.append(self.path)
        if url.path == "/open":  # a link that is over
            return self.answer(403, mock.html, "text/html; charset=utf-8", Content_Security_Policy=mock.csp)
        if url.path == "/":
            return self.answer(200, mock.html, "text/html; charset=utf-8", Content_Security_Policy=mock.csp)
        if not url.path.startswith("/api/v1/"):
            return self.refuse(404, "there is no such page")
        if not mock.signed_in:
            return self.refuse(*mock.refusal)
        return self.get(mock, url.path[len("/api/v1"):], parse_qs(url.query))

    def get(self, mock, path, query):
        world = mock.world
        if path == "/session":
            return self.reply(dict(role=mock.role, actor=mock.actor, cluster="workshop"))
        if path == "/live":
            return self.stream(self.live(mock))
        if path == "/system":
            return self.reply(dict(coordinator=dict(version="0.3.0", git="0f19f58", pid=4021, agents=3), up=world.down is None,
                                   observer=dict(version="0.3.0", uptime_s=4211, connections=3, streams=2)))
        if world.down:
            return self.refuse(503, world.down)
        if path == "/jobs":
            return self.reply(dict(jobs=world.listed(), truncated=False))
        if path == "/nodes":
            return self.reply(dict(nodes=world.nodes))
        found = re.fullmatch(r"/jobs/([^/]+)(?:/([a-z.]+))?", path)
        job = world.jobs.get(found[1]) if found else None
        if job is None:
            return self.refuse(404, "there is no such job; `cairn ps` lists them")
        return self.get_job(mock, job, found[2] or "", query)

    def get_job(self, mock, job, what, query):
        run = mock.world.runs.get(job["id"], mock.world.done)
        if what == "":
            return self.reply(job)
        if what == "why":
            return self.reply(mock.world.why(job))
        if what == "checkpoints":
            return self.reply(dict(checkpoints=job["checkpoints"], next_page_token=""))
        if what == "curves":
            return self.reply(run.curves(reduced(run.rows, int(query.get("points", ["1000"])[0])), run.evals))
        if what == "metrics.csv":
            return self.answer(200, b"step,loss\n", "text/csv")
        if what == "live":
            return self.stream(self.job_live(mock, run, int(query.get("from", ["0"])[0])))
        if what == "logs":
            return self.stream(self.logs(mock, run, query))
        return self.refuse(404, "there is no such page")

    # ---- streams ----

    def changes(self, mock):
        """The world's version, whenever it is another one, at most once a second; else None."""
        seen = -1
        while not mock.closed:
            with mock.world.changed:
                mock.world.changed.wait_for(lambda: mock.world.version != seen, HEARTBEAT_S)
                new, seen = mock.world.version != seen, mock.world.version
            yield seen if new else None

    def live(self, mock):
        told = None
        for change in self.changes(mock):
            if mock.world.down:
                yield "down", {"error": mock.world.down}
            elif change is not None:
                with mock.world.changed:
                    jobs, nodes = json.dumps(mock.world.listed()), json.dumps(mock.world.nodes)
                yield "jobs", {"jobs": json.loads(jobs)}
                if nodes != told:
                    told = nodes
                    yield "nodes", {"nodes": json.loads(nodes)}
                time.sleep(mock.pause)
            else:
                yield None

    def job_live(self, mock, run, start):
        sent = next((at for at, row in enumerate(run.sent) if row["step"] >= start), len(run.sent))
        for change in self.changes(mock):
            if change is None:
                yield None
                continue
            with mock.world.changed:
                rows, sent = run.sent[sent:], len(run.sent)
                job = json.loads(json.dumps({**run.job, "events": []}))
                del job["recoveries"]
                steps = {row["step"] for row in rows}
                curves = run.curves(rows, [one for one in run.evals if one["step"] in steps])
            yield "job", job
            if rows:
                yield "rows", curves
            if job["state"] in ("SUCCEEDED", "FAILED", "STOPPED"):
                yield "over", {}
                return

    def logs(self, mock, run, query):
        sent, rank = 0, query.get("rank", [None])[0]
        for _ in self.changes(mock):
            with mock.world.changed:
                lines, sent = run.lines[sent:], len(run.lines)
            yield ("lines", [one for one in lines if rank is None or one["rank"] == int(rank)]) if lines else None
            if run.job["state"] in ("SUCCEEDED", "FAILED", "STOPPED"):
                yield "over", {}
                return

    # ---- what changes something ----

    def do_POST(self):
        mock = self.server.mock
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0)).decode()
        mock.posts.append((self.path, body, self.headers.get("X-Cairn")))
        if not mock.signed_in:
            return self.refuse(401, "sign in: run `cairn open` on this machine")
        if self.path == "/api/v1/sign-out":
            mock.signed_in = False
            return self.reply({})
        if mock.role != "operator" or self.headers.get("X-Cairn") != "1":
            return self.refuse(403, "you may look, not act: ask for an operator's certificate")
        job = re.fullmatch(r"/api/v1/jobs/([^/]+)/(pause|resume|stop|save)", self.path)
        node = re.fullmatch(r"/api/v1/nodes/([^/]+)/(drain|undrain)", self.path)
        if job and job[1] in mock.world.jobs:
            return self.act_on_job(mock.world, mock.world.jobs[job[1]], job[2])
        found = [one for one in mock.world.nodes if node and one["name"] == node[1]]
        if not found:
            return self.refuse(404, "there is no such thing")
        drains = node[2] == "drain"
        mock.world.change(lambda: found[0].update(state="draining" if drains else "ready",
                                                  reason=json.loads(body)["reason"] if drains else ""))
        return self.reply(found[0])

    def act_on_job(self, world, job, action):
        if action == "save":
            return self.reply(dict(step=job["step"], checkpoint=job["checkpoints"][0]))
        states = dict(pause="PAUSED", resume="RUNNING", stop="STOPPED")
        world.change(lambda: job.update(state=states[action], reason=""))
        return self.reply(job)


class Mock:
    def __init__(self, html, csp, port=0, count=200, pause=0.2):
        with open(html, "rb") as file:
            self.html = file.read()
        with open(csp, encoding="utf-8") as file:
            self.csp = file.read()
        self.world = World(count)
        self.actor = "root"
        self.role, self.signed_in, self.closed, self.pause = "operator", True, False, pause
        self.refusal = (401, "sign in: run `cairn open` on this machine")
        self.requests, self.posts = [], []
        self.open(port)

    def open(self, port):
        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.server.mock = self
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.closed = False
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True).start()

    def close(self):
        self.closed = True
        self.server.shutdown()
        self.server.server_close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("html")
    parser.add_argument("csp")
    parser.add_argument("--port", type=int, default=8700)
    args = parser.parse_args()
    with Mock(args.html, args.csp, args.port) as mock:
        print(mock.url, flush=True)
        for tick in range(1, 1 << 30):
            time.sleep(0.1)
            mock.world.advance()
            if tick % 250 == 0:
                mock.world.kill()


if __name__ == "__main__":
    main()
