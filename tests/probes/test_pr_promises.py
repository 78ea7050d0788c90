"""Probes PR: promises, signals and callbacks, the ways into an effect from callback code."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import pytest
from returns.result import Success

import fibers as fb
from fibers import AbortController, AbortError, AbortSignal, Die, Effect, Fail
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    failed,
    failing,
    inner_task,
    interrupted,
    is_face_of,
    new_gate,
    note,
    note_start_and_end,
    running_fiber,
    turns,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Mapping

    from fibers.testing import TestClock

# What register gets: called with an exit or an effect, at any time, from anywhere in the loop.
Resume: TypeAlias = "Callable[[fb.Exit[int, Boom] | Effect[int, Boom]], None]"


def rejected(error: BaseException) -> asyncio.Future[int]:
    """A plain future that has failed."""
    gate = new_gate()
    gate.set_exception(error)
    return gate


def unknown(exit: fb.Exit[Any, Any]) -> fb.UnknownError:
    """The one UnknownError of a failed exit."""
    (reason,) = cause_of(exit).reasons
    assert isinstance(reason, Fail)
    assert isinstance(reason.error, fb.UnknownError)
    return reason.error


# ---- how a promise fails


@pytest.mark.spec("PR1")
async def test_a_future_that_fails_makes_a_promise_die_of_the_same_object() -> None:
    """What a promise rejects with was not declared, so it is a defect."""
    boom = Boom()

    exit = await Effect.promise(lambda: rejected(boom)).exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PR1")
async def test_a_coroutine_that_raises_makes_a_promise_die_of_the_same_object() -> None:
    """The same for a coroutine, after a suspension too."""
    boom = Boom()

    async def raise_later() -> int:
        await asyncio.sleep(0)
        raise boom

    exit = await Effect.promise(raise_later).exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PR1")
async def test_a_thunk_that_raises_makes_a_promise_die() -> None:
    """A thunk that raises before it returns anything."""
    boom = Boom()

    def thunk() -> Awaitable[int]:
        raise boom

    exit = await Effect.promise(thunk).exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PR1")
async def test_a_future_that_fails_makes_try_promise_fail_with_unknown_error() -> None:
    """Without catch the error is wrapped; the original is its __cause__."""
    boom = Boom()

    exit = await Effect.try_promise(lambda: rejected(boom)).exit()

    assert unknown(exit).__cause__ is boom


@pytest.mark.spec("PR1")
async def test_a_coroutine_that_raises_makes_try_promise_fail_with_unknown_error() -> None:
    """The same for a coroutine."""
    boom = Boom()

    async def raise_later() -> int:
        await asyncio.sleep(0)
        raise boom

    exit = await Effect.try_promise(raise_later).exit()

    assert unknown(exit).__cause__ is boom


@pytest.mark.spec("PR1")
async def test_a_thunk_that_raises_makes_try_promise_fail_with_unknown_error() -> None:
    """The same where the thunk itself raises."""
    boom = Boom()

    def thunk() -> Awaitable[int]:
        raise boom

    exit = await Effect.try_promise(thunk).exit()

    assert unknown(exit).__cause__ is boom


@pytest.mark.spec("PR1")
async def test_try_promise_fails_with_what_catch_makes_of_the_error() -> None:
    """catch gets the very object and its result is the typed error."""
    boom, seen, mapped = Boom(), list[Exception](), ValueError("mapped")

    def catch(error: Exception) -> ValueError:
        seen.append(error)
        return mapped

    exit = await Effect.try_promise(lambda: rejected(boom), catch=catch).exit()

    assert failed(Fail(mapped)) == exit
    assert seen[0] is boom


@pytest.mark.spec("PR1", "PR2")
async def test_try_promise_maps_an_error_raised_by_the_thunk_itself() -> None:
    """catch also sees what is raised before there is anything to wait for."""
    mapped = ValueError("mapped")

    def thunk() -> Awaitable[int]:
        raise Boom

    exit = await Effect.try_promise(thunk, catch=lambda _: mapped).exit()

    assert failed(Fail(mapped)) == exit


@pytest.mark.spec("PR2")
async def test_a_catch_that_raises_on_a_rejection_is_a_defect() -> None:
    """The error of the mapper is what the effect dies of."""
    broken = RuntimeError("broken mapper")

    def catch(_: Exception) -> Never:
        raise broken

    exit = await Effect.try_promise(lambda: rejected(Boom()), catch=catch).exit()

    assert failed(Die(broken)) == exit


@pytest.mark.spec("PR2")
async def test_a_catch_that_raises_on_a_raising_thunk_is_a_defect() -> None:
    """The same where the thunk raises synchronously."""
    broken = RuntimeError("broken mapper")

    def thunk() -> Awaitable[int]:
        raise Boom

    def catch(_: Exception) -> Never:
        raise broken

    exit = await Effect.try_promise(thunk, catch=catch).exit()

    assert failed(Die(broken)) == exit


@pytest.mark.spec("PR1", "PD6")
async def test_a_future_that_somebody_cancels_makes_try_promise_die() -> None:
    """A CancelledError is no expected error: catch is not asked."""
    gate, asked = new_gate(), list[Exception]()

    def catch(error: Exception) -> Boom:
        asked.append(error)
        return Boom()

    fiber = fb.run_fork(Effect.try_promise(lambda: gate, catch=catch))
    gate.cancel()
    exit = await fiber.exit()

    assert [type(defect) for defect in cause_of(exit).defects] == [asyncio.CancelledError]
    assert asked == []


@pytest.mark.spec("PR1")
async def test_a_promise_takes_any_awaitable() -> None:
    """Not only futures and coroutines: whatever has __await__."""
    gate = new_gate()

    class Awaiting:
        def __await__(self) -> Generator[Any, Any, int]:
            return gate.__await__()

    fiber = fb.run_fork(Effect.promise(Awaiting))
    gate.set_result(3)

    assert await fiber == 3


@pytest.mark.spec("PR1")
async def test_a_promise_runs_its_thunk_at_each_run() -> None:
    """An effect is a description: two runs call the thunk twice."""
    runs = list[str]()

    async def thunk() -> int:
        runs.append("run")
        return len(runs)

    promise = Effect.promise(thunk)

    assert [await promise, await promise] == [1, 2]


@pytest.mark.spec("PR1", "PD4")
async def test_a_promise_of_a_failing_effect_dies() -> None:
    """An effect is an awaitable as well; a promise declares none of its errors."""
    boom = Boom()

    exit = await Effect.promise(lambda: failing(boom)).exit()

    assert failed(Die(boom)) == exit


# ---- a thunk without a signal


@pytest.mark.spec("PR3")
async def test_a_thunk_without_a_signal_makes_no_abort_controller() -> None:
    """Neither a controller nor a signal exists for it while it waits."""
    gate = new_gate()

    def signals_alive() -> int:
        return sum(type(thing) in (AbortController, AbortSignal) for thing in gc.get_objects())

    gc.collect()
    before = signals_alive()
    fiber = fb.run_fork(wait_for(gate))
    during = signals_alive()
    gate.set_result(1)
    await fiber

    assert during == before


@pytest.mark.spec("PR3", "WI1")
async def test_interrupting_a_promise_leaves_its_future_pending() -> None:
    """The fiber stops waiting, at once; the future is neither cancelled nor settled."""
    gate = new_gate()
    fiber = fb.run_fork(wait_for(gate))

    fiber.interrupt_unsafe(by=7)

    assert interrupted(by=7) == fiber.poll()
    assert not gate.done()


@pytest.mark.spec("PR3")
async def test_interrupting_a_promise_leaves_its_task_running() -> None:
    """A task that the thunk returned belongs to whoever made it."""
    gate = new_gate()

    async def work() -> int:
        return await gate + 1

    task = asyncio.create_task(work())
    fiber = fb.run_fork(Effect.promise(lambda: task))
    await turns()
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)

    assert await task == 2
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PR3")
async def test_an_interrupt_does_not_wait_for_the_task_of_a_promise() -> None:
    """interrupt() returns while that task is still busy."""
    gate = new_gate()

    async def work() -> int:
        return await gate

    task = asyncio.create_task(work())
    fiber = fb.run_fork(Effect.promise(lambda: task))
    await turns()
    await fiber.interrupt()

    assert not task.done()
    gate.set_result(1)
    await task


@pytest.mark.spec("PR3", "WI1")
async def test_interrupting_a_promise_leaves_its_fiber_running() -> None:
    """A fiber that the thunk returned is somebody else's, like a task."""
    gate = new_gate()
    target = fb.run_fork(wait_for(gate))
    fiber = fb.run_fork(Effect.promise(lambda: target))

    fiber.interrupt_unsafe(by=7)
    waiting = target.poll()
    gate.set_result(5)

    assert interrupted(by=7) == fiber.poll()
    assert waiting is None
    assert await target == 5


@pytest.mark.spec("PR3", "PD1")
async def test_a_coroutine_of_a_promise_runs_its_finally_on_interrupt() -> None:
    """A coroutine is a body of this fiber: it is unwound, not abandoned."""
    log, gate = list[str](), new_gate()

    async def body() -> int:
        try:
            return await gate
        finally:
            log.append("finally")

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)

    assert log == ["finally"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PR3", "PD2")
async def test_an_interrupt_waits_for_the_async_finally_of_a_promised_coroutine(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The exit is there only after the coroutine's cleanup."""
    log = list[str]()

    async def body() -> None:
        try:
            await Effect.never()
        finally:
            await note_start_and_end(log, "cleanup", 1.0)

    fiber = rt.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7)
    early = fiber.poll()
    await rt.run(clock.adjust(1.0))

    assert early is None
    assert log == ["cleanup-start", "cleanup-end"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PR3", "PD2")
async def test_a_promised_coroutine_sees_its_own_interrupt() -> None:
    """What is thrown into it is told from a foreign CancelledError by interrupt_of."""
    seen, gate = list[fb.Interrupt | None](), new_gate()

    async def body() -> int:
        try:
            return await gate
        except asyncio.CancelledError as exc:
            seen.append(fb.interrupt_of(exc))
            raise

    fiber = fb.run_fork(Effect.promise(body))
    fiber.interrupt_unsafe(by=7, reason="enough")

    assert seen == [fb.Interrupt(by=7, reason="enough")]


@pytest.mark.spec("PR3")
async def test_a_promised_coroutine_runs_in_the_fiber_that_waits_for_it() -> None:
    """No second fiber and no task is made for it."""

    async def body() -> tuple[int, bool]:
        return running_fiber().id, is_face_of(inner_task(), running_fiber())

    fiber = fb.run_fork(Effect.promise(body))

    assert fiber.poll() == Success((fiber.id, True))


# ---- a thunk with a signal


@pytest.mark.spec("PR4")
async def test_an_interrupt_aborts_the_signal_before_the_exit_is_published() -> None:
    """Whoever reads the exit finds the signal aborted already."""
    log, gate = list[str](), new_gate()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signal.add_listener(lambda _: log.append("aborted"))
        return gate

    fiber = fb.run_fork(Effect.promise(thunk, signal=True))
    fiber.add_observer(lambda _: log.append("exit"))
    fiber.interrupt_unsafe(by=7)

    assert log == ["aborted", "exit"]


@pytest.mark.spec("PR4")
async def test_an_interrupt_aborts_the_signal_with_an_abort_error() -> None:
    """The reason is the default one."""
    signals, gate = list[AbortSignal](), new_gate()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signals.append(signal)
        return gate

    fiber = fb.run_fork(Effect.promise(thunk, signal=True))
    fiber.interrupt_unsafe(by=7)

    assert signals[0].aborted
    assert isinstance(signals[0].reason, AbortError)


@pytest.mark.spec("PR4")
async def test_a_rejection_after_the_abort_leaves_the_exit_alone() -> None:
    """The fiber has ended; what the provider says afterwards changes nothing."""
    gate = new_gate()

    def thunk(_: AbortSignal) -> Awaitable[int]:
        return gate

    fiber = fb.run_fork(Effect.promise(thunk, signal=True))
    fiber.interrupt_unsafe(by=7)
    gate.set_exception(Boom())
    await turns()

    assert interrupted(by=7) == fiber.poll()
    gate.exception()


@pytest.mark.spec("PR4")
async def test_a_rejection_after_the_abort_is_not_reported_as_unretrieved() -> None:
    """An abort that ends in a rejection is the usual case, not a forgotten error."""
    reports: list[Mapping[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reports.append(context))

    def start() -> tuple[fb.Fiber[int, Never], asyncio.Future[int]]:
        # Not new_gate: nothing else may hold this future.
        gate: asyncio.Future[int] = asyncio.get_running_loop().create_future()

        def thunk(_: AbortSignal) -> Awaitable[int]:
            return gate

        return fb.run_fork(Effect.promise(thunk, signal=True)), gate

    fiber, gate = start()
    fiber.interrupt_unsafe(by=7)
    gate.set_exception(Boom())
    await turns()
    del fiber, gate
    gc.collect()

    assert reports == []


@pytest.mark.spec("PR4")
async def test_a_signal_is_aborted_when_a_timeout_ends_the_wait(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """A timeout is an interrupt like any other."""
    signals, gate = list[AbortSignal](), new_gate()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signals.append(signal)
        return gate

    fiber = rt.run_fork(Effect.promise(thunk, signal=True).timeout(1.0))
    await rt.run(clock.adjust(1.0))

    assert signals[0].aborted
    assert cause_of(fiber.poll()).has_fails


@pytest.mark.spec("PR4", "PD19")
async def test_try_promise_aborts_its_signal_too() -> None:
    """With signal=True its thunk gets one."""
    signals, gate = list[AbortSignal](), new_gate()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signals.append(signal)
        return gate

    work = Effect.try_promise(thunk, catch=lambda _: Boom(), signal=True)
    fb.run_fork(work).interrupt_unsafe(by=7)

    assert signals[0].aborted


@pytest.mark.spec("PR4", "PD1")
async def test_a_coroutine_of_a_signal_thunk_is_unwound_too() -> None:
    """Its signal is aborted and its finally runs."""
    log = list[str]()

    async def body(signal: AbortSignal) -> None:
        signal.add_listener(lambda _: log.append("aborted"))
        try:
            await endless()
        finally:
            log.append("finally")

    fiber = fb.run_fork(Effect.promise(body, signal=True))
    fiber.interrupt_unsafe(by=7)

    assert sorted(log) == ["aborted", "finally"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PR4", "PD1")
async def test_a_coroutine_finds_its_signal_aborted_when_it_is_unwound() -> None:
    """Its cleanup may wait for work that was told to stop by the signal, and by nothing else."""
    log = list[str]()

    async def body(signal: AbortSignal) -> None:
        worker = asyncio.create_task(stopped_by(signal))
        try:
            await endless()
        finally:
            log.append(f"aborted: {signal.aborted}")
            log.append(await worker)

    async def stopped_by(signal: AbortSignal) -> str:
        await signal.wait()
        return "worker stopped"

    fiber = fb.run_fork(Effect.promise(body, signal=True))
    await turns()
    async with asyncio.timeout(5):
        await fiber.interrupt(by=7)

    assert log == ["aborted: True", "worker stopped"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PR5")
async def test_a_time_out_inside_a_coroutine_does_not_abort_its_signal() -> None:
    """It is the coroutine's own business."""

    async def body(signal: AbortSignal) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await endless()
        return signal.aborted

    assert await Effect.promise(body, signal=True) is False


async def test_a_coroutine_with_a_signal_may_be_interrupted_before_its_first_step() -> None:
    """By its own thunk; nothing of it runs, and nothing complains of that."""
    log = list[str]()

    async def body() -> None:
        log.append("ran")

    def thunk(signal: AbortSignal) -> Awaitable[None]:
        me = fb.current_fiber()
        assert me is not None
        me.interrupt_unsafe(by=7)
        return body()

    exit_ = await fb.run_fork(Effect.promise(thunk, signal=True)).exit()
    gc.collect()

    assert (exit_, log) == (interrupted(by=7), [])


async def test_a_dump_sees_through_a_coroutine_with_a_signal() -> None:
    """To where it waits."""

    async def body(_: AbortSignal) -> None:
        await endless()

    fiber = fb.run_fork(Effect.promise(body, signal=True))
    await turns()
    text = fb.dump()
    await fiber.interrupt()

    assert "test_a_dump_sees_through_a_coroutine_with_a_signal.<locals>.body" in text


@pytest.mark.spec("PR5")
async def test_a_signal_is_not_aborted_on_success() -> None:
    """Nobody asked the work to stop."""
    signals, gate = list[AbortSignal](), new_gate()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signals.append(signal)
        return gate

    fiber = fb.run_fork(Effect.promise(thunk, signal=True))
    gate.set_result(1)
    value = await fiber

    assert value == 1
    assert not signals[0].aborted


@pytest.mark.spec("PR5")
async def test_a_signal_is_not_aborted_on_failure() -> None:
    """The work has ended by itself."""
    signals, gate = list[AbortSignal](), new_gate()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signals.append(signal)
        return gate

    fiber = fb.run_fork(Effect.promise(thunk, signal=True))
    gate.set_exception(Boom())
    exit = await fiber.exit()

    assert cause_of(exit).has_dies
    assert not signals[0].aborted


@pytest.mark.spec("PR5")
async def test_a_signal_is_not_aborted_while_the_wait_is_masked() -> None:
    """The interrupt is recorded; the work goes on undisturbed."""
    signals, gate = list[AbortSignal](), new_gate()

    def thunk(signal: AbortSignal) -> Awaitable[int]:
        signals.append(signal)
        return gate

    fiber = fb.run_fork(Effect.promise(thunk, signal=True).uninterruptible())
    fiber.interrupt_unsafe(by=7)
    pending = fiber.poll()
    gate.set_result(1)
    await fiber.exit()

    assert pending is None
    assert not signals[0].aborted


@pytest.mark.spec("PR5", "WI3")
async def test_a_masked_promise_gives_its_value_and_then_the_interrupt_lands() -> None:
    """What stands in the region sees the value, the fiber ends interrupted."""
    values, gate = list[int](), new_gate()

    def thunk(_: AbortSignal) -> Awaitable[int]:
        return gate

    masked = Effect.promise(thunk, signal=True).map(values.append).uninterruptible()
    fiber = fb.run_fork(masked)
    fiber.interrupt_unsafe(by=7)
    gate.set_result(1)
    exit = await fiber.exit()

    assert values == [1]
    assert interrupted(by=7) == exit


# ---- callbacks


class Door:
    """A callback effect whose resume the test holds."""

    def __init__(self, cleanup: Effect[Any, Never] | None = None) -> None:
        self.cleanup = cleanup
        self.resumes: list[Resume] = []

    def wait(self) -> Effect[int, Boom]:
        """The effect; each run adds a resume."""

        def register(resume: Resume) -> Effect[Any, Never] | None:
            self.resumes.append(resume)
            return self.cleanup

        return Effect.callback(register)

    def resume(self, result: fb.Exit[int, Boom] | Effect[int, Boom]) -> None:
        """Resume the first run."""
        self.resumes[0](result)


@pytest.mark.spec("PR6")
async def test_of_two_resumes_the_first_wins() -> None:
    """The second is ignored, without an error."""
    door = Door()
    fiber = fb.run_fork(door.wait())

    door.resume(Success(1))
    door.resume(Success(2))

    assert await fiber == 1


@pytest.mark.spec("PR6")
async def test_a_resume_after_the_end_is_ignored() -> None:
    """Also when the fiber has long gone on and ended."""
    door = Door()
    fiber = fb.run_fork(door.wait())
    door.resume(Success(1))
    await fiber.exit()

    door.resume(failed(Fail(Boom())))
    await turns()

    assert fiber.poll() == Success(1)


@pytest.mark.spec("PR6")
async def test_of_two_synchronous_resumes_the_first_wins() -> None:
    """Both inside register."""

    def register(resume: Resume) -> Effect[Any, Never] | None:
        resume(Success(1))
        resume(Success(2))
        return None

    fiber = fb.run_fork(Effect.callback(register))

    assert await fiber == 1


@pytest.mark.spec("PR6")
async def test_the_cleanup_of_a_callback_resumed_synchronously_never_runs() -> None:
    """There was nothing to clean up after."""
    log = list[str]()

    def register(resume: Resume) -> Effect[Any, Never] | None:
        resume(Success(1))
        return note(log, "cleanup")

    fiber = fb.run_fork(Effect.callback(register).flat_map(lambda _: Effect.never()))
    await turns()
    fiber.interrupt_unsafe(by=7)

    assert interrupted(by=7) == fiber.poll()
    assert log == []


@pytest.mark.spec("PR6")
async def test_the_cleanup_of_a_callback_resumed_synchronously_with_an_interrupt_never_runs() -> (
    None
):
    """Not even where it was resumed with an Interrupt cause."""
    log = list[str]()

    def register(resume: Resume) -> Effect[Any, Never] | None:
        resume(interrupted(by=9))
        return note(log, "cleanup")

    exit = await Effect.callback(register).exit()

    assert interrupted(by=9) == exit
    assert log == []


@pytest.mark.spec("PR6")
async def test_a_callback_can_be_resumed_with_an_effect() -> None:
    """The effect runs in the fiber that waited."""
    door = Door()
    fiber = fb.run_fork(door.wait())

    door.resume(Effect.sync(lambda: running_fiber().id))

    assert await fiber == fiber.id


@pytest.mark.spec("PR6")
async def test_a_callback_can_be_resumed_with_a_failure() -> None:
    """The failure is typed, and the very object."""
    door, boom = Door(), Boom()
    fiber = fb.run_fork(door.wait())

    door.resume(failed(Fail(boom)))
    exit = await fiber.exit()

    assert failed(Fail(boom)) == exit


@pytest.mark.spec("PR7")
async def test_the_cleanup_of_a_callback_runs_on_interrupt() -> None:
    """Its synchronous part has run when interrupt_unsafe returns."""
    log = list[str]()
    fiber = fb.run_fork(Door(note(log, "cleanup")).wait())

    fiber.interrupt_unsafe(by=7)

    assert log == ["cleanup"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PR7")
async def test_an_interrupt_waits_for_an_asynchronous_cleanup(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The exit is published after it."""
    log = list[str]()
    fiber = rt.run_fork(Door(note_start_and_end(log, "cleanup", 1.0)).wait())
    fiber.add_observer(lambda _: log.append("exit"))

    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1.0))

    assert log == ["cleanup-start", "cleanup-end", "exit"]


@pytest.mark.spec("PR7")
async def test_the_cleanup_of_a_callback_does_not_run_on_success() -> None:
    """Resumed with a value: nothing to undo."""
    log, door = list[str](), Door()
    door.cleanup = note(log, "cleanup")
    fiber = fb.run_fork(door.wait())

    door.resume(Success(1))
    value = await fiber

    assert value == 1
    assert log == []


@pytest.mark.spec("PR7")
async def test_the_cleanup_of_a_callback_does_not_run_on_failure() -> None:
    """Resumed with an error: nothing to undo either."""
    log, door = list[str](), Door()
    door.cleanup = note(log, "cleanup")
    fiber = fb.run_fork(door.wait())

    door.resume(failed(Fail(Boom())))
    exit = await fiber.exit()

    assert cause_of(exit).has_fails
    assert log == []


@pytest.mark.spec("PR7")
async def test_the_cleanup_of_a_callback_runs_when_it_is_resumed_with_an_interrupt() -> None:
    """An Interrupt cause counts, whoever brought it."""
    log, door = list[str](), Door()
    door.cleanup = note(log, "cleanup")
    fiber = fb.run_fork(door.wait())

    door.resume(interrupted(by=9))
    exit = await fiber.exit()

    assert log == ["cleanup"]
    assert interrupted(by=9) == exit


@pytest.mark.spec("PR9")
async def test_a_register_that_raises_is_a_defect() -> None:
    """The effect dies of the very object."""
    boom = Boom()

    def register(_: Resume) -> Effect[Any, Never] | None:
        raise boom

    exit = await Effect.callback(register).exit()

    assert failed(Die(boom)) == exit


@pytest.mark.spec("PR9")
async def test_a_resume_during_the_cleanup_is_ignored(clock: TestClock, rt: fb.Runtime) -> None:
    """The interrupt has won; the late value changes nothing."""
    log = list[str]()
    door = Door(note_start_and_end(log, "cleanup", 1.0))
    fiber = rt.run_fork(door.wait())
    fiber.interrupt_unsafe(by=7)

    door.resume(Success(1))
    await rt.run(clock.adjust(0.5))
    halfway = fiber.poll()
    await rt.run(clock.adjust(0.5))

    assert halfway is None
    assert log == ["cleanup-start", "cleanup-end"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PR6", "WI3")
async def test_a_masked_callback_is_resumed_before_a_pending_interrupt_lands() -> None:
    """Under a mask the cleanup does not run: the wait was not cut."""
    log, values, door = list[str](), list[int](), Door()
    door.cleanup = note(log, "cleanup")
    fiber = fb.run_fork(door.wait().map(values.append).uninterruptible())

    fiber.interrupt_unsafe(by=7)
    door.resume(Success(1))
    exit = await fiber.exit()

    assert (log, values) == ([], [1])
    assert interrupted(by=7) == exit


@pytest.mark.spec("PR4")
@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_how_a_future_ends_after_its_signal_was_aborted_is_nobodys_business(how: str) -> None:
    """Neither the loop nor the hook hears of it."""
    told = list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _loop, context: told.append(context["message"]))
    gates: list[asyncio.Future[None]] = [loop.create_future()]
    try:
        fiber = fb.run_fork(Effect.promise(lambda _signal: gates[0], signal=True))
        fiber.interrupt_unsafe(by=7)
        if how == "cancelled":
            gates[0].cancel()
        else:
            gates[0].set_exception(Boom())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        gates.clear()
        gc.collect()
    finally:
        loop.set_exception_handler(None)

    assert fiber.poll() == interrupted(7)
    assert told == []
