"""The command line at work: up and down with their supervisor, watch, logs, checkpoints in folders."""
import fcntl
import json
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from home import BIN, TINY, Home, until
from standin import Receiver

LONG = {"train__duration": "1000000 steps", "checkpoint__every": "1000 steps"}


@pytest.fixture(name="home")
def one_home():
    with Home(slots=4) as home:
        yield home


def coordinator(home):
    return json.loads(home.cairn("version", "-o", "json").stdout)["coordinator"]


def start(home, *args, **options):
    return subprocess.Popen([BIN / "cairn", *args], env=home.env, cwd=home.dir, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **options)


def test_up_twice_is_up_and_down_leaves_nothing(home):
    before = home.pids()
    assert sorted(before.values()) == ["cairn", "cairn-agent", "cairn-observer", "cairnd"]
    assert "already up" in home.cairn("up").stderr
    assert "already up" in home.cairn("up", "--slots", "4").stderr
    assert home.pids() == before
    assert coordinator(home)["agents"] == 1
    home.cairn("down")
    assert home.pids() == {}
    assert home.cairn("ps", check=False).returncode == 5
    assert "nothing runs" in home.cairn("down").stderr


def test_up_with_other_flags_names_them(home):
    done = home.cairn("up", "--slots", "8", "--listen", "127.0.0.1:0", check=False)
    assert done.returncode == 4
    assert "with --slots 4, not 8" in done.stderr and "without --listen 127.0.0.1:0" in done.stderr
    assert coordinator(home)["agents"] == 1


def test_an_up_that_fails_leaves_nothing():
    home = Home()
    try:
        (home.home / "cairnd.sock" / "in the way").mkdir(parents=True)  # no socket can be there
        done = home.cairn("up", check=False, timeout=60)
        assert done.returncode == 5, done.stderr
        assert "cairnd.log" in done.stderr and "nothing was left" in done.stderr
        assert home.pids() == {}
    finally:
        home.end_everything()
        shutil.rmtree(home.dir, ignore_errors=True)


def test_coordinator_and_agent_come_back_when_they_are_killed(home):
    for program in ("cairnd", "cairn-agent"):
        before = set(home.pids(program))
        home.kill(program)
        until(lambda p=program, b=before: set(home.pids(p)) - b, 10, f"a new {program}")
        until(lambda: coordinator(home) and coordinator(home)["agents"] == 1, 10, "both answer")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_permissions_are_named(home):
    """Another user finds out whose the home is."""
    def as_nobody(*args, at):
        done = subprocess.run([shutil.copy(BIN / "cairn", home.dir), *args], env=dict(home.env, CAIRN_HOME=str(at)),
                              user="nobody", group="nogroup", extra_groups=[], cwd="/", capture_output=True, text=True,
                              timeout=30, check=False)
        return done.returncode, done.stderr

    os.chmod(home.dir, 0o755)
    os.chmod(home.home, 0o755)
    code, said = as_nobody("ps", at=home.home)
    assert code == 4 and "is of user root" in said, said
    code, said = as_nobody("up", at=home.home)
    assert code == 4 and "belongs to root" in said, said
    code, said = as_nobody("down", at=home.home)
    assert code == 4 and "belongs to root" in said, said
    code, said = as_nobody("up", at=home.dir / "not" / "there")
    assert code == 4 and str(home.dir) in said and "belongs to root" in said, said
    os.chmod(home.home, 0o700)
    code, said = as_nobody("ps", at=home.home)
    assert code == 4 and "another user" in said, said


def test_an_absent_coordinator_is_no_timeout(home):
    job = home.submit(**LONG)
    home.wait_state(job, "RUNNING")
    home.kill("cairn", signal.SIGSTOP)  # nobody starts it again
    home.kill("cairnd")
    assert home.cairn("save", job, "--timeout", "1", check=False).returncode == 5
    home.kill("cairn", signal.SIGCONT)


def test_a_command_waits_for_the_coordinator_that_is_being_restarted(home):
    home.kill("cairnd")
    assert home.cairn("ps").returncode == 0


def test_nobody_is_answered_before_the_journal_has_it():
    with Home(faults="coordinator.journal:wait", env={"CAIRN_WATCHDOG_MS": "60000"}) as home:
        (home.dir / "held.yaml").write_text(TINY, encoding="utf-8")
        submit = start(home, "submit", home.dir / "held.yaml", "-o", "name")
        home.wait_hit("coordinator.journal")  # applied, and not committed
        with pytest.raises(subprocess.TimeoutExpired):
            submit.communicate(timeout=1)
        home.kill("cairnd")  # it never happened: the next coordinator is asked again
        job = submit.communicate(timeout=60)[0].split()[-1]
        assert submit.returncode == 0
        home.wait_state(job, "SUCCEEDED")
        assert len(home.cairn("ps", "-o", "name").stdout.split()) == 1


def test_a_job_that_ended_is_there_for_the_next_coordinator(home):
    job = home.submit()
    home.wait_state(job, "SUCCEEDED")
    keys = ("id", "name", "state", "step", "final_digest", "ended_at", "loss", "job_file")
    before = [home.show(job)[key] for key in keys]
    home.kill("cairnd")
    listed = json.loads(home.cairn("ps", "-o", "json").stdout)  # as it was written down
    assert [[one[key] for key in keys] for one in listed] == [before]
    assert [home.show(job)[key] for key in keys] == before
    assert "SUCCEEDED at step 12" in home.cairn("why", job).stdout
    assert home.cairn("logs", job).stdout
    assert home.cairn("watch", job).returncode == 0
    steps = [one["step"] for one in json.loads(home.cairn("ckpt", "ls", job, "-o", "json").stdout)]
    assert steps == [12, 8]
    home.cairn("ckpt", "scrub", job)
    home.cairn("ckpt", "rm", f"{job}@8")
    until(lambda: [one["step"] for one in home.show(job)["checkpoints"]] == [12], 10, "it is gone")
    home.kill("cairnd")
    assert [one["step"] for one in home.show(job)["checkpoints"]] == [12]


def test_the_first_beat_comes_before_the_journal_is_opened(tmp_path):
    (tmp_path / "state").mkdir()
    read, write = os.pipe()
    env = dict(os.environ, CAIRN_HOME=str(tmp_path), CAIRN_WATCHDOG_FD=str(write))
    with open(tmp_path / "state" / "cairnd.db.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another coordinator has it: this one gets no further
        done = subprocess.run([BIN / "cairnd"], env=env, pass_fds=[write], timeout=60, check=False,
                              stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert done.returncode == 1
    assert "another cairnd serves this home" in done.stderr
    assert len(os.read(read, 16)) == 1
    os.close(read)


def test_up_replaces_what_a_killed_supervisor_left(home):
    job = home.submit(**LONG)
    home.wait_state(job, "RUNNING")
    trainers = set(home.pids("cairn-trainer"))
    home.kill("cairn")
    until(lambda: not home.pids("cairn"), 5, "the supervisor is gone")
    home.cairn("up")
    assert len(home.pids("cairnd")) == len(home.pids("cairn-agent")) == 1
    assert set(home.pids("cairn-trainer")) == trainers  # they train on
    home.cairn("kill", job, "--wait")


def test_down_saves_and_the_next_up_resumes(home):
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 20, 30, "the job trains")
    home.cairn("down", timeout=20)
    assert home.pids() == {}
    home.cairn("up")
    shown = home.wait_state(job, "RUNNING")
    assert shown["checkpoints"][0]["step"] > 20
    assert shown["restarts"] == 0
    home.cairn("kill", job, "--wait")


def test_a_stopped_job_goes_on_where_it_was(home):
    steps = {"train__duration": "4000 steps", "checkpoint__every": "1000 steps"}
    quiet = home.run(seconds=90, **steps)
    job = home.submit(**steps)
    until(lambda: home.show(job)["step"] > 5, 30, "the job trains")
    home.cairn("stop", job, "--wait", check=False)
    stopped = home.show(job)
    assert stopped["state"] == "STOPPED" and 0 < stopped["step"] < 4000 and stopped["ended_at"], stopped
    said = home.cairn("pause", job, check=False).stderr
    assert f"'cairn resume {job}' goes on" in said, said
    home.cairn("down")  # and not only as long as the coordinator remembers it
    home.cairn("up")
    home.cairn("resume", job)
    assert home.digest(job) == quiet
    kinds = [event["kind"] for event in home.show(job)["events"]]
    assert kinds.index("stopped") < kinds.index("resumed") < kinds.index("succeeded"), kinds


def test_down_ends_a_trainer_that_is_stopped(home):
    job = home.submit(**LONG)
    home.wait_state(job, "RUNNING")
    home.kill("cairn-trainer", signal.SIGSTOP)
    home.cairn("down", timeout=30)
    assert home.pids() == {}


def test_a_watch_that_nobody_reads_ends(home):
    job = home.submit(**LONG)
    home.wait_state(job, "RUNNING")
    with start(home, "watch", job) as watch:
        assert "RUNNING" in watch.stdout.readline()
        watch.stdout.close()
        assert watch.wait(30) == 0
    assert home.show(job)["state"] == "RUNNING"


def points_of(folder):
    """How many losses event files hold."""
    count = 0
    for path in folder.glob("*/events*"):
        data, at = path.read_bytes(), 0
        while at + 12 <= len(data):
            size, = struct.unpack_from("<Q", data, at)
            count += b"train/loss" in data[at + 12:at + 12 + size]
            at += size + 16
    return count


def test_down_right_after_the_end_loses_no_point_and_no_message():
    """As a batch job: up, submit --wait, down, and what there is is copied away."""
    home = Home()
    home.home.mkdir(mode=0o700)
    with Receiver() as receiver:
        hooks = home.home / "webhooks.yaml"
        hooks.write_text(f"webhooks:\n  - {{name: w, url: '{receiver.url}'}}\n", encoding="utf-8")
        hooks.chmod(0o600)
        with home:
            (home.dir / "job.yaml").write_text(TINY, encoding="utf-8")
            home.cairn("submit", "job.yaml", "--set", "train.duration=3000 steps", "--set", "checkpoint.every=1000 steps",
                       "--wait", timeout=60)
            home.cairn("down")
            points = points_of(home.home / "tensorboard")
            told = [headers["X-Cairn-Event"] for headers, _ in receiver.got]
    assert points == 3000 and told.count("finished") == 1, (points, told)


@pytest.fixture(name="service")
def one_service():
    """Home(); up() is the process `cairn up --foreground` of a service manager."""
    home = Home(slots=4)

    def up():
        process = start(home, "up", "--foreground", "--slots", "4")
        until(lambda: home.cairn("version", "-o", "json", check=False).returncode == 0 and
              coordinator(home) and coordinator(home)["agents"] == 1, 20, "both answer")
        return process

    try:
        home.up = up
        yield home
    finally:
        home.cairn("down", check=False, timeout=40)
        home.end_everything()
        shutil.rmtree(home.dir, ignore_errors=True)
        shutil.rmtree(home.copies, ignore_errors=True)


def ends_without_losing_a_step(home, end):
    """end(process) ends the service; what the job had done by then is there when it is up again."""
    process = home.up()
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 20, 30, "the job trains")
    done = home.show(job)["step"]
    end(process)
    out = process.communicate(timeout=40)[0]
    assert process.returncode == 0, out
    assert "saved 1 job," in out, out
    assert home.pids() == {}
    home.up()
    shown = home.wait_state(job, "RUNNING")
    assert int(shown["checkpoints"][0]["step"]) >= done, (shown["checkpoints"], done)
    assert not [e for e in shown["events"] if e["kind"] == "fault"], shown["events"]
    home.cairn("kill", job, "--wait")


def test_sigterm_to_up_in_the_foreground_saves_the_jobs(service):
    ends_without_losing_a_step(service, lambda process: process.send_signal(signal.SIGTERM))


def test_ctrl_c_of_up_in_the_foreground_saves_the_jobs(service):
    ends_without_losing_a_step(service, lambda process: process.send_signal(signal.SIGINT))


def test_sigterm_to_process_1_ends_in_peace():
    """As a container's first process, which has the number 1."""
    home = Home()
    call = ["unshare", "-pf", "--mount-proc", "--kill-child"]
    allowed = subprocess.run([*call, "true"], capture_output=True, text=True, check=False)
    if allowed.returncode != 0:
        pytest.skip(f"no namespace of processes: {allowed.stderr.strip()}")
    with subprocess.Popen([*call, BIN / "cairn", "up", "--foreground", "--slots", "2", "--grace", "20s"], env=home.env, cwd=home.dir,
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        try:
            until((home.home / "page").exists, 20, "it is up")
            first, = [int(pid) for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()]
            os.kill(first, signal.SIGTERM)
            said = process.communicate(timeout=60)[0]
        finally:
            process.kill()
            home.end_everything()
            shutil.rmtree(home.dir, ignore_errors=True)
    ended = [json.loads(line)["msg"] for line in said.splitlines() if line.startswith("{")]
    for program in ("cairnd", "cairn-agent", "cairn-observer"):
        assert [one for one in ended if one == f"{program} ended: exit code 0"], (program, ended)
    assert process.returncode == 0 and not [one for one in ended if "signal 9" in one or "starts again" in one], ended


def test_sigterm_to_every_process_loses_no_step(service):
    """As systemd ends a service."""
    def end(_):
        for pid in service.pids():
            os.kill(pid, signal.SIGTERM)

    ends_without_losing_a_step(service, end)


def test_two_homes_do_not_see_each_other(home):
    with Home(slots=2) as other:
        job = home.submit()
        assert json.loads(other.cairn("ps", "-o", "json").stdout) == []
        other.cairn("down")
        assert home.digest(job)


def test_ctrl_c_leaves_a_watched_job_running(home):
    job = home.submit(**LONG)
    home.wait_state(job, "RUNNING")
    watch = start(home, "watch", job)
    assert "RUNNING" in watch.stdout.readline()
    watch.send_signal(signal.SIGINT)
    rest = watch.communicate(timeout=10)[0]
    assert watch.returncode == 130
    assert "goes on" in rest
    assert home.show(job)["state"] == "RUNNING"
    logs = start(home, "logs", job, "-f")
    assert "training" in logs.stdout.readline()
    logs.send_signal(signal.SIGINT)
    logs.communicate(timeout=10)
    assert logs.returncode == 130
    home.cairn("kill", job, "--wait")


def test_a_watch_outlives_the_coordinator_and_returns_how_the_job_ended(home):
    job = home.submit(**LONG)
    home.wait_state(job, "RUNNING")
    watch = start(home, "watch", job)
    assert "RUNNING" in watch.stdout.readline()
    home.kill("cairnd")
    until(lambda: home.try_show(job), 10, "the coordinator is back")
    home.cairn("stop", job)
    out = watch.communicate(timeout=30)[0]
    assert watch.returncode == 11, out
    assert "STOPPED" in out


def test_watch_repaints_a_block_on_a_terminal_and_prints_lines_elsewhere(home):
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 20, 30, "the job trains")
    main, worker = pty.openpty()
    env = dict(home.env, TERM="xterm", LC_ALL="C.UTF-8")
    watch = subprocess.Popen([BIN / "cairn", "watch", job], env=env, stdout=worker)
    os.close(worker)
    seen = b""

    def repainted():
        nonlocal seen
        seen += os.read(main, 65536)
        return b"samples/s" in seen and seen.count(b"\x1b[J") > 2

    until(repainted, 10, "a repainted block")
    assert "█".encode() in seen or "·".encode() in seen
    home.cairn("kill", job, "--wait")
    try:
        while os.read(main, 65536):
            pass
    except OSError:
        pass  # the other side is closed
    assert watch.wait(10) == 11
    plain = home.cairn("watch", job, check=False)
    assert plain.returncode == 11 and "\x1b" not in plain.stdout
    lines = home.cairn("watch", job, "-o", "jsonl", check=False).stdout.splitlines()
    assert all(json.loads(line)["job"]["id"] == job for line in lines) and lines


def test_watch_shows_what_matters_on_a_small_terminal(home):
    job = home.submit(**LONG, name="a" * 63)
    until(lambda: home.show(job)["step"] > 20, 30, "the job trains")
    main, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 7, 40, 0, 0))
    watch = subprocess.Popen([BIN / "cairn", "watch", job, "--no-color"], stdout=worker,
                             env=dict(home.env, TERM="xterm", LC_ALL="C.UTF-8"))
    os.close(worker)
    seen = ""

    def repainted():
        nonlocal seen
        seen += os.read(main, 65536).decode()
        return seen.count("\x1b[J") > 3 and "left" in seen

    until(repainted, 20, "a repainted block")
    block = seen.split("\x1b[J")[-2].replace("\x1b[K", "").replace("\r", "").split("\n")
    lines = [re.sub(r"\x1b\[\d*[A-Z]", "", line) for line in block]
    assert "RUNNING" in lines[0], lines
    assert "%" in lines[1] and "left" in lines[1] and "step" in lines[1], lines
    assert len(lines) <= 7 and all(len(line) < 40 for line in lines), lines
    home.cairn("kill", job, "--wait")
    os.close(main)
    watch.wait(10)


def test_a_list_that_is_longer_than_the_terminal_keeps_its_beginning(home):
    jobs = [home.submit(TINY.replace("name: tiny", f"name: {'a' * 50}{i}")) for i in range(6)]
    for job in jobs:
        home.digest(job)
    main, worker = pty.openpty()
    fcntl.ioctl(worker, termios.TIOCSWINSZ, struct.pack("HHHH", 5, 60, 0, 0))
    ps = subprocess.Popen([BIN / "cairn", "ps", "-w", "--no-color"], stdout=worker,
                          env=dict(home.env, TERM="xterm", LC_ALL="C.UTF-8"))
    os.close(worker)
    seen = ""

    def repainted():
        nonlocal seen
        seen += os.read(main, 65536).decode()
        return seen.count("\x1b[2J") > 2

    until(repainted, 20, "a repainted list")
    ps.send_signal(signal.SIGINT)
    lines = seen.split("\x1b[2J")[-2].replace("\r", "").removesuffix("\x1b[H").splitlines()
    assert lines[0].startswith("ID ") and [line.split()[0] for line in lines[1:]] == jobs[:2:-1], lines
    assert all(len(line) <= 60 for line in lines), lines
    assert ps.wait(10) == 130
    os.close(main)


def test_who_leaves_early_is_no_error(home):
    home.digest(home.submit())
    for args in (["ps"], ["ps", "-o", "json"], ["why", "tiny"], ["help"]):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run([BIN / "cairn", *args], env=home.env, stdout=write, stderr=subprocess.PIPE, timeout=20,
                              text=True, check=False)
        os.close(write)
        assert (done.returncode, done.stderr) == (0, ""), (args, done)


def test_logs_of_one_rank_and_of_an_earlier_attempt(home):
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 5, 30, "the job trains")
    said = home.cairn("logs", job).stdout
    assert re.match(r"r\d  [-\d]+T\d\d:\d\d:\d\d\.\d\d\dZ  training from step 0", said), said
    home.kill("cairn-trainer")
    until(lambda: home.show(job)["generation"] >= 2 and home.show(job)["state"] == "RUNNING", 30,
          "a second attempt")
    first = home.cairn("logs", job, "--rank", "1", "--attempt", "1", "-o", "jsonl").stdout.splitlines()
    assert first and all(json.loads(line)["rank"] == 1 for line in first)
    assert all(json.loads(line)["generation"] == 1 for line in first)
    assert "training" in json.loads(first[0])["msg"]
    home.cairn("kill", job, "--wait")


def test_logs_of_a_worker_that_outlived_an_attempt(home):
    job = home.submit(**LONG)
    until(lambda: home.show(job)["step"] > 5, 30, "the job trains")
    os.kill(home.show(job)["workers"][1]["pid"], signal.SIGKILL)
    until(lambda: home.show(job)["generation"] == 2 and home.show(job)["state"] == "RUNNING", 30, "a second attempt")
    entries = [json.loads(line) for line in
               home.cairn("logs", job, "--rank", "0", "--attempt", "2", "-o", "jsonl").stdout.splitlines()]
    assert {1, 2} == {entry["generation"] for entry in entries}, entries
    home.cairn("kill", job, "--wait")


def test_checkpoint_commands_work_on_folders_without_a_coordinator(home):
    job = home.submit()
    digest = home.digest(job)
    listed = json.loads(home.cairn("ckpt", "ls", job, "-o", "json").stdout)
    folder = listed[0]["path"]
    assert home.cairn("ckpt", "digest", f"{job}@{listed[0]['step']}").stdout.strip() == digest
    assert "good" in home.cairn("ckpt", "verify", f"{job}@all").stdout
    home.cairn("down")
    assert home.cairn("ckpt", "digest", folder).stdout.strip() == digest
    assert home.cairn("ckpt", "verify", folder, "-q").stdout == ""
    shown = json.loads(home.cairn("ckpt", "show", folder, "-o", "json").stdout)
    assert shown["digest"] == digest and shown["step"] == listed[0]["step"] and shown["tensors"]
    ours = json.loads(home.cairn("ckpt", "ls", os.path.dirname(folder), "-o", "json").stdout)
    store = os.path.dirname(os.path.dirname(folder))
    assert json.loads(home.cairn("ckpt", "ls", store, "-o", "json").stdout) == ours
    assert job in home.cairn("ckpt", "ls", store).stdout
    strangers = [os.path.join(store, name) for name in ("lost+found", "@eaDir", "#recycle", "My Data", ".snapshot", "x" * 200, "logs")]
    for path in strangers:  # what others put there, a store of such a name, and a job that can't be read
        os.mkdir(path)
    assert json.loads(home.cairn("ckpt", "ls", store, "-o", "json").stdout) == ours
    os.symlink(store, home.dir / "My Store")
    assert json.loads(home.cairn("ckpt", "ls", home.dir / "My Store", "-o", "json").stdout) == ours
    none = home.cairn("ckpt", "ls", os.path.join(store, "My Data"), check=False)
    assert none.returncode == 3 and "there is no checkpoint here" in none.stderr, none
    for path in strangers:
        os.rmdir(path)
    assert [c["digest"] for c in ours] == [c["digest"] for c in listed]
    shard = os.path.join(folder, shown["files"][0]["name"])
    size = os.path.getsize(shard)
    os.truncate(shard, size - 1)
    done = home.cairn("ckpt", "verify", folder, check=False)
    assert done.returncode == 8 and "DAMAGED" in done.stdout
    assert home.cairn("ckpt", "digest", folder, check=False).returncode == 8
    home.cairn("ckpt", "rm", folder)
    assert not os.path.exists(folder)
    assert home.cairn("ckpt", "rm", str(home.dir), check=False).returncode == 4
    empty = home.dir / "step-000000000001.g1"
    empty.mkdir()
    assert home.cairn("ckpt", "verify", empty, check=False).returncode == 8
    shutil.rmtree(empty)


def test_relative_paths_start_at_the_folder_of_the_job_file(home):
    (home.dir / "deep").mkdir()
    path = home.dir / "deep" / "job.yaml"
    path.write_text(TINY, encoding="utf-8")
    job = home.cairn("submit", "deep/job.yaml", "-o", "name").stdout.strip()
    home.digest(job)
    assert (home.dir / "deep" / "checkpoints" / job).is_dir()


def test_the_job_file_is_read_from_standard_input(home):
    done = subprocess.run([BIN / "cairn", "submit", "-", "--wait", "-q"], input=TINY, env=home.env,
                          cwd=home.dir, text=True, capture_output=True, timeout=60, check=True)
    assert home.show(done.stdout.strip())["state"] == "SUCCEEDED"
