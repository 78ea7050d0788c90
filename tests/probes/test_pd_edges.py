"""Probes PD10, PD15, PD19, PD24: contexts, run_sync, signals, the plain calls at the edge."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import AbortController, AbortSignal, Effect, Scope, Tag
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    interruptors,
    new_gate,
    note,
    running_fiber,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fibers.testing import TestClock

LEVELS = 10_000


# ---- PD10: context variables


@pytest.mark.spec("PD10", "SU17")
async def test_a_fork_sees_the_context_variables_of_the_time_of_the_fork() -> None:
    """Not those set between the fork and its start."""
    variable = ContextVar("variable", default="unset")

    @fb.effect
    async def parent() -> str:
        variable.set("at the fork")
        child = await Effect.sync(variable.get).fork_child()
        variable.set("after the fork")
        return await child

    assert await parent() == "at the fork"


@pytest.mark.spec("PD10")
async def test_what_a_fork_sets_is_not_seen_outside() -> None:
    """It runs in a Context of its own."""
    variable = ContextVar("variable", default="unset")

    @fb.effect
    async def child() -> None:
        variable.set("in the child")

    @fb.effect
    async def parent() -> str:
        await (await child().fork_child(start_immediately=True))
        return variable.get()

    assert await parent() == "unset"


@pytest.mark.spec("PD10")
async def test_two_forks_do_not_see_each_others_variables() -> None:
    """Each has its own Context, over suspensions."""
    variable = ContextVar("variable", default="unset")

    @fb.effect
    async def child(value: str) -> str:
        variable.set(value)
        await Effect.yield_now()
        return variable.get()

    work = fb.for_each(["a", "b"], child, concurrency="unbounded")

    assert await work == ["a", "b"]


@pytest.mark.spec("PD10")
async def test_run_fork_takes_a_snapshot_of_the_callers_context() -> None:
    """At the edge as well."""
    variable = ContextVar("variable", default="unset")
    variable.set("at the fork")

    fiber = fb.run_fork(Effect.yield_now().map(lambda _: variable.get()))
    variable.set("after the fork")

    assert await fiber == "at the fork"


@pytest.mark.spec("PD10")
async def test_what_a_run_fork_sets_is_not_seen_by_the_caller() -> None:
    """Though its first segment ran on the caller's stack."""
    variable = ContextVar("variable", default="unset")

    fiber = fb.run_fork(Effect.sync(lambda: variable.set("in the fiber")).map(lambda _: None))

    assert fiber.poll() == Success(None)
    assert variable.get() == "unset"


@pytest.mark.spec("PD10")
async def test_a_finalizer_runs_in_the_context_of_its_fiber() -> None:
    """Not in that of the interruptor, on whose stack it runs."""
    variable = ContextVar("variable", default="unset")
    seen = list[str]()
    setting = Effect.sync(lambda: variable.set("in the fiber")).flat_map(lambda _: endless())

    fiber = fb.run_fork(setting.on_interrupt(lambda _: note(seen, variable.get())))
    fiber.interrupt_unsafe(by=7)

    assert seen == ["in the fiber"]


# ---- PD15: run_sync


@pytest.mark.spec("PD15")
async def test_run_sync_works_in_a_running_loop() -> None:
    """Without a turn of it."""
    assert fb.run_sync(Effect.succeed(5)) == 5


@pytest.mark.spec("PD15")
def test_run_sync_works_without_a_loop() -> None:
    """In a plain function."""
    assert fb.run_sync(Effect.succeed(5)) == 5


@pytest.mark.spec("PD15")
def test_run_sync_starts_no_loop() -> None:
    """None is running inside the effect."""

    def loop_is_running() -> bool:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return False
        return True

    assert fb.run_sync(Effect.sync(loop_is_running)) is False


@pytest.mark.spec("PD15")
def test_run_sync_runs_a_coroutine_body() -> None:
    """As long as nothing in it has to wait."""

    @fb.effect
    async def body() -> int:
        return await Effect.succeed(1) + await Effect.sync(lambda: 2)

    assert fb.run_sync(body()) == 3


@pytest.mark.spec("PD15")
def test_run_sync_drains_its_own_queue() -> None:
    """A fork that starts later and a join of it are fine."""

    @fb.effect
    async def body() -> int:
        child = await Effect.succeed(5).fork_child()
        return await child

    assert fb.run_sync(body()) == 5


@pytest.mark.spec("PD15")
async def test_run_sync_in_a_loop_does_not_drain_the_loops_queue() -> None:
    """Its own queue only: fibers that wait for the loop's turn go on waiting."""
    log = list[str]()
    other = fb.run_fork(Effect.yield_now().flat_map(lambda _: note(log, "other")))

    fb.run_sync(Effect.yield_now().flat_map(lambda _: note(log, "run_sync")))
    log.append("returned")
    await other

    assert log == ["run_sync", "returned", "other"]


@pytest.mark.spec("PD15", "EX9")
async def test_run_sync_of_an_effect_that_suspends_raises_async_fiber_error() -> None:
    """The error carries the fiber."""
    gate = new_gate()

    with pytest.raises(fb.AsyncFiberError) as caught:
        fb.run_sync(wait_for(gate))

    fiber = caught.value.fiber
    assert fiber is not None
    assert fiber.poll() is None
    gate.set_result(1)
    await fiber


@pytest.mark.spec("PD15")
async def test_the_fiber_of_an_async_fiber_error_is_left_running() -> None:
    """Where there is a loop it comes to its end."""
    gate = new_gate()

    with pytest.raises(fb.AsyncFiberError) as caught:
        fb.run_sync(wait_for(gate).map(lambda value: value + 1))
    gate.set_result(1)

    assert caught.value.fiber is not None
    assert await caught.value.fiber == 2


@pytest.mark.spec("PD15")
def test_run_sync_without_a_loop_of_an_effect_that_suspends_raises() -> None:
    """There is nobody to resume it."""
    with pytest.raises(fb.AsyncFiberError):
        fb.run_sync(Effect.never())


@pytest.mark.spec("PD15", "EX9")
def test_run_sync_allows_yields_without_a_loop() -> None:
    """The fiber is ready again: the queue goes on."""
    assert fb.run_sync(Effect.yield_now().map(lambda _: 5)) == 5


@pytest.mark.spec("PD15", "EX9")
async def test_run_sync_allows_yields_in_a_loop() -> None:
    """The loop gets no turn for them."""
    log = list[str]()
    asyncio.get_running_loop().call_soon(log.append, "loop")

    fb.run_sync(Effect.yield_now().flat_map(lambda _: note(log, "fiber")))
    await turns()

    assert log == ["fiber", "loop"]


@pytest.mark.spec("PD15", "WI9")
def test_run_sync_is_not_stopped_by_the_op_budget() -> None:
    """More primitives than one budget holds."""
    values = fb.run_sync(fb.for_each(range(LEVELS), lambda item: Effect.sync(lambda: item)))

    assert values == list(range(LEVELS))


@pytest.mark.spec("PD15")
def test_run_sync_raises_the_very_object() -> None:
    """Like run."""
    boom = Boom()

    with pytest.raises(Boom) as caught:
        fb.run_sync(Effect.fail(boom))

    assert caught.value is boom


# ---- PD19: signals


@pytest.mark.spec("PD19")
async def test_a_thunk_gets_no_signal_unless_asked_for() -> None:
    """Its parameters are not looked at."""
    seen = list[object]()

    async def thunk(signal: AbortSignal | None = None) -> None:
        seen.append(signal)

    await Effect.promise(thunk)

    assert seen == [None]


@pytest.mark.spec("PD19")
async def test_a_thunk_gets_its_signal_by_position() -> None:
    """With signal=True, whatever the parameter is called."""
    seen = list[object]()

    async def thunk(*arguments: object) -> None:
        seen.extend(arguments)

    await Effect.promise(thunk, signal=True)

    assert [type(argument) for argument in seen] == [AbortSignal]


@pytest.mark.spec("PD19")
async def test_with_an_aborted_signal_the_first_synchronous_part_runs() -> None:
    """Then the interrupt lands, at the first suspension."""
    log, controller = list[str](), AbortController()
    controller.abort()

    @fb.effect
    async def body() -> None:
        log.append("first part")
        try:
            await endless()
        finally:
            log.append("finally")

    fiber = fb.run_fork(body(), signal=controller.signal)
    exit = await fiber.exit()

    assert log == ["first part", "finally"]
    assert interruptors(exit) == [None]


@pytest.mark.spec("PD19")
async def test_a_signal_that_aborts_interrupts_the_fiber() -> None:
    """by=None: no fiber asked for it."""
    controller = AbortController()
    fiber = fb.run_fork(endless(), signal=controller.signal)

    before = fiber.poll()
    controller.abort()
    exit = await fiber.exit()

    assert before is None
    assert interruptors(exit) == [None]


@pytest.mark.spec("PD19")
async def test_a_signal_that_aborts_after_the_end_changes_nothing() -> None:
    """The exit stands."""
    controller = AbortController()
    fiber = fb.run_fork(Effect.succeed(5), signal=controller.signal)

    controller.abort()

    assert fiber.poll() == Success(5)


@pytest.mark.spec("PD19", "PR4")
async def test_the_signal_of_a_promise_is_its_own() -> None:
    """Each run of the effect has a signal of its own."""
    signals = list[AbortSignal]()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signals.append(signal)
        gate = new_gate()
        gate.set_result(1)
        return gate

    work = Effect.promise(thunk, signal=True)
    await work
    await work

    assert len(signals) == 2
    assert signals[0] is not signals[1]


# ---- PD24: plain forks inside a fiber


Name = Tag[str]("Name")


@fb.effect
async def read_name() -> str:
    """The service, as the running fiber has it."""
    return await Name


@pytest.mark.spec("PD24")
async def test_a_plain_scope_fork_takes_the_clock_of_the_calling_fiber(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A sleep of a minute passes in virtual time."""
    scope = Scope()

    fiber = await rt.run(Effect.sync(lambda: scope.fork(fb.sleep(60).map(lambda _: 5))))
    await rt.run(clock.adjust(60))

    assert fiber.poll() == Success(5)


@pytest.mark.spec("PD24")
async def test_a_plain_run_fork_takes_the_clock_of_the_calling_fiber(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The same for run_fork."""
    fiber = await rt.run(Effect.sync(lambda: fb.run_fork(fb.sleep(60).map(lambda _: 5))))
    await rt.run(clock.adjust(60))

    assert fiber.poll() == Success(5)


@pytest.mark.spec("PD24")
async def test_a_plain_fork_takes_the_services_of_the_calling_fiber() -> None:
    """What is provided there is provided here."""
    scope = Scope()

    @fb.effect
    async def caller() -> list[str]:
        forks = [scope.fork(read_name()), fb.run_fork(read_name())]
        return [await fork for fork in forks]

    assert await caller().provide_service(Name, "Ada") == ["Ada", "Ada"]


@pytest.mark.spec("PD24", "PD10")
async def test_a_plain_fork_takes_the_context_of_the_calling_fiber() -> None:
    """Context variables too."""
    variable, scope = ContextVar("variable", default="unset"), Scope()

    @fb.effect
    async def caller() -> str:
        variable.set("set by the caller")
        return await scope.fork(Effect.sync(variable.get))

    assert await caller() == "set by the caller"


@pytest.mark.spec("PD24")
async def test_a_plain_fork_outside_a_fiber_takes_the_live_clock() -> None:
    """The default runtime's: a sleep of 0 s needs nobody to move the time."""
    scope = Scope()

    slept = fb.sleep(0).map(lambda _: 5)
    fibers = [scope.fork(slept), fb.run_fork(slept)]

    assert [await fiber for fiber in fibers] == [5, 5]


@pytest.mark.spec("PD24", "EX13")
async def test_a_plain_fork_outside_a_fiber_has_no_services() -> None:
    """It dies, and the defect names what is missing."""
    exit = await fb.run_fork(read_name()).exit()

    (defect,) = cause_of(exit).defects
    assert "Name" in str(defect)


@pytest.mark.spec("PD24")
async def test_a_plain_fork_is_no_child_of_the_calling_fiber() -> None:
    """It belongs to the scope: the caller's end does not touch it."""
    scope, gate = Scope(), new_gate()
    running = list[int]()

    @fb.effect
    async def caller() -> fb.Fiber[int, Never]:
        running.append(running_fiber().id)
        return scope.fork(wait_for(gate))

    fiber = await caller()
    alive = fiber.poll()
    gate.set_result(5)

    assert alive is None
    assert await fiber == 5
    assert fiber.id not in running


async def test_what_run_callback_gives_interrupts_in_somebodys_name() -> None:
    """The argument is the interruptor's id."""
    exits = list[fb.Exit[None, Never]]()

    interrupt = fb.run_callback(endless(), on_exit=exits.append)
    interrupt(7)
    await turns()

    assert [interruptors(exit) for exit in exits] == [[7]]
