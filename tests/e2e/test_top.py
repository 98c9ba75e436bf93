"""cairn top in a terminal, and the order and columns of listings."""
import json
import os
import re
import signal
import subprocess

import pytest

from home import BIN, TINY, Home, until
from terminal import Terminal
from test_suspect import node, ready

LONG = {"train__duration": "1000000 steps", "eval__every": "500 steps", "checkpoint__every": "5000 steps"}
FAST = ("top", "--interval", "300ms")


def named(home, name, **sets):
    return home.submit(TINY.replace("name: tiny", f"name: {name}"), **sets)


@pytest.fixture(scope="module", name="home")
def home_with_jobs():
    with Home(slots=4) as home, node(home, "another", 2):
        until(lambda: "another" in ready(home), 20, "two nodes")
        home.over = named(home, "over")
        home.digest(home.over)
        home.runs = named(home, "runs", **LONG)
        until(lambda: home.show(home.runs)["step"] > 50, 30, "steps")
        home.waits = named(home, "waits", **LONG, train__lanes=8, workers__count=8)
        nodes = json.loads(home.cairn("node", "ls", "-o", "json").stdout)
        home.busy, home.idle = sorted(nodes, key=lambda one: -one["used"])
        yield home


def rows_of(home, *words):
    """The cells of a listing, row by row, with the titles."""
    return [re.split(r" {2,}", line.strip()) for line in home.cairn(*words).stdout.splitlines()]


def ids(home, *words):
    return home.cairn("ps", *words, "-o", "name").stdout.split()


def test_the_length_of_a_job_that_never_formed_is_not_told(home):
    assert f"({home.waits}) is QUEUED at step 0, generation 0, 0 restarts." in home.cairn("why", home.waits).stdout
    with Terminal(home, "watch", home.waits) as terminal:
        shown = terminal.until(lambda text: "step 0" in text and text)
        assert "0/0" not in shown


# ---- ps ----

def test_a_listing_has_the_order_that_is_asked_for(home):
    over, runs, waits = home.over, home.runs, home.waits
    assert ids(home) == [waits, runs, over]
    assert ids(home, "--sort", "name") == [over, runs, waits]
    assert ids(home, "--sort", "-name") == [waits, runs, over]
    assert ids(home, "--sort=-state") == [over, runs, waits]
    assert ids(home, "--sort", "step") == [waits, over, runs]
    assert ids(home, "--sort", "-loss")[-1] == waits  # it has none
    assert ids(home, "--sort", "loss")[-1] == waits
    assert ids(home, "--sort", "name", "-n", "1") == [over]  # the first of all, not of the newest one
    assert ids(home, "--sort", "-name", "--state", "active", "-n", "5") == [waits, runs]
    assert ids(home, "--sort", "name", "--name", "*s", "-n", "0") == []
    listed = json.loads(home.cairn("ps", "--sort", "name", "-o", "json").stdout)
    assert [job["id"] for job in listed] == [over, runs, waits]
    lines = home.cairn("ps", "--sort", "name", "-o", "jsonl").stdout.splitlines()
    assert [json.loads(line)["id"] for line in lines] == [over, runs, waits]


def test_a_listing_has_the_columns_that_are_asked_for(home):
    titles, over, *rest = rows_of(home, "ps", "--sort", "name", "--columns", "name,progress,speed,recoveries,goodput,nodes,elapsed")
    assert titles == ["NAME", "PROGRESS", "SPEED", "RECOVERIES", "GOODPUT", "NODES", "ELAPSED"]
    assert over[:2] == ["over", "100.0 %"] and len(rest) == 2
    runs = rest[0]
    assert runs[0] == "runs" and runs[2].endswith("samples/s") and runs[3] == "0" and runs[4].endswith("%"), runs
    assert runs[5] == home.busy["name"]
    assert rows_of(home, "ps", "-q", "--columns=ID", "--sort=name") == [[home.over], [home.runs], [home.waits]]
    wide = home.cairn("ps", "-o", "wide", "--columns", "id,name").stdout
    assert wide.splitlines()[0].split() == ["ID", "NAME"]
    nodes = rows_of(home, "node", "ls", "--sort", "-used,name", "--columns", "name,used,gpu-heat")
    assert nodes == [["NAME", "USED", "GPU HEAT"], *([one["name"], f"{one['used']}/{one['slots']}", "-"]
                                                     for one in (home.busy, home.idle))], nodes


def test_mistakes_in_columns_are_told_with_the_way_out(home):
    for option in ("--sort", "--columns"):
        listed = home.cairn("ps", option, "help").stdout
        assert re.search(r"^goodput +training that counted", listed, re.M) and re.search(r"^eval-loss ", listed, re.M)
    with Home() as other:  # it needs no coordinator
        other.cairn("down")
        assert other.cairn("ps", "--columns", "help").stdout == listed
    for words, expected in (
            (["--sort", "gpodput"], "--sort: there is no column 'gpodput'; did you mean 'goodput'?"),
            (["--columns", "id,nmae"], "--columns: there is no column 'nmae'; did you mean 'name'?"),
            (["--columns", ""], "--columns: there is no column ''"),
            (["--columns", "id", "-o", "json"], "JSON always has every field"),
            (["--columns", "id", "-o", "name"], "-o name the first one only")):
        done = home.cairn("ps", *words, check=False)
        assert done.returncode == 2 and not done.stdout and expected in done.stderr, (words, done)
    assert "there are: id, name, state" in home.cairn("ps", "--sort", "x", check=False).stderr


def test_a_listing_that_repeats_keeps_its_order(home):
    with Terminal(home, "ps", "-w", "--sort", "name", "--columns", "name,step", "--no-color") as screen:
        first = screen.until(lambda text: re.search(r"NAME +STEP\nover +12/12\nruns +(\d+)/\d+\nwaits +0", text))
        screen.until(lambda text: (m := re.search(r"waits +0\n", text)) and
                     re.search(r"runs +(\d+)/", text).group(1) != first.group(1) and m)
        screen.press("\x03")
        assert screen.wait() == 130


# ---- top ----

def test_top_shows_jobs_nodes_and_events_and_gives_the_terminal_back(home):
    with Terminal(home, *FAST, rows=30, columns=120) as screen:
        text = screen.until(lambda text: "EVENTS" in text and text)
        assert screen.screen.other and screen.screen.hidden
        lines = text.splitlines()
        assert lines[0].startswith("cairn 0.") and str(home.home) in lines[0]
        assert lines[1] == "slots 2/6  nodes 2 ready  jobs 1 running, 1 queued, 1 succeeded"
        assert re.match(r"  NAME +STATE +STEP +LOSS +SPEED +ETA +WORKERS +RECOVERIES +REASON", lines[2])
        assert [line[:7] for line in lines[3:6]] == ["> waits", "  runs ", "  over "]  # the newest, but those that are over last
        assert "needs 8 slots" in lines[3] and re.search(r"RUNNING +\d+/1000000", lines[4])
        assert re.search(rf"^{home.idle['name']} +ready +0/{home.idle['slots']} +-", text, re.M)
        assert re.search(rf"^{home.busy['name']} +ready +2/{home.busy['slots']} +runs 2", text, re.M)
        assert re.search(r"^\d\d:\d\d:\d\d  runs +running", text, re.M)
        assert re.search(r"^q ends  enter opens  s order: live", text, re.M)
        step = int(re.search(r"RUNNING +(\d+)/", text).group(1))
        screen.until(lambda text: int(re.search(r"RUNNING +(\d+)/", text).group(1)) > step)
        assert "1;31" in screen.screen.styles or "32" in screen.screen.styles
        screen.press("q")
        assert screen.wait() == 0
        assert screen.is_as_before()


@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM, "\x03", "\x1c"])
def test_top_gives_the_terminal_back_however_it_ends(home, end):
    with Terminal(home, *FAST) as screen:
        screen.until(lambda text: "EVENTS" in text)
        if isinstance(end, str):
            screen.press(end)
        else:
            os.kill(screen.pid, end)
        assert screen.wait() == (0 if end == "\x1c" else 130)
        assert screen.is_as_before()


def test_keys_choose_and_order_and_open_a_job(home):
    def chosen(text):
        return (re.search(r"^> (\S+)", text, re.M) or [None, None])[1]

    with Terminal(home, *FAST, "--no-color", columns=100) as screen:
        screen.until(lambda text: chosen(text) == "waits" and "EVENTS" in text)
        for key, name in (("j", "runs"), ("\x1b[B", "over"), ("j", "over"), ("\x1b[A", "runs"), ("k", "waits"), ("k", "waits"),
                          ("G", "over"), ("g", "waits"), ("\x1bOB", "runs")):
            screen.press(key)
            screen.until(lambda text, name=name: chosen(text) == name)
        screen.press("s")  # what is chosen stays so
        text = screen.until(lambda text: "order: name" in text and text)
        assert re.findall(r"^[> ] (over|runs|waits) ", text, re.M) == ["over", "runs", "waits"] and chosen(text) == "runs"
        screen.press("r")
        text = screen.until(lambda text: "order: -name" in text and text)
        assert re.findall(r"^[> ] (over|runs|waits) ", text, re.M) == ["waits", "runs", "over"]
        screen.press("h")
        screen.until(lambda text: "the other way round" in text and "NAME" not in text)
        screen.press("x")
        screen.until(lambda text: "NAME" in text and "the other way round" not in text)
        screen.press("\r")
        text = screen.until(lambda text: "q goes back" in text and " = data" in text and "EVENTS" not in text and text)
        assert text.startswith("runs  ") and "RANK" in text
        assert screen.screen.other  # the same screen
        screen.press("q")
        screen.until(lambda text: chosen(text) == "runs" and "EVENTS" in text)
        screen.press("j\r")  # one that is over stays until a key
        screen.until(lambda text: text.startswith("over ") and "SUCCEEDED" in text and "EVENTS" not in text)
        screen.press("\x1b")
        screen.until(lambda text: "EVENTS" in text)
        assert not screen.screen.styles
        screen.press("q")
        assert screen.wait() == 0 and screen.is_as_before()


def test_a_job_that_was_opened_outlives_the_coordinator_and_ctrl_c_ends_all(home):
    with Terminal(home, *FAST, columns=100) as screen:
        screen.until(lambda text: "EVENTS" in text)
        screen.press("j\r")
        step = int(screen.until(lambda text: text.startswith("runs ") and re.search(r"step (\d+)/", text)).group(1))
        home.kill("cairnd")
        screen.until(lambda text: (m := re.search(r"step (\d+)/", text)) and int(m.group(1)) > step + 50, 30)
        screen.resize(24, 60)
        screen.until(lambda text: "left" in text and "q goes back" in text)
        assert screen.screen.widest < 60
        screen.press("\x03")
        assert screen.wait() == 130 and screen.is_as_before()
    until(lambda: home.show(home.runs)["state"] == "RUNNING", 30, "the job goes on")
    until(lambda: len(ready(home)) == 2, 30, "both nodes are back")


def test_top_follows_the_size_of_the_terminal(home):
    with Terminal(home, *FAST, rows=40, columns=150, env={"NO_COLOR": "1"}) as screen:
        screen.until(lambda text: "EVENTS" in text)
        for rows, columns in ((24, 80), (10, 40), (6, 20), (4, 12), (3, 5), (24, 60), (50, 200)):
            screen.resize(rows, columns)
            screen.settle()
            text = screen.settle()
            assert screen.screen.widest < columns and not screen.screen.styles, text
            assert len(text.rstrip().splitlines()) < rows, text
            assert ("> w" in text) == (rows >= 4), text  # the chosen one, wherever a job has room
        screen.until(lambda text: "SPEED" in text and "EVENTS" in text)
        screen.press("q")
        assert screen.wait() == 0


def test_top_waits_for_a_coordinator_that_is_away(home):
    with Terminal(home, *FAST, columns=100) as screen:
        screen.until(lambda text: "EVENTS" in text)
        stopped = home.pids("cairnd")
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)  # it doesn't answer
        text = screen.until(lambda text: text.startswith("the coordinator is away, since ") and text, 20)
        assert "waits" in text and "runs" in text and "NODE" in text  # as last known
        screen.press("j")  # keys work
        screen.until(lambda text: "> runs" in text)
        home.kill("cairnd")
        screen.until(lambda text: text.startswith("cairn 0."), 30)
        screen.until(lambda text: "2 ready" in text, 30)
        screen.press("q")
        assert screen.wait() == 0
    until(lambda: home.show(home.runs)["state"] == "RUNNING", 30, "the job goes on")


def test_nodes_that_leave_and_jobs_that_come_are_seen():
    with Home(slots=2) as home, Terminal(home, *FAST, columns=120) as screen:
        screen.until(lambda text: "jobs none" in text)
        job = named(home, "comes", **LONG)
        screen.until(lambda text: re.search(r"> comes +RUNNING", text))
        screen.until(lambda text: re.search(r"comes +running +generation 1 runs", text))
        name = home.show(job)["workers"][0]["node"]
        home.cairn("node", "drain", name, "--reason", "new disks")
        screen.until(lambda text: re.search(rf"^{name} +draining .*new disks", text, re.M) and "1 draining" in text)
        screen.until(lambda text: re.search(rf"{name} +node +draining: ", text))
        home.cairn("kill", job, "--wait")
        screen.until(lambda text: re.search(r"> comes +KILLED", text))


def test_where_there_is_no_terminal_top_is_one_picture(home):
    done = home.cairn("top")
    assert "\x1b" not in done.stdout and not done.stderr
    assert re.search(r"^runs +RUNNING +\d+/1000000 ", done.stdout, re.M)
    assert re.search(rf"^{home.idle['name']} +ready +0/", done.stdout, re.M) and "q ends" not in done.stdout
    lines = home.cairn("top", "--columns", "name,state", "--sort", "-name").stdout.splitlines()
    assert [line.split()[0] for line in lines[2:6]] == ["NAME", "waits", "runs", "over"], lines
    with Terminal(home, "top", "--once", columns=60) as screen:
        assert screen.wait() == 0
        assert screen.screen.widest < 60 and not screen.screen.other and "EVENTS" in screen.screen.text()
        assert screen.is_as_before()
    dumb = subprocess.run([BIN / "cairn", "top"], env=dict(home.env, TERM="dumb"), capture_output=True, text=True, timeout=30,
                          stdin=subprocess.DEVNULL, check=True)
    assert dumb.stdout.startswith("cairn 0.")


def test_top_refuses_what_it_can_not_do(home):
    for words, code, expected in (
            (["-o", "json"], 2, "'cairn ps -o json' and 'cairn node ls -o json'"),
            (["--interval", "0"], 2, "at least 200 ms"),
            (["--sort", "nmae"], 2, "did you mean 'name'?"),
            (["--addr", "unix:/nowhere/at-all"], 5, "no coordinator answers")):
        done = home.cairn("top", *words, check=False)
        assert done.returncode == code and expected in done.stderr, (words, done)
    with Terminal(home, "top", "--addr", "unix:/nowhere/at-all") as screen:
        assert screen.wait() == 5
        assert screen.is_as_before() and "no coordinator answers" in screen.screen.text()


def test_ctrl_z_gives_the_terminal_to_the_shell_and_fg_takes_it_back(home):
    with Terminal(home, "--norc", "--noprofile", "--noediting", "-i", program="/bin/bash", env={"PS1": "PROMPT> "}) as shell:
        shell.until(lambda text: "PROMPT>" in text)
        shell.press("stty -a | tr ' ' '\\n' | grep -x -e '-*icanon' -e '-*echo'\r")
        shell.until(lambda text: "\nicanon" in text and "\necho" in text)
        shell.press(f"{BIN}/cairn top --interval 300ms\r")
        shell.until(lambda text: "EVENTS" in text and shell.screen.other)
        shell.press("\x1a")
        shell.until(lambda text: "Stopped" in text and not shell.screen.other and not shell.screen.hidden and shell.screen.wraps)
        before = shell.screen.text().count("icanon")
        shell.press("stty -a | tr ' ' '\\n' | grep -x -e '-*icanon' -e '-*echo'\r")
        text = shell.until(lambda text: text.count("icanon") >= before + 2 and text)  # what is typed, and what it says
        assert "\n-icanon" not in text and "\n-echo" not in text and "\nicanon\necho\n" in text
        shell.press("fg\r")
        shell.until(lambda text: "EVENTS" in text and shell.screen.other and shell.screen.hidden)
        shell.press("s")
        shell.until(lambda text: "order: name" in text)
        shell.press("q")
        shell.until(lambda text: not shell.screen.other)
        shell.press("exit\r")
        assert shell.wait() == 0


def test_an_hour_of_looking_takes_no_more_memory_than_a_minute(home):
    """As far as some hundred looks tell. What is touched counts: gRPC starts a thread more, whose
    stack is reserved whole, by the time of day."""
    with Terminal(home, "top", "--interval", "200ms", columns=120) as screen:
        screen.until(lambda text: "EVENTS" in text)

        def looked(times):
            for _ in range(times):
                screen.press(" ")  # looks at once
                screen.settle()
            with open(f"/proc/{screen.pid}/status", encoding="utf-8") as status:
                return int(re.search(r"RssAnon:\s+(\d+)", status.read()).group(1))

        looked(50)
        before = looked(50)
        after = looked(200)
        assert after - before < 512, (before, after)  # KiB
        screen.press("q")
        assert screen.wait() == 0


# ---- watch and show ----

def test_the_parts_of_a_step_are_shown_whole(home):
    parts = ["data", "forward", "backward", "communication", "optimizer", "snapshot"]
    shown = home.show(home.runs)
    assert {phase["name"] for phase in shown["phases"]} <= set(parts) and len(shown["phases"]) > 3
    line = re.search(r"^a step +[\d.]+ ms = .*$", home.cairn("show", home.runs).stdout, re.M).group()
    for phase in shown["phases"]:
        assert re.search(rf"[=+] {phase['name']} [\d.]+", line), line
    assert "a step" not in home.cairn("show", home.waits).stdout
    for columns in (80, 50):
        with Terminal(home, "watch", home.runs, "--no-color", columns=columns) as screen:
            # a narrow line may break before the equals sign
            text = screen.until(lambda text: "RANK" in text and re.search(r" ms\s+= ", text) and text)
            for phase in shown["phases"]:
                assert re.search(rf"[=+] {phase['name']} [\d.]+", text), text
            assert screen.screen.widest < columns
            screen.press("\x03")
            assert screen.wait() == 130
