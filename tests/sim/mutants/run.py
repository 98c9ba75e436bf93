#!/usr/bin/python3
"""Bugs planted in the coordinator, one at a time: the simulator has to find each.

    run.py ROOT BUILD [--seeds N] [--sample] [NAME ...]

Every patch beside this file is one bug that the code had once, or nearly had; its first lines say which, and in which
worlds, if they begin with "With --plain: ". It is applied to a copy of the sources, `cairn-sim` is built from them, and
its seeds are run from 1 on. Exit status 1 if a patch no longer applies, doesn't build, or isn't found within N seeds
(2000). The untouched copy is run first: it must pass the seeds that the bugs were found by. `--sample` takes one patch,
chosen by the commit, but all of them where CAIRN_TEST_FULL is set.
"""
import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
BATCH = 25  # seeds of one run of the simulator
LIMIT_S = 900  # of one build, and of one batch


def copy_sources(root, to):
    """The tree without what is built and without history; files that are the same keep their time."""
    for path in sorted(p for p in subprocess.run(["git", "-C", str(root), "ls-files", "-co", "--exclude-standard"],
                                                 check=True, capture_output=True, text=True).stdout.splitlines()):
        source, target = root / path, to / path
        if not source.is_file():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != source.read_bytes():
            shutil.copy(source, target)


def build(tree):
    out = tree / "build" / "sim"
    if not (out / "build.ninja").exists():
        subprocess.run(["cmake", "-S", str(tree), "-B", str(out), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo",
                        "-DCAIRN_FAULTS=ON"], check=True, stdout=subprocess.DEVNULL, timeout=LIMIT_S)
    done = subprocess.run(["cmake", "--build", str(out), "--target", "sim"], capture_output=True, text=True,
                          timeout=LIMIT_S)
    if done.returncode != 0:
        sys.exit(f"{tree}: does not build\n{done.stdout[-3000:]}")
    return out / "tests" / "cairn-sim"


def failing_seed(sim, worlds, seeds):
    """The first seed that the simulator fails in such worlds, with what it printed of it."""
    for first in range(1, seeds + 1, BATCH):
        count = min(BATCH, seeds + 1 - first)
        done = subprocess.run([str(sim), *worlds, "--seed", str(first), "--count", str(count)], capture_output=True,
                              text=True, timeout=LIMIT_S)
        told = re.search(r"^seed (\d+), at .*", done.stderr, re.M)
        if done.returncode != 0 and not told:
            sys.exit(f"seeds {first} to {first + count - 1}: ended by {done.returncode}, without naming a seed\n"
                     f"{done.stderr[-3000:]}")
        if done.returncode != 0:
            return int(told[1]), told[0]
    return None, ""


def patch(tree, path, *flags):
    done = subprocess.run(["patch", "-p1", "-s", *flags, "-i", str(path)], cwd=tree, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"{path.name}: does not apply\n{done.stdout}{done.stderr}")


def check_all_apply(tree):
    """Also of those that aren't built this time: who changes the code sees it at once."""
    for path in sorted(HERE.glob("*.patch")):
        patch(tree, path, "--dry-run")


def chosen(args):
    patches = sorted(HERE.glob("*.patch"))
    if args.names:
        patches = [path for path in patches if path.stem in args.names]
    if args.sample and not os.environ.get("CAIRN_TEST_FULL"):
        commit = subprocess.run(["git", "-C", str(args.root), "rev-parse", "HEAD"], capture_output=True, text=True)
        patches = [patches[int(commit.stdout.strip() or "0", 16) % len(patches)]]
    if not patches:
        sys.exit("no such patch")
    return patches


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("root", type=Path)
    parser.add_argument("build", type=Path)
    parser.add_argument("--seeds", type=int, default=2000)
    parser.add_argument("--sample", action="store_true")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    tree = (args.build / "mutants").resolve()
    os.environ.setdefault("CCACHE_BASEDIR", str(tree))
    copy_sources(args.root.resolve(), tree)
    check_all_apply(tree)
    sound = tree / "cairn-sim-sound"
    shutil.copy(build(tree), sound)
    missed = 0
    for path in chosen(args):
        title = re.sub(r"\s+", " ", path.read_text().split("\n---", 1)[0]).strip()
        worlds = re.findall(r"^With (--\w+): ", title)
        patch(tree, path)
        try:
            seed, said = failing_seed(build(tree), worlds, args.seeds)
        finally:
            patch(tree, path, "-R")
        if seed is None:
            print(f"{path.stem}: NOT FOUND within {args.seeds} seeds ({title})")
            missed += 1
            continue
        healthy = subprocess.run([str(sound), *worlds, "--seed", str(seed), "--count", "1"], capture_output=True, text=True)
        if healthy.returncode != 0:
            sys.exit(f"{path.stem}: seed {seed} fails without it, too\n{healthy.stdout}{healthy.stderr}")
        print(f"{path.stem}: seed {seed}: {said}", flush=True)
    return missed > 0


if __name__ == "__main__":
    sys.exit(main())
