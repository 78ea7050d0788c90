"""Probes AT14-AT16, AT20: timers, threads and the debug mode, on each kind of loop."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import textwrap
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from returns.maybe import Nothing, Some
from returns.result import Success

import fibers as fb
from fibers import Effect
from fibers.app import close_bounded
from tests.loops import LOOP_KINDS, every_loop, run_on
from tests.probes.kit_f import Boom, endless, interrupted, note, parked, turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

pytestmark = pytest.mark.lifecycle


def run_apart(program: str, *, seconds: float = 30.0) -> subprocess.CompletedProcess[str]:
    """Run a program in a Python of its own."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )


# ---- AT14: timers that are due at once


@pytest.mark.spec("AT14")
@pytest.mark.parametrize("seconds", [0, -1, 1e-12, 1e-6, 0.0004])
@every_loop
async def test_a_sleep_too_short_for_a_timer_ends(seconds: float) -> None:
    """uvloop makes no timer of what rounds to 0 ms: its handle has no time. Nothing reads one."""
    log = list[str]()

    async def body() -> None:
        await fb.sleep(seconds)
        await asyncio.sleep(seconds)
        log.append("slept")

    exit = await fb.run_fork(Effect.promise(body)).exit()

    assert exit == Success(None)
    assert log == ["slept"]


@pytest.mark.spec("AT14")
@pytest.mark.parametrize("seconds", [1e-12, 0.0004, 60])
@every_loop
async def test_a_sleep_is_interrupted_whatever_handle_its_loop_gave(seconds: float) -> None:
    """Its handle is cancelled and wakes nobody later."""
    log = list[str]()
    fiber = fb.run_fork(fb.sleep(seconds).flat_map(lambda _: note(log, "slept")))
    fiber.interrupt_unsafe()
    await asyncio.sleep(0.002)

    assert fiber.poll() == interrupted(None)
    assert log == []


@pytest.mark.spec("AT14")
@pytest.mark.parametrize("seconds", [0, 1e-12, 0.0004])
@every_loop
async def test_a_timeout_too_short_for_a_timer_fires(seconds: float) -> None:
    """Of an effect, and asyncio's in a body."""

    async def body() -> str:
        try:
            async with asyncio.timeout(seconds):
                await asyncio.get_running_loop().create_future()
        except TimeoutError:
            return "TimeoutError"
        return "none"

    assert await endless().timeout_option(seconds) == Nothing
    assert await fb.run_fork(Effect.promise(body)) == "TimeoutError"


@pytest.mark.spec("AT14")
@every_loop
async def test_a_timeout_of_zero_lets_a_synchronous_effect_be() -> None:
    """As on any loop (TR5)."""
    assert await Effect.succeed(3).timeout_option(0) == Some(3)


# ---- AT15: threads that do not stop


class Thread:
    """Work for ``to_thread`` that blocks until the test lets it go."""

    def __init__(self, error: Exception | None = None) -> None:
        self.started = threading.Event()
        self.go = threading.Event()
        self.ended = threading.Event()
        self.error = error

    def __call__(self) -> str:
        self.started.set()
        self.go.wait(30)
        self.ended.set()
        if self.error is not None:
            raise self.error
        return "from a thread"

    async def until_started(self) -> None:
        await asyncio.to_thread(self.started.wait)


@pytest.mark.spec("AT15", "WI1")
@pytest.mark.parametrize("error", [None, Boom()])
@every_loop
async def test_a_thread_is_abandoned_by_an_interrupt_and_may_end_as_it_likes(
    error: Exception | None,
) -> None:
    """The fiber ends at once; what the thread gives or raises later reaches nobody, nor a log."""
    work = Thread(error)
    fiber = fb.run_fork(Effect.promise(lambda: asyncio.to_thread(work)))
    await work.until_started()
    fiber.interrupt_unsafe()
    at_once = fiber.poll()
    work.go.set()
    await asyncio.get_running_loop().shutdown_default_executor()

    assert work.ended.is_set()
    assert at_once == interrupted(None)


@pytest.mark.spec("AT15")
@every_loop
async def test_a_thread_awaited_under_a_mask_is_waited_for() -> None:
    """Its value arrives, then the interrupt lands."""
    work, log = Thread(), list[str]()

    async def body() -> None:
        log.append(await asyncio.to_thread(work))

    fiber = fb.run_fork(Effect.promise(body).uninterruptible())
    await work.until_started()
    fiber.interrupt_unsafe()
    pending = fiber.poll()
    work.go.set()
    exit = await fiber.exit()

    assert pending is None
    assert log == ["from a thread"]
    assert exit == interrupted(None)


@pytest.mark.spec("AT15", "VA3")
@every_loop
async def test_the_wait_for_a_thread_under_a_mask_is_bounded_by_the_close(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The bound gives up the wait, names the fiber, and leaves the thread alone."""
    work, scope = Thread(), fb.Scope()
    masked = Effect.promise(lambda: asyncio.to_thread(work)).uninterruptible()
    fiber = scope.fork(masked, start_immediately=True)
    await work.until_started()
    with caplog.at_level(logging.WARNING, "fibers.app"):
        closed = await close_bounded(scope, 0.01)
    alive = not work.ended.is_set()
    work.go.set()
    await fiber.exit()

    assert not closed
    assert alive
    assert f"#{fiber.id}" in caplog.text


@pytest.mark.spec("AT15")
def test_run_does_not_wait_for_a_thread_without_a_bound() -> None:
    """asyncio would join its executor for as long as the thread likes. What is left is named."""
    ended = run_apart("""
        import asyncio, os, sys, threading, time
        import fibers as fb

        def blocks():
            threading.Event().wait(60)

        before = time.monotonic()
        try:
            fb.run(fb.Effect.promise(lambda: asyncio.to_thread(blocks)).timeout(0.01))
        except TimeoutError:
            print("late", time.monotonic() - before < 10, flush=True)
        sys.stderr.flush()
        os._exit(0)
    """)

    assert ended.stdout == "late True\n"
    assert "1 thread(s) still busy after 2 s, left:" in ended.stderr
    assert "asyncio_0" in ended.stderr


@pytest.mark.spec("AT15")
def test_run_waits_for_a_thread_that_ends_within_the_bound() -> None:
    """Nothing is left, and nothing is said."""
    done = list[str]()

    def works() -> None:
        time.sleep(0.05)
        done.append("done")

    effect = Effect.promise(lambda: asyncio.to_thread(works)).timeout_option(0.01)

    assert fb.run(effect) == Nothing
    assert done == ["done"]


@pytest.mark.spec("AT15", "EX12")
def test_run_main_leaves_a_thread_that_does_not_stop_when_its_budget_is_over() -> None:
    """With exit code 1 and a dump, not after a minute."""
    ended = run_apart("""
        import asyncio, threading
        import fibers as fb

        work = fb.Effect.promise(lambda: asyncio.to_thread(threading.Event().wait, 60))
        fb.run_main(work.timeout_option(0.01), budget=0.2)
    """)

    assert ended.returncode == 1
    assert "not ended within 200 ms: leaving" in ended.stderr
    assert "thread asyncio_0 at " in ended.stderr, "what holds it up is no fiber"


# ---- AT16: interrupts from another thread


def elsewhere(f: Callable[[], object]) -> None:
    """Run ``f`` in another thread, and wait for it there, so that this loop is idle meanwhile."""
    thread = threading.Thread(target=f)
    thread.start()
    thread.join()


@pytest.mark.spec("AT16")
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_an_interrupt_from_another_thread_runs_nothing_there(
    kind: str, ask: str, debug: bool
) -> None:
    """It goes through call_soon_threadsafe: the finalizers run in the loop's own thread. asyncio's
    debug mode refuses any other way.
    """
    threads = list[int]()

    async def main() -> None:
        gone = Effect.sync(lambda: threads.append(threading.get_ident()))
        fiber = fb.run_fork(endless().on_interrupt(lambda _: gone))
        elsewhere(getattr(fiber, ask))
        pending = fiber.poll()
        exit = await fiber.exit()

        assert pending is None
        assert exit == interrupted(None)
        assert threads == [threading.get_ident()]

    run_on(kind, main(), debug=debug)


@pytest.mark.spec("AT16")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@every_loop
async def test_an_interrupt_from_another_thread_wakes_a_loop_that_sleeps(ask: str) -> None:
    """There is no timer and no other event that would."""
    fiber = fb.run_fork(endless())
    loop = asyncio.get_running_loop()
    asleep = threading.Event()
    # The last callback before the loop goes to sleep.
    loop.call_soon(asleep.set)

    def later() -> None:
        asleep.wait()
        time.sleep(0.02)
        getattr(fiber, ask)()

    thread = threading.Thread(target=later)
    thread.start()
    exit = await fiber.exit()
    thread.join()

    assert exit == interrupted(None)


@pytest.mark.spec("AT16")
@pytest.mark.parametrize("ask", ["interrupt_unsafe", "cancel"])
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_an_interrupt_from_another_thread_after_the_loop_is_closed_does_nothing(
    kind: str, ask: str
) -> None:
    """It neither raises nor runs anything."""
    fibers = list[fb.Fiber[Any, Any]]()

    async def main() -> None:
        fibers.append(fb.run_fork(Effect.succeed(1)))

    run_on(kind, main())
    raised = list[BaseException]()

    def call() -> None:
        try:
            getattr(fibers[0], ask)()
        except BaseException as exc:
            raised.append(exc)

    elsewhere(call)

    assert raised == []
    assert fibers[0].poll() == Success(1)


@pytest.mark.spec("AT16")
@every_loop
async def test_interrupts_from_many_threads_at_once_are_one_end() -> None:
    """Each reason once, the finalizer once."""
    log = list[str]()
    fiber = fb.run_fork(parked(log, "interrupted"))
    threads = [
        threading.Thread(target=fiber.interrupt_unsafe, kwargs={"by": -1 - n}) for n in range(16)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await fiber.exit()
    await turns()

    assert log == ["interrupted"]


# ---- AT20: the debug mode


async def exercised() -> str:
    """Something of everything that the runtime hooks into asyncio with."""
    log = list[str]()

    async def body() -> str:
        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            task = group.create_task(asyncio.sleep(0, "task"))
            await Effect.yield_now()
            await fb.sleep(0.001)
        with fb.uninterruptible():
            await asyncio.sleep(0)
        return await asyncio.to_thread(lambda: task.result())

    fiber = fb.run_fork(Effect.promise(body))
    ended = fb.run_fork(parked(log, "interrupted"))
    ended.cancel()
    await asyncio.wait_for(fiber.exit(), 60)
    await ended.exit()
    assert repr(asyncio.all_tasks())
    return fiber.result()


@pytest.mark.spec("AT20")
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_the_debug_mode_changes_nothing(kind: str, caplog: pytest.LogCaptureFixture) -> None:
    """No complaint of asyncio's, and the same result. (A machine under load may be slow: that
    warning is not meant.)
    """

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = 60
        assert await exercised() == "task"

    with caplog.at_level(logging.WARNING, "asyncio"):
        run_on(kind, main(), debug=True)

    assert [r.getMessage() for r in caplog.records if r.name == "asyncio"] == []


@pytest.mark.spec("AT20")
@pytest.mark.parametrize("woken_by", ["the queue", "a future"])
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_a_step_that_blocks_the_loop_is_warned_of(
    kind: str, woken_by: str, caplog: pytest.LogCaptureFixture
) -> None:
    """asyncio's slow callback warning: how long it took, and that it was a fiber's. (On a machine
    under load others may be slow too.)
    """
    blocking: dict[str, Callable[[], Awaitable[object]]] = {
        "the queue": Effect.yield_now,
        "a future": lambda: asyncio.sleep(0.001),
    }

    async def main() -> None:
        asyncio.get_running_loop().slow_callback_duration = 0.05

        async def body() -> None:
            await blocking[woken_by]()
            time.sleep(0.1)  # noqa: ASYNC251  # a body that blocks the loop is the subject

        await fb.run_fork(Effect.promise(body))

    with caplog.at_level(logging.WARNING, "asyncio"):
        run_on(kind, main(), debug=True)

    slow = [r.getMessage() for r in caplog.records if "took" in r.getMessage()]
    assert all(said.startswith("Executing <") for said in slow)
    assert any("_drain" in said or "_future_done" in said for said in slow)


@pytest.mark.spec("AT20")
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_a_coroutine_that_a_body_forgot_to_await_is_still_warned_of(kind: str) -> None:
    """asyncio's debug mode adds where it was made."""

    async def forgotten() -> None: ...

    async def main() -> None:
        async def body() -> None:
            forgotten()  # type: ignore[unused-coroutine]  # pyright: ignore[reportUnusedCoroutine]  # that it is not awaited is the subject

        await fb.run_fork(Effect.promise(body))

    with pytest.warns(RuntimeWarning, match="forgotten' was never awaited"):
        run_on(kind, main(), debug=True)
