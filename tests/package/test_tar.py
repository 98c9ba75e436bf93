"""The tarball, where nobody is root and nothing of ours is installed: unpacked in any folder of a bare Debian 12, it trains.

In a full run: it needs root to make that system, minutes, mmdebstrap, systemd-nspawn and Debian's servers. CAIRN_TAR=FILE has the
archive already, as `scripts/package --tar` makes it."""
import os
import re
import shutil
from pathlib import Path

import pytest

from machine import ROOT, TINY, make_root, sh

C_LIBRARY = re.compile(r"(ld-linux-x86-64|lib(c|m|mvec|dl|rt|pthread|resolv|util|anl))\.so\.\d+$")
JOB = TINY.replace("store: checkpoints/", "store: /tmp/checkpoints")


def missing():
    if not os.environ.get("CAIRN_TEST_FULL"):
        return "in a full run only (CAIRN_TEST_FULL)"
    if os.geteuid() != 0:
        return "only root makes systems"
    tools = [tool for tool in ("mmdebstrap", "systemd-nspawn") if shutil.which(tool) is None]
    return f"not installed: {', '.join(tools)} (scripts/packages full)" if tools else None


REASON = missing()
pytestmark = pytest.mark.skipif(REASON is not None, reason=REASON or "")


@pytest.fixture(scope="module", name="bare")
def bare_root(tmp_path_factory):
    if os.environ.get("CAIRN_TAR"):
        archive = Path(os.environ["CAIRN_TAR"])
    else:
        archive = Path(sh(ROOT / "scripts/package", "--tar", tmp_path_factory.mktemp("tar"), timeout=3600).stdout.splitlines()[-1])
    root = tmp_path_factory.mktemp("roots") / "bare"
    make_root(root)
    sh("chroot", root, "useradd", "--create-home", "--shell", "/bin/sh", "alice")
    shutil.copy(archive, root / "home/alice/cairn.tar.gz")
    (root / "home/alice/job.yaml").write_text(JOB, encoding="utf-8")
    return root


def inside(root, script, check=True):
    """A script of alice, in a container without systemd."""
    return sh("systemd-nspawn", "--quiet", f"--directory={root}", "--register=no", "--keep-unit", "--as-pid2", "--pipe", "--private-network",
              "runuser", "-l", "alice", "-c", f"set -e; {script}", check=check, timeout=600)


def test_it_trains_from_any_folder(bare):
    """Also from another one than where it was unpacked, by a link, and whatever the loader is told."""
    digests = []
    for place in ("here", "a folder/of its own"):
        done = inside(bare, f'mkdir -p "{place}"; tar -xzf cairn.tar.gz -C "{place}" --strip-components=1; '
                            f'ln -sf "$PWD/{place}/bin/cairn" "$HOME/cairn-link"; export LD_LIBRARY_PATH=/nowhere; '
                            './cairn-link up; job=$(./cairn-link submit job.yaml -o name); ./cairn-link watch $job; '
                            './cairn-link ckpt digest $job; ./cairn-link down')
        digests.append(re.findall(r"^[0-9a-f]{32}$", done.stdout, re.M)[-1])
    print("\ndigest", *digests)
    assert len(set(digests)) == 1


def test_it_takes_no_library_from_outside_but_the_c_library(bare):
    done = inside(bare, "mkdir -p there; tar -xzf cairn.tar.gz -C there --strip-components=1; for p in there/bin/* there/lib/cairn/*; do "
                        "echo \"$p:\"; LD_LIBRARY_PATH=$PWD/there/lib/cairn ldd $p; done; echo programs:; for p in there/bin/*; do ldd $p; done")
    assert "not found" not in done.stdout
    programs = done.stdout.split("programs:\n")[1]
    taken = {path for path in re.findall(r"=> (\S+)", programs)}
    outside = {path for path in taken if not path.startswith("/home/alice/there/")}
    print(f"\n{len(taken - outside)} libraries inside; from outside: {sorted(outside)}")
    assert outside and all(C_LIBRARY.search(path) for path in outside), outside


def test_each_library_has_its_licence(bare):
    done = inside(bare, "mkdir -p there; tar -xzf cairn.tar.gz -C there --strip-components=1; ls there/lib/cairn; echo licences:; "
                        "cd there/share/doc/cairn; ls licences; wc -c licences/* LICENSE | awk '$1 < 200'")
    libraries, licences = (set(part.split()) for part in done.stdout.split("licences:\n"))
    assert len(libraries) > 30 and {"libgrpc29", "libdnnl2", "libgomp1", "libjs-dygraphs"} <= licences
    assert {name for name in libraries if name.startswith("libgrpc")} and "libc6" not in licences


def test_no_symbol_wants_a_newer_c_library_than_we_say(bare):
    """glibc 2.36, as docs/install.md has it."""
    folder = bare / "home/alice/symbols"
    folder.mkdir()
    sh("tar", "-xzf", bare / "home/alice/cairn.tar.gz", "-C", folder, "--strip-components=1")
    wanted = set()
    for file in (*(folder / "bin").iterdir(), *(folder / "lib/cairn").iterdir()):
        wanted |= set(re.findall(r"\(GLIBC_2\.(\d+)", sh("objdump", "-T", file).stdout))
    assert max(map(int, wanted)) <= 36, sorted(wanted)
    assert "glibc 2.36" in (ROOT / "docs/install.md").read_text(encoding="utf-8")
