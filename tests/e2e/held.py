"""What test_held.py and test_torch_sigterm.py have in common, and their programs: who is told to go while a program is held somewhere."""
import ctypes
import os
import re
import signal
import time
from pathlib import Path


def hold_lock(seconds):
    """For a program: a wait that no signal ends, by PyDLL, which keeps Python's lock."""
    libc = ctypes.PyDLL(None)
    until = (ctypes.c_long * 2)(int(time.time() + seconds), 0)
    mutex, changed = (ctypes.create_string_buffer(64) for _ in range(2))  # of zeroes: PTHREAD_MUTEX_INITIALIZER
    libc.pthread_mutex_lock(mutex)
    libc.pthread_cond_timedwait(changed, mutex, until)


def logs(home, job):
    return "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{job}/*/*.log")))


def newest(shown):
    """The step of the newest good checkpoint; 0: there is none."""
    return max((checkpoint["step"] for checkpoint in shown["checkpoints"] if checkpoint["status"] == "good"), default=0)


def worker_of(home, pid):
    """The worker that the process belongs to."""
    workers = home.pids("cairn-trainer")
    while pid not in workers:
        pid = int(re.search(r"^PPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.M)[1])
        assert pid > 1
    return pid


def tell(home, job, told, pid):
    """Tells somebody to go: "pause", "program", "worker"; returns the process whose end is waited for."""
    if told == "pause":
        home.cairn("pause", job)
        return pid
    pid = worker_of(home, pid) if told == "worker" else pid
    os.kill(pid, signal.SIGTERM)
    return pid
