"""All JSON that anybody is given: each command with -o json and jsonl, and the observer's HTTP interface.

The home has jobs in the states that make a difference. Commands come from the table of the program itself, routes from
that of the observer: a new one that isn't here fails.
"""
import copy
import json
import os
import re
import signal
from pathlib import Path

import pytest

from contract import HEX, NUMBER, Broken, Contract, Map, Maybe, OneOf, read
from home import Home, until
from test_page import Browser, token_of
from test_suspect import node, ready

ROUTES = Path(__file__).resolve().parents[2] / "observer" / "http" / "route.c"
ANYTHING = OneOf(str, int, float, bool)
LONG = {"train__duration": "100000 steps", "eval__every": "50 steps", "checkpoint__every": "500 steps"}

VERIFIED = {"path": str, "good": bool, "status": str, "findings": [str]}
SCALAR = {"name": str, "a": Maybe(NUMBER), "b": Maybe(NUMBER), "differs": bool}
DIFFERENCE = {"name": str, "result": str, "shape": [int], "dtype_a": Maybe(str), "dtype_b": Maybe(str), "elements": int,
              "differing": int, "bits": int, "not_finite": int, "max_abs": Maybe(NUMBER), "relative": Maybe(NUMBER)}
CHECKPOINT = {
    "path": str, "job": str, "step": int, "generation": int, "parent": Maybe({"step": int, "generation": int}),
    "digest": HEX, "committed_at": str, "times": Maybe("SaveTimes"), "raw_bytes": int,
    "files": [{"name": str, "size": int, "xxh3_128": HEX}], "buffers": [{"name": str, "dtype": str, "count": int}],
    "scalars": {"seed": int, "step": int, "epoch": int, "epoch_step": int, "loss_scale": float,
                "loss_scale_good_steps": int, "skip": [int], "skip_older": int},
    "blobs": [{"name": str, "size": int}],
    "tensors": [{"name": str, "dtype": str, "shape": [int], "bytes": int, "in": str, "buffer": int, "offset": int}]}
SCRUBBED = {"good": int, "damaged": int, "set_aside": int, "unread": int, "skipped": int, "bytes": int, "seconds": float,
            "checkpoints": [OneOf(VERIFIED, {**VERIFIED, "coordinator": str, "set_aside": Maybe(str)})]}
OF_LINES = {"ckpt scrub": SCRUBBED["checkpoints"]}  # what jsonl has instead
EXCHANGE = dict.fromkeys((f"all_{kind}_{what}" for kind in ("reduce", "to_all") for what in ("s", "algbw", "busbw")), NUMBER)
MEASURED = {"device": str, "transport": str, "ranks": int, "copy_bytes_per_s": [NUMBER],
            "exchanges": [{"bytes": int, **EXCHANGE}]}
ROW = {"step": int, "generation": int, **dict.fromkeys(
    ("loss", "lr", "grad_norm", "eval_loss", "eval_accuracy", "samples_per_second", "seconds", "epoch", "unix_seconds",
     "data_seconds", "forward_seconds", "backward_seconds", "communication_seconds", "optimizer_seconds",
     "snapshot_seconds"), Maybe(float))}
LOGGED = Map(ANYTHING, ("rank", "generation", "msg"))
AUDITED = {"from": int, "to": int, "equal": bool, "digest": HEX, "computed": HEX}

# Commands whose results are a list or an object: {command: ([arguments...], its shape)}. {over} and so on: of the jobs.
# With jsonl a list has a line for each member.
LOOKS = {
    "ps": ([""], ["Job"]),
    "show": (["{runs}", "{failed}", "{over}", "{killed}", "{waits}", "{paused}", "{back}"], "Job"),
    "debug job": (["{runs}", "{failed}", "{over}", "{waits}", "{paused}"], Map(dict, ("job", "machine"))),
    "ckpt ls": (["{runs}", "{over}", "{back}", "{store}"], ["Checkpoint"]),
    "ckpt show": (["{over}", "{over}@4", "{over}@8", "{half}"], CHECKPOINT),
    "ckpt verify": (["{over}@all", "{half}"], [VERIFIED]),
    "ckpt scrub": (["{over}", "{store}"], SCRUBBED),
    "ckpt digest": (["{over}@4"], {"path": str, "digest": HEX}),
    "ckpt diff": (["{over}@4 {over}@8", "{over}@12 {over}@12"],
                  {"a": str, "b": str, "equal": bool, "scalars": [SCALAR], "tensors": [DIFFERENCE]}),
    "ckpt export": (["{over} model.safetensors --force"],
                    {"file": str, "tensors": int, "elements": int, "bytes": int, "overflows": int}),
    "ckpt import": (["model.safetensors --job job-0.yaml --to made-{format}"], {"path": str, "digest": HEX, "parameters": int}),
    "audit": (["{over}@4..8"], AUDITED),
    "node ls": ([""], ["Node"]),
    "node check": (["--device cpu"], MEASURED),
    "version": ([""], {"version": str, "coordinator": Maybe("GetVersionReply")}),
    "cert init": (["--dir {format}-ca"], ["Certificate"]),
    "cert node": (["gpu-07 --dir {format}-ca"], ["Certificate"]),
    "cert operator": (["alice --dir {format}-ca"], ["Certificate"]),
    "cert viewer": (["bob --dir {format}-ca"], ["Certificate"]),
    "cert check": (["{format}-ca/coordinator.crt"], ["Certificate"]),
    "cert renew": (["{format}-ca/coordinator.crt --dir {format}-ca"], ["Certificate"]),
    "cert show": (["--dir {format}-ca"], ["Certificate"]),
    "context ls": ([""], ["Context"]),
    "context show": (["", "lab"], "Context"),
    "webhook ls": ([""], ["Webhook"]),
    "webhook test": (["", "team"], ["WebhookTest"]),
}
# Each line of both formats: {command: ([arguments], shape)}.
LINES = {
    "watch": (["{over}", "{failed}", "{killed}"], "JobUpdate"),
    "logs": (["{over}", "{back}", "{back} --attempt 1 --rank 1"], LOGGED),
    "metrics": (["{over}", "{failed}", "{back} --since 5"], ROW),
}
# As they are asked of a job that runs, in this order.
CHANGES = [("save", "", "SaveCheckpointReply"), ("set", "workers.count=1", "Job"), ("pause", "--wait", "Job"),
           ("resume", "--wait", "Job"), ("stop", "--wait", "Job")]
ELSEWHERE = {"why", "submit", "kill", "rm", "node drain", "node undrain", "ckpt rm", *(command for command, _, _ in CHANGES)}
TEXT = {  # say something else
    "up": "where the page is", "top": "refuses -o json", "down": "nothing", "open": "a link", "completion": "a script", "plan": "refuses -o json",
    "context add": "nothing", "context use": "nothing", "context rm": "nothing",
    "bundle": "-o is the file there", "node invite": "likewise", "node forget": "needs a coordinator that speaks TLS; a Node as node drain",
}


@pytest.fixture(scope="module", name="contract")
def contract_of_the_protos():
    return Contract()


def kill(home, job):
    """One of its workers; it comes back."""
    before = home.show(job)["generation"]
    os.kill(home.show(job)["workers"][1]["pid"], signal.SIGKILL)
    until(lambda: (s := home.show(job))["generation"] > before and s["state"] == "RUNNING", 60, "another generation runs")


@pytest.fixture(scope="module", name="home")
def home_with_jobs_of_all_kinds():
    with Home(slots=6) as home, node(home, "another", 2):
        (home.home / "webhooks.yaml").write_text("webhooks:\n  - {name: team, url: 'http://127.0.0.1:9/'}\n", encoding="utf-8")
        (home.home / "webhooks.yaml").chmod(0o600)
        until(lambda: "another" in ready(home), 20, "two nodes")
        home.cairn("context", "add", "lab", "--addr", "ada:7000")
        home.cairn("node", "drain", "another", "--reason", "new <disks>", "--deadline", "5m")
        kept = {"checkpoint__keep__last": 10, "checkpoint__delta": "true", "eval__every": "4 steps"}
        home.jobs = {"over": home.submit(**kept)}
        home.digest(home.jobs["over"])
        home.jobs["failed"] = home.submit(train__optimizer__lr=1000, train__optimizer__weight_decay=1, train__duration="400 steps")
        home.wait_state(home.jobs["failed"], "FAILED")
        home.jobs["killed"] = home.submit(**LONG)
        until(lambda: home.show(home.jobs["killed"])["step"] > 5, 30, "steps")
        kill(home, home.jobs["killed"])
        home.cairn("kill", home.jobs["killed"])
        home.jobs["paused"] = home.submit(**LONG)
        until(lambda: home.show(home.jobs["paused"])["step"] > 5, 30, "steps")
        home.cairn("pause", home.jobs["paused"], "--wait")
        home.jobs["back"] = home.submit(train__duration="400 steps", checkpoint__memory_every="1 step")
        until(lambda: home.show(home.jobs["back"])["step"] > 5, 30, "steps")
        kill(home, home.jobs["back"])
        home.jobs["runs"] = home.submit(**LONG)
        until(lambda: home.show(home.jobs["runs"])["accuracy"] is not None, 60, "an evaluation")
        kill(home, home.jobs["runs"])
        home.wait_state(home.jobs["back"], "SUCCEEDED")
        home.jobs["waits"] = home.submit(**LONG, train__lanes=8, workers__count=8)
        home.cairn("ckpt", "export", home.jobs["over"], "model.safetensors")
        home.cairn("ckpt", "import", "model.safetensors", "--job", "job-0.yaml", "--to", "half")
        until(lambda: home.show(home.jobs["runs"])["checkpoints"], 60, "a checkpoint")
        yield home


def parse(text, shape, form):
    """What is to be checked, with its shape."""
    if form == "json":
        return [(read(text), shape)]
    return [(read(line), shape[0] if isinstance(shape, list) else shape) for line in text.splitlines()]


def arguments(home, text, form):
    named = {**getattr(home, "jobs", {}), "store": home.dir / "checkpoints", "half": home.dir / "half", "format": form}
    return text.format(**named).split()


def asked(home, command, text, form):
    done = home.cairn(*command.split(), *arguments(home, text, form), "-o", form, timeout=120, check=False)
    assert done.stdout, (command, text, done.returncode, done.stderr)
    return done.stdout


def checked(contract, home, command, text, shape, form):
    out = asked(home, command, text, form)
    shape = OF_LINES.get(command, shape) if form == "jsonl" else shape
    if form == "jsonl" and not isinstance(shape, list) and command not in LINES:
        assert out.count("\n") == 1, (command, out)
    for value, one in parse(out, shape, "jsonl" if command in LINES else form):
        try:
            contract.check(value, one)
        except Broken as broken:
            raise AssertionError(f"cairn {command} {text} -o {form}: {broken}\n{json.dumps(value)[:2000]}") from broken
    return out


@pytest.mark.parametrize("command", [*LOOKS, *LINES])
def test_what_it_prints_is_as_the_contract_says(contract, home, command):
    if command.startswith("cert ") and command != "cert init":
        for form in ("json", "jsonl"):
            home.cairn("cert", "init", "--dir", f"{form}-ca")
    texts, shape = (LOOKS if command in LOOKS else LINES)[command]
    for text in texts:
        for form in ("jsonl",) if command == "metrics" else ("json", "jsonl"):
            checked(contract, home, command, text, shape, form)


def test_why_is_the_reply_with_its_text(contract, home):
    for form in ("json", "jsonl"):
        for name in home.jobs:
            value = read(asked(home, "why", "{%s}" % name, form))
            assert home.jobs[name] in value["text"]
            contract.check(value, "ExplainJobReply")


def test_what_changes_a_job_prints_it(contract, home):
    for form in ("json", "jsonl"):
        job = read(home.cairn("submit", "job-0.yaml", "--set", "train.duration=100000 steps", "-o", form).stdout)
        contract.check(job, "Job")
        until(lambda: home.show(job["id"])["step"] > 5, 60, "steps")
        for command, words, shape in CHANGES:
            done = home.cairn(command, job["id"], *words.split(), "-o", form, timeout=120)
            contract.check(read(done.stdout), shape)
            if command in ("set", "resume"):
                home.wait_state(job["id"], "RUNNING")
        waits = read(home.cairn("submit", "job-0.yaml", "--set", "train.duration=12 steps", "--wait", "-o", form, timeout=120).stdout)
        contract.check(waits, "Job")
        assert waits["state"] == "SUCCEEDED"
        watched = home.cairn("submit", "job-0.yaml", "--set", "train.duration=12 steps", "--watch", "-o", form, timeout=120).stdout
        for line in watched.splitlines():
            contract.check(read(line), "JobUpdate")
        killed = read(home.cairn("submit", "job-0.yaml", "--set", "train.duration=100000 steps", "-o", form).stdout)["id"]
        contract.check(read(home.cairn("kill", killed, "--wait", "-o", form).stdout), "Job")
        removed = read(home.cairn("ckpt", "rm", f"{waits['id']}@8", "-o", form).stdout)
        contract.check(removed, {"path": Maybe(str)})


def test_what_changes_a_node_prints_it(contract, home):
    for form in ("json", "jsonl"):
        for words in (("undrain", "another"), ("drain", "another", "--reason", "ü \"quoted\"\\ <b>")):
            for value, shape in parse(home.cairn("node", *words, "-o", form).stdout, ["Node"], form):
                contract.check(value, shape)


def test_paths_between_nodes(contract):
    with Home(slots=1) as home, node(home, "another", 1):
        until(lambda: "another" in ready(home), 20, "two nodes")
        for form in ("json", "jsonl"):
            for value, shape in parse(asked(home, "node check", "--pairs", form), ["PathCheck"], form):
                contract.check(value, shape)


def test_no_command_is_forgotten(home):
    """The table is what completion has been made of."""
    script = home.cairn("completion", "bash").stdout
    commands = set(re.findall(r'^ +"([a-z ]+)"\) cairn_options="([^"]*)"', script, re.M))
    assert len(commands) > 40
    known = {*LOOKS, *LINES, *ELSEWHERE, *TEXT}
    found = {name for name, options in commands if "--output" in options}
    assert not found - known, f"not here: {sorted(found - known)}"
    assert not known - found, f"there is no such command: {sorted(known - found)}"
    for words in (("plan", "job-0.yaml"), ("top",)):
        refused = home.cairn(*words, "-o", "json", check=False)
        assert refused.returncode == 2 and not refused.stdout


# ---- HTTP ----

COLUMNS = ("step generation unix_seconds epoch loss loss_min loss_max lr grad_norm grad_norm_max samples_per_second seconds "
           "seconds_max data_seconds forward_seconds backward_seconds communication_seconds optimizer_seconds "
           "snapshot_seconds").split()
CURVES = {"job": str, "rows": int, "next_step": int, "columns": dict.fromkeys(COLUMNS, [Maybe(NUMBER)]),
          "evals": {"step": [int], "loss": [Maybe(NUMBER)], "accuracy": [Maybe(NUMBER)]}}
JOBS = {"jobs": ["Job"], "truncated": bool}
NODES = "ListNodesReply"
ERROR = {"error": str}
GETS = {
    "session": {"role": str, "actor": str, "cluster": str},
    "jobs": JOBS,
    "jobs/*": "Job",
    "jobs/*/why": "ExplainJobReply",
    "jobs/*/checkpoints": "ListCheckpointsReply",
    "jobs/*/curves": CURVES,
    "nodes": NODES,
    "system": {"coordinator": Maybe("GetVersionReply"), "up": bool, "error": str,
               "observer": {"version": str, "uptime_s": float, "connections": int, "streams": int}},
}
STREAMS = {
    "live": {"jobs": JOBS, "nodes": NODES, "down": ERROR},
    "jobs/*/live": {"job": "Job", "rows": CURVES, "over": {}},
    "jobs/*/logs": {"lines": [{"rank": int, "attempt": int, "line": str}], "over": {}},
}
POSTS = {"jobs/*/save": "SaveCheckpointReply", "jobs/*/pause": "Job", "jobs/*/resume": "Job", "jobs/*/stop": "Job",
         "nodes/*/drain": "Node", "nodes/*/undrain": "Node"}
NO_JSON = {"jobs/*/metrics.csv"}


@pytest.fixture(name="operator")
def operator_of(home):
    return Browser(home, token_of(home))


def test_what_the_page_is_given(contract, home, operator):
    for path, shape in GETS.items():
        for job in home.jobs.values() if "*" in path else [""]:
            status, _, body = operator.ask("/api/v1/" + path.replace("*", job))
            assert status == 200, (path, status, body)
            contract.check(read(body), shape, f"{path} of {job}:")
    for path in ("jobs/none-such", "jobs/none-such/why", "jobs/none-such/curves", "nothing"):
        status, _, body = operator.ask(f"/api/v1/{path}")
        assert status == 404
        contract.check(read(body), ERROR)


def test_what_comes_live(contract, home, operator):
    for path, events in STREAMS.items():
        for job in (home.jobs["over"], home.jobs["back"]) if "*" in path else [""]:
            seen = set()
            for event, data in operator.events("/api/v1/" + path.replace("*", job)):
                contract.check(data, events[event], f"{path}, {event}:")
                seen.add(event)
                if "*" not in path and seen == {"jobs", "nodes"}:
                    break
            assert seen == set(events) - {"down"}, (path, seen)


def test_what_an_action_answers(contract, home, operator):
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 5, 60, "steps")
    for path, shape in POSTS.items():
        if path == "jobs/*/resume":
            home.wait_state(job, "PAUSED")
        status, _, body = operator.act("/api/v1/" + path.replace("*", job if path.startswith("jobs") else "another"))
        assert status == 200 or path == "nodes/*/drain", (path, status, body)
        contract.check(read(body), shape)


def test_no_route_is_forgotten():
    found = set(re.findall(r'"/api/v1/([a-z*/.]+)"', ROUTES.read_text(encoding="utf-8")))
    assert found == {*GETS, *STREAMS, *POSTS, *NO_JSON}


# ---- the validator itself ----

def planted(job):
    """What must not pass: (what it is, a Job with it)."""
    def other(**changes):
        return {**copy.deepcopy(job), **changes}
    yield "a key that nobody knows", other(colour="red")
    yield "a field that is missing", {key: value for key, value in job.items() if key != "step"}
    yield "a number as a text", other(step=str(job["step"]))
    yield "a true for a number", other(step=True)
    yield "a negative count", other(restarts=-1)
    yield "a count that is too large", other(restarts=1 << 32)
    yield "a whole number for a real one", other(goodput=1)
    yield "a state with its prefix", other(state="JOB_STATE_RUNNING")
    yield "a state as a number", other(state=4)
    yield "null for a text", other(reason=None)
    yield "null for a list", other(workers=None)
    yield "seconds as a list", other(lost_seconds=[{"cause": "detect", "seconds": 1.0}])
    yield "whole seconds", other(lost_seconds={"detect": 1})
    yield "a key deep inside", other(checkpoints=[{**job["checkpoints"][0], "times": {"stall_us": 1}}])
    yield "a text that is none", other(checkpoints=[{**job["checkpoints"][0], "digest": 7}])


def test_the_validator_finds_what_is_wrong(contract, home):
    job = home.show(home.jobs["over"])
    contract.check(job, "Job")
    for what, wrong in planted(job):
        with pytest.raises(Broken):
            contract.check(wrong, "Job")
            print(f"passed: {what}")
    for text in ('{"a": NaN}', '{"a": Infinity}', '{"a": 1, "a": 2}'):
        with pytest.raises(Broken):
            read(text)
