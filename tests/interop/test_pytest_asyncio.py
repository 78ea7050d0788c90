"""Effects in tests and fixtures of pytest-asyncio: what users write in their own suites."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
import pytest_asyncio

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import inner_task, is_face_of, note, parked, running_fiber

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

closed: list[str] = []


@pytest_asyncio.fixture
async def scope() -> AsyncIterator[fb.Scope]:
    """A scope that is open during a test."""
    async with fb.Scope() as opened:
        await opened.add_finalizer(lambda _: note(closed, "closed"))
        yield opened


@pytest_asyncio.fixture
async def worker(scope: fb.Scope) -> fb.Fiber[None, Any]:
    """A fiber that lives as long as the scope."""
    log = list[str]()
    return await parked(log, "ended").fork_in(scope, start_immediately=True)


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared() -> AsyncIterator[fb.Runtime]:
    """A runtime for all tests of the module, in the module's loop."""
    runtime = fb.Runtime()
    yield runtime
    await runtime.dispose()


@pytest.mark.spec("PD12")
async def test_a_test_awaits_effects() -> None:
    """The test is a plain task, and the effect its root fiber."""
    assert await fb.sleep(0).map(lambda _: 5) == 5
    assert fb.current_fiber() is None


@pytest.mark.spec("SC1")
async def test_a_fixture_holds_a_scope_open(scope: fb.Scope) -> None:
    """What the test forks in it lives until the fixture's end."""
    fiber = scope.fork(Effect.never())
    await Effect.yield_now()

    assert scope.state == "open"
    assert fiber.poll() is None


@pytest.mark.spec("SC1")
async def test_the_fixtures_scope_is_closed_after_each_test(scope: fb.Scope) -> None:
    """Once a test; this one has a scope of its own."""
    before = len(closed)
    await Effect.yield_now()

    assert scope.finalizer_count == 1
    assert closed == ["closed"] * before


@pytest.mark.spec("PD8")
async def test_a_fiber_forked_in_a_fixture_lives_in_the_test(
    worker: fb.Fiber[None, Any], scope: fb.Scope
) -> None:
    """Though the fixture's own task has ended."""
    assert worker.poll() is None
    assert scope.finalizer_count == 2


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.spec("LY4")
@pytest.mark.parametrize("turn", range(3))
async def test_tests_of_one_loop_share_a_runtime(shared: fb.Runtime, turn: int) -> None:
    """It is alive in each of them."""
    assert await shared.run(fb.sleep(0).map(lambda _: turn)) == turn


@fb.effect
async def body_of_a_test() -> bool:
    return is_face_of(inner_task(), running_fiber())


@pytest.mark.spec("PD11")
async def test_a_tests_effect_has_an_inner_task_of_its_own() -> None:
    """As in every plain task."""
    outer = asyncio.current_task()

    assert await body_of_a_test()
    assert asyncio.current_task() is outer


def test_a_plain_test_runs_effects_in_a_loop_of_their_own() -> None:
    """run() beside pytest-asyncio's loops."""
    assert fb.run(Effect.succeed(5)) == 5
