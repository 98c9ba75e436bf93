#!/usr/bin/env python3
"""to_wandb.py JOB [PROJECT]: the numbers of a job in Weights & Biases, as they come, until the job is over.

Started again it goes on with the job's run where that ends. Needs `cairn` and `pip install wandb`.
"""
import json
import subprocess
import sys

import wandb

NO_METRICS = ("step", "unix_seconds")


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    job = sys.argv[1]
    run = wandb.init(project=sys.argv[2] if len(sys.argv) > 2 else "cairn", id=job, name=job, resume="allow")
    command = ["cairn", "metrics", job, "-f", "-o", "jsonl"]
    if run.resumed:
        command += ["--since", str(run.step - 1)]  # it is the one that would come next
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cairn:
        for line in cairn.stdout:
            row = json.loads(line)
            run.log({name: value for name, value in row.items() if name not in NO_METRICS and value is not None},
                    step=row["step"])
    run.finish(exit_code=cairn.returncode)
    sys.exit(cairn.returncode)


if __name__ == "__main__":
    main()
