#!/usr/bin/python3
"""A network that misbehaves, between Cairn and an S3 server, by a seeded script.

Every request is checked first: its Signature Version 4 is computed anew from what arrived, by code
that shares nothing with libcurl's, and so is the SHA-256 of its body. Then one of the faults may
happen. The proxy reads and writes HTTP/1.1 by itself, so that it can break off anywhere.

    error500     answered here, the server never sees it
    slowdown     503 SlowDown, likewise
    reset        the connection is reset before the server sees the request
    lost         the server does it, the answer is lost (reset)
    cut          the answer ends in the middle
    stall        nothing comes for longer than the client waits
    slow         the answer comes in drops
    error200     CompleteMultipartUpload, DeleteObjects: 200 with an error for a body, the server never sees it
    lost_commit  the answer of a PUT that may not overwrite, or of CompleteMultipartUpload, is lost
"""
import asyncio
import base64
import dataclasses
import hashlib
import hmac
import random
import re
import urllib.parse

HEAD_MAX = 64 << 10
BODY_MAX = 512 << 20
FAULTS = ("error500", "slowdown", "reset", "lost", "cut", "slow", "error200", "lost_commit")


@dataclasses.dataclass
class Message:
    first: str
    headers: list  # (name, value)
    body: bytes = b""

    def get(self, name, default=None):
        for key, value in self.headers:
            if key.lower() == name:
                return value
        return default

    def head(self):
        lines = [self.first, *(f"{k}: {v}" for k, v in self.headers)]
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


async def read_body(reader, message, has_body):
    if not has_body:
        return b""
    if "chunked" in message.get("transfer-encoding", ""):
        parts = []
        while True:
            size = int((await reader.readline()).split(b";")[0], 16)
            parts.append(await reader.readexactly(size))
            await reader.readexactly(2)
            if size == 0:
                break
        message.headers = [(k, v) for k, v in message.headers if k.lower() != "transfer-encoding"]
        body = b"".join(parts)
        message.headers.append(("Content-Length", str(len(body))))
        return body
    size = int(message.get("content-length", "0"))
    assert size <= BODY_MAX
    return await reader.readexactly(size)


async def read_message(reader, has_body):
    """None at the end of the connection. has_body: a function of the message's head."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    lines = head.decode("latin-1").split("\r\n")
    headers = [tuple(part.strip() for part in line.split(":", 1)) for line in lines[1:] if line]
    message = Message(lines[0], headers)
    message.body = await read_body(reader, message, has_body(message))
    return message


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def encode(text, safe=""):
    return urllib.parse.quote(urllib.parse.unquote(text), safe=safe + "-_.~")


def check_signature(request, keys, tokens):
    """None, or the S3 error code of what is wrong."""
    method, target, _ = request.first.split(" ")
    authorization = request.get("authorization", "")
    if not authorization.startswith("AWS4-HMAC-SHA256 "):
        return "AccessDenied"
    fields = dict(part.strip().split("=", 1) for part in authorization.split(" ", 1)[1].split(","))
    who, date, region, service, end = fields["Credential"].split("/")
    names = fields["SignedHeaders"].split(";")
    if who not in keys:
        return "InvalidAccessKeyId"
    present = {k.lower() for k, _ in request.headers}
    must = {"host", "x-amz-content-sha256", "x-amz-date"}
    must |= {name for name in present if name.startswith("x-amz-")}
    if not must <= set(names) <= present or names != sorted(names):
        return "SignatureDoesNotMatch"
    token = request.get("x-amz-security-token")
    if who in tokens and token not in tokens[who]:
        return "ExpiredToken"
    payload = request.get("x-amz-content-sha256")
    if payload != hashlib.sha256(request.body).hexdigest():
        return "XAmzContentSHA256Mismatch"
    path, _, query = target.partition("?")
    pairs = [tuple(pair.partition("=")[::2]) for pair in query.split("&")] if query else []
    query = "&".join(f"{encode(k)}={encode(v)}" for k, v in sorted(pairs))
    canonical = "\n".join([method, encode(path, "/"), query,
                           *(f"{name}:{' '.join(request.get(name, '').split())}" for name in names),
                           "", ";".join(names), payload])
    scope = f"{date}/{region}/{service}/{end}"
    text = "\n".join(["AWS4-HMAC-SHA256", request.get("x-amz-date"), scope,
                      hashlib.sha256(canonical.encode()).hexdigest()])
    key = ("AWS4" + keys[who]).encode()
    for part in (date, region, service, end):
        key = sign(key, part)
    good = hmac.compare_digest(sign(key, text).hex(), fields["Signature"])
    return None if good else "SignatureDoesNotMatch"


def answer(status, code, method):
    body = (f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code>'
            f"<Message>by the test</Message></Error>").encode()
    message = Message(f"HTTP/1.1 {status} Because", [("Content-Type", "application/xml"),
                                                     ("Content-Length", str(len(body)))])
    message.body = b"" if method == "HEAD" else body
    return message


def page_of_uploads(request, reply):
    """Leaves of a list of uploads the page that was asked for."""
    query = dict(urllib.parse.parse_qsl(request.first.split(" ")[1].partition("?")[2],
                                        keep_blank_values=True))
    text = reply.body.decode()
    found = re.findall(r"<Upload>.*?</Upload>", text, re.S)

    def place(upload):
        key = urllib.parse.unquote(re.search("<Key>(.*?)</Key>", upload, re.S)[1])
        return key, re.search("<UploadId>(.*?)</UploadId>", upload, re.S)[1]
    after = (query.get("key-marker", ""), query.get("upload-id-marker", ""))
    rest = sorted((u for u in found if place(u) > after), key=place)
    page = rest[:int(query["max-uploads"])]
    head = f"<IsTruncated>{str(len(page) < len(rest)).lower()}</IsTruncated>"
    if page:
        key, number = place(page[-1])
        head += f"<NextKeyMarker>{urllib.parse.quote(key)}</NextKeyMarker>" \
                f"<NextUploadIdMarker>{number}</NextUploadIdMarker>"
    reply.body = ('<?xml version="1.0" encoding="UTF-8"?><ListMultipartUploadsResult>'
                  f"{head}{''.join(page)}</ListMultipartUploadsResult>").encode()
    reply.headers = [(k, v) for k, v in reply.headers if k.lower() != "content-length"]
    reply.headers.append(("Content-Length", str(len(reply.body))))


def is_batch(request):
    """DeleteObjects"""
    method, target, _ = request.first.split(" ")
    return method == "POST" and target.endswith("?delete=")


def spare_keys(request, count):
    """Takes the first keys out of a DeleteObjects, and returns them as they are written there."""
    objects = re.findall(rb"<Object><Key>(.*?)</Key></Object>", request.body, re.S)[:count]
    for key in objects:
        request.body = request.body.replace(b"<Object><Key>" + key + b"</Key></Object>", b"")
    request.headers = [(k, v) for k, v in request.headers
                       if k.lower() not in ("content-length", "content-md5")]
    request.headers.append(("Content-Length", str(len(request.body))))
    return objects


def result_of(keys):
    """What DeleteObjects answers that couldn't remove these."""
    errors = b"".join(b"<Error><Key>" + key + b"</Key><Code>InternalError</Code></Error>"
                      for key in keys)
    body = b'<DeleteResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">' + errors + \
        b"</DeleteResult>"
    return Message("HTTP/1.1 200 OK", [("Content-Type", "application/xml"),
                                       ("Content-Length", str(len(body)))], body)


class Proxy:
    """keys: {access key: secret}; tokens: {access key: set of good session tokens}. faults: {name:
    chance}; at most `in_a_row` faults befall requests of one kind for one target, one after the
    other, so that a client who tries that often gets through."""

    def __init__(self, upstream, keys, seed=0, faults=None, in_a_row=3):
        self.upstream = upstream  # (host, port)
        self.keys, self.tokens = dict(keys), {}
        self.random = random.Random(seed)
        self.faults, self.in_a_row = dict(faults or {}), in_a_row
        self.row = {}
        self.log = []  # (method, target, fault or status)
        self.counts = {}
        self.conditional = asyncio.Lock()
        self.stall_s = 6
        self.region = None  # where the bucket is said to be instead
        self.forgets_conditions = False  # as stores of before 2024 do
        self.forgets_conditions_of_parts = False  # as others do
        self.conflicts = 0  # so many CompleteMultipartUpload are answered 409
        self.pages_uploads = False  # lists of uploads are cut into pages, as moto doesn't
        self.refuses_batches = None  # (status, code) that DeleteObjects gets
        self.spares = 0  # so many of the objects of each it leaves, and says so
        self.ranges = []  # (target, first, last) of GETs
        self.parts = []  # (target without the number, number, size) of parts
        self.server = None
        self.tasks = set()

    async def start(self, tls=None):
        self.server = await asyncio.start_server(self.serve, "127.0.0.1", 0, limit=HEAD_MAX, ssl=tls)
        return self.server.sockets[0].getsockname()[1]

    async def stop(self):
        self.server.close()
        for task in list(self.tasks):
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    def choose(self, request):
        method, target, _ = request.first.split(" ")
        kind = (method, target.split("&X-")[0])
        completes = method == "POST" and "uploadId=" in target
        commits = completes or (method == "PUT" and request.get("if-none-match") == "*")
        for name, chance in self.faults.items():
            if self.random.random() >= chance or self.row.get(kind, 0) >= self.in_a_row:
                continue
            if (name == "error200" and not (completes or is_batch(request))) or (name == "lost_commit" and not commits):
                continue
            self.row[kind] = self.row.get(kind, 0) + 1
            return name
        self.row[kind] = 0
        return None

    def note(self, request, what):
        method, target, _ = request.first.split(" ")
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", request.get("range", ""))
        if found and method == "GET":
            self.ranges.append((target, int(found[1]), int(found[2])))
        found = re.search(r"partNumber=(\d+)", target)
        if found and method == "PUT":
            self.parts.append((target.replace(found[0], ""), int(found[1]), len(request.body)))
        self.log.append((method, target, what))
        self.counts[what] = self.counts.get(what, 0) + 1

    async def ask(self, request):
        reader, writer = await asyncio.open_connection(*self.upstream, limit=HEAD_MAX)
        try:
            without = ["connection", "expect"]
            if self.forgets_conditions or \
                    (self.forgets_conditions_of_parts and "uploadId=" in request.first):
                without.append("if-none-match")
            request.headers = [(k, v) for k, v in request.headers if k.lower() not in without]
            request.headers.append(("Connection", "close"))
            writer.write(request.head() + request.body)
            await writer.drain()
            method = request.first.split(" ")[0]
            empty = lambda m: method == "HEAD" or m.first.split(" ")[1] in ("204", "304")
            reply = await read_message(reader, lambda m: not empty(m))
            if reply is None:
                return answer(502, "BadGateway", method)
            reply.headers = [(k, v) for k, v in reply.headers if k.lower() not in
                             ("connection", "keep-alive")]
            return reply
        finally:
            writer.close()

    async def handle(self, request):
        """(answer or None for a reset, fault)."""
        method = request.first.split(" ")[0]
        wrong = check_signature(request, self.keys, self.tokens)
        if wrong is not None:
            self.note(request, wrong)
            return answer(400 if wrong == "ExpiredToken" else 403, wrong, method), None
        if self.region is not None:
            self.note(request, "redirect")
            reply = answer(301, "PermanentRedirect", method)
            reply.headers.append(("x-amz-bucket-region", self.region))
            return reply, None
        if self.conflicts > 0 and method == "POST" and "uploadId=" in request.first:
            self.conflicts -= 1
            self.note(request, "conflict")
            return answer(409, "ConditionalRequestConflict", method), None
        if is_batch(request):
            said, is_sum = request.get("content-md5"), hashlib.md5(request.body).digest()
            if said is None or base64.b64decode(said) != is_sum:
                self.note(request, "BadDigest")
                return answer(400, "BadDigest", method), None
            if self.refuses_batches is not None:
                self.note(request, "refused batch")
                return answer(*self.refuses_batches, method), None
        fault = self.choose(request)
        self.note(request, fault or "passed")
        if fault == "error500":
            return answer(500, "InternalError", method), fault
        if fault == "slowdown":
            return answer(503, "SlowDown", method), fault
        if fault == "error200":
            return answer(200, "InternalError", method), fault
        if fault == "reset":
            return None, fault
        if is_batch(request) and self.spares > 0:
            spared = spare_keys(request, self.spares)
            await self.ask(request)
            return result_of(spared), fault
        if request.get("if-none-match") == "*":
            async with self.conditional:  # the servers of the tests look first and write then
                reply = await self.ask(request)
        else:
            reply = await self.ask(request)
        if self.pages_uploads and method == "GET" and "uploads=" in request.first:
            page_of_uploads(request, reply)
        return (None if fault in ("lost", "lost_commit") else reply), fault

    async def send(self, writer, reply, fault):
        data = reply.head() + reply.body
        if fault == "cut":
            data = data[:max(1, len(data) * 2 // 3)]
        if fault == "stall":
            await asyncio.sleep(self.stall_s)
        if fault != "slow":
            writer.write(data)
            await writer.drain()
            return
        step = max(1, len(data) // 20)
        for at in range(0, len(data), step):
            writer.write(data[at:at + step])
            await writer.drain()
            await asyncio.sleep(0.01)

    async def serve(self, reader, writer):
        task = asyncio.current_task()
        self.tasks.add(task)
        try:
            while True:
                request = await read_message(reader, lambda m: True)
                if request is None:
                    break
                reply, fault = await self.handle(request)
                if reply is None:
                    writer.transport.abort()
                    break
                await self.send(writer, reply, fault)
                if fault == "cut":
                    writer.transport.abort()
                    break
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            writer.transport.abort()
        finally:
            self.tasks.discard(task)
            writer.close()
