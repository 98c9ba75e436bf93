"""What `cairn plan` says that a worker takes is what it takes: the most that its process had in memory is within 5 % of it,
and what programs and libraries take by themselves."""
import os
import re
import subprocess

import pytest

from home import BIN

MIB = 1024  # getrusage counts in KiB
ITSELF = 48  # MiB of a process that trains next to nothing: code, libraries, buffers of files

JOB = """\
name: memory
model: {model}
data: {{train: {{format: synthetic, samples: 64}}}}
train:
  duration: 2 steps
  global_batch: {batch}
  lanes: {lanes}
  optimizer: {optimizer}
  recompute: {recompute}
workers: {{count: 1, threads: 1}}
checkpoint: {{store: checkpoints/}}
"""
SGD = "{name: sgd, lr: 0.01, momentum: 0.9}"
ADAMW = "{name: adamw, lr: 1e-4}"
GPT2 = "{arch: gpt2, layers: 6, heads: 4, width: 256, context: 256, vocab: 8192}"
CASES = {
    "resnet18": ("{arch: resnet18, classes: 10}", 64, 1, SGD),
    "resnet50": ("{arch: resnet50, classes: 10}", 4, 1, SGD),
    "gpt2": (GPT2, 8, 1, ADAMW),
    "gpt2-lanes": (GPT2, 8, 4, ADAMW),
}


def peak_of(job):
    with subprocess.Popen([BIN / "cairn-trainer", "--local", job, "--digest"], stdout=subprocess.DEVNULL) as child:
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
    assert child.returncode == 0
    return usage.ru_maxrss / MIB


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("name", CASES)
def test_a_worker_takes_what_the_plan_says(name, recompute, tmp_path):
    model, batch, lanes, optimizer = CASES[name]
    job = tmp_path / "job.yaml"
    job.write_text(JOB.format(model=model, batch=batch, lanes=lanes, optimizer=optimizer, recompute=recompute),
                   encoding="utf-8")
    said = subprocess.run([BIN / "cairn", "plan", job], capture_output=True, text=True, check=True).stdout
    plan = float(re.search(r"^worker +([\d.]+) MiB", said, re.MULTILINE)[1])
    peak = peak_of(job)
    print(f"{name} {recompute}: {peak:.0f} MiB, planned {plan:.0f}")
    assert 0.95 * plan < peak < 1.05 * plan + ITSELF
