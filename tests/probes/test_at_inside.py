"""Probes AT21: what works in a plain task works in a fiber, under masks and in cleanups."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

import pytest
from returns.result import Success

import fibers as fb
from fibers import Effect
from tests.interop.tools import TOOLS
from tests.loops import every_loop
from tests.probes.kit_f import cause_of, interrupted

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    Program = Callable[[], Awaitable[None]]


def in_a_region(program: Program) -> Effect[None, Any]:
    async def body() -> None:
        with fb.uninterruptible():
            await program()

    return Effect.promise(body)


def in_a_restored_part(program: Program) -> Effect[None, Any]:
    async def body() -> None:
        with fb.uninterruptible() as restore, restore():
            await program()

    return Effect.promise(body)


def in_a_finally(program: Program) -> Effect[None, Any]:
    async def body() -> None:
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await program()

    return Effect.promise(body)


def in_a_scopes_close(program: Program) -> Effect[None, Any]:
    return fb.scoped(fb.add_finalizer(lambda _: Effect.promise(program)))


WHILE_IT_RUNS: Final[dict[str, Callable[[Program], Effect[None, Any]]]] = {
    "a fiber": Effect.promise,
    "a masked effect": lambda program: Effect.promise(program).uninterruptible(),
    "a hole in a mask": lambda program: Effect.promise(program).interruptible().uninterruptible(),
    "a region": in_a_region,
    "a restored part": in_a_restored_part,
    "a finalizer": lambda program: Effect.succeed(None).ensuring(Effect.promise(program)),
    "a scope's finalizer": in_a_scopes_close,
}

WHEN_INTERRUPTED: Final[dict[str, Callable[[Program], Effect[Any, Any]]]] = {
    "on_interrupt": lambda program: Effect.never().on_interrupt(lambda _: Effect.promise(program)),
    "ensuring": lambda program: Effect.never().ensuring(Effect.promise(program)),
    "a finally": in_a_finally,
    "a finally in a region": lambda program: in_a_finally(lambda: in_a_region(program)),
    "a fork_in of a closing scope": lambda program: fb.scoped(
        fb.add_finalizer(lambda _: Effect.promise(program)).flat_map(lambda _: Effect.never())
    ),
}


@pytest.mark.spec("AT21")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("place", WHILE_IT_RUNS)
@every_loop
async def test_what_works_in_a_task_works_in(place: str, tool: str) -> None:
    """It ends as in a plain task, and the fiber succeeds."""
    exit = await fb.run_fork(WHILE_IT_RUNS[place](TOOLS[tool])).exit()

    assert exit == Success(None), pretty(exit)


@pytest.mark.spec("AT21", "PD2", "PD3")
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("place", WHEN_INTERRUPTED)
@every_loop
async def test_what_works_in_a_task_works_in_a_cleanup_of_an_interrupted_fiber(
    place: str, tool: str
) -> None:
    """The same while an interrupt counts in cancelling(): nothing is cut, nothing is mistaken."""
    log = list[str]()

    async def program() -> None:
        await TOOLS[tool]()
        log.append("done")

    fiber = fb.run_fork(WHEN_INTERRUPTED[place](program))
    fiber.interrupt_unsafe()
    exit = await fiber.exit()

    assert exit == interrupted(None), pretty(exit)
    assert log == ["done"]


@pytest.mark.spec("AT21")
@pytest.mark.parametrize("tool", TOOLS)
@every_loop
async def test_the_programs_work_in_a_plain_task(tool: str) -> None:
    """What the others are measured by."""
    await asyncio.create_task(as_coroutine(TOOLS[tool]))


@pytest.mark.spec("AT21", "PD12")
@pytest.mark.parametrize("tool", TOOLS)
@every_loop
async def test_the_programs_work_in_an_effect_awaited_in_a_plain_task(tool: str) -> None:
    """As its root fiber."""
    assert await Effect.promise(TOOLS[tool]).exit() == Success(None)


def pretty(exit: fb.Exit[Any, Any]) -> str:
    """What a failing program says."""
    return "" if isinstance(exit, Success) else cause_of(exit).pretty()


async def as_coroutine(program: Program) -> None:
    await program()
