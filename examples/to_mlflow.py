#!/usr/bin/env python3
"""to_mlflow.py JOB [EXPERIMENT]: the numbers of a job in MLflow, as they come, until the job is over.

MLFLOW_TRACKING_URI says where (http://127.0.0.1:5000), MLFLOW_TRACKING_TOKEN is sent, if it is set. Started again it goes
on with the job's run where that ends. Needs `cairn` and nothing else that isn't Python's own.
"""
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request

URI = os.environ.get("MLFLOW_TRACKING_URI", "http://127.0.0.1:5000").rstrip("/")
TOGETHER = 50  # rows in one request: MLflow takes a thousand numbers
NO_METRICS = ("step", "generation", "unix_seconds")


def call(path, but=None, **body):
    """The answer; None if its status is `but`. Without an answer the script ends."""
    headers = {"Content-Type": "application/json"}
    if "MLFLOW_TRACKING_TOKEN" in os.environ:
        headers["Authorization"] = "Bearer " + os.environ["MLFLOW_TRACKING_TOKEN"]
    try:
        request = urllib.request.Request(f"{URI}/api/2.0/mlflow/{path}", json.dumps(body).encode(), headers)
        with urllib.request.urlopen(request, timeout=30) as reply:
            return json.load(reply)
    except urllib.error.HTTPError as error:
        if error.code == but:
            return None
        why = f"it answers {path} with {error.code} {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", error)
    sys.exit(f"to_mlflow.py: no MLflow at {URI}: {why}; MLFLOW_TRACKING_URI says where it is")


def experiment_of(name):
    made = call("experiments/create", but=400, name=name)
    if made:
        return made["experiment_id"]
    # It is there already.
    found = call("experiments/search", filter=f"name = '{name}'", max_results=1)
    return found["experiments"][0]["experiment_id"]


def run_of(experiment, job):
    """The job's run, and the last step that it has."""
    found = call("runs/search", experiment_ids=[experiment], filter=f"tags.`cairn.job` = '{job}'", max_results=1)
    if found.get("runs"):
        run = found["runs"][0]
        return run["info"]["run_id"], max([int(m.get("step", 0)) for m in run["data"].get("metrics", [])], default=0)
    made = call("runs/create", experiment_id=experiment, run_name=job, start_time=int(time.time() * 1000),
                tags=[{"key": "cairn.job", "value": job}])
    return made["run"]["info"]["run_id"], 0


def metrics_of(row):
    return [{"key": name, "value": value, "timestamp": int(row["unix_seconds"] * 1000), "step": row["step"]}
            for name, value in row.items() if name not in NO_METRICS and value is not None]


def main():
    if not 2 <= len(sys.argv) <= 3:
        sys.exit(__doc__)
    job = sys.argv[1]
    run, step = run_of(experiment_of(sys.argv[2] if len(sys.argv) > 2 else "cairn"), job)
    command = ["cairn", "metrics", job, "-f", "-o", "jsonl", "--since", str(step)]
    rows, sent = [], time.monotonic()
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as cairn:
        try:
            for line in cairn.stdout:
                rows.append(json.loads(line))
                if len(rows) == TOGETHER or time.monotonic() > sent + 2:
                    call("runs/log-batch", run_id=run, metrics=[m for row in rows for m in metrics_of(row)])
                    rows, sent = [], time.monotonic()
        except SystemExit:
            cairn.terminate()  # it would go on until the job is over
            raise
    if rows:
        call("runs/log-batch", run_id=run, metrics=[m for row in rows for m in metrics_of(row)])
    if cairn.returncode == 0:
        call("runs/update", run_id=run, status="FINISHED", end_time=int(time.time() * 1000))
    sys.exit(cairn.returncode)


if __name__ == "__main__":
    main()
