"""Probes EX: causes and exits as values, handlers by kind of reason, and the edges that run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Cause, CauseError, Die, Effect, Fail, Fiber, Interrupt, Scope, Tag
from tests.probes.kit_d import (
    Boom,
    Defect,
    at_gate,
    cause_of,
    new_gate,
    parked,
    say,
    steps,
    throwing,
)

if TYPE_CHECKING:
    from collections.abc import Callable

EMPTY: Cause[Never] = Cause(())
MODE: Tag[str] = Tag("mode", default="plain")
DATABASE: Tag[str] = Tag("Database")


class Wrapped(Exception):
    """What map_error turns an error into."""


class Unrelated(Exception):
    """A kind of error that no probe here fails with."""


def with_defect(error: Boom, defect: Defect) -> Effect[Never, Boom]:
    """Fail with both reasons at once."""
    return Effect.fail_cause(Cause((Fail(error), Die(defect))))


@fb.effect
async def read_mode() -> str:
    """The service under MODE, as the running fiber sees it."""
    return await MODE


# ---- squash and combine


@pytest.mark.spec("EX1")
def test_squash_prefers_a_fail_to_a_die_and_an_interrupt() -> None:
    """Wherever it stands in the cause."""
    error = Boom()
    cause = Cause((Interrupt(by=5, reason=None), Die(Defect()), Fail(error), Fail(Boom())))

    assert cause.squash() is error


@pytest.mark.spec("EX1")
def test_squash_prefers_a_die_to_an_interrupt() -> None:
    """The first one, where there is no Fail."""
    defect = Defect()
    cause: Cause[Never] = Cause((Interrupt(by=5, reason=None), Die(defect), Die(Defect())))

    assert cause.squash() is defect


@pytest.mark.spec("EX1")
def test_squash_of_interrupts_alone_says_that_it_was_interrupted() -> None:
    """Somebody who reads the message knows that nothing went wrong inside."""
    cause: Cause[Never] = Cause((Interrupt(by=5, reason=None),))

    assert "interrupt" in str(cause.squash()).lower()


@pytest.mark.spec("EX1")
def test_squash_of_the_empty_cause_says_that_it_is_empty() -> None:
    """A message of its own."""
    assert "empty" in str(EMPTY.squash()).lower()


@pytest.mark.spec("EX2")
def test_combine_keeps_the_order_of_both_causes() -> None:
    """The reasons of the left one first."""
    first, second = Boom(), Boom()

    combined = Cause((Fail(first),)).combine(Cause((Fail(second),)))

    assert combined.reasons == (Fail(first), Fail(second))


@pytest.mark.spec("EX2")
def test_combine_drops_a_reason_that_is_there_already() -> None:
    """Equal reasons of any kind."""
    error, defect = Boom(), Defect()
    cause = Cause((Fail(error), Die(defect), Interrupt(by=5, reason=None)))

    assert cause.combine(cause) == cause


@pytest.mark.spec("EX2")
def test_combine_tells_two_error_objects_of_the_same_type_apart() -> None:
    """Unless they are equal by `==`."""
    combined = Cause((Fail(Boom("x")),)).combine(Cause((Fail(Boom("x")),)))

    assert len(combined.reasons) == 2


@pytest.mark.spec("EX2", "PD20")
def test_combine_tells_interrupts_apart_by_interruptor_and_reason() -> None:
    """The same fiber for two reasons counts twice."""
    stop: Cause[Never] = Cause((Interrupt(by=5, reason="stop"),))
    system: Cause[Never] = Cause((Interrupt(by=5, reason="system"),))
    other: Cause[Never] = Cause((Interrupt(by=6, reason="stop"),))

    combined = stop.combine(system).combine(other).combine(stop)

    assert combined.reasons == (
        Interrupt(by=5, reason="stop"),
        Interrupt(by=5, reason="system"),
        Interrupt(by=6, reason="stop"),
    )


@pytest.mark.spec("EX2")
def test_the_empty_cause_is_the_identity_of_combine() -> None:
    """On either side."""
    cause = Cause((Fail(Boom()), Interrupt(by=5, reason=None)))

    assert EMPTY.combine(cause) == cause
    assert cause.combine(EMPTY) == cause


@pytest.mark.spec("EX2")
def test_the_empty_cause_is_not_interrupts_only() -> None:
    """Nothing is not an interrupt."""
    assert not EMPTY.has_interrupts_only
    assert not EMPTY.has_interrupts


@pytest.mark.spec("EX2")
async def test_a_fiber_may_fail_with_the_empty_cause() -> None:
    """Nothing is made of it on its way."""
    assert await fb.run_fork(Effect.fail_cause(EMPTY)).exit() == Failure(EMPTY)


@pytest.mark.spec("EX2")
def test_interrupts_only_means_at_least_one_and_nothing_else() -> None:
    """A Fail or a Die beside it makes it a mixed cause."""
    alone: Cause[Never] = Cause((Interrupt(by=5, reason=None),))
    mixed = Cause((Fail(Boom()), Interrupt(by=5, reason=None)))

    assert alone.has_interrupts_only
    assert mixed.has_interrupts
    assert not mixed.has_interrupts_only


# ---- handlers by kind of reason


@pytest.mark.spec("EX3")
async def test_catch_does_not_recover_from_a_fail_that_stands_beside_a_die() -> None:
    """The handler isn't called; what was expected becomes a defect as well."""
    error, defect = Boom(), Defect()
    caught: list[Boom] = []

    recovering = with_defect(error, defect).catch(lambda e: Effect.sync(lambda: caught.append(e)))
    exit = await recovering.exit()

    assert caught == []
    assert exit == Failure(Cause((Die(error), Die(defect))))


@pytest.mark.spec("EX3")
async def test_catch_defect_recovers_from_a_fail_beside_a_die_with_the_defect() -> None:
    """It is handed the Die's object."""
    error, defect = Boom(), Defect()
    caught: list[BaseException] = []

    recovering = with_defect(error, defect).catch_defect(
        lambda d: Effect.sync(lambda: caught.append(d))
    )
    exit = await recovering.exit()

    assert caught == [defect]
    assert exit == Success(None)


@pytest.mark.spec("EX3")
async def test_map_error_maps_every_fail_of_a_cause() -> None:
    """In order, and other reasons stay as they are."""
    first, second = Boom("first"), Boom("second")
    cause = Cause((Fail(first), Interrupt(by=5, reason=None), Fail(second)))

    exit = await Effect.fail_cause(cause).map_error(lambda e: Wrapped(str(e))).exit()

    mapped = cause_of(exit)
    assert [str(error) for error in mapped.failures] == ["first", "second"]
    assert all(isinstance(error, Wrapped) for error in mapped.failures)
    assert mapped.reasons[1] == Interrupt(by=5, reason=None)


@pytest.mark.spec("EX3")
async def test_map_error_maps_a_fail_that_stands_beside_a_die() -> None:
    """The defect is not touched."""
    defect = Defect()
    wrapped = Wrapped()

    exit = await with_defect(Boom(), defect).map_error(lambda _: wrapped).exit()

    assert exit == Failure(Cause((Fail(wrapped), Die(defect))))


@pytest.mark.spec("EX4")
async def test_a_catch_tag_that_misses_fails_with_the_original() -> None:
    """The same object, the handler not called."""
    error = Boom()
    caught: list[object] = []

    missing = Effect.fail(error).catch_tag(
        Unrelated, lambda e: Effect.sync(lambda: caught.append(e))
    )
    exit = await missing.exit()

    assert caught == []
    assert cause_of(exit).reasons == (Fail(error),)
    assert cause_of(exit).failures[0] is error


@pytest.mark.spec("EX4")
async def test_a_catch_tag_that_hits_is_handed_the_error() -> None:
    """By its class."""
    error = Boom()

    assert await Effect.fail(error).catch_tag(Boom, Effect.succeed) is error


@pytest.mark.spec("EX4")
async def test_catch_leaves_a_die_alone() -> None:
    """Even a defect of the type that is expected elsewhere."""
    caught: list[object] = []
    dying: Effect[Never, Boom] = Effect.die(defect := Boom())

    exit = await dying.catch(lambda e: Effect.sync(lambda: caught.append(e))).exit()

    assert caught == []
    assert exit == Failure(Cause((Die(defect),)))


@pytest.mark.spec("EX4")
async def test_catch_leaves_an_interrupt_alone() -> None:
    """It is not an error."""
    caught: list[object] = []
    interrupted: Effect[Never, Boom] = Effect.interrupt()

    exit = await interrupted.catch(lambda e: Effect.sync(lambda: caught.append(e))).exit()

    assert caught == []
    assert cause_of(exit).has_interrupts_only


@pytest.mark.spec("EX4")
async def test_catch_defect_leaves_an_interrupt_alone() -> None:
    """Nor is it a defect."""
    caught: list[object] = []
    interrupted: Effect[Never, Never] = Effect.interrupt()

    exit = await interrupted.catch_defect(lambda d: Effect.sync(lambda: caught.append(d))).exit()

    assert caught == []
    assert cause_of(exit).has_interrupts_only


@pytest.mark.spec("EX4")
async def test_catch_defect_leaves_a_fail_alone() -> None:
    """What was declared is not a bug."""
    error = Boom()
    caught: list[object] = []

    exit = (
        await Effect.fail(error)
        .catch_defect(lambda d: Effect.sync(lambda: caught.append(d)))
        .exit()
    )

    assert caught == []
    assert exit == Failure(Cause((Fail(error),)))


@pytest.mark.spec("EX5")
async def test_sandbox_shows_the_whole_cause_to_catch() -> None:
    """Defects and interrupts included: the error side is the cause itself or carries it."""
    cause = Cause((Fail(Boom()), Die(Defect()), Interrupt(by=5, reason=None)))

    shown = await (
        Effect.fail_cause(cause)
        .sandbox()
        .catch(lambda caught: Effect.succeed(getattr(caught, "cause", caught)))
    )

    assert shown == cause


@pytest.mark.spec("EX5")
async def test_or_die_turns_a_fail_into_a_die_of_the_same_object() -> None:
    """Nothing is left to expect."""
    error = Boom()

    exit = await Effect.fail(error).or_die().exit()

    assert exit == Failure(Cause((Die(error),)))
    assert cause_of(exit).defects[0] is error


@pytest.mark.spec("EX5")
async def test_ignore_drops_a_failure() -> None:
    """Success without a value."""
    assert await Effect.fail(Boom()).ignore().exit() == Success(None)


@pytest.mark.spec("EX5")
async def test_ignore_lets_a_defect_pass() -> None:
    """A bug is not ignored."""
    defect = Defect()

    assert await Effect.die(defect).ignore().exit() == Failure(Cause((Die(defect),)))


RAISING: dict[str, Callable[[Defect], Effect[Any, Any]]] = {
    "sync": lambda defect: Effect.sync(throwing(defect)),
    "suspend": lambda defect: Effect.suspend(throwing(defect)),
    "map": lambda defect: Effect.succeed(1).map(throwing(defect)),
    "flat_map": lambda defect: Effect.succeed(1).flat_map(throwing(defect)),
    "tap": lambda defect: Effect.succeed(1).tap(throwing(defect)),
    "map_error": lambda defect: Effect.fail(Boom()).map_error(throwing(defect)),
    "catch": lambda defect: Effect.fail(Boom()).catch(throwing(defect)),
    "catch_cause": lambda defect: Effect.fail(Boom()).catch_cause(throwing(defect)),
    "catch_defect": lambda defect: Effect.die(Boom()).catch_defect(throwing(defect)),
}


@pytest.mark.spec("EX6")
@pytest.mark.parametrize("form", list(RAISING))
async def test_an_exception_in_a_callback_is_a_die(form: str) -> None:
    """Of the same object, and of nothing else."""
    defect = Defect(form)

    exit = await RAISING[form](defect).exit()

    assert exit == Failure(Cause((Die(defect),)))
    assert cause_of(exit).defects[0] is defect


@pytest.mark.spec("EX6", "PD4")
async def test_an_undeclared_exception_of_a_body_is_a_die() -> None:
    """`@effect` without raises promises no error at all."""
    defect = Defect("undeclared")

    @fb.effect
    async def body() -> None:
        await Effect.yield_now()
        raise defect

    exit = await body().exit()

    assert exit == Failure(Cause((Die(defect),)))


@pytest.mark.spec("EX6")
async def test_the_rest_of_a_chain_is_skipped_after_an_exception() -> None:
    """As after any failure."""
    log: list[str] = []

    exit = await steps(
        say(log, "before"), Effect.sync(throwing(Defect())), say(log, "not reached")
    ).exit()

    assert log == ["before"]
    assert cause_of(exit).has_dies


# ---- text


@pytest.mark.spec("EX7")
def test_pretty_has_a_block_for_each_fail_and_die_in_order() -> None:
    """Type and message of each."""
    cause = Cause((Fail(Boom("one")), Die(Defect("two")), Fail(Boom("three"))))

    text = cause.pretty()
    places = [text.index(part) for part in ("Boom: one", "Defect: two", "Boom: three")]

    assert places == sorted(places)


@pytest.mark.spec("EX7")
def test_pretty_shows_the_traceback_of_an_error() -> None:
    """Down to the function that raised."""

    def where_it_breaks() -> None:
        raise Defect("broken here")

    text = cause_of(fb.run_exit(Effect.sync(where_it_breaks))).pretty()

    assert "where_it_breaks" in text
    assert "broken here" in text


@pytest.mark.spec("EX7")
def test_pretty_shows_the_notes_of_an_error() -> None:
    """Each note that was added."""
    error = Boom("one")
    error.add_note("first note")
    error.add_note("second note")

    text = Cause((Fail(error),)).pretty()

    assert "first note" in text
    assert "second note" in text


@pytest.mark.spec("EX7")
def test_pretty_names_all_interruptors_and_reasons_in_one_block() -> None:
    """No error stands between two interrupts."""
    cause = Cause(
        (
            Interrupt(by=1001, reason="user pressed stop"),
            Fail(Boom("between")),
            Interrupt(by=1002, reason="system going down"),
        )
    )

    text = cause.pretty()
    block = [text.index(part) for part in ("1001", "user pressed", "1002", "system going")]

    assert not min(block) < text.index("between") < max(block)


@pytest.mark.spec("EX7")
def test_pretty_of_interrupts_alone_names_a_reason_without_an_interruptor() -> None:
    """A signal or a cancelled task has no fiber to name."""
    cause: Cause[Never] = Cause((Interrupt(by=None, reason="task.cancel"),))

    assert "task.cancel" in cause.pretty()


@pytest.mark.spec("EX7")
def test_pretty_of_the_empty_cause_is_empty() -> None:
    """Nothing to tell."""
    assert EMPTY.pretty() == ""


@pytest.mark.spec("EX7")
@pytest.mark.parametrize(
    "value",
    [
        Fail(Boom("first line\nsecond line")),
        Die(Defect("first line\nsecond line")),
        Interrupt(by=5, reason="first line\nsecond line"),
        Cause((Fail(Boom("first line\nsecond line")), Die(Defect("again\nand again")))),
        Failure(Cause((Die(Defect("first line\nsecond line")),))),
    ],
    ids=["Fail", "Die", "Interrupt", "Cause", "Exit"],
)
def test_str_is_one_line_whatever_the_error_says(value: object) -> None:
    """Fit for a log line; an error's own line breaks don't come through."""
    text = str(value)

    assert text.splitlines() == [text]
    assert "first line" in text


@pytest.mark.spec("EX7")
def test_str_is_short_whatever_the_error_says() -> None:
    """A message of ten thousand characters does not fill the log."""
    cause = Cause((Fail(Boom("long " * 2_000)),))

    assert len(str(cause)) < 500
    assert len(str(cause.reasons[0])) < 500


# ---- run


@pytest.mark.spec("EX8")
def test_run_raises_the_very_object_of_the_first_fail() -> None:
    """Unwrapped, also when a defect stands before it."""
    error = Boom("expected")
    cause = Cause((Die(Defect()), Fail(error), Fail(Boom("later"))))

    with pytest.raises(Boom) as caught:
        fb.run(Effect.fail_cause(cause))

    assert caught.value is error


@pytest.mark.spec("EX8")
def test_run_raises_the_very_object_of_the_first_die_where_nothing_failed() -> None:
    """Interrupts don't matter beside it."""
    defect = Defect("bug")
    cause: Cause[Never] = Cause((Interrupt(by=5, reason=None), Die(defect), Die(Defect())))

    with pytest.raises(Defect) as caught:
        fb.run(Effect.fail_cause(cause))

    assert caught.value is defect


@pytest.mark.spec("EX8")
def test_run_of_a_body_raises_the_object_that_the_body_raised() -> None:
    """Declared or not, before or after a suspension."""
    error = Boom("raised")

    @fb.effect(raises=Boom)
    async def body() -> None:
        await Effect.yield_now()
        raise error

    with pytest.raises(Boom) as caught:
        fb.run(body())

    assert caught.value is error


@pytest.mark.spec("EX8", "PD5")
def test_run_keeps_the_other_reasons_in_notes() -> None:
    """One object is raised; the rest is not lost, and nothing becomes a group."""
    cause = Cause((Fail(Boom("raised")), Die(Defect("beside it"))))

    with pytest.raises(Boom) as caught:
        fb.run(Effect.fail_cause(cause))

    assert any("beside it" in note for note in caught.value.__notes__)


@pytest.mark.spec("EX8")
def test_an_interrupted_run_raises_fiber_interrupted_with_the_cause() -> None:
    """Not CancelledError: nobody cancelled the caller."""
    cause: Cause[Never] = Cause((Interrupt(by=5, reason="stop"),))

    with pytest.raises(fb.FiberInterrupted) as caught:
        fb.run(Effect.fail_cause(cause))

    assert caught.value.cause == cause


@pytest.mark.spec("EX8")
async def test_a_runtime_raises_as_run_does(rt: fb.Runtime) -> None:
    """The very error; FiberInterrupted for an interrupt."""
    error = Boom("expected")

    with pytest.raises(Boom) as failed:
        await rt.run(Effect.fail(error))
    with pytest.raises(fb.FiberInterrupted) as interrupted:
        await rt.run(Effect.interrupt())

    assert failed.value is error
    assert interrupted.value.cause.has_interrupts_only


@pytest.mark.spec("EX8")
def test_run_exit_gives_the_exit_of_a_failure_that_run_would_raise() -> None:
    """It does not raise; the error in it is the very object."""
    error = Boom("expected")

    exit = fb.run_exit(Effect.yield_now().flat_map(lambda _: Effect.fail(error)))

    assert exit == Failure(Cause((Fail(error),)))
    assert cause_of(exit).failures[0] is error


# ---- run_sync


@pytest.mark.spec("EX9")
def test_run_sync_raises_the_raw_error() -> None:
    """The very object, without a wrapper."""
    error = Boom("raw")

    with pytest.raises(Boom) as caught:
        fb.run_sync(Effect.fail(error))

    assert caught.value is error


@pytest.mark.spec("EX9")
async def test_run_sync_inside_a_running_loop_raises_the_raw_defect() -> None:
    """A defect as well."""
    defect = Defect("raw")

    with pytest.raises(Defect) as caught:
        fb.run_sync(Effect.sync(throwing(defect)))

    assert caught.value is defect


@pytest.mark.spec("EX9")
async def test_run_sync_of_an_effect_that_suspends_carries_the_running_fiber() -> None:
    """The fiber goes on in the loop and can be awaited."""
    gate = new_gate()

    with pytest.raises(fb.AsyncFiberError) as caught:
        fb.run_sync(at_gate(gate).map(lambda n: n + 1))
    fiber: Fiber[Any, Any] | None = caught.value.fiber
    assert fiber is not None
    after_the_error = fiber.poll()
    gate.set_result(6)

    assert after_the_error is None
    assert await fiber == 7


@pytest.mark.spec("EX9", "PD15")
def test_run_sync_without_a_loop_raises_for_an_effect_that_suspends() -> None:
    """It does not start a loop to wait in."""
    with pytest.raises(fb.AsyncFiberError):
        fb.run_sync(Effect.never())


@pytest.mark.spec("EX9", "PD15")
def test_run_sync_without_a_loop_allows_yield_now() -> None:
    """Its own queue is drained as long as something of it is ready."""
    assert fb.run_sync(Effect.yield_now().map(lambda _: 7)) == 7


@pytest.mark.spec("EX9", "PD15")
async def test_run_sync_inside_a_running_loop_allows_yield_now() -> None:
    """In a body, too."""

    @fb.effect
    async def body() -> int:
        await Effect.yield_now()
        return 7

    assert fb.run_sync(body()) == 7


@pytest.mark.spec("EX9", "PD15")
def test_run_sync_runs_the_children_that_its_effect_waits_for() -> None:
    """A deferred child that is ready is part of what it drains."""
    joining = Effect.succeed(7).fork_child().flat_map(lambda child: child.join())

    assert fb.run_sync(joining) == 7


@pytest.mark.spec("EX9", "WI1", "WI4")
@pytest.mark.parametrize("start_immediately", [False, True], ids=["unstarted", "suspended"])
async def test_run_sync_can_interrupt_a_fiber_of_the_running_loop(
    start_immediately: bool,
) -> None:
    """An interrupt without an asynchronous finalizer has nothing to wait for."""
    scope = Scope()
    fiber: Fiber[None, Never] = scope.fork(Effect.never(), start_immediately=start_immediately)

    fb.run_sync(fiber.interrupt(by=5))

    assert fiber.poll() == Failure(Cause((Interrupt(by=5, reason=None),)))


@pytest.mark.spec("EX9", "SO1")
async def test_run_sync_can_close_a_scope_whose_finalizers_are_synchronous() -> None:
    """A close from a synchronous callback, for instance."""
    log: list[str] = []
    scope = Scope()
    fb.run_sync(scope.add_finalizer(lambda _: say(log, "finalizer")))
    scope.fork(parked(say(log, "fiber")), start_immediately=True)

    fb.run_sync(scope.close())

    assert log == ["fiber", "finalizer"]
    assert scope.state == "closed"


# ---- services


@pytest.mark.spec("EX13")
def test_a_missing_service_is_a_die_that_names_the_tag() -> None:
    """Not an error that somebody could expect."""

    @fb.effect
    async def body() -> str:
        return await DATABASE

    cause = cause_of(fb.run_exit(body()))

    assert not cause.has_fails
    assert "Database" in str(cause.defects[0])


@pytest.mark.spec("EX13")
def test_run_raises_the_defect_of_a_missing_service() -> None:
    """The message that a person sees names the tag."""

    @fb.effect
    async def body() -> str:
        return await DATABASE

    with pytest.raises(Exception, match="Database"):
        fb.run(body())


GOING_WRONG: dict[str, Effect[Any, Any]] = {
    "failure": Effect.fail(Boom()),
    "defect": Effect.die(Defect()),
    "interrupt": Effect.interrupt(),
}


@pytest.mark.spec("EX14")
@pytest.mark.parametrize("kind", list(GOING_WRONG))
async def test_the_outer_service_is_back_after_the_inner_one_ended_badly(kind: str) -> None:
    """Whatever the provided part ended with."""
    inner = GOING_WRONG[kind].provide_service(MODE, "inner").exit()
    outer = inner.flat_map(lambda _: read_mode()).provide_service(MODE, "outer")

    assert await outer == "outer"


@pytest.mark.spec("EX14")
async def test_a_body_sees_the_outer_service_after_it_caught_an_inner_failure() -> None:
    """Inside the provided part the inner one, after `except` the outer one."""
    seen: list[str] = []

    @fb.effect(raises=Boom)
    async def inner() -> None:
        seen.append(await MODE)
        raise Boom

    @fb.effect
    async def outer() -> None:
        seen.append(await MODE)
        try:
            await inner().provide_service(MODE, "inner")
        except Boom:
            seen.append(await MODE)

    await outer().provide_service(MODE, "outer")

    assert seen == ["outer", "inner", "outer"]


@pytest.mark.spec("EX14")
async def test_the_default_is_back_where_there_was_no_outer_service() -> None:
    """A reference falls back to its default after a failure."""
    failing = Effect.fail(Boom()).provide_service(MODE, "inner").exit()

    assert await failing.flat_map(lambda _: read_mode()) == "plain"


# ---- match, sandbox


@pytest.mark.parametrize(
    ("eff", "expected"),
    [
        (Effect.succeed(5), "value 5"),
        (Effect.fail(ValueError("no")), "error no"),
    ],
    ids=["success", "failure"],
)
async def test_match_makes_a_value_of_either_outcome(
    eff: Effect[int, ValueError], expected: str
) -> None:
    """With plain functions."""
    said = await eff.match(
        on_success=lambda value: f"value {value}", on_failure=lambda error: f"error {error}"
    )

    assert said == expected


async def test_match_leaves_a_defect_alone() -> None:
    """It is no outcome that anybody declared."""
    boom = ValueError("defect")
    eff: Effect[int, ValueError] = Effect.die(boom)

    exit = await eff.match(on_success=str, on_failure=str).exit()

    assert cause_of(exit).defects == (boom,)


def test_sandboxed_errors_are_equal_by_their_cause() -> None:
    """As the causes are that they carry; nothing else is equal to one."""
    one, same = CauseError(Cause([Interrupt(7)])), CauseError(Cause([Interrupt(7)]))
    other = CauseError(Cause([Interrupt(8)]))

    assert one == same
    assert hash(one) == hash(same)
    assert one != other
    assert one != Cause([Interrupt(7)])


# ---- exceptions that are hard to handle


class Incomparable(Exception):
    """As of a data class that holds an array."""

    __hash__ = Exception.__hash__

    def __eq__(self, other: object) -> bool:
        raise ValueError("ambiguous")


def test_an_error_that_cannot_be_compared_is_equal_to_itself_only() -> None:
    """Causes are combined and compared all the same."""
    one, other = Incomparable(), Incomparable()

    assert Fail(one) == Fail(one)
    assert Fail(one) != Fail(other)
    assert len(Cause([Fail(one)]).combine(Cause([Fail(other), Fail(one)])).reasons) == 2


class Frozen(Exception):
    """As of a frozen data class."""

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("frozen")


def test_an_error_that_cannot_be_written_to_is_squashed_without_notes() -> None:
    """The very object, whatever else there was to say."""
    frozen = Frozen("no")

    assert Cause([Fail(frozen), Interrupt(7)]).squash() is frozen


def test_a_cause_is_equal_to_causes_only() -> None:
    """Not to the tuple of its reasons."""
    reasons: Any = (Interrupt(7),)

    assert Cause(reasons) != reasons
