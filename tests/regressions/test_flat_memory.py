"""What a hundred thousand forks leave behind; too long for a probe."""

from __future__ import annotations

import gc
import tracemalloc

import pytest

import fibers as fb
from fibers import Effect, Scope
from tests.memory import traced


@pytest.mark.slow
@pytest.mark.spec("PD13")
async def test_a_hundred_thousand_forks_in_one_open_scope_leave_memory_flat() -> None:
    """Every tenth suspends; under 1 MB stays after all of them."""
    scope = Scope()

    @fb.effect
    async def forks(count: int) -> None:
        for index in range(count):
            work = Effect.yield_now() if index % 10 == 0 else Effect.succeed(None)
            await (await work.fork_in(scope, start_immediately=True))

    await forks(1_000)
    with traced():
        before, _ = tracemalloc.get_traced_memory()
        await forks(100_000)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()

    assert after - before < 1_000_000
    assert scope.finalizer_count == 0
