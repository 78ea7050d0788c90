"""Fibers driven by plain calls a few frames below Python's recursion limit: none is ever lost."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from functools import partial
from typing import Any, Never, TypeVar

import pytest
from returns.result import Success

import fibers as fb
from fibers.loop.room import ROOM_CALLS
from tests.probes.kit_f import Boom, cause_of

T = TypeVar("T")
FRAMES_LEFT = range(80)
TURNS = 20


def _frames_here() -> int:
    try:
        return 1 + _frames_here()
    except RecursionError:
        return 0


def with_frames_left(left: int, f: Callable[[], T]) -> T | None:
    """Call ``f`` where only about ``left`` more calls fit; None where it said that they don't."""

    def down(levels: int) -> T:
        return f() if levels <= 0 else down(levels - 1)

    try:
        return down(_frames_here() - left)
    except RecursionError:
        return None


async def has_ended(fiber: fb.Fiber[Any, Any]) -> bool:
    """Whether it ends by itself within a few turns of the loop."""
    for _ in range(TURNS):
        if fiber.poll() is not None:
            return True
        await asyncio.sleep(0)
    return False


def noting(log: list[str]) -> Callable[[object], fb.Effect[None]]:
    """A finalizer."""
    return lambda _: fb.Effect.sync(lambda: log.append("finalizer"))


def interrupted(fiber: fb.Fiber[Any, Any]) -> bool:
    """Ask for it."""
    fiber.interrupt_unsafe()
    return True


@fb.effect
async def sleeps_for_ever(log: list[str]) -> None:
    log.append("began")
    try:
        await asyncio.Event().wait()
    finally:
        log.append("finally")


@fb.effect
async def exhausts_the_stack(log: list[str]) -> None:
    log.append("began")
    _down_for_ever()


def _down_for_ever() -> None:
    _down_for_ever()


INTERRUPTED: dict[str, list[str]] = {
    "a wait": ["finalizer"],
    "a body": ["began", "finally", "finalizer"],
    "one not started": [],
}


@pytest.mark.spec("PD16")
@pytest.mark.parametrize("what", INTERRUPTED)
async def test_an_interrupt_there_is_carried_out_or_refused_and_never_half_way(what: str) -> None:
    lost: list[tuple[int, list[str]]] = []
    for left in FRAMES_LEFT:
        log: list[str] = []
        work: fb.Effect[None] = sleeps_for_ever(log) if what == "a body" else fb.Effect.never()
        fiber = await work.on_interrupt(noting(log)).fork_detach(
            start_immediately=what != "one not started"
        )
        joiner = fb.run_fork(fiber.exit())

        if not with_frames_left(left, partial(interrupted, fiber)):
            fiber.interrupt_unsafe()

        if not await has_ended(fiber) or not await has_ended(joiner) or log != INTERRUPTED[what]:
            lost.append((left, log))

    assert lost == []


@pytest.mark.spec("PD16")
@pytest.mark.parametrize(
    "what", ["a value", "callbacks", "a wait", "a body", "a deep callback", "a deep body"]
)
async def test_a_start_there_ends_goes_on_or_is_refused(what: str) -> None:
    limit = sys.getrecursionlimit()
    lost: list[tuple[int, list[str]]] = []
    for left in FRAMES_LEFT:
        log: list[str] = []
        some = fb.Effect.succeed(1)

        def deep(log: list[str] = log) -> None:
            log.append("began")
            _down_for_ever()

        works: dict[str, fb.Effect[Any]] = {
            "a value": some,
            "callbacks": some.map(lambda n: n).flat_map(lambda n: fb.Effect.sync(lambda: n)),
            "a wait": fb.Effect.never(),
            "a body": sleeps_for_ever(log).on_exit(noting(log)),
            "a deep callback": fb.Effect.sync(deep).on_exit(noting(log)),
            "a deep body": exhausts_the_stack(log).on_exit(noting(log)),
        }
        scope = fb.Scope("parallel")

        fiber = with_frames_left(left, partial(scope.fork, works[what], start_immediately=True))
        closing = fb.run_fork(scope.close())

        ended = await has_ended(closing) and (fiber is None or await has_ended(fiber))
        if fiber is not None:
            fiber.ignore_failure()
        if not ended or scope.finalizer_count or ("began" in log) > ("finalizer" in log):
            lost.append((left, log))

    assert lost == []
    assert sys.getrecursionlimit() == limit


@pytest.mark.spec("PD16")
async def test_a_fiber_that_forks_there_still_ends() -> None:
    lost: list[int] = []
    for left in FRAMES_LEFT:
        log: list[str] = []

        @fb.effect
        async def parent(log: list[str] = log) -> None:
            await sleeps_for_ever(log).fork_child(start_immediately=True)
            await fb.Effect.never()

        fiber = with_frames_left(left, partial(fb.run_fork, parent()))
        if fiber is None:
            continue
        fiber.ignore_failure()
        fiber.interrupt_unsafe()
        if not await has_ended(fiber):
            lost.append(left)

    assert lost == []


@pytest.mark.spec("PD16", "FL1")
@pytest.mark.parametrize("where", ["a callback", "a body"])
async def test_a_recursion_error_of_deep_code_ends_the_fiber_at_once(where: str) -> None:
    """Nothing waits for a turn of the loop: where the fiber is driven there is room."""
    log: list[str] = []
    work = fb.Effect.sync(_down_for_ever) if where == "a callback" else exhausts_the_stack(log)

    fiber = fb.run_fork(work.exit().map(_defects_of))

    assert fiber.poll() == Success([RecursionError])


def _defects_of(exit: fb.Exit[Any, Any]) -> list[type[BaseException]]:
    return [type(defect) for defect in cause_of(exit).defects]


@pytest.mark.spec("PD16", "FL1")
@pytest.mark.parametrize("where", ["a callback", "a body"])
async def test_another_error_there_ends_the_fiber_at_once(where: str) -> None:
    """Only what met the limit itself goes on from the queue."""

    def fails() -> None:
        raise Boom

    async def body() -> None:
        raise Boom

    work = fb.Effect.sync(fails) if where == "a callback" else fb.Effect.promise(body)
    ended: dict[int, bool] = {}
    for left in FRAMES_LEFT:
        fiber = with_frames_left(left, partial(fb.run_fork, work))
        if fiber is not None:
            at_once = fiber.done()
            exit = await fiber.exit()
            if _defects_of(exit) == [Boom]:
                ended[left] = at_once

    assert min(ended) < ROOM_CALLS
    assert all(ended.values())


@pytest.mark.spec("PD16")
async def test_a_wait_that_was_refused_there_is_over() -> None:
    """The end of what it was for is not heard of by a fiber that stands in the queue."""
    refused: list[fb.Fiber[Any, Any]] = []
    for left in FRAMES_LEFT:
        target = fb.run_fork(fb.Effect.never())
        fiber = with_frames_left(left, partial(fb.run_fork, target.join()))
        if fiber is not None and "ready" in repr(fiber):
            refused.append(fiber)
        target.interrupt_unsafe(by=7)

    assert refused
    assert {_defects_of(await fiber.exit())[0] for fiber in refused} == {RecursionError}


@pytest.mark.spec("PD16")
async def test_a_wait_that_was_refused_there_leaves_nothing_behind() -> None:
    """What it was for counts those that do wait."""
    deferred = fb.Deferred[int, Never]()
    fibers = [
        fiber
        for left in FRAMES_LEFT
        if (fiber := with_frames_left(left, partial(fb.run_fork, deferred.await_()))) is not None
    ]
    suspended = ["suspended" in repr(fiber) for fiber in fibers]
    waiting = repr(deferred)
    deferred.done_unsafe(Success(5))
    exits = [await fiber.exit() for fiber in fibers]

    assert waiting == f"<Deferred pending, {sum(suspended)} waiting>"
    assert [exit == Success(5) for exit in exits] == suspended


YIELDS: dict[str, Callable[[], fb.Effect[Any]]] = {
    "an effect": fb.Effect.yield_now,
    "a body": lambda: fb.Effect.promise(lambda: asyncio.sleep(0)),
}


@pytest.mark.spec("PD16", "PI13")
@pytest.mark.parametrize("what", YIELDS)
async def test_a_yield_there_gives_its_turn_or_is_refused(what: str) -> None:
    """A fiber that met the limit on its way into the queue has one turn, and one only."""
    told: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
    lost: list[int] = []
    refused = 0
    for left in FRAMES_LEFT:
        fiber = with_frames_left(left, partial(fb.run_fork, YIELDS[what]()))
        if fiber is None:
            continue
        if not await has_ended(fiber):
            lost.append(left)
        elif fiber.poll() != Success(None):
            refused += 1

    assert lost == []
    assert told == []
    assert refused


@pytest.mark.spec("PD16", "PD11")
async def test_a_task_that_starts_eagerly_and_yields_there_still_ends() -> None:
    """The same for what takes itself for a task of asyncio's."""
    loop = asyncio.get_running_loop()
    told: list[str] = []
    loop.set_exception_handler(lambda _, context: told.append(context["message"]))
    lost: list[int] = []
    refused = 0
    async with fb.Scope("parallel") as scope:
        create = fb.task_factory(scope=scope)
        for left in FRAMES_LEFT:
            coro = asyncio.sleep(0)
            task = with_frames_left(left, partial(create, loop, coro, eager_start=True))
            if task is None:
                coro.close()
                continue
            for _ in range(TURNS):
                await asyncio.sleep(0)
            if not task.done():
                lost.append(left)
            elif task.exception() is not None:
                refused += 1

    assert lost == []
    assert refused
    assert all(message.startswith("Task ") for message in told)  # of starts that were refused
