"""Webhooks against stand-in servers: what arrives, what is tried again and what not, what a restart keeps, that no secret
shows; `cairn webhook`; the recipes for Slack and mail. Jobs are made up and handed over by webhook_feed, but for the last."""
import hashlib
import hmac
import json
import os
import re
import subprocess
import sys
import time

import pytest

from home import ROOT, Home, until
from standin import Mailbox, Receiver, certificate, closed_port

FEED = os.environ.get("CAIRN_WEBHOOK_FEED", str(ROOT / "build" / "dev" / "tests" / "webhook_feed"))
SECRET = "0123456789abcdefsecretsecretsecret"
EVENTS = {"failed", "recovered", "finished", "diverged", "store-trouble"}


@pytest.fixture(name="home")
def one_home():
    home = Home()
    home.home.mkdir()
    yield home
    subprocess.run(["rm", "-rf", str(home.dir)], check=True)


def listing(home, *hooks, mode=0o600):
    """Writes the list: each webhook is a dict of its keys."""
    path = home.home / "webhooks.yaml"
    lines = ["webhooks:"]
    for hook in hooks:
        lines += [f"  {'- ' if i == 0 else '  '}{key}: {json.dumps(value)}" for i, (key, value) in enumerate(hook.items())]
    new = home.home / "webhooks.new"
    new.write_text("\n".join(lines) + "\n", encoding="utf-8")
    new.chmod(mode)
    new.rename(path)
    return path


def stamp(after_s=0.0):
    at = time.time() + after_s
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(at)) + f".{int(at * 1000) % 1000:03}Z"


def failed(number=0, name="lenet"):
    return {"id": f"j-{number:010}", "name": name, "state": "FAILED", "step": 40, "total_steps": 100,
            "reason": "out of memory: killed by the kernel", "ended_at": stamp(1),
            "workers": [{"rank": 2, "node": "gpu-07"}],
            "events": [{"time": stamp(1), "generation": 1, "step": 40, "kind": "fault",
                        "message": "out of memory: rank 2: killed by the kernel"}]}


class Feed:
    """The program that stands in for the observer."""

    def __init__(self, home, retry_ms=100, timeout_ms=2000):
        self.log = open(home.dir / "feed.log", "ab")
        self.process = subprocess.Popen([FEED, str(retry_ms), str(timeout_ms)], env=home.env, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=self.log, text=True)

    def ask(self, line):
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def job(self, job):
        assert self.ask(json.dumps(job)) == "ok"

    def waiting(self):
        return int(self.ask("waiting"))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        killed = self.process.returncode == -9
        assert self.process.wait(timeout=20) == 0 or killed
        self.log.close()


def log_of(home):
    return [json.loads(line)["msg"] for line in (home.dir / "feed.log").read_text(encoding="utf-8").splitlines()]


def check_no_secret(home, *more):
    """Neither what was signed with nor a part of an address is in a log or in what is kept."""
    texts = [(home.dir / "feed.log").read_text(encoding="utf-8"), *more]
    state = home.home / "observer" / "webhooks.json"
    if state.exists():
        texts.append(state.read_text(encoding="utf-8"))
    for text in texts:
        assert "abcdefghijkl" not in text and "secretsecret" not in text


def signature_is_good(headers, body):
    """As docs/webhooks.md has it."""
    parts = dict(part.split("=") for part in headers["X-Cairn-Signature"].split(","))
    made = hmac.new(SECRET.encode(), parts["t"].encode() + b"." + body, hashlib.sha256).hexdigest()
    return hmac.compare_digest(made, parts["v1"]) and abs(time.time() - int(parts["t"])) < 300


def secret_file(home):
    path = home.home / "secret"
    path.write_text(SECRET + "\n", encoding="utf-8")
    path.chmod(0o600)
    return str(path)


# ---- what arrives ----

def test_each_event_arrives_once_signed_and_in_order(home):
    with Receiver() as server:
        listing(home, {"name": "all", "url": server.url, "secret_file": secret_file(home)})
        with Feed(home) as feed:
            job = failed()
            events, job["events"] = job["events"], []
            job.update(state="RUNNING", ended_at="")
            feed.job(job)
            job["events"].append({"time": stamp(), "step": 20, "kind": "store-full", "message": "step 20 is not saved"})
            feed.job(job)
            job["events"].append({"time": stamp(), "step": 30, "kind": "store-room", "message": "step 30 is saved"})
            job["events"].append({"time": stamp(), "step": 31, "kind": "skip", "message": "step 31 is not finite twice"})
            job["recoveries"] = [{"generation": 2, "ended": 1, "kind": "checkpoint", "rank": 1, "node": "gpu-08", "state": "done",
                                  "cause": "process gone", "message": "signal 9", "time": stamp(), "step": 30, "steps_lost": 2,
                                  "seconds": [{"cause": "form", "seconds": 1.5}, {"cause": "replay", "seconds": 0.25}]}]
            feed.job(job)
            job.update({**failed(), "events": job["events"] + events})
            feed.job(job)
            feed.job(job)
            until(lambda: len(server.got) == 5 and feed.waiting() == 0, 20, "all of it")
            time.sleep(0.2)
        told = [json.loads(body) for _, body in server.got]
        assert [one["event"] for one in told] == ["store-trouble", "store-trouble", "diverged", "recovered", "failed"]
        assert [one["over"] for one in told] == [False, True, False, False, False]
        assert len({one["delivery"] for one in told}) == 5
        for one, (headers, body) in zip(told, server.got):
            assert one["version"] == 1 and one["missed"] == 0 and one["job"]["id"] == "j-0000000000"
            assert headers["Content-Type"] == "application/json" and headers["User-Agent"].startswith("cairn-observer/")
            assert headers["X-Cairn-Event"] == one["event"] and headers["X-Cairn-Delivery"] == one["delivery"]
            assert signature_is_good(headers, body) and not signature_is_good(headers, body + b" ")
            assert one["next"] == "cairn why j-0000000000"
        recovered, last = told[3], told[4]
        assert (recovered["rank"], recovered["node"], recovered["cause"]) == (1, "gpu-08", "process gone")
        assert (recovered["seconds_lost"], recovered["steps_lost"], recovered["step"]) == (1.75, 2, 30)
        assert (last["rank"], last["node"], last["cause"]) == (2, "gpu-07", "out of memory")
        assert last["message"] == "lenet failed at step 40 of 100: out of memory: killed by the kernel"
        assert last["job"]["state"] == "FAILED"
    check_no_secret(home)


def test_a_webhook_hears_what_it_wants_of_the_jobs_it_wants(home):
    with Receiver() as some, Receiver() as text:
        listing(home, {"name": "some", "url": some.url, "events": ["finished"]},
                {"name": "text", "url": text.url, "format": "text", "jobs": "resnet*"})
        with Feed(home) as feed:
            feed.job(failed(1, "lenet"))
            feed.job(failed(2, "resnet18"))
            feed.job({**failed(3, "lenet"), "state": "SUCCEEDED", "loss": 0.5, "accuracy": 0.75})
            until(lambda: feed.waiting() == 0 and len(text.got) == 1, 20, "both")
        assert [json.loads(body)["message"] for _, body in some.got] == ["lenet finished: 40 steps, loss 0.5, accuracy 0.75"]
        assert [body.decode() for _, body in text.got] == [
            "resnet18 failed at step 40 of 100: out of memory: killed by the kernel\ncairn why j-0000000002\n"]
        assert text.got[0][0]["Content-Type"] == "text/plain; charset=utf-8"
        assert "X-Cairn-Signature" not in text.got[0][0]


# ---- receivers that fail ----

def test_a_slow_or_endless_receiver_holds_no_other_up(home):
    with Receiver([60.0]) as slow, Receiver(["huge"]) as huge, Receiver(["drop"]) as drops, Receiver() as good:
        listing(home, *[{"name": name, "url": server.url}
                        for name, server in (("slow", slow), ("huge", huge), ("drops", drops), ("good", good))])
        with Feed(home, retry_ms=60000, timeout_ms=30000) as feed:
            for number in range(5):
                feed.job(failed(number))
            until(lambda: len(good.got) == 5 and len(huge.got) == 5, 20, "the others")
            assert len(slow.got) == 1  # in order: one at a time
            until(lambda: feed.waiting() == 10, 20, "all else is delivered")
    check_no_secret(home)


def test_what_fails_is_tried_again_under_the_same_name(home):
    with Receiver([500, (429, {"Retry-After": "1"}), "drop", 408, 200]) as server:
        listing(home, {"name": "team", "url": server.url, "secret_file": secret_file(home)})
        with Feed(home) as feed:
            feed.job(failed(1))
            feed.job(failed(2))
            until(lambda: feed.waiting() == 0, 30, "both are delivered")
        assert len(server.got) == 6
        assert len({headers["X-Cairn-Delivery"] for headers, _ in server.got[:5]}) == 1
        assert all(signature_is_good(headers, body) for headers, body in server.got)
        assert server.got[5][0]["X-Cairn-Delivery"] != server.got[0][0]["X-Cairn-Delivery"]
        tells = [line for line in log_of(home) if line.startswith("webhook team: ")]
        assert tells == ["webhook team: 500; it is tried again for an hour"]


def test_what_is_refused_is_not_tried_again_and_counted(home):
    for code, why in ((404, "nothing at this address"), (400, "look at format"), (302, "redirects are not followed"),
                      (401, "secret_file")):
        answer = (code, {"Location": "http://127.0.0.1:1/"}) if code == 302 else code
        with Receiver([answer, 200]) as server:
            listing(home, {"name": f"n{code}", "url": server.url})
            with Feed(home) as feed:
                feed.job(failed(code * 10))
                feed.job(failed(code * 10 + 1))
                until(lambda: feed.waiting() == 0 and len(server.got) == 2, 20, "the second one")
            assert [json.loads(body)["missed"] for _, body in server.got] == [0, 1]
            assert len({headers["X-Cairn-Delivery"] for headers, _ in server.got}) == 2
        assert any(line.startswith(f"webhook n{code}: {code}") and why in line for line in log_of(home))
    check_no_secret(home)


def test_who_is_gone_is_told_nothing_until_the_list_changes(home):
    with Receiver([410, 200]) as server:
        hook = {"name": "team", "url": server.url}
        listing(home, hook)
        with Feed(home) as feed:
            feed.job(failed(1))
            until(lambda: feed.waiting() == 0 and len(server.got) == 1, 20, "410")
            feed.job(failed(2))
            assert feed.waiting() == 0
        (row,) = json.loads(home.cairn("webhook", "ls", "-o", "json").stdout)
        assert (row["state"], row["missed"], row["last_answer"]) == ("disabled", 2, "410: it wants no more messages")
        with Feed(home) as feed:  # a restart doesn't change it
            feed.job(failed(3))
            assert feed.waiting() == 0
            listing(home, hook)
            until(lambda: "disabled" not in home.cairn("webhook", "ls").stdout, 20, "it is seen")
            feed.job(failed(4))
            until(lambda: len(server.got) == 2, 20, "the next one")
        assert json.loads(server.got[1][1])["missed"] == 3
    assert any("410" in line and "until the list of webhooks changes" in line for line in log_of(home))


def test_certificates_are_checked(home):
    good, other = (certificate(home.dir, name, "127.0.0.1") for name in ("good", "other"))
    wrong = certificate(home.dir, "wrong", "127.0.0.2")
    with Receiver(tls=good) as server, Receiver(tls=wrong) as elsewhere:
        listing(home, {"name": "right", "url": server.url, "ca_file": str(good[0])},
                {"name": "unknown", "url": server.url}, {"name": "another", "url": server.url, "ca_file": str(other[0])},
                {"name": "name", "url": elsewhere.url, "ca_file": str(wrong[0])},
                {"name": "plain", "url": server.url.replace("https", "http")})
        done = home.cairn("webhook", "test", "-o", "json", check=False)
        rows = {row["name"]: row for row in json.loads(done.stdout)}
        assert {name: row["delivered"] for name, row in rows.items()} == {
            "right": True, "unknown": False, "another": False, "name": False, "plain": False}
        assert "certificate" in rows["unknown"]["answer"] and done.returncode == 5
        assert len(server.got) == 1 and not elsewhere.got


# ---- bounds and restarts ----

def test_more_than_the_queue_holds_is_dropped_and_said(home):
    with Receiver([503] * 3 + [200]) as server:
        listing(home, {"name": "team", "url": server.url})
        with Feed(home, retry_ms=1000) as feed:
            for number in range(300):
                feed.job(failed(number))
            until(lambda: feed.waiting() == 0, 60, "all that is left")
        told = [json.loads(body) for _, body in server.got]
        arrived = told[3:]
        assert arrived[-1]["job"]["id"] == "j-0000000299"
        assert len(arrived) in (256, 257)  # the first was on its way when it would have been dropped
        assert sum(one["missed"] for one in arrived) == 300 - len(arrived)
        ids = [one["job"]["id"] for one in arrived]
        assert ids == sorted(ids)
    assert any("more than 256 messages wait, the oldest is dropped" in line for line in log_of(home))


@pytest.mark.parametrize("kill", [False, True])
def test_a_restart_loses_nothing_and_repeats_no_history(home, kill):
    port = closed_port()
    url = f"http://127.0.0.1:{port}/services/T000/abcdefghijkl"
    listing(home, {"name": "team", "url": url})
    with Feed(home) as feed:
        for number in range(3):
            feed.job(failed(number))
        until(lambda: feed.waiting() == 3, 20, "they wait")
        state = home.home / "observer" / "webhooks.json"
        until(lambda: state.exists() and state.read_text(encoding="utf-8").count('"payload"') == 3, 20, "they are kept")
        if kill:
            feed.kill()
    with Receiver() as server:
        listing(home, {"name": "team", "url": server.url})
        with Feed(home) as feed:
            for number in range(4):
                feed.job(failed(number))
            until(lambda: feed.waiting() == 0 and len(server.got) == 4, 20, "all four")
        with Feed(home) as feed:
            for number in range(4):
                feed.job(failed(number))
            time.sleep(0.3)
        assert [json.loads(body)["job"]["id"] for _, body in server.got] == [f"j-{number:010}" for number in range(4)]
    check_no_secret(home)


def test_what_was_before_the_first_start_is_not_told(home):
    with Receiver() as server:
        listing(home, {"name": "team", "url": server.url})
        with Feed(home) as feed:
            old = failed(1)
            old["ended_at"] = old["events"][0]["time"] = stamp(-3600)
            feed.job(old)
            feed.job(failed(2))
            until(lambda: len(server.got) == 1 and feed.waiting() == 0, 20, "the new one")
        assert json.loads(server.got[0][1])["job"]["id"] == "j-0000000002"


# ---- the list ----

def test_a_list_is_read_again_and_one_with_mistakes_is_not_used(home):
    with Receiver() as server, Receiver() as other:
        path = listing(home, {"name": "team", "url": server.url})
        with Feed(home) as feed:
            assert feed.waiting() == 0  # the list was read
            listing(home, {"name": "team", "url": "no-address/abcdefghijkl"})
            until(lambda: any("this is no address" in line for line in log_of(home)), 20, "it is said")
            said = next(line for line in log_of(home) if "this is no address" in line)
            assert said.startswith(f"{path}:3:10: this is no address to send to\n") and "stays in force" in said
            feed.job(failed(1))
            until(lambda: len(server.got) == 1, 20, "by the list before")
            listing(home, {"name": "team", "url": server.url}, {"name": "more", "url": other.url}, mode=0o644)
            until(lambda: any("chmod 600" in line for line in log_of(home)), 20, "others may read it")
            path.chmod(0o600)
            until(lambda: any("2 webhooks" in line for line in log_of(home)), 20, "it is good now")
            feed.job(failed(2))
            until(lambda: len(server.got) == 2 and len(other.got) == 1, 20, "both")
        assert sum("this is no address" in line for line in log_of(home)) == 1
    check_no_secret(home)


def test_without_a_list_nothing_is_kept(home):
    with Feed(home) as feed:
        feed.job(failed(1))
        assert feed.waiting() == 0
    assert not any("webhooks" in line for line in log_of(home)) and not (home.home / "observer").exists()


# ---- cairn webhook ----

def test_ls_and_test_show_what_is_there_and_no_secret(home):
    with Receiver() as good, Receiver([403]) as refuses:
        listing(home, {"name": "good", "url": good.url, "secret_file": secret_file(home)},
                {"name": "refuses", "url": refuses.url, "events": ["failed", "finished"]},
                {"name": "closed", "url": f"http://127.0.0.1:{closed_port()}/services/T000/abcdefghijkl"})
        rows = json.loads(home.cairn("webhook", "ls", "-o", "json").stdout)
        assert [(row["name"], row["state"], row["signed"]) for row in rows] == [
            ("good", "ready", True), ("refuses", "ready", False), ("closed", "ready", False)]
        assert rows[0]["to"] == f"http://127.0.0.1:{good.port}/…" and set(rows[0]["events"].split(",")) == EVENTS
        assert rows[1]["events"] == "failed,finished"
        one = home.cairn("webhook", "test", "good")
        assert re.search(r"good +http\S+ +delivered +200 ", one.stdout)
        (headers, body), = good.got
        told = json.loads(body)
        assert told["event"] == headers["X-Cairn-Event"] == "test" and told["job"] is None and "webhook good works" in told["message"]
        assert signature_is_good(headers, body)
        done = home.cairn("webhook", "test", check=False)
        assert done.returncode == 4 and done.stdout.count("FAILED") == 2 and "403: not allowed" in done.stdout
        assert home.cairn("webhook", "test", "closed", check=False).returncode == 5
        assert home.cairn("webhook", "ls", "-o", "name").stdout.split() == ["good", "refuses", "closed"]
        missing = home.cairn("webhook", "test", "godo", check=False)
        assert missing.returncode == 3 and "'cairn webhook ls' lists them" in missing.stderr
        with Feed(home) as feed:
            feed.job(failed(1))
            until(lambda: len(good.got) == 3 and feed.waiting() == 1, 20, "all but one")
        table = home.cairn("webhook", "ls", "-o", "wide").stdout
        assert "failed of lenet" in table and "delivered" in table and "retrying" in table
        for text in (table, done.stdout, done.stderr, one.stdout, home.cairn("webhook", "ls", "-o", "json").stdout):
            assert "abcdefghijkl" not in text and "secretsecret" not in text


def test_mistakes_in_the_list_are_shown(home):
    done = home.cairn("webhook", "ls", check=False)
    assert done.returncode == 3 and "there is no" in done.stderr
    path = listing(home, {"name": "team", "url": "https://example.org/abcdefghijkl", "evnts": "failed"})
    done = home.cairn("webhook", "test", check=False)
    assert done.returncode == 2 and f"{path}:4:5: a webhook has no such key" in done.stderr
    assert "did you mean 'events'?" in done.stderr and "abcdefghijkl" not in done.stderr
    path.chmod(0o640)
    done = home.cairn("webhook", "ls", check=False)
    assert done.returncode == 4 and f"chmod 600 {path}" in done.stderr


# ---- recipes ----

def test_recipe_slack(home):
    """What Slack's incoming webhooks take: a JSON object with text, in which &, < and > are escaped; 40,000 characters."""
    with Receiver([(200, {"Content-Type": "text/html"}, b"ok")]) as slack:
        listing(home, {"name": "team", "url": slack.url, "format": "slack"})
        with Feed(home) as feed:
            feed.job({**failed(1), "reason": "a < b & c > d"})
            until(lambda: feed.waiting() == 0 and slack.got, 20, "it")
        headers, body = slack.got[0]
        assert headers["Content-Type"] == "application/json"
        assert json.loads(body) == {"text": "lenet failed at step 40 of 100: a &lt; b &amp; c &gt; d\n`cairn why j-0000000001`"}


def mailer(home, *more):
    process = subprocess.Popen([sys.executable, ROOT / "examples" / "webhooks" / "mail.py", "--to", "team@example.org",
                                "--listen", "127.0.0.1:0", *more], stdout=subprocess.PIPE, text=True, cwd=home.dir)
    port = int(process.stdout.readline().rsplit(":", 1)[1])
    return process, f"http://127.0.0.1:{port}/"


def test_recipe_mail(home):
    with Mailbox(refuses=1) as mailbox:
        process, url = mailer(home, "--smtp", f"127.0.0.1:{mailbox.port}", "--secret", secret_file(home))
        try:
            listing(home, {"name": "mail", "url": url, "secret_file": secret_file(home)})
            with Feed(home, timeout_ms=10000) as feed:
                feed.job(failed(1))
                until(lambda: feed.waiting() == 0 and mailbox.got, 30, "the mail, at the second try")
            (sender, to, text), = mailbox.got
            assert sender == "<cairn@localhost>" and to == ["<team@example.org>"]
            assert "Subject: [cairn] lenet: failed\r\n" in text and "node: gpu-07\r\n" in text
            assert "lenet failed at step 40 of 100" in text and "cairn why j-0000000001" in text
            (home.home / "observer" / "webhooks.json").unlink()  # nothing is known any more: it is sent once more
            with Feed(home, timeout_ms=10000) as feed:
                feed.job({**failed(1)})
                feed.job(failed(2))
                until(lambda: feed.waiting() == 0 and len(mailbox.got) > 1, 30, "the second mail")
            assert len(mailbox.got) == 2 and "cairn why j-0000000002" in mailbox.got[1][2]
            other = home.home / "secret"
            other.write_text("another secret than the mailer's\n", encoding="utf-8")
            done = home.cairn("webhook", "test", check=False)
            assert done.returncode == 4 and "401" in done.stdout
        finally:
            process.kill()
            process.wait()


def test_the_example_is_a_good_list(home):
    text = (ROOT / "examples" / "webhooks" / "webhooks.yaml").read_text(encoding="utf-8")
    (home.home / "webhooks.yaml").write_text(text, encoding="utf-8")
    (home.home / "webhooks.yaml").chmod(0o600)
    secret = home.home / "webhook-secret"
    secret.write_text(SECRET, encoding="utf-8")
    secret.chmod(0o600)
    rows = json.loads(home.cairn("webhook", "ls", "-o", "json").stdout)
    assert [(row["name"], row["format"]) for row in rows] == [("team", "slack"), ("mail", "json")]


def test_the_documented_check_of_signatures_is_right(home):
    """The Python of docs/webhooks.md, run on a message."""
    text = (ROOT / "docs" / "webhooks.md").read_text(encoding="utf-8")
    code = re.search(r"```python\n(.*?)```", text, re.S)[1]
    names = {}
    exec(code, names)  # pylint: disable=exec-used
    with Receiver() as server:
        listing(home, {"name": "a", "url": server.url, "secret_file": secret_file(home)})
        home.cairn("webhook", "test")
        (headers, body), = server.got
        header = headers["X-Cairn-Signature"]
        assert names["is_from_cairn"](SECRET.encode(), header, body)
        assert not names["is_from_cairn"](SECRET.encode(), header, body + b" ")
        assert not names["is_from_cairn"](b"another", header, body)
        old = re.sub(r"t=\d+", "t=1700000000", header)
        assert not names["is_from_cairn"](SECRET.encode(), old, body)
        assert not names["is_from_cairn"](SECRET.encode(), "", body)


def test_jobs_as_the_coordinator_shows_them(home):
    """A real job that is killed and goes on, and one that fails: their messages go through as they are."""
    with Receiver() as server:
        listing(home, {"name": "all", "url": server.url})
        with Home(env=Home.RESTART, faults="trainer.reduce,step=6,generation=1:kill") as real, Feed(home) as feed:
            def follow(job):
                feed.job(plain(real.show(job)))
                return real.show(job)["state"] in ("SUCCEEDED", "FAILED")
            job = real.submit()
            until(lambda: follow(job), 60, "its end")
            follow(job)
            until(lambda: feed.waiting() == 0, 20, "all is told")
        told = [json.loads(body) for _, body in server.got]
        assert [one["event"] for one in told] == ["recovered", "finished"]
        assert told[0]["cause"] == "process gone" and told[0]["rank"] in (0, 1) and told[0]["seconds_lost"] > 0
        assert told[1]["message"].startswith("tiny finished: 12 steps, loss ")


def plain(shown):
    """As webhook_feed reads a job: what webhooks look at."""
    job = {name: shown[name] for name in ("id", "name", "state", "reason", "step", "total_steps", "ended_at", "events")}
    for name in ("loss", "accuracy"):
        if shown[name] is not None:
            job[name] = shown[name]
    job["workers"] = [{"rank": one["rank"], "node": one["node"]} for one in shown["workers"]]
    job["recoveries"] = [{**one, "seconds": [{"cause": cause, "seconds": s} for cause, s in one["seconds"].items()]}
                         for one in shown["recoveries"]]
    return job


def test_the_observer_tells_of_real_jobs():
    """From the list that comes while it runs, to each of the events; one that dies meanwhile tells of it later."""
    with Receiver() as receiver, Home() as home:
        listing(home, {"name": "team", "url": receiver.url, "jobs": "tiny*"})
        time.sleep(2.5)  # it is looked for every second; what was before isn't told

        def told(event):
            return [json.loads(body) for headers, body in receiver.got if headers["X-Cairn-Event"] == event]

        job = home.submit(train__duration="100000 steps")
        until(lambda: home.show(job)["step"] > 20, 30, "steps")
        os.kill(home.show(job)["workers"][1]["pid"], 9)
        until(lambda: told("recovered"), 30, "recovered")
        assert told("recovered")[0]["job"]["id"] == job and told("recovered")[0]["rank"] == 1
        done = home.submit()
        home.digest(done)
        until(lambda: [one for one in told("finished") if one["job"]["id"] == done], 30, "finished")
        home.kill("cairn-observer")
        other = home.submit(name="other")
        home.digest(other)  # another name
        bad = home.submit(name="tiny-bad", train__optimizer__lr="1000", train__duration="1000 steps")
        home.wait_state(bad, "FAILED")
        until(lambda: told("failed"), 30, "failed")
        assert told("failed")[0]["job"]["id"] == bad and told("failed")[0]["next"].startswith("cairn why")
        assert {one["job"]["id"] for event in EVENTS for one in told(event)} == {job, done, bad}
