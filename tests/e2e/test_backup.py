"""The journal is backed up while the coordinator uses it, lost, and put back."""
import subprocess

from home import BIN, Home, alive, until

LONG = {"train__duration": "400 steps", "checkpoint__every": "20 steps", "checkpoint__keep__last": "2"}
HELD = "trainer.forward,rank=0,step=110:wait"  # also where a save or two were dropped


def back_up(home, path):
    return subprocess.run([BIN / "cairnd", "--backup", path], env=home.env, capture_output=True, text=True,
                          timeout=30, check=False)


def put_back(home, path):
    """As the usage says, but for the stop: nothing ended in order."""
    home.end_everything()
    path.rename(home.home / "state" / "cairnd.db")
    home.cairn("up", "--slots", str(home.slots))


def test_a_job_goes_on_from_a_backup_and_ends_with_the_same_bits():
    with Home() as home:
        quiet = home.run(**LONG)
    with Home(faults=HELD) as home:
        job = home.submit(**LONG)
        home.wait_hit("trainer.forward")
        until(lambda: home.show(job)["checkpoints"], 30, "a checkpoint")
        backup = home.dir / "backup.db"
        done = back_up(home, backup)
        assert done.returncode == 0, done.stderr
        assert backup.stat().st_mode & 0o777 == 0o600
        home.go("trainer.forward")
        home.wait_state(job, "SUCCEEDED")  # the backup doesn't know; nor are its checkpoints there any more
        later = home.submit(**LONG)  # nor this job
        put_back(home, backup)
        assert home.try_show(later) is None
        assert home.digest(job, seconds=120) == quiet
        shown = home.show(job)
        assert int(shown["generation"]) > 1000000
        assert "restored" in [event["kind"] for event in shown["events"]]


def test_trainers_of_before_are_ended_by_a_restored_coordinator():
    with Home(faults=HELD) as home:
        job = home.submit(**LONG)
        home.wait_hit("trainer.forward")
        backup = home.dir / "backup.db"
        assert back_up(home, backup).returncode == 0
        before = set(home.pids("cairn-trainer"))
        for program in ("cairn", "cairnd"):  # the supervisor first
            home.kill(program)
        until(lambda: not home.pids("cairnd"), 10, "the coordinator is gone")
        backup.rename(home.home / "state" / "cairnd.db")
        home.cairn("up", "--slots", str(home.slots))
        until(lambda: not any(alive(pid) for pid in before), 30, "the trainers of before end")
        home.go("trainer.forward")
        home.digest(job, seconds=120)


def test_a_backup_that_cant_be_made_says_why():
    with Home() as home:
        done = back_up(home, home.dir / "nowhere" / "backup.db")
        assert done.returncode == 1
        assert "nowhere" in done.stderr
        assert "usage" in subprocess.run([BIN / "cairnd", "--backup"], env=home.env, capture_output=True,
                                         text=True, timeout=30, check=False).stderr
