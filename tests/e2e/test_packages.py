"""scripts/packages, with a system played by programs in PATH: what it says and does while another apt-get holds a lock, where
there is no network, and where it isn't root. Nothing is installed."""
import os
import subprocess
from pathlib import Path

import pytest

SAMPLE = 100
SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "packages"
DPKG = "E: Could not get lock /var/lib/dpkg/lock-frontend. It is held by process 77 (unattended-upgr)"
LISTS = "E: Could not get lock /var/lib/apt/lists/lock. It is held by process 78 (apt-get)\nE: Unable to lock directory /var/lib/apt/lists/"
GONE = "E: Unable to locate package libgrpc-dev"


@pytest.fixture
def system(tmp_path):
    """run(answers, ...): apt-get fails with one answer after the other ("" works); all is missing before, all there after."""
    programs = tmp_path / "bin"
    programs.mkdir()

    def program(name, text):
        (programs / name).write_text("#!/bin/sh\n" + text)
        (programs / name).chmod(0o755)

    def run(answers, user=0, **environment):
        for at, answer in enumerate(answers):
            (tmp_path / f"answer{at}").write_text(answer)
        (tmp_path / "calls").write_text("")
        program("id", f"echo {user}\n")
        program("sleep", "exit 0\n")
        program("dpkg-query", "exit 1\n")
        program("apt-get", f"""cd {tmp_path}
number=$(wc -l <calls)
echo "$*" >>calls
[ -s answer$number ] || exit 0
cat answer$number >&2
exit 100
""")
        environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", **environment}
        done = subprocess.run(["sh", SCRIPT], env=environment, capture_output=True, text=True, timeout=60)
        calls = [next(word for word in line.split() if word in ("install", "update"))
                 for line in (tmp_path / "calls").read_text().splitlines()]
        return done, calls
    return run


def test_it_waits_while_another_one_holds_dpkgs_lock(system):
    done, calls = system([DPKG, DPKG, DPKG, ""])
    assert done.returncode == 0, done.stderr
    assert calls == ["install"] * 4
    assert done.stderr.count("waiting for another program") == 1
    assert "held by process 77 (unattended-upgr)" in done.stderr


def test_it_waits_for_the_lock_of_the_lists_too(system):
    done, calls = system([GONE, LISTS, LISTS, "", ""])
    assert done.returncode == 0, done.stderr
    assert calls == ["install", "update", "update", "update", "install"]
    assert "/var/lib/apt/lists/lock" in done.stderr
    assert GONE not in done.stderr # the lists were old: nobody needs to know


def test_the_wait_has_an_end_and_says_who_holds_the_lock(system):
    done, calls = system([DPKG] * 40, PACKAGES_WAIT="10")
    assert done.returncode == 1
    assert calls == ["install"] * 6
    assert done.stderr.rstrip().endswith(DPKG)


def test_another_error_ends_it_at_once_and_is_shown(system):
    done, calls = system([GONE, "", GONE])
    assert done.returncode == 1
    assert calls == ["install", "update", "install"]
    assert GONE in done.stderr and "waiting" not in done.stderr


def test_without_root_it_prints_the_line_to_run(system):
    done, calls = system([], user=1000)
    assert done.returncode == 1 and calls == []
    assert "sudo apt-get install -y --no-install-recommends gcc g++" in done.stderr
