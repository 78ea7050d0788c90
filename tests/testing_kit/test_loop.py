"""TestLoop: time that jumps exactly when nothing is ready."""

from __future__ import annotations

import asyncio
import concurrent.futures
import math
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any, TypeVar

import pytest

import fibers as fb
from fibers.testing import StalledError, TestLoop, virtual_time

A_DAY_SECONDS = 86_400.0
T = TypeVar("T")


def in_test_loop(
    main: Coroutine[Any, Any, T], *, io_grace_seconds: float = 0.05, stall_seconds: float = 5.0
) -> T:
    def make() -> TestLoop:
        return TestLoop(io_grace_seconds=io_grace_seconds, stall_seconds=stall_seconds)

    with asyncio.Runner(loop_factory=make) as runner:
        return runner.run(main)


def test_asyncio_sleeps_take_no_time() -> None:
    """Plain asyncio code, a day of it, in less than a second."""

    async def main() -> float:
        await asyncio.sleep(A_DAY_SECONDS)
        return asyncio.get_running_loop().time()

    begin = time.monotonic()
    assert in_test_loop(main()) == A_DAY_SECONDS
    assert time.monotonic() - begin < 5


def test_sleeps_of_fibers_and_the_clock_they_ask_agree() -> None:
    async def main() -> tuple[float, float]:
        clock = await fb.current_clock()
        before = clock.now()
        await fb.sleep(90)
        return clock.now() - before, asyncio.get_running_loop().time()

    assert in_test_loop(main()) == (90, 90)


def test_timers_fire_in_order_and_at_their_time() -> None:
    log: list[tuple[float, str]] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()

        async def say(name: str, after: float) -> None:
            await asyncio.sleep(after)
            log.append((loop.time(), name))

        await asyncio.gather(say("late", 20), say("soon", 10), say("latest", 30))

    in_test_loop(main())
    assert log == [(10, "soon"), (20, "late"), (30, "latest")]


def test_a_timeout_fires_before_what_takes_longer() -> None:
    async def main() -> str:
        try:
            async with asyncio.timeout(5):
                await asyncio.sleep(6)
        except TimeoutError:
            return "timed out"
        return "ended"

    assert in_test_loop(main()) == "timed out"


def test_time_stands_still_while_a_thread_works() -> None:
    async def main() -> list[str]:
        log: list[str] = []

        async def thread() -> None:
            await asyncio.to_thread(time.sleep, 0.1)
            log.append("thread")

        async def timer() -> None:
            await asyncio.sleep(60)
            log.append("timer")

        await asyncio.gather(timer(), thread())
        return log

    assert in_test_loop(main()) == ["thread", "timer"]


def test_a_child_process_is_waited_for() -> None:
    async def main() -> int:
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", "import time; time.sleep(0.2)"
        )
        async with asyncio.timeout(3600):
            return await child.wait()

    assert in_test_loop(main(), io_grace_seconds=20.0) == 0


def test_a_socket_has_its_grace_of_real_time() -> None:
    async def main() -> bytes:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server, asyncio.timeout(3600):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"hello\n")
            try:
                return await reader.read()
            finally:
                writer.close()

    assert in_test_loop(main(), io_grace_seconds=10.0) == b"hello\n"


def test_a_test_that_would_hang_says_what_waits() -> None:
    async def main() -> None:
        fb.run_fork(fb.Effect.never())
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StalledError, match="nothing can happen any more") as caught:
        in_test_loop(main(), stall_seconds=0.05)
    assert "fiber" in str(caught.value)


@virtual_time
async def test_a_decorated_test_runs_in_virtual_time() -> None:
    await asyncio.sleep(A_DAY_SECONDS)
    assert asyncio.get_running_loop().time() == A_DAY_SECONDS


@pytest.mark.parametrize("number", [1, 2])
@virtual_time
async def test_a_decorated_test_keeps_its_fixtures(
    number: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assert number in (1, 2)
    assert tmp_path_factory.getbasetemp().exists()


def test_a_shell_is_waited_for_too() -> None:
    async def main() -> int:
        child = await asyncio.create_subprocess_shell("sleep 0.2")
        async with asyncio.timeout(3600):
            return await child.wait()

    assert in_test_loop(main(), io_grace_seconds=20.0) == 0


def test_an_executor_that_works_at_once_holds_nothing_up() -> None:
    """What it gives is done before the loop hears of it; time goes on."""

    class AtOnce(concurrent.futures.Executor):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            done: concurrent.futures.Future[Any] = concurrent.futures.Future()
            done.set_result(fn(*args, **kwargs))
            return done

    async def main() -> tuple[int, float]:
        loop = asyncio.get_running_loop()
        value = await loop.run_in_executor(AtOnce(), lambda: 5)
        await asyncio.sleep(60)
        return value, loop.time()

    assert in_test_loop(main()) == (5, 60.0)


def test_a_thread_that_the_loop_was_not_told_of_may_still_wake_it() -> None:
    """Within the time after which it would give up."""

    async def main() -> int:
        loop = asyncio.get_running_loop()
        came: asyncio.Future[int] = loop.create_future()

        def call() -> None:
            time.sleep(0.1)
            loop.call_soon_threadsafe(came.set_result, 5)

        threading.Thread(target=call).start()
        return await came

    assert in_test_loop(main(), stall_seconds=20.0) == 5


def test_a_socket_on_which_nothing_comes_holds_time_up_for_its_grace_only() -> None:
    async def main() -> float:
        server = await asyncio.start_server(lambda _, __: None, "127.0.0.1", 0)
        async with server:
            await asyncio.sleep(A_DAY_SECONDS)
        return asyncio.get_running_loop().time()

    assert in_test_loop(main(), io_grace_seconds=0.01) >= A_DAY_SECONDS


@pytest.mark.parametrize("years", [1, 100, 10_000])
def test_a_far_timer_is_reached_in_one_jump(years: int) -> None:
    """Where a float no longer tells nanoseconds apart, too."""
    seconds = years * 365 * A_DAY_SECONDS

    async def main() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        await asyncio.sleep(seconds)
        far = loop.time()
        await asyncio.sleep(1)
        return far, loop.time()

    assert in_test_loop(main()) == (seconds, seconds + 1)


def test_time_is_exactly_what_a_timer_was_set_to() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(1000):
            due = loop.time() + 0.1
            await asyncio.sleep(0.1)
            assert loop.time() == due

    in_test_loop(main())


def test_timers_of_the_same_time_fire_in_the_order_they_were_set_in() -> None:
    """asyncio's heap keeps none among equals."""
    log: list[int] = []

    async def main() -> None:
        loop = asyncio.get_running_loop()
        for number in range(50):
            loop.call_later(1, log.append, number)
        loop.call_later(0.5, log.append, -1)
        await asyncio.sleep(1)
        await fb.for_each(
            range(50, 100),
            lambda number: fb.sleep(1).map(lambda _: log.append(number)),
            concurrency="unbounded",
        )

    in_test_loop(main())

    assert log == list(range(-1, 100))


def test_a_timer_at_infinity_is_none() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        loop.call_later(math.inf, print)
        await loop.create_future()

    with pytest.raises(StalledError):
        in_test_loop(main(), stall_seconds=0.05)


def test_a_test_that_would_hang_names_its_plain_tasks() -> None:
    async def lonely() -> None:
        await asyncio.get_running_loop().create_future()

    async def main() -> None:
        await asyncio.create_task(lonely(), name="the lonely one")

    with pytest.raises(StalledError, match=r"task 'the lonely one', at .* in .*lonely") as caught:
        in_test_loop(main(), stall_seconds=0.05)
    assert "in test_a_test_that_would_hang_names_its_plain_tasks.<locals>.main" in str(caught.value)


def test_of_very_many_plain_tasks_some_are_named() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        await asyncio.gather(*[asyncio.wait([loop.create_future()]) for _ in range(100)])

    with pytest.raises(StalledError, match=r"\.\.\. 81 more tasks"):
        in_test_loop(main(), stall_seconds=0.05)
