"""A machine of its own: Debian 12 under systemd-nspawn, with systemd as process 1 and the network of this one."""
import json
import os
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/e2e"))
from home import TINY, until  # noqa: E402

APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq -y"


def sh(*command, check=True, timeout=1200, **more):
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=timeout, **more)
    if check and done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done


def make_root(folder, *packages):
    """A bare Debian 12, with these packages."""
    sh("mmdebstrap", "--quiet", "--variant=minbase", f"--include={','.join(('ca-certificates', *packages))}",
       "bookworm", folder)
    shutil.copy("/etc/resolv.conf", folder / "etc/resolv.conf")


def copy_root(root, folder):
    sh("cp", "-a", root, folder)
    return folder


class Machine:
    def __init__(self, root):
        self.root, self.process, self.first = root, None, None

    def boot(self):
        command = ["systemd-nspawn", "--quiet", f"--directory={self.root}", "--register=no", "--keep-unit", "--boot",
                   f"--machine=cairn-{os.getpid()}-{self.root.name}"]
        self.log = open(f"{self.root}.log", "ab")  # pylint: disable=consider-using-with
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log,
                                        start_new_session=True)
        until(self.is_up, 60, f"{self.root} is up: {self.root}.log")

    def is_up(self):
        assert self.process.poll() is None, Path(f"{self.root}.log").read_text(encoding="utf-8", errors="replace")[-2000:]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii").split()
        self.first = children[0] if children else None
        return self.first and self.run("systemctl is-system-running --wait", check=False).stdout.strip() in ("running", "degraded")

    def power_off(self):
        self.run("systemctl poweroff", check=False)
        self.process.wait(timeout=180)
        self.log.close()

    def end(self):
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGTERM)
            try:
                self.process.wait(timeout=60)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait()

    def run(self, script, user=None, check=True, **variables):
        """A script of a shell, by root or as that user logs in."""
        script = "".join(f"export {name}='{value}'; " for name, value in variables.items()) + script
        inside = ["nsenter", "-t", self.first, "-a"]
        shell = ["runuser", "-u", user, "--"] if user else []
        home = f"/home/{user}" if user not in (None, "cairn") else "/root" if user is None else "/srv"
        return sh(*inside, *shell, "env", "-i", "PATH=/usr/bin:/usr/sbin:/bin:/sbin", f"HOME={home}", "sh", "-c",
                  f"cd {home} && {script}", check=check)

    def out(self, script, user=None, **variables):
        return self.run(script, user, **variables).stdout.strip()

    def pids(self, program):
        found = self.out(f"for p in /proc/[0-9]*; do [ \"$(readlink $p/exe | sed 's, (deleted),,')\" != /usr/bin/{program} ] || "
                         "echo ${p#/proc/}; done")
        return set(found.split())


@contextmanager
def machine(root):
    one = Machine(root)
    try:
        one.boot()
        yield one
    finally:
        one.end()


class Account:
    """Whoever calls `cairn` there."""

    def __init__(self, where, user, **variables):
        self.where, self.user, self.variables = where, user, variables

    def cairn(self, words, check=True):
        return self.where.run(f"cairn {words}", self.user, check, **self.variables).stdout.strip()

    def submit(self, text, **sets):
        path = self.where.root / "srv" / f"job-{len(list((self.where.root / 'srv').glob('job-*')))}.yaml"
        path.write_text(text, encoding="utf-8")
        return self.cairn(f"submit /srv/{path.name} -o name " + " ".join(f"--set '{key.replace('__', '.')}={value}'"
                                                                         for key, value in sets.items()))

    def show(self, job):
        text = self.cairn(f"show {job} -o json", check=False)
        return json.loads(text) if text else {"state": "", "step": 0}

    def wait(self, job, condition, what, seconds=120):
        def looks():
            shown = self.show(job)
            assert shown["state"] not in ("FAILED", "KILLED"), shown
            return shown if condition(shown) else None
        return until(looks, seconds, f"{job}: {what}")

    def digest(self, job):
        self.wait(job, lambda shown: shown["state"] == "SUCCEEDED", "its end", 300)
        return self.cairn(f"ckpt digest {job}")


__all__ = ["APT", "Account", "Machine", "ROOT", "TINY", "copy_root", "machine", "make_root", "sh", "until"]
