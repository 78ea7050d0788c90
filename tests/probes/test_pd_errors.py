"""Probes PD4, PD5: which error is a Fail, which a Die, and what is raised in the end."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail
from tests.probes.kit_f import Boom, cause_of, failed, failing, new_gate, turns

if TYPE_CHECKING:
    from collections.abc import Callable


class SmallBoom(Boom):
    """A subclass of a declared error."""


class Other(Exception):
    """A second, unrelated error."""


def raising(error: Boom) -> Effect[None, Boom]:
    """A body that declares Boom and raises `error`."""

    @fb.effect(raises=Boom)
    async def body() -> None:
        raise error

    return body()


def depth(error: BaseException) -> int:
    """Entries in the traceback of an exception."""
    return len(traceback.extract_tb(error.__traceback__))


def notes(error: BaseException) -> list[str]:
    """The notes on an exception."""
    return list(getattr(error, "__notes__", []))


# ---- PD4: what is a Fail


@pytest.mark.spec("PD4")
async def test_a_declared_error_is_a_fail_of_the_same_object() -> None:
    """Its type stands in raises=."""
    boom = Boom()

    exit = await raising(boom).exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PD4")
async def test_a_subclass_of_a_declared_error_is_a_fail() -> None:
    """Whoever catches the declared class catches it."""
    small = SmallBoom()

    exit = await raising(small).exit()

    assert failed(Fail(small)) == exit


@pytest.mark.spec("PD4")
async def test_each_type_of_a_tuple_is_declared() -> None:
    """raises= takes a tuple of classes."""
    boom, other = Boom(), Other()

    @fb.effect(raises=(Boom, Other))
    async def body(error: Exception) -> None:
        raise error

    exits = [await body(boom).exit(), await body(other).exit()]

    assert [failed(Fail(boom)), failed(Fail(other))] == exits


@pytest.mark.spec("PD4")
async def test_a_declared_error_raised_by_called_code_is_a_fail() -> None:
    """Whoever created it: a library function that the body calls."""
    boom = Boom()

    def library() -> None:
        raise boom

    @fb.effect(raises=Boom)
    async def body() -> None:
        library()

    exit = await body().exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PD4")
async def test_a_declared_error_of_an_awaited_future_is_a_fail() -> None:
    """Whoever created it: what asyncio delivers."""
    gate, boom = new_gate(), Boom()

    @fb.effect(raises=Boom)
    async def body() -> int:
        return await gate

    fiber = fb.run_fork(body())
    gate.set_exception(boom)
    exit = await fiber.exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PD4")
async def test_a_fail_of_an_awaited_effect_stays_a_fail_where_it_is_declared() -> None:
    """It passes through the body that names it."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def outer() -> None:
        await raising(boom)

    exit = await outer().exit()

    assert failed(Fail(boom)) == exit
    assert notes(boom) == []


@pytest.mark.spec("PD4")
async def test_an_undeclared_error_is_a_die_of_the_same_object() -> None:
    """raises= names another class."""
    other = Other()

    @fb.effect(raises=Boom)
    async def body() -> None:
        raise other

    exit = await body().exit()

    assert failed(Die(other)) == exit


@pytest.mark.spec("PD4")
async def test_without_raises_every_error_is_a_die() -> None:
    """`@effect` alone is an effect that cannot fail."""
    boom = Boom()

    @fb.effect
    async def body() -> None:
        raise boom

    exit = await body().exit()

    assert failed(Die(boom)) == exit


# ---- PD4: a defect stays a defect


@pytest.mark.spec("PD4")
async def test_what_an_awaited_effect_died_with_stays_a_die_though_its_type_is_declared() -> None:
    """A defect does not become an expected error by passing through a body."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        await Effect.die(boom)

    exit = await body().exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PD4")
async def test_what_a_joined_fiber_died_with_stays_a_die() -> None:
    """The same through a join."""
    boom = Boom()
    target = fb.run_fork(Effect.die(boom))

    @fb.effect(raises=Boom)
    async def body() -> None:
        await target

    exit = await body().exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PD4")
async def test_a_defect_caught_and_raised_again_stays_a_die() -> None:
    """It is the very object."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def body() -> None:
        try:
            await Effect.die(boom)
        except Boom as exc:
            raise exc from None

    exit = await body().exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PD4")
async def test_a_defect_stays_a_die_through_two_bodies_that_declare_its_type() -> None:
    """Each body on the way leaves it what it is."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def inner() -> None:
        await Effect.die(boom)

    @fb.effect(raises=Boom)
    async def outer() -> None:
        await inner()

    exit = await outer().exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PD4")
async def test_another_error_raised_because_of_a_defect_is_a_fail() -> None:
    """The exception is for that very object, not for its type."""
    boom = Boom("declared")

    @fb.effect(raises=Boom)
    async def body() -> None:
        try:
            await Effect.die(Boom("defect"))
        except Boom as exc:
            raise boom from exc

    exit = await body().exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PD4")
async def test_an_instance_that_was_a_defect_elsewhere_is_a_fail_here() -> None:
    """A shared instance: what one fiber died with, another may raise as declared."""
    shared = Boom("shared")
    await Effect.die(shared).exit()

    exit = await raising(shared).exit()

    assert failed(Fail(shared)) == exit


@pytest.mark.spec("PD4")
async def test_a_defect_handled_before_is_forgotten() -> None:
    """Only the defect in flight counts: once caught, the instance may be raised as declared."""
    shared = Boom("shared")

    @fb.effect
    async def handles() -> None:
        try:
            await Effect.die(shared)
        except Boom:
            pass

    @fb.effect(raises=Boom)
    async def outer() -> None:
        await handles()
        await raising(shared)

    exit = await outer().exit()

    assert failed(Fail(shared)) == exit


@pytest.mark.spec("PD4")
async def test_a_defect_recovered_by_catch_defect_is_forgotten() -> None:
    """The same where a combinator handled it."""
    shared = Boom("shared")

    @fb.effect(raises=Boom)
    async def body() -> None:
        await Effect.die(shared).catch_defect(lambda _: Effect.succeed(None))
        raise shared

    exit = await body().exit()

    assert failed(Fail(shared)) == exit


# ---- PD4: an undeclared failure carries a note


@pytest.mark.spec("PD4")
async def test_an_undeclared_fail_of_an_awaited_effect_is_a_die_with_a_note() -> None:
    """The note says who declared it and what to do."""
    boom = Boom()

    @fb.effect(raises=Boom)
    async def load() -> None:
        raise boom

    @fb.effect
    async def outer() -> None:
        await load()

    exit = await outer().exit()

    assert failed(Die(boom)) == exit
    (text,) = notes(boom)
    assert "declared by" in text
    assert "load" in text
    assert "add it to raises= or catch it" in text


@pytest.mark.spec("PD4")
async def test_the_note_is_written_once_on_the_way_through_many_bodies() -> None:
    """Only the first body that does not declare it says so."""
    boom = Boom()

    @fb.effect
    async def outer(levels: int) -> None:
        await (outer(levels - 1) if levels else raising(boom))

    await outer(3).exit()

    assert len(notes(boom)) == 1


@pytest.mark.spec("PD4")
async def test_the_note_is_written_once_on_a_shared_instance() -> None:
    """Runs do not pile up notes."""
    shared = Boom()

    @fb.effect
    async def outer() -> None:
        await raising(shared)

    for _ in range(3):
        await outer().exit()

    assert len(notes(shared)) == 1


@pytest.mark.spec("PD4")
async def test_an_undeclared_error_of_the_body_itself_carries_no_note() -> None:
    """Nobody had declared it."""
    boom = Boom()

    @fb.effect
    async def body() -> None:
        raise boom

    await body().exit()

    assert notes(boom) == []


@pytest.mark.spec("PD4", "PR3")
async def test_a_coroutine_given_to_promise_declares_nothing() -> None:
    """A Fail that it lets through is a Die, with the note."""
    boom = Boom()

    async def work() -> None:
        await raising(boom)

    exit = await Effect.promise(work).exit()

    assert failed(Die(boom)) == exit
    assert len(notes(boom)) == 1


# ---- PD4: nothing is written on the exception


@pytest.mark.spec("PD4")
async def test_the_traceback_of_a_shared_instance_does_not_grow() -> None:
    """It is as deep after twenty runs as after one."""
    shared = Boom()
    await raising(shared).exit()
    once = depth(shared)

    for _ in range(20):
        await raising(shared).exit()

    assert depth(shared) == once


@pytest.mark.spec("PD4")
async def test_the_traceback_of_a_shared_defect_does_not_grow() -> None:
    """The same for an instance that effects die with, awaited in a body."""
    shared = Boom()

    @fb.effect
    async def outer() -> None:
        await Effect.die(shared)

    await outer().exit()
    once = depth(shared)
    for _ in range(20):
        await outer().exit()

    assert depth(shared) == once


@pytest.mark.spec("PD4")
async def test_a_failure_leaves_no_attribute_on_the_exception() -> None:
    """What must be remembered is in the fiber."""
    boom, defect = Boom(), Boom()

    @fb.effect(raises=Boom)
    async def outer() -> None:
        try:
            await Effect.die(defect)
        except Boom:
            await raising(boom)

    await outer().exit()

    assert (vars(boom), vars(defect)) == ({}, {})


@dataclass(frozen=True, eq=False)
class Frozen(Exception):
    """An error that lets nobody assign an attribute."""

    code: int


@pytest.mark.spec("PD4")
async def test_an_exception_that_cannot_be_written_to_fails_as_it_is() -> None:
    """Such as one of a frozen dataclass."""
    frozen = Frozen(3)

    @fb.effect(raises=Frozen)
    async def inner() -> None:
        raise frozen

    @fb.effect(raises=Frozen)
    async def outer() -> None:
        await inner()

    exit = await outer().exit()

    assert failed(Fail(frozen)) == exit


# ---- PD5: what is raised


@pytest.mark.spec("PD5", "VF14")
async def test_awaiting_an_effect_in_a_body_raises_the_very_object() -> None:
    """Unwrapped, at the await."""
    boom = Boom()

    @fb.effect
    async def body() -> bool:
        try:
            await failing(boom)
        except Boom as exc:
            return exc is boom
        return False

    assert await body()


@pytest.mark.spec("PD5", "FL6")
async def test_join_raises_the_very_object() -> None:
    """In a plain task as well."""
    boom = Boom()
    fiber = fb.run_fork(Effect.fail(boom))

    with pytest.raises(Boom) as caught:
        await fiber.join()

    assert caught.value is boom


@pytest.mark.spec("PD5", "EX8")
def test_run_raises_the_very_object_of_a_fail() -> None:
    """Unwrapped."""
    boom = Boom()

    with pytest.raises(Boom) as caught:
        fb.run(Effect.fail(boom))

    assert caught.value is boom


@pytest.mark.spec("PD5", "EX8")
def test_run_raises_the_very_object_of_a_die() -> None:
    """Defects too."""
    boom = Boom()

    with pytest.raises(Boom) as caught:
        fb.run(Effect.die(boom))

    assert caught.value is boom


def several(kind: Callable[[Exception], fb.Fail[Exception] | fb.Die]) -> Effect[None, Exception]:
    """An effect whose cause is Die(Other) and then a reason made of Boom."""
    return Effect.from_exit(failed(Die(Other("an early defect")), kind(Boom("the other"))))


@pytest.mark.spec("PD5")
def test_of_several_reasons_the_first_fail_is_raised() -> None:
    """Before a Die that stands in front of it."""
    with pytest.raises(Boom):
        fb.run(several(Fail))


@pytest.mark.spec("PD5")
def test_without_a_fail_the_first_die_is_raised() -> None:
    """In the order of the cause."""
    with pytest.raises(Other):
        fb.run(several(Die))


@pytest.mark.spec("PD5")
def test_the_other_reasons_stand_in_notes() -> None:
    """So that nothing is lost on the way out."""
    with pytest.raises(Boom) as caught:
        fb.run(several(Fail))

    assert any("an early defect" in text for text in notes(caught.value))


@pytest.mark.spec("PD5", "TR7")
async def test_two_failures_of_a_race_are_one_error_and_a_note() -> None:
    """The first is raised, the second is a note on it."""
    first, second = Boom("the first"), Boom("the second")

    with pytest.raises(Boom) as caught:
        await fb.race(Effect.fail(first), Effect.fail(second))

    assert caught.value is first
    assert any("the second" in text for text in notes(first))


@pytest.mark.spec("PD5", "AT18")
async def test_one_reason_never_becomes_a_group() -> None:
    """Nor does it get a note."""
    boom = Boom()

    with pytest.raises(Boom) as caught:
        await fb.all_([Effect.fail(boom), Effect.never()], concurrency="unbounded")

    assert caught.value is boom
    assert notes(boom) == []


@pytest.mark.spec("PD5", "FL6")
async def test_join_gives_the_value_again_and_again() -> None:
    """Any number of joins, before and after the end."""
    gate = new_gate()

    @fb.effect
    async def body() -> int:
        return await gate

    fiber = fb.run_fork(body())
    early = fb.run_fork(fiber.join())
    await turns()
    gate.set_result(5)

    assert [await early, await fiber.join(), await fiber] == [5, 5, 5]
    assert fiber.poll() == Success(5)


@pytest.mark.spec("PD4")
async def test_an_error_of_a_synchronous_callback_is_a_die_whatever_the_body_declares() -> None:
    """A raising callback is a defect of the effect it belongs to, and stays one."""
    boom = Boom()

    def broken(_: int) -> int:
        raise boom

    @fb.effect(raises=Boom)
    async def body() -> int:
        return await Effect.succeed(1).map(broken)

    exit = await body().exit()

    assert failed(Die(boom)) == exit
    assert cause_of(exit).defects[0] is boom
