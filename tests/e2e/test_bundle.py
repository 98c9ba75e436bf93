"""cairn bundle: all that support needs in one file, none of the secrets, also where the coordinator is down."""
import base64
import io
import json
import os
import signal
import sqlite3
import tarfile

import pytest

from home import TINY, Home, until

PLANTED = {  # in the environment, which programs may write anywhere
    "AWS_ACCESS_KEY_ID": "AKIAPLANTEDPLANTED00", "AWS_SECRET_ACCESS_KEY": "planted/aws+secret+0123456789",
    "AWS_SESSION_TOKEN": "planted-session-token-0123456789", "WANDB_API_KEY": "planted0wandb0key0123456789abcdef",
    "SOME_PASSWORD": "planted password with blanks"}
WRITTEN = ["planted-by-name-01", "planted-by-header-02", "planted-by-address-03", "planted-in-a-path-04", "MIGplantedKeyLine05"]
LINES = f"""\
api_key={WRITTEN[0]} and {PLANTED['AWS_SECRET_ACCESS_KEY']} bare
Authorization: Bearer {WRITTEN[1]}
s3://me:{WRITTEN[2]}@bucket/prefix, https://hooks.example.org/services/{WRITTEN[3]}
-----BEGIN PRIVATE KEY-----
{WRITTEN[4]}
-----END PRIVATE KEY-----
the end of what was planted
"""


def members(path):
    with tarfile.open(path) as tar:
        assert all(m.isfile() and m.name.startswith("cairn-bundle/") and ".." not in m.name for m in tar)
        return {m.name.removeprefix("cairn-bundle/"): tar.extractfile(m).read() for m in tar}


def forms(secret):
    """As text, and as the bytes that hexadecimal or base64 stands for."""
    out = [secret.encode(), base64.b64encode(secret.encode()).rstrip(b"=")]
    for read in (bytes.fromhex, base64.b64decode):
        try:
            out.append(read(secret))
        except ValueError:
            pass
    return [form for form in out if len(form) >= 8]


def plant(home, job):
    """Secrets in all places that have some; returns them."""
    home.cairn("cert", "init")
    (home.home / "hook.secret").write_text("planted-webhook-signing-secret-06\n", encoding="utf-8")
    (home.home / "hook.secret").chmod(0o600)
    hooks = home.home / "webhooks.yaml"
    hooks.write_text("webhooks:\n  - {name: team, url: 'https://hooks.example.org/services/planted-path-08', "
                     "secret_file: hook.secret}\n", encoding="utf-8")
    hooks.chmod(0o600)
    (home.dir / "aws").write_text("[default]\naws_access_key_id = AKIAPLANTEDPLANTED09\n"
                                  "aws_secret_access_key = planted/of/a/profile/10\n", encoding="utf-8")
    home.env["AWS_SHARED_CREDENTIALS_FILE"] = str(home.dir / "aws")
    found = {*PLANTED.values(), *WRITTEN, "planted-webhook-signing-secret-06", "planted-path-08",
             "planted/of/a/profile/10"}
    found |= {(home.home / name).read_text(encoding="utf-8").strip() for name in ("token", "observer/token", "state/seal")
              if (home.home / name).exists()}
    for key in (home.home / "tls").glob("*.key"):
        found |= set(key.read_text(encoding="utf-8").splitlines()[1:-2])
    with sqlite3.connect(f"file:{home.home}/state/cairnd.db?mode=ro", uri=True) as journal:
        found |= {json.loads(row[0])["token"] for row in journal.execute("SELECT state FROM jobs")}
    bare = "".join(f"a program wrote {secret}\n" for secret in sorted(found) if secret not in WRITTEN)
    for log in (home.home / "log/cairnd.log", home.home / f"jobs/{job}/g1/r0.log"):
        with log.open("a", encoding="utf-8") as file:
            file.write(LINES + bare)
    with (home.home / "log/observer.log").open("a", encoding="utf-8") as file:
        file.write("a line that is cut off\n" * 20000 + "the newest line\n")
    return found


@pytest.fixture(scope="module", name="home")
def home_with_jobs():
    with Home(slots=4, env=PLANTED) as home:
        home.over = home.submit()
        home.digest(home.over)
        home.runs = home.submit(TINY.replace("name: tiny", "name: long"), train__duration="100000 steps")
        until(lambda: home.show(home.runs)["step"] > 5, 30, "steps")
        yield home


def test_no_secret_is_in_any_byte_and_all_else_is(home):
    secrets = plant(home, home.over)
    assert len(secrets) > 14
    before = home.show(home.runs)
    said = home.cairn("bundle", "-o", "all.tar.gz", timeout=120)
    assert said.stdout == "all.tar.gz\n" and (home.dir / "all.tar.gz").stat().st_mode & 0o777 == 0o600
    packed = members(home.dir / "all.tar.gz")
    for name, data in packed.items():
        for secret in secrets:
            assert not any(form in data for form in forms(secret)), (name, secret)
    for log in ("logs/cairnd.log", f"jobs/{home.over}/logs/g1-r0.log"):
        assert b"the end of what was planted" in packed[log] and b"[secret]" in packed[log], packed[log]
    assert 250 << 10 < len(packed["logs/observer.log"]) <= 256 << 10
    assert packed["logs/observer.log"].startswith(b"a line that") and packed["logs/observer.log"].endswith(b"the newest line\n")
    assert "logs/observer.log  (cut" in packed["MANIFEST.txt"].decode()
    for job in (home.over, home.runs):
        for name in ("job.yaml", "show.json", "why.txt", "why.json", "debug.json", "checkpoints.json", "metrics.csv",
                     "logs/g1-r0.log", "logs/g1-r1.log"):
            assert packed[f"jobs/{job}/{name}"], name
    for name in ("nodes.json", "jobs.json", "versions.json", "environment.txt", "logs/agent.log"):
        assert packed[name], name
    assert b"== /etc/os-release" in packed["machine.txt"] and b"/dev/shm" in packed["machine.txt"]
    environment = packed["environment.txt"].decode()
    assert "AWS_SECRET_ACCESS_KEY is set" in environment and f"CAIRN_HOME={home.home}" in environment
    assert "SOME_PASSWORD" not in environment  # nothing of Cairn's
    assert {line.split()[1] for line in packed["MANIFEST.txt"].decode().splitlines()} == {*packed} - {"MANIFEST.txt"}
    after = home.show(home.runs)
    assert (after["state"], after["generation"]) == (before["state"], before["generation"]) == ("RUNNING", 1)


def test_commands_print_from_it_what_they_printed_then(home):
    home.cairn("bundle", home.over, home.runs, "-o", "two.tar.gz", timeout=120)
    packed = members(home.dir / "two.tar.gz")
    for command in (("why",), ("show", "-o", "json"), ("why", "-o", "json")):
        live = home.cairn(*command, home.over).stdout
        for job in (home.over, home.over[:-1], "tiny"):
            assert home.cairn(*command, job, "--bundle", "two.tar.gz").stdout == live
    assert home.cairn("why", "long", "--bundle", "two.tar.gz").stdout == packed[f"jobs/{home.runs}/why.txt"].decode()
    assert {job["id"] for job in json.loads(home.cairn("ps", "-o", "json", "--bundle", "two.tar.gz").stdout)} == {home.over, home.runs}
    assert home.cairn("node", "ls", "--bundle", "two.tar.gz").stdout.startswith("NAME")
    assert json.loads(home.cairn("debug", "job", "--bundle", "two.tar.gz", "long").stdout)["job"]["id"] == home.runs
    said = home.cairn("why", "--bundle", "two.tar.gz", check=False)
    assert said.returncode == 2 and home.over in said.stderr and "long" in said.stderr, said
    said = home.cairn("why", "nobody", "--bundle", "two.tar.gz", check=False)
    assert said.returncode == 3 and home.over in said.stderr, said
    home.cairn("bundle", "tiny", "-o", "one.tgz", timeout=120)
    assert home.cairn("why", "--bundle", "one.tgz").stdout == home.cairn("why", "tiny").stdout
    assert home.cairn("why", check=False).returncode == 2  # a coordinator has many jobs


def test_mistakes_make_no_file(home):
    for args, code in ((("nobody", "-o", "no.tar.gz"), 3), (("-o", "no.zip"), 2), (("-o", "nowhere/no.tar.gz"), 3)):
        assert home.cairn("bundle", *args, check=False).returncode == code, args
    (home.dir / "taken.tar.gz").write_text("mine", encoding="utf-8")
    assert home.cairn("bundle", "-o", "taken.tar.gz", check=False).returncode == 4
    assert (home.dir / "taken.tar.gz").read_text(encoding="utf-8") == "mine"
    said = home.cairn("why", "tiny", "--bundle", "taken.tar.gz", check=False)
    assert said.returncode == 8 and "taken.tar.gz" in said.stderr, said
    with tarfile.open(home.dir / "other.tar.gz", "w:gz", format=tarfile.USTAR_FORMAT) as tar:
        tar.addfile(tarfile.TarInfo("etc/passwd"), io.BytesIO())
    assert "no bundle" in home.cairn("why", "tiny", "--bundle", "other.tar.gz", check=False).stderr
    assert not [path for path in home.dir.glob("no*") if path.is_file()] and not list(home.dir.glob("*.tmp"))


def test_a_silent_agent_costs_its_answers_only(home):
    agent = next(pid for pid, program in home.pids().items() if program == "cairn-agent")
    os.kill(agent, signal.SIGSTOP)
    try:
        home.cairn("bundle", home.over, "-o", "silent.tar.gz", timeout=120)
    finally:
        os.kill(agent, signal.SIGCONT)
    packed = members(home.dir / "silent.tar.gz")
    assert packed[f"jobs/{home.over}/why.txt"] and packed["logs/agent.log"]
    assert home.over in packed["errors.txt"].decode() or packed.get(f"jobs/{home.over}/logs/g1-r0.log")


def test_a_coordinator_that_is_down_is_a_line(home):
    home.cairn("down", timeout=60)
    secrets = {*PLANTED.values(), *WRITTEN}
    said = home.cairn("bundle", "-o", "down.tar.gz")
    assert "errors.txt" in said.stderr, said
    packed = members(home.dir / "down.tar.gz")
    assert "UNAVAILABLE" in packed["errors.txt"].decode()
    assert packed["logs/cairnd.log"] and packed["machine.txt"] and packed[f"jobs/{home.runs}/logs/g1-r1.log"]
    assert not any(secret.encode() in data for data in packed.values() for secret in secrets)
    said = home.cairn("why", "tiny", "--bundle", "down.tar.gz", check=False)
    assert said.returncode == 3 and "errors.txt" in said.stderr, said
