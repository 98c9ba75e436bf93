"""Named coordinators: two homes on one machine, told apart by their contexts alone."""
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from home import BIN, Home


class Person:
    """Somebody's shell: a configuration folder, and nothing of Cairn's in the environment."""

    def __init__(self):
        self.dir = Path(tempfile.mkdtemp(prefix="cairn-context-"))
        self.env = {k: v for k, v in os.environ.items() if not k.startswith("CAIRN_")}
        self.env.update(HOME=str(self.dir), XDG_CONFIG_HOME=str(self.dir / "config"),
                        XDG_STATE_HOME=str(self.dir / "state"))

    def cairn(self, *args, code=0, **env):
        done = subprocess.run([BIN / "cairn", *map(str, args)], env={**self.env, **env}, cwd=self.dir, timeout=90,
                              capture_output=True, text=True, check=False)
        assert done.returncode == code, (args, done)
        return done


@pytest.fixture(name="person")
def somebody():
    person = Person()
    yield person
    shutil.rmtree(person.dir)


@pytest.fixture(scope="module", name="homes")
def two_homes():
    with Home(slots=2) as one, Home(slots=3) as other:
        yield one, other


def slots(person, *args, **env):
    return json.loads(person.cairn(*args, "node", "ls", "-o", "json", **env).stdout)[0]["slots"]


def test_calls_go_where_the_context_says(person, homes):
    one, other = homes
    person.cairn("context", "add", "one", "--home", one.home)
    person.cairn("context", "add", "other", "--addr", f"unix:{other.home}/cairnd.sock")
    assert person.cairn("context", "ls", "-o", "name").stdout.split() == ["one", "other"]
    assert person.cairn("complete", "contexts").stdout.split() == ["one", "other"]
    person.cairn("ps", code=5)  # the home by default, in which nothing runs
    person.cairn("context", "use", "one")
    assert slots(person) == 2
    assert slots(person, "--context", "other") == slots(person, CAIRN_CONTEXT="other") == 3
    assert slots(person, CAIRN_HOME=str(other.home)) == 3
    assert slots(person, "--addr", f"unix:{other.home}/cairnd.sock") == 3
    assert slots(person, "--context", "one", CAIRN_CONTEXT="other", CAIRN_HOME=str(other.home)) == 2
    person.cairn("--context", "-", "ps", code=5)
    shown = json.loads(person.cairn("context", "show", "-o", "json").stdout)
    assert (shown["name"], shown["home"], shown["current"], shown["chosen_by"]) == ("one", str(one.home), True, "current")
    said = person.cairn("context", "ls", CAIRN_CONTEXT="other")
    assert "CAIRN_CONTEXT goes before" in said.stderr and "one    *" in said.stdout, said
    person.cairn("context", "rm", "one")
    person.cairn("ps", code=5)


def test_what_is_about_this_machine_is_refused_for_another_one(person, homes):
    person.cairn("context", "add", "far", "--addr", f"unix:{homes[1].home}/cairnd.sock")
    person.cairn("context", "use", "far")
    for command in (("up",), ("down",), ("open",), ("webhook", "ls")):
        said = person.cairn(*command, code=4).stderr
        assert "'far'" in said and "--context -" in said, said
    assert slots(person) == 3  # it runs on
    assert not (person.dir / "state" / "cairn").exists()


def test_up_and_down_are_of_the_contexts_home(person):
    home = person.dir / "some where"
    person.cairn("context", "add", "here", "--home", "some where")
    assert json.loads(person.cairn("context", "show", "here", "-o", "json").stdout)["home"] == str(home)
    person.cairn("--context", "here", "up", "--slots", "2", CAIRN_HOME="/nowhere/at/all")
    try:
        assert slots(person, "--context", "here") == 2
        assert (home / "cairnd.sock").exists() and not (person.dir / "state" / "cairn").exists()
    finally:
        person.cairn("--context", "here", "down")


def test_mistakes_say_the_way_out(person):
    said = person.cairn("--context", "lab", "ps", code=3).stderr
    assert "no context 'lab'" in said and "cairn context ls" in said, said
    assert "--addr" in person.cairn("context", "add", "lab", code=2).stderr
    assert "nope.crt" in person.cairn("context", "add", "lab", "--addr", "ada:7000", "--tls-ca", "nope.crt", code=3).stderr
    assert "password" in person.cairn("context", "add", "lab", "--addr", "me:secret@ada:7000", code=2).stderr
    person.cairn("context", "add", "lab", "--addr", "ada:7000")
    assert "--force" in person.cairn("context", "add", "lab", "--addr", "bob:7000", code=4).stderr
    person.cairn("context", "add", "lab", "--addr", "bob:7000", "--force")
    assert "did you mean 'lab'" in person.cairn("context", "use", "lap", code=3).stderr
    person.cairn("context", "use", "lab")
    path = person.dir / "config" / "cairn" / "contexts.json"
    path.write_text(path.read_text(encoding="utf-8").replace("bob:7000\"", "bob:7000\", \"pasword\": \"x\""), encoding="utf-8")
    said = person.cairn("ps", code=2).stderr
    assert "contexts.lab.pasword" in said and "--context -" in said, said
    person.cairn("--context", "-", "ps", code=5)
    assert "pasword" in person.cairn("context", "use", "-", code=2).stderr
    assert "pasword" in path.read_text(encoding="utf-8")
