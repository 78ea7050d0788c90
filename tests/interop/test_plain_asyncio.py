"""Effects called from asyncio code that knows nothing of fibers, and asyncio called with fibers."""

from __future__ import annotations

import asyncio
import contextvars
import os
import signal
import sys
import threading
from typing import Any

import pytest
from returns.result import Failure, Success

import fibers as fb
from fibers import Effect
from tests.loops import LOOP_KINDS, every_loop, run_on
from tests.probes.kit_f import (
    Boom,
    cause_of,
    endless,
    interrupted,
    new_gate,
    note,
    parked,
    turns,
    wait_for,
)


def slow_farewell(log: list[str]) -> Effect[None, Any]:
    """Waits for ever; its finalizer takes some turns of the loop."""
    last = Effect.promise(lambda: turns(3)).flat_map(lambda _: note(log, "finalized"))
    return endless().on_interrupt(lambda _: last)


# ---- plain tasks


@pytest.mark.spec("PD12")
@every_loop
async def test_effects_in_the_tasks_of_a_group_give_their_values() -> None:
    """Each task has a root fiber of its own."""

    async def task(n: int) -> int:
        await fb.sleep(0.001)
        return await Effect.succeed(n).map(lambda value: value * 2)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(task(n)) for n in range(5)]

    assert [each.result() for each in tasks] == [0, 2, 4, 6, 8]


@pytest.mark.spec("PD12")
@every_loop
async def test_the_error_of_an_effect_aborts_the_group_of_its_task() -> None:
    """The group cancels its other tasks, whose fibers finalize before it raises."""
    boom, log = Boom(), list[str]()

    async def fails() -> None:
        await turns(2)
        await Effect.fail(boom)

    async def waits() -> None:
        await slow_farewell(log)

    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(waits())
            group.create_task(fails())

    with pytest.raises(ExceptionGroup) as raised:
        await main()

    assert raised.value.exceptions == (boom,)
    assert log == ["finalized"]


@pytest.mark.spec("PD12")
@pytest.mark.parametrize("limit", ["timeout", "wait_for", "wait"])
@every_loop
async def test_a_limit_of_asyncios_around_an_effect_waits_for_its_finalizers(limit: str) -> None:
    """What comes after the TimeoutError finds the fiber ended."""
    log = list[str]()

    async def task() -> None:
        await slow_farewell(log)

    if limit == "timeout":
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.001):
                await slow_farewell(log)
    elif limit == "wait_for":
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(task(), 0.001)
    else:
        waited = asyncio.create_task(task())
        await asyncio.wait([waited], timeout=0.001)
        waited.cancel()
        await asyncio.wait([waited])

    assert log == ["finalized"]


@pytest.mark.spec("PD11", "AT21")
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("waiter", ["a task", "a fiber", "a region"])
@every_loop
async def test_wait_for_ends_the_late_fiber_that_it_was_given(waiter: str, masked: bool) -> None:
    """On every Python, as it ends a task, and waits for its finalizers; a mask is waited for."""
    log, gate = list[str](), new_gate()
    late = wait_for(gate).uninterruptible() if masked else slow_farewell(log)
    fiber: fb.Fiber[Any, Any] = fb.run_fork(late)

    async def body() -> None:
        try:
            await asyncio.wait_for(fiber, 0.001)
        except TimeoutError:
            log.append("TimeoutError")

    async def region() -> None:
        with fb.uninterruptible():
            await body()

    waiting: Any = (
        asyncio.create_task(body())
        if waiter == "a task"
        else fb.run_fork(Effect.promise(body if waiter == "a fiber" else region))
    )
    while not fiber.cancelling():  # noqa: ASYNC110  # what wait_for does when it is late
        await asyncio.sleep(0.001)
    gate.set_result(1)
    await waiting

    assert log == (["TimeoutError"] if masked else ["finalized", "TimeoutError"])
    assert fiber.poll() == interrupted(None)


@pytest.mark.spec("PD11")
@every_loop
async def test_who_is_cancelled_in_wait_for_ends_the_fiber_that_it_was_given() -> None:
    """As with a task; a plain await of a fiber, in contrast, leaves it alone (WI6)."""
    log = list[str]()
    given, awaited = fb.run_fork(slow_farewell(log)), fb.run_fork(endless())

    async def in_wait_for() -> None:
        await asyncio.wait_for(given, 60)

    async def in_await() -> None:
        await awaited

    waiters = [fb.run_fork(Effect.promise(in_wait_for)), fb.run_fork(Effect.promise(in_await))]
    await fb.Fiber.interrupt_all(waiters)
    alive = awaited.poll() is None
    awaited.interrupt_unsafe()

    assert log == ["finalized"]
    assert given.done()
    assert alive


@pytest.mark.spec("PD12")
@every_loop
async def test_an_effect_can_be_awaited_by_many_tasks_at_once() -> None:
    """It is a description: each await runs it anew."""
    runs = list[int]()

    @fb.effect
    async def count() -> int:
        await Effect.yield_now()
        runs.append(1)
        return len(runs)

    effect = count()

    async def task() -> int:
        return await effect

    assert sorted(await asyncio.gather(*(task() for _ in range(5)))) == [1, 2, 3, 4, 5]


@pytest.mark.spec("PD10", "PD12")
@every_loop
async def test_context_variables_go_in_and_out_of_an_effect_but_not_out_of_a_fork() -> None:
    """As with a coroutine and with a task."""
    variable = contextvars.ContextVar("variable", default="nothing")

    @fb.effect
    async def sets(value: str) -> str:
        before = variable.get()
        variable.set(value)
        await Effect.yield_now()
        return before

    async def task() -> tuple[str, str, str]:
        variable.set("the task's")
        seen = await sets("the effect's")
        forked = await fb.run_fork(sets("the fork's"))
        return seen, forked, variable.get()

    seen = await asyncio.create_task(task())

    assert seen == ("the task's", "the effect's", "the effect's")


@pytest.mark.spec("PD12")
@every_loop
async def test_run_coroutine_threadsafe_runs_effects_from_another_thread() -> None:
    """And cancelling its future interrupts the effect."""
    loop, log = asyncio.get_running_loop(), list[str]()

    async def gives() -> int:
        return await Effect.succeed(5)

    async def waits() -> None:
        await parked(log, "interrupted")

    def elsewhere() -> int:
        value = asyncio.run_coroutine_threadsafe(gives(), loop).result(60)
        asyncio.run_coroutine_threadsafe(waits(), loop).cancel()
        return value

    assert await asyncio.to_thread(elsewhere) == 5
    await turns()

    assert log in ([], ["interrupted"])  # a task cancelled before its first step never runs


@pytest.mark.spec("PD15")
@every_loop
async def test_a_callback_of_the_loop_may_run_and_fork_effects() -> None:
    """Plain synchronous code inside a running loop."""
    log, scope = list[str](), fb.Scope()

    def callback() -> None:
        log.append(f"run_sync {fb.run_sync(Effect.succeed(1))}")
        scope.fork(note(log, "forked"))
        fb.run_callback(Effect.succeed(2), on_exit=lambda ended: log.append(f"{ended.unwrap()}"))

    asyncio.get_running_loop().call_soon(callback)
    await turns()
    await scope.close()

    assert log == ["run_sync 1", "2", "forked"]


@pytest.mark.spec("PD11")
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_the_end_of_asyncio_run_interrupts_and_finalizes_what_was_forked(kind: str) -> None:
    """As it cancels the tasks that are left."""
    log = list[str]()

    async def main() -> None:
        fb.run_fork(slow_farewell(log))
        await turns(1)

    run_on(kind, main())

    assert log == ["finalized"]


@pytest.mark.spec("EX8", "PD7")
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_ctrl_c_in_asyncio_run_finalizes_the_effect_of_its_main_task(kind: str) -> None:
    """The runner cancels the main task: the effect is interrupted, then KeyboardInterrupt."""
    log = list[str]()

    async def main() -> None:
        asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)
        await slow_farewell(log)

    # A shell ignores it for what it starts in the background, and then Python does too.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_on(kind, main())
    finally:
        signal.signal(signal.SIGINT, before)

    assert log == ["finalized"]


# ---- streams and processes


@pytest.mark.spec("PD12", "AT21")
@every_loop
async def test_a_server_of_streams_answers_with_effects() -> None:
    """Each connection is a plain task; a client that leaves is a failure of its effect only."""
    log = list[str]()

    @fb.effect(raises=asyncio.IncompleteReadError)
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readexactly(5)).upper())
        await Effect.promise(writer.drain)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exit = await answer(reader, writer).exit()
        log.append("answered" if isinstance(exit, Success) else str(cause_of(exit)))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        for sent in (b"hello", b"hel"):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(sent)
            writer.write_eof()
            log.append((await reader.read()).decode())
            writer.close()
            await writer.wait_closed()

    assert log[:2] in (["answered", "HELLO"], ["HELLO", "answered"])
    assert any("IncompleteReadError" in line for line in log[2:])


@pytest.mark.spec("AT21")
@pytest.mark.parametrize("end", ["interrupt", "timeout", "scope"])
@every_loop
async def test_a_subprocess_is_killed_and_reaped_with_its_fiber(end: str) -> None:
    """By an ordinary finalizer: when the fiber has ended, no process is left."""
    processes = list[asyncio.subprocess.Process]()

    async def start() -> asyncio.subprocess.Process:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-S",
            "-c",
            "import time; print('up', flush=True); time.sleep(60)",
            stdout=-1,
        )
        processes.append(process)
        return process

    async def kill(process: asyncio.subprocess.Process) -> None:
        process.kill()
        await process.wait()

    async def read(process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        while await process.stdout.readline():
            started.set()

    started = asyncio.Event()
    work: Effect[Any, Any] = fb.acquire_use_release(
        Effect.promise(start),
        lambda process: Effect.promise(lambda: read(process)),
        lambda process, _: Effect.promise(lambda: kill(process)),
    )
    scope = fb.Scope()
    limited: Effect[Any, Any] = work.timeout_option(0.5) if end == "timeout" else work
    fiber: fb.Fiber[Any, Any] = scope.fork(limited)
    await started.wait()
    if end == "interrupt":
        await fiber.interrupt()
    elif end == "scope":
        await scope.close()
    await fiber.exit()

    assert processes[0].returncode == -signal.SIGKILL


# ---- two loops, two threads


@pytest.mark.spec("AT16")
@pytest.mark.parametrize("kind", LOOP_KINDS)
def test_each_thread_may_run_a_loop_with_fibers_of_its_own(kind: str) -> None:
    """They share nothing but the numbers of their fibers."""
    results, errors = list[int](), list[BaseException]()

    async def main() -> None:
        fibers = [fb.run_fork(fb.sleep(0.001).zip(Effect.succeed(n))) for n in range(50)]
        results.append(sum(n for _, n in await fb.Fiber.join_all(fibers)))

    def thread() -> None:
        try:
            run_on(kind, main())
        except BaseException as exc:
            errors.append(exc)

    threads = [threading.Thread(target=thread) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()

    assert errors == []
    assert results == [sum(range(50))] * 4


@pytest.mark.spec("PD14", "AT16")
@every_loop
async def test_a_fiber_of_another_loop_can_be_joined_and_interrupted_from_here() -> None:
    """Through call_soon_threadsafe, both ways."""
    made = list[fb.Fiber[Any, Any]]()
    ready = threading.Event()

    def elsewhere() -> None:
        async def main() -> None:
            made.append(fb.run_fork(endless()))
            ready.set()
            await made[0].exit()

        asyncio.run(main())

    thread = threading.Thread(target=elsewhere)
    thread.start()
    await asyncio.to_thread(ready.wait)
    joining = fb.run_fork(made[0].exit())
    await made[0].interrupt(by=9)
    exit = await joining
    await asyncio.to_thread(thread.join)

    assert isinstance(exit, Failure)
    assert exit == interrupted(9)
