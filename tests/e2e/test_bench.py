"""bench/coordinator runs, small: its players still speak as agents and trainers do. No time is asserted."""
import json
import subprocess

from home import BIN

SMALL = {"ranks": 8, "saves": 1, "save-every": 3, "jobs": 4, "queued": 4, "ended": 10, "alive": 2, "nodes": 6, "rounds": 2,
         "minutes": 0.05, "patience": 120}
CASES = ["form/8", "save/8", "many/4/call p99", "many/4/share of a core", "many/4/lost", "many/4/memory", "queue/4",
         "queue/4/processor", "start/10+2", "start/10+2/processor", "lone/submission", "lone/folder of a save", "storm/6/back", "storm/6/processor", "storm/6/memory", "storm/6/lost"]


def test_every_case_of_the_coordinators_bench_ends_with_its_numbers():
    options = [text for key, value in SMALL.items() for text in (f"--{key}", str(value))]
    done = subprocess.run([BIN.parent / "bench/coordinator", *options, "--bin", BIN], capture_output=True, text=True,
                          timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["case"] for line in lines] == CASES
    assert all(line["bench"] == "coordinator" and line["ratio"] >= 0 for line in lines)
    assert all(line["value"] == 0 for line in lines if line["case"].endswith("/lost")), done.stderr
