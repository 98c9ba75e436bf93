"""What is left over when all jobs are over: each function returns lines, one for each thing that shouldn't be there."""
import json
import os
import re
from pathlib import Path

FD_SLACK = 4  # a connection that is about to be closed, a file that is opened when first needed
BUGS = re.compile(r": bug: not true: |Sanitizer|terminate called|double free|corrupted|stack smashing")


def descriptors(pid):
    """What a process has open, without numbers that differ from life to life."""
    found = []
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        try:
            found.append(re.sub(r"\d+", "N", os.readlink(fd)))
        except OSError:
            pass
    return sorted(found)


def of_daemons(world, programs):
    """{(program, machine): descriptors}"""
    return {(program, machine): descriptors(pid) for program in programs
            for pid, machine in world.pids(program).items()}


def more_descriptors(before, after):
    lines = []
    for who, now in after.items():
        then = before.get(who, [])
        new = sorted({what for what in now if now.count(what) > then.count(what)})
        gone = [what for what in now if what.endswith("(deleted)") and "/memfd:" not in what]
        if len(now) > len(then) + FD_SLACK:
            lines.append(f"{who[0]} on machine {who[1]} has {len(now)} descriptors, had {len(then)}; more: {new}")
        if gone:
            lines.append(f"{who[0]} on machine {who[1]} has open what was removed: {gone}")
    return lines


def processes(world):
    """Workers without a job, daemons more than one."""
    lines = [f"cairn-trainer {worker.pid} of {worker.job}, rank {worker.rank}" for worker in world.workers()]
    for program in ("cairnd", "cairn-agent"):
        machines = list(world.pids(program).values())
        lines += [f"two of {program} on machine {machine}" for machine in set(machines) if machines.count(machine) > 1]
    return lines


def copies(world):
    return [f"where copies in memory lay: {path}" for folder in world.places()[0] if folder.is_dir()
            for path in folder.rglob("*")]


def files(world, jobs):
    """jobs: {id: (name, what `show` said last)}, all of them over."""
    lines = []
    for home in world.places()[1]:
        lines += [f"the record of a worker: {path}" for path in home.glob("agent/*.json")]
        lines += [f"the folder of no job: {path}" for path in home.glob("jobs/*") if path.name not in jobs]
    return lines


def sockets(world):
    found = [str(path) for path in world.sockets()]
    return [] if len(found) <= 1 else [f"more than the coordinator's socket: {found}"]


def store(world, jobs, bad=()):
    """Jobs' checkpoints were removed once their digests were known; those of bad jobs are evidence."""
    lines = []
    for folder in world.store.iterdir():
        if folder.name not in jobs:
            lines.append(f"in the store, of no job: {folder}")
        elif folder.is_dir() and folder.name not in bad:
            lines += [f"in the store, of {jobs[folder.name]}: {path.name}" for path in folder.iterdir()
                      if path.name != "store-mark"]
    return lines


def unknown_jobs(world, jobs):
    listed = world.cairn("ps", "-o", "jsonl").stdout.splitlines()
    return [f"a job that nobody submitted: {line}" for line in listed if json.loads(line)["id"] not in jobs]


def bugs(world):
    """What a program said of itself."""
    lines = []
    for path in world.logs():
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            if BUGS.search(line):
                lines.append(f"{path.relative_to(world.folder)}: {line[:300]}")
    return lines
