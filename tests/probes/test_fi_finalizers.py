"""Probes FI: finalizers around an effect, and the three steps of a resource."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.maybe import Nothing
from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, Die, Effect, Fail, Interrupt
from tests.probes.kit_e import (
    Boom,
    Defect,
    cause_of,
    chain,
    failed,
    interrupt_during,
    interrupted,
    pass_time,
    raising,
    say,
    show,
    slow,
)

if TYPE_CHECKING:
    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle

DEEP = 10_000  # nested levels, far beyond the recursion limit


# ---- ensuring and on_exit


@pytest.mark.spec("FI1")
async def test_ensuring_keeps_the_failure(rt: fb.Runtime) -> None:
    """The very object that the effect failed with."""
    boom = Boom()
    exit = await rt.run_exit(Effect.fail(boom).ensuring(Effect.succeed("ignored")))

    assert exit == failed(Fail(boom))
    assert cause_of(exit).failures[0] is boom


@pytest.mark.spec("FI1")
async def test_ensuring_runs_once_after_a_failure(rt: fb.Runtime) -> None:
    """Also where a handler around it recovers."""
    log: list[str] = []
    work = Effect.fail(Boom()).ensuring(say(log, "ensuring"))

    await rt.run(work.catch(lambda _: say(log, "recovered")))

    assert log == ["ensuring", "recovered"]


@pytest.mark.spec("FI1")
async def test_ensuring_runs_once_after_a_success(rt: fb.Runtime) -> None:
    """A failure further out does not run it again."""
    log: list[str] = []
    work = Effect.succeed(1).ensuring(say(log, "ensuring"))

    await rt.run_exit(work.flat_map(lambda _: Effect.fail(Boom())))

    assert log == ["ensuring"]


@pytest.mark.spec("FI1")
async def test_ensuring_around_a_body_keeps_the_failure_that_it_raises(rt: fb.Runtime) -> None:
    """A coroutine body is treated as a chain of combinators is."""
    log: list[str] = []
    boom = Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        raise boom

    exit = await rt.run_exit(body().ensuring(say(log, "ensuring")))

    assert exit == failed(Fail(boom))
    assert log == ["ensuring"]


@pytest.mark.spec("FI1")
async def test_ten_thousand_nested_finalizers_run_after_a_failure(rt: fb.Runtime) -> None:
    """From the inside out, each once, without a Python stack per level."""
    log: list[int] = []
    boom = Boom()

    def note(level: int) -> Effect[None, Never]:
        return Effect.sync(lambda: log.append(level))

    nest: Effect[Any, Boom] = Effect.fail(boom)
    for level in range(DEEP):
        nest = nest.ensuring(note(level))
    exit = await rt.run_exit(nest)

    assert exit == failed(Fail(boom))
    assert log == list(range(DEEP))


@pytest.mark.spec("FI2")
async def test_the_value_of_an_on_exit_callback_is_ignored(rt: fb.Runtime) -> None:
    """The effect's own value stays."""
    assert await rt.run(Effect.succeed(1).on_exit(lambda _: Effect.succeed(2))) == 1


@pytest.mark.spec("FI2")
async def test_on_exit_does_not_recover_from_a_failure(rt: fb.Runtime) -> None:
    """However well the callback's effect ends."""
    boom = Boom()
    exit = await rt.run_exit(Effect.fail(boom).on_exit(lambda _: Effect.succeed(2)))

    assert exit == failed(Fail(boom))


# ---- finalizers that die


@pytest.mark.spec("FI3")
async def test_a_finalizer_that_dies_after_a_success_is_the_exit(rt: fb.Runtime) -> None:
    """The value is lost."""
    defect = Defect()
    exit = await rt.run_exit(Effect.succeed(1).ensuring(Effect.die(defect)))

    assert exit == failed(Die(defect))


@pytest.mark.spec("FI3")
async def test_a_defect_of_a_finalizer_turns_the_failure_into_a_defect(rt: fb.Runtime) -> None:
    """The same object, no longer declared; further defects follow in run order."""
    boom, first, second = Boom(), Defect("first"), Defect("second")
    work = Effect.fail(boom).ensuring(Effect.die(first)).ensuring(Effect.die(second))

    exit = await rt.run_exit(work)

    assert exit == failed(Die(boom), Die(first), Die(second))
    assert cause_of(exit).defects[0] is boom


@pytest.mark.spec("FI3", "EX3")
async def test_a_failure_turned_into_a_defect_is_not_caught(rt: fb.Runtime) -> None:
    """A handler of failures would hide the finalizer's defect."""
    log: list[str] = []
    boom, defect = Boom(), Defect()
    work = Effect.fail(boom).ensuring(Effect.die(defect))

    exit = await rt.run_exit(work.catch(lambda _: say(log, "recovered")))

    assert exit == failed(Die(boom), Die(defect))
    assert log == []


@pytest.mark.spec("FI3")
async def test_the_defect_of_a_finalizer_follows_the_defect_of_its_effect(rt: fb.Runtime) -> None:
    """Neither replaces the other."""
    first, second = Defect("first"), Defect("second")
    exit = await rt.run_exit(Effect.die(first).ensuring(Effect.die(second)))

    assert exit == failed(Die(first), Die(second))


@pytest.mark.spec("FI4")
async def test_the_same_defect_twice_counts_once(rt: fb.Runtime) -> None:
    """One reason for one object."""
    defect = Defect()
    exit = await rt.run_exit(Effect.die(defect).ensuring(Effect.die(defect)))

    assert exit == failed(Die(defect))
    assert len(cause_of(exit).reasons) == 1


@dataclass(unsafe_hash=True)
class CodedDefect(Exception):
    """A defect that equals another one with the same code."""

    code: int


@pytest.mark.spec("FI4")
async def test_two_defects_that_are_equal_count_once(rt: fb.Runtime) -> None:
    """Equal by ==; the first of the two stays."""
    first = CodedDefect(1)
    exit = await rt.run_exit(Effect.die(first).ensuring(Effect.die(CodedDefect(1))))

    assert len(cause_of(exit).reasons) == 1
    assert cause_of(exit).defects[0] is first


@pytest.mark.spec("FI4")
async def test_two_defects_with_the_same_message_count_twice(rt: fb.Runtime) -> None:
    """Plain exceptions are equal only to themselves."""
    first, second = Defect("same"), Defect("same")
    exit = await rt.run_exit(Effect.die(first).ensuring(Effect.die(second)))

    assert exit == failed(Die(first), Die(second))
    assert len(cause_of(exit).reasons) == 2


@pytest.mark.spec("FI5")
async def test_an_on_exit_callback_that_raises_after_a_success_is_the_exit(rt: fb.Runtime) -> None:
    """It raises while building its effect: a defect of that object."""
    defect = Defect()
    exit = await rt.run_exit(Effect.succeed(1).on_exit(raising(defect)))

    assert exit == failed(Die(defect))
    assert cause_of(exit).defects[0] is defect


@pytest.mark.spec("FI5")
async def test_an_on_exit_callback_that_raises_after_a_failure_joins_it(rt: fb.Runtime) -> None:
    """As a finalizer that dies would."""
    boom, defect = Boom(), Defect()
    exit = await rt.run_exit(Effect.fail(boom).on_exit(raising(defect)))

    assert exit == failed(Die(boom), Die(defect))


# ---- on_interrupt


@pytest.mark.spec("FI6")
@pytest.mark.parametrize("ending", [Effect.fail(Boom()), Effect.die(Defect()), Effect.succeed(1)])
async def test_on_interrupt_is_not_called_without_an_interrupt(
    rt: fb.Runtime, ending: Effect[Any, Boom]
) -> None:
    """Neither for a failure, nor for a defect, nor for a success."""
    log: list[str] = []
    await rt.run_exit(ending.on_interrupt(lambda _: say(log, "on_interrupt")))

    assert log == []


@pytest.mark.spec("FI6")
async def test_on_interrupt_is_called_with_the_interruptors_id(rt: fb.Runtime) -> None:
    """For an interrupt from outside."""
    told: list[frozenset[int]] = []
    work = Effect.never().on_interrupt(lambda ids: Effect.sync(lambda: told.append(ids)))

    rt.run_fork(work).interrupt_unsafe(by=77)

    assert told == [frozenset({77})]


@pytest.mark.spec("FI6", "FL18")
async def test_on_interrupt_is_called_with_no_id_where_no_fiber_interrupted(
    rt: fb.Runtime,
) -> None:
    """An interrupt from the edge has no interruptor."""
    told: list[frozenset[int]] = []
    work = Effect.never().on_interrupt(lambda ids: Effect.sync(lambda: told.append(ids)))

    rt.run_fork(work).interrupt_unsafe()

    assert told == [frozenset()]


@pytest.mark.spec("FI6")
async def test_on_interrupt_is_called_for_effect_interrupt(rt: fb.Runtime) -> None:
    """With the fiber's own id."""
    told: list[frozenset[int]] = []
    work = Effect.interrupt().on_interrupt(lambda ids: Effect.sync(lambda: told.append(ids)))
    fiber = rt.run_fork(work)

    assert told == [frozenset({fiber.id})]
    assert fiber.poll() == interrupted(fiber.id)


@pytest.mark.spec("FI6")
async def test_on_interrupt_is_called_for_a_failure_mixed_with_an_interrupt(rt: fb.Runtime) -> None:
    """With the ids of the interrupts in the cause, which stays as it is."""
    told: list[frozenset[int]] = []
    mixed: Cause[Boom] = Cause((Fail(Boom()), Interrupt(by=3, reason=None)))
    work = Effect.fail_cause(mixed)

    exit = await rt.run_exit(
        work.on_interrupt(lambda ids: Effect.sync(lambda: told.append(ids))),
    )

    assert told == [frozenset({3})]
    assert exit == Failure(mixed)


@pytest.mark.spec("FI6", "FL8")
async def test_on_interrupt_around_a_body_is_called_for_a_foreign_interrupt(rt: fb.Runtime) -> None:
    """A foreign interrupt that leaves a body is still that interrupt."""
    told: list[frozenset[int]] = []
    foreign: Cause[Never] = Cause((Interrupt(by=3, reason=None),))

    @fb.effect
    async def body() -> None:
        await Effect.fail_cause(foreign)

    exit = await rt.run_exit(
        body().on_interrupt(lambda ids: Effect.sync(lambda: told.append(ids))),
    )

    assert told == [frozenset({3})]
    assert exit == Failure(foreign)


@pytest.mark.spec("FI7")
async def test_nested_on_interrupt_runs_from_the_inside_out_before_interrupt_returns(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The outer one starts when the inner one has ended."""
    log: list[str] = []
    inner = chain(say(log, "i-start"), fb.sleep(1), say(log, "i-end"))
    work = Effect.never().on_interrupt(lambda _: inner).on_interrupt(lambda _: say(log, "o"))
    fiber = rt.run_fork(work)

    rt.run_fork(fiber.interrupt().flat_map(lambda _: say(log, "returned")))
    await pass_time(rt, clock)

    assert log == ["i-start", "i-end", "o", "returned"]


@pytest.mark.spec("FI8")
async def test_a_defect_of_on_interrupt_follows_the_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Both are in the exit."""
    defect = Defect()
    work = Effect.never().on_interrupt(lambda _: Effect.die(defect))

    exit = await interrupt_during(rt, clock, work, by=9)

    assert exit == failed(Interrupt(by=9, reason=None), Die(defect))


@pytest.mark.spec("FI8")
async def test_an_on_interrupt_callback_that_raises_follows_the_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Raising while building the effect is a defect like any other."""
    defect = Defect()
    work = Effect.never().on_interrupt(raising(defect))

    exit = await interrupt_during(rt, clock, work, by=9)

    assert exit == failed(Interrupt(by=9, reason=None), Die(defect))


@pytest.mark.spec("FI8")
async def test_defects_of_nested_finalizers_follow_the_interrupt_in_run_order(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A defect of the inner one does not skip the outer one."""
    first, second = Defect("first"), Defect("second")
    work = Effect.never().on_interrupt(lambda _: Effect.die(first)).ensuring(Effect.die(second))

    exit = await interrupt_during(rt, clock, work, by=9)

    assert exit == failed(Interrupt(by=9, reason=None), Die(first), Die(second))


@pytest.mark.spec("FI8", "FI3")
async def test_a_finalizers_defect_keeps_its_place_behind_a_masked_failure_and_the_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The defect rule holds: the failure has become a defect."""
    boom, defect = Boom(), Defect()
    masked = fb.sleep(1).flat_map(lambda _: Effect.fail(boom)).uninterruptible()

    exit = await interrupt_during(rt, clock, masked.ensuring(Effect.die(defect)))

    assert exit == failed(Die(boom), Interrupt(by=77, reason=None), Die(defect))


@pytest.mark.spec("FI10")
async def test_a_timeout_in_a_finalizer_works_while_the_fiber_is_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It runs out, although the finalizer itself cannot be interrupted."""
    seen: list[object] = []
    bounded = Effect.never().timeout_option(1)
    work = Effect.never().ensuring(bounded.map(lambda outcome: seen.append(outcome)))

    exit = await interrupt_during(rt, clock, work)

    assert exit == interrupted(77)
    assert seen == [Nothing]


@pytest.mark.spec("FI10")
async def test_a_sleep_in_a_finalizer_lasts_its_full_time_while_the_fiber_is_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Two seconds asked, two seconds slept."""
    log: list[str] = []
    fiber = rt.run_fork(Effect.never().ensuring(slow(log, "", seconds=2)))

    fiber.interrupt_unsafe(by=77)
    await pass_time(rt, clock, 1.9)
    halfway = list(log)
    await pass_time(rt, clock, 0.2)

    assert halfway == ["start"]
    assert log == ["start", "end"]


@pytest.mark.spec("FI10")
async def test_asyncio_timeout_in_the_finally_of_a_body_works_while_the_fiber_is_interrupted(
    rt: fb.Runtime,
) -> None:
    """An expired one ends what it bounds, with TimeoutError, and the clean-up goes on."""
    log: list[str] = []

    @fb.effect
    async def body() -> None:
        try:
            await Effect.never()
        finally:
            try:
                async with asyncio.timeout(0):
                    await asyncio.Event().wait()
            except TimeoutError:
                log.append("timed out")

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=77)
    exit = await rt.run(fiber.exit())

    assert exit == interrupted(77)
    assert log == ["timed out"]


# ---- acquire_use_release


def resource(
    log: list[str],
    *,
    acquire: Effect[Any, Never] | None = None,
    use: Effect[Any, Boom] | None = None,
) -> Effect[Any, Boom]:
    """Acquire, use and release, each writing a line when it ends: acq, use, rel(<exit>)."""
    return fb.acquire_use_release(
        chain(acquire or Effect.succeed(None), say(log, "acq")),
        lambda _: chain(use or Effect.succeed(None), say(log, "use")),
        lambda _, ended: say(log, f"rel({show(ended)})"),
    )


@pytest.mark.spec("FI11")
async def test_an_interrupt_during_acquire_releases_without_use(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The acquire runs to its end, the interrupt lands before the use."""
    log: list[str] = []
    exit = await interrupt_during(rt, clock, resource(log, acquire=fb.sleep(1)), at=0.5)

    assert exit == interrupted(77)
    assert log == ["acq", "rel(I(77))"]


@pytest.mark.spec("FI11")
async def test_the_acquire_of_a_coroutine_body_is_masked_as_well(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """What it has got is released with the interrupt as exit."""
    log: list[str] = []

    @fb.effect
    async def acquire() -> str:
        await fb.sleep(1)
        log.append("acq")
        return "handle"

    def use(handle: str) -> Effect[None, Boom]:
        return say(log, f"use {handle}")

    def release(handle: str, ended: fb.Exit[None, Boom]) -> Effect[None, Never]:
        return say(log, f"rel {handle} {show(ended)}")

    work = fb.acquire_use_release(acquire(), use, release)
    exit = await interrupt_during(rt, clock, work, at=0.5)

    assert exit == interrupted(77)
    assert log == ["acq", "rel handle I(77)"]


@pytest.mark.spec("FI12")
async def test_an_interrupt_during_use_releases_with_the_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The use is interruptible."""
    log: list[str] = []
    exit = await interrupt_during(rt, clock, resource(log, use=fb.sleep(10)), at=1)

    assert exit == interrupted(77)
    assert log == ["acq", "rel(I(77))"]


@pytest.mark.spec("FI12")
async def test_an_interrupt_waits_for_the_release(rt: fb.Runtime, clock: TestClock) -> None:
    """A second one does not cut it."""
    log: list[str] = []

    def use(_: None) -> Effect[None, Boom]:
        return Effect.never()

    work = fb.acquire_use_release(say(log, "acq"), use, lambda _, __: slow(log, "", 2))
    fiber = rt.run_fork(work)

    fiber.interrupt_unsafe(by=1)
    await pass_time(rt, clock, 1)
    fiber.interrupt_unsafe(by=2)
    await pass_time(rt, clock)

    assert log == ["acq", "start", "end"]
    assert fiber.poll() == interrupted(1, 2)


@pytest.mark.spec("FI12")
async def test_ten_thousand_nested_resources_are_released_when_the_innermost_use_is_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """From the inside out, without a Python stack per level."""
    log: list[int] = []

    def level(n: int, inside: Effect[None, Boom]) -> Effect[None, Boom]:
        release = Effect.sync(lambda: log.append(n))
        return fb.acquire_use_release(Effect.succeed(n), lambda _: inside, lambda _, __: release)

    nest: Effect[None, Boom] = Effect.never()
    for n in range(DEEP):
        nest = level(n, nest)
    exit = await interrupt_during(rt, clock, nest)

    assert exit == interrupted(77)
    assert log == list(range(DEEP))


@pytest.mark.spec("FI13")
async def test_a_masked_use_completes_and_is_released_as_a_success(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The interrupt lands when all three steps are over."""
    log: list[str] = []
    work = resource(log, acquire=fb.sleep(1), use=fb.sleep(1)).uninterruptible()

    exit = await interrupt_during(rt, clock, work, at=0.5)

    assert exit == interrupted(77)
    assert log == ["acq", "use", "rel(ok(None))"]


@pytest.mark.spec("FI14")
async def test_a_release_that_dies_after_a_success_is_the_exit(rt: fb.Runtime) -> None:
    """The value of the use is lost."""
    defect = Defect()

    def use(value: int) -> Effect[int, Boom]:
        return Effect.succeed(value)

    work = fb.acquire_use_release(Effect.succeed(1), use, lambda _, __: Effect.die(defect))

    assert await rt.run_exit(work) == failed(Die(defect))


@pytest.mark.spec("FI14")
async def test_a_release_that_dies_after_a_failed_use_joins_its_failure(rt: fb.Runtime) -> None:
    """By the defect rule: the failure has become a defect."""
    boom, defect = Boom(), Defect()
    work = fb.acquire_use_release(
        Effect.succeed(1), lambda _: Effect.fail(boom), lambda _, __: Effect.die(defect)
    )

    assert await rt.run_exit(work) == failed(Die(boom), Die(defect))


@pytest.mark.spec("FI14")
async def test_a_release_callback_that_raises_joins_the_failure_of_the_use(rt: fb.Runtime) -> None:
    """Raising while building the effect is a defect like any other."""
    boom, defect = Boom(), Defect()
    work = fb.acquire_use_release(Effect.succeed(1), lambda _: Effect.fail(boom), raising(defect))

    assert await rt.run_exit(work) == failed(Die(boom), Die(defect))


@pytest.mark.spec("FI15")
async def test_a_use_callback_that_raises_is_released(rt: fb.Runtime) -> None:
    """It dies, and release is told so."""
    log: list[str] = []
    defect = Defect("use")

    def use(_: None) -> Effect[int, Boom]:
        raise defect

    def release(_: None, ended: fb.Exit[int, Boom]) -> Effect[None, Never]:
        return say(log, f"rel({show(ended)})")

    exit = await rt.run_exit(fb.acquire_use_release(say(log, "acq"), use, release))

    assert exit == failed(Die(defect))
    assert log == ["acq", "rel(Die(use))"]


@pytest.mark.spec("FI15", "FI19")
async def test_release_is_told_the_failure_of_a_body_used(rt: fb.Runtime) -> None:
    """A declared error raised in a coroutine body arrives as that failure."""
    log: list[str] = []

    @fb.effect(raises=Boom)
    async def use() -> None:
        raise Boom("use")

    exit = await rt.run_exit(resource(log, use=use()))

    assert cause_of(exit).has_fails
    assert log == ["acq", "rel(Fail(use))"]


@pytest.mark.spec("FI21")
async def test_a_failed_acquire_neither_uses_nor_releases(rt: fb.Runtime) -> None:
    """There is nothing to release; the failure is the exit."""
    log: list[str] = []
    boom = Boom()
    work = fb.acquire_use_release(
        Effect.fail(boom), lambda _: say(log, "use"), lambda _, __: say(log, "rel")
    )

    exit = await rt.run_exit(work)

    assert exit == failed(Fail(boom))
    assert log == []


@pytest.mark.spec("FI21")
async def test_a_failed_acquire_release_registers_nothing(rt: fb.Runtime) -> None:
    """The same for a resource that belongs to a scope."""
    log: list[str] = []
    boom = Boom()
    scope = fb.Scope()
    work = fb.acquire_release(Effect.fail(boom), lambda _, __: say(log, "rel"))

    exit = await rt.run_exit(scope.use(work))

    assert exit == failed(Fail(boom))
    assert log == []


# ---- acquire_release


def scoped_resource(log: list[str], *, interruptible: bool = False) -> Effect[None, Never]:
    """Acquire for 1 second in a scope of its own, then go on; acq, rel(<exit>), after."""
    acquired = fb.acquire_release(
        chain(fb.sleep(1), say(log, "acq")),
        lambda _, ended: say(log, f"rel({show(ended)})"),
        interruptible=interruptible,
    )
    return fb.scoped(chain(acquired, say(log, "after")))


@pytest.mark.spec("FI17")
async def test_an_interrupt_during_acquire_release_releases_what_was_acquired(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The acquire is masked; the scope then ends with the interrupt."""
    log: list[str] = []
    exit = await interrupt_during(rt, clock, scoped_resource(log), at=0.5)

    assert exit == interrupted(77)
    assert log == ["acq", "rel(I(77))"]


@pytest.mark.spec("FI17")
async def test_an_interruptible_acquire_that_is_interrupted_has_nothing_to_release(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It is cut before it has got anything."""
    log: list[str] = []
    exit = await interrupt_during(rt, clock, scoped_resource(log, interruptible=True), at=0.5)

    assert exit == interrupted(77)
    assert log == []


@pytest.mark.spec("FI17")
async def test_an_interruptible_acquire_that_ends_is_released(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The option changes the acquire only."""
    log: list[str] = []
    fiber = rt.run_fork(scoped_resource(log, interruptible=True))
    await pass_time(rt, clock, 1)

    assert fiber.poll() == Success(None)
    assert log == ["acq", "after", "rel(ok(None))"]


@pytest.mark.spec("FI18")
async def test_a_resource_acquired_in_a_closed_scope_is_released_at_once(rt: fb.Runtime) -> None:
    """With the exit of that close; the value is returned all the same."""
    log: list[str] = []
    scope = fb.Scope()
    await rt.run(scope.close(failed(Fail(Boom("z")))))
    work = fb.acquire_release(
        say(log, "acq").map(lambda _: "v"), lambda _, ended: say(log, f"rel({show(ended)})")
    )

    value = await rt.run(scope.provide(work.tap(lambda _: say(log, "after"))))

    assert value == "v"
    assert log == ["acq", "rel(Fail(z))", "after"]


@pytest.mark.spec("FI19")
async def test_release_gets_the_exit_that_the_scope_is_closed_with(rt: fb.Runtime) -> None:
    """Not the exit of the effect that acquired."""
    log: list[str] = []
    scope = fb.Scope()
    work = fb.acquire_release(Effect.succeed("v"), lambda v, ended: say(log, f"{v} {show(ended)}"))

    await rt.run(scope.provide(work))
    await rt.run(scope.close(failed(Fail(Boom("z")))))

    assert log == ["v Fail(z)"]


# ---- the exit that a finalizer sees

BOOM, DEFECT = Boom("b"), Defect("d")
FOREIGN: Cause[Never] = Cause((Interrupt(by=3, reason=None),))

ENDINGS: dict[str, tuple[Effect[int, Boom], fb.Exit[Any, Any]]] = {
    "success": (Effect.succeed(1), Success(1)),
    "fail": (Effect.fail(BOOM), failed(Fail(BOOM))),
    "die": (Effect.die(DEFECT), failed(Die(DEFECT))),
    "interrupt": (Effect.fail_cause(FOREIGN), interrupted(3)),
}


@pytest.mark.spec("FI20")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_on_exit_sees_the_exit(rt: fb.Runtime, ending: str) -> None:
    """Success, Fail, Die and Interrupt as they are."""
    work, expected = ENDINGS[ending]
    seen: list[object] = []

    exit = await rt.run_exit(work.on_exit(lambda ended: Effect.sync(lambda: seen.append(ended))))

    assert seen == [expected]
    assert exit == expected


@pytest.mark.spec("FI20")
@pytest.mark.parametrize("ending", ENDINGS)
async def test_a_scope_finalizer_sees_the_exit_of_the_scoped_effect(
    rt: fb.Runtime, ending: str
) -> None:
    """The same four for what add_finalizer registers."""
    work, expected = ENDINGS[ending]
    seen: list[object] = []
    added = fb.add_finalizer(lambda ended: Effect.sync(lambda: seen.append(ended)))

    exit = await rt.run_exit(fb.scoped(added.flat_map(lambda _: work)))

    assert seen == [expected]
    assert exit == expected


@pytest.mark.spec("FI20")
async def test_on_exit_sees_an_interrupt_from_outside(rt: fb.Runtime, clock: TestClock) -> None:
    """As the exit of the effect that it ended."""
    seen: list[object] = []
    work = fb.sleep(10).on_exit(lambda ended: Effect.sync(lambda: seen.append(ended)))

    await interrupt_during(rt, clock, work, at=1)

    assert seen == [interrupted(77)]


@pytest.mark.spec("FI20")
@pytest.mark.parametrize("ending", ["fail", "die", "interrupt"])
async def test_on_error_is_called_for_every_kind_of_failure(rt: fb.Runtime, ending: str) -> None:
    """Fail, Die and Interrupt; the exit stays."""
    work, expected = ENDINGS[ending]
    log: list[str] = []

    exit = await rt.run_exit(work.on_error(lambda _: say(log, "on_error")))

    assert log == ["on_error"]
    assert exit == expected


@pytest.mark.spec("FI20")
async def test_on_error_is_not_called_for_a_success(rt: fb.Runtime) -> None:
    """It looks at failures only."""
    log: list[str] = []
    value = await rt.run(Effect.succeed(1).on_error(lambda _: say(log, "on_error")))

    assert value == 1
    assert log == []


@pytest.mark.spec("FI4", "FI3")
async def test_a_finalizer_that_dies_of_the_very_error_adds_nothing(rt: fb.Runtime) -> None:
    """The Fail becomes a Die, and the two are equal."""
    boom = Boom("boom")
    exit = await rt.run(Effect.fail(boom).ensuring(Effect.die(boom)).exit())

    assert exit == failed(Die(boom))
