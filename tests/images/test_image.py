"""The image for CPUs, with podman: what is in it, stops, kills and starts on one volume, /dev/shm.

Only in a full run, as root, where podman runs. CAIRN_IMAGE names an image that is there already; else it is built, from
CAIRN_IMAGE_BASE or from a Debian 12 that mmdebstrap makes. That takes half an hour on two cores."""
import json
import os
import re
import resource
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FULL = "CAIRN_TEST_FULL" in os.environ
NAME = f"cairn-test-{os.getpid()}"
BASE = "localhost/cairn-test-base:bookworm"
AT = 1500  # a step before which nothing is stopped
JOB = """\
name: job
model: {arch: mlp, hidden: 64, classes: 10}
data:
  train: {format: synthetic, samples: 384}
train:
  duration: 6000 steps
  global_batch: 24
  lanes: 4
  optimizer: {name: sgd, lr: 0.05, momentum: 0.9}
  seed: 17
workers: {count: 2, device: cpu}
checkpoint: {every: 500 steps, keep: {last: 2}, store: /var/lib/cairn/checkpoints}
"""


def run(*args, check=True, timeout=300, **more):
    done = subprocess.run(args, capture_output=True, text=True, check=False, timeout=timeout, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, args))}: exit {done.returncode}\n{done.stdout}{done.stderr}"[-6000:])
    return done


class Podman:
    """Some systems let podman raise no limits, or have control groups that only runc knows."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    runtimes = ([], ["--runtime", "runc"])
    limits = ([], ["--ulimit", f"nofile={hard}:{hard}", "--ulimit", "nproc=1000:1000"])

    def __init__(self):
        self.why = "only in a full run (CAIRN_TEST_FULL)" if not FULL else None
        if self.why is None and os.geteuid() != 0:
            self.why = "only as root"
        if self.why is None and shutil.which("podman") is None:
            self.why = "podman is not installed (apt-get install podman runc)"
        if self.why is None:
            self.why = self.find()

    def find(self):
        if run("podman", "image", "exists", BASE, check=False).returncode != 0:
            if "CAIRN_IMAGE_BASE" in os.environ:
                run("podman", "tag", os.environ["CAIRN_IMAGE_BASE"], BASE)
            elif shutil.which("mmdebstrap") is None:
                return "mmdebstrap is not installed, and CAIRN_IMAGE_BASE names no Debian 12"
            else:
                archive = f"/tmp/{NAME}.tar"
                run("mmdebstrap", "--variant=minbase", "bookworm", archive, timeout=3600)
                run("podman", "import", archive, BASE)
                Path(archive).unlink()
        for runtime in self.runtimes:
            for limits in self.limits:
                done = run("podman", *runtime, "run", "--rm", "--network=none", *limits, BASE, "true", check=False)
                if done.returncode == 0:
                    self.runtime, self.more = runtime, limits
                    return None
        return f"podman runs nothing here: {done.stderr.strip()}"

    def __call__(self, *args, **more):
        return run("podman", *self.runtime, *args, **more)

    def start(self, name, *args):
        """A container in the background."""
        self("run", "-d", "--name", name, "--network=none", *self.more, *args)

    def build(self):
        if "CAIRN_IMAGE" in os.environ:
            return os.environ["CAIRN_IMAGE"]
        tag = "localhost/cairn-test:cpu"
        self("build", "--network=host", *self.more[:2], "--build-arg", f"BASE={BASE}", "-t", tag,
             "-f", ROOT / "deploy/images/Containerfile.cpu", ROOT, timeout=5000)
        return tag


podman = Podman()
pytestmark = pytest.mark.skipif(podman.why is not None, reason=podman.why or "")


@pytest.fixture(scope="module", name="image")
def built_image():
    return podman.build()


def until(condition, seconds, what):
    end = time.monotonic() + 3 * seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within 3 * {seconds} s: {what}"
        time.sleep(0.1)
    return value


class Machine:
    """One container at a time on one volume."""

    def __init__(self, image, number):
        self.image, self.name = image, f"{NAME}-{number}"

    def __enter__(self):
        podman("volume", "create", self.name)
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            print(podman("logs", "--tail", "20", self.name, check=False).stdout)
        podman("rm", "-f", "-t", "1", self.name, check=False)
        podman("volume", "rm", "-f", self.name, check=False)

    def start(self, *args, command=()):
        podman.start(self.name, "-v", f"{self.name}:/var/lib/cairn", *args, self.image, *command)

    def again(self):
        podman("start", self.name)
        self.answers()

    def answers(self):
        until(lambda: self.cairn("ps", check=False).returncode == 0, 30, "the coordinator answers")

    def cairn(self, *args, **more):
        return podman("exec", "-i", self.name, "cairn", *args, **more)

    def submit(self, *sets):
        return self.cairn("submit", "-", *(f"--set={one}" for one in sets), "-o", "name", input=JOB).stdout.strip()

    def show(self, job):
        return json.loads(self.cairn("show", job, "-o", "json").stdout)

    def digest(self, job):
        shown = until(lambda: (s := self.show(job))["state"] in ("SUCCEEDED", "FAILED") and s, 120, "it ends")
        assert shown["state"] == "SUCCEEDED", shown
        assert shown["final_digest"] == self.cairn("ckpt", "digest", job).stdout.strip()
        return shown["final_digest"]

    def code(self):
        return int(podman("inspect", self.name, "--format", "{{.State.ExitCode}}").stdout)


@contextmanager
def up(image, number, *args):
    with Machine(image, number) as machine:
        machine.start(*args)
        machine.answers()
        yield machine


@pytest.fixture(scope="module", name="quiet")
def digest_of_an_undisturbed_run(image):
    with up(image, "quiet") as machine:
        return machine.digest(machine.submit())


def test_what_is_in_it(image):
    def inside(*command, **more):
        return podman("run", "--rm", "--network=none", *podman.more, image, *command, **more)
    size = int(podman("image", "inspect", image, "--format", "{{.Size}}").stdout)
    own = inside("sh", "-c", "du -cb /usr/bin/cairn* | tail -1").stdout.split()[0]
    print(f"size of the image: {size / 1e6:.0f} MB, of which {int(own) / 1e6:.0f} MB are the programs")
    assert inside("id", "-u").stdout.strip() == "10001"
    for tool in ("cc", "cmake", "ninja", "git", "python3"):
        assert inside("sh", "-c", f"command -v {tool}", check=False).returncode != 0, tool
    for program in ("cairn", "cairnd", "cairn-agent", "cairn-trainer", "cairn-observer"):
        assert "not found" not in inside("ldd", f"/usr/bin/{program}").stdout
    for program in ("cairn version", "cairnd --version", "cairn-agent --version"):
        assert re.search(r"\d+\.\d+\.\d+", inside(*program.split()).stdout), program


def test_a_container_that_is_stopped_and_started_loses_no_step(image, quiet):
    with up(image, "stop") as machine:
        job = machine.submit("checkpoint.every=100000 steps")
        until(lambda: machine.show(job)["step"] > AT, 60, "it trains")
        began = time.monotonic()
        podman("stop", "-t", "60", machine.name)
        print(f"podman stop took {time.monotonic() - began:.1f} s")
        assert machine.code() == 0
        machine.again()
        assert machine.digest(job) == quiet
        shown = machine.show(job)
        forming = [event["message"] for event in shown["events"] if event["kind"] == "forming"]
        assert len(forming) == 2 and int(re.search(r"from the checkpoint of step (\d+)", forming[1])[1]) > AT, forming
        assert shown["lost_seconds"].get("replay", 0) == 0


def test_a_container_that_is_killed_goes_on_from_its_newest_checkpoint(image, quiet):
    with up(image, "kill") as machine:
        job = machine.submit()
        until(lambda: machine.show(job)["step"] > AT, 60, "it trains")
        podman("kill", machine.name)
        assert machine.code() == 137
        machine.again()
        assert machine.digest(job) == quiet
        assert machine.show(job)["generation"] >= 2


def orphans(machine):
    """What the container's processes named sleep are: running, or dead and not taken away."""
    text = podman("exec", machine.name, "sh", "-c", "cat /proc/[0-9]*/stat").stdout
    return [line for line in text.splitlines() if "(sleep)" in line]


@pytest.mark.parametrize("command", [["cairnd"], ["cairn", "up", "--foreground"]])
def test_process_1_takes_away_the_dead_and_ends_when_it_is_told_to(image, command):
    with Machine(image, "one") as machine:
        machine.start(command=command)
        machine.answers()
        podman("exec", machine.name, "sh", "-c", "sleep 0.2 & sleep 0.2 & exit 0")
        until(lambda: not orphans(machine), 10, "they are taken away")
        podman("stop", "-t", "60", machine.name)
        assert machine.code() == 0


def test_an_agent_leaves_when_it_is_told_to_also_behind_an_init(image):
    with up(image, "first") as machine:
        def state():
            rows = map(json.loads, machine.cairn("node", "ls", "-o", "jsonl").stdout.splitlines())
            return next((row["state"] for row in rows if row["name"] == "second"), None)
        for init in ([], ["--init"] if shutil.which("catatonit") else []):
            name = f"{NAME}-agent"
            podman.start(name, *init, "-v", f"{machine.name}:/var/lib/cairn", image, "cairn-agent", "--name", "second",
                         "--slots", "1")
            try:
                until(lambda: state() == "ready", 20, "its node is ready")
                podman("stop", "-t", "60", name)
                assert int(podman("inspect", name, "--format", "{{.State.ExitCode}}").stdout) == 0
                assert state() == "left"
            finally:
                podman("rm", "-f", "-t", "1", name, check=False)


def test_copies_in_memory_want_more_than_the_usual_64_mb(image):
    sets = ["model.hidden=16384", "train.duration=100 steps", "checkpoint.every=1000 steps"]
    for size, holds in (([], False), (["--shm-size", "2g"], True)):
        with up(image, "shm", *size) as machine:
            job = machine.submit(*sets)
            shown = until(lambda: (s := machine.show(job))["step"] > 0 and s, 60, "it trains")
            assert (shown["memory_every"] > 0) == holds, shown["memory_reason"]
            assert any(event["kind"] == "copies" and "--shm-size=" in event["message"]
                       for event in shown["events"]) != holds
