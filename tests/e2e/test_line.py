"""The command line without a coordinator: folders that aren't Cairn's, words that it doesn't know, shells."""
import json
import os
import re
import shutil
import socket
import subprocess

import pytest

import hostile
from home import BIN, ROOT, TINY
from terminal import Terminal

OWN = re.compile(r"\x1b\[(?:H|2?J|K|\d+A|\?(?:1049|25|7)[hl])")  # sequences that `cairn` writes without colours
GOLDEN = ROOT / "tests" / "golden" / "checkpoint"


@pytest.fixture(name="line")
def one_line(tmp_path):
    """Calls of `cairn` in a folder of its own, with a home where nothing runs."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
    env["CAIRN_HOME"] = str(tmp_path / "home")

    def call(*args, code=0, **options):
        done = subprocess.run([BIN / "cairn", *map(str, args)], env=env, cwd=tmp_path, text=True, check=False,
                              timeout=60, **{"stdin": subprocess.DEVNULL, "capture_output": True, **options})
        assert done.returncode == code, (args, done.returncode, done.stdout, done.stderr)
        return done

    call.env, call.dir = env, tmp_path
    return call


# ---- folders that aren't Cairn's ----

def checkpoint(folder, version="v2"):
    made = shutil.copytree(GOLDEN / version / "j-0123456789" / "step-000000000040.g2", folder)
    assert (made / "manifest.json").exists()
    return made


@pytest.mark.parametrize("name", ["web", "step-by-step", "step-1-web", "bad-habits", "step-000000000008.g1"])
def test_rm_touches_no_folder_of_other_programs(line, name):
    folder = line.dir / name
    folder.mkdir()
    (folder / "manifest.json").write_text('{"name": "an extension", "cairn_checkpoint": 2}')
    (folder / "shard-of-glass.cairn").touch()
    for words in ([folder], [folder, "--force"]):
        said = line("ckpt", "rm", *words, code=4).stderr
        assert "nothing of Cairn's is in it" in said, said
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "shard-of-glass.cairn"]
    for path in folder.iterdir():
        path.unlink()
    if not name.startswith("step-0"):
        assert "nothing of Cairn's is in it" in line("ckpt", "rm", folder, code=4).stderr
        assert folder.exists()
        for verb in ("verify", "scrub", "show", "digest"):
            assert "no checkpoint here" in line("ckpt", verb, folder, code=3).stderr


def test_rm_says_what_stays(line):
    folder = checkpoint(line.dir / "a copy")
    ours = len(list(folder.iterdir()))
    (folder / "notes\x1b[2J.txt").touch()
    said = line("ckpt", "rm", folder).stderr
    assert f"removed {ours} files; these stay: notes" in said and "\x1b" not in said, said
    assert [path.name for path in folder.iterdir()] == ["notes\x1b[2J.txt"]
    assert "nothing of Cairn's" in line("ckpt", "rm", folder, code=4).stderr


def test_rm_takes_every_version_and_damage_only_by_force(line):
    line("ckpt", "rm", checkpoint(line.dir / "old", "v1"))
    assert not (line.dir / "old").exists()
    for first in (b"{", b"\0"):  # from a later byte, from the first
        folder = checkpoint(line.dir / "damaged")
        manifest = folder / "manifest.json"
        manifest.write_bytes(first + manifest.read_bytes()[1:-40])
        line("ckpt", "verify", folder, code=8)
        assert "--force" in line("ckpt", "rm", folder, code=4).stderr and manifest.exists()
        line("ckpt", "rm", folder, "--force")
        assert not folder.exists()
    folder.mkdir()
    manifest.write_text('{"cairn_checkpoint":2,"job":')  # no shard: who knows whose it is
    line("ckpt", "rm", folder, "--force", code=4)
    assert manifest.exists()
    later = checkpoint(line.dir / "later")
    manifest = later / "manifest.json"
    manifest.write_text(manifest.read_text().replace('{"cairn_checkpoint":2', '{"cairn_checkpoint":99'))
    line("ckpt", "rm", later)
    assert not later.exists()
    line("ckpt", "rm", checkpoint(line.dir / "bad-step-000000000008.g1.2"), "-o", "name")


# ---- words of others ----

LINES = [hostile.WORDS,
         json.dumps({"ts": hostile.TIME, "level": "warn", "rank": 0, "msg": hostile.WORDS}),
         json.dumps({"ts": hostile.TIME, "level": "info", "rank": 0, "msg": hostile.WORDS}, ensure_ascii=False)]

READERS = ["ps", "ps -o wide", "ps -o name", "show j", "show j -o wide", "show j -o name", "watch j", "why j", "why j -o name",
           "logs j", "logs j -f", "metrics j", "metrics j -f", "top --once", "ckpt ls j", "ckpt ls j -o wide", "node ls",
           "node ls -o wide", "version", "version -o wide"]
CHANGERS = ["submit job.yaml", "submit job.yaml -o name", "submit job.yaml --watch", "submit job.yaml --wait", "pause j", "pause j --wait",
            "resume j", "stop j --wait", "kill j", "rm j", "set j workers.count=2", "save j", "node drain n", "node undrain n", "node forget n",
            "node check --pairs", "node invite --to invite.crt", "ckpt rm j@1 --force", "ckpt verify j@1", "ckpt scrub j", "ckpt show j", "ckpt digest j"]
REFUSED = [f"{verb} refused" for verb in ("show", "watch", "why", "logs", "metrics", "pause", "resume", "stop", "kill", "rm", "save", "ckpt ls")]


def test_no_words_of_others_steer_a_terminal(line, monkeypatch):
    (line.dir / "home").mkdir(mode=0o700)
    (line.dir / "job.yaml").write_text(TINY)
    monkeypatch.chdir(line.dir)
    with hostile.served(line.dir, line.dir / "home" / "cairnd.sock", LINES):
        for words in READERS + CHANGERS + REFUSED:
            with Terminal(line, *words.split(), columns=4000, rows=200, env={"NO_COLOR": "1"}) as terminal:
                terminal.wait()
                left = OWN.sub("", terminal.raw.decode())  # all of it is UTF-8
                found = [mark for mark in hostile.CONTROLS + hostile.MARKS if mark in left and mark != "\r"]  # which ends lines
                assert not found, (words, found, left)
                if words not in CHANGERS and words.split()[0] not in ("metrics", "version"):
                    assert "end" in left, (words, left)
        shown = line("show", "j", "-o", "json").stdout
        assert json.loads(shown)["reason"] == hostile.WORDS  # for programs it is as it was
        assert json.loads(line("logs", "j", "-o", "jsonl").stdout.split("\n")[1])["msg"] == hostile.WORDS
        assert "\x1b[6n" in line("why", "j").stdout
        assert "\x1b" not in line("show", "refused", code=3).stderr


# ---- what is printed, and where to ----

@pytest.mark.parametrize("words", ["version", "-h", "help ps", "completion bash", "show j", "show j -o json", "ps", "ps -o jsonl", "why j",
                                   "logs j", "logs j -o jsonl", "ckpt ls j"])
def test_a_full_disk_is_said(line, words):
    (line.dir / "home").mkdir(mode=0o700)
    with hostile.served(line.dir, line.dir / "home" / "cairnd.sock", LINES, words="some words"):
        with open("/dev/full", "w", encoding="utf-8") as full:
            said = line(*words.split(), code=1, capture_output=False, stdout=full, stderr=subprocess.PIPE).stderr
        assert said == "cairn: can't write to standard output: No space left on device\n", said


def test_a_table_fits_its_terminal(line, monkeypatch):
    (line.dir / "home").mkdir(mode=0o700)
    monkeypatch.chdir(line.dir)
    with hostile.served(line.dir, line.dir / "home" / "cairnd.sock", LINES, words="many words of a reason"):
        for words in ("ps", "node ls", "ckpt ls j"):
            for columns in (40, 80):
                with Terminal(line, *words.split(), columns=columns, env={"NO_COLOR": "1"}) as terminal:
                    terminal.wait()
                    assert terminal.screen.widest <= columns and terminal.screen.row == 2, (words, columns)
        assert len(line("ps").stdout.splitlines()[0]) > 80  # a pipe gets all of it
        for names, cut in (("id,reason", True), ("id,name,reason", False)):  # what was asked for is never left out
            with Terminal(line, "ps", "--columns", names, columns=40, env={"NO_COLOR": "1"}) as terminal:
                terminal.wait()
                titles, row = terminal.raw.decode().splitlines()
                assert titles.split() == names.upper().split(",") and (len(row) <= 40) == cut, (names, row)


def test_help_fits_its_terminal(line, monkeypatch):
    monkeypatch.chdir(line.dir)
    for words in (["-h"], ["ckpt", "-h"], ["help", "up"], ["help", "logs"], ["help", "ckpt", "import"], ["help", "node", "invite"]):
        for columns in (48, 80):
            with Terminal(line, *words, columns=columns, rows=200, env={"NO_COLOR": "1"}) as terminal:
                terminal.wait()
                assert terminal.screen.widest <= columns, (words, columns, terminal.screen.text())
        assert max(map(len, line(*words).stdout.splitlines())) <= 80


def test_help_is_in_groups(line):
    groups = dict(re.findall(r"^([a-z][a-z ]*)\n((?: .*\n)+)", line("-h").stdout, re.M))
    assert list(groups) == ["jobs", "checkpoints", "nodes", "certificates", "the cluster", "options of every command"]
    listed = {title: set(re.findall(r"^  ((?:(?:ckpt|node|cert|webhook|context) )?[a-z]+)", text, re.M)) for title, text in groups.items()}
    assert {"submit", "plan", "ps", "why", "set", "rm"} <= listed["jobs"] and "audit" in listed["checkpoints"]
    assert {"up", "down", "open", "top", "webhook ls", "context use", "bundle", "version"} <= listed["the cluster"]
    for noun, title in (("ckpt", "checkpoints"), ("node", "nodes"), ("cert", "certificates")):
        own = set(re.findall(rf"^  ({noun} [a-z]+)", line(noun, "-h").stdout, re.M))
        assert own and own <= listed[title] and not any(one.startswith(noun) for group in listed for one in listed[group] - own)


def test_help_says_where_json_is_json_lines(line):
    for verb in ("logs", "metrics"):
        said = " ".join(line("help", verb).stdout.split())
        assert "-o json and -o jsonl both print JSON lines: an object a line" in said, said


# ---- one word for one thing ----

def test_a_recovery_is_called_so_everywhere(line):
    (line.dir / "home").mkdir(mode=0o700)
    with hostile.served(line.dir, line.dir / "home" / "cairnd.sock", LINES, words="some words"):
        titles = line("ps").stdout.splitlines()[0].split()
        assert "RECOVERIES" in titles and "RESTARTS" not in titles
        assert line("ps", "--columns", "recoveries,restarts").stdout.splitlines()[0].split() == ["RECOVERIES", "RESTARTS"]
        shown = line("show", "j").stdout
        assert re.search(r"^attempt +1$", shown, re.M) and re.search(r"^recoveries +1;", shown, re.M) and "restart" not in shown
        watched = line("watch", "j", code=10).stdout
        assert "  recoveries 1" in watched and "restart" not in watched


@pytest.mark.parametrize("words, code, said", [("node invite -o json", 2, "in one format"), ("node invite", 2, "--to FILE"),
                                               ("--addr bogus ps", 2, "'bogus' is no address"), ("ps --addr 10.0.0.1:1", 2, "TLS is spoken")])
def test_what_is_wrong_is_said(line, words, code, said):
    assert said in line(*words.split(), code=code).stderr
    assert not (line.dir / "json").exists()


# ---- addresses ----

@pytest.mark.parametrize("address", ["bogus", "127.0.0.1", "127.0.0.1:-1", "127.0.0.1:99999", "127.0.0.1:", ":7000", "a b:1"])
def test_up_says_at_once_that_an_address_is_none(line, address):
    assert "ADDRESS:PORT" in line("up", "--listen", address, code=2).stderr
    assert not (line.dir / "home" / "log").exists()


def test_up_says_that_an_address_is_taken(line):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        address = f"127.0.0.1:{other.getsockname()[1]}"
        said = line("up", "--listen", address, code=4).stderr
    assert f"--listen {address}: the address is in use by another program" in said, said
    log = (line.dir / "home" / "log" / "supervisor.log").read_text()
    assert log.count("started cairnd") == 1 and "not started again" in log, log


# ---- TAB ----

RUN = {"bash": "COMP_LINE='cairn show '; COMP_POINT=11; _cairn; printf '%s\\n' \"${COMPREPLY[@]}\"",
       "zsh": "compadd() { shift; print -l -- \"$@\" }; compdef() { }; words=(cairn show ''); CURRENT=3; PREFIX=''; _cairn",
       "fish": "complete -C 'cairn show '"}


@pytest.mark.parametrize("shell", list(RUN))
def test_tab_runs_nothing_of_what_a_name_says(line, shell):
    """A stand-in `cairn` has names that no coordinator of ours gives: neither run nor expanded by the shell."""
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    names = ["$(touch made)", "`touch made`", "$((1+1))", "${HOME}", "~", "*", ";touch made", "'", '"', "a'b", "\\", "job-1"]
    script = line("completion", shell).stdout
    folder = line.dir / "stand-in"
    folder.mkdir()
    (folder / "cairn").write_text("#!/bin/sh\ncat <<'end'\n" + "\n".join(names) + "\nend\n")
    (folder / "cairn").chmod(0o755)
    (folder / "script").write_text(script)
    done = subprocess.run([shell, "-c", f"{'autoload -U compinit; ' if shell == 'zsh' else ''}source {folder / 'script'}; {RUN[shell]}"],
                          cwd=line.dir, text=True, timeout=60, check=False, capture_output=True, stdin=subprocess.DEVNULL,
                          env=dict(line.env, PATH=f"{folder}:{os.environ['PATH']}"))
    assert "job-1" in done.stdout.split(), done
    assert not (line.dir / "made").exists()
    assert {"$(touch", "${HOME}", "*"} <= set(done.stdout.replace("\\", "").split()), done


def test_names_that_none_is_are_not_offered(line):
    (line.dir / "home").mkdir(mode=0o700)
    with hostile.served(line.dir, line.dir / "home" / "cairnd.sock", []):
        for kind in ("jobs", "nodes", "checkpoints"):
            assert line("complete", kind, "--", "").stdout == ""
        assert line("complete", "checkpoints", "--", "job@").stdout.split() == ["job@1", "job@all"]


# ---- job files ----

def test_a_job_file_may_be_a_pipe(line):
    (line.dir / "job.yaml").write_text(TINY)
    plain = line("plan", "job.yaml").stdout
    for how in ("cairn plan <(cat job.yaml)", "cat job.yaml | cairn plan /dev/stdin", "cairn plan - < job.yaml"):
        done = subprocess.run(["bash", "-c", how], env=dict(line.env, PATH=f"{BIN}:{os.environ['PATH']}"), cwd=line.dir, text=True,
                              timeout=60, check=False, capture_output=True)
        assert done.returncode == 0 and done.stdout.splitlines()[1:] == plain.splitlines()[1:], (how, done)
    for how in ("cairn submit <(cat job.yaml)", "cat job.yaml | cairn submit /dev/stdin", "cairn submit - < job.yaml"):
        done = subprocess.run(["bash", "-c", how], env=dict(line.env, PATH=f"{BIN}:{os.environ['PATH']}"), cwd=line.dir, text=True,
                              timeout=60, check=False, capture_output=True)
        assert done.returncode == 5 and "no coordinator answers" in done.stderr, (how, done)  # it was read, and is right


def test_what_is_no_job_file_is_named(line):
    for verb in ("plan", "submit"):
        assert "is a folder" in line(verb, line.dir, code=2).stderr
        assert "nowhere.yaml: no such file" in line(verb, "nowhere.yaml", code=2).stderr


# ---- times ----

def test_times_are_local_on_a_terminal_and_utc_elsewhere(line, monkeypatch):
    (line.dir / "home").mkdir(mode=0o700)
    monkeypatch.chdir(line.dir)
    text = f"from {hostile.TIME} on"
    with hostile.served(line.dir, line.dir / "home" / "cairnd.sock",
                        [json.dumps({"ts": hostile.TIME, "level": "info", "msg": "m"})], words=text):
        for verb in ("show", "why", "logs"):
            with Terminal(line, verb, "j", columns=400, rows=100, env={"NO_COLOR": "1", "TZ": "EST5"}) as terminal:
                terminal.wait()
                assert "2026-01-01 22:04:05.678-05:00" in terminal.screen.text() and hostile.TIME not in terminal.screen.text()
            assert hostile.TIME in line(verb, "j").stdout
