"""Trees of turns on virtual time, closed after the test."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

import fibers as fb
from fibers.testing import TestClock
from tests.streamengine.engine.kit import unhandled_failures
from turns.subturns import SubturnLimits

from .kit import Tree, Work, at_once

MakeTree = Callable[..., Tree]


@pytest.fixture
def clock() -> TestClock:
    """Time that only moves when the test moves it."""
    return TestClock()


@pytest.fixture
async def rt(clock: TestClock) -> AsyncIterator[fb.Runtime]:
    """A runtime on the virtual clock, disposed after the test."""
    runtime = fb.Runtime(clock=clock)
    await runtime.run(clock.adjust(0))
    yield runtime
    await runtime.dispose()


@pytest.fixture
async def tree(rt: fb.Runtime, clock: TestClock) -> AsyncIterator[MakeTree]:
    """Makes a tree whose children do this work. Nothing of it is left after the test."""
    made: list[Tree] = []

    def make(work: Work = at_once, **limits: Any) -> Tree:
        made.append(Tree(rt, clock, work, SubturnLimits(**limits)))
        return made[-1]

    yield make
    for each in made:
        await rt.run(each.scope.close())
        assert each.registry.children == ()


@pytest.fixture(autouse=True)
def nothing_unhandled() -> Iterator[None]:
    """No test leaves a failure that nobody handles."""
    with unhandled_failures() as seen:
        yield
    assert seen == []
