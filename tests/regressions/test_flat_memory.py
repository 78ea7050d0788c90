"""What a hundred thousand forks leave behind; too long for a probe."""

from __future__ import annotations

import pytest

import fibers as fb
from fibers import Effect, Scope
from tests.memory import kept_bytes


@pytest.mark.slow
@pytest.mark.spec("PD13")
async def test_a_hundred_thousand_forks_in_one_open_scope_leave_memory_flat() -> None:
    """Every tenth suspends; under a byte a fork stays after all of them."""
    scope = Scope()

    @fb.effect
    async def forks(count: int) -> None:
        for index in range(count):
            work = Effect.yield_now() if index % 10 == 0 else Effect.succeed(None)
            await (await work.fork_in(scope, start_immediately=True))

    await forks(1_000)
    kept = await kept_bytes(lambda: forks(100_000))

    assert kept < 100_000
    assert scope.finalizer_count == 0
