"""One clean curve, as the real TensorBoard reads it: its library, and its program with both of its readers, while the
job goes back twenty times and the writer is killed in the middle of a record."""
import json
import math
import os
import random
import resource
import signal
import socket
import struct
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
from library import PYTHON, missing, readers  # noqa: E402

ROWS = Path(os.environ.get("TENSORBOARD_ROWS", HERE.parents[1] / "build/dev/tests/tensorboard_rows"))
REWINDS = 20
STEPS = 400
UNLIMITED = resource.RLIM_INFINITY
# Tag: the row's column.
TAGS = {"train/loss": "loss", "val/loss": "eval_loss", "val/accuracy": "eval_accuracy", "optim/lr": "lr",
        "optim/grad_norm": "grad_norm", "perf/samples_per_second": "samples_per_second", "time/step": "seconds"}
TAGS |= {f"time/{phase}": f"{phase}_seconds"
         for phase in ("data", "forward", "backward", "communication", "optimizer", "snapshot")}

pytestmark = pytest.mark.skipif(missing() is not None, reason=str(missing()))


def single(value):
    return struct.unpack("f", struct.pack("f", value))[0]


class Writer:
    """The writer of event files as a process; it may get only so many bytes into a file."""

    def __init__(self, folder, file_bytes=UNLIMITED):
        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, UNLIMITED))
        self.process = subprocess.Popen([ROWS, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                                        preexec_fn=limit)
        self.answer()

    def answer(self):
        self.status, self.next_step, self.generation = map(int, self.process.stdout.readline().split())

    def write(self, rows, flush=True):
        lines = [json.dumps({k: None if v is None or math.isnan(v) else v for k, v in row.items()}) for row in rows]
        self.process.stdin.write("".join(line + "\n" for line in lines + flush * ['{"flush": true}']))
        self.process.stdin.flush()
        if flush:
            self.answer()
            assert self.status == 0

    def end(self, kill):
        if kill:
            self.process.send_signal(signal.SIGKILL)
        self.process.stdin.close()
        self.process.wait(10)
        self.process.stdout.close()


def row_of(generation, step, evaluated):
    chance = random.Random(f"{generation} {step}")
    row = {"step": step, "generation": generation, "unix_seconds": 1.7e9 + generation * 100 + step / 10}
    row |= {column: chance.random() for column in TAGS.values() if not column.startswith("eval")}
    row |= {"eval_loss": chance.random(), "eval_accuracy": chance.random()} if evaluated else {}
    if step % 17 == 0:
        row |= {"loss": None, "grad_norm": None}  # a step that was left out
    return row


def curves(job):
    """{tag: [[step, value], ...]} of the rows of a job, {step: row}"""
    found = {}
    for tag, column in TAGS.items():
        found[tag] = [[step, single(row[column])] for step, row in sorted(job.items()) if row.get(column) is not None]
    return {tag: points for tag, points in found.items() if points}


class TensorBoard:
    """The program itself, as people start it, on a folder of jobs."""

    def __init__(self, folder, fast):
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.port = s.getsockname()[1]
        self.log = open(folder.parent / f"log-{fast}-{self.port}", "wb")
        self.process = subprocess.Popen(
            [PYTHON, "-m", "tensorboard.main", "--logdir", folder, "--port", str(self.port), "--load_fast", fast,
             "--reload_interval", "1", "--samples_per_plugin", "scalars=1000000"], stdout=self.log, stderr=self.log)

    def get(self, what, **args):
        query = urllib.parse.urlencode(args)
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/data/plugin/scalars/{what}?{query}", timeout=10) as r:
            return json.load(r)

    def shows(self, run):
        try:
            tags = self.get("tags").get(run, {})
            points = {tag: [point[1:] for point in self.get("scalars", run=run, tag=tag)] for tag in tags}
            return {tag: some for tag, some in points.items() if some}
        except OSError:  # it starts
            return None

    def wait(self, run, wanted, seconds=90):
        end = time.monotonic() + seconds
        while True:
            shown = self.shows(run)
            if shown == wanted:
                return
            if time.monotonic() > end:
                assert shown == wanted, f"port {self.port} after {seconds} s"
            time.sleep(0.3)

    def stop(self):
        self.process.terminate()
        self.process.wait(20)
        self.log.close()


@pytest.fixture(name="boards")
def running_boards(tmp_path):
    (tmp_path / "logs").mkdir()
    boards = [TensorBoard(tmp_path / "logs", fast) for fast in readers()]
    yield boards
    for board in boards:
        board.stop()


def newest(folder):
    return max(folder.glob("*tfevents*"), default=None)


def crash(folder, chance, rows):
    """A writer that dies within a record, most often: of a START, of one of these rows."""
    file = newest(folder)
    size = file.stat().st_size if file else 0
    writer = Writer(folder, size + chance.randrange(1, 300 * len(rows)))
    writer.process.stdin.write("".join(json.dumps(row) + "\n" for row in rows) + '{"flush": true}\n')
    writer.process.stdin.flush()
    writer.answer()
    writer.end(kill=True)


def train(folder, chance, job, generation, start, stop):
    """Rows of one attempt, the writer being killed and started over and over."""
    every = chance.choice((7, 10, 13, 400))
    rows = {step: row_of(generation, step, step % every == 0) for step in range(start, stop + 1)}
    for step in [step for step in job if step >= start]:
        del job[step]
    while rows and stop not in job:
        how = chance.choice(("killed", "torn", "ended", "killed before it wrote"))
        writer = Writer(folder)
        begin = writer.next_step if writer.generation == generation else min(writer.next_step, start)
        some = [rows[step] for step in range(begin, min(stop, begin + chance.randrange(1, 80)) + 1)]
        if how == "torn" and some:
            writer.end(kill=True)
            crash(folder, chance, some)
            continue
        writer.write(some, flush=how != "killed before it wrote")
        writer.end(kill=how != "ended")
        if how != "killed before it wrote":
            job.update((step, rows[step]) for step in range(start, writer.next_step))


def test_one_clean_curve(tmp_path, boards):
    folder, chance, job, stop = tmp_path / "logs" / "tiny-j-01", random.Random(5), {}, 0
    for generation in range(1, REWINDS + 2):
        start = chance.randrange(1, stop + 1) if stop else 1
        stop = STEPS if generation > REWINDS else chance.randrange(start, STEPS - 20)
        train(folder, chance, job, generation, start, stop)
        if generation in (3, 11):  # in between, too
            for board in boards:
                board.wait("tiny-j-01", curves(job))
    wanted = curves(job)
    assert [step for step, _ in wanted["optim/lr"]] == list(range(1, STEPS + 1))
    assert len(list(folder.glob("*tfevents*"))) > 5  # some were torn
    for board in boards:
        board.wait("tiny-j-01", wanted)
    found = json.loads(subprocess.run([PYTHON, HERE / "read_back.py", folder], check=True, stdout=subprocess.PIPE).stdout)
    assert found == {"scalars": wanted, "tensors": wanted}
    late = TensorBoard(tmp_path / "logs", "auto")
    try:
        late.wait("tiny-j-01", wanted)
    finally:
        late.stop()
