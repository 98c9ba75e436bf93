"""A file runs two of its cases (or SAMPLE, if it says so), drawn by a seed, so that all files fit into the time there is:
CAIRN_SEED, or else the week of the commit. All run with CAIRN_TEST_FULL, and where pytest is given cases instead of
files. A folder's conftest.py takes pytest's hooks from here."""
import os
import random
import subprocess
from pathlib import Path

SAMPLE = 2
WEEK_S = 7 * 24 * 3600


def seed():
    time = subprocess.run(["git", "log", "-1", "--format=%ct"], cwd=Path(__file__).parent, capture_output=True, text=True,
                          check=False).stdout
    return os.environ.get("CAIRN_SEED") or str(int(time or "0") // WEEK_S)


def pytest_report_header():
    return f"CAIRN_SEED={seed()}"


def pytest_collection_modifyitems(config, items):
    if os.environ.get("CAIRN_TEST_FULL") or config.option.keyword or any("::" in arg for arg in config.args):
        return
    by_file = {}
    for item in items:
        if not any(True in mark.args for mark in item.iter_markers("skipif")):  # those are told, and take no turn
            by_file.setdefault(item.module, []).append(item)
    dice = random.Random(seed())
    out = set()
    for module, cases in by_file.items():
        out.update(dice.sample(cases, max(len(cases) - getattr(module, "SAMPLE", SAMPLE), 0)))
    config.hook.pytest_deselected(items=[item for item in items if item in out])
    items[:] = [item for item in items if item not in out]
