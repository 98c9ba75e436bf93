"""Who did what, in jobs' histories and in the audit log; what job files of people with certificates may name."""
import json
import stat

import grpc
import pytest

from home import TINY, Home, until
from test_tls import TlsHome, messages  # noqa: F401 (messages: the fixture pb)


class NarrowHome(TlsHome):
    """Whose cairnd lets people with certificates name what is under its folder `ours` only."""

    def __init__(self):
        super().__init__()
        (self.dir / "ours").mkdir()
        self.options = ("--paths", f"{self.dir / 'ours'}:s3://bucket/team")


@pytest.fixture(scope="module", name="home")
def one_home():
    with NarrowHome() as home:
        yield home


def lines(home):
    found = []
    for path in (home.home / "state" / "audit.log", home.home / "state" / "refused.log"):
        if path.exists():
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            found += [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return found


def logged(home, **wanted):
    """The line of the audit log that has all of this, once it is there."""
    return until(lambda: next((line for line in lines(home) if wanted.items() <= line.items()), None), 10, f"{wanted}")


def job_file(home, folder, text=TINY):
    path = folder / "job.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_who_asked_is_in_the_jobs_history_and_in_the_audit_log(home):
    done = home.by("operator-alice", "submit", job_file(home, home.dir / "ours"), "-o", "name")
    assert done.returncode == 0, done.stderr
    job = done.stdout.strip()
    for command in ("pause", "resume", "stop"):
        assert home.by("operator-alice", command, job[:11]).returncode == 0
    assert home.by("operator-alice", "pause", job).returncode == 4
    assert home.by("viewer-bob", "kill", job).returncode == 4
    local = home.submit()
    home.cairn("kill", local)
    for asker, events in ((("operator/alice"), {"pause", "resumed", "stop"}), ("local", {"kill"})):
        name = job if asker != "local" else local
        shown = home.show(name)["events"]
        assert {event["kind"] for event in shown if event["message"] == f"asked by {asker}"} == events
        assert shown[0]["kind"] == "submitted" and shown[0]["message"].endswith(f", by {asker}")
        assert f"asked by {asker}" in home.cairn("why", name).stdout
    for method in ("SubmitJob", "PauseJob", "ResumeJob", "StopJob"):
        line = logged(home, actor="operator/alice", method=f"Control/{method}", about=job, code="OK")
        assert line["peer"].startswith("ipv4:127.0.0.1:") and line["time"].endswith("Z")
    logged(home, actor="operator/alice", method="Control/PauseJob", about=job, code="FAILED_PRECONDITION")
    assert "looking" in logged(home, actor="viewer/bob", method="Control/KillJob", code="PERMISSION_DENIED")["why"]
    assert logged(home, actor="local", method="Control/KillJob", about=local, code="OK")["peer"].startswith("unix:uid=")
    assert not [line for line in lines(home) if "List" in line["method"] or "Get" in line["method"]]


def test_who_drains_invites_and_forgets_is_in_the_audit_log(home):
    agent = home.start_agent(*home.files("node-n1"))
    until(lambda: "n1" in home.cairn("node", "ls").stdout, 20, "the agent joined")
    for command in (("drain", "n1", "--reason", "disks"), ("undrain", "n1"), ("forget", "n1"),
                    ("invite", "-o", home.dir / "one.invite")):
        done = home.by("operator-alice", "node", *command)
        assert done.returncode == 0, done.stderr
    for method, about in (("DrainNode", "n1"), ("UndrainNode", "n1"), ("ForgetNode", "n1"), ("InviteNodes", "")):
        logged(home, actor="operator/alice", method=f"Control/{method}", about=about, code="OK")
    logged(home, actor="node/n1", method="Fleet/Session", code="PERMISSION_DENIED")  # it is put out
    agent.kill()
    nothing = home.by("operator-alice", "node", "drain", 'no"such\n\x1b[31mnode')
    assert nothing.returncode != 0
    logged(home, method="Control/DrainNode", about='no"such\n\x1b[31mnode', code="NOT_FOUND")


def test_job_files_from_elsewhere_name_what_is_allowed_only(home):
    for folder, sets, key in ((home.dir, (), "checkpoint.store"),
                              (home.dir / "ours", ("checkpoint.store=/var/tmp/x",), "checkpoint.store"),
                              (home.dir / "ours", ("checkpoint.store=s3://bucket/other",), "checkpoint.store"),
                              (home.dir / "ours", ("checkpoint.store=../x",), "checkpoint.store"),
                              (home.dir / "ours", ("model.weights=/etc/shadow",), "model.weights")):
        file = job_file(home, folder)
        done = home.by("operator-alice", "submit", file, *[part for one in sets for part in ("--set", one)])
        assert done.returncode == 2 and f"{key}: this coordinator lets jobs from elsewhere" in done.stderr, done.stderr
        assert f"write a path under one of {home.dir / 'ours'}:s3://bucket/team" in done.stderr
        assert ("--set:1:" if sets else "job.yaml:") in done.stderr
    before = len(home.cairn("ps", "-o", "name").stdout.split())
    done = home.by("operator-alice", "submit", job_file(home, home.dir / "ours"), "-o", "name")
    assert done.returncode == 0, done.stderr
    home.cairn("kill", done.stdout.strip())
    home.cairn("kill", home.submit())  # who is on this machine names what he likes
    assert len(home.cairn("ps", "-o", "name").stdout.split()) == before + 2
    assert "job files of everybody" not in home.log_of("cairnd")


COMMAND = "name: mine\ncommand: {run: [/bin/true]}\n"


def test_people_with_certificates_have_no_commands(home):
    file = job_file(home, home.dir / "ours", COMMAND)
    done = home.by("operator-alice", "submit", file)
    assert done.returncode == 2 and "job.yaml:2:1: this coordinator lets jobs from elsewhere run no command" in done.stderr, \
        done.stderr
    assert "--commands" in done.stderr


def test_up_passes_paths_and_address_on():
    home = Home(slots=1)
    bad = home.cairn("up", "--slots", "1", "--listen", "0.0.0.0:0", "--paths", "data", check=False, timeout=60)
    assert bad.returncode == 2 and "--paths data: folders with their whole path" in bad.stderr, bad.stderr
    bad = home.cairn("up", "--slots", "1", "--listen", "0.0.0.0:0", "--commands", check=False, timeout=60)
    assert bad.returncode == 2 and "--commands goes with --paths" in bad.stderr, bad.stderr
    for wrong in (("--listen", "0.0.0.0:0", "--advertise", "there"), ("--advertise", "there.example:7000")):
        bad = home.cairn("up", "--slots", "1", *wrong, check=False, timeout=60)
        assert bad.returncode == 2 and "HOST:PORT, with a --listen beyond loopback" in bad.stderr, bad.stderr
    home.cairn("up", "--slots", "1", "--listen", "0.0.0.0:0", "--paths", "/data", "--commands", "--advertise",
               "there.example:7000")
    with home:  # it is up already
        port = (home.home / "cairnd.addr").read_text(encoding="utf-8").rpartition(":")[2]
        tls = home.home / "tls"
        home.cairn("cert", "operator", "alice")
        file = job_file(home, home.dir)
        done = home.cairn("--addr", f"127.0.0.1:{port}", "--tls-cert", tls / "operator-alice.crt", "--tls-key",
                          tls / "operator-alice.key", "--tls-ca", tls / "ca.crt", "submit", file, check=False)
        assert done.returncode == 2 and "write a path under one of /data" in done.stderr, done.stderr
        file = job_file(home, home.dir, COMMAND)  # it may have a command, but no such program
        done = home.cairn("--addr", f"127.0.0.1:{port}", "--tls-cert", tls / "operator-alice.crt", "--tls-key",
                          tls / "operator-alice.key", "--tls-ca", tls / "ca.crt", "submit", file, check=False)
        assert done.returncode == 2 and "command.run: this coordinator lets jobs from elsewhere name no such path" in done.stderr
        home.cairn("node", "invite", "-o", home.dir / "invite")
        invite = (home.dir / "invite").read_text(encoding="utf-8").splitlines()
        assert [line for line in invite if line.startswith("address ")][0] == "address there.example:7000", invite
        differs = home.cairn("up", "--paths", "/other", check=False)
        assert differs.returncode == 4 and "already up, but with --paths /data, not /other" in differs.stderr
        assert home.cairn("up", "--paths", "/data", "--commands").returncode == 0


def test_for_whom_it_is_asked_counts_from_the_coordinators_own_machine_alone(home, pb):
    """The line with which the page says for whom it asks: it names, takes rights away, and helps nobody else."""
    job = home.submit(TINY.replace("12 steps", "100000 steps"))

    def ask(channel, method, behalf):
        call = channel.unary_unary(f"/cairn.v1.Control/{method}", pb.control.JobRequest.SerializeToString, pb.control.Job.FromString)
        try:
            call(pb.control.JobRequest(job=job), timeout=10, metadata=(("cairn-for", behalf),))
        except grpc.RpcError as error:
            return error.code().name
        return "OK"

    def last_asker(kind):
        return [event["message"] for event in home.show(job)["events"] if event["kind"] == kind][-1]
    with grpc.insecure_channel(f"unix:{home.home}/cairnd.sock") as owner, home.channel("operator-alice") as alice, \
            home.channel("viewer-bob") as bob:
        assert ask(owner, "PauseJob", "operator/carol 10.0.0.9") == "OK"
        assert last_asker("pause") == "asked by operator/carol@page"
        assert logged(home, actor="operator/carol@page", method="Control/PauseJob", about=job)["peer"].endswith(" for 10.0.0.9")
        assert ask(owner, "GetJob", "viewer/session:0a1b2c 10.0.0.9") == "OK"
        assert ask(owner, "ResumeJob", "viewer/session:0a1b2c 10.0.0.9") == "PERMISSION_DENIED"
        logged(home, actor="viewer/session:0a1b2c@page", method="Control/ResumeJob", code="PERMISSION_DENIED")
        for bad in ("operator/carol", "node/n1 10.0.0.9", "local 10.0.0.9", "operator/carol@page 10.0.0.9", "operator/" + "x" * 200 + " ::1", ""):
            assert ask(owner, "ResumeJob", bad) == "UNAUTHENTICATED", bad
        assert home.show(job)["state"] == "PAUSED"
        assert ask(bob, "ResumeJob", "operator/carol 10.0.0.9") == "PERMISSION_DENIED"
        assert ask(alice, "ResumeJob", "operator/carol 10.0.0.9") == "OK"
        assert last_asker("resumed") == "asked by operator/alice"
        assert logged(home, actor="operator/alice", method="Control/ResumeJob", about=job)["peer"].startswith("ipv4:127.0.0.1:")
        assert ask(alice, "StopJob", "nonsense") == "OK"
