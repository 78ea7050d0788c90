"""Probes PD3: finalizers can't be interrupted, their holes can."""

from __future__ import annotations

from typing import TYPE_CHECKING, Never

import pytest

import fibers as fb
from fibers import Effect
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    interrupted,
    note,
    note_start_and_end,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock


def with_on_exit(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` through on_exit, after a success."""
    return Effect.succeed(None).on_exit(lambda _: finalizer)


def with_on_interrupt(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` through on_interrupt, after an effect that interrupts itself."""
    return Effect.interrupt().on_interrupt(lambda _: finalizer)


def with_ensuring(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` through ensuring, after a success."""
    return Effect.succeed(None).ensuring(finalizer)


def with_release(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` as the release of acquire_use_release."""

    def use(_: object) -> Effect[None, Boom]:
        return Effect.succeed(None)

    return fb.acquire_use_release(use(None), use, lambda _, __: finalizer).or_die()


def with_scope(finalizer: Effect[None, Never]) -> Effect[None, Never]:
    """`finalizer` in a scope that closes."""
    return fb.scoped(fb.add_finalizer(lambda _: finalizer))


EVERY_FINALIZER = pytest.mark.parametrize(
    "finalized_by", [with_on_exit, with_on_interrupt, with_ensuring, with_release, with_scope]
)


# ---- PD3: finalizers


@pytest.mark.spec("PD3")
@EVERY_FINALIZER
async def test_a_finalizer_is_not_cut_by_an_interrupt(
    clock: TestClock,
    rt: fb.Runtime,
    finalized_by: Callable[[Effect[None, Never]], Effect[None, Never]],
) -> None:
    """The interrupt arrives in the middle of it and waits for its end."""
    log = list[str]()

    fiber = rt.run_fork(finalized_by(note_start_and_end(log, "fin", 1.0)))
    fiber.interrupt_unsafe(by=7)
    early = fiber.poll()
    await rt.run(clock.adjust(1.0))

    assert early is None
    assert log == ["fin-start", "fin-end"]
    assert 7 in cause_of(fiber.poll()).interruptors


@pytest.mark.spec("PD3")
@EVERY_FINALIZER
async def test_a_finalizer_that_is_a_coroutine_is_not_cut_either(
    clock: TestClock,
    rt: fb.Runtime,
    finalized_by: Callable[[Effect[None, Never]], Effect[None, Never]],
) -> None:
    """Nothing is thrown into its body."""
    log = list[str]()

    @fb.effect
    async def finalizer() -> None:
        log.append("fin-start")
        try:
            await fb.sleep(1.0)
        except BaseException as exc:
            log.append(f"thrown: {exc!r}")
            raise
        log.append("fin-end")

    fiber = rt.run_fork(finalized_by(finalizer()))
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1.0))

    assert log == ["fin-start", "fin-end"]
    assert 7 in cause_of(fiber.poll()).interruptors


@pytest.mark.spec("PD3")
@EVERY_FINALIZER
async def test_an_interruptible_hole_in_a_finalizer_is_cut(
    rt: fb.Runtime, finalized_by: Callable[[Effect[None, Never]], Effect[None, Never]]
) -> None:
    """The rest of that finalizer is skipped, the one outside it runs."""
    log = list[str]()
    hole = note(log, "before").flat_map(lambda _: endless().interruptible())
    finalizer = hole.flat_map(lambda _: note(log, "after"))

    fiber = rt.run_fork(finalized_by(finalizer).ensuring(note(log, "outer")))
    fiber.interrupt_unsafe(by=7)

    assert log == ["before", "outer"]
    assert 7 in cause_of(fiber.poll()).interruptors


@pytest.mark.spec("PD3")
async def test_an_interruptible_hole_in_a_finalizer_body_is_cut(rt: fb.Runtime) -> None:
    """A finalizer that is a coroutine: its finally runs, the rest does not."""
    log = list[str]()

    @fb.effect
    async def finalizer() -> None:
        try:
            await endless().interruptible()
            log.append("after")
        finally:
            log.append("finally")

    work = Effect.succeed(None).ensuring(finalizer()).ensuring(note(log, "outer"))
    fiber = rt.run_fork(work)
    fiber.interrupt_unsafe(by=7)

    assert log == ["finally", "outer"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD3")
async def test_the_other_finalizers_of_a_scope_run_after_one_was_cut(rt: fb.Runtime) -> None:
    """A hole in one of three."""
    log = list[str]()
    cut = endless().interruptible().flat_map(lambda _: note(log, "never here"))

    @fb.effect
    async def body() -> None:
        await fb.add_finalizer(lambda _: note(log, "first added"))
        await fb.add_finalizer(lambda _: cut)
        await fb.add_finalizer(lambda _: note(log, "last added"))

    fiber = rt.run_fork(fb.scoped(body()))
    fiber.interrupt_unsafe(by=7)

    assert log == ["last added", "first added"]
    assert 7 in cause_of(fiber.poll()).interruptors
