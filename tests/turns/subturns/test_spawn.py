"""Spawning: what is checked in which order, what a child is given, what is left of one."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from turns.events import SubturnEndEvent, SubturnSpawnEvent
from turns.model.errors import TurnError
from turns.subturns import (
    CURRENT_TURN,
    ChildRun,
    SpawnRequest,
    SubturnLimits,
    TokenBudget,
    TurnState,
)

from .conftest import MakeTree
from .kit import Gate, error_of, result_of

pytestmark = pytest.mark.lifecycle


async def test_a_child_gives_its_answer_and_is_told_of(tree: MakeTree) -> None:
    t = tree()
    root = t.root()

    result = await t.spawn(root, "Look")

    assert (result.content, result.error) == ("Look done", None)
    assert t.types == ["subturn.spawn", "subturn.end"]
    spawned, ended = t.of(SubturnSpawnEvent)[0], t.of(SubturnEndEvent)[0]
    assert spawned.child_id == ended.child_id == result.child_id
    assert (spawned.turn_id, spawned.workspace_id, spawned.depth) == ("turn-w1", "w1", 1)
    assert spawned.prompt == "Look"
    assert ended.status == "completed"
    assert root.child_ids == [result.child_id]


async def test_ids_are_never_given_twice(tree: MakeTree) -> None:
    t, other = tree(), tree()

    ids = [(await each.spawn(each.root())).child_id for each in (t, other)]

    assert len(set(ids)) == 2
    assert all(child_id.startswith("subturn-") for child_id in ids)


# ---- the order of the checks


@pytest.mark.spec("U11")
async def test_a_child_at_the_greatest_depth_starts_none(tree: MakeTree) -> None:
    depths: list[int] = []

    async def deeper(run: ChildRun) -> str:
        depths.append(run.state.depth)
        result = await t.subturns.spawn(SpawnRequest(prompt="Deeper", model="m"))
        return result.content

    t = tree(deeper)

    result = await t.spawn(t.root())

    assert depths == [1, 2, 3]
    assert "depth_limit" in result.content
    assert all(child.slots.available == 5 for child in t.registry.children)


@pytest.mark.spec("U9")
@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"model": None}, "invalid_subturn"),
        ({"agent": "nobody"}, "agent_not_found"),
    ],
)
async def test_a_refused_request_leaves_no_child_and_no_slot(
    tree: MakeTree, fields: dict[str, Any], kind: str
) -> None:
    t = tree()
    root = t.root()

    with pytest.raises(TurnError) as caught:
        await t.spawn(root, **fields)

    assert caught.value.kind == kind
    assert root.slots.available == 5
    assert (t.told, root.child_ids, t.registry.children) == ([], [], ())


@pytest.mark.spec("U9", "U11")
async def test_the_depth_is_looked_at_before_the_request(tree: MakeTree) -> None:
    t = tree(max_depth=1)
    child = TurnState("subturn-x", "subturn-x", parent=t.root(), limits=t.subturns.limits)

    with pytest.raises(TurnError) as caught:
        await t.spawn(child, model=None)

    assert caught.value.kind == "depth_limit"
    assert child.slots.available == 5


async def test_a_slot_is_waited_for_before_the_depth_is_looked_at(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate, max_depth=1, max_children=1)
    root = t.root()
    await t.spawn_in_background(root)
    too_deep = await t.spawn_in_background(root, model=None)

    await t.pass_time(29)
    assert too_deep.poll() is None
    await t.pass_time(1)

    error = error_of(too_deep)
    assert isinstance(error, TurnError)
    assert error.kind == "concurrency_timeout"


async def test_without_a_turn_nothing_is_started(tree: MakeTree) -> None:
    with pytest.raises(TurnError) as caught:
        await tree().spawn(None)

    assert caught.value.kind == "no_parent_turn"


async def test_without_any_agent_nothing_is_started(tree: MakeTree) -> None:
    t = tree()
    t.subturns._agents = type(t.subturns._agents)()
    root = t.root()
    root.agent = None

    with pytest.raises(TurnError) as caught:
        await t.spawn(root)

    assert caught.value.kind == "no_agent"
    assert root.slots.available == 5


# ---- what it is given


async def test_the_target_agent_counts_before_the_parents(tree: MakeTree) -> None:
    gate = Gate()
    gate.open()
    t = tree(gate)
    root = t.root()

    await t.spawn(root, agent="other", model=None)
    await t.spawn(root, model="tiny", system="Be brief.", tools=())
    root.agent = None
    await t.spawn(root)

    agents = [run.agent for run in gate.came]
    assert [(agent.name, agent.model) for agent in agents] == [
        ("other", "big"),
        ("helper", "tiny"),
        ("helper", "m"),
    ]
    assert agents[1].system == "Be brief."


async def test_the_budget_is_the_given_one_then_the_parents_then_that_of_the_limits(
    tree: MakeTree,
) -> None:
    gate = Gate()
    gate.open()
    t = tree(gate, token_budget=9)
    parents, given = TokenBudget(5), TokenBudget(1)
    rich, poor = t.root("rich", budget=parents), t.root("poor")

    await t.spawn(rich, token_budget=given)
    await t.spawn(rich)
    await t.spawn(poor)

    budgets = [run.state.budget for run in gate.came]
    assert budgets[0] is given
    assert budgets[1] is parents
    assert budgets[2] is not None
    assert budgets[2].limit == 9


async def test_a_child_finds_itself_as_the_turn_in_context(tree: MakeTree) -> None:
    async def look(run: ChildRun) -> str:
        return str(await CURRENT_TURN is run.state)

    t = tree(look)
    spawn = t.spawning(None).provide_service(CURRENT_TURN, t.root())

    assert (await t.rt.run(spawn)).content == "True"


def test_a_bound_of_zero_or_less_is_the_default() -> None:
    limits = SubturnLimits(max_depth=0, max_children=-1, timeout_seconds=0, history_rows=0)

    assert limits == SubturnLimits()
    assert (limits.max_depth, limits.max_children, limits.slot_timeout_seconds) == (3, 5, 30)
    assert (limits.timeout_seconds, limits.history_rows, limits.pending_results) == (300, 50, 16)


# ---- slots


@pytest.mark.spec("U10")
async def test_the_sixth_child_waits_and_gives_up_after_the_bound(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    for _ in range(5):
        await t.spawn_in_background(root)
    sixth = await t.spawn_in_background(root)

    await t.pass_time(29.9)
    assert (sixth.poll(), root.slots.waiting) == (None, 1)
    await t.pass_time(0.1)

    error = error_of(sixth)
    assert isinstance(error, TurnError)
    assert error.kind == "concurrency_timeout"
    assert (len(gate.came), root.slots.available, root.slots.waiting) == (5, 0, 0)


@pytest.mark.spec("U10")
async def test_a_waiter_that_is_cancelled_takes_no_slot(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate, max_children=1)
    root = t.root()
    await t.spawn_in_background(root)
    waiter = await t.spawn_in_background(root)

    await t.rt.run(waiter.interrupt())

    exit_ = waiter.poll()
    assert isinstance(exit_, fb.Failure)
    assert exit_.failure().has_interrupts_only
    assert root.slots.waiting == 0
    gate.open()
    await t.idle()
    assert root.slots.available == 1


async def test_a_slot_that_is_granted_at_the_bound_is_used(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate, max_children=1)
    root = t.root()
    await t.spawn_in_background(root, timeout_seconds=30.0)
    second = await t.spawn_in_background(root)

    await t.pass_time(30)  # the first one's own end, and the waiter's bound

    assert len(gate.came) + (second.poll() is not None) == 2
    gate.open()
    await t.idle()
    assert root.slots.available == 1


@pytest.mark.spec("U9")
@pytest.mark.parametrize("how", ["raises", "panics", "times out", "is interrupted"])
async def test_whatever_befalls_a_child_its_slot_is_free_again(tree: MakeTree, how: str) -> None:
    gate = Gate()

    async def work(run: ChildRun) -> str:
        if how == "raises":
            raise TurnError("odd", "it does")
        if how == "panics":
            raise ZeroDivisionError
        return await gate(run)

    t = tree(work)
    root = t.root()
    fiber = await t.spawn_in_background(root)
    if how == "times out":
        await t.pass_time(300)
    if how == "is interrupted":
        t.finish(t.registry.children[0], hard=True)
        await t.idle()

    assert result_of(fiber).error is not None
    assert (root.slots.available, t.registry.children) == (5, ())


@pytest.mark.spec("U9", "R34")
async def test_five_cancelled_children_make_room_for_five_more(tree: MakeTree) -> None:
    """Report R34: a cancelled task left an orphan that held its slot."""
    gate = Gate()
    t = tree(gate)
    root = t.root()
    for _ in range(5):
        await t.spawn_in_background(root)

    for child in t.registry.children:
        t.finish(child, hard=True)
    await t.idle()
    more = [await t.spawn_in_background(root) for _ in range(5)]
    gate.open()
    await t.idle()

    assert [result_of(fiber).error for fiber in more] == [None] * 5


# ---- its ends


@pytest.mark.spec("U14")
@pytest.mark.parametrize(
    ("error", "said"),
    [(TurnError("odd", "it does"), "odd: it does"), (ZeroDivisionError(), "subturn panicked")],
)
async def test_a_child_that_raises_leaves_its_parent_unharmed(
    tree: MakeTree, error: Exception, said: str
) -> None:
    async def fail(_run: ChildRun) -> str:
        raise error

    t = tree(fail)
    root = t.root()

    result = await t.spawn(root)

    assert (result.error, result.content) == (said, f"SubTurn failed: {said}")
    assert t.types == ["subturn.spawn", "subturn.end"]
    assert t.of(SubturnEndEvent)[0].status == "error"
    assert t.registry.child(result.child_id) is None
    assert (root.is_finished, root.status) == (False, "running")


@pytest.mark.spec("U6")
async def test_its_own_timeout_ends_a_child_also_a_critical_one(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    default = await t.spawn_in_background(root, critical=True)
    short = await t.spawn_in_background(root, critical=True, timeout_seconds=7.0)

    await t.pass_time(7)
    assert (default.poll(), result_of(short).error) == (None, "it took longer than 7 s")
    await t.pass_time(293)

    assert result_of(default).error == "it took longer than 300 s"
    assert not root.is_finished


@pytest.mark.spec("U6")
async def test_the_abort_of_the_parents_signal_does_not_end_a_child(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    fiber = await t.spawn_in_background(root)

    root.controller.abort("the provider's call is stopped")
    await t.idle()
    assert fiber.poll() is None
    gate.open()
    await t.idle()

    assert result_of(fiber).error is None


async def test_who_stops_waiting_leaves_the_child(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    fiber = await t.spawn_in_background(root, delivers=True)

    await t.rt.run(fiber.interrupt())
    assert len(t.registry.children) == 1
    gate.open()
    await t.idle()

    result = root.results.take()
    assert result is not None
    assert result.content == "Work done"
    assert root.slots.available == 5


async def test_a_closed_app_scope_starts_none_and_leaves_nothing(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    await t.rt.run(t.scope.close())

    result = await t.spawn(root, delivers=True)

    assert result.error == "the subturn was interrupted"
    assert gate.came == []
    assert t.types == ["subturn.spawn", "subturn.result_delivered", "subturn.end"]
    assert (root.slots.available, t.registry.children) == (5, ())


async def test_the_close_of_the_app_scope_ends_all_children(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    fibers = [await t.spawn_in_background(t.root(session)) for session in ("w1", "w2")]

    await t.rt.run(t.scope.close(reason="system"))
    await t.idle()

    assert [result_of(fiber).error for fiber in fibers] == ["the subturn was interrupted"] * 2
    assert t.registry.children == ()


async def test_a_child_can_be_spawned_from_a_plain_callback_of_its_parent(tree: MakeTree) -> None:
    """What a tool does: it knows no fiber, only its coroutine."""
    t = tree()
    root = t.root()

    async def tool() -> str:
        await asyncio.sleep(0)
        return (await t.subturns.spawn(SpawnRequest(prompt="Look", model="m"))).content

    work = Effect.promise(tool).provide_service(CURRENT_TURN, root)
    assert await t.rt.run(work) == "Look done"
