"""The library's protocol and whole jobs on S3: real servers, a network that misbehaves between."""
import asyncio
import contextlib
import http.server
import json
import os
import re
import ssl
import subprocess
import sys
import threading
import urllib.parse
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "e2e"))
from home import BIN, Home, until  # noqa: E402
from proxy import Proxy  # noqa: E402
from servers import MODULES, Server, free_port, missing  # noqa: E402

PROGRAMS = Path(os.environ.get("S3_PROGRAMS", HERE.parents[1] / "build/dev/tests"))
FULL = "CAIRN_TEST_FULL" in os.environ
KEYS = {"AKIDCAIRNTEST": "wJalr/XUtnFEMI+K7MDENG", "AKIDSESSION": "of a session"}
BUCKET = "cairn-test"
SAMPLE = 12  # of a run (sampled.py)
# The last word of a step is the chance of one request to fail.
FAULTS = {
    "none": {},
    "errors": {"error200": 0.7, "error500": 0.1, "slowdown": 0.1},
    "network": {"reset": 0.1, "cut": 0.07, "lost": 0.07, "slow": 0.05},
    "lost_commit": {"lost_commit": 0.5},
    "stall": {"stall": 0.01},
}


@pytest.fixture(scope="module", params=list(MODULES))
def server(request):
    why = missing(request.param)
    if why is not None:
        pytest.skip(why)
    running = Server(request.param).wait()
    yield running
    running.stop()


@contextlib.contextmanager
def running_proxy(server, tls=None, **options):
    """A proxy on a thread of its own. tls: the context of a server."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def make():
        proxy = Proxy(("127.0.0.1", server.port), KEYS, **options)
        proxy.port = await proxy.start(tls)
        return proxy
    proxy = call(make())
    try:
        yield proxy
    finally:
        call(proxy.stop())
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


def settings(port, **more):
    env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CAIRN_TEST_S3"))}
    env.update(AWS_ACCESS_KEY_ID="AKIDCAIRNTEST", AWS_SECRET_ACCESS_KEY=KEYS["AKIDCAIRNTEST"],
               AWS_REGION="eu-west-3", AWS_ENDPOINT_URL_S3=f"http://127.0.0.1:{port}",
               AWS_CONFIG_FILE="/nonexistent", AWS_SHARED_CREDENTIALS_FILE="/nonexistent",
               AWS_EC2_METADATA_DISABLED="true", no_proxy="127.0.0.1")
    env.update(more)
    return env


def protocol(port, prefix, alone=None, **more):
    """alone: one test of those whose requests are counted."""
    program = [PROGRAMS / "s3_counted", alone] if alone else [PROGRAMS / "s3_protocol"]
    done = subprocess.run(program, env=settings(port, CAIRN_TEST_S3=f"s3://{BUCKET}/{prefix}",
                                                   CAIRN_TEST_S3_CHECKED="1", **more),
                          capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]


@pytest.mark.parametrize("faults", FAULTS)
@pytest.mark.parametrize("seed", range(8) if FULL else range(1))
def test_protocol_holds(server, faults, seed):
    with running_proxy(server, seed=seed, faults=FAULTS[faults]) as proxy:
        protocol(proxy.port, f"{faults}-{seed}")
        print(server.name, faults, seed, proxy.counts)
        for name in FAULTS[faults]:
            assert proxy.counts.get(name, 0) > 0, f"{name} never happened"
        refused = [entry for entry in proxy.log if entry[2] == "SignatureDoesNotMatch"]
        assert all(entry[1] == f"/{BUCKET}/x" for entry in refused), refused[:3]
    if faults in ("none", "lost_commit"):  # else an abort, or an upload's number, may be lost
        assert server.uploads(BUCKET) == 0


def test_no_byte_of_a_file_is_read_twice(server):
    with running_proxy(server) as proxy:
        protocol(proxy.port, "reads", "each_way_of_reading_asks_for_a_byte_once")
        read = {}
        for target, first, last in proxy.ranges:
            read.setdefault(target, []).append((first, last))
        shards = [target for target in read if "/shard-" in target]
        assert len(shards) == 18, read.keys()
        for target in shards:
            ranges = sorted(read[target])
            twice = [(a, b) for a, b in zip(ranges, ranges[1:]) if a[1] >= b[0]]
            assert not twice, (target, twice)
        total = sum(last - first + 1 for target in shards for first, last in read[target])
        print("requests", sum(len(read[t]) for t in shards), "bytes", total)


def test_parts_are_equally_long_but_for_the_last(server):
    with running_proxy(server) as proxy:
        protocol(proxy.port, "parts", "parts_of_a_file_that_may_get_long_are_equal")
        uploads = {}
        for upload, number, size in proxy.parts:
            uploads.setdefault(upload, {})[number] = size
        sizes = sorted([size for _, size in sorted(parts.items())] for parts in uploads.values())
        assert sizes == [[5 << 20] * 3 + [2 << 20], [6 << 20] * 2 + [5 << 20]], sizes


def test_uploads_are_begun_anew_after_a_conflict(server):
    with running_proxy(server) as proxy:
        proxy.conflicts = 2
        protocol(proxy.port, "again", "shard_is_written_anew_when_the_store_says_so")
        assert proxy.counts["conflict"] == 2, proxy.counts
        assert server.uploads(BUCKET) == 0


def test_uploads_of_the_dead_are_given_up_over_pages(server):
    with running_proxy(server) as proxy:
        proxy.pages_uploads = True
        protocol(proxy.port, "sweep", "all_parts_of_killed_workers_are_given_up")
        assert server.uploads(BUCKET) == 0


def test_completing_an_upload_over_a_file_is_tried(server):
    with running_proxy(server) as proxy:
        protocol(proxy.port, "probe", "store_is_tried_with_both_kinds_of_writes")
        proxy.forgets_conditions_of_parts = True
        protocol(proxy.port, "unsafe", "store_is_tried_with_both_kinds_of_writes",
                 CAIRN_TEST_S3_UNSAFE="1")
        assert server.uploads(BUCKET) == 0


def requests_of_many_files(proxy, prefix, files):
    """What isn't a PUT: {kind: how many}. Of two folders, of one if there are a thousand files."""
    protocol(proxy.port, prefix, "checkpoint_of_many_files_is_checked_and_removed",
             CAIRN_TEST_S3_FILES=str(files))
    kinds = {}
    for method, target, _ in proxy.log:
        kind = "batch" if target.endswith("?delete=") else "list" if "list-type=2" in target else method
        kinds[kind] = kinds.get(kind, 0) + 1
    assert kinds.pop("PUT") == (2 if files < 1000 else 1) * files
    return kinds


def test_a_thousand_files_take_a_few_requests(server):
    with running_proxy(server) as proxy:
        kinds = requests_of_many_files(proxy, "many", 1000)
        # A list to check; to remove it a HEAD and a list that look for it, the manifest, a list of
        # the files, and they; and a list of the job's folders afterwards.
        assert kinds == {"list": 4, "HEAD": 1, "DELETE": 1, "batch": 1}, kinds


@pytest.mark.parametrize("refusal", [(501, "NotImplemented"), (400, "MalformedXML"),
                                     (405, "MethodNotAllowed")])
def test_files_go_one_by_one_where_the_store_cannot_remove_many(moto, refusal):
    with running_proxy(moto) as proxy:
        proxy.refuses_batches = refusal
        kinds = requests_of_many_files(proxy, f"singly-{refusal[0]}", 40)
        assert kinds["batch"] == 1, kinds  # it is remembered
        assert kinds["DELETE"] == 2 * 41, kinds


def test_files_that_a_store_did_not_remove_are_removed_alone(moto):
    with running_proxy(moto) as proxy:
        proxy.spares = 5
        kinds = requests_of_many_files(proxy, "spared", 40)
        assert kinds["batch"] == 2 and kinds["DELETE"] == 2 * 6, kinds


# ---- who we are, and where ----


def ls(port, **more):
    """cairn ckpt ls of a folder in S3: (exit status, what it says)."""
    env = {k: v for k, v in settings(port, **more).items() if v is not None}
    done = subprocess.run([BIN / "cairn", "ckpt", "ls", f"s3://{BUCKET}/ls/j-1"], env=env,
                          capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout + done.stderr


def assert_reached(code, said):
    """The store has answered, and has nothing there."""
    assert code == 3 and "there is no checkpoint here" in said, said


NO_KEYS = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}


@pytest.fixture(scope="module", name="moto")
def one_moto():
    why = missing("moto")
    if why is not None:
        pytest.skip(why)
    running = Server("moto").wait()
    yield running
    running.stop()


def write_profile(path, token):
    """As a whole: the file is read at any moment."""
    text = (f"[default]\naws_access_key_id = AKIDSESSION\n"
            f"aws_secret_access_key = {KEYS['AKIDSESSION']}\naws_session_token = {token}\n")
    beside = path.with_name("new")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)


def test_session_tokens_are_signed_and_renewed_when_they_expire(moto, tmp_path):
    path = tmp_path / "credentials"
    with running_proxy(moto) as proxy:
        proxy.tokens = {"AKIDSESSION": {"token-0"}}
        write_profile(path, "token-0")
        ending = threading.Event()

        def rotate():
            number = 0
            while not ending.wait(0.5):
                number += 1
                old, new = f"token-{number - 1}", f"token-{number}"
                proxy.tokens = {"AKIDSESSION": {old, new}}
                write_profile(path, new)
                proxy.tokens = {"AKIDSESSION": {new}}  # from now on the old one is refused
        thread = threading.Thread(target=rotate)
        thread.start()
        try:
            protocol(proxy.port, "tokens", AWS_SHARED_CREDENTIALS_FILE=str(path), **NO_KEYS)
        finally:
            ending.set()
            thread.join()
        assert proxy.counts.get("ExpiredToken", 0) > 2, proxy.counts


def test_expired_credentials_are_told_with_a_way_out(moto, tmp_path):
    path = tmp_path / "credentials"
    write_profile(path, "old")
    with running_proxy(moto) as proxy:
        proxy.tokens = {"AKIDSESSION": {"new"}}
        code, said = ls(proxy.port, AWS_SHARED_CREDENTIALS_FILE=str(path), **NO_KEYS)
        assert code != 0 and "ExpiredToken" in said and "renew" in said, said
        assert "old" not in said and KEYS["AKIDSESSION"] not in said, said
        write_profile(path, "new")
        assert_reached(*ls(proxy.port, AWS_SHARED_CREDENTIALS_FILE=str(path), **NO_KEYS))


def test_missing_credentials_are_told(moto):
    with running_proxy(moto) as proxy:
        code, said = ls(proxy.port, **NO_KEYS)
        assert code != 0 and "AWS_ACCESS_KEY_ID" in said, said
        assert not proxy.log


def test_credentials_of_a_container_are_asked_for(moto):
    asked = []

    class Role(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append((self.path, self.headers["Authorization"]))
            body = json.dumps({"AccessKeyId": "AKIDSESSION", "SecretAccessKey": KEYS["AKIDSESSION"],
                               "Token": "of the role", "Expiration": "2099-01-01T00:00:00Z"}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass
    role = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Role)
    thread = threading.Thread(target=role.serve_forever)
    thread.start()
    try:
        with running_proxy(moto) as proxy:
            proxy.tokens = {"AKIDSESSION": {"of the role"}}
            url = f"http://127.0.0.1:{role.server_port}/who"
            code, said = ls(proxy.port, AWS_CONTAINER_CREDENTIALS_FULL_URI=url,
                            AWS_CONTAINER_AUTHORIZATION_TOKEN="let me in", **NO_KEYS)
            assert_reached(code, said)
            assert asked == [("/who", "let me in")]
    finally:
        role.shutdown()
        thread.join()
        role.server_close()


STS_REPLY = """<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">
<AssumeRoleWithWebIdentityResult><Credentials><SessionToken>of the token</SessionToken>
<SecretAccessKey>{secret}</SecretAccessKey><Expiration>2099-01-01T00:00:00Z</Expiration>
<AccessKeyId>AKIDSESSION</AccessKeyId></Credentials></AssumeRoleWithWebIdentityResult>
</AssumeRoleWithWebIdentityResponse>"""


@contextlib.contextmanager
def running_sts(token):
    """An STS that knows one token; yields its address and what it was asked for."""
    asked = []

    class Sts(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"])).decode()
            asked.append(dict(urllib.parse.parse_qsl(body, strict_parsing=True)))
            good = asked[-1]["WebIdentityToken"] == token
            reply = STS_REPLY.format(secret=KEYS["AKIDSESSION"]) if good else "<ErrorResponse/>"
            self.send_response(200 if good else 400)
            self.send_header("Content-Length", str(len(reply)))
            self.end_headers()
            self.wfile.write(reply.encode())

        def log_message(self, *_):
            pass
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Sts)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{running.server_port}", asked
    finally:
        running.shutdown()
        thread.join()
        running.server_close()


def test_a_web_identity_token_is_changed_for_credentials(moto, tmp_path):
    path = tmp_path / "token"
    path.write_text("a.web+token/of=the pod\n", encoding="utf-8")
    role = {"AWS_WEB_IDENTITY_TOKEN_FILE": str(path), "AWS_ROLE_ARN": "arn:aws:iam::1:role/pod", **NO_KEYS}
    with running_proxy(moto) as proxy, running_sts("a.web+token/of=the pod") as (sts, asked):
        proxy.tokens = {"AKIDSESSION": {"of the token"}}
        code, said = ls(proxy.port, AWS_ENDPOINT_URL_STS=sts, **role)
        assert_reached(code, said)
        assert asked == [{"Action": "AssumeRoleWithWebIdentity", "Version": "2011-06-15",
                          "RoleArn": "arn:aws:iam::1:role/pod", "RoleSessionName": "cairn",
                          "WebIdentityToken": "a.web+token/of=the pod"}]
        # what can't work is said; nobody else's role is taken
        code, said = ls(proxy.port, AWS_ENDPOINT_URL_STS=sts, **{**role, "AWS_ROLE_ARN": None})
        assert code != 0 and "AWS_ROLE_ARN" in said, said
        path.write_text("another", encoding="utf-8")
        code, said = ls(proxy.port, AWS_ENDPOINT_URL_STS=sts, **role)
        assert code != 0 and "STS refuses" in said and "another" not in said, said
        code, said = ls(proxy.port, AWS_ENDPOINT_URL_STS=f"http://127.0.0.1:{free_port()}", **role)
        assert code != 0 and "STS" in said and "doesn't answer" in said, said
        path.unlink()
        code, said = ls(proxy.port, AWS_ENDPOINT_URL_STS=sts, **role)
        assert code != 0 and "AWS_WEB_IDENTITY_TOKEN_FILE" in said, said


def test_bucket_in_another_region_is_told(moto):
    with running_proxy(moto) as proxy:
        proxy.region = "eu-north-1"
        code, said = ls(proxy.port)
        assert code not in (0, 3) and "set AWS_REGION to eu-north-1" in said, said
        assert len(proxy.log) == 1, "it isn't tried again"


def test_store_that_is_not_there_is_told(moto):
    code, said = ls(free_port())
    assert code != 0 and "AWS_ENDPOINT_URL_S3" in said and "attempts" in said, said


def test_certificates_are_checked(moto, tmp_path):
    made = subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1",
                           "-keyout", tmp_path / "key", "-out", tmp_path / "cert", "-subj", "/CN=x",
                           "-addext", "subjectAltName=IP:127.0.0.1"], capture_output=True, check=False)
    assert made.returncode == 0, made.stderr
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    with running_proxy(moto, tls=tls) as proxy:
        address = f"https://127.0.0.1:{proxy.port}"
        code, said = ls(proxy.port, AWS_ENDPOINT_URL_S3=address)
        assert code != 0 and "AWS_CA_BUNDLE" in said, said
        assert not proxy.log
        protocol(proxy.port, "tls", AWS_ENDPOINT_URL_S3=address,
                 AWS_CA_BUNDLE=str(tmp_path / "cert"))


# ---- whole jobs ----

JOB_FAULTS = {"error500": 0.05, "slowdown": 0.05, "reset": 0.05, "cut": 0.03, "lost": 0.03,
              "lost_commit": 0.1}


def job_settings(port):
    return {k: v for k, v in settings(port).items() if k.startswith("AWS_") or k == "no_proxy"}


SETS = {"train__duration": "3000 steps", "checkpoint__every": "300 steps",
        "checkpoint__delta": "true"}


@pytest.fixture(scope="module")
def quiet_digest():
    """Of the same job on a folder, without failures."""
    with Home() as home:
        return home.run(**SETS, seconds=120)


def good_entries(home, where):
    listed = json.loads(home.cairn("ckpt", "ls", where, "-o", "json", timeout=60).stdout)
    return [entry for entry in listed if entry["status"] == "good"]


def good_steps(home, where):
    return [entry["step"] for entry in good_entries(home, where)]


def last_and_their_parents(entries, last):
    """Steps of the last so many, and of all that these are read through."""
    parents = {entry["step"]: entry["parent_step"] for entry in entries if entry["parent_generation"]}
    needed = sorted((entry["step"] for entry in entries), reverse=True)[:last]
    for step in needed:
        if parents.get(step, step) not in needed:
            needed.append(parents[step])
    return set(needed)


def test_job_that_is_killed_goes_on_from_s3(server, quiet_digest):
    with running_proxy(server, seed=7, faults=JOB_FAULTS) as proxy, \
            Home(env=job_settings(proxy.port)) as home:
        store = f"s3://{BUCKET}/jobs"
        job = home.submit(checkpoint__store=store, **SETS)
        until(lambda: len(good_steps(home, job)) >= 2, 60, "two checkpoints in S3")
        home.kill("cairn-trainer")
        until(lambda: home.show(job)["restarts"] >= 1, 30, "the workers were replaced")
        before = max(good_steps(home, job))
        until(lambda: max(good_steps(home, job)) > before, 60, "a checkpoint after the restart")
        home.kill("cairnd")
        home.cairn("up", "--slots", "4")
        assert home.digest(job, seconds=180) == quiet_digest
        started = [int(found) for log in home.home.glob("jobs/*/*/*.log")
                   for found in re.findall(r"training from step (\d+)", log.read_text())]
        assert max(started) >= 300, "it began anew rather than from S3"
        # by the folder's name, without a coordinator
        def retained():
            listed = good_entries(home, f"{store}/{job}")
            return listed[0]["step"] == 3000 and \
                {entry["step"] for entry in listed} == last_and_their_parents(listed, 2)

        until(retained, 60, "the last two stay, and what they are read through")
        home.cairn("ckpt", "verify", f"{store}/{job}", timeout=120)
        print(server.name, proxy.counts)
        secret = KEYS["AKIDCAIRNTEST"]
        for log in [*home.home.glob("log/*"), *home.home.glob("jobs/*/*/*.log")]:
            assert secret not in log.read_text(errors="replace"), log


def test_workers_wait_for_a_store_that_refuses_them_while_they_restore(server, quiet_digest):
    with running_proxy(server) as proxy, \
            Home(env=job_settings(proxy.port), faults="trainer.forward,rank=0,step=1000:wait") as home:
        job = home.submit(checkpoint__store=f"s3://{BUCKET}/waited", **SETS)
        home.wait_hit("trainer.forward")
        until(lambda: 900 in good_steps(home, job), 30, "all that can be saved is")
        proxy.region = "eu-north-1"  # no request helps, whoever makes it
        home.kill("cairn-trainer")
        until(lambda: "waits for the checkpoint store" in home.show(job)["reason"], 60, "it waits")
        told = [e["message"] for e in home.show(job)["events"]]
        assert any("cannot read the checkpoint store" in text for text in told), told
        proxy.region = None
        assert home.digest(job, seconds=180) == quiet_digest
        assert not any(e["kind"] == "damaged" for e in home.show(job)["events"])


def test_store_that_cannot_be_used_is_explained(server):
    with running_proxy(server) as proxy, Home(env=job_settings(proxy.port)) as home:
        job = home.submit(checkpoint__store="s3://no-such-bucket/jobs")
        reason = until(lambda: "NoSuchBucket" in home.show(job)["reason"] and home.show(job)["reason"],
                       60, "the reason names what S3 said")
        assert "checkpoint.store" in reason, reason
        proxy.forgets_conditions = True
        job = home.submit(checkpoint__store=f"s3://{BUCKET}/unsafe")
        reason = until(lambda: "If-None-Match" in home.show(job)["reason"] and
                       home.show(job)["reason"], 60, "the reason names what the store can't do")
        assert "writes over" in reason, reason


def test_a_lost_journal_is_made_anew_from_s3(server, quiet_digest):
    with running_proxy(server) as proxy, \
            Home(env=dict(job_settings(proxy.port), CAIRN_HANG_MS="60000"),
                 faults="trainer.forward,rank=0,step=1000:wait") as home:
        store = f"s3://{BUCKET}/recovered"
        job = home.submit(checkpoint__store=store, **SETS)
        home.wait_hit("trainer.forward")
        until(lambda: 600 in good_steps(home, job), 60, "two checkpoints")
        home.end_everything()
        (home.home / "state" / "cairnd.db").unlink()
        assert home.cairn("up", check=False).returncode == 4
        done = subprocess.run([BIN / "cairnd", "--recover", store + "/"], env=home.env, capture_output=True, text=True,
                              timeout=60, check=False)
        assert done.returncode == 0 and job in done.stdout, done.stdout + done.stderr
        home.cairn("up", "--slots", "4")
        home.go("trainer.forward")
        home.cairn("resume", job)
        assert home.digest(job, seconds=180) == quiet_digest
        assert int(home.show(job)["generation"]) > 1000000
