"""Real trainers under a scripted coordinator: spares, and generations of other sizes.

A worker that was ready beforehand takes a seat; the number of workers, and who has which lanes, changes on the way;
every number comes out as in a run of one worker that nothing happened to.
"""
import signal

import pytest

from scripted import END, YAML, Coordinator, live, lose, make_coordinator, messages, quiet_run  # noqa: F401 (fixtures)

LENET = YAML.replace("{{arch: mlp, hidden: 40, classes: 10}}", "{{arch: lenet, classes: 10}}")
SPARE = 7  # its number


def await_warm(coordinator, generation):
    name = generation.name_of(SPARE)
    coordinator.await_(lambda: name in generation.ready and name in generation.parked)
    coordinator.await_(lambda: coordinator.phases.get((generation.number, name)) == "spare")
    assert generation.ready[name].step == 0 and not generation.parked[name].complete
    return name


def start_two_and_a_spare(coordinator, fault=None):
    first = coordinator.form(1, [3, 3])
    first.spares[SPARE] = 1
    spare = coordinator.start(first, SPARE)
    name = await_warm(coordinator, first)
    children, parked = None, None
    if fault:
        children, parked = lose(coordinator, first, 1, fault)
    return first, spare, name, children, parked


@pytest.mark.parametrize("goes_on", ["live", "seed"])
def test_a_spare_takes_the_seat_of_one_that_died(coordinator, quiet, goes_on):
    first, spare, name, children, parked = start_two_and_a_spare(
        coordinator, "trainer.reduce,rank=1,step=6:kill")
    assert first.ready[name].pins == first.ready[0].pins
    assert first.ready[name].state_bytes == first.ready[0].state_bytes
    assert first.ready[name].total_steps == first.ready[0].total_steps
    step, sources = live(parked)
    plan = {"live": {"step": step, "sources": sources}} if goes_on == "live" else {}
    second = coordinator.form(2, [4, 2], **plan)
    coordinator.regroup(first, second, {0: 0, name: 1})
    coordinator.await_end(second)
    assert children[0].wait(60) == 0 and spare.wait(30) == 0
    assert second.hellos[1].pid == spare.pid and second.hellos[1].rank == SPARE
    assert second.hellos[1].HasField("parked") and not second.hellos[1].parked.complete
    assert second.ready[1].step == (step if goes_on == "live" else 0)
    assert coordinator.bits() == quiet[0]
    assert coordinator.last_hashes(second) == quiet[2]


def test_a_spare_is_found_again_by_the_generation_that_it_was_started_in(coordinator, quiet):
    first, spare, name, children, parked = start_two_and_a_spare(
        coordinator, "trainer.forward,rank=1,step=3:kill")
    for _ in range(2):
        with coordinator.lock:
            del first.parked[name], first.ready[name]
            first.streams[name].put(END)
        await_warm(coordinator, first)
        assert first.hellos[name].attached and first.hellos[name].HasField("parked")
    step, sources = live(parked)
    second = coordinator.form(2, [5, 1], live={"step": step, "sources": sources})
    newcomer = coordinator.start(second, 1)
    coordinator.regroup(first, second, {0: 0})
    coordinator.await_(lambda: len(second.ready) == 2)
    step, sources = live(coordinator.park(second, [0, 1]))
    stays, goes = sources[0], 1 - sources[0]
    third = coordinator.form(3, [2, 4], live={"step": step, "sources": [1]})
    coordinator.regroup(second, third, {stays: 1})
    coordinator.regroup(first, third, {name: 0})  # two generations later
    with coordinator.lock:
        coordinator.send(second, goes, over={"reason": "it has no seat"})
    coordinator.await_(lambda: third.finished == {0, 1})
    assert sorted(child.wait(60) for child in (children[0], newcomer, spare)) == [0, 0, 4]
    assert coordinator.bits() == quiet[0]


def test_a_spare_that_is_told_to_park_goes_on_building(coordinator):
    first = coordinator.form(1, [3, 3])
    first.spares[SPARE] = 0
    spare = coordinator.start(first, SPARE, "trainer.spare:wait")
    coordinator.await_(lambda: coordinator.phases.get((1, "spare7")) == "spare")
    coordinator.park(first, ["spare7"], held="trainer.spare")
    assert "spare7" in first.ready
    with coordinator.lock:
        coordinator.send(first, "spare7", over={"reason": "enough"})
    assert spare.wait(60) == 4


def test_over_ends_a_spare_while_it_builds(coordinator):
    first = coordinator.form(1, [3, 3])
    first.spares[SPARE] = 0
    spare = coordinator.start(first, SPARE, "trainer.spare:wait")
    coordinator.await_(lambda: coordinator.phases.get((1, "spare7")) == "spare")
    with coordinator.lock:
        coordinator.send(first, "spare7", over={"reason": "enough"})
    assert spare.wait(60) == 4


def test_a_spare_that_fails_says_why_and_ends(coordinator):
    coordinator.job = coordinator.job.replace("{{format: synthetic, samples: 150}}",
                                              "{{format: idx, images: /nowhere, labels: /nowhere}}")
    first = coordinator.form(1, [3, 3])
    first.spares[SPARE] = 0
    spare = coordinator.start(first, SPARE)
    assert spare.wait(60) == 2
    coordinator.await_(lambda: first.faults)
    assert "/nowhere" in first.faults[0][1].message and not first.ready


def test_a_spare_has_nothing_to_save_and_leaves_at_once(coordinator):
    first = coordinator.form(1, [3, 3])
    first.spares[SPARE] = 0
    spare = coordinator.start(first, SPARE)
    await_warm(coordinator, first)
    spare.terminate()
    assert spare.wait(10) == -signal.SIGTERM


# ---- other sizes ----

HELD = ["trainer.forward", "trainer.reduce", "trainer.reduced"]  # rank 0 waits there, at these steps
WAITS = ";".join(f"{point},rank=0,step={step}:wait" for point, step in zip(HELD, [4, 7, 10]))


@pytest.mark.parametrize("job", [YAML, LENET], ids=["mlp", "lenet"])
def test_two_one_three_and_two_workers_end_as_one(pb, tmp_path, job):
    (tmp_path / "alone").mkdir()
    (tmp_path / "many").mkdir()
    alone, many = (Coordinator(pb, tmp_path / name, job) for name in ("alone", "many"))
    try:
        wanted = alone.form(1, [6])
        alone.start(wanted, 0)
        alone.await_end(wanted)

        first = many.form(1, [4, 2])
        workers = [many.start(first, n, WAITS) for n in range(2)]
        step, sources = live(many.park(first, [0, 1], held=HELD[0]))
        source = sources[-1]
        second = many.form(2, [6], live={"step": step, "sources": [0]})
        many.regroup(first, second, {source: 0})  # with rank 1 where both have the state
        with many.lock:
            many.send(first, 1 - source, over={"reason": "it has no seat"})

        second.spares[SPARE] = 0
        spare = many.start(second, SPARE, WAITS)
        await_warm(many, second)
        step, sources = live(many.park(second, [0], held=HELD[1]))
        third = many.form(3, [1, 2, 3], live={"step": step, "sources": [2]})
        many.regroup(second, third, {0: 2, "spare7": 0})
        third.seats[3] = 1
        newcomer = many.start(third, 3, WAITS)
        step, sources = live(many.park(third, [0, 1, 2], held=HELD[2]))

        fourth = many.form(4, [5, 1], live={"step": step, "sources": sorted({0: 1, 1: 0}[s] for s in sources if s < 2)})
        many.regroup(third, fourth, {0: 1, 1: 0})
        with many.lock:
            many.send(third, 2, over={"reason": "it has no seat"})
        many.await_(lambda: fourth.finished == {0, 1})
        assert sorted(child.wait(60) for child in workers) == [4, 4]
        assert newcomer.wait(60) == 0 and spare.wait(30) == 0
        assert many.bits() == alone.bits()
        assert many.last_hashes(fourth) == alone.last_hashes(wanted)
        assert {step: g.number for g in many.generations.values() for step in g.saved}[14] == 4
    finally:
        alone.close()
        many.close()
