"""Real trainers under a coordinator of our own: processes that outlive their generation.

Whoever loses a peer parks with its state, goes on in the next generation, and every number comes out as in a quiet run.
"""
import pytest

from scripted import live, lose, make_coordinator, messages, quiet_run  # noqa: F401 (fixtures)


CUTS = ["trainer.forward,rank=1,step=6", "trainer.reduce,rank=1,step=6", "comm.exchange,rank=1,step=6",
        "trainer.reduced,rank=1,step=6", "trainer.refresh,rank=1,step=6", "trainer.eval,rank=1,step=8",
        "save.snapshot,rank=1,step=8", "save.reported,rank=1", "trainer.finishing,rank=1"]


@pytest.mark.parametrize("cut", CUTS)
def test_survivor_and_newcomer_end_as_if_nothing_had_happened(coordinator, quiet, cut):
    first = coordinator.form(1, [3, 3])
    children, parked = lose(coordinator, first, 1, cut + ":kill")
    assert parked[0].complete and parked[0].computed_by == 1
    step, _ = live(parked)
    second = coordinator.form(2, [3, 3], live={"step": step, "sources": [0]})
    coordinator.regroup(first, second, {0: 0})
    newcomer = coordinator.start(second, 1)
    coordinator.await_end(second)
    assert children[0].wait(60) == 0 and newcomer.wait(60) == 0
    assert second.hellos[0].pid == children[0].pid  # the same process
    assert second.hellos[0].parked.step == step and not second.hellos[0].attached
    assert not second.hellos[1].HasField("parked")
    assert second.ready[0].step == second.ready[1].step == step
    assert coordinator.bits() == quiet[0]
    assert coordinator.last_pieces(second) == quiet[1]
    if "eval" in cut:  # the step was finished, and not yet saved
        assert 8 in second.saved and 8 not in first.saved


def test_survivors_go_on_with_fewer_and_get_back_to_three(coordinator, quiet):
    first = coordinator.form(1, [2, 2, 2])
    children, parked = lose(coordinator, first, 0, "trainer.forward,rank=0,step=5:kill")
    step, sources = live(parked)
    second = coordinator.form(2, [3, 3], live={"step": step, "sources": [s - 1 for s in sources]})
    coordinator.regroup(first, second, {1: 0, 2: 1})
    coordinator.await_(lambda: len(second.ready) == 2)
    again = coordinator.park(second, [0, 1])  # a third is there
    step, sources = live(again)
    third = coordinator.form(3, [1, 2, 3], live={"step": step, "sources": sources})
    coordinator.regroup(second, third, {0: 0, 1: 1})
    third.seats[0] = 2  # the number that is free
    newcomer = coordinator.start(third, 0)
    coordinator.await_end(third)
    assert [child.wait(60) for child in (children[1], children[2], newcomer)] == [0, 0, 0]
    assert {third.hellos[r].pid for r in range(3)} == {children[1].pid, children[2].pid, newcomer.pid}
    assert coordinator.bits() == quiet[0]


def test_a_survivor_that_restores_is_as_new(coordinator, quiet):
    """No source: from the seed again, in a process that had trained."""
    first = coordinator.form(1, [3, 3])
    children, _ = lose(coordinator, first, 1, "trainer.forward,rank=1,step=6:kill")
    second = coordinator.form(2, [3, 3])
    coordinator.regroup(first, second, {0: 0})
    newcomer = coordinator.start(second, 1)
    coordinator.await_end(second)
    assert children[0].wait(60) == 0 and newcomer.wait(60) == 0
    assert coordinator.bits() == quiet[0]
    assert coordinator.last_pieces(second) == quiet[1]


def test_one_that_waits_for_its_peers_parks_with_what_it_had(coordinator, quiet):
    first = coordinator.form(1, [3, 3])
    children, parked = lose(coordinator, first, 1, "trainer.forward,rank=1,step=6:kill")
    step = parked[0].step
    second = coordinator.form(2, [3, 3], live={"step": step, "sources": [0]})
    second.silent.add("workers")
    coordinator.regroup(first, second, {0: 0})
    lost = coordinator.start(second, 1)
    coordinator.await_(lambda: len(second.joins.get("workers", {})) == 2)
    lost.kill()
    parked = coordinator.park(second, [0])
    assert (parked[0].step, parked[0].complete, parked[0].computed_by) == (step, True, 1)  # nothing was lost
    third = coordinator.form(3, [6], live={"step": step, "sources": [0]})  # alone
    coordinator.regroup(second, third, {0: 0})
    coordinator.await_end(third)
    assert children[0].wait(60) == 0
    assert coordinator.bits() == quiet[0]


def test_newcomers_that_park_before_they_have_a_state_are_not_whole(coordinator):
    first = coordinator.form(1, [3, 3])
    first.silent.add("workers")
    children = [coordinator.start(first, rank) for rank in range(2)]
    coordinator.await_(lambda: len(first.joins.get("workers", {})) == 2)
    parked = coordinator.park(first, [0, 1])
    assert not parked[0].complete and not parked[1].complete
    second = coordinator.form(2, [4, 2])
    coordinator.regroup(first, second, {0: 1, 1: 0})  # places changed
    coordinator.await_end(second)
    assert [child.wait(60) for child in children] == [0, 0]


def test_over_ends_one_that_is_parked(coordinator):
    first = coordinator.form(1, [3, 3])
    children, _ = lose(coordinator, first, 1, "trainer.forward,rank=1,step=6:kill")
    with coordinator.lock:
        coordinator.send(first, 0, over={"reason": "enough"})
    assert children[0].wait(60) == 4
