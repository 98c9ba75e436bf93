#!/usr/bin/python3
"""Mails what Cairn tells: a receiver of webhooks that hands each message to an SMTP server.

    mail.py --to team@example.org [--from cairn@example.org] [--smtp localhost:25] [--listen 127.0.0.1:8025]
            [--secret FILE]

In webhooks.yaml:   - {name: mail, url: "http://127.0.0.1:8025/", secret_file: SAME_FILE}

It answers 204 once the SMTP server has the message, and 503 if that doesn't take it: Cairn tries again. A message
that was there already (it is known by its delivery) is not mailed twice. Needs nothing but Python.
"""
import argparse
import collections
import hashlib
import hmac
import http.server
import json
import smtplib
import sys
import threading
import time
from email.message import EmailMessage

BYTES_MAX = 256 * 1024   # of a message; Cairn's have some 2 KiB
AGE_MAX = 300            # seconds: an older signature may have been recorded by somebody
SEEN_MAX = 10000         # deliveries that are remembered


def is_signed(secret, header, body, now):
    """The header is t=UNIX,v1=HEX, HEX being the HMAC-SHA-256 of "UNIX.BODY"."""
    parts = dict(part.partition("=")[::2] for part in header.split(","))
    made = hmac.new(secret, parts.get("t", "").encode() + b"." + body, hashlib.sha256).hexdigest()
    fresh = parts.get("t", "").isdigit() and abs(now - int(parts["t"])) <= AGE_MAX
    return fresh and hmac.compare_digest(made, parts.get("v1", ""))


def mail_of(told, options):
    """The message to send for a payload."""
    mail = EmailMessage()
    job = told.get("job") or {}
    mail["Subject"] = f"[cairn] {job.get('name', 'test')}: {told['event']}"
    mail["From"], mail["To"] = options.sender, options.to
    mail["Message-ID"] = f"<{told['delivery']}@cairn>"
    lines = [told["message"], ""]
    for name in ("time", "step", "cause", "node", "rank", "seconds_lost", "steps_lost"):
        if told.get(name) is not None:
            lines.append(f"{name.replace('_', ' ')}: {told[name]}")
    if told.get("missed"):
        lines.append(f"{told['missed']} messages before this one were lost")
    if told.get("next"):
        lines += ["", told["next"]]
    mail.set_content("\n".join(lines) + "\n")
    return mail


class Receiver(http.server.BaseHTTPRequestHandler):
    timeout = 10
    options, secret = None, None
    seen, lock = collections.OrderedDict(), threading.Lock()

    def do_POST(self):
        size = int(self.headers.get("Content-Length", "0"))
        if size > BYTES_MAX:
            return self.answer(413)
        body = self.rfile.read(size)
        if self.secret and not is_signed(self.secret, self.headers.get("X-Cairn-Signature", ""), body, time.time()):
            return self.answer(401)
        try:
            told = json.loads(body)
            mail = mail_of(told, self.options)
        except (ValueError, KeyError, TypeError):
            return self.answer(400)
        with self.lock:  # one at a time: a repetition waits for what it repeats
            return self.answer(self.pass_on(told["delivery"], mail))

    def pass_on(self, delivery, mail):
        if delivery in self.seen:
            return 204
        host, _, port = self.options.smtp.rpartition(":")
        try:
            with smtplib.SMTP(host, int(port), timeout=8) as server:
                server.send_message(mail)
        except (OSError, smtplib.SMTPException) as error:
            print(f"not mailed: {error}", file=sys.stderr, flush=True)
            return 503
        self.seen[delivery] = True
        if len(self.seen) > SEEN_MAX:
            self.seen.popitem(last=False)
        return 204

    def answer(self, code):
        self.send_response(code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--to", required=True)
    parser.add_argument("--from", dest="sender", default="cairn@localhost")
    parser.add_argument("--smtp", default="localhost:25")
    parser.add_argument("--listen", default="127.0.0.1:8025")
    parser.add_argument("--secret", help="file: only messages that are signed with it are taken")
    Receiver.options = parser.parse_args()
    if Receiver.options.secret:
        with open(Receiver.options.secret, "rb") as file:
            Receiver.secret = file.read().strip()
    host, _, port = Receiver.options.listen.rpartition(":")
    with http.server.ThreadingHTTPServer((host, int(port)), Receiver) as server:
        print(f"listens at {host}:{server.server_address[1]}", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
