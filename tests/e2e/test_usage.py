"""What a job does of what its workers could (MFU), and what workers and machines use: told while it trains, before a kill
and after, in words, as JSON and at /metrics."""
import json
import os
import re
import signal
from pathlib import Path

import pytest

from home import Home, until
from test_page import Browser

# A few milliseconds of products a step, for as long as is looked at.
WORKS = dict(model__hidden=512, train__global_batch=128, data__train__samples=1280, train__lanes=4, checkpoint__every="20 steps",
             train__duration="1000000 steps", eval__every="1000000 steps", checkpoint__keep__last=2)


@pytest.fixture(scope="module", name="home")
def home_with_a_job_that_trains():
    with Home(slots=4, env={"CAIRN_LOG": "debug"}) as home:  # who measured is said so
        home.job = home.submit(**WORKS)
        yield home


def trains(home, what=lambda shown: True, generation=0, seconds=90):
    """The job, once it trains in a later generation and that is true of it."""
    def reached():
        shown = home.try_show(home.job)
        return shown and shown["state"] == "RUNNING" and shown["generation"] > generation and what(shown) and shown
    return until(reached, seconds, "a job that trains and is told so")


def is_measured(shown):
    return shown["mfu"] is not None and all(one["usage"] and one["usage"]["cores"] is not None for one in shown["workers"])


def resident_bytes(pid):
    found = re.search(r"^VmRSS:\s+(\d+) kB$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.M)
    return 1024 * int(found[1])


def cpu_seconds(pid):
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(") ")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def series(home, name):
    """{labels: value}"""
    text = Browser(home).ask("/metrics")[2].decode()
    return {labels: float(value) for labels, value in re.findall(rf"^{name}{{(.*)}} (\S+)$", text, re.M)}


def test_mfu_is_what_the_numbers_beside_it_say(home):
    shown = trains(home, is_measured)
    peaks = [one["peak_flops"] for one in shown["workers"]]
    assert len(peaks) == 2 and all(1e8 < peak < 1e14 for peak in peaks), peaks
    # forward, backward: 512 of hidden and 10 of classes, for 128 samples of 28x28x1; backward skips the data's gradient
    products = 2 * 128 * (784 * 512 + 512 * 10)
    assert 2 * products < shown["flops_per_step"] < 4 * products, shown["flops_per_step"]
    assert 0 < shown["mfu"] < 1.2, shown["mfu"]
    said = shown["flops_per_step"] / (shown["step_ms"] / 1000 * sum(peaks))
    assert abs(shown["mfu"] / said - 1) < 1e-6


def test_a_peak_is_kept_on_the_node(home):
    trains(home, is_measured)
    kept = list((home.home / "peaks").glob("*/*.peak"))
    assert kept and all(one.read_text(encoding="utf-8").startswith("cairn peak 1\n") for one in kept)
    logged = home.cairn("logs", home.job).stdout
    assert logged.count("GFLOP/s at most, as measured") == 2  # once by each


def test_use_is_that_of_the_processes(home):
    first = trains(home, is_measured)
    for one in first["workers"]:
        assert abs(one["usage"]["memory_bytes"] / resident_bytes(one["pid"]) - 1) < 0.5
        threads = len(list(Path(f"/proc/{one['pid']}/task").iterdir()))
        assert abs(one["usage"]["threads"] - threads) <= 4  # as of two seconds ago
        assert 0 < one["usage"]["cpu_seconds"] <= cpu_seconds(one["pid"])
        assert 0 <= one["usage"]["cores"] <= os.cpu_count() + 0.1
        assert one["sent_bytes"] > 0 and one["received_bytes"] > 0
    later = trains(home, lambda shown: shown["workers"][0]["usage"]["cpu_seconds"] > first["workers"][0]["usage"]["cpu_seconds"])
    assert later["workers"][0]["sent_bytes"] > first["workers"][0]["sent_bytes"]
    # Each rank sends what the other receives, but for what is on its way.
    (mine, other) = later["workers"]
    assert abs(mine["sent_bytes"] / other["received_bytes"] - 1) < 0.5


def test_a_machine_tells_what_it_has_and_uses(home):
    def told():
        (node,) = json.loads(home.cairn("node", "ls", "-o", "json").stdout)
        return node["usage"] and node["usage"]["cores"] is not None and node["usage"]
    usage = until(told, 20, "what the machine uses")
    total = int(re.search(r"^MemTotal:\s+(\d+) kB$", Path("/proc/meminfo").read_text(encoding="ascii"), re.M)[1])
    assert usage["memory_bytes"] == 1024 * total
    assert 0 < usage["memory_available_bytes"] < usage["memory_bytes"]
    assert usage["cores_count"] == os.sysconf("SC_NPROCESSORS_ONLN")
    assert 0 < usage["cores"] <= usage["cores_count"] + 0.1
    assert usage["cpu_seconds"] > 0 and usage["received_bytes_per_s"] >= 0 and usage["sent_bytes_per_s"] >= 0


def test_people_and_programs_are_told_the_same(home):
    trains(home, is_measured)
    until(lambda: series(home, "cairn_job_mfu_ratio") and len(series(home, "cairn_job_worker_cpu_seconds_total")) == 2, 30,
          "metrics")
    first = series(home, "cairn_job_worker_cpu_seconds_total")
    shown = home.cairn("show", home.job).stdout
    assert re.search(r"^speed +\d+ samples/s, MFU \d+\.\d %$", shown, re.M), shown
    wide = home.cairn("show", home.job, "-o", "wide").stdout
    assert re.search(r"CORES +MEMORY +SENT +RECEIVED +PEAK$", wide, re.M), wide
    assert len(re.findall(r" \d\.\d\d +[\d.]+ [KMG]iB(?: of [\d.]+ \wiB)? .* GFLOP/s$", wide, re.M)) == 2, wide
    nodes = home.cairn("node", "ls", "-o", "wide").stdout
    assert re.search(r"CORES +MEMORY +RECEIVES +SENDS", nodes) and re.search(r"[\d.]+/\d+ +[\d.]+ \wiB of [\d.]+ \wiB", nodes)
    (ratio,) = series(home, "cairn_job_mfu_ratio").values()
    assert 0 < ratio < 1.2
    for name in ("resident_memory_bytes", "threads", "peak_flops_per_second", "sent_bytes_total", "received_bytes_total"):
        assert all(value > 0 for value in series(home, f"cairn_job_worker_{name}").values()), name
    for name in ("cpu_seconds_total", "cpus", "memory_bytes", "memory_available_bytes"):
        assert [value > 0 for value in series(home, f"cairn_node_{name}").values()] == [True], name
    assert series(home, "cairn_node_gpu_utilization_ratio") == {}  # there is none, which isn't 0

    def grew():
        now = series(home, "cairn_job_worker_cpu_seconds_total")
        return set(now) == set(first) and all(now[one] > first[one] for one in first)
    until(grew, 30, "processor time that grows")


def test_after_a_kill_it_is_still_told_and_nobody_measured(home):
    before = trains(home, is_measured)
    dies = before["workers"][1]["pid"]
    os.kill(dies, signal.SIGKILL)
    after = trains(home, is_measured, before["generation"])
    assert after["workers"][1]["pid"] != dies
    assert 0 < after["mfu"] < 1.2
    peaks = [one["peak_flops"] for one in after["workers"]]
    assert all(peak is not None for peak in peaks), peaks
    # The one that came used less than the one that was there.
    assert after["workers"][1]["usage"]["cpu_seconds"] <= cpu_seconds(after["workers"][1]["pid"])
    logged = home.cairn("logs", home.job, "--attempt", str(after["generation"])).stdout
    measured = [line for line in logged.splitlines() if "GFLOP/s" in line]
    assert len(measured) == 1 and measured[0].startswith("r0 "), logged  # by who was there, in the attempt before


def test_where_no_peak_is_known_none_is_made_up(home):
    before = trains(home, is_measured)
    for one in (home.home / "peaks").glob("*/*.peak"):
        one.write_text("cairn peak 1\nrubbish\n", encoding="ascii")
    os.kill(before["workers"][1]["pid"], signal.SIGKILL)
    after = trains(home, lambda shown: all(one["usage"] for one in shown["workers"]) and shown["step"] > before["step"] + 40,
                   before["generation"])
    assert after["workers"][0]["peak_flops"] is not None  # it remembers
    assert after["workers"][1]["peak_flops"] is None
    assert after["mfu"] is None and after["flops_per_step"] is not None
    assert "MFU" not in home.cairn("show", home.job).stdout
    until(lambda: series(home, "cairn_job_mfu_ratio") == {}, 10, "the observer has asked since")
    home.cairn("kill", home.job)
    home.job = home.submit(**WORKS)  # which measures, and keeps it
    assert 0 < trains(home, is_measured)["mfu"] < 1.2
