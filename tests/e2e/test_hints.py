"""What a user is told: before a job is queued, by hints, by TAB and by the manual."""
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from home import BIN, TINY, Home

IDX = TINY.replace("train: {format: synthetic, samples: 384}", "train: {format: idx, images: %s, labels: %s}")


@pytest.fixture(scope="module", name="home")
def one_home():
    with Home(slots=4, env={"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/nowhere",
                            "AWS_CONFIG_FILE": "/nowhere"}) as home:
        yield home


def refused(home, text, *args):
    """What is said, and that nothing is queued."""
    path = home.dir / "refused.yaml"
    path.write_text(text, encoding="utf-8")
    before = home.cairn("ps", "-o", "name").stdout
    done = home.cairn("submit", path, *args, check=False)
    assert done.returncode == 2 and "nothing was submitted" in done.stderr, done
    assert home.cairn("ps", "-o", "name").stdout == before
    return done.stderr


def test_data_that_is_not_there_is_told_with_its_place_before_the_job_is_queued(home):
    (home.dir / "there.gz").write_bytes(b"")
    said = refused(home, IDX % ("no-such.gz", "there.gz"))
    assert re.search(r"refused.yaml:4:\d+: data.train.images: .*/no-such.gz: there is no such file", said), said
    assert "correct the path" in said and "labels" not in said.replace("labels: there.gz", ""), said
    said = refused(home, IDX % ("there.gz", "."))
    assert re.search(r"refused.yaml:4:\d+: data.train.labels: .* is a folder", said), said
    both = refused(home, IDX % ("nope", "nope"), "--set", "train.lanes=5")
    assert "data.train.images" in both and "data.train.labels" in both and "lanes" in both  # all at once


def test_what_a_job_names_is_not_looked_at_where_other_nodes_may_see_it(home):
    env = dict(home.env, CAIRN_ADDR=f"unix:{home.home}/cairnd.sock")  # whose nodes this process can't know
    path = home.dir / "elsewhere.yaml"
    path.write_text(IDX % ("no-such.gz", "no-such.gz"), encoding="utf-8")
    done = subprocess.run([BIN / "cairn", "submit", path, "--wait"], env=env, cwd=home.dir, capture_output=True, text=True,
                          timeout=60, check=False)
    assert done.returncode == 10, done
    assert "no-such.gz" in done.stderr


def test_a_store_that_can_not_be_made_and_missing_credentials_are_told_before_the_job_is_queued(home):
    said = refused(home, TINY.replace("store: checkpoints/", "store: /proc/nope"))
    assert re.search(r"refused.yaml:\d+:\d+: checkpoint.store: user \w+ can make nothing in /proc: ", said), said
    (home.dir / "file").write_text("", encoding="utf-8")
    said = refused(home, TINY, "--set", "checkpoint.store=file/store")
    assert "--set:1:" in said and "it is a file" in said, said
    said = refused(home, TINY.replace("store: checkpoints/", "store: s3://bucket/x"))
    assert "AWS_ACCESS_KEY_ID" in said and "cairn down, then cairn up" in said, said


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_permissions_are_named_before_the_job_is_queued():
    folder = Path(tempfile.mkdtemp(prefix="cairn-e2e-"))
    try:
        for program in ("cairn", "cairnd", "cairn-agent", "cairn-trainer"):
            shutil.copy(BIN / program, folder)
        os.chmod(folder, 0o755)
        work = folder / "work"
        work.mkdir()
        shutil.chown(work, "nobody", "nogroup")
        (work / "secret.gz").write_bytes(b"")
        os.chmod(work / "secret.gz", 0o600)
        (work / "job.yaml").write_text(IDX % ("secret.gz", "secret.gz"), encoding="utf-8")
        (work / "ours").mkdir(mode=0o755)  # of root

        def cairn(*args):
            env = {"PATH": os.environ["PATH"], "CAIRN_HOME": str(work / "home"), "CAIRN_COPIES": str(work / "copies")}
            return subprocess.run([folder / "cairn", *args], env=env, cwd=work, user="nobody", group="nogroup",
                                  extra_groups=[], capture_output=True, text=True, timeout=60, check=False)

        assert cairn("up").returncode == 0
        try:
            done = cairn("submit", "job.yaml", "--set", "checkpoint.store=ours/store")
            assert done.returncode == 2, done
            assert re.search(r"user nobody may not read .*/secret.gz \(mode 0600, of root\)", done.stderr), done.stderr
            assert re.search(r"user nobody can make nothing in .*/ours: Permission denied", done.stderr), done.stderr
            assert cairn("ps", "-o", "name").stdout == ""
            done = cairn("submit", "secret.gz")
            assert done.returncode == 2 and "secret.gz: permission denied" in done.stderr, done
        finally:
            assert cairn("down").returncode == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_too_little_room_for_what_is_kept_is_a_warning(home):
    path = home.dir / "large.yaml"
    path.write_text(TINY.replace("keep: {last: 2}", "keep: {last: 10000}").replace("hidden: 32", "hidden: 65536"),
                    encoding="utf-8")
    done = home.cairn("plan", path)
    assert "10001 checkpoints" in done.stderr and "keep.last" in done.stderr, done.stderr
    assert "warning" not in home.cairn("plan", path, "--set", "model.hidden=32", "--set", "checkpoint.keep.last=2").stderr
    job = home.cairn("submit", path)
    assert "10001 checkpoints" in job.stderr and job.returncode == 0
    home.cairn("kill", job.stdout.split()[0], "--wait", check=False)


def test_errors_name_the_next_command(home):
    job = home.submit()
    home.digest(job)
    killed = home.submit(train__duration="1000000 steps", checkpoint__every="1000000 steps")
    home.cairn("kill", killed, "--wait", check=False)
    for args, code, hint in (
            (["show", "tinny"], 3, "did you mean 'tiny'? 'cairn ps' lists them"),
            (["show", "nothing-like-it"], 3, "'cairn ps' lists them"),
            (["resume", job], 4, "it is over; 'cairn submit' trains anew"),
            (["save", killed], 4, f"'cairn ckpt ls {killed}'"),
            (["ckpt", "rm", f"{job}@77"], 3, f"'cairn ckpt ls {job}' lists them"),
            (["node", "drain", "nowhere"], 3, "'cairn node ls' lists them"),
            (["ckpt", "ls", "/usr"], 3, "'cairn show JOB' names a job's folder")):
        done = home.cairn(*args, check=False)
        assert done.returncode == code and hint in done.stderr, (args, done)


def test_mistakes_in_what_is_set_end_without_an_empty_line(home):
    job = home.submit()
    for setting in ("workers.cuont=2", "train.seed=1", "workers.count=0"):
        said = home.cairn("set", job, setting, check=False)
        assert said.returncode == 2 and setting in said.stderr, said
        assert said.stderr.endswith("\n") and not said.stderr.endswith("\n\n"), said
    home.digest(job)


def test_null_takes_a_key_of_the_file_away(home):
    path = home.dir / "null.yaml"
    path.write_text(TINY.replace("  seed: 17\n", "  seed: 17\n  precision: bf16\n  amp: O2\n"), encoding="utf-8")
    plain = ("--set", "train.precision=fp32")
    for verb in ("plan", "submit"):
        said = home.cairn(verb, path, *plain, check=False)
        assert said.returncode == 2 and "train.amp is not for train.precision: fp32" in said.stderr, said
        home.cairn(verb, path, *plain, "--set", "train.amp=null", "--set", "checkpoint.level=null")
    job = home.cairn("ps", "-n", "1", "-o", "name").stdout.strip()
    assert " amp:" not in home.show(job)["job_file"]
    assert home.digest(job) == home.digest(home.submit())
    for verb in ("submit", "plan", "ckpt import"):
        assert "null takes the key away" in " ".join(home.cairn("help", *verb.split()).stdout.split())


# ---- TAB ----

def tab(home, line):
    """What bash offers at the end of a line."""
    script = home.dir / "completion.bash"
    script.write_text(home.cairn("completion", "bash").stdout, encoding="utf-8")
    run = f"""source {script}
        COMP_LINE={json.dumps(line)}; COMP_POINT=${{#COMP_LINE}}; COMP_WORDBREAKS=$' \\t\\n"@><=;|&(:'
        COMPREPLY=(); _cairn; printf '%s\\n' "${{COMPREPLY[@]}}" """
    env = dict(home.env, PATH=f"{BIN}:{os.environ['PATH']}")
    done = subprocess.run(["bash", "-c", run], env=env, cwd=home.dir, capture_output=True, text=True, timeout=30, check=True)
    assert done.stderr == ""
    return done.stdout.split()


def test_tab_offers_jobs_states_nodes_and_steps(home):
    job = home.submit(TINY.replace("name: tiny", "name: tabbed"))
    home.digest(job)
    node = home.cairn("node", "ls", "-o", "name").stdout.split()[0]
    assert {"submit", "ckpt", "node", "help", "why"} <= set(tab(home, "cairn "))
    assert tab(home, "cairn subm") == ["submit"]
    assert tab(home, "cairn ckpt ve") == ["verify"]
    assert {"submit", "ckpt"} <= set(tab(home, "cairn help ")) and "ls" in tab(home, "cairn help ckpt ")
    assert tab(home, "cairn show tab") == ["tabbed"]
    assert job in tab(home, "cairn why j-")
    assert tab(home, "cairn -q show -o json tab") == ["tabbed"]
    assert {"active", "over", "running", "queued"} <= set(tab(home, "cairn ps --state "))
    assert tab(home, "cairn ps --state succ") == ["succeeded"]
    assert tab(home, "cairn ps --state queued,ru") == ["queued,running"]
    assert tab(home, "cairn ps --columns id,na") == ["id,name"] and tab(home, "cairn top --sort name,-los") == ["name,-loss", "name,-lost"]
    assert tab(home, "cairn node ls --columns gpu-") == ["gpu-heat", "gpu-memory", "gpu-use"]
    assert tab(home, "cairn ps -o js") == ["json", "jsonl"]
    assert tab(home, "cairn metrics x -o c") == ["csv"]
    assert tab(home, "cairn ps --na") == ["--name"]
    assert tab(home, "cairn node drain ") == [node]
    assert tab(home, "cairn node drain x --reason ") == []
    assert tab(home, "cairn ckpt show tabbed@") == ["12", "8", "all"]  # bash replaces what stands behind the '@'
    assert tab(home, f"cairn ckpt rm {job}@1") == ["12"]
    assert tab(home, "cairn set tabbed workers.c") == ["workers.count="]
    assert tab(home, "cairn completion z") == ["zsh"]
    assert tab(home, "cairn ckpt export a b --dtype f") == ["f32", "f16"]
    assert "completion.bash" in tab(home, "cairn submit comp")
    assert tab(home, "cairn frobnicate ") == []


@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_scripts_for_other_shells_are_read_by_them(home, shell):
    if not shutil.which(shell):
        pytest.skip(f"no {shell}")
    script = home.cairn("completion", shell).stdout
    subprocess.run([shell, "-n"], input=script, text=True, check=True, timeout=30)


@pytest.mark.skipif(not shutil.which("fish"), reason="no fish")
def test_fish_completes_lists_after_each_comma(home):
    env = dict(home.env, PATH=f"{BIN}:{os.environ['PATH']}", HOME=str(home.dir))
    for line, expected in (("cairn ps --columns id,na", "id,name"), ("cairn ps --state queued,ru", "queued,running")):
        run = f"cairn completion fish | source; complete -C {json.dumps(line)}"
        done = subprocess.run(["fish", "-c", run], env=env, capture_output=True, text=True, timeout=30, check=True)
        assert [word.split("\t")[0] for word in done.stdout.splitlines()] == [expected], done


def test_tab_is_quick_and_silent_without_a_coordinator(home):
    other = dict(home.env, CAIRN_HOME=str(home.dir / "nobody"))
    done = subprocess.run([BIN / "cairn", "complete", "jobs"], env=other, capture_output=True, text=True, timeout=10,
                          check=True)
    assert done.stdout == done.stderr == ""


# ---- the manual ----

@pytest.mark.parametrize("page", ["cairn.1", "cairnd.8", "cairn-agent.8"])
def test_the_manual_is_rendered_without_warnings(page):
    path = BIN.parent / "manual" / page
    if not path.exists():
        pytest.skip("not a whole build")
    text = path.read_text(encoding="utf-8")
    if page == "cairn.1":
        for word in ("cairn up", "cairn ckpt verify", "JOB@A..B", "124"):
            assert word.replace("-", r"\-") in text, word
    else:
        assert r"\-\-" in text and "usage" not in text
    if not shutil.which("groff"):
        pytest.skip("no groff")
    done = subprocess.run(["groff", "-ww", "-man", "-Tutf8", "-rLL=100n", path], capture_output=True, text=True,
                          timeout=60, check=True)
    assert done.stderr == ""
    assert "SYNOPSIS" in re.sub(".\x08", "", done.stdout)
