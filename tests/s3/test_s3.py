"""The library's protocol and whole jobs on S3: real servers, a network that misbehaves between."""
import asyncio
import contextlib
import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
sys.path.insert(0, str(HERE.parent / "e2e"))
from home import Home, TINY, until  # noqa: E402
from proxy import Proxy  # noqa: E402
from servers import MODULES, Server, missing  # noqa: E402

PROTOCOL = os.environ.get("S3_PROTOCOL", str(HERE.parents[1] / "build/dev/tests/s3_protocol"))
FULL = "CAIRN_TEST_FULL" in os.environ
KEYS = {"AKIDCAIRNTEST": "wJalr/XUtnFEMI+K7MDENG", "AKIDSESSION": "of a session"}
BUCKET = "cairn-test"
# The last word of a step is the chance of one request to fail.
FAULTS = {
    "none": {},
    "errors": {"error200": 0.7, "error500": 0.1, "slowdown": 0.1},
    "network": {"reset": 0.1, "cut": 0.07, "lost": 0.07, "slow": 0.05},
    "lost_commit": {"lost_commit": 0.5},
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
def running_proxy(server, **options):
    """A proxy on a thread of its own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def call(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(30)

    async def make():
        proxy = Proxy(("127.0.0.1", server.port), KEYS, **options)
        proxy.port = await proxy.start()
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


def protocol(port, prefix, **more):
    done = subprocess.run([PROTOCOL], env=settings(port, CAIRN_TEST_S3=f"s3://{BUCKET}/{prefix}",
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


# ---- whole jobs ----

JOB_FAULTS = {"error500": 0.05, "slowdown": 0.05, "reset": 0.05, "cut": 0.03, "lost": 0.03,
              "lost_commit": 0.1}


def job_settings(port):
    return {k: v for k, v in settings(port).items() if k.startswith("AWS_") or k == "no_proxy"}


SETS = {"train__duration": "3000 steps", "checkpoint__every": "300 steps"}


@pytest.fixture(scope="module")
def quiet_digest():
    """Of the same job on a folder, without failures."""
    with Home() as home:
        return home.run(**SETS, seconds=120)


def good_steps(home, where):
    listed = json.loads(home.cairn("ckpt", "ls", where, "-o", "json", timeout=60).stdout)
    return [entry["step"] for entry in listed if entry["status"] == "good"]


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
        listed = good_steps(home, f"{store}/{job}")
        assert listed[0] == 3000 and len(listed) == 2, listed  # keep: {last: 2}
        home.cairn("ckpt", "verify", f"{store}/{job}", timeout=120)
        print(server.name, proxy.counts)
        secret = KEYS["AKIDCAIRNTEST"]
        for log in [*home.home.glob("log/*"), *home.home.glob("jobs/*/*/*.log")]:
            assert secret not in log.read_text(errors="replace"), log


def test_store_that_cannot_be_used_is_explained(server):
    with running_proxy(server) as proxy, Home(env=job_settings(proxy.port)) as home:
        job = home.submit(checkpoint__store="s3://no-such-bucket/jobs")
        reason = until(lambda: "NoSuchBucket" in home.show(job)["reason"] and home.show(job)["reason"],
                       60, "the reason names what S3 said")
        assert "checkpoint.store" in reason, reason
