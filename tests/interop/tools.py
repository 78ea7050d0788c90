"""What people use inside a body: each a short program that fails if its tool doesn't work there.

The same programs run in a plain fiber, under masks and in cleanups (AT21).
"""

from __future__ import annotations

import asyncio
import contextvars
import sys
from typing import TYPE_CHECKING, Any, Final

import aiosqlite
import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx
import pytest

import fibers as fb
from fibers import Effect

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

TOOLS: Final[dict[str, Callable[[], Awaitable[None]]]] = {}


class Boom(Exception):
    """The error of these programs."""


def tool(f: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
    """Add a program to the list, under its own name."""
    TOOLS[getattr(f, "__name__").replace("_", " ")] = f  # noqa: B009  # a Callable has no such name for type checkers
    return f


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


async def fails() -> None:
    await asyncio.sleep(0)
    raise Boom


async def gives(value: int) -> int:
    await asyncio.sleep(0)
    return value


async def fails_as_a_group(main: Callable[[], Awaitable[None]]) -> None:
    """``main`` ends with the error of a task, in a group."""
    with pytest.raises(ExceptionGroup) as raised:
        await main()
    assert raised.group_contains(Boom)


# ---- asyncio


@tool
async def timeout_that_expires() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001):
            await forever()


@tool
async def timeout_in_time() -> None:
    async with asyncio.timeout(60) as limit:
        await asyncio.sleep(0)
    assert not limit.expired()


@tool
async def nested_timeouts() -> None:
    async with asyncio.timeout(60):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await forever()
    await asyncio.sleep(0)


@tool
async def task_group() -> None:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(gives(n)) for n in range(3)]
    assert [task.result() for task in tasks] == [0, 1, 2]


@tool
async def task_group_that_aborts_its_parent() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            await forever()

    await fails_as_a_group(main)
    await asyncio.sleep(0)


@tool
async def task_group_that_fails_at_its_end() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())
            group.create_task(forever())

    await fails_as_a_group(main)
    await asyncio.sleep(0)


@tool
async def task_group_in_a_task_group() -> None:
    async def main() -> None:
        async with asyncio.TaskGroup() as outer:
            outer.create_task(forever())
            async with asyncio.TaskGroup() as inner:
                inner.create_task(fails())

    await fails_as_a_group(main)
    await asyncio.sleep(0)


@tool
async def task_group_in_a_timeout() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.001), asyncio.TaskGroup() as group:
            group.create_task(forever())


@tool
async def gather() -> None:
    assert list(await asyncio.gather(gives(1), gives(2))) == [1, 2]
    with pytest.raises(Boom):
        await asyncio.gather(gives(1), fails())
    kept = await asyncio.gather(gives(1), fails(), return_exceptions=True)
    assert isinstance(kept[1], Boom)


@tool
async def wait() -> None:
    slow, fast = asyncio.create_task(forever()), asyncio.create_task(gives(1))
    done, pending = await asyncio.wait([slow, fast], return_when=asyncio.FIRST_COMPLETED)
    assert (done, pending) == ({fast}, {slow})
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow


@tool
async def wait_for() -> None:
    assert await asyncio.wait_for(gives(3), 60) == 3
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(forever(), 0.001)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(forever(), 0)


@tool
async def as_completed() -> None:
    assert sorted([await each for each in asyncio.as_completed([gives(2), gives(1)])]) == [1, 2]


@tool
async def shield() -> None:
    assert await asyncio.shield(gives(4)) == 4


@tool
async def queue() -> None:
    items = asyncio.Queue[int](1)

    async def produce() -> None:
        for n in range(3):
            await items.put(n)

    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        assert [await items.get() for _ in range(3)] == [0, 1, 2]


@tool
async def lock_and_semaphore() -> None:
    lock, semaphore, log = asyncio.Lock(), asyncio.Semaphore(1), list[int]()

    async def critical(n: int) -> None:
        async with lock, semaphore:
            log.append(n)
            await asyncio.sleep(0)
            log.append(n)

    async with asyncio.TaskGroup() as group:
        for n in range(3):
            group.create_task(critical(n))
        await critical(3)
    assert [a for a, b in zip(log[::2], log[1::2], strict=True) if a != b] == []


@tool
async def event_and_condition() -> None:
    event, condition = asyncio.Event(), asyncio.Condition()

    async def set_both() -> None:
        event.set()
        async with condition:
            condition.notify_all()

    async with condition:
        task = asyncio.create_task(set_both())
        await event.wait()
        await condition.wait()
    await task


@tool
async def barrier() -> None:
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        meeting = asyncio.Barrier(2)
        group.create_task(meeting.wait())
        await meeting.wait()


@tool
async def task_cancelled_and_awaited() -> None:
    task = asyncio.create_task(forever())
    await asyncio.sleep(0)
    task.cancel("enough")
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.sleep(0)


@tool
async def to_thread() -> None:
    assert await asyncio.to_thread(sum, [1, 2]) == 3
    assert await asyncio.get_running_loop().run_in_executor(None, sum, [1, 2]) == 3


@tool
async def subprocess() -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-S", "-c", "print(input())", stdin=-1, stdout=-1
    )
    out, _ = await process.communicate(b"hello\n")
    assert (out, process.returncode) == (b"hello\n", 0)


@tool
async def streams() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        await writer.drain()
        assert await reader.read() == b"hello\n"
        writer.close()
        await writer.wait_closed()


@tool
async def context_variables() -> None:
    variable = contextvars.ContextVar("variable", default="outside")
    token = variable.set("inside")
    await asyncio.sleep(0)
    assert variable.get() == "inside"
    assert await asyncio.create_task(_read(variable)) == "inside"
    assert await asyncio.to_thread(variable.get) == "inside"
    await Effect.yield_now()
    variable.reset(token)
    assert variable.get() == "outside"


async def _read(variable: contextvars.ContextVar[str]) -> str:
    return variable.get()


@tool
async def current_task() -> None:
    task = asyncio.current_task()
    assert task is not None
    assert not task.done()
    await asyncio.sleep(0)
    # Not before: a fiber that never suspends is in no list.
    assert task in asyncio.all_tasks()
    assert asyncio.current_task() == task


# ---- anyio


@tool
async def anyio_task_group() -> None:
    log = list[int]()

    async def child(n: int) -> None:
        await anyio.lowlevel.checkpoint()
        log.append(n)

    async with anyio.create_task_group() as group:
        for n in range(3):
            group.start_soon(child, n)
    assert sorted(log) == [0, 1, 2]


@tool
async def anyio_task_group_that_aborts_its_parent() -> None:
    async def main() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(fails)
            await anyio.sleep_forever()

    await fails_as_a_group(main)
    await anyio.lowlevel.checkpoint()


@tool
async def anyio_group_that_is_cancelled() -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep_forever)
        await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert group.cancel_scope.cancelled_caught
    await anyio.lowlevel.checkpoint()


@tool
async def anyio_move_on_after() -> None:
    with anyio.move_on_after(0.001) as scope:
        await anyio.sleep_forever()
    assert scope.cancelled_caught
    with pytest.raises(TimeoutError), anyio.fail_after(0.001):
        await anyio.sleep_forever()
    await anyio.lowlevel.checkpoint()


@tool
async def anyio_shielded_scope() -> None:
    log = list[str]()
    with anyio.CancelScope() as outer:
        outer.cancel()
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            log.append("shielded")
        await anyio.sleep_forever()
    assert log == ["shielded"]
    assert outer.cancelled_caught


@tool
async def anyio_streams_and_events() -> None:
    send, receive = anyio.create_memory_object_stream[int](0)
    event = anyio.Event()

    async def produce() -> None:
        async with send:
            await send.send(1)
        event.set()

    async with receive, anyio.create_task_group() as group:
        group.start_soon(produce)
        assert [item async for item in receive] == [1]
        await event.wait()


@tool
async def anyio_threads() -> None:
    assert await anyio.to_thread.run_sync(lambda: "from a thread") == "from a thread"
    assert await anyio.to_thread.run_sync(lambda: anyio.from_thread.run(gives, 5)) == 5


# ---- libraries


@tool
async def httpx_client() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nhello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, httpx.AsyncClient(trust_env=False) as client:
        response = await client.get(f"http://127.0.0.1:{port}/")
        async with client.stream("GET", f"http://127.0.0.1:{port}/") as stream:
            parts = [part async for part in stream.aiter_bytes()]
    assert response.text == "hello"
    assert b"".join(parts) == b"hello"


@tool
async def aiosqlite_database() -> None:
    async with aiosqlite.connect(":memory:") as db:
        await db.execute("create table t (n integer)")
        await db.executemany("insert into t values (?)", [(1,), (2,)])
        await db.commit()
        async with db.execute("select sum(n) from t") as cursor:
            assert await cursor.fetchone() == (3,)


# ---- effects, under what plain tasks do


@tool
async def effects_in_tasks() -> None:
    async def task(n: int) -> Any:
        await fb.sleep(0)
        return await Effect.succeed(n).zip(Effect.yield_now())

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(task(n)) for n in range(3)]
    assert [t.result()[0] for t in tasks] == [0, 1, 2]
