"""Copies: of descriptions, which are plain data, and of fibers, which run once."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

import fibers as fb
from fibers import Effect
from fibers.app import AppScope


@fb.effect
async def _double(n: int, *, times: int = 2) -> int:
    return n * times


@pytest.mark.parametrize(
    ("effect", "value"),
    [(Effect.succeed([3]), [3]), (_double(4, times=5), 20), (Effect.succeed(1).map(str), "1")],
    ids=["a value", "a body", "a chain"],
)
def test_an_effect_can_be_copied(effect: Effect[Any, Any], value: object) -> None:
    """PD22: a description is plain data."""
    assert fb.run_sync(copy.copy(effect)) == value
    assert fb.run_sync(copy.deepcopy(effect)) == value


def test_a_copied_fork_forks() -> None:
    """With the place where it was written."""
    forked: fb.Fiber[int, Any] = fb.run_sync(copy.deepcopy(Effect.succeed(1).fork_detach()))

    assert Path(forked.forked_at.rpartition(":")[0]) == Path(__file__)


def test_a_value_can_be_pickled() -> None:
    """As far as what it holds can."""
    assert fb.run_sync(pickle.loads(pickle.dumps(Effect.succeed((1, 2))))) == (1, 2)


@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_fiber_can_not_be_copied(take: Any) -> None:
    """A copy would take itself for the same run, stack and all."""
    fiber = fb.run_fork(Effect.never())

    with pytest.raises(TypeError, match="can't be copied or pickled"):
        take(fiber)

    await fiber.interrupt()


@pytest.mark.parametrize("kind", [fb.Scope, AppScope])
@pytest.mark.parametrize("take", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_scope_can_not_be_copied(take: Any, kind: type[fb.Scope]) -> None:
    """A copy would finalize the same things again: both would be their owner."""
    scope = kind()

    with pytest.raises(TypeError, match="owns what is alive here: it can't be copied or pickled"):
        take(scope)
