"""Probes PD18, PD20 to PD22: refused arguments, reasons, absent values, exits as data."""

from __future__ import annotations

from collections.abc import Awaitable
from datetime import timedelta
from typing import TYPE_CHECKING, Never

import pytest
from returns.maybe import Some
from returns.result import Failure, Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt, Scope
from fibers.app import AppScope, Shutdown
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    failed,
    failing,
    interrupted,
    new_gate,
    note,
    running_fiber,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock


# ---- PD18: arguments that could only hang


@pytest.mark.spec("PD18")
def test_a_race_of_nothing_is_a_value_error() -> None:
    """Each of the four races."""
    for race in (fb.race, fb.race_first):
        with pytest.raises(ValueError):
            race()
    for race_of_list in (fb.race_all, fb.race_all_first):
        with pytest.raises(ValueError):
            race_of_list(iter(()))


@pytest.mark.spec("PD18")
@pytest.mark.parametrize("after", [-1, -0.001, timedelta(seconds=-1)])
def test_a_negative_timeout_is_a_value_error(after: float | timedelta) -> None:
    """Each of the three timeouts, at the call."""
    with pytest.raises(ValueError):
        endless().timeout(after)
    with pytest.raises(ValueError):
        endless().timeout_option(after)
    with pytest.raises(ValueError):
        endless().timeout_or_else(after, endless)


@pytest.mark.spec("PD18")
def test_duplicate_names_of_steps_are_a_value_error() -> None:
    """Found when the shutdown is put together, not when it is needed."""

    async def step() -> None:
        raise AssertionError("no step runs in this test")

    with pytest.raises(ValueError):
        Shutdown(AppScope(), [("flush", step), ("flush", step)], runtime=fb.Runtime())


# ---- PD20: reasons


@pytest.mark.spec("PD20", "IN10")
async def test_equal_interrupts_are_one_reason() -> None:
    """The same interruptor with the same reason, twice."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate).uninterruptible())

    fiber.interrupt_unsafe(by=7, reason="enough")
    fiber.interrupt_unsafe(by=7, reason="enough")
    gate.set_result(1)
    exit = await fiber.exit()

    assert interrupted(by=7, reason="enough") == exit


@pytest.mark.spec("PD20")
async def test_one_interruptor_with_two_reasons_is_two_reasons() -> None:
    """(by, reason) is the key."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate).uninterruptible())

    fiber.interrupt_unsafe(by=7, reason="first")
    fiber.interrupt_unsafe(by=7, reason="second")
    gate.set_result(1)
    exit = await fiber.exit()

    assert failed(Interrupt(by=7, reason="first"), Interrupt(by=7, reason="second")) == exit


@pytest.mark.spec("PD20", "FO12")
async def test_a_scope_close_hands_its_reason_to_every_interrupt() -> None:
    """The interruptor is the fiber that closes."""
    scope = Scope()
    fibers = [scope.fork(endless(), start_immediately=True) for _ in range(2)]

    @fb.effect
    async def closer() -> int:
        await scope.close(reason="maintenance")
        return running_fiber().id

    closed_by = await closer()
    exits = [fiber.poll() for fiber in fibers]

    assert [interrupted(by=closed_by, reason="maintenance")] * 2 == exits


@pytest.mark.spec("PD20")
async def test_a_scope_close_without_a_reason_says_scope_closed() -> None:
    """The reason where nobody gives one."""
    scope = Scope()
    fiber = scope.fork(endless(), start_immediately=True)

    await scope.close()

    (reason,) = cause_of(fiber.poll()).reasons
    assert isinstance(reason, Interrupt)
    assert reason.reason == "scope closed"


@pytest.mark.spec("PD20")
async def test_a_child_scope_hands_on_the_reason_of_the_close() -> None:
    """What sits in the parent's order is closed with the parent's reason."""
    scope = Scope()
    fiber = scope.fork_scope().fork(endless(), start_immediately=True)

    await scope.close(reason="maintenance")

    (reason,) = cause_of(fiber.poll()).reasons
    assert isinstance(reason, Interrupt)
    assert reason.reason == "maintenance"


@pytest.mark.spec("PD20", "SU6")
async def test_supervision_says_parent_ended() -> None:
    """The interruptor is the parent."""
    children = list[fb.Fiber[None, Never]]()

    @fb.effect
    async def parent() -> int:
        children.append(await endless().fork_child(start_immediately=True))
        return running_fiber().id

    parent_id = await parent()

    assert interrupted(by=parent_id, reason="parent ended") == children[0].poll()


@pytest.mark.spec("PD20")
async def test_an_interrupt_hands_on_its_reason() -> None:
    """As an effect; without a reason there is none."""
    fibers = [fb.run_fork(endless()), fb.run_fork(endless())]

    await fibers[0].interrupt(by=7, reason="enough")
    await fibers[1].interrupt(by=7)

    assert interrupted(by=7, reason="enough") == fibers[0].poll()
    assert interrupted(by=7, reason=None) == fibers[1].poll()


# ---- PD21: absent values, durations


@pytest.mark.spec("PD21")
async def test_poll_is_an_exit_or_none() -> None:
    """No Maybe here."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))

    before = fiber.poll()
    gate.set_result(1)
    await fiber

    assert before is None
    assert fiber.poll() == Success(1)


@pytest.mark.spec("PD21")
async def test_an_absent_value_is_a_maybe_elsewhere(rt: fb.Runtime) -> None:
    """So that None can be a value: Some(None) is not Nothing."""
    value: object = await rt.run(Effect.succeed(None).timeout_option(1))

    assert value == Some(None)


@pytest.mark.spec("PD21")
async def test_a_sleep_takes_a_timedelta_or_seconds(clock: TestClock, rt: fb.Runtime) -> None:
    """An int is a number of seconds as well."""
    log = list[str]()

    def sleeper(name: str, duration: timedelta | float) -> Effect[None, Never]:
        return fb.sleep(duration).flat_map(lambda _: note(log, name))

    rt.run_fork(sleeper("timedelta", timedelta(milliseconds=500)))
    rt.run_fork(sleeper("int", 1))
    rt.run_fork(sleeper("float", 1.5))
    await rt.run(clock.adjust(timedelta(seconds=1.5)))

    assert log == ["timedelta", "int", "float"]


# ---- PD22: exits are data


@pytest.mark.spec("PD22")
async def test_an_exit_is_not_awaitable() -> None:
    """It is plain data: one value, or one cause."""
    exits: list[object] = [
        await Effect.succeed(1).exit(),
        await Effect.fail(Boom()).exit(),
    ]

    assert [type(exit) for exit in exits] == [Success, Failure]
    assert [isinstance(exit, Awaitable) for exit in exits] == [False, False]


@pytest.mark.spec("PD22", "FL23")
async def test_from_exit_gives_the_value_or_fails_with_the_cause() -> None:
    """An exit goes back into an effect."""
    boom = Boom()
    failure = failed(Fail(boom), Interrupt(by=7, reason=None))

    exits: list[object] = [
        await Effect.from_exit(Success(1)).exit(),
        await Effect.from_exit(failure).exit(),
    ]

    assert [Success(1), failure] == exits


def flat_mapped(exit: fb.Exit[int, Boom]) -> Effect[int, Boom]:
    """An exit out of flat_map."""
    return Effect.succeed(1).flat_map(lambda _: exit)


def caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch."""
    return failing(Boom()).catch(lambda _: exit)


def tag_caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch_tag."""
    return failing(Boom()).catch_tag(Boom, lambda _: exit)


def if_caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch_if."""
    return failing(Boom()).catch_if(lambda _: True, lambda _: exit)


def cause_caught(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of catch_cause."""
    return failing(Boom()).catch_cause(lambda _: exit)


def defect_caught(exit: fb.Exit[int, Boom]) -> Effect[int, Boom]:
    """An exit out of catch_defect."""
    return Effect.die(Boom()).catch_defect(lambda _: exit)


def timed_out(exit: fb.Exit[int, Boom]) -> Effect[int | None, Boom]:
    """An exit out of timeout_or_else."""
    return endless().timeout_or_else(0, lambda: exit)


EVERY_CALLBACK = pytest.mark.parametrize(
    "through",
    [flat_mapped, caught, tag_caught, if_caught, cause_caught, defect_caught, timed_out],
)


@pytest.mark.spec("PD22")
@EVERY_CALLBACK
async def test_a_callback_may_return_a_success_exit(
    through: Callable[[fb.Exit[int, Boom]], Effect[object, Boom]],
) -> None:
    """Its value is the effect's."""
    assert await through(Success(5)) == 5


@pytest.mark.spec("PD22")
@EVERY_CALLBACK
async def test_a_callback_may_return_a_failed_exit(
    through: Callable[[fb.Exit[int, Boom]], Effect[object, Boom]],
) -> None:
    """Its cause is the effect's."""
    boom = Boom("the exit's")

    exit = await through(failed(Fail(boom))).exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PD22")
async def test_a_finalizer_callback_may_return_an_exit() -> None:
    """A success changes nothing, a failure counts like one of the finalizer."""
    boom = Boom()
    done: fb.Exit[None, Never] = Success(None)
    broken: fb.Exit[None, Never] = failed(Die(boom))

    exits: list[object] = [
        await Effect.succeed(5).on_exit(lambda _: done).exit(),
        await Effect.succeed(5).on_exit(lambda _: broken).exit(),
        await Effect.interrupt().on_interrupt(lambda _: done).exit(),
    ]

    assert exits[:2] == [Success(5), failed(Die(boom))]
    assert isinstance(exits[2], Failure)


@pytest.mark.spec("PD22")
async def test_effects_and_fibers_are_hashable() -> None:
    """Each is itself and no other."""
    effects = [Effect.succeed(1), Effect.sync(lambda: 1), endless()]
    fibers = [fb.run_fork(Effect.succeed(1)), fb.run_fork(Effect.succeed(1))]

    assert len(set[object](effects)) == 3
    assert len(set[object](fibers)) == 2


@pytest.mark.spec("PD22")
def test_equal_exits_have_equal_hashes() -> None:
    """Successes by their value, failures by their cause."""
    boom = Boom()
    pairs: list[tuple[object, object]] = [
        (Success(1), Success(1)),
        (failed(Fail(boom)), failed(Fail(boom))),
        (failed(Die(boom)), failed(Die(boom))),
        (interrupted(by=7, reason="enough"), interrupted(by=7, reason="enough")),
    ]

    assert [one == other for one, other in pairs] == [True] * 4
    assert [hash(one) == hash(other) for one, other in pairs] == [True] * 4


@pytest.mark.spec("PD22")
def test_an_exit_of_something_unhashable_is_unhashable() -> None:
    """Hashable where the content is."""
    with pytest.raises(TypeError):
        hash(Success([1]))
