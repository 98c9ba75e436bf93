"""Who is told to go saves, wherever its program is held: in code that hears no signal, waiting for a rank that is late, stopped in the middle
of a save. A stand-in in plain Python for test_torch_sigterm.py, which needs PyTorch."""
import os
import re
from pathlib import Path

import pytest

from held import logs, newest, tell
from home import BIN, ROOT, Home, alive, until

PROGRAM = ROOT / "tests/e2e/held_program.py"
PACKAGE = Path(os.environ.get("CAIRN_PYTHON", Path(BIN).parent / "python"))
STEPS, AT = 30, 10  # a save is due at AT
pytestmark = pytest.mark.skipif(not (PACKAGE / "cairn/_cairn.abi3.so").exists(), reason="this build has no Python package")


def text(folder, place):
    return f"""\
name: mine
command:
  run: [python3, {PROGRAM}, {folder}, "{STEPS}", {place}, "{AT}"]
  env: {{PYTHONPATH: "{PACKAGE}"}}
workers: {{count: 2}}
checkpoint: {{every: {AT} steps, store: checkpoints/, memory_every: 1 step, grace: 2 s}}
"""


def result():
    weights = [1.0, -2.0, 0.5]
    for step in range(STEPS):
        weights = [weight + 1.0 / (step + at + 1) for at, weight in enumerate(weights)]
    return f"at {STEPS}: {[weight.hex() for weight in weights]}"


@pytest.mark.parametrize("told", ("program", "worker", "pause"))
@pytest.mark.parametrize("place", ("extension", "late", "stopped"))
def test_it_saves_wherever_it_is_held(place, told, tmp_path):
    with Home() as home:
        job = home.submit(text(tmp_path, place))
        until(lambda: (tmp_path / f"{place}.0").exists() and (tmp_path / f"{place}.1").exists(), 30, f"the program is in {place}")
        rank = 1 if place == "stopped" else 0  # who is stopped hears nothing
        waited = tell(home, job, told, int((tmp_path / f"pid.{rank}").read_text(encoding="utf-8")))
        until(lambda: not alive(waited), 20, "it has ended")
        if told == "pause":
            home.wait_state(job, "PAUSED")
        saved = newest(home.show(job))
        assert saved == AT - 1 or (saved == AT and place != "stopped")
        assert f"its copy of step {saved} is saved instead" in logs(home, job)
        why = home.cairn("why", job).stdout
        assert f"step {saved} is saved instead, of which all ranks had a copy" in why, why
        if told == "pause":
            home.cairn("resume", job)
        home.wait_state(job, "SUCCEEDED")
        assert re.findall(r"^at \d+: .*$", logs(home, job), re.M)[-2:] == [result()] * 2
        assert ("a copy that it has begun: it is given up" in logs(home, job)) == (place == "stopped")
