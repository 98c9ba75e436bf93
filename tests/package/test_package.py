"""The Debian packages on a fresh Debian 12: install, train, upgrade while a job trains, turn the machine off, remove, purge.

In a full run: it needs root, minutes, mmdebstrap, systemd-nspawn and Debian's servers. CAIRN_PACKAGES=DIR has the packages of both
versions already, as `scripts/package DIR` and `scripts/package --version 0.4.1~test DIR` make them."""
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from machine import APT, Account, ROOT, TINY, copy_root, machine, make_root, sh, until

VERSION = next(line.split()[2] for line in (ROOT / "CMakeLists.txt").read_text(encoding="utf-8").splitlines()
               if line.startswith("project(cairn VERSION"))
NEXT = f"{VERSION[:-1]}{int(VERSION[-1]) + 1}~test"
SHORT = {"train__duration": "400 steps", "eval__every": "400 steps", "checkpoint__every": "100000 steps",
         "checkpoint__store": "/srv/checkpoints", "workers__shares": "[2, 2]"}
LONG = {**SHORT, "train__duration": "30000 steps", "eval__every": "30000 steps"}
SERVICES = "cairnd cairn-agent cairn-observer"


def missing():
    if not os.environ.get("CAIRN_TEST_FULL"):
        return "in a full run only (CAIRN_TEST_FULL)"
    if os.geteuid() != 0:
        return "only root boots machines"
    tools = [tool for tool in ("mmdebstrap", "systemd-nspawn", "lintian", "dh", "nsenter") if shutil.which(tool) is None]
    return f"not installed: {', '.join(tools)} (scripts/packages full)" if tools else None


REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture(scope="module", name="packages")
def folder_of_packages(tmp_path_factory):
    if os.environ.get("CAIRN_PACKAGES"):
        return Path(os.environ["CAIRN_PACKAGES"])
    folder = tmp_path_factory.mktemp("packages")
    sh(ROOT / "scripts/package", folder, timeout=3600)
    sh(ROOT / "scripts/package", "--version", NEXT, folder, timeout=3600)
    return folder


@pytest.fixture(scope="module", name="bare")
def bare_root(tmp_path_factory):
    root = tmp_path_factory.mktemp("roots") / "bare"
    make_root(root, "systemd-sysv", "dbus")
    sh("chroot", root, "useradd", "--create-home", "--shell", "/bin/sh", "alice")
    (root / "srv/checkpoints").mkdir()
    (root / "srv/checkpoints").chmod(0o777)
    (root / "var/log/journal").mkdir(exist_ok=True)
    return root


def give(root, packages, version):
    folder = root / "srv/debs"
    folder.mkdir(exist_ok=True)
    for file in list(folder.glob("*.deb")):
        file.unlink()
    for file in packages.glob(f"*_{version}_*.deb"):
        shutil.copy(file, folder)
    assert len(list(folder.glob("*.deb"))) >= 4
    folder.chmod(0o755)
    return "/srv/debs/*.deb"


def install(one, packages, version):
    return one.run(f"{APT} install --no-install-recommends {give(one.root, packages, version)}")


@pytest.fixture(scope="module", name="before")
def machine_of_before(bare, packages):
    """A system with the packages, and the digests of quiet runs of both jobs."""
    root = copy_root(bare, bare.parent / "installed")
    with machine(root) as one:
        one.run(f"{APT} update")
        install(one, packages, VERSION)
        alice = Account(one, "alice")
        alice.cairn("up")
        digests = [alice.digest(alice.submit(TINY, **job)) for job in (LONG, SHORT)]
        alice.cairn("down")
        one.run("rm -rf /home/alice/.local")
        one.power_off()
    return root, *digests


def service(one):
    return Account(one, "cairn", CAIRN_HOME="/var/lib/cairn")


def units(one, how):
    return [one.run(f"systemctl {how} {unit}", check=False).stdout.strip() for unit in SERVICES.split()]


def test_packages_have_nothing_to_complain_of(packages):
    done = sh("lintian", "--allow-root", "--fail-on=warning,error", *packages.glob(f"*_{VERSION}_*.deb"),
              *(packages / "dbgsym").glob(f"*_{VERSION}_*.deb"), check=False)
    assert done.returncode == 0 and not done.stdout.strip(), done.stdout
    programs = {}
    for file in packages.glob(f"*_{VERSION}_*.deb"):
        listed = sh("dpkg-deb", "--contents", file).stdout.splitlines()
        programs[file.name.split("_")[0]] = {line.split("/usr/bin/")[1] for line in listed if "/usr/bin/" in line} - {""}
    programs.pop("cairn-cuda", None)
    assert programs == {"cairn": {"cairn"}, "cairn-server": {"cairnd", "cairn-observer"}, "cairn-agent": {"cairn-agent"},
                        "cairn-trainer": {"cairn-trainer"}}


def test_a_user_of_a_fresh_machine_trains(bare, packages):
    """From nothing to the first loss; the seconds are printed."""
    with machine(copy_root(bare, bare.parent / "fresh")) as one:
        files = give(one.root, packages, VERSION)
        begun = time.monotonic()
        one.run(f"{APT} update && {APT} install {files}")
        installed = time.monotonic()
        assert not any(one.pids(program) for program in ("cairnd", "cairn-agent", "cairn-observer"))
        assert set(units(one, "is-enabled")) == {"disabled"} and set(units(one, "is-active")) == {"inactive"}
        assert not (one.root / "var/lib/cairn").exists()
        alice = Account(one, "alice")
        alice.cairn("up")
        job = alice.submit(TINY, **LONG)
        alice.wait(job, lambda shown: shown["step"] > 0, "a first loss")
        over = time.monotonic()
        print(f"\nfresh machine: {installed - begun:.1f} s to install, {over - installed:.1f} s more to the first loss")
        alice.cairn(f"kill {job} --wait")
        alice.cairn("down")
        root = Account(one, None)
        root.cairn("up")  # in /var/lib/cairn, which no service has made
        root.cairn("down")


def test_services_come_back_and_workers_outlive_them(before):
    with machine(copy_root(before[0], before[0].parent / "services")) as one:
        one.run("mkdir -p /etc/systemd/system/cairnd.service.d")
        (one.root / "etc/systemd/system/cairnd.service.d/soon.conf").write_text("[Service]\nWatchdogSec=4\n", encoding="utf-8")
        one.run(f"systemctl daemon-reload && systemctl start {SERVICES}")
        cairn = service(one)
        assert cairn.cairn("node ls -o name")  # a started service serves
        assert cairn.cairn("cert init --hosts 127.0.0.1") is not None
        job = cairn.submit(TINY, **LONG)
        cairn.wait(job, lambda shown: shown["step"] > 100, "it trains")
        workers = one.pids("cairn-trainer")
        one.run("systemctl restart cairn-agent")
        (agent,) = one.pids("cairn-agent")
        one.run(f"kill -KILL {agent}")
        until(lambda: one.pids("cairn-agent") - {agent}, 30, "the agent is back")
        (coordinator,) = one.pids("cairnd")
        one.run(f"kill -STOP {coordinator}")
        until(lambda: one.pids("cairnd") - {coordinator}, 60, "the coordinator that hung is replaced")
        assert one.pids("cairn-trainer") == workers
        one.run("systemctl stop cairnd && systemctl start cairnd")
        assert cairn.digest(job) == before[1]
        assert cairn.show(job)["restarts"] == 0
        levels = one.out("journalctl -u cairn-agent -o cat --no-pager -p warning _COMM=cairn-agent")
        assert '"level":"info"' not in levels


def test_a_machine_that_goes_down_has_its_jobs_saved(before):
    with machine(copy_root(before[0], before[0].parent / "down")) as one:
        one.run(f"systemctl enable --now {SERVICES}")
        cairn = service(one)
        job = cairn.submit(TINY, **LONG)
        cairn.wait(job, lambda shown: shown["step"] > 1000, "it trains")
        one.power_off()
        one.boot()
        assert cairn.digest(job) == before[1]
        why = cairn.cairn(f"why {job}")
        assert re.search(r"preempted +node \S+ leaves", why) and "; 0 steps lost;" in why, why


@pytest.mark.parametrize("who", ["services", "alice"])
def test_an_upgrade_under_a_running_job_changes_no_bit(before, packages, who):
    with machine(copy_root(before[0], before[0].parent / f"upgrade-{who}")) as one:
        cairn = service(one) if who == "services" else Account(one, who)
        if who == "services":
            one.run(f"systemctl start {SERVICES}")
        else:
            cairn.cairn("up")
        job = cairn.submit(TINY, **LONG)
        cairn.wait(job, lambda shown: shown["step"] > 100, "it trains")
        coordinator, workers = one.pids("cairnd"), one.pids("cairn-trainer")
        install(one, packages, NEXT)
        shown = cairn.show(job)
        assert shown["state"] == "RUNNING" and shown["step"] < 29000, shown  # the upgrade came in the midst of it
        assert one.out("dpkg-query -W -f '${Version}' cairn-agent") == NEXT
        assert one.pids("cairn-trainer") == workers
        assert (one.pids("cairnd") != coordinator) == (who == "services")  # services are started again, and only they
        assert cairn.digest(job) == before[1]
        assert cairn.show(job)["restarts"] == 0
        assert cairn.digest(cairn.submit(TINY, **SHORT)) == before[2]  # of workers of the new version


def left(root):
    found = sh("find", root, "-xdev", "-iname", "*cairn*", "-not", "-path", f"{root}/srv/*", "-not", "-path", f"{root}/var/log/*",
               "-not", "-path", f"{root}/proc/*", "-not", "-path", f"{root}/tmp/*", "-not", "-path", f"{root}/usr/share/zoneinfo/*").stdout.split()
    return sorted(path[len(str(root)):] for path in found)


def test_what_is_left_after_remove_and_purge(before):
    with machine(copy_root(before[0], before[0].parent / "purge")) as one:
        one.run(f"systemctl enable --now {SERVICES}")
        cairn = service(one)
        cairn.digest(cairn.submit(TINY, checkpoint__store="/srv/checkpoints"))
        one.run(f"{APT} remove 'cairn*'")
        assert not any(one.pids(program) for program in ("cairnd", "cairn-agent", "cairn-observer"))
        removed = left(one.root)
        assert {"/etc/cairn", "/var/lib/cairn"} <= set(removed)
        one.run(f"{APT} purge 'cairn*'")
        purged = left(one.root)
        print("\nleft after remove:", *removed, "left after purge:", *purged, sep="\n  ")
        assert all(path.startswith("/var/lib/cairn") for path in purged) and (one.root / "var/lib/cairn/state/cairnd.db").exists()
        assert one.out("ls /dev/shm") == ""
        assert "cairn" in one.out("getent passwd cairn")  # a number that is given away would own what is left
        assert list((one.root / "srv/checkpoints").iterdir())
