"""Delivery: every result that is to be delivered is delivered or an orphan, exactly once."""

from __future__ import annotations

import pytest

import fibers as fb
from turns.events import SubturnOrphanEvent, SubturnResultDeliveredEvent
from turns.model.errors import TurnError
from turns.subturns import ChildRun, SubturnResult
from turns.subturns.results import Delivery, Outcome, Results, deliver

from .conftest import MakeTree
from .kit import Gate, Tree, result_of

pytestmark = pytest.mark.lifecycle


def reasons(t: Tree) -> list[str]:
    return [event.reason for event in t.of(SubturnOrphanEvent)]


@pytest.mark.spec("U12")
async def test_only_one_that_delivers_touches_the_parents_queue(tree: MakeTree) -> None:
    t = tree()
    root = t.root()

    await t.spawn(root, "Quiet")
    assert (len(root.results), t.types) == (0, ["subturn.spawn", "subturn.end"])
    result = await t.spawn(root, "Loud", delivers=True)

    assert root.results.take() == result
    assert root.results.take() is None
    delivered = t.of(SubturnResultDeliveredEvent)
    assert [event.content_length for event in delivered] == [len("Loud done")]


@pytest.mark.spec("U5")
async def test_a_parent_that_is_finished_gets_nothing(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    fiber = await t.spawn_in_background(root, delivers=True, critical=True)

    t.finish(root)
    gate.open()
    await t.idle()

    assert result_of(fiber).content == "Work done"
    assert reasons(t) == ["parent_finished"]
    assert t.of(SubturnOrphanEvent)[0].content == "Work done"
    assert len(root.results) == 0


@pytest.mark.spec("U7")
async def test_one_that_waits_for_room_is_an_orphan_when_the_parent_ends(tree: MakeTree) -> None:
    t = tree(pending_results=1)
    root = t.root()
    await t.spawn(root, delivers=True)
    waiting = await t.spawn_in_background(root, delivers=True)
    assert (waiting.poll(), root.results.waiting) == (None, 1)

    t.finish(root)
    await t.idle()

    assert result_of(waiting).error is None
    assert reasons(t) == ["parent_finished_waiting"]
    assert t.types.count("subturn.result_delivered") == 1


@pytest.mark.spec("U8", "U9")
async def test_ten_children_and_a_queue_of_two_do_not_block_each_other(tree: MakeTree) -> None:
    t = tree(pending_results=2, max_children=3)
    root = t.root()
    fibers = [await t.spawn_in_background(root, f"c{n}", delivers=True) for n in range(10)]

    # Nobody has looked yet, and all of them ran: none holds a slot while it waits for room.
    assert (len(root.results), root.results.waiting, root.slots.available) == (2, 8, 3)
    taken: list[SubturnResult] = []
    while (result := root.results.take()) is not None:
        taken.append(result)
    await t.idle()

    assert [result.content for result in taken] == [f"c{n} done" for n in range(10)]
    assert all(result_of(fiber).error is None for fiber in fibers)
    assert t.types.count("subturn.result_delivered") == 10


@pytest.mark.spec("U7", "U14")
@pytest.mark.parametrize("error", [ZeroDivisionError(), TurnError("odd", "it does")])
async def test_a_failure_is_delivered_like_an_answer(tree: MakeTree, error: Exception) -> None:
    async def fail(_run: ChildRun) -> str:
        raise error

    t = tree(fail)
    root = t.root()

    result = await t.spawn(root, delivers=True)

    assert root.results.take() == result
    assert t.types == ["subturn.spawn", "subturn.result_delivered", "subturn.end"]


@pytest.mark.spec("U7")
async def test_a_child_interrupted_while_it_waits_for_room_is_an_orphan(tree: MakeTree) -> None:
    t = tree(pending_results=1)
    root = t.root()
    await t.spawn(root, delivers=True)
    await t.spawn_in_background(root, delivers=True)

    await t.rt.run(t.scope.close(reason="system"))

    assert reasons(t) == ["interrupted"]
    assert root.results.waiting == 0


@pytest.mark.spec("U7")
async def test_a_queue_that_breaks_makes_an_orphan_of_what_it_was_given(
    tree: MakeTree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_self: Results, _delivery: Delivery) -> None:
        raise RuntimeError("the queue is broken")

    t = tree()
    root = t.root()
    monkeypatch.setattr(Results, "put", broken)

    result = await t.spawn(root, delivers=True)

    assert result.error is None
    assert reasons(t) == ["panic"]


@pytest.mark.spec("U7")
@pytest.mark.parametrize("finishes_after", range(0, 24, 3))
async def test_deliveries_that_race_the_end_are_each_told_once(
    tree: MakeTree, finishes_after: int
) -> None:
    t = tree(pending_results=2, max_children=20)
    root = t.root()
    fibers: list[fb.Fiber[SubturnResult, TurnError]] = []
    for number in range(20):
        if number == finishes_after:
            t.finish(root)
        fibers.append(t.rt.run_fork(t.spawning(root, f"c{number}", delivers=True)))
        if number % 4 == 0:
            root.results.take()
    await t.idle()
    t.finish(root)
    await t.idle()

    told = [e.child_id for e in t.of(SubturnResultDeliveredEvent)]
    told += [e.child_id for e in t.of(SubturnOrphanEvent)]
    assert sorted(told) == sorted(result_of(fiber).child_id for fiber in fibers)


# ---- the queue alone


RESULT = SubturnResult(child_id="subturn-x", content="x")


async def test_without_a_parent_it_is_an_orphan() -> None:
    told: list[Outcome] = []

    await deliver(None, Delivery(RESULT, told.append))

    assert told == ["parent_finished"]


async def test_what_is_settled_stays_as_it_is() -> None:
    told: list[Outcome] = []
    results = Results(1)
    delivery = Delivery(RESULT, told.append)

    results.put(delivery)
    results.give_up(delivery)
    results.close()
    results.close()

    assert told == ["delivered"]
    assert results.take() == RESULT
