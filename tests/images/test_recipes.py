"""The recipes of images, without building one: the packages that they install are those that the programs need."""
import os
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(os.environ.get("CAIRN_BIN", ROOT / "build" / "dev" / "bin"))
IMAGES = ROOT / "deploy/images"
PROGRAMS = ("cairn", "cairnd", "cairn-agent", "cairn-trainer", "cairn-observer")
IN_BASE = {"libc6"}
NO_LIBRARY = {"ca-certificates"}  # whom S3's certificates are checked against


def lines_of(path):
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]


def instructions(recipe):
    """[(instruction, its text)], lines joined"""
    text = re.sub(r"\\\n", " ", "\n".join(lines_of(IMAGES / recipe)))
    return [tuple(line.split(None, 1)) for line in text.splitlines()]


def last_stage(recipe):
    told = instructions(recipe)
    return told[max(i for i, (what, _) in enumerate(told) if what == "FROM"):]


def value(recipe, what):
    found = [text for name, text in last_stage(recipe) if name == what]
    assert len(found) == 1 or what in ("LABEL", "RUN", "USER"), (what, found)
    return found[-1]


def packages_of_libraries():
    """{package} of what the programs name themselves; what that needs comes with it."""
    found = set()
    for program in PROGRAMS:
        named = subprocess.run(["objdump", "-p", BIN / program], capture_output=True, text=True, check=True).stdout
        named = set(re.findall(r"NEEDED\s+(\S+)", named))
        placed = subprocess.run(["ldd", BIN / program], capture_output=True, text=True, check=True).stdout
        places = dict(re.findall(r"(\S+) => (/\S+)", placed))
        places |= {Path(path).name: path for path in re.findall(r"^\s+(/\S+) \(", placed, re.MULTILINE)}  # the loader
        assert named <= set(places), f"{program}: {named - set(places)} not found"
        for library in named:
            path = Path(places[library]).resolve()
            paths = [str(path), str(path).removeprefix("/usr")]  # dpkg knows it as the package has it
            owner = next(filter(None, (subprocess.run(["dpkg-query", "-S", one], capture_output=True, text=True,
                                                      check=False).stdout for one in paths)), "")
            assert owner, f"{path} is of no package"
            found.add(owner.split(":")[0])
    return found


def test_the_packages_are_those_of_the_libraries_that_programs_name():
    needed = packages_of_libraries() - IN_BASE
    if any(re.match(r"lib[alut]+san\d", package) for package in needed):
        pytest.skip("programs with sanitizers go into no image")
    listed = set(lines_of(IMAGES / "packages"))
    assert needed - listed == set(), "deploy/images/packages lacks them"
    assert listed - needed - NO_LIBRARY == set(), "no program names a library of them"
    assert lines_of(IMAGES / "packages") == sorted(listed)


@pytest.mark.parametrize("recipe", ["Containerfile.cpu", "Containerfile.cuda"])
def test_what_runs_is_no_root_and_has_no_build_tools(recipe):
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", value(recipe, "USER"))
    for what, text in last_stage(recipe):
        assert "scripts/packages" not in text and "build-essential" not in text
        if what == "COPY":
            assert text == "--from=build /installed /"


def test_process_1_is_a_program_and_no_shell():
    assert value("Containerfile.cpu", "CMD") == '["cairn", "up", "--foreground"]'
    assert value("Containerfile.cpu", "STOPSIGNAL") == "SIGTERM"
    assert value("Containerfile.cpu", "VOLUME") == "/var/lib/cairn"
    assert "CAIRN_HOME=/var/lib/cairn" in value("Containerfile.cpu", "ENV")
    assert "container=oci" in value("Containerfile.cpu", "ENV")  # an agent behind an init leaves on SIGTERM, too


def test_wheels_have_versions():
    for line in lines_of(IMAGES / "cuda-wheels"):
        assert re.fullmatch(r"nvidia-[\w-]+==[\d.]+", line), line


def test_containers_are_stopped_no_earlier_than_the_grace_is_over():
    text = (ROOT / "deploy/compose/compose.yaml").read_text(encoding="utf-8")
    services = re.findall(r"^    command: \[(.*)\]\n(?:.*\n)*?    shm_size: (\d+)g.*\n    stop_grace_period: (\d+)s", text, re.M)
    assert len(services) == 2
    for command, shm, stop in services:
        assert int(shm) >= 1
        grace = int(re.search(r'--grace, "?(\d+)', command)[1])
        assert int(stop) >= grace + (5 if "cairn-agent" in command else 25), command


def test_docker_leaves_out_of_its_context_what_podman_does():
    assert (ROOT / ".dockerignore").read_bytes() == (ROOT / ".containerignore").read_bytes()
