"""What a body remembers of the failures that it has seen, and how long."""

from __future__ import annotations

import weakref

import pytest

import fibers as fb
from fibers import Die, Effect, Fail
from tests.probes.kit_f import Boom, cause_of, collector_off

pytestmark = pytest.mark.lifecycle


async def sees_a_defect() -> Boom:
    """A body awaits an effect that dies, and handles it."""
    try:
        await Effect.die(Boom())
    except Boom as exc:
        return exc
    raise AssertionError("the effect did not die")


@pytest.mark.parametrize("others", [1, 7, 8, 9, 40])
async def test_a_defect_that_is_kept_stays_a_defect_whatever_was_seen_since(others: int) -> None:
    """PD4: also where the body declares its type, and has let go of many others."""

    @fb.effect(raises=Boom)
    async def body() -> None:
        kept = await sees_a_defect()
        for _ in range(others):
            await sees_a_defect()
        raise kept

    exit = await body().exit()

    assert [type(reason) for reason in cause_of(exit).reasons] == [Die]


async def test_an_error_of_its_own_is_no_defect_whatever_was_seen_before() -> None:
    """PD4: only the very object is."""

    @fb.effect(raises=Boom)
    async def body() -> None:
        for _ in range(20):
            await sees_a_defect()
        raise Boom

    exit = await body().exit()

    assert [type(reason) for reason in cause_of(exit).reasons] == [Fail]


async def test_a_body_that_handles_failures_for_ever_does_not_keep_them() -> None:
    """PD13: a loop that retries lives long."""
    seen: list[weakref.ref[Boom]] = []
    alive: list[int] = []

    @fb.effect
    async def body() -> None:
        seen.extend([weakref.ref(await sees_a_defect()) for _ in range(100)])
        alive.append(sum(ref() is not None for ref in seen))

    with collector_off():
        await fb.run_fork(body()).exit()

    assert alive[0] < 20
