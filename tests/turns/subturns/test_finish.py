"""The end of a turn: graceful ends and hard ones, and what they are to the turns below."""

from __future__ import annotations

import asyncio

import pytest

import fibers as fb
from fibers import Clock, Effect, Scope
from turns.model.errors import TurnError
from turns.open_turn import TurnEnd
from turns.subturns import ChildRun, SpawnRequest, SubturnResult, TurnState
from turns.subturns.finish import bind, wait_below

from .conftest import MakeTree
from .kit import Gate, Tree, result_of

pytestmark = pytest.mark.lifecycle


@pytest.mark.spec("U1")
async def test_a_graceful_end_leaves_the_children_running_and_can_be_seen(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    fiber = await t.spawn_in_background(root)
    child = t.registry.children[0]
    seen = [child.parent_ended]

    t.finish(root)
    await t.idle()

    assert [*seen, child.parent_ended] == [False, True]
    assert (fiber.poll(), child.controller.signal.aborted, gate.turned_back) == (None, False, [])
    assert not root.controller.signal.aborted
    assert not root.parent_ended  # of a root: it has no parent


@pytest.mark.spec("U2")
async def test_a_hard_end_takes_the_whole_tree_critical_or_not(tree: MakeTree) -> None:
    t, fibers = await family(tree)
    root = t.registry.root("w1")
    assert root is not None
    states = [root, *t.registry.children]
    assert [state.depth for state in states] == [0, 1, 2]

    t.finish(root, hard=True)
    await t.idle()

    assert all(state.controller.signal.aborted for state in states)
    assert all(fiber.poll() is not None for fiber in fibers)
    assert t.registry.children == ()
    assert t.types.count("subturn.end") == 2


@pytest.mark.spec("U2")
async def test_a_grandchild_is_reached_over_a_parent_that_has_ended(tree: MakeTree) -> None:
    t, _ = await family(tree)
    root = t.registry.root("w1")
    assert root is not None
    child, grandchild = t.registry.children
    t.finish(child)
    t.registry.remove_child(child)

    t.finish(root, hard=True)
    await t.idle()

    assert grandchild.is_aborted


async def family(tree: MakeTree) -> tuple[Tree, list[fb.Fiber[SubturnResult, TurnError]]]:
    """A critical child that waits for a critical child of its own."""
    gate = Gate()

    async def work(run: ChildRun) -> str:
        if run.state.depth == 1:
            below = SpawnRequest(prompt="Below", model="m", critical=True)
            return (await t.subturns.spawn(below)).content
        return await gate(run)

    t = tree(work)
    fiber = await t.spawn_in_background(t.root(), critical=True)
    return t, [fiber]


@pytest.mark.spec("U1", "U2", "R31")
async def test_only_the_hard_abort_cancels_and_only_in_its_own_session(tree: MakeTree) -> None:
    """Report R31: one key killed every background agent for good."""
    gate = Gate()
    t = tree(gate)
    mine, others = t.root("mine"), t.root("others")
    await t.spawn_in_background(mine)
    other = await t.spawn_in_background(others)
    own_child, other_child = t.registry.children

    t.finish(mine)
    await t.idle()
    assert gate.turned_back == []
    t.finish(mine, hard=True)
    await t.idle()

    assert gate.turned_back == [own_child.turn_id]
    assert (other.poll(), other_child.is_finished) == (None, False)


@pytest.mark.spec("U3")
@pytest.mark.parametrize("hard", [False, True])
async def test_a_hundred_ends_at_once_are_one(tree: MakeTree, hard: bool) -> None:
    t = tree()
    root = t.root()
    woken: list[int] = []
    aborts: list[object] = []
    root.controller.signal.add_listener(aborts.append)

    async def end(number: int) -> None:
        await asyncio.sleep(0)
        t.finish(root, hard=hard and number % 2 == 0)
        await root.wait_finished()
        woken.append(number)

    await asyncio.gather(*(end(number) for number in range(100)))

    assert len(woken) == 100
    assert len(aborts) == (1 if hard else 0)


@pytest.mark.spec("U3")
@pytest.mark.parametrize(("first", "then"), [(False, True), (True, False)])
async def test_a_hard_end_counts_before_and_after_a_graceful_one(
    tree: MakeTree, first: bool, then: bool
) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    await t.spawn_in_background(root)
    child = t.registry.children[0]

    t.finish(root, hard=first)
    t.finish(root, hard=then)
    await t.idle()

    assert gate.turned_back == [child.turn_id]
    # What the children may see of it is what the first one made of it.
    assert child.parent_ended is (not first)


@pytest.mark.spec("U19")
@pytest.mark.parametrize("ready", range(6))
async def test_a_spawn_that_races_a_hard_abort_leaves_no_running_child(
    tree: MakeTree, ready: int
) -> None:
    """At each step of the spawn."""
    gate = Gate()
    t = tree(gate, max_children=1)
    root = t.root()
    blocker = await t.spawn_in_background(root)
    fiber = t.rt.run_fork(t.spawning(root, "Late")).ignore_failure()
    for _ in range(ready):
        await asyncio.sleep(0)

    t.finish(root, hard=True)
    await t.pass_time(0)

    assert t.registry.children == ()
    assert root.slots.available == 1
    assert blocker.poll() is not None
    assert result_of(fiber).error == "the subturn was interrupted"


@pytest.mark.spec("U19")
async def test_a_child_of_a_turn_that_was_ended_hard_is_ended_at_once(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    t.finish(root, hard=True)

    result = await t.spawn(root)

    assert result.error == "the subturn was interrupted"
    assert (gate.came, t.registry.children) == ([], ())
    assert t.types == ["subturn.spawn", "subturn.end"]


async def test_the_end_of_all_below_can_be_waited_for(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    for _ in range(3):
        await t.spawn_in_background(root)
    waiting = t.rt.run_fork(wait_below(root, t.registry))
    await t.idle()
    assert waiting.poll() is None

    gate.open()
    await t.idle()

    assert waiting.poll() == fb.Success(None)


async def test_a_root_is_known_while_turns_below_it_run(tree: MakeTree) -> None:
    gate = Gate()
    t = tree(gate)
    root = t.root()
    await t.spawn_in_background(root)
    claim = t.registry.claimed("w1")
    assert claim is not None

    t.registry.give_up(claim)
    assert (t.registry.root("w1"), t.registry.find(root.turn_id)) == (None, root)
    gate.open()
    await t.idle()

    assert t.registry.find(root.turn_id) is None


@pytest.mark.spec("U2")
async def test_a_root_that_ends_while_a_child_spawns_is_known_while_that_runs(
    tree: MakeTree,
) -> None:
    """As it waits for a slot nothing runs below; and whoever ends the root hard means it too."""
    gate = Gate()
    t = tree(gate)
    root = t.root()
    taken = [root.slots.slot() for _ in range(root.slots.limit)]
    for slot in taken:
        await t.rt.run(slot.acquire(1))
    await t.spawn_in_background(root, critical=True)
    claim = t.registry.claimed("w1")
    assert claim is not None
    t.finish(root)
    t.registry.give_up(claim)
    assert t.registry.find(root.turn_id) is None

    taken[0].release()
    await t.idle()

    assert t.registry.find(root.turn_id) is root
    t.finish(root, hard=True)
    await t.idle()
    assert t.registry.children == ()
    assert t.registry.find(root.turn_id) is None


# ---- the scope of an open turn


class Open:
    """An open turn with nothing but its scope."""

    def __init__(self, clock: Clock) -> None:
        self.turn_id = "turn-w1"
        self.workspace_id = "w1"
        self.scope = Scope()
        self.clock = clock
        self.end: TurnEnd | None = None

    def close(self, end: TurnEnd) -> Effect[None]:
        self.end = self.end or end
        return self.scope.close()


@pytest.mark.spec("U6")
@pytest.mark.parametrize("end", ["completed", "errored", "died", "torn-down", "stalled"])
async def test_the_end_of_the_scope_is_graceful_only_where_the_turn_completed(
    tree: MakeTree, end: TurnEnd
) -> None:
    gate = Gate()
    t = tree(gate)
    root, turn = t.root(), Open(t.clock)
    await t.rt.run(bind(turn, root, t.registry))
    await t.spawn_in_background(root, critical=True)
    child: TurnState = t.registry.children[0]

    await t.rt.run(turn.close(end))
    await t.idle()

    assert child.parent_ended is (end == "completed")
    assert gate.turned_back == ([] if end == "completed" else [child.turn_id])


@pytest.mark.spec("U6")
@pytest.mark.parametrize("fails", [False, True])
async def test_a_scope_that_is_closed_by_its_exit_is_judged_by_that(
    tree: MakeTree, fails: bool
) -> None:
    gate = Gate()
    t = tree(gate)
    root, turn = t.root(), Open(t.clock)
    await t.rt.run(bind(turn, root, t.registry))
    await t.spawn_in_background(root)

    exit_ = fb.Failure(fb.Cause((fb.Interrupt(None, "system"),))) if fails else fb.Success(None)
    await t.rt.run(turn.scope.close(exit_))
    await t.idle()

    assert bool(gate.turned_back) is fails
