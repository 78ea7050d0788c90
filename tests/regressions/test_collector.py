"""The garbage collector during a bounded close: switched off, and afterwards as it was."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

import fibers as fb
from fibers import Effect, Scope
from fibers.app import collector
from fibers.app.scope import close_bounded

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    gc.enable()


async def closed_with(*, fails: bool = False) -> bool:
    """Whether the collector was on in a finalizer."""
    seen: list[bool] = []
    scope = Scope("parallel")

    def look() -> None:
        seen.append(gc.isenabled())
        if fails:
            raise RuntimeError("broken")

    await scope.add_finalizer(lambda _exit: Effect.sync(look))
    await close_bounded(scope)
    return seen == [True]


@pytest.mark.parametrize("fails", [False, True])
async def test_it_makes_no_pass_while_a_scope_closes(*, fails: bool) -> None:
    assert not await closed_with(fails=fails)
    assert gc.isenabled()


async def test_one_that_was_off_stays_off() -> None:
    gc.disable()
    assert not await closed_with()
    assert not gc.isenabled()


async def test_it_is_on_again_after_a_close_out_of_time() -> None:
    gate = asyncio.Event()
    scope = Scope("parallel")

    @fb.effect
    async def wedged() -> None:
        await gate.wait()

    fiber = await wedged().uninterruptible().fork_in(scope, start_immediately=True)
    assert not await close_bounded(scope, 0.01)
    assert gc.isenabled()

    gate.set()
    await fiber.exit()


async def test_it_is_on_again_where_who_closes_is_cancelled() -> None:
    gate = asyncio.Event()
    scope = Scope("parallel")
    await scope.add_finalizer(lambda _exit: Effect.promise(gate.wait))
    closing = asyncio.create_task(close_bounded(scope))
    await asyncio.sleep(0)
    assert not gc.isenabled()
    closing.cancel()
    await asyncio.wait([closing])
    assert gc.isenabled()

    gate.set()
    await scope.close()


async def test_of_two_closes_the_last_switches_it_on() -> None:
    with collector.paused():
        assert not await closed_with()
        assert not gc.isenabled()
    assert gc.isenabled()
