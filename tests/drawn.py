#!/usr/bin/python3
"""drawn.py PRESET PARTS: which slow tests (slow.txt) a run of scripts/test leaves out: all but one of PARTS of them, drawn by the
commit, so that with some commits all of them run. Prints a pattern of their names, and of what the preset leaves out, for ctest -E,
which takes the place of the preset's. A name in slow.txt that no test of preset dev has is an error, unless the machine lacks
what it needs."""
import json
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# Tests that aren't there without nvcc, or whose beginning says so; without a program of a package.
LACKING = ("test_attention", "test_shapes_emulated", "test_kernels_", "test_ops_cuda", "sim_mutants", "tensorboard", "s3", "net_")


def slow():
    lines = (ROOT / "tests/slow.txt").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line and not line.startswith("#")]


def check(names):
    shown = subprocess.run(["ctest", "--test-dir", ROOT / "build/dev", "--show-only=json-v1"], capture_output=True, text=True, check=True)
    built = {test["name"] for test in json.loads(shown.stdout)["tests"]}
    unknown = [name for name in names if name not in built and not name.startswith(LACKING)]
    if unknown:
        raise SystemExit(f"tests/slow.txt names tests that there aren't: {' '.join(unknown)}")


def left_out_by(preset):
    presets = json.loads((ROOT / "CMakePresets.json").read_text(encoding="utf-8"))["testPresets"]
    found = [each.get("filter", {}).get("exclude", {}).get("name") for each in presets if each["name"] == preset]
    return [pattern for pattern in found if pattern]


def seed():
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    return commit.stdout.strip() or "0"


def main():
    preset, parts = sys.argv[1], int(sys.argv[2])
    names = slow()
    if preset == "dev":
        check(names)
    random.Random(f"{seed()} {preset}").shuffle(names)
    left_out = "^(" + "|".join(sorted(names[len(names) // parts:])) + ")$"
    print("|".join([left_out, *left_out_by(preset)]))


main()
