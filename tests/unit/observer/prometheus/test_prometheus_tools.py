"""What promtool says of the text, the alerts and the configuration in the docs; every expression of the dashboard and the alerts
parses and asks only for what is told; the table in docs/prometheus.md is the code's.

promtool is Debian's (package prometheus), or what `scripts/packages tests` put into ~/.cache/cairn-tests/promtool.
"""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
ALERTS = ROOT / "deploy/prometheus/alerts.yaml"
DASHBOARD = ROOT / "deploy/grafana/cairn.json"
DOCS = ROOT / "docs/prometheus.md"
FETCHED = Path.home() / ".cache/cairn-tests/promtool/promtool"
PROMTOOL = shutil.which("promtool") or (str(FETCHED) if FETCHED.exists() else None)

needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool: `scripts/packages tests` fetches it (or Debian's package prometheus)")

NAME = re.compile(r"\bcairn_\w+")
SELECTOR = re.compile(r"\b(cairn_\w+)(?:\{([^{}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*"((?:\\.|[^"\\])*)"')
VARIABLES = {"$__rate_interval": "5m", "$__range": "1h", "$__interval": "1m", "$job": ".*"}
# What Prometheus itself adds where the scrape job lacks honor_labels.
RENAMED = {"exported_job"}


def dump(*arguments):
    program = os.environ["CAIRN_PROMETHEUS_DUMP"]
    return subprocess.run([program, *arguments], check=True, capture_output=True).stdout.decode("utf-8")


def families():
    """{name: (type, [labels], help)}"""
    rows = [line.split("\t") for line in dump("--families").splitlines()]
    return {name: (kind, labels.split(",") if labels else [], text) for name, kind, labels, text in rows}


def promtool(*arguments, text=None):
    done = subprocess.run([PROMTOOL, *map(str, arguments)], input=text, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


def alerts():
    """[(name, expression, summary)]: the file is simple enough to be read without a YAML library."""
    found = []
    for part in re.split(r"^ +- alert: ", ALERTS.read_text(encoding="utf-8"), flags=re.M)[1:]:
        name = part.split("\n", 1)[0]
        one = re.search(r"^ +expr: ([^|\n].*)$", part, re.M)
        block = re.search(r"^( +)expr: \|\n((?:\1  .*\n)+)", part, re.M)
        summary = re.search(r'^ +summary: "(.*)"$', part, re.M)
        assert one or block, name
        assert summary, name
        found.append((name, one.group(1) if one else block.group(2), summary.group(1)))
    return found


def walk(value, key=None):
    if isinstance(value, dict):
        for name, part in value.items():
            yield from walk(part, name)
    elif isinstance(value, list):
        for part in value:
            yield from walk(part, key)
    else:
        yield key, value


def dashboard_expressions():
    found = [value for key, value in walk(json.loads(DASHBOARD.read_text(encoding="utf-8"))) if key == "expr"]
    for variable, value in VARIABLES.items():
        found = [text.replace(variable, value) for text in found]
    return found


def docs_expressions():
    table = DOCS.read_text(encoding="utf-8").partition("| what | expression |")[2].partition("\n\n")[0]
    return re.findall(r"\| `(.*)` \|$", table, re.M)


def expressions():
    return [text for _, text, _ in alerts()] + dashboard_expressions() + docs_expressions()


def told():
    """{name: {label: values}} of the made-up page."""
    found = {}
    for line in dump().splitlines():
        if not line.startswith("#"):
            name, labels = SELECTOR.match(line).groups()
            for label, _, value in MATCHER.findall(labels or ""):
                found.setdefault(name, {}).setdefault(label, set()).add(value)
    return found


def wrong_with(expression, known, page):
    """What it asks for that nobody tells: names, labels, and words of fixed lists."""
    for name, matchers in SELECTOR.findall(expression):
        if name not in known:
            yield f"{name} is no metric"
            continue
        for label, how, value in MATCHER.findall(matchers):
            if label in RENAMED:
                continue
            if label not in known[name][1]:
                yield f"{name} has no label {label}"
            elif label not in ("job", "name", "node", "rank", "gpu"):
                words = value.split("|") if how in ("=~", "!~") else [value]
                yield from (f"{name} has no {label} {word}" for word in words if word not in page[name][label])


@needs_promtool
def test_promtool_takes_the_text():
    code, said = promtool("check", "metrics", text=dump())
    assert (code, said) == (0, "")


@needs_promtool
def test_promtool_would_find_mistakes():
    text = dump()
    assert promtool("check", "metrics", text=text.replace("cairn_job_failures_total", "cairn_job_failures"))[0] != 0
    assert promtool("check", "metrics", text=text + "cairn_job_step{job=\"a\n")[0] != 0


@needs_promtool
def test_the_alerts_are_rules():
    code, said = promtool("check", "rules", ALERTS)
    assert code == 0, said
    assert f"{len(alerts())} rules found" in said


@needs_promtool
def test_alerts_come_when_they_should(tmp_path):
    cases = (Path(__file__).parent / "alerts_test.yaml").read_text(encoding="utf-8").replace("ALERTS", str(ALERTS))
    (tmp_path / "cases.yaml").write_text(cases, encoding="utf-8")
    code, said = promtool("test", "rules", tmp_path / "cases.yaml")
    assert code == 0, said


def test_every_alert_says_what_to_do():
    commands = (ROOT / "client/commands.c").read_text(encoding="utf-8")
    for name, _, summary in alerts():
        named = re.findall(r"`cairn ([a-z]+)(?: ([a-z]+))?", summary)
        assert named or name in ("SlotsUndying", "GpuThrottled", "LabelsRenamed"), f"{name} names no command"
        for first, second in named:
            assert re.search(rf'"{first}"', commands), f"{name}: there is no `cairn {first}`"
            assert not second or re.search(rf'"{first}", "{second}"', commands), f"{name}: no `cairn {first} {second}`"


@needs_promtool
def test_every_expression_parses(tmp_path):
    rules = [f"      - {{record: 'cairn:expression_{i}', expr: {json.dumps(text)}}}" for i, text in enumerate(expressions())]
    assert len(rules) > 50
    (tmp_path / "all.yaml").write_text("groups:\n  - name: all\n    rules:\n" + "\n".join(rules) + "\n", encoding="utf-8")
    code, said = promtool("check", "rules", tmp_path / "all.yaml")
    assert code == 0, said


def test_every_expression_asks_for_what_is_told():
    known, page = families(), told()
    for text in expressions():
        assert NAME.search(text), text
        assert list(wrong_with(text, known, page)) == [], text
    planted = 'sum(cairn_job_steps) + cairn_job_state{stat="x"} + cairn_node_state{state=~"lost|gone"}'
    assert list(wrong_with(planted, known, page)) == [
        "cairn_job_steps is no metric", "cairn_job_state has no label stat", "cairn_node_state has no state gone"]


def test_the_dashboard_can_be_imported():
    board = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    ids = [panel["id"] for panel in board["panels"]]
    assert len(ids) == len(set(ids))
    assert [panel["title"] for panel in board["panels"] if panel["type"] == "row"] == ["Fleet", "Job: $job", "Nodes"]
    variables = {one["name"]: one["type"] for one in board["templating"]["list"]}
    assert variables == {"datasource": "datasource", "job": "query"}
    assert all(panel["datasource"]["uid"] == "${datasource}" for panel in board["panels"] if panel["type"] != "row")
    cells = set()
    for panel in board["panels"]:
        at = panel["gridPos"]
        here = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24 and not here & cells, panel["title"]
        cells |= here


def test_the_table_in_the_docs_is_the_code():
    rows = re.findall(r"^\| `(cairn_\w+)` \| (\w+) \| ([^|]*) \| ([^|]*) \|$", DOCS.read_text(encoding="utf-8"), re.M)
    written = {name: (kind, re.findall(r"`(\w+)`", labels), text.strip()) for name, kind, labels, text in rows}
    assert len(written) == len(rows)
    known = families()
    assert list(written) == list(known)
    for name in known:
        assert written[name] == known[name], name


@needs_promtool
def test_the_configuration_in_the_docs_is_one(tmp_path):
    found, *_ = re.findall(r"^```yaml\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.M | re.S)
    assert "honor_labels: true" in found
    shutil.copy(ALERTS, tmp_path / "cairn-alerts.yaml")
    (tmp_path / "prometheus.yml").write_text(found.replace("/etc/prometheus/", f"{tmp_path}/"), encoding="utf-8")
    code, said = promtool("check", "config", tmp_path / "prometheus.yml")
    assert code == 0 and "SUCCESS: 1 rule files found" in said, said


@needs_promtool
@pytest.mark.parametrize("by", ["certificate", "token"])
def test_so_is_that_for_another_machine(tmp_path, by):
    _, found, instead = re.findall(r"^```yaml\n(.*?)^```$", DOCS.read_text(encoding="utf-8"), re.M | re.S)
    if by == "token":
        found = re.sub(r"^ +(cert|key)_file:.*\n", "", found, flags=re.M).replace("    static_configs", instead + "    static_configs")
    names = ("cert_file", "key_file") if by == "certificate" else ("credentials_file",)
    assert set(re.findall(r"\b\w+_file\b", found)) == {"ca_file", *names}
    (tmp_path / "prometheus.yml").write_text(found.replace("/etc/prometheus/", f"{tmp_path}/"), encoding="utf-8")
    code, said = promtool("check", "config", "--syntax-only", tmp_path / "prometheus.yml")
    assert code == 0 and "is valid prometheus config file syntax" in said, said
