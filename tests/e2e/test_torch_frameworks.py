"""Jobs of people's frameworks with the package's callbacks, of sharded states through DCP, and of a number of workers that changes: what
is killed, damaged or resized ends with the bits of the run that was not. PyTorch is installed by a full run (CAIRN_PEER); without it these
are skipped."""
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from home import BIN, ROOT, Home, until

os.environ.setdefault("CAIRN_PYTHON", str(Path(BIN).parent / "python"))
sys.path.insert(0, str(ROOT / "tests/python"))
import torch_peer  # noqa: E402  # pylint: disable=wrong-import-position
from test_guide import listings, weights  # noqa: E402  # pylint: disable=wrong-import-position

SAMPLE = 2
PACKAGE = os.environ["CAIRN_PYTHON"]
PRELOAD = {"lightning": "lightning.pytorch", "transformers": "transformers", "accelerate": "accelerate"}
pytestmark = torch_peer.needs_peer


def text(size, run, every=5, more="", env=""):
    words = ", ".join(f'"{word}"' for word in run)
    return f"""\
name: mine
command:
  run: [{torch_peer.PYTHON}, {words}]
  env: {{PYTHONPATH: "{PACKAGE}"{env}}}{more}
workers: {{count: {size}}}
checkpoint: {{every: {every} steps, keep: {{last: 9}}, store: checkpoints/, memory_every: 1 step}}
"""


def output(home, job):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{job}/*/*.log")))


def await_steps(home, job, step):
    until(lambda: home.show(job)["step"] >= step, 120, f"step {step}")


def programs(home):
    """Of all ranks: each worker's youngest child."""
    found = []
    for pid in home.pids("cairn-trainer"):
        found.append(int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()[-1]))
    return found


@pytest.fixture(scope="module", name="quiet")
def quiet_digests():
    """What a program prints on so many processes without Cairn, each run once."""
    known = {}

    def digest_of(size, folder, *run):
        if (size, run) not in known:
            known[size, run] = torch_peer.digest(torch_peer.run_ranks(size, *run, cwd=folder)[0])
        return known[size, run]
    return digest_of


@pytest.mark.parametrize("killed", ("one", "all"))
@pytest.mark.parametrize("framework", PRELOAD)
def test_a_framework_that_is_killed_in_an_epoch_has_the_bits_of_a_quiet_run(framework, killed, quiet, tmp_path):
    """The second of three epochs: steps 8 to 15 of Lightning's, of all 22 steps of the others. One rank is gone in its forward pass, or
    both whenever it is."""
    mark = tmp_path / "killed"
    run = (str(torch_peer.PROGRAMS / "frameworks.py"), framework, "11", "1")
    env = f', KILL_MARK: "{mark}"' if killed == "one" else ', SLOW: "0.2"'
    with Home(slots=2) as home:
        job = home.submit(text(2, run, more=f"\n  preload: [torch, torch._dynamo, {PRELOAD[framework]}]", env=env))
        if killed == "all":
            await_steps(home, job, 10)
            for pid in programs(home):
                os.kill(pid, signal.SIGKILL)
        shown = home.wait_state(job, "SUCCEEDED", seconds=300)
        assert killed == "all" or mark.exists()
        assert shown["restarts"] == 1
        assert torch_peer.digest(output(home, job)) == quiet(2, tmp_path, *run), output(home, job)[-3000:]
        home.cairn("ckpt", "verify", job)


def test_keras_that_is_killed_in_an_epoch_has_the_bits_of_a_quiet_run(quiet, tmp_path):
    """Its fit() trains in one process. Step 11 of 24 is in the second epoch of three."""
    if not torch_peer.has("keras"):
        pytest.skip("Keras is no part of this environment")
    mark = tmp_path / "killed"
    run = (str(torch_peer.PROGRAMS / "frameworks.py"), "keras", "11", "1")
    with Home(slots=1) as home:
        job = home.submit(text(1, run, more="\n  preload: [torch, torch._dynamo]", env=f', KILL_MARK: "{mark}"'))
        shown = home.wait_state(job, "SUCCEEDED", seconds=300)
        assert mark.exists() and shown["restarts"] == 1 and shown["step"] == 24
        assert torch_peer.digest(output(home, job)) == quiet(1, tmp_path, *run), output(home, job)[-3000:]
        home.cairn("ckpt", "verify", job)


def exported(home, job, path):
    """The client names the way out, which writes whole tensors, as they are read."""
    done = home.cairn("ckpt", "export", job, "out.safetensors", check=False)
    assert done.returncode == 4 and f"'python3 -m cairn export {path} out.safetensors' writes all" in done.stderr, done.stderr
    subprocess.run([torch_peer.PYTHON, "-m", "cairn", "export", path, "out.safetensors", "--part", "model"], cwd=home.dir, check=True,
                   env=torch_peer.environment())
    compare = ("import sys, torch, cairn.torch, safetensors.torch; got = safetensors.torch.load_file('out.safetensors'); "
               "want = cairn.torch.load(sys.argv[1]).under('model.'); assert sorted(got) == sorted(want) and len(got) == 4, got; "
               "assert all(torch.equal(got[name], want[name]) for name in got)")
    subprocess.run([torch_peer.PYTHON, "-c", compare, path], cwd=home.dir, check=True, env=torch_peer.environment())


def test_a_state_that_four_saved_by_dcp_is_read_by_two(quiet, tmp_path):
    """FSDP2 over two processes and tensor parallelism over two; one of them is killed, and the others go on from what DCP reads."""
    run = (str(torch_peer.PROGRAMS / "sharded.py"), "plan", "16")
    with Home() as home:
        job = home.submit(text(4, run, env=', SLOW: "0.2"'))
        await_steps(home, job, 7)
        os.kill(programs(home)[1], signal.SIGKILL)
        shown = home.wait_state(job, "SUCCEEDED", seconds=300)
        assert shown["restarts"] == 1
        digest = torch_peer.digest(output(home, job))
        assert digest == quiet(4, tmp_path, *run)
        home.cairn("ckpt", "verify", f"{job}@all")
        assert home.cairn("ckpt", "digest", job).stdout.strip() == shown["final_digest"]
        assert home.cairn("ckpt", "diff", job, job, "-q").returncode == 0
        done = home.cairn("ckpt", "diff", f"{job}@15", f"{job}@16", check=False)
        assert done.returncode == 1 and re.search(r"^\(ranks\) .*\n.*different: 1 of 1 ", done.stdout, re.M), done.stdout + done.stderr
        path = shown["checkpoints"][0]["path"]
        exported(home, job, path)
        for size in (2, 1):
            read = torch_peer.run_ranks(size, torch_peer.PROGRAMS / "sharded.py", "load", "16", path)[0]
            assert torch_peer.digest(read) == digest, size


def test_where_the_newest_checkpoint_has_a_flipped_byte_the_one_before_is_used(quiet, tmp_path):
    """It is told in the events, and the bits are those of a quiet run."""
    run = (str(torch_peer.PROGRAMS / "frameworks.py"), "accelerate", "-1", "1")
    with Home(slots=2) as home:
        job = home.submit(text(2, run, env=', SLOW: "0.2"').replace("memory_every: 1 step", "memory_every: none"))
        until(lambda: len(home.show(job)["checkpoints"]) >= 2, 120, "two checkpoints")
        home.cairn("pause", job)
        shown = home.wait_state(job, "PAUSED", seconds=60)
        newest, before = (each["step"] for each in shown["checkpoints"][:2])
        folder = Path(shown["checkpoints"][0]["path"])
        shard = sorted(folder.glob("shard-*.cairn"))[0]
        data = bytearray(shard.read_bytes())
        data[4096 + 100] ^= 1
        shard.write_bytes(bytes(data))
        assert home.cairn("ckpt", "verify", f"{job}@{newest}", check=False).returncode == 8
        home.cairn("resume", job)
        shown = home.wait_state(job, "SUCCEEDED", seconds=300)
        assert torch_peer.digest(output(home, job)) == quiet(2, tmp_path, *run)
        done = home.cairn("ckpt", "export", job, "some.safetensors")
        assert re.search(r"^3 of 27 tensors are left out: .* 'python3 -m cairn export \S+ FILE' writes all$", done.stderr, re.M), done.stderr
        said = "\n".join(event["message"] for event in shown["events"])
        assert f"the checkpoint of step {newest} is set aside: {shard.name}" in said, said
        assert f"with 2 workers, from the checkpoint of step {before}" in said, said
        assert [each["step"] for each in shown["checkpoints"] if each["status"] != "good"] == [newest], shown["checkpoints"]


def test_two_jobs_that_are_paused_and_go_on_with_other_numbers_of_workers(tmp_path):
    """The last step of the guide, from 2 workers to 1 and to 2 again, beside a job that stays as it is: one sum of weights."""
    program, job_file = listings()[4]
    (tmp_path / "train.py").write_text(program, encoding="utf-8")
    said = subprocess.run([torch_peer.PYTHON, "train.py"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=300,
                          env=torch_peer.environment(RANK=0, WORLD_SIZE=1, MASTER_ADDR="127.0.0.1", MASTER_PORT=torch_peer.free_port())).stdout
    (tmp_path / "train.py").write_text(program.replace("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.15)"), encoding="utf-8")
    job_file = job_file.replace("[python3, train.py]", f"[{torch_peer.PYTHON}, train.py]\n  workdir: {tmp_path}\n"
                                f"  env: {{PYTHONPATH: {PACKAGE}}}")
    with Home() as home:
        still, job = (home.submit(job_file, name=name) for name in ("still", "moved"))
        for steps, count in ((10, 1), (25, 2)):
            await_steps(home, job, steps)
            home.cairn("pause", job)
            paused = home.wait_state(job, "PAUSED", seconds=60)
            assert paused["checkpoints"][0]["step"] == paused["step"]
            assert json.loads(home.cairn("set", job, f"workers.count={count}", "-o", "json").stdout)["workers_count"] == count
            home.cairn("resume", job)
        for each in (job, still):
            shown = home.wait_state(each, "SUCCEEDED", seconds=300)
            assert shown["restarts"] == 0
            assert weights(output(home, each)) == weights(said) and len(weights(said)) == 1, output(home, each)[-2000:]
