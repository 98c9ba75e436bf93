"""The scripts in examples/ that bring a job's numbers to MLflow and to Weights & Biases, each run against a stand-in:
what arrives is what `cairn metrics` has, once, also when the script is started again."""
import csv
import http.server
import io
import json
import os
import subprocess
import sys
import threading

import pytest

from home import BIN, ROOT, Home

STEPS = 40
HALF = 17  # what a first try got to
WANDB = '''
"""A stand-in: what is logged goes to a file of JSON lines, and is there when the run goes on."""
import json, os, pathlib

class Run:
    def __init__(self, options):
        self.file = pathlib.Path(os.environ["WANDB_STAND_IN"])
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        self.resumed, self.step = bool(lines), 1 + max([json.loads(line)["_step"] for line in lines], default=-1)
        self.options = options

    def log(self, data, step):
        assert step >= self.step, "W&B drops what goes back"
        self.step = step + 1
        with self.file.open("a") as file:
            file.write(json.dumps({"_step": step, **data}) + "\\n")

    def finish(self, exit_code):
        self.file.with_suffix(".run").write_text(json.dumps({**self.options, "exit_code": exit_code}))

def init(**options):
    return Run(options)
'''


class MLflow(http.server.BaseHTTPRequestHandler):
    """As much of a tracking server as a script needs."""

    def do_POST(self):
        assert self.headers["Content-Type"] == "application/json"
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        code, answer = getattr(self, self.path.removeprefix("/api/2.0/mlflow/").replace("/", "_").replace("-", "_"))(body)
        text = json.dumps(answer).encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *args):
        pass

    def experiments_create(self, body):
        if body["name"] in self.server.experiments:
            return 400, {"error_code": "RESOURCE_ALREADY_EXISTS"}
        self.server.experiments.append(body["name"])
        return 200, {"experiment_id": str(len(self.server.experiments))}

    def experiments_search(self, body):
        name = body["filter"].removeprefix("name = '").removesuffix("'")
        return 200, {"experiments": [{"experiment_id": str(1 + self.server.experiments.index(name)), "name": name}]}

    def runs_search(self, body):
        assert body["experiment_ids"] == ["1"]
        job = body["filter"].removeprefix("tags.`cairn.job` = '").removesuffix("'")
        runs = [run for run in self.server.runs.values() if {"key": "cairn.job", "value": job} in run["tags"]]
        newest = {m["key"]: m for run in runs for m in run["metrics"]}
        return 200, {"runs": [{"info": {"run_id": run["id"]}, "data": {"metrics": list(newest.values())}}
                              for run in runs]} if runs else {}

    def runs_create(self, body):
        run = f"run-{len(self.server.runs)}"
        self.server.runs[run] = {"id": run, "tags": body["tags"], "metrics": [], "name": body["run_name"]}
        return 200, {"run": {"info": {"run_id": run}}}

    def runs_log_batch(self, body):
        assert 0 < len(body["metrics"]) <= 1000
        for metric in body["metrics"]:
            assert isinstance(metric["value"], float | int) and isinstance(metric["step"], int)
            assert 1.6e12 < metric["timestamp"] < 1e13
            self.server.runs[body["run_id"]]["metrics"].append(metric)
        return 200, {}

    def runs_update(self, body):
        self.server.runs[body["run_id"]]["status"] = body["status"]
        return 200, {}


@pytest.fixture(scope="module", name="home")
def home_with_a_job():
    with Home() as home:
        home.job = home.submit(train__duration=f"{STEPS} steps", eval__every="10 steps")
        home.digest(home.job)
        home.env["PATH"] = f"{BIN}{os.pathsep}{os.environ['PATH']}"
        yield home


def rows_of(home):
    """{step: {column: number}}, without what isn't known"""
    text = home.cairn("metrics", home.job, "-o", "csv").stdout
    return {int(row["step"]): {name: float(value) for name, value in row.items() if value != ""}
            for row in csv.DictReader(io.StringIO(text))}


def run(script, home, **env):
    done = subprocess.run([sys.executable, ROOT / "examples" / script, home.job], env={**home.env, **env}, timeout=60,
                          capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_mlflow(home):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), MLflow) as server:
        server.experiments, server.runs = [], {}
        threading.Thread(target=server.serve_forever, daemon=True).start()
        env = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{server.server_port}"}
        run("to_mlflow.py", home, **env)
        assert server.experiments == ["cairn"] and len(server.runs) == 1
        (only,) = server.runs.values()
        assert (only["name"], only["status"]) == (home.job, "FINISHED")
        wanted = {(name, step): value for step, row in rows_of(home).items() for name, value in row.items()
                  if name not in ("step", "generation", "unix_seconds")}
        assert ("loss", STEPS) in wanted and ("eval_loss", 10) in wanted

        def check():
            assert len(only["metrics"]) == len(wanted)
            assert {(m["key"], m["step"]): m["value"] for m in only["metrics"]} == wanted
        check()
        run("to_mlflow.py", home, **env)
        check()
        only["metrics"][:] = [m for m in only["metrics"] if m["step"] <= HALF]
        run("to_mlflow.py", home, **env)
        check()
        server.shutdown()


def test_mlflow_that_is_not_there_is_one_line(home):
    def call(uri):
        return subprocess.run([sys.executable, ROOT / "examples" / "to_mlflow.py", home.job], timeout=60, capture_output=True, text=True,
                              check=False, env={**home.env, "MLFLOW_TRACKING_URI": uri})

    class Refuses(MLflow):
        def experiments_create(self, body):
            return 401, {"error_code": "UNAUTHENTICATED"}

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refuses) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        refuses = f"http://127.0.0.1:{server.server_port}"
        dones = {uri: call(uri) for uri in ("http://127.0.0.1:1", "nowhere", refuses)}
        server.shutdown()
    for uri, done in dones.items():
        assert done.returncode == 1 and done.stdout == "", done
        assert done.stderr.count("\n") == 1 and done.stderr.startswith(f"to_mlflow.py: no MLflow at {uri}: "), done
    assert "401" in dones[refuses].stderr


def test_wandb(home, tmp_path):
    (tmp_path / "wandb.py").write_text(WANDB, encoding="utf-8")
    file = tmp_path / "logged.jsonl"
    env = {"PYTHONPATH": str(tmp_path), "WANDB_STAND_IN": str(file)}
    wanted = {step: {name: value for name, value in row.items() if name not in ("step", "unix_seconds")}
              for step, row in rows_of(home).items()}

    def check():
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        assert [line["_step"] for line in lines] == list(range(1, STEPS + 1))
        assert {line.pop("_step"): line for line in lines} == wanted
    run("to_wandb.py", home, **env)
    check()
    about = json.loads(file.with_suffix(".run").read_text())
    assert about == {"project": "cairn", "id": home.job, "name": home.job, "resume": "allow", "exit_code": 0}
    lines = file.read_text().splitlines(keepends=True)
    file.write_text("".join(lines[:HALF]), encoding="utf-8")
    run("to_wandb.py", home, **env)
    check()
