#!/usr/bin/python3
"""How long a clean machine takes from a clone to the end of scripts/demo, by part: in a fresh Debian 12 that mmdebstrap makes,
as root, with Debian's packages fetched once before and kept. --old DIR: another clone's time beside it, in turns.

    bench/newcomer.py [--old DIR] [--rounds 1] [--cache DIR]     needs root, mmdebstrap, Debian's mirror and 5 GB

Prints one JSON line per run on standard output, and a table of medians on standard error. The yardstick is the old clone,
else the total itself."""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
# A part begins with a line that begins like this.
PARTS = {"packages": "installing:", "build": "== build", "peace": "== 1. in peace", "kill": "== 2. a worker is killed",
         "compare": "== the same weights?"}
INSIDE = """
mount --bind {cache}/archives {root}/var/cache/apt/archives
mount -t proc proc {root}/proc
mount -t sysfs sys {root}/sys
mount --rbind /dev {root}/dev
mount -t tmpfs tmpfs {root}/tmp
exec chroot {root} env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 /cairn/scripts/demo
"""


def make_base(cache):
    (cache / "archives" / "partial").mkdir(parents=True, exist_ok=True)
    base = cache / "base.tar"
    if not base.exists():
        subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", "bookworm", base.with_suffix(".part.tar")], check=True)
        base.with_suffix(".part.tar").rename(base)
    return base


def run_demo(clone, cache, work):
    """Returns the seconds of each part of one run."""
    root = Path(tempfile.mkdtemp(prefix="root-", dir=work))
    subprocess.run(["tar", "-C", root, "-xf", make_base(cache)], check=True)
    subprocess.run(["git", "clone", "-q", clone, root / "cairn"], check=True)
    shutil.copy("/etc/resolv.conf", root / "etc/resolv.conf")
    (root / "etc/apt/apt.conf.d/90keep").write_text('APT::Keep-Downloaded-Packages "true";\n')
    script = INSIDE.format(root=root, cache=cache)
    marks, lines, begin = [], [], time.monotonic()
    with subprocess.Popen(["unshare", "-m", "-p", "-f", "--mount-proc", "sh", "-ec", script], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, errors="replace") as demo:
        for line in demo.stdout:
            lines.append(line)
            for part, first in PARTS.items():
                if line.startswith(first):
                    marks.append((part, time.monotonic()))
    if demo.returncode != 0 or [part for part, _ in marks] != list(PARTS):
        sys.exit(f"{clone}: the demo failed in {root}:\n" + "".join(lines[-20:]))
    end = time.monotonic()
    shutil.rmtree(root)
    times = [at for _, at in marks[1:]] + [end]
    return {"total": end - begin, **{part: until - at for (part, at), until in zip(marks, times)}}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", type=Path)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--cache", type=Path, default=Path.home() / ".cache/cairn-tests/newcomer")
    args = parser.parse_args()
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None:
        sys.exit("newcomer: needs root and mmdebstrap (scripts/packages full)")
    clones = {"old": args.old, "new": SOURCE} if args.old else {"new": SOURCE}
    runs = {name: [] for name in clones}
    with tempfile.TemporaryDirectory(prefix="cairn-newcomer-") as work:
        for _ in range(args.rounds):
            for name, clone in clones.items():
                runs[name].append(run_demo(clone, args.cache, work))
                print(json.dumps({"clone": name, **{part: round(s, 1) for part, s in runs[name][-1].items()}}), flush=True)
    for part in ["total", *PARTS]:
        each = {name: statistics.median(run[part] for run in of) for name, of in runs.items()}
        ratio = f"   {each['new'] / each['old']:.2f} of the old" if args.old else ""
        print(f"{part:10}" + "".join(f" {name} {seconds:7.1f} s" for name, seconds in each.items()) + ratio, file=sys.stderr)


if __name__ == "__main__":
    main()
