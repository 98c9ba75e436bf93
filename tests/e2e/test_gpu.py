"""Jobs for GPUs on a machine that has none: what is lent, refused and said. The driver is a made-up one."""
import json
import os
import re

import pytest

from home import BIN, TINY, Home, until

NVML = BIN.parent / "tests" / "libfake_nvml.so"
CUDA = TINY.replace("device: cpu", "device: cuda")


@pytest.fixture
def gpus(tmp_path):
    """A home whose agent sees two GPUs; files in tmp_path make them sick."""
    env = {"CAIRN_NVML": str(NVML), "FAKE_NVML_DIR": str(tmp_path)}
    with Home(env=env) as home:
        yield home


def node(home):
    return json.loads(home.cairn("node", "ls", "-o", "json").stdout)[0]


def put(path, text):
    path.with_suffix(".new").write_text(text, encoding="utf-8")
    os.replace(path.with_suffix(".new"), path)


def test_a_job_for_a_device_that_no_node_has_is_refused():
    with Home(env={"CAIRN_NVML": "/nowhere"}) as home:
        path = home.dir / "cuda.yaml"
        path.write_text(CUDA, encoding="utf-8")
        done = home.cairn("submit", path, check=False)
        assert done.returncode == 4, done.stderr
        assert "no registered node has it" in done.stderr
        assert node(home)["gpus"] == []


def test_gpus_are_listed_with_their_driver_and_memory(gpus):
    found = node(gpus)
    assert found["device"] == "cpu" and found["slots"] == 4
    assert [g["uuid"] for g in found["gpus"]] == ["GPU-fake-0", "GPU-fake-1"]
    first = found["gpus"][0]
    assert first["name"] == "NVIDIA Fake" and first["driver"] == "580.00" and first["problem"] == ""
    assert first["capability"] == 90 and first["memory_bytes"] == 8 << 30
    assert "0/2" in gpus.cairn("node", "ls").stdout


def test_a_job_fails_at_once_and_says_what_is_missing_for_cuda(gpus):
    job = gpus.submit(CUDA)
    shown = gpus.wait_state(job, "FAILED")
    assert "cuda" in shown["reason"], shown["reason"]
    assert shown["restarts"] == 0
    assert node(gpus)["gpus_used"] == 0


def test_a_sick_gpu_takes_no_worker_and_the_job_says_that_it_waits(gpus, tmp_path):
    put(tmp_path / "xid", "1 79\n")
    until(lambda: node(gpus)["gpus"][1]["problem"], 20, "the problem is seen")
    assert node(gpus)["gpus"][1]["problem"].startswith("Xid 79")
    assert "1 bad" in gpus.cairn("node", "ls").stdout
    job = gpus.submit(CUDA)
    shown = until(lambda: (s := gpus.show(job))["reason"] and s, 20, "a reason")
    assert shown["state"] == "QUEUED" and "1 of 2 is free" in shown["reason"], shown["reason"]
    gpus.cairn("kill", job)


def test_check_measures_the_cpu_and_refuses_cuda_with_what_is_missing():
    env = {**os.environ, "CAIRN_CUDA_MODULE": "/nowhere/cairn-cuda.so"}
    with Home() as home:
        home.env.update(CAIRN_CUDA_MODULE=env["CAIRN_CUDA_MODULE"])
        result = json.loads(home.cairn("node", "check", "--ranks", "3", "-o", "json").stdout)
        assert result["transport"] == "gloo" and result["ranks"] == 3
        assert len(result["copy_bytes_per_s"]) == 3 and min(result["copy_bytes_per_s"]) > 0
        for row in result["exchanges"]:
            assert row["all_reduce_s"] > 0 and row["all_to_all_busbw"] < row["all_to_all_algbw"]
        assert result["exchanges"][0]["bytes"] < result["exchanges"][-1]["bytes"]
        done = home.cairn("node", "check", "--device", "cuda", check=False)
        assert done.returncode == 4 and "/nowhere/cairn-cuda.so" in done.stderr, done.stderr


def test_a_plan_is_shown_without_a_coordinator():
    with Home() as home:
        path = home.dir / "job.yaml"
        path.write_text(TINY, encoding="utf-8")
        home.cairn("down")
        text = home.cairn("plan", path).stdout
        assert "linear" in text and "arena" in text
        bad = home.cairn("plan", path, "--set", "model.hidden=none", check=False)
        assert bad.returncode == 2 and "model.hidden" in bad.stderr


# The CUDA backend on fakes of its libraries (tests/gpu/fake): slow, but all of the way.
FAKE = BIN.parent / "tests" / "cairn-cuda-fake.so"
needs_fake = pytest.mark.skipif(not FAKE.exists(), reason="built without the CUDA toolkit's headers")
LENET = CUDA.replace("arch: mlp, hidden: 32", "arch: lenet")
ONE = CUDA.replace("count: 2", "count: 1").replace("duration: 12 steps", "duration: 8 steps")


def emulated(tmp_path, faults=None):
    return Home(env={"CAIRN_NVML": str(NVML), "FAKE_NVML_DIR": str(tmp_path), "CAIRN_CUDA_MODULE": str(FAKE),
                     "CAIRN_FAKE_CUDA": "devices=1", "CAIRN_HANG_MS": "30000"}, faults=faults)


@needs_fake
def test_a_plan_says_where_channels_innermost_are_refused():
    with Home(env={"CAIRN_CUDA_MODULE": str(FAKE)}) as home:
        path = home.dir / "job.yaml"
        path.write_text(LENET, encoding="utf-8")
        assert "warning" not in home.cairn("plan", path).stdout
    with Home(env={"CAIRN_CUDA_MODULE": str(FAKE), "CAIRN_FAKE_CUDA": "only-nchw"}) as home:
        path = home.dir / "job.yaml"
        path.write_text(LENET, encoding="utf-8")
        text = home.cairn("plan", path).stdout
        assert re.search(r"^warning +node \d+ \(conv2d\), 1 in all: cuDNN refuses channels innermost .* half the speed$", text, re.M), text


@needs_fake
def test_a_killed_worker_on_a_device_changes_no_bit(tmp_path):
    with emulated(tmp_path) as home:
        quiet = home.run(ONE, seconds=120)
    with emulated(tmp_path, "trainer.backward,rank=0,step=5:kill") as home:
        job = home.submit(ONE)
        assert home.digest(job, seconds=120) == quiet
        assert home.show(job)["restarts"] == 1


@needs_fake
def test_a_gpu_that_fails_ends_its_worker_and_the_job_goes_on_at_another(tmp_path):
    with emulated(tmp_path, "trainer.backward,rank=0,step=5:wait") as home:
        job = home.submit(ONE)
        home.wait_hit("trainer.backward", 120)
        put(tmp_path / "xid", "0 94\n")
        until(lambda: home.show(job)["restarts"] == 1, 30, "the worker is ended")
        home.go("trainer.backward")
        home.digest(job, seconds=120)
        why = home.cairn("why", job).stdout
        assert "GPU 0: Xid 94: contained ECC error" in why, why
