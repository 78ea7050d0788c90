"""Probes TF2 to TF11: services that know nothing of fibers, as fibers of a scope."""

from __future__ import annotations

import asyncio
import collections.abc
import contextvars
import gc
import logging
import warnings
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Die, Effect, Interrupt, Scope, Success
from tests.memory import kept_bytes
from tests.probes.kit_hosting import fiber_of, hosted_run, hosting, task_of, turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator


class Boom(Exception):
    """The failure of these probes."""


async def sleeps(log: list[object], name: str, cleanup_turns: int = 1) -> None:
    """Wait for ever; say how it is ended, and clean up with awaits."""
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        log.append(f"{name} cancelled")
        raise
    finally:
        await turns(cleanup_turns)
        log.append(f"{name} cleaned")


async def fails(error: BaseException) -> None:
    """Fail after a turn."""
    await asyncio.sleep(0)
    raise error


@pytest.fixture
def told() -> Generator[list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]]]:
    """What the unhandled-failure hook heard."""
    seen = list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]]()
    fb.set_unhandled_failure_hook(lambda fiber, cause: seen.append((fiber, cause)))
    yield seen
    fb.set_unhandled_failure_hook(None)


# ---- a task is a fiber


@pytest.mark.spec("TF2", "PD11")
async def test_what_create_task_gives_is_the_inner_task_of_its_fiber() -> None:
    """The very object that current_task() gives inside, equal to the fiber by == and hash."""
    seen = list[object]()

    async def body() -> None:
        seen.extend((asyncio.current_task(), fb.current_fiber()))

    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(body())
        await task

    current, fiber = seen
    assert current is task
    assert task == fiber
    assert fiber == task
    assert hash(task) == hash(fiber)
    assert task != object()


@pytest.mark.spec("TF2")
async def test_a_hosted_task_tells_its_context_on_every_python() -> None:
    """As a Task does since 3.12: the one that was given, else a copy of its creator's."""
    variable = contextvars.ContextVar("variable", default="unset")
    given = contextvars.copy_context()
    given.run(variable.set, "given")
    variable.set("creator's")

    async with Scope("parallel") as scope:
        with hosting(scope):
            copied, took = task_of(turns(1)), task_of(turns(1), context=given)
            variable.set("later")

    assert copied.get_context()[variable] == "creator's"
    assert took.get_context() is given


@pytest.mark.spec("TF2")
async def test_no_name_leaves_a_hosted_task_its_own() -> None:
    """3.13.0's create_task names each task that a factory made, also with None."""
    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(turns(1))
            given = task.get_name()
            task.set_name(None)
            kept = task.get_name()
            task.set_name(7)

    assert given.startswith("Task-")
    assert kept == given
    assert task.get_name() == "7"


@pytest.mark.spec("TF2")
async def test_an_effect_awaited_in_a_hosted_task_runs_in_its_fiber() -> None:
    """Not in a fiber of its own, as in a plain task (PD12)."""
    inside = list[object]()

    @fb.effect
    async def looks() -> None:
        inside.append(fb.current_fiber())

    async def body() -> None:
        inside.append(fb.current_fiber())
        await looks()

    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(body())
        await task

    assert inside[0] is inside[1] is not None


@pytest.mark.spec("TF2")
async def test_dump_shows_name_place_and_owner_of_a_hosted_task() -> None:
    """Before its first step too; and not after its end."""

    async def parks() -> None:
        await asyncio.sleep(3600)

    async with Scope("parallel", name="service") as scope:
        with hosting(scope):
            task = asyncio.create_task(parks(), name="worker seven")
        before = fb.dump()
        await turns(2)
        parked = fb.dump()

    for shown in (before, parked):
        assert "worker seven" in shown
        assert "probes/test_task_factory.py" in shown.partition("forked at ")[2].splitlines()[0]
        assert "Scope 'service'" in shown
    assert "parks" in parked
    assert "worker seven" not in fb.dump()
    assert task.cancelled()


@pytest.mark.spec("TF2", "PD24")
async def test_a_task_created_in_a_fiber_has_its_services(rt: fb.Runtime) -> None:
    """As with run_fork: those of the calling fiber."""
    greeting = fb.Tag[str]("greeting", "nobody's")

    async def body() -> str:
        return await greeting

    @fb.effect
    async def creates() -> tuple[str, str]:
        here = await Effect.promise(lambda: task_of(body()))
        return here, await greeting

    async with Scope("parallel") as scope:
        with hosting(scope):
            given = await rt.run(creates().provide_service(greeting, "hello"))
            alone = await task_of(body())

    assert given == ("hello", "hello")
    assert alone == "nobody's"


@pytest.mark.spec("TF2")
def test_the_factory_takes_nothing_but_a_scope() -> None:
    """At the call, with the fix in its words."""
    wrong: Any = asyncio

    with pytest.raises(ValueError, match="takes a Scope"):
        fb.task_factory(scope=wrong)


@pytest.mark.spec("TF2")
async def test_what_is_no_coroutine_is_refused_as_by_a_task() -> None:
    """TypeError at the call."""
    with (
        hosting(Scope("parallel")),
        pytest.raises(TypeError, match="a coroutine was expected, got 42"),
    ):
        task_of(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what is tested


# ---- the scope owns it


@pytest.mark.spec("TF3")
async def test_the_close_of_the_scope_ends_tasks_and_waits_for_their_cleanup() -> None:
    """All of them: what they created, and what awaits inside a finally."""
    log = list[object]()

    async def outer() -> None:
        asyncio.create_task(sleeps(log, "inner", 3))  # noqa: RUF006  # the scope holds it
        await sleeps(log, "outer")

    scope = Scope("parallel")
    with hosting(scope):
        task = task_of(outer())
        await turns(3)
        held = scope.finalizer_count
        await scope.close(reason="enough")

    assert held == 2
    assert scope.finalizer_count == 0
    assert sorted(map(str, log)) == [
        "inner cancelled",
        "inner cleaned",
        "outer cancelled",
        "outer cleaned",
    ]
    assert task.cancelled()
    with pytest.raises(asyncio.CancelledError, match="enough"):
        task.result()


@pytest.mark.spec("TF3", "PD2")
async def test_the_interrupt_of_a_close_counts_and_can_be_told() -> None:
    """interrupt_of() knows it; a timeout around can't take it for its own."""
    seen = list[object]()

    async def body() -> None:
        me: Any = asyncio.current_task()
        try:
            async with asyncio.timeout(3600):
                await asyncio.sleep(3600)
        except asyncio.CancelledError as exc:
            seen.extend((fb.interrupt_of(exc), me.cancelling()))
            raise

    scope = Scope("parallel")
    with hosting(scope):
        task_of(body())
        await turns(2)
        await scope.close(reason="enough")

    why, cancelling = seen
    assert isinstance(why, Interrupt)
    assert why.reason == "enough"
    assert cancelling == 1


@pytest.mark.spec("TF3", "WI4")
async def test_a_task_that_has_not_started_is_closed_without_a_step() -> None:
    """And nobody warns of a coroutine that was never awaited."""
    log = list[object]()
    scope = Scope("parallel")
    with warnings.catch_warnings(record=True) as warned, hosting(scope):
        warnings.simplefilter("always")
        task = task_of(sleeps(log, "never"))
        await scope.close()
        await turns(2)
        gc.collect()

    assert task.cancelled()
    assert log == []
    assert not [w for w in warned if "never awaited" in str(w.message)]


@pytest.mark.spec("TF3", "PD17")
async def test_a_region_in_a_hosted_task_holds_the_close_and_a_cancel_back() -> None:
    """Both land where the region is left; a timeout opened inside works inside."""
    log = list[object]()
    gate = asyncio.get_running_loop().create_future()

    async def body() -> None:
        with fb.uninterruptible():
            try:
                async with asyncio.timeout(0):
                    await asyncio.sleep(3600)
            except TimeoutError:
                log.append("timed out inside")
            log.append(await gate)
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            log.append("landed")
            raise

    scope = Scope("parallel")
    with hosting(scope):
        task = task_of(body())
        await asyncio.sleep(0.01)
        task.cancel("early")
        closing = fb.run_fork(scope.close())
        await turns(3)
        still_open = closing.poll() is None
        gate.set_result("masked part done")
        await closing

    assert still_open
    assert log == ["timed out inside", "masked part done", "landed"]
    assert task.cancelled()


@pytest.mark.spec("TF3", "SO6")
async def test_a_hosted_task_can_close_its_own_scope() -> None:
    """It goes on afterwards; who waits for it is signalled and not awaited."""
    log = list[object]()
    scope = Scope("parallel")

    async def closes() -> None:
        await turns(2)
        await scope.close()
        late = task_of(sleeps(log, "late"))
        log.append("after the close")
        log.append(late.cancelled())

    async def waits(for_whom: Any) -> None:
        try:
            await asyncio.wait([for_whom])  # await and gather would cancel it
        except asyncio.CancelledError:
            log.append("the waiter was told")
            raise

    with hosting(scope):
        closer = task_of(closes())
        task_of(waits(closer))
        other = task_of(sleeps(log, "other"))
        await asyncio.wait([closer])

    assert "after the close" in log
    assert True in log  # to it too the scope is closed
    assert "the waiter was told" in log
    assert "other cleaned" in log
    assert other.cancelled()


@pytest.mark.spec("TF3", "SO6")
async def test_a_hosted_task_that_waits_for_the_closer_through_an_effect_is_not_awaited() -> None:
    """A join inside of it counts, as between fibers; here it can't be cut short."""
    scope = Scope("parallel")
    begin = asyncio.Event()

    @fb.effect
    async def closes() -> None:
        await begin.wait()
        await scope.close()

    closer = fb.run_fork(closes())

    async def waits() -> None:
        with fb.uninterruptible():
            await closer.join()

    async def holds(task: Any) -> None:
        await task

    with hosting(scope):
        holder = task_of(holds(task_of(waits())))
        await turns(3)
        begin.set()
        async with asyncio.timeout(5):
            ended = await closer.exit()
        await asyncio.wait([holder])

    assert ended == Success(None)
    assert scope.finalizer_count == 0


# ---- a closed scope


@pytest.mark.spec("TF4", "FO1")
async def test_in_a_closed_scope_a_task_is_cancelled_on_return() -> None:
    """Nothing of it runs, its coroutine is closed, and the message says why."""
    log = list[object]()
    scope = Scope("parallel")
    await scope.close()
    with warnings.catch_warnings(record=True) as warned, hosting(scope):
        warnings.simplefilter("always")
        coro: Any = sleeps(log, "never")
        task = task_of(coro)
        done_on_return = task.done() and task.cancelled()
        gc.collect()

    assert done_on_return
    assert log == []
    assert coro.cr_frame is None
    assert not [w for w in warned if "never awaited" in str(w.message)]
    with pytest.raises(asyncio.CancelledError, match="scope closed"):
        await task


@pytest.mark.spec("TF4")
async def test_a_cleanup_that_the_close_waits_for_may_create_tasks() -> None:
    """wait_for, gather and what they create: children of who cleans up, so the close waits."""
    log = list[object]()

    async def part(name: str) -> None:
        await turns(3)
        log.append(name)

    async def closes_connections() -> None:
        await asyncio.gather(part("a"), part("b"))

    async def body() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            await asyncio.wait_for(closes_connections(), 5)
            asyncio.create_task(sleeps(log, "left behind"))  # noqa: RUF006  # who cleans up holds it
            await turns(2)
            log.append("cleaned up")

    scope = Scope("parallel")
    with hosting(scope):
        task = task_of(body())
        await turns(2)
        await scope.close()
        log.append("closed")
        late = task_of(sleeps(log, "late"))

    assert log == [
        "a",
        "b",
        "cleaned up",
        "left behind cancelled",
        "left behind cleaned",
        "closed",
    ]
    assert task.cancelled()
    assert late.cancelled()
    assert scope.finalizer_count == 0


@pytest.mark.spec("TF4", "TF7")
async def test_a_cleanup_that_the_close_waits_for_may_start_tasks_eagerly() -> None:
    """As one with ordinary tasks: what has not ended with its first segment is a child."""
    log = list[object]()
    scope = Scope("parallel")
    factory = fb.task_factory(scope=scope)
    loop = asyncio.get_running_loop()

    async def ends_at_once() -> str:
        return "at once"

    async def body() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            log.append(await factory(loop, ends_at_once(), eager_start=True))
            factory(loop, sleeps(log, "left behind"), eager_start=True)
            await turns(2)
            log.append("cleaned up")

    factory(loop, body(), eager_start=True)
    await scope.close()
    log.append("closed")

    assert log == [
        "at once",
        "cleaned up",
        "left behind cancelled",
        "left behind cleaned",
        "closed",
    ]
    assert scope.finalizer_count == 0


@pytest.mark.spec("TF4", "FO1")
async def test_in_a_closed_scope_a_coroutine_of_another_make_is_closed_too() -> None:
    """Anything with send, throw and close, as Cython's: no step of it runs."""
    log = list[str]()

    class Like:
        def send(self, _value: object) -> None:
            log.append("send")

        def throw(self, *_exc: object) -> None:
            log.append("throw")

        def close(self) -> None:
            log.append("close")

        def __await__(self) -> Any:
            return self

    coroutines: Any = collections.abc.Coroutine
    coroutines.register(Like)
    scope = Scope("parallel")
    await scope.close()
    with hosting(scope):
        like: Any = Like()
        task = task_of(like)
        await turns(2)
    cancelled = task.cancelled()
    del task
    gc.collect()

    assert cancelled
    assert set(log) == {"close"}


@pytest.mark.spec("TF4")
async def test_a_dropped_async_generator_is_cleaned_up_after_the_close() -> None:
    """The loop creates a task for it."""
    log = list[str]()

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)
            log.append("generator closed")

    scope = Scope("parallel")
    with hosting(scope):
        generator = numbers()
        await anext(generator)
        await scope.close()
        del generator
        gc.collect()
        await turns(4)

    assert log == ["generator closed"]


@pytest.mark.spec("TF4", "FO1")
async def test_a_group_of_tasks_in_a_closed_scope_ends() -> None:
    """Its tasks are cancelled: nothing hangs and nothing fails."""
    scope = Scope("parallel")
    await scope.close()
    with hosting(scope):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(sleeps([], "x")) for _ in range(3)]
        gathered = await asyncio.gather(*tasks, return_exceptions=True)

    assert all(isinstance(outcome, asyncio.CancelledError) for outcome in gathered)


@pytest.mark.spec("TF4", "FO2")
async def test_an_eager_start_into_a_closed_scope_runs_to_its_first_suspension() -> None:
    """And is interrupted there, before create_task returns."""
    log = list[object]()
    scope = Scope("parallel")
    await scope.close()

    async def body() -> None:
        log.append("started")
        await sleeps(log, "late", 0)

    factory = fb.task_factory(scope=scope)
    task = factory(asyncio.get_running_loop(), body(), eager_start=True)

    assert log == ["started", "late cancelled", "late cleaned"]
    assert task.cancelled()


@pytest.mark.spec("TF4", "FO3")
async def test_an_eager_start_without_suspension_succeeds_in_a_closed_scope() -> None:
    """It has ended before the scope is looked at."""

    async def body() -> int:
        return 7

    scope = Scope("parallel")
    await scope.close()
    task = fb.task_factory(scope=scope)(asyncio.get_running_loop(), body(), eager_start=True)

    assert task.result() == 7


@pytest.mark.spec("TF4")
def test_a_loop_can_be_ended_after_the_scope_was_closed() -> None:
    """asyncio.Runner shuts generators and executor down with tasks of its own."""
    log = list[object]()

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
        finally:
            log.append("generator closed")

    kept = list[object]()

    async def main() -> None:
        async with Scope("parallel") as scope:
            asyncio.get_running_loop().set_task_factory(fb.task_factory(scope=scope))
            generator = numbers()
            kept.append(generator)
            await anext(generator)
            await asyncio.to_thread(lambda: None)

    asyncio.run(main())

    assert log == ["generator closed"]


# ---- a failure nobody handles


@pytest.mark.spec("TF5", "PD8")
async def test_a_failure_is_told_once_when_nobody_kept_the_task(
    told: list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]],
) -> None:
    """At once, with the exception and its traceback."""
    boom = Boom("lost")
    async with Scope("parallel") as scope:
        with hosting(scope):
            task_of(fails(boom))
            await turns(3)
        at_once = len(told)

    assert at_once == len(told) == 1
    fiber, cause = told[0]
    assert cause == fb.Cause([Die(boom)])
    assert "kit_hosting.py" in fiber.forked_at


@pytest.mark.spec("TF5", "PD8")
async def test_a_failure_is_told_when_the_scope_ends_though_the_task_is_kept(
    told: list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]],
) -> None:
    """Whichever is first; and not again when the task goes."""
    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(fails(Boom("kept")))
            await turns(3)
        before = len(told)
    after = len(told)
    del task
    gc.collect()

    assert before == 0
    assert after == len(told) == 1


@pytest.mark.spec("TF5", "PD8")
@pytest.mark.parametrize("how", ["awaited", "result", "exception", "gathered", "cancel"])
async def test_a_failure_that_somebody_retrieved_is_not_told(
    how: str, told: list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]]
) -> None:
    """asyncio's own rule of what counts."""
    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(fails(Boom("seen")))
            if how == "awaited":
                with pytest.raises(Boom):
                    await task
            elif how == "gathered":
                await asyncio.gather(task, return_exceptions=True)
            else:
                await asyncio.wait([task])
                if how == "cancel":
                    assert not task.cancel()
                elif how == "exception":
                    assert isinstance(task.exception(), Boom)
                else:
                    with pytest.raises(Boom):
                        task.result()
            del task

    gc.collect()
    assert told == []


@pytest.mark.spec("TF5", "PD8")
async def test_a_retrieved_failure_is_not_told_when_the_collector_takes_it(
    told: list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]],
) -> None:
    """Whichever of fiber and task it finalizes first."""

    class Linked(Exception):
        task: Any = None

    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(fails(Linked()))
            await asyncio.wait([task])
            error: Any = task.exception()
            error.task = task
            del error, task
            gc.collect()

    assert told == []


@pytest.mark.spec("TF5", "PD8")
async def test_a_failure_in_a_cycle_is_told_once_when_the_collector_takes_it(
    told: list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]],
) -> None:
    """The traceback holds the body's frame, which holds the task: fiber and task go at once."""

    async def body() -> None:
        me = asyncio.current_task()
        await asyncio.sleep(0)
        raise Boom(me)

    async with Scope("parallel") as scope:
        with hosting(scope):
            task_of(body())
            await turns(3)
            gc.collect()
        at_once = len(told)

    assert at_once == len(told) == 1


@pytest.mark.spec("TF5", "PD8")
async def test_a_done_callback_that_does_not_look_leaves_the_failure_unheard(
    told: list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]],
) -> None:
    """As in asyncio: discard() of a set of tasks handles nothing."""
    tasks = set[Any]()
    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(fails(Boom("unheard")))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
            del task
            await turns(4)

    assert not tasks
    assert len(told) == 1


@pytest.mark.spec("TF5")
async def test_the_services_own_exception_handler_hears_of_it_too() -> None:
    """With asyncio's message; without a handler of its own only the hook's record is written."""
    contexts = list[dict[str, Any]]()
    loop = asyncio.get_running_loop()
    boom = Boom("lost")
    loop.set_exception_handler(lambda _loop, context: contexts.append(context))
    try:
        async with Scope("parallel") as scope:
            with hosting(scope):
                task_of(fails(boom))
                await turns(3)
    finally:
        loop.set_exception_handler(None)

    assert [c["message"] for c in contexts] == ["Task exception was never retrieved"]
    assert contexts[0]["exception"] is boom
    assert contexts[0]["future"].done()


@pytest.mark.spec("TF5", "PD8")
async def test_by_default_one_record_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """To "fibers", not to "asyncio" as well."""
    with caplog.at_level(logging.DEBUG):
        async with Scope("parallel") as scope:
            with hosting(scope):
                task_of(fails(Boom("logged")))
                await turns(3)

    records = [r for r in caplog.records if r.levelno >= logging.ERROR]
    assert [r.name for r in records] == ["fibers"]
    assert "Boom(logged)" in records[0].getMessage()


@pytest.mark.spec("TF5")
async def test_a_cancelled_task_is_no_failure(
    told: list[tuple[fb.Fiber[Any, Any], fb.Cause[Any]]],
) -> None:
    """Whoever cancelled what it waited for (in a body of an effect that is a defect: PD6)."""
    gate = asyncio.get_running_loop().create_future()

    async def body() -> None:
        await gate

    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(body())
            await turns(2)
            fiber = fiber_of(task)
            gate.cancel()
            await asyncio.wait([task])

    assert task.cancelled()
    assert fiber.cancelled()
    assert told == []


# ---- the end of the program


@pytest.mark.spec("TF6", "PD7")
@pytest.mark.parametrize("stop", [KeyboardInterrupt(), SystemExit(3)])
def test_keyboard_interrupt_and_system_exit_leave_the_loop_from_the_tasks_step(
    stop: BaseException,
) -> None:
    """Like those of asyncio's tasks: nothing runs in between."""
    loop = asyncio.new_event_loop()
    loop.set_task_factory(fb.task_factory(scope=Scope("parallel")))
    log = list[str]()
    task = loop.create_task(fails(stop))
    # In the turn of the step that raises, right behind it.
    loop.call_soon(lambda: loop.call_soon(log.append, "ran on"))
    try:
        with pytest.raises(type(stop)) as caught:
            loop.run_forever()
    finally:
        left = list(log)
        loop.close()

    assert caught.value is stop
    assert left == []
    assert task.exception() is stop


@pytest.mark.spec("TF6", "PD7")
def test_in_fb_run_a_keyboard_interrupt_of_a_hosted_task_ends_the_root() -> None:
    """Finalizers run, then it is raised once."""
    log = list[object]()
    stop = KeyboardInterrupt()

    @fb.effect
    async def main() -> None:
        async with Scope("parallel") as scope:
            with hosting(scope):
                task_of(fails(stop))
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError as exc:
                    why = fb.interrupt_of(exc)
                    log.append(why and why.reason)
                    raise
                finally:
                    await asyncio.sleep(0)
                    log.append("cleaned")

    with pytest.raises(KeyboardInterrupt) as caught:
        fb.run(main())

    assert caught.value is stop
    assert log == ["KeyboardInterrupt", "cleaned"]


@pytest.mark.spec("TF6", "PD7")
def test_a_system_exit_on_the_stack_of_a_close_leaves_the_loop_too() -> None:
    """The task ends inside somebody else's step: the loop raises it at its next turn."""
    log = list[str]()

    async def stubborn() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            raise SystemExit(3)

    async def main() -> None:
        scope = Scope("parallel")
        with hosting(scope):
            task = task_of(stubborn())
            await turns(2)
            await scope.close()
        # Looked at: else it is told of when it is collected, in some other test.
        assert isinstance(task.exception(), SystemExit)
        log.append("closed")
        await asyncio.sleep(3600)

    with pytest.raises(SystemExit) as caught:
        asyncio.run(main())

    assert caught.value.code == 3
    assert log == ["closed"]


# ---- eager starts


@pytest.mark.spec("TF7")
async def test_an_eager_start_runs_to_the_first_suspension_before_it_returns() -> None:
    """current_task() is the new one inside, and the old one afterwards."""
    seen = list[object]()
    loop = asyncio.get_running_loop()
    outside = asyncio.current_task()

    async def body() -> str:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        return "value"

    async with Scope("parallel") as scope:
        task: Any = fb.task_factory(scope=scope)(loop, body(), eager_start=True, name="eager")
        started = list(seen)
        assert asyncio.current_task() is outside
        value = await task

    assert [current is task for current in started] == [True]
    assert task.get_name() == "eager"
    assert value == "value"


@pytest.mark.spec("TF7")
async def test_an_eager_start_that_is_over_at_once_never_registers() -> None:
    """Done on return; in no list of tasks, in no scope."""

    async def body() -> str:
        return "value"

    async with Scope("parallel") as scope:
        loop = asyncio.get_running_loop()
        task = fb.task_factory(scope=scope)(loop, body(), eager_start=True)
        state = scope.state
        alive = task in asyncio.all_tasks()

    assert task.result() == "value"
    assert task.get_coro() is None
    assert (state, alive) == ("empty", False)


@pytest.mark.spec("TF7")
async def test_eager_starts_inside_each_other_don_t_eat_the_stack() -> None:
    """Beyond the depth at which plain calls stop to nest (PD16), a start waits for its turn."""
    deepest = 0

    async with Scope("parallel") as scope:
        factory = fb.task_factory(scope=scope)
        loop = asyncio.get_running_loop()

        async def body(depth: int) -> None:
            nonlocal deepest
            deepest = max(deepest, depth)
            if depth < 2000:
                await factory(loop, body(depth + 1), eager_start=True)

        await factory(loop, body(0), eager_start=True)

    assert deepest == 2000


@pytest.mark.spec("TF7")
async def test_a_lazy_start_in_a_context_that_is_entered_waits_its_turn() -> None:
    """context= of the code that runs: the task shares it."""
    log = list[object]()

    async def body() -> None:
        log.append("ran")

    async with Scope("parallel") as scope:
        with hosting(scope):
            await task_of(body(), context=contextvars.copy_context())

    assert log == ["ran"]


# ---- nothing is lost and nothing is left


@pytest.mark.spec("TF8", "AT9")
async def test_a_task_that_nobody_keeps_runs_to_its_end() -> None:
    """Its loop and its scope hold it, whatever the collector does."""
    log = list[object]()
    loop = asyncio.get_running_loop()
    futures = weakref.WeakSet[asyncio.Future[None]]()

    def nobody_keeps() -> asyncio.Future[None]:
        future = loop.create_future()
        futures.add(future)
        return future

    async def body() -> None:
        await nobody_keeps()
        log.append("ended")

    async with Scope("parallel") as scope:
        with hosting(scope):
            task_of(body())
            for _ in range(3):
                await turns(1)
                gc.collect()
            for future in futures:
                future.set_result(None)
            await turns(2)

    assert log == ["ended"]


@pytest.mark.spec("TF8", "PD13")
async def test_ended_tasks_leave_nothing_behind() -> None:
    """No entry, no cycle: memory stays flat without the collector, where a task takes 2 KB."""

    async def body() -> None:
        await asyncio.sleep(0)

    async def raises() -> None:
        await asyncio.sleep(0)
        raise Boom  # of a name for it the traceback would make a cycle

    async def fails_and_is_heard() -> None:
        try:
            await task_of(raises())
        except Boom:
            pass

    async def rounds(count: int) -> None:
        for _ in range(count):
            await task_of(body())
            await fails_and_is_heard()

    async with Scope("parallel") as scope:
        with hosting(scope):
            await rounds(200)
            kept = await kept_bytes(lambda: rounds(1_000))
            assert scope.state == "empty"

    # asyncio's own set of tasks keeps some of the references that it has dropped.
    assert kept < 100_000


@pytest.mark.spec("TF8", "PD13")
async def test_an_ended_task_goes_with_its_last_reference() -> None:
    """Fiber, task and what it returned."""

    class Value:
        pass

    async def body() -> Value:
        await asyncio.sleep(0)
        return Value()

    async with Scope("parallel") as scope:
        with hosting(scope):
            gc.disable()
            try:
                task = task_of(body())
                fiber = weakref.ref(fiber_of(task))
                value = weakref.ref(await task)
                held = weakref.ref(task)
                del task
                await turns(1)  # the step that the task's end woke is over
                gone = (held() is None, fiber() is None, value() is None)
            finally:
                gc.enable()

    assert gone == (True, True, True)


@pytest.mark.spec("TF8", "PD13")
async def test_a_cancel_that_was_thrown_is_the_bodys_alone() -> None:
    """Nothing in the fiber refers to the exception any more: its traceback holds frames."""
    held = list[str]()

    async def body() -> None:
        try:
            await turns(9)  # not at a future, which would raise it itself
        except asyncio.CancelledError as exc:
            held.extend(type(by).__name__ for by in gc.get_referrers(exc))

    async with Scope("parallel") as scope:
        with hosting(scope):
            task = task_of(body())
            await turns(2)
            task.cancel()
            await task

    assert set(held) <= {"frame", "coroutine"}  # the body's


@pytest.mark.spec("TF8")
async def test_a_task_settled_past_its_own_methods_takes_no_more_steps() -> None:
    """As with asyncio's: the loop is told of the next step."""
    told = list[str]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(str(context["exception"])))
    scope = Scope("parallel")
    try:
        with hosting(scope):
            task = task_of(fails(Boom()))
            getattr(asyncio.Future, "set_result")(task, "forced")  # noqa: B009  # typed as a method
            value = await task
            await turns(2)
    finally:
        loop.set_exception_handler(None)
    await scope.close()

    assert value == "forced"
    assert [message.partition(":")[0] for message in told] == ["__step()"]
    assert scope.finalizer_count == 0


@pytest.mark.spec("TF8", "AT20")
def test_a_done_callback_that_the_loop_refuses_does_not_stop_the_end() -> None:
    """Debug mode takes no coroutine function for a callback: the loop is told, the fiber ends."""
    told = list[dict[str, Any]]()
    scope = Scope("parallel")

    async def not_a_callback(_task: object) -> None:
        """Whoever wrote it meant a plain function."""

    async def main() -> tuple[str, int]:
        asyncio.get_running_loop().set_exception_handler(lambda _loop, what: told.append(what))
        with hosting(scope):
            task = task_of(turns(1))
            task.add_done_callback(not_a_callback)
            await turns(4)
        return task.result() or "ended", scope.finalizer_count

    with asyncio.Runner(debug=True) as runner:
        ended = runner.run(main())

    assert ended == ("ended", 0)
    (what,) = told
    assert what["message"] == "a done callback was lost"
    assert isinstance(what["exception"], TypeError)
    assert "source_traceback" in what


@pytest.mark.spec("TF8")
def test_a_task_interrupted_after_its_loop_was_closed_ends_in_silence() -> None:
    """Nobody can call its done callbacks any more; the loop has nothing to be told."""
    told = list[dict[str, Any]]()
    scope = Scope("parallel")
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _loop, what: told.append(what))
    task = fb.task_factory(scope=scope)(loop, sleeps([], "left", 0))
    task.add_done_callback(told.append)
    loop.run_until_complete(turns(2))
    fiber = fiber_of(task)
    loop.close()
    fiber.interrupt_unsafe(by=7)

    assert task.cancelled()
    assert fiber.done()
    assert scope.finalizer_count == 0
    assert told == []


@pytest.mark.spec("TF8")
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("on_purpose", [False, True])
def test_a_task_that_goes_with_its_loop_is_told_of_as_asyncio_does(
    debug: bool, on_purpose: bool
) -> None:
    """ "Task was destroyed but it is pending!", unless whoever dropped it said that he means to."""
    told = list[dict[str, Any]]()

    def leave_one_behind() -> None:
        loop = asyncio.new_event_loop()
        loop.set_debug(debug)
        loop.set_exception_handler(lambda _loop, what: told.append(what))
        task = fb.task_factory(scope=Scope("parallel"))(loop, asyncio.sleep(3600))
        if on_purpose:
            task._log_destroy_pending = False
        loop.run_until_complete(turns(2))
        loop.close()

    leave_one_behind()
    gc.collect()

    pending = "Task was destroyed but it is pending!"
    assert [what["message"] for what in told] == ([] if on_purpose else [pending])
    assert all(("source_traceback" in what) == debug for what in told)


async def test_something_that_is_no_loop_is_refused() -> None:
    """As by a task of asyncio's, and the task that was not made has nothing to say when it goes."""
    coro = turns(1)
    with pytest.raises(AttributeError, match="get_debug"):
        fb.task_factory(scope=Scope())(SimpleNamespace(), coro)
    coro.close()
    gc.collect()


# ---- on other loops


@pytest.mark.spec("TF9")
def test_hosted_tasks_work_on_uvloop() -> None:
    """Starts, cancels, groups, and the end of the loop."""
    uvloop: Any = pytest.importorskip("uvloop")
    log = list[object]()

    async def main() -> str:
        async with Scope("parallel") as scope:
            with hosting(scope):
                task = task_of(sleeps(log, "one"))
                await turns(2)
                task.cancel()
                async with asyncio.TaskGroup() as group:
                    group.create_task(asyncio.sleep(0))
                task_of(sleeps(log, "two"))
                await turns(2)
        return "ended"

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == "ended"

    assert log == ["one cancelled", "one cleaned", "two cancelled", "two cleaned"]


@pytest.mark.spec("TF9")
def test_debug_mode_names_the_task_whose_step_was_slow(caplog: pytest.LogCaptureFixture) -> None:
    """The record that asyncio writes of a callback that takes long."""

    async def slow(_log: list[object]) -> None:
        asyncio.get_running_loop().slow_callback_duration = 0.0
        me: Any = asyncio.current_task()
        me.set_name("slow one")
        await asyncio.sleep(0.001)

    with caplog.at_level(logging.WARNING, "asyncio"):
        hosted_run(slow, debug=True)

    assert any(
        "slow one" in record.getMessage() and "took" in record.getMessage()
        for record in caplog.records
    )


@pytest.mark.spec("TF2")
@pytest.mark.parametrize("immediate", [False, True])
async def test_a_hosted_task_forks_ordinary_fibers(immediate: bool) -> None:
    """Its own class stands for a coroutine; a child stands for an effect."""

    async def body() -> int:
        return 1

    async def service() -> tuple[type, int, list[int]]:
        child = await Effect.promise(body).fork_child(start_immediately=immediate)
        both = await fb.all_([Effect.promise(body)] * 2, concurrency=2)
        return type(child), await child, both

    async with Scope("parallel") as scope:
        with hosting(scope):
            forked = await asyncio.create_task(service())

    assert forked == (fb.Fiber, 1, [1, 1])
