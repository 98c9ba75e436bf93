#!/usr/bin/python3
"""Real S3 servers for the tests: moto and LocalStack, two implementations that share no code for S3.

    servers.py install    puts them into FOLDER (environment CAIRN_S3_SERVERS), each into a virtual
                          environment of its own; scripts/packages tests calls it
"""
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path

FOLDER = Path(os.environ.get("CAIRN_S3_SERVERS",
                             Path.home() / ".cache" / "cairn-tests" / "s3-servers"))
# What is installed: NAME.txt beside this file. moto knows conditional writes since 5.0.13; LocalStack's
# S3 is its own since 3.0, and its versions after 4 need a later Python than Debian 12's.
# The second, independent one takes minutes to install: in a full run only.
MODULES = {"moto": "moto.server"}
if "CAIRN_TEST_FULL" in os.environ:
    MODULES["localstack"] = "localstack.runtime.main"


def python(name):
    return FOLDER / name / "bin" / "python"


def missing(name):
    """Why the server can't be run; None if it can."""
    if not (FOLDER / name / "ready").exists():
        return f"{name} is not installed: run {Path(__file__).name} install"
    return None


def install(name):
    folder = FOLDER / name
    if missing(name) is None:
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["/usr/bin/python3", "-m", "venv", folder], check=True)
    subprocess.run([python(name), "-m", "pip", "install", "-q", "--disable-pip-version-check",
                    "-r", Path(__file__).with_name(f"{name}.txt")], check=True)
    (folder / "ready").touch()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """One server on a port of its own, with an empty store."""

    def __init__(self, name):
        self.name, self.port = name, free_port()
        self.home = Path(tempfile.mkdtemp(prefix="cairn-s3-"))
        self.log = open(self.home / "log", "wb")
        env = {k: v for k, v in os.environ.items() if not k.startswith(("AWS_", "CAIRN_"))}
        env.update(HOME=str(self.home), XDG_CACHE_HOME=str(self.home / "cache"))
        args = []
        if name == "moto":
            args = ["-H", "127.0.0.1", "-p", str(self.port)]
        else:
            env.update(SERVICES="s3", EAGER_SERVICE_LOADING="1", DISABLE_EVENTS="1",
                       GATEWAY_LISTEN=f"127.0.0.1:{self.port}", SKIP_SSL_CERT_DOWNLOAD="1",
                       LOCALSTACK_VOLUME_DIR=str(self.home / "volume"),
                       DNS_ADDRESS="0")
        self.process = subprocess.Popen([python(name), "-m", MODULES[name], *args], env=env,
                                        cwd=self.home, stdout=self.log, stderr=self.log)

    def wait(self, seconds=90):
        """Until a bucket can be made; names the log's end if that doesn't come."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and self.process.poll() is None:
            if self.make_bucket("cairn-test"):
                return self
            time.sleep(0.2)
        tail = (self.home / "log").read_text(errors="replace")[-2000:]
        self.stop()
        raise RuntimeError(f"{self.name} does not start:\n{tail}")

    def request(self, method, path, headers=None, data=None):
        scope = "x/20260101/us-east-1/s3/aws4_request"  # neither server checks it, both look at it
        headers = {"Authorization": f"AWS4-HMAC-SHA256 Credential={scope}, SignedHeaders=host, "
                                    "Signature=x", "x-amz-date": "20260101T000000Z",
                   **(headers or {})}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         headers=headers, data=data)
        with urllib.request.urlopen(request, timeout=10) as reply:
            return reply.read()

    def make_bucket(self, name):
        try:
            self.request("PUT", f"/{name}")
            return True
        except (OSError, urllib.error.URLError):
            return False

    def uploads(self, bucket):
        """Parts that were sent and neither completed nor aborted."""
        return self.request("GET", f"/{bucket}?uploads=").count(b"<UploadId>")

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.log.close()
        shutil.rmtree(self.home, ignore_errors=True)


if __name__ == "__main__":
    if sys.argv[1:] != ["install"]:
        sys.exit(__doc__)
    for server in MODULES:
        install(server)
