"""A checkpoint store that is not where it was: jobs wait for it, say so, and lose nothing."""
from pathlib import Path

import pytest

from home import Home, until
from test_suspect import can_mount, messages, node, nodes_of


# Long enough for a pause to come before its end.
LONG = {"train__duration": "400 steps", "checkpoint__every": "40 steps"}
HALF = "trainer.forward,rank=0,step=60:wait"


def paused(home):
    """A job that waits, and its checkpoints."""
    job = home.submit(**LONG)
    home.wait_hit("trainer.forward")
    home.cairn("pause", job)
    home.go("trainer.forward")
    return job, home.wait_state(job, "PAUSED")["checkpoints"]


def waits(home, job, text):
    def said():
        shown = home.show(job)
        return text in shown["reason"] and shown
    return until(said, 30, f"the job waits: {text}")


@pytest.fixture(scope="module", name="quiet")
def quiet_digest():
    with Home() as home:
        return home.run(**LONG)


def test_an_empty_store_is_waited_for_and_nothing_is_made_in_it(quiet):
    with Home(faults=HALF) as home:
        job, before = paused(home)
        store, aside = home.dir / "checkpoints", home.dir / "aside"
        store.rename(aside)
        store.mkdir()
        home.cairn("resume", job)
        shown = waits(home, job, str(store))
        assert "cairn ckpt rm" in shown["reason"] and "store-mark" in shown["reason"], shown["reason"]
        assert not list(store.iterdir())
        assert shown["checkpoints"] == before
        store.rmdir()
        aside.rename(store)
        assert home.digest(job) == quiet
        assert not any("is set aside" in text for text in messages(home, job))


def test_a_lost_store_can_be_given_up(quiet):
    with Home(faults=HALF) as home:
        job, before = paused(home)
        (home.dir / "checkpoints").rename(home.dir / "aside")
        home.cairn("resume", job)
        waits(home, job, "store-mark")
        for step in sorted((int(c["step"]) for c in before), reverse=True):
            home.cairn("ckpt", "rm", f"{job}@{step}")
        assert home.digest(job) == quiet
        assert (home.dir / "checkpoints" / home.show(job)["id"] / "store-mark").is_file()


def test_a_node_that_does_not_see_the_store_is_named_and_left(quiet):
    with Home(faults=HALF, slots=1) as home:
        if not can_mount(home):
            pytest.skip("no mount namespace of our own")
        with node(home, "another", 2):
            job, before = paused(home)
        folder = Path(before[0]["path"])
        empty = home.dir / "empty"
        empty.mkdir()
        with node(home, "another", 2, (folder.parent, empty)):
            until(lambda: home.cairn("node", "ls").stdout.count("ready") >= 2, 20, "two nodes")
            home.cairn("resume", job)
            until(lambda: any("node another sees" in text for text in messages(home, job)), 30, "it is named")
            with node(home, "third", 3):
                assert home.digest(job) == quiet
                assert nodes_of(home, job) == {"third"}
