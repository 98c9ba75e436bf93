"""A node that reads damage where the coordinator reads a good checkpoint: the node is suspected, not the checkpoint."""
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

import pytest

from home import BIN, Home, until

LONG = {"train__duration": "400 steps", "checkpoint__every": "400 steps"}  # so that it is paused before its end


@contextmanager
def node(home, name, slots, seen=None):
    """Another node; seen: (folder, other): where it sees the other's files in place of the folder's."""
    command = [BIN / "cairn-agent", "--name", name, "--slots", str(slots)]
    if seen is not None:
        command = ["unshare", "-m", "sh", "-c", 'mount --bind "$0" "$1" && shift && exec "$@"', seen[1], seen[0], *command]
    with subprocess.Popen(command, env=home.env, cwd=home.dir, stderr=subprocess.DEVNULL) as agent:
        try:
            yield agent
        finally:
            agent.terminate()


def can_mount(home):
    made = [home.dir / "a", home.dir / "b"]
    for folder in made:
        folder.mkdir()
    tried = subprocess.run(["unshare", "-m", "mount", "--bind", *made], capture_output=True, check=False)
    return tried.returncode == 0


def messages(home, job):
    return [event["message"] for event in home.show(job)["events"]]


def nodes_of(home, job):
    return {worker["node"] for worker in home.show(job)["workers"]}


def ready(home):
    return {line.split()[0] for line in home.cairn("node", "ls").stdout.splitlines() if " ready" in line}


def paused_on_another(home):
    """A job that ran on `another` and waits with a checkpoint: its name and the checkpoint's folder."""
    with node(home, "another", 2):
        job = home.submit(**LONG)
        home.wait_hit("trainer.forward")
        assert nodes_of(home, job) == {"another"}
        home.cairn("pause", job)
        home.go("trainer.forward")
        shown = home.wait_state(job, "PAUSED")
    until(lambda: "another" not in ready(home), 30, "the other node left")
    return job, Path(shown["checkpoints"][0]["path"])


def other_view(home, folder):
    """A copy of a checkpoint's folder with a flipped bit in a shard."""
    bad = home.dir / "other-view"
    shutil.copytree(folder, bad)
    shard = sorted(bad.glob("shard-*.cairn"))[0]
    data = bytearray(shard.read_bytes())
    data[len(data) // 2] ^= 1
    shard.write_bytes(bytes(data))
    return folder, bad


def test_the_workers_go_to_another_node_and_the_checkpoint_stays():
    with Home() as home:
        quiet = home.run(**LONG)
    with Home(faults="trainer.forward,rank=0,step=6:wait", slots=1) as home:
        if not can_mount(home):
            pytest.skip("no mount namespace of our own")
        job, folder = paused_on_another(home)
        # The tightest fit is chosen first.
        with node(home, "third", 3), node(home, "another", 2, other_view(home, folder)):
            until(lambda: ready(home) >= {"another", "third"}, 20, "three nodes")
            home.cairn("resume", job)
            assert home.digest(job) == quiet
            said = messages(home, job)
            assert sum("reads well here: node another," in text for text in said) == 1, said
            assert home.show(job)["restarts"] == 1, said
            assert folder.is_dir() and home.cairn("ckpt", "verify", folder).returncode == 0
