"""Every program of bench/ runs, small: what it plays, reads or writes by hand is still what the product has. No time is
asserted, and all of them run each time: a bench that ends with an error is found when somebody needs its number."""
import json
import subprocess

import pytest

from home import BIN

BENCH = BIN.parent / "bench"
SAMPLE = 100

# Arguments of the smallest run, and cases that it has to tell of (their beginnings). HERE is a folder of the test's own.
RUNS = {
    "kernels": ("--model mlp --batch 8 --steps 1", ["mlp/8 update", "mlp/8 step"]),
    "train": ("--model mlp --batch 8 --steps 1 --rounds 1", ["mlp fp32 batch 8, lanes 1"]),
    "codec": ("--dtype f32 --level fast HERE/some.f32", ["fast/ratio", "fast/encode", "fast/decode"]),
    "checkpoint": ("--mb 4 --rounds 1 --levels fast --threads 1 --dir HERE", ["fast/save", "fast/restore", "fast/verify"]),
    "rpc": ("--seconds 1 --rounds 1 --connections 2", ["connection/tls"]),
    "workers": ("--rounds 1 --steps 4 --batch 2", ["resnet18 2 workers"]),
    "steps": ("--pairs 1 --steps 2 --batch 4 --audit", ["audit/processor", "audit/wall"]),
    "recovery": ("--rounds 1 --block 1 --cases 2-kill --modes live", ["2-kill, live"]),
    "unequal": ("--seconds 1 --only one --batch 1024 --lanes 16", ["one"]),
    "pipeline": ("--rounds 1 --steps 4 --micros 8 --schedules 1f1b", ["bubble 1f1b m 8", "zero 1, two workers"]),
    "stall": ("--pairs 4 --only copies --batch 4", ["copies/step"]),
    "memory": ("--model resnet50 --batch 2 --steps 1 --modes full", ["resnet50/cairn full/sample"]),
    "page": ("--jobs 2 --rows 200 --rounds 1 --only answers,memory", ["page/cold/keep/median", "memory/cairnd"]),
}
# Others: what each says of itself, or what runs it.
TEXTS = {"live": "4 1", "restore": "--ranks 2 --mb 4 --rounds 1 --store 1000 --dir HERE",
         "library": "--mb 8 --saves 2"}
ELSEWHERE = {"coordinator": "below", "fleet": "by coordinator", "page_fill": "by page", "gpu": "needs a GPU"}

SMALL = {"ranks": 8, "saves": 1, "save-every": 3, "jobs": 4, "queued": 4, "ended": 10, "alive": 2, "nodes": 6, "rounds": 2,
         "minutes": 0.05, "patience": 120}
CASES = ["form/8", "save/8", "many/4/call p99", "many/4/share of a core", "many/4/lost", "many/4/memory", "queue/4",
         "queue/4/processor", "start/10+2", "start/10+2/processor", "lone/submission", "lone/folder of a save", "storm/6/back", "storm/6/processor", "storm/6/memory", "storm/6/lost"]


def run(name, arguments, folder):
    options = [text.replace("HERE", str(folder)) for text in arguments.split()]
    done = subprocess.run([BENCH / name, *options], capture_output=True, text=True, timeout=900, check=False, cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_no_program_is_left_out():
    programs = {path.name for path in BENCH.iterdir() if path.is_file() and path.stat().st_mode & 0o100 and not path.suffix}
    assert programs == {*RUNS, *TEXTS, *ELSEWHERE}


@pytest.mark.parametrize("name", RUNS)
def test_a_small_run_tells_its_cases(name, tmp_path):
    (tmp_path / "some.f32").write_bytes(bytes(range(256)) * 1024)
    arguments, cases = RUNS[name]
    lines = [json.loads(line) for line in run(name, arguments, tmp_path).splitlines() if line.startswith("{")]
    told = [line["case"] for line in lines if line["bench"] == name]
    assert all(any(one.startswith(case) for one in told) for case in cases), told
    assert all(line["value"] >= 0 for line in lines if not line["case"].startswith("copies"))  # a difference of two means


@pytest.mark.parametrize("name", TEXTS)
def test_a_small_run_ends_with_its_ratio(name, tmp_path):
    assert "ratio" in run(name, TEXTS[name], tmp_path)


@pytest.mark.parametrize("line", ["steps --pairs 1", "workers --steps 2", "stall --pairs 3", "pipeline --steps 3"])
def test_a_run_that_can_say_nothing_is_refused(line):
    name, *few = line.split()
    done = subprocess.run([BENCH / name, *few], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2 and "--" in done.stderr.splitlines()[-1]


def test_every_case_of_the_coordinators_bench_ends_with_its_numbers():
    options = [text for key, value in SMALL.items() for text in (f"--{key}", str(value))]
    done = subprocess.run([BENCH / "coordinator", *options, "--bin", BIN], capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["case"] for line in lines] == CASES
    assert all(line["bench"] == "coordinator" and line["ratio"] >= 0 for line in lines)
    assert all(line["value"] == 0 for line in lines if line["case"].endswith("/lost")), done.stderr
