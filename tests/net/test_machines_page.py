"""The commands of "Two machines in five minutes" (docs/machines.md), as they stand there, on two machines."""
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from fleet import BIN, JOB, ROOT, until
from rooms import Room, missing

REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


def commands():
    """Those of each machine, with scp as a copy into the folder that both see."""
    page = (ROOT / "docs/machines.md").read_text(encoding="utf-8")
    part = page[page.index("## Two machines"):page.index("## Addresses")]
    blocks = [[line for line in block.splitlines() if line] for block in re.findall(r"```sh\n(.*?)```", part, re.S)]
    assert len(blocks) == 2 and blocks[0][-1].startswith("scp ")
    return blocks


class Two:
    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="cairn-net-"))
        self.room = Room(2, {BIN: "/run/bin", self.dir: "/run/shared"})

    def __enter__(self):
        self.room.__enter__()
        return self

    def __exit__(self, kind, value, trace):
        self.room.__exit__()
        if kind is not None:
            for path in sorted(self.dir.glob("**/*.log")):
                print(f"---- {path.name}\n{path.read_text(encoding='utf-8', errors='replace')[-2000:]}")
        shutil.rmtree(self.dir, ignore_errors=True)

    def shell(self, number, line):
        line = line.replace("192.0.2.10", self.room[1].address).replace("scp invite gpu-07:", "cp invite /run/shared/")
        folder = f"/run/shared/disk-{number}"
        env = {"PATH": f"/run/bin:{os.environ['PATH']}", "CAIRN_HOME": f"{folder}/home", "CAIRN_COPIES": "/dev/shm/cairn"}
        return self.room[number].popen("sh", "-c", f"mkdir -p {folder} && cd {folder} && exec {line}", env=env,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def cairn(self, line):
        child = self.shell(1, f"cairn {line}")
        out, err = child.communicate(timeout=60)
        assert child.returncode == 0, err
        return out


def test_the_page_makes_a_fleet_whose_jobs_span_it():
    first, second = commands()
    with Two() as two:
        for line in first:
            child = two.shell(1, line)
            _, err = child.communicate(timeout=60)
            assert child.returncode == 0, (line, err)
        line = second[0].replace("--join invite", "--join /run/shared/invite")
        two.shell(2, f"{line} >/run/shared/agent-2.log 2>&1")
        until(lambda: two.cairn("node ls -o jsonl").count('"ready"') == 2, 20, "both nodes are ready")
        slots = sum(json.loads(row)["slots"] for row in two.cairn("node ls -o jsonl").splitlines())
        workers = slots // 2 + 1  # more than fit on one of them
        (two.dir / "checkpoints").mkdir()
        job = JOB.format(workers=workers, steps=60, every=30).replace("lanes: 4", "lanes: 8")
        (two.dir / "job.yaml").write_text(job, encoding="utf-8")
        name = two.cairn("submit /run/shared/job.yaml -o name").strip()
        shown = until(lambda: (lambda j: j if j["state"] in ("SUCCEEDED", "FAILED") else None)(
            json.loads(two.cairn(f"show {name} -o json"))), 60, "the job ends")
        assert shown["state"] == "SUCCEEDED", shown
        assert {worker["node"] for worker in shown["workers"]} == {"node1", "gpu-07"}
        two.cairn("down")
