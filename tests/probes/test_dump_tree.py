"""Probes of the dump: which fibers, whose they are, where each one stands."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect, Scope
from fibers.app import AppScope, occupy
from fibers.dump import chain, describe, live_fibers, snapshot
from fibers.dump.tree import FiberShot, ScopeShot, plain, span
from fibers.loop import hooks
from tests.probes.kit_f import endless, new_gate, turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator
    from types import CodeType


def shots_in(scope: ScopeShot) -> Iterator[FiberShot]:
    todo = list(scope.fibers)
    while todo:
        shot = todo.pop()
        yield shot
        todo.extend(shot.children)
    for below in scope.scopes:
        yield from shots_in(below)


def shot_of(fiber: fb.Fiber[Any, Any]) -> FiberShot:
    """The fiber as the snapshot shows it, wherever it stands there."""
    shot = snapshot()
    todo = [*shot.unowned, *(s for scope in shot.scopes for s in scope.fibers)]
    todo += [s for scope in shot.scopes for s in shots_in(scope)]
    while todo:
        at = todo.pop()
        if at.id == fiber.id:
            return at
        todo.extend(at.children)
    raise AssertionError(f"{fiber!r} is not in {shot}")


def scope_shot(name: str) -> ScopeShot:
    """The scope of this name."""
    todo = list(snapshot().scopes)
    while todo:
        at = todo.pop()
        if at.name == name:
            return at
        todo.extend(at.scopes)
    raise AssertionError(f"no scope {name!r}")


def functions(shot: FiberShot) -> list[str]:
    """The names of the functions of its places, innermost last."""
    return [place.rpartition(" in ")[2].rpartition(".")[2] for place in shot.places]


def line_of(code: CodeType, offset: int) -> str:
    """What a place in this file has to say."""
    return f"test_dump_tree.py:{code.co_firstlineno + offset}"


# ---- where it stands


@fb.effect
async def inner_body(gate: asyncio.Future[Any]) -> None:
    await gate


async def plain_coroutine(gate: asyncio.Future[Any]) -> None:
    await inner_body(gate)


@fb.effect
async def outer_body(gate: asyncio.Future[Any]) -> None:
    await plain_coroutine(gate)


async def test_the_chain_goes_from_body_to_effect_to_body(rt: fb.Runtime) -> None:
    """Through plain coroutines and effects alike, with file and line."""
    gate = new_gate()
    fiber = rt.run_fork(outer_body(gate))

    shot = shot_of(fiber)

    assert functions(shot) == ["outer_body", "plain_coroutine", "inner_body"]
    assert line_of(plain_coroutine.__code__, 1) in shot.places[1]
    gate.set_result(1)


async def test_the_chain_goes_on_through_combinators(rt: fb.Runtime) -> None:
    """What stands between two bodies has no line of its own."""
    gate = new_gate()

    @fb.effect
    async def above() -> None:
        await inner_body(gate).map(lambda _: 1).exit().ensuring(Effect.succeed(None))

    fiber = rt.run_fork(above())

    assert functions(shot_of(fiber)) == ["above", "inner_body"]
    gate.set_result(1)


async def test_the_chain_goes_on_in_the_task_that_is_awaited(rt: fb.Runtime) -> None:
    """And in the task that this one awaits."""
    gate = new_gate()

    async def second() -> None:
        await gate

    async def first() -> None:
        await asyncio.create_task(second(), name="second task")

    @fb.effect
    async def body() -> None:
        await asyncio.create_task(first(), name="first task")

    fiber = rt.run_fork(body())
    await turns()

    shot = shot_of(fiber)
    assert functions(shot) == ["body", "first", "second"]
    assert shot.waits_for == "task 'first task'"
    assert shot.places[1].startswith("task 'first task': ")
    assert shot.places[2].startswith("task 'second task': ")
    gate.set_result(1)


async def test_tasks_that_await_each_other_end_the_chain(
    rt: fb.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A circle of tasks is no endless chain. (asyncio itself can't cancel one: hence the mock.)"""
    gate = new_gate()

    async def waiting() -> None:
        await gate

    task = asyncio.create_task(waiting())

    @fb.effect
    async def body() -> None:
        await task

    fiber = rt.run_fork(body())
    await turns()

    def in_a_circle(_task: object) -> object:
        return task

    monkeypatch.setattr(hooks, "waited_for_by", in_a_circle)

    assert functions(shot_of(fiber)) == ["body", "waiting"]
    monkeypatch.undo()
    gate.set_result(1)


async def test_the_chain_goes_through_gather_to_one_that_is_not_done(rt: fb.Runtime) -> None:
    gate = new_gate()

    async def done() -> None:
        return None

    async def waiting() -> None:
        await gate

    @fb.effect
    async def body() -> None:
        await asyncio.gather(done(), waiting())

    fiber = rt.run_fork(body())
    await turns()

    shot = shot_of(fiber)
    assert shot.waits_for == "gather, 1 of 2 not done"
    assert functions(shot) == ["body", "waiting"]
    gate.set_result(1)


async def test_the_chain_goes_through_async_generators(rt: fb.Runtime) -> None:
    """Which only the collector can see through."""
    gate = new_gate()

    async def giving() -> AsyncIterator[int]:
        yield await gate

    @fb.effect
    async def body() -> None:
        async for _ in giving():
            pass

    fiber = rt.run_fork(body())

    assert functions(shot_of(fiber)) == ["body", "giving"]
    gate.set_result(1)


async def test_a_promise_of_a_task_shows_where_the_task_stands(rt: fb.Runtime) -> None:
    gate = new_gate()

    async def worker() -> None:
        await gate

    task = asyncio.create_task(worker(), name="worker")
    fiber = rt.run_fork(Effect.promise(lambda: task))
    await turns()

    shot = shot_of(fiber)
    assert shot.waits_for == "task 'worker'"
    assert functions(shot) == ["worker"]
    gate.set_result(1)


async def test_the_running_fiber_shows_the_line_that_it_is_on(rt: fb.Runtime) -> None:
    """Down to the plain function that asks."""
    shots = list[FiberShot]()

    def asking() -> None:
        fiber = fb.current_fiber()
        assert fiber is not None
        shots.append(shot_of(fiber))

    async def between() -> None:
        asking()

    @fb.effect
    async def body() -> None:
        await between()

    await rt.run(body())

    assert shots[0].state == "running"
    assert functions(shots[0])[:3] == ["body", "between", "asking"]


async def test_a_very_deep_chain_is_cut_at_its_outer_end(rt: fb.Runtime) -> None:
    gate = new_gate()

    async def deeper(levels: int) -> None:
        if levels:
            await deeper(levels - 1)
        else:
            await plain_coroutine(gate)

    @fb.effect
    async def body() -> None:
        await deeper(200)

    fiber = rt.run_fork(body())

    shot = shot_of(fiber)
    assert len(shot.places) < 20
    assert functions(shot)[-2:] == ["plain_coroutine", "inner_body"]
    gate.set_result(1)


async def test_a_fiber_that_has_not_started_says_what_it_will_run() -> None:
    async with Scope() as scope:
        fiber = scope.fork(inner_body(new_gate()))
        shot = shot_of(fiber)
        fiber.interrupt_unsafe()

    assert (shot.state, shot.waits_for) == ("not started", "its start: inner_body")


async def test_a_join_names_the_fiber_that_is_waited_for(rt: fb.Runtime) -> None:
    target = rt.run_fork(endless())
    fiber = rt.run_fork(target.join())

    assert shot_of(fiber).waits_for == f"join of #{target.id}"


# ---- what else is said of it


async def test_an_interrupted_fiber_says_by_whom_and_why(rt: fb.Runtime) -> None:
    fiber = rt.run_fork(endless().uninterruptible())
    fiber.interrupt_unsafe(by=7, reason="too late")
    fiber.interrupt_unsafe()

    shot = shot_of(fiber)
    line = describe(fiber)
    fiber._mask = 0  # as if its region had been left; else nothing would end it
    fiber.interrupt_unsafe(again=True)

    assert shot.interrupts == ("by #7 (too late)", "from outside")
    assert shot.masked
    assert "masked, interrupted by #7 (too late) and from outside" in line


async def test_the_fork_site_is_the_line_of_the_fork() -> None:
    async with Scope() as scope:
        fiber = scope.fork(endless(), start_immediately=True)
        forked_at = shot_of(fiber).forked_at
        fiber.interrupt_unsafe()

    code = test_the_fork_site_is_the_line_of_the_fork.__code__
    assert forked_at.endswith(line_of(code, 2))


async def test_the_age_counts_from_the_first_suspension(
    rt: fb.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    fiber = rt.run_fork(endless())
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 90)

    age = shot_of(fiber).age_seconds

    assert age is not None
    assert 89 < age < 120


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0123, "12 ms"),
        (3.44, "3.4 s"),
        (119, "119.0 s"),
        (300, "5 min"),
        (7300, "2 h"),
        (2e6, "23 d"),
    ],
)
def test_a_time_is_said_in_its_own_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


# ---- whose it is


async def test_fibers_stand_below_the_scope_that_owns_them() -> None:
    async with Scope(name="parent") as parent:
        child = parent.fork_scope()
        child.name = "child"
        above = parent.fork(endless(), start_immediately=True)
        below = child.fork(endless(), start_immediately=True)
        shot = scope_shot("Scope 'parent'")

    assert [fiber.id for fiber in shot.fibers] == [above.id]
    assert [scope.name for scope in shot.scopes] == ["Scope 'child'"]
    assert [fiber.id for fiber in shot.scopes[0].fibers] == [below.id]
    assert (shot.state, shot.strategy, shot.finalizers) == ("open", "sequential", 2)


async def test_children_stand_below_their_parent(rt: fb.Runtime) -> None:
    @fb.effect
    async def parent() -> None:
        for _ in range(2):
            await endless().fork_child(start_immediately=True)
        await Effect.never()

    fiber = rt.run_fork(parent())

    assert len(shot_of(fiber).children) == 2


async def test_workers_of_a_group_stand_below_who_waits_for_them(rt: fb.Runtime) -> None:
    """A race's fibers belong to nobody, but everybody looks for them there."""
    fiber = rt.run_fork(fb.race(endless(), endless(), endless()))

    assert len(shot_of(fiber).children) == 3


async def test_a_fiber_that_runs_and_never_suspended_is_shown(rt: fb.Runtime) -> None:
    """Nothing is registered for it; who asks from inside sees it all the same."""
    inside = list[bool]()

    @fb.effect
    async def body() -> None:
        fiber = fb.current_fiber()
        assert fiber is not None
        inside.append(fiber in live_fibers())

    fiber = rt.run_fork(body())

    assert inside == [True]
    assert fiber not in live_fibers()


async def test_the_parent_of_a_child_that_starts_immediately_is_shown(rt: fb.Runtime) -> None:
    """It runs below the child, on the same stack, and was never suspended."""
    seen = list[list[int]]()

    @fb.effect
    async def child() -> None:
        seen.append([fiber.id for fiber in live_fibers()])

    @fb.effect
    async def parent() -> int:
        await child().fork_child(start_immediately=True)
        fiber = fb.current_fiber()
        assert fiber is not None
        return fiber.id

    parent_id = await rt.run(parent())

    assert parent_id in seen[0]


async def test_an_ended_fiber_is_not_shown(rt: fb.Runtime) -> None:
    fiber = rt.run_fork(fb.sleep(0))
    await fiber.exit()

    assert fiber.id not in [f.id for f in live_fibers()]


# ---- from elsewhere


async def test_another_thread_sees_the_same_while_the_loop_is_blocked(rt: fb.Runtime) -> None:
    """The fiber that blocks it, with the line that does."""
    looked, texts = threading.Event(), list[str]()
    blocking, waiting = threading.Event(), new_gate()

    def look() -> None:
        assert blocking.wait(20)
        texts.append(fb.dump())
        looked.set()

    @fb.effect
    async def blocker() -> None:
        blocking.set()
        assert looked.wait(20)

    waiter = rt.run_fork(outer_body(waiting))
    thread = threading.Thread(target=look)
    thread.start()
    fiber = rt.run_fork(blocker())
    await fiber.exit()
    thread.join(20)
    waiting.set_result(1)

    assert re.search(rf"#{fiber.id}, running", texts[0])
    assert line_of(blocker.__wrapped__.__code__, 3) in texts[0]  # type: ignore[attr-defined]  # pyright: ignore[reportFunctionMemberAccess]  # functools.wraps sets it
    assert f"#{waiter.id}, suspended" in texts[0]
    assert "in plain_coroutine" in texts[0]


async def test_a_dump_while_fibers_come_and_go_on_another_thread_never_fails() -> None:
    """Forks and ends without a pause there, read from here."""
    started, stop = threading.Event(), threading.Event()

    def churn() -> None:
        async def main() -> None:
            async with AppScope() as scope:
                while not stop.is_set():
                    for _ in range(50):
                        scope.fork(fb.sleep(0).flat_map(lambda _: fb.sleep(0.001)))
                    await asyncio.sleep(0)
                    started.set()

        asyncio.run(main())

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        assert started.wait(20)
        texts = [fb.dump() for _ in range(200)]
    finally:
        stop.set()
        thread.join(20)

    assert all("live fiber" in text for text in texts)
    assert any("alike" in text for text in texts)


# ---- occupants


class Pumps:
    """An occupant that says what it is told to say."""

    def __init__(self, says: Any) -> None:
        self.name = "pumps"
        self._says = says

    def start(self, scope: Scope) -> Effect[None]:
        return Effect.succeed(None)

    def describe(self) -> Any:
        if isinstance(self._says, Exception):
            raise self._says
        return self._says


async def test_an_occupant_is_shown_with_what_it_describes() -> None:
    """Also while nothing of it runs, until its scope is closed."""
    scope = AppScope(name="idle app")
    await occupy(scope, Pumps({"running": 3, "names": ["a", "b"]}))

    text = fb.dump()
    await scope.close()

    assert "AppScope 'idle app', parallel" in text
    assert "occupant pumps: running=3, names=['a', 'b']" in text
    assert "idle app" not in fb.dump()


async def test_what_describe_raises_stands_in_the_dump() -> None:
    scope = AppScope(name="broken app")
    await occupy(scope, Pumps(ValueError("no\nidea")))

    text = fb.dump()
    await scope.close()

    assert r"occupant pumps: describe() raised ValueError: no\nidea" in text


def test_described_values_are_plain_and_bounded() -> None:
    """Whatever an occupant says: JSON could hold it, and one line shows it."""
    deep: list[Any] = []
    for _ in range(50):
        deep = [deep]
    said = plain(
        {"n": 1, "many": list(range(1000)), "deep": deep, "object": object(), 5: "x" * 999}
    )

    assert said["n"] == 1
    assert said["many"][-1] == "... 980 more"
    assert said["object"].startswith("<object object")
    assert len(said["5"]) < 250
    assert "[[[" in str(said["deep"])


# ---- bounds, and what changes under the reader


async def test_the_chain_goes_through_anext_with_a_default(rt: fb.Runtime) -> None:
    """A wrapper around a wrapper."""
    gate = new_gate()

    async def giving() -> AsyncIterator[int]:
        yield await gate

    @fb.effect
    async def body() -> None:
        await anext(giving(), None)

    fiber = rt.run_fork(body())

    assert functions(shot_of(fiber)) == ["body", "giving"]
    gate.set_result(1)


async def test_a_chain_of_awaits_is_followed_only_so_far(
    rt: fb.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dump takes a bounded time whatever there is."""
    monkeypatch.setattr(chain, "_AWAITS_FOLLOWED", 3)
    gate = new_gate()

    async def deeper(levels: int) -> None:
        await (deeper(levels - 1) if levels else gate)

    @fb.effect
    async def body() -> None:
        await deeper(10)

    fiber = rt.run_fork(body())

    assert functions(shot_of(fiber)) == ["body", "deeper", "deeper"]
    gate.set_result(1)


async def test_a_chain_of_tasks_is_followed_only_so_far(rt: fb.Runtime) -> None:
    """The ones next to the fiber tell most."""
    gate = new_gate()

    async def link(levels: int) -> None:
        await (asyncio.ensure_future(link(levels - 1)) if levels else gate)

    @fb.effect
    async def body() -> None:
        await asyncio.ensure_future(link(20))

    fiber = rt.run_fork(body())
    await turns(30)

    assert functions(shot_of(fiber)) == ["body", *["link"] * 8]
    gate.set_result(1)
    await fiber


class Changing:
    """An occupant whose description changes while it is read."""

    name = "changing"

    def __init__(self, times: int) -> None:
        self._times = times

    def start(self, scope: Scope) -> Effect[None, Any]:
        return Effect.succeed(None)

    def describe(self) -> dict[str, object]:
        self._times -= 1
        if self._times >= 0:
            raise RuntimeError("dictionary changed size during iteration")
        return {"items": 5}


@pytest.mark.parametrize(
    ("times", "said"),
    [(3, "items=5"), (1000, "describe() raised RuntimeError: dictionary changed size")],
    ids=["for a moment", "for ever"],
)
async def test_what_changes_under_the_reader_is_read_again(times: int, said: str) -> None:
    """A dump may come from another thread. It doesn't try for ever."""
    scope = AppScope(name="changing app")
    await occupy(scope, Changing(times))

    text = fb.dump()
    await scope.close()

    assert f"occupant changing: {said}" in text


def test_a_described_mapping_is_bounded_too() -> None:
    said = plain({number: number for number in range(1000)})

    assert len(said) == 21
    assert said["..."] == "980 more"
