"""The time left, as it is told at a quarter of a run with evaluations, saves and a kill, and right after the resume.

Most of a step and of an evaluation is a fault point's sleep, so that a busy machine changes little; what the rest took
is said by the rows' own clock. A wrong rule (evaluations or this attempt's steps not counted, all steps ever done) is off
by a factor of two and more. That it is right within 10 % is shown without a clock, in tests/unit/server/pace.
"""
import csv
import io

from home import Home, until

STEPS, QUARTER, DIES, EVERY = 1000, 250, 175, 50
PACED = "trainer.backward:slow8;trainer.eval:slow1000;save.snapshot:slow60"  # two backward passes a step
WRONG = 1.5


def told(home, job, step):
    """(step, seconds left) as soon as the second attempt is that far."""
    def reached():
        shown = home.try_show(job)
        return (shown and shown["generation"] == 2 and shown["step"] >= step and shown["eta_seconds"] is not None and
                (shown["step"], shown["eta_seconds"]))
    return until(reached, 300, f"step {step} of the second attempt")


def test_it_is_right_at_a_quarter_and_right_after_the_resume(capsys):
    with Home(env=Home.RESTART, faults=f"{PACED};trainer.reduce,step={DIES},generation=1:kill") as home:
        job = home.submit(train__duration=f"{STEPS} steps", eval__every="40 steps", checkpoint__every=f"{EVERY} steps",
                          checkpoint__memory_every="none")
        resumed = told(home, job, 0)
        assert resumed[0] < DIES + EVERY, resumed  # not long after it went back
        quarter = told(home, job, QUARTER)
        home.digest(job, seconds=600)
        [one] = home.show(job)["recoveries"]
        assert one["kind"] == "checkpoint" and one["steps_lost"] > 0, one
        rows = list(csv.DictReader(io.StringIO(home.cairn("metrics", job, "-o", "csv").stdout)))
        made = {int(row["step"]): float(row["unix_seconds"]) for row in rows}
        for name, (step, left) in (("after the resume", resumed), ("at a quarter", quarter)):
            took = made[STEPS] - made[step]
            with capsys.disabled():
                print(f"\n{name}, at step {step}: {left:.1f} s left, it took {took:.1f} s ({100 * (left / took - 1):+.1f} %)")
            assert 1 / WRONG < left / took < WRONG, name
