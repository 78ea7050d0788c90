"""Probes AT17-AT19: errors keep nothing alive, are no groups, and are not lost in a cleanup."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Failure

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt
from tests.loops import LOOP_KINDS, every_loop, run_on
from tests.probes.kit_f import (
    Boom,
    cause_of,
    collector_off,
    endless,
    failed,
    failing,
    inner_task,
    interrupted,
    new_gate,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

# ---- AT17: cycles


class Local:
    """Something that a body's frame holds."""


async def raises() -> None:
    raise Boom


async def in_a_group() -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(raises())


async def in_a_timeout() -> None:
    async with asyncio.timeout(0):
        await asyncio.get_running_loop().create_future()


async def in_wait_for() -> None:
    await asyncio.wait_for(asyncio.get_running_loop().create_future(), 0)


async def in_gather() -> None:
    await asyncio.gather(raises(), asyncio.sleep(0))


async def in_a_region() -> None:
    with fb.uninterruptible():
        await Effect.yield_now()
        await raises()


async def waits() -> None:
    await asyncio.get_running_loop().create_future()


async def after_a_failure() -> None:
    try:
        await Effect.fail(Boom())
    except Boom:
        await Effect.die(Boom())


FAILING: dict[str, Callable[[], Awaitable[Any]]] = {
    "a raise": raises,
    "a group of asyncio's": in_a_group,
    "a timeout of asyncio's": in_a_timeout,
    "wait_for": in_wait_for,
    "gather": in_gather,
    "a region": in_a_region,
    "an interrupt": waits,
    "an inner cancel": waits,
    "a failure in the handler of another": after_a_failure,
    "an effect": lambda: Effect.fail(Boom()).uninterruptible(),
    "a finalizer": lambda: Effect.fail(Boom()).ensuring(Effect.die(Boom())),
    "a race": lambda: fb.race(Effect.promise(raises), Effect.promise(in_a_timeout)),
}


@pytest.mark.spec("AT17", "PD13")
@pytest.mark.parametrize("how", FAILING)
@every_loop
async def test_the_frames_of_a_failure_go_with_its_exit(how: str) -> None:
    """Only reference counts free anything here: body, fiber, exit and error are no cycle."""
    seen = list[weakref.ref[Any]]()
    tasks = list[asyncio.Task[Any]]()

    async def body() -> None:
        local = Local()
        seen.append(weakref.ref(local))
        tasks.append(inner_task())
        await FAILING[how]()

    async def run() -> None:
        fiber = fb.run_fork(Effect.promise(body))
        seen.append(weakref.ref(fiber))
        await turns(2)
        if how == "an interrupt":
            fiber.interrupt_unsafe()
        elif how == "an inner cancel":
            tasks[0].cancel()
        assert isinstance(await fiber.exit(), Failure)
        # The frame that forked it is under the body's on the stack: from 3.12 on a traceback leads
        # there by f_back. What the runtime's own frames hold they drop.
        del fiber

    with collector_off():
        await fb.run_fork(Effect.promise(run))
        tasks.clear()
        await turns()
        alive = [ref() for ref in seen if ref() is not None]

    assert alive == []


# ---- AT18: one reason is no group


def at_run(eff: Effect[Any, Any]) -> None:
    fb.run(eff)


def at_run_sync(eff: Effect[Any, Any]) -> None:
    fb.run_sync(eff)


def in_a_loop(main: Callable[[Effect[Any, Any]], Awaitable[object]]) -> Callable[..., None]:
    def call(eff: Effect[Any, Any]) -> None:
        async def edge() -> None:
            await main(eff)

        run_on(next(iter(LOOP_KINDS)), edge())

    return call


async def result_of(eff: Effect[Any, Any]) -> None:
    fiber = fb.run_fork(eff)
    await fiber.exit()
    fiber.result()


async def inside_a_body(eff: Effect[Any, Any]) -> None:
    async def body() -> None:
        await eff

    await fb.run_fork(Effect.promise(body))


async def inside_a_scope(eff: Effect[Any, Any]) -> None:
    async with fb.Scope() as scope:
        await scope.fork(eff)


EDGES: dict[str, Callable[[Effect[Any, Any]], None]] = {
    "run": at_run,
    "run_sync": at_run_sync,
    "await in a task": in_a_loop(lambda eff: eff),
    "join": in_a_loop(fb.run_fork),
    "Runtime.run": in_a_loop(lambda eff: fb.Runtime().run(eff)),
    "result()": in_a_loop(result_of),
    "await in a body": in_a_loop(inside_a_body),
    "a scope's block": in_a_loop(inside_a_scope),
    "asyncio.gather": in_a_loop(lambda eff: asyncio.gather(fb.run_fork(eff))),
}

SHAPES: dict[str, Callable[[Effect[Any, Any]], Effect[Any, Any]]] = {
    "alone": lambda eff: eff,
    "in all_": lambda eff: fb.all_([Effect.never(), eff], concurrency=2),
    "in a race": lambda eff: fb.race(eff),
    "joined": lambda eff: eff.fork_child().flat_map(lambda fiber: fiber.join()),
    "under a timeout": lambda eff: eff.timeout(60),
    "in a scope": fb.scoped,
    "a child beside it": lambda eff: Effect.never().fork_child().flat_map(lambda _: eff),
}


@pytest.mark.spec("AT18", "PD5")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("edge", EDGES)
def test_one_reason_comes_out_of_every_edge_as_itself(edge: str, shape: str) -> None:
    """The very object, whatever was around it; no exception group is made for it."""
    boom = Boom()
    if edge == "run_sync" and shape in (
        "in all_",
        "joined",
        "under a timeout",
        "a child beside it",
    ):
        # Nothing here waits for time or for others: run_sync can do it all the same (PD15).
        pass

    with pytest.raises(Boom) as raised:
        EDGES[edge](SHAPES[shape](Effect.fail(boom)))

    assert raised.value is boom


@pytest.mark.spec("AT18", "PD2")
@every_loop
async def test_an_interrupt_through_nested_groups_of_asyncios_is_one_interrupt() -> None:
    """What is thrown is exactly a CancelledError, so that no group wraps it."""

    async def body() -> None:
        async with asyncio.TaskGroup() as outer, asyncio.TaskGroup() as inner:
            outer.create_task(waits())
            inner.create_task(waits())

    fiber = fb.run_fork(Effect.promise(body))
    await turns()
    fiber.interrupt_unsafe()

    assert await fiber.exit() == interrupted(None)


@pytest.mark.spec("AT18")
@every_loop
async def test_a_group_that_a_body_raises_stays_the_group_it_is() -> None:
    """It is neither wrapped nor taken apart."""
    group = ExceptionGroup("made by the body", [Boom()])

    async def body() -> None:
        raise group

    assert await fb.run_fork(Effect.promise(body)).exit() == failed(Die(group))


# ---- AT19: the original error

Cleanup = dict[str, "Callable[[Effect[None, Boom], Effect[Any, Any]], Effect[Any, Any]]"]

# The first effect fails; the second is the cleanup.
CLEANUPS: Cleanup = {
    "ensuring": lambda eff, cleanup: eff.ensuring(cleanup),
    "on_exit": lambda eff, cleanup: eff.on_exit(lambda _: cleanup),
    "on_error": lambda eff, cleanup: eff.on_error(lambda _: cleanup),
    "acquire_use_release": lambda eff, cleanup: fb.acquire_use_release(
        Effect.succeed(None), lambda _: eff, lambda _, exit_: cleanup
    ),
    "scoped": lambda eff, cleanup: fb.scoped(
        fb.add_finalizer(lambda _: cleanup).flat_map(lambda _: eff)
    ),
}


@pytest.mark.spec("AT19", "FI3")
@pytest.mark.parametrize("how", CLEANUPS)
@every_loop
async def test_an_error_is_kept_beside_the_defect_of_its_cleanup(how: str) -> None:
    """First, as a defect too (FI3)."""
    boom, late = Boom("first"), Boom("late")

    exit = await CLEANUPS[how](failing(boom), Effect.die(late)).exit()

    assert exit == failed(Die(boom), Die(late))


@pytest.mark.spec("AT19", "IN7")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("how", CLEANUPS)
@every_loop
async def test_an_error_is_kept_when_its_cleanup_is_interrupted(how: str, ask: str) -> None:
    """The cleanup ends in peace; the interrupt stands behind the error."""
    boom, gate, log = Boom(), new_gate(), list[str]()
    cleanup = Effect.promise(lambda: gate).map(lambda _: log.append("cleaned up"))
    fiber = fb.run_fork(CLEANUPS[how](failing(boom), cleanup))
    getattr(fiber, ask)()
    await turns()
    gate.set_result(1)
    exit = await fiber.exit()

    assert log == ["cleaned up"]
    assert exit == failed(Fail(boom), Interrupt())


@pytest.mark.spec("AT19", "PD3")
@pytest.mark.parametrize("how", CLEANUPS)
@every_loop
async def test_an_error_is_kept_when_a_hole_in_its_cleanup_is_cut(how: str) -> None:
    """The rest of that cleanup is skipped; error and interrupt are both there."""
    boom = Boom()
    fiber = fb.run_fork(CLEANUPS[how](failing(boom), endless().interruptible()))
    await turns()
    fiber.interrupt_unsafe()
    exit = await fiber.exit()

    assert set(cause_of(exit).reasons) == {Fail(boom), Interrupt()}


@pytest.mark.spec("AT19", "PD2")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@every_loop
async def test_an_error_is_the_context_of_an_interrupt_that_cuts_its_finally(ask: str) -> None:
    """In a coroutine the cleanup is the body's own: Python chains the two, and the exit says I."""
    boom, contexts = Boom(), list[BaseException | None]()

    async def body() -> None:
        try:
            raise boom
        finally:
            try:
                await endless()
            except asyncio.CancelledError as exc:
                contexts.append(exc.__context__)
                raise

    fiber = fb.run_fork(Effect.promise(body))
    getattr(fiber, ask)()
    exit = await fiber.exit()

    assert exit == interrupted(None)
    assert contexts == [boom]


@pytest.mark.spec("AT19")
@every_loop
async def test_an_error_in_a_scopes_block_is_the_context_of_a_failing_finalizer() -> None:
    """As with every `async with`: the later one is raised, and shows the first."""
    boom, late = Boom("first"), Boom("late")
    caught = list[BaseException]()

    async def body() -> None:
        try:
            async with fb.Scope() as scope:
                await scope.add_finalizer(lambda _: Effect.die(late))
                raise boom
        except Boom as exc:
            caught.append(exc)

    await fb.run_fork(Effect.promise(body))

    assert caught == [late]
    assert late.__context__ is boom
