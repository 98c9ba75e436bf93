"""What happened to a job is told: each recovery with its cause and its seconds, by `why` and by `show`."""
import json
import os
import re
import signal

import grpc
import pytest

from home import Home, until

PARTS = ["detect", "end", "wait", "form", "restore", "replay"]
EVERY_STEP = {"checkpoint__every": "1000 steps", "checkpoint__memory_every": "1 step"}
STORED = {"checkpoint__every": "4 steps", "checkpoint__memory_every": "none"}


def killed(home, step, **sets):
    """The job, whose worker of rank 1 was killed while it computed a step."""
    job = home.submit(**sets)
    home.wait_hit("trainer.forward")
    saved = step // 4 * 4 if "checkpoint__every" in sets and sets["checkpoint__every"] == "4 steps" else 0
    until(lambda: saved == 0 or saved in [c["step"] for c in home.show(job)["checkpoints"]], 10, "it is saved")
    os.kill(home.show(job)["workers"][1]["pid"], signal.SIGKILL)
    home.digest(job)
    return job


def explained(home, job):
    return json.loads(home.cairn("why", job, "-o", "json").stdout), home.cairn("why", job).stdout


@pytest.mark.parametrize("sets, kind", [(STORED, "live"), (EVERY_STEP, "memory"), (STORED, "checkpoint"),
                                        ({"checkpoint__every": "1000 steps"}, "seed")], ids=["live", "memory", "checkpoint", "seed"])
def test_a_killed_worker_is_one_recovery(sets, kind):
    with Home(env=None if kind == "live" else Home.RESTART, faults="trainer.forward,rank=1,step=7:wait") as home:
        job = killed(home, 7, **sets)
        shown = home.show(job)
        why, text = explained(home, job)
        first, second = why["generations"]
        assert shown["recovery_count"] == len(shown["recoveries"]) == 1 and why["job"]["recoveries"] == shown["recoveries"]
        one = shown["recoveries"][0]
        assert (one["kind"], one["rank"], one["cause"], one["state"]) == (kind, 1, "process gone", "done"), one
        assert (one["ended"], one["generation"], one["node"]) == (1, 2, shown["workers"][1]["node"])
        # What was replayed is what was finished and isn't in what was restored.
        assert one["step"] == second["from_step"]
        assert one["steps_lost"] == max(0, first["to_step"] - one["step"])
        if kind == "live":
            assert one["step"] in (6, 7) and one["steps_lost"] <= 7 - one["step"]
        elif kind == "memory":
            assert one["steps_lost"] <= 1
        else:
            assert one["step"] == (4 if kind == "checkpoint" else 0) and one["steps_lost"] in (6 - one["step"], 7 - one["step"], 8 - one["step"])
        assert list(one["seconds"]) == PARTS and all(s >= 0 for s in one["seconds"].values())
        assert one["seconds"]["form"] > 0 and (one["steps_lost"] == 0 or one["seconds"]["replay"] > 0)
        assert 0 < shown["goodput"] < 1
        # In all it is what the accounts have, but for what was before the first generation ran.
        lost = shown["lost_seconds"]
        assert abs(one["seconds"]["replay"] - lost["replay"]) < 0.01 and abs(one["seconds"]["detect"] - lost["detect"]) < 0.01
        [loss] = why["lost_by_cause"]
        assert (loss["cause"], loss["count"], loss["steps_lost"], loss["seconds"]) == \
            ("process gone", 1, one["steps_lost"], one["seconds"])
        assert why["ending"] is None and why["since"] == shown["ended_at"] and why["advice"][0]["about"] == "process gone"
        tells(text, job, one)
        said = home.cairn("show", job).stdout
        assert re.search(r"^recoveries +1; the newest: process gone, from step \d+ \(" + kind, said, re.M), said
        assert re.search(r"^goodput +\d+\.\d %$", said, re.M), said
        home.kill("cairnd")
        again = until(lambda: home.try_show(job), 20, "the coordinator is back")
        assert again["recoveries"] == shown["recoveries"] and again["goodput"] == shown["goodput"]


def tells(text, job, one):
    assert f"({job}) is SUCCEEDED at step 12 of 12, generation 2, 1 restart." in text
    assert re.search(r"^SUCCEEDED since 20\S+Z\.$", text, re.M)
    assert re.search(r"^Goodput: \d+\.\d %", text, re.M)
    assert re.search(r"^  process gone +1 +%d( +\d+\.\d\d){7}$" % one["steps_lost"], text, re.M), text
    assert re.search(r"What you can do:\n  process gone: `cairn logs tiny --rank 1 --attempt 1`", text)
    line = text[text.index("Time line"):text.index("What happened")].splitlines()
    assert re.match(r"  20\S+Z  generation 1 from step 0 on \S+: .*, to step \d+: process gone: ", line[1]), line
    assert re.match(r"  20\S+Z  recovery: process gone, rank 1 on \S+: killed by signal 9 .*; generation 2 went on from step "
                    rf"{one['step']}, (from|with) .*; {one['steps_lost']} steps? lost; \d+\.\d\d s: detect ", line[2]), line
    assert re.match(rf"  20\S+Z  generation 2 from step {one['step']} on ", line[3]), line


def test_a_pause_is_planned_and_a_failure_without_a_way_on_ends_the_story():
    with Home() as home:
        job = home.submit(train__duration="100000 steps", checkpoint__every="1000 steps")
        until(lambda: home.show(job)["step"] > 20, 20, "it trains")
        assert home.show(job)["recoveries"] == [] and home.show(job)["recovery_count"] == 0
        home.cairn("pause", job, "--wait")
        home.cairn("resume", job)
        shown = until(lambda: (s := home.show(job))["state"] == "RUNNING" and s, 20, "it runs again")
        [one] = shown["recoveries"]
        assert (one["cause"], one["rank"], one["steps_lost"], one["seconds"]["detect"]) == ("planned", -1, 0, 0), one
        assert "generation 1 ended as planned" in home.cairn("why", job).stdout
        home.cairn("kill", job)
        home.wait_state(job, "KILLED")
        bad = home.submit(train__optimizer__lr=1000, train__optimizer__weight_decay=1, train__duration="400 steps")
        home.wait_state(bad, "FAILED")
        why, text = explained(home, bad)
        assert why["ending"]["generation"] == 0 and why["ending"]["cause"] == "user error" and why["ending"]["kind"] == ""
        assert "no generation followed" in text
        assert {"numeric", "user error"} <= {a["about"] for a in why["advice"]}


def blocked(home, job):
    why, text = explained(home, job)
    now = [line for line in text.split("\n") if line.startswith("Now: ")]
    assert not why.get("blocked") or now == ["Now: " + why["blocked"]["text"]], (why.get("blocked"), now)
    return why.get("blocked")


def test_what_blocks_a_job_now_is_told():
    """Computed when it is asked, not what somebody said last: slots, the queue, a store that fails; and nothing."""
    with Home(slots=2) as home:
        first = home.submit(train__duration="100000 steps", workers__count=2)
        until(lambda: home.show(first)["state"] == "RUNNING" and home.show(first)["step"] > 2, 30, "it trains")
        assert blocked(home, first) is None
        second, third = (home.submit(train__duration="100000 steps", workers__count=2) for _ in range(2))
        one = until(lambda: blocked(home, second), 10, "it waits")
        assert one["by"] == "slots" and "2" in one["text"], one
        assert until(lambda: (b := blocked(home, third))["by"] == "queue" and b, 10, "it waits behind")["seconds"] == 0
        debug = json.loads(home.cairn("debug", "job", third).stdout)
        assert debug["job"]["blocked_by"] == "queue" and debug["machine"]["now"]["gen"] == "NONE", debug
        assert len(debug["machine"]["ranks"]) == 2 and "token" not in debug["machine"]["journalled"], debug
        home.cairn("pause", first, "--wait")
        assert blocked(home, first) is None
        until(lambda: home.show(second)["state"] == "RUNNING", 30, "the second trains")
        assert blocked(home, second) is None
        debug = json.loads(home.cairn("debug", "job", second).stdout)["machine"]
        assert debug["now"]["gen"] == "TRAINING" and {r["worker"] for r in debug["ranks"]} == {"READY"}, debug["now"]


def test_a_save_that_may_still_commit_blocks_the_next_generation_and_is_told():
    with Home(faults="commit.manifest_tmp:wait") as home:
        job = home.submit(train__duration="100000 steps", checkpoint__every="20 steps")
        home.wait_hit("commit.manifest_tmp")
        for worker in home.show(job)["workers"]:
            os.kill(worker["pid"], signal.SIGKILL)
        one = until(lambda: (b := blocked(home, job)) and b["by"] == "save" and b, 20, "the save blocks it")
        assert re.match(r"the checkpoint of step \d+ is not done: its manifest is being published", one["text"]), one
        home.go("commit.manifest_tmp")
        until(lambda: home.show(job)["generation"] > 1 and home.show(job)["state"] == "RUNNING", 60, "it goes on")
        assert blocked(home, job) is None


def test_many_ask_at_once():
    """More than may wait for the thread that reads the journal: the same answers for all, of a job that has ended and of
    one that has not."""
    with Home() as home:
        ended, paused = home.submit(), home.submit(train__duration="100000 steps")
        home.wait_state(ended, "SUCCEEDED")
        until(lambda: home.show(paused)["step"] > 2, 60, "it trains")
        home.cairn("pause", paused)
        home.wait_state(paused, "PAUSED")
        channel = grpc.insecure_channel(f"unix:{home.home}/cairnd.sock")
        asked = []
        for i in range(400):
            method = ("GetJob", "ExplainJob", "ListCheckpoints", "ReadMetrics")[i // 2 % 4]
            job = (ended, paused)[i % 2].encode()
            call = channel.unary_unary(f"/cairn.v1.Control/{method}")
            asked.append((method, job, call.future(b"\x0a" + bytes([len(job)]) + job, timeout=60)))
        found = {}
        for method, job, answer in asked:
            found.setdefault((method, job), set()).add(answer.result())
        channel.close()
    assert len(found) == 8 and {len(answers) for answers in found.values()} == {1}, {k: len(v) for k, v in found.items()}
    assert all(answer for answers in found.values() for answer in answers)
