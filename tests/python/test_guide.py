"""The listings of docs/pytorch.md, as people copy them: each runs without Cairn; under it, the last two are killed and go on."""
import os
import re
import signal
import subprocess
import sys

import pytest

from torch_peer import PYTHON, ROOT, environment, free_port, needs_peer

sys.path.insert(0, str(ROOT / "tests/e2e"))
pytestmark = needs_peer
BIN = os.environ.get("CAIRN_BIN")
PACKAGE = os.environ.get("CAIRN_PYTHON")
under = pytest.mark.skipif(not BIN or not PACKAGE, reason="CAIRN_BIN and CAIRN_PYTHON name the programs and the built package")


def listings():
    """{step: (program, job file)}; step 2 has the program of step 1."""
    found, program = {}, None
    for number, text in re.findall(r"^## (\d)\. .*?\n(.*?)(?=^## )", (ROOT / "docs/pytorch.md").read_text(encoding="utf-8"), re.M | re.S):
        code = dict(re.findall(r"^```(python|yaml)\n(.*?)^```", text, re.M | re.S))
        program = code.get("python", program)
        found[int(number)] = (program, code["yaml"])
    return found


def weights(text):
    return sorted(set(re.findall(r"^weights (\S+)$", text, re.M)))


def alone(folder, program, size=1):
    (folder / "alone.py").write_text(program, encoding="utf-8")
    more = dict(environment(), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(free_port()), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size))
    if PACKAGE:
        more["PYTHONPATH"] = PACKAGE
    ranks = [subprocess.Popen([PYTHON, "alone.py"], cwd=folder, env=dict(more, RANK=str(rank), LOCAL_RANK=str(rank)), text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT) for rank in range(size)]
    said = [rank.communicate(timeout=300)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * size, said
    return said[0]


def test_the_guide_has_four_steps():
    assert sorted(listings()) == [1, 2, 3, 4]
    for program, job in listings().values():
        compile(program, "train.py", "exec")
        assert job.startswith("name: mine\ncommand:\n")


def test_step_1_runs_alone(tmp_path):
    assert alone(tmp_path, listings()[1][0]).endswith("step 60\n")


@under
@pytest.mark.parametrize("step", (1, 2, 3, 4))
def test_each_step_runs_under_cairn(tmp_path, step):
    from home import Home, until
    program, job = listings()[step]
    (tmp_path / "train.py").write_text(program.replace("optimizer.step()", "optimizer.step(); __import__('time').sleep(0.05)"), encoding="utf-8")
    (tmp_path / "job.yaml").write_text(job.replace("[python3, train.py]", f"[{PYTHON}, train.py]\n  workdir: {tmp_path}\n"
                                                   f"  env: {{PYTHONPATH: {PACKAGE}}}"), encoding="utf-8")
    with Home() as home:
        name = home.submit((tmp_path / "job.yaml").read_text(encoding="utf-8"))
        if step >= 3:
            until(lambda: home.show(name)["step"] >= 20, 120, "step 20")
            os.kill(program_of(home, 0), signal.SIGKILL)
        home.wait_state(name, "SUCCEEDED", seconds=200)
        said = "".join(path.read_text(encoding="utf-8") for path in sorted(home.home.glob(f"jobs/{name}/*/*.log")))
        assert home.show(name)["step"] == 60
        if step >= 3:
            assert home.show(name)["restarts"] == 1
            quiet = alone(tmp_path, program, 1)
            assert weights(said) == weights(quiet) and len(weights(quiet)) == 1


def program_of(home, rank):
    """The process of that rank: the youngest child of its worker."""
    from pathlib import Path
    for pid in home.pids("cairn-trainer"):
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if arguments[arguments.index(b"--rank") + 1] == str(rank).encode():
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="utf-8").split()[-1])
    return None
