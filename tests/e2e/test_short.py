"""A short run of everything, for sanitizer builds."""
import signal

from home import Home

SETS = {"train__duration": "6 steps", "checkpoint__every": "2 steps"}


def test_a_killed_worker_changes_nothing_and_no_process_reports_an_error():
    with Home(env={"ASAN_OPTIONS": "detect_leaks=0"}) as home:
        quiet = home.run(seconds=120, **SETS)
    with Home(faults="trainer.update,rank=1,step=3:kill") as home:
        assert home.run(seconds=120, **SETS) == quiet
        home.kill("cairnd", signal.SIGINT)
        logs = [p.read_text(errors="replace")
                for p in [*home.home.glob("log/*"), *home.home.glob("jobs/*/*/*.log")]]
        for text in logs:
            assert "Sanitizer" not in text, text
            assert "runtime error" not in text, text
