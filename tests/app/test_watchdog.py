"""The watchdog: what holds the loop is named while it does, and nothing else is."""

from __future__ import annotations

import asyncio
import logging
import signal
import subprocess
import sys
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect
from fibers.app import AppScope, Blockage, Watchdog, occupy
from fibers.app.watchdog import Waited, _runs_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.lifecycle

THRESHOLD_SECONDS = 0.05
WAIT_SECONDS = 20.0


class Alarms:
    """What a watchdog told; the test's blocking code waits here for it."""

    def __init__(self) -> None:
        self.told: list[Blockage] = []
        self._heard = threading.Semaphore(0)

    def hear(self, blockage: Blockage) -> None:
        self.told.append(blockage)
        self._heard.release()

    def block_until_told(self) -> None:
        """Block this thread until the watchdog has said so."""
        assert self._heard.acquire(timeout=WAIT_SECONDS)


async def watched(alarms: Alarms) -> AppScope:
    """An app scope with a watchdog in it."""
    scope = AppScope()
    await occupy(scope, Watchdog(THRESHOLD_SECONDS, on_block=alarms.hear))
    return scope


async def test_a_fiber_that_blocks_the_loop_is_named_with_the_line() -> None:
    """While it blocks: the test would hang otherwise."""
    alarms = Alarms()
    scope = await watched(alarms)

    def blocking_call() -> None:
        alarms.block_until_told()

    @fb.effect
    async def innocent_looking() -> None:
        blocking_call()

    fiber = scope.fork(innocent_looking())
    fiber.set_name("culprit")
    await fiber
    await scope.close()

    found = alarms.told[0]
    assert f"#{fiber.id} culprit, running" in found.who
    assert "forked at" in found.who
    code = blocking_call.__code__
    assert any(f"test_watchdog.py:{code.co_firstlineno + 1} in" in p for p in found.places)
    functions = [place.rpartition(".")[2] for place in found.places]
    assert functions.index("innocent_looking") < functions.index("blocking_call")
    assert found.seconds >= THRESHOLD_SECONDS


async def test_a_fiber_that_blocks_in_an_effect_without_a_body_is_named() -> None:
    """There is no coroutine in which to look."""
    alarms = Alarms()
    scope = await watched(alarms)

    fiber = scope.fork(Effect.sync(alarms.block_until_told))
    await fiber
    await scope.close()

    assert f"#{fiber.id}, running" in alarms.told[0].who
    assert any("block_until_told" in place for place in alarms.told[0].places)


async def test_a_plain_task_that_blocks_the_loop_is_named() -> None:
    alarms = Alarms()
    scope = await watched(alarms)

    async def plain() -> None:
        alarms.block_until_told()

    await asyncio.create_task(plain(), name="a plain task")
    await scope.close()

    assert alarms.told[0].who == "task 'a plain task'"
    assert any("plain" in place for place in alarms.told[0].places)


async def test_a_callback_that_blocks_the_loop_is_named() -> None:
    alarms = Alarms()
    scope = await watched(alarms)

    asyncio.get_running_loop().call_soon(alarms.block_until_told)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await scope.close()

    assert alarms.told[0].who == "a callback"
    assert any("block_until_told" in place for place in alarms.told[0].places)


async def test_a_blockage_is_told_again_only_when_it_has_doubled() -> None:
    """So that one that lasts an hour is a dozen lines."""
    alarms = Alarms()
    scope = await watched(alarms)

    @fb.effect
    async def blocker() -> None:
        for _ in range(3):
            alarms.block_until_told()

    await scope.fork(blocker())
    await scope.close()

    seconds = [found.seconds for found in alarms.told]
    assert seconds[1] >= 2 * seconds[0]
    assert seconds[2] >= 2 * seconds[1]


async def test_the_default_is_one_warning() -> None:
    """With the place in it. (A busy machine may have held the loop elsewhere before.)"""
    scope = AppScope()
    heard = threading.Event()
    records: list[logging.LogRecord] = []

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "test_watchdog.py" in record.getMessage():
                records.append(record)
                heard.set()

    handler = Hearing(logging.WARNING)
    logging.getLogger("fibers.app").addHandler(handler)
    try:
        await occupy(scope, Watchdog(THRESHOLD_SECONDS))
        await scope.fork(Effect.sync(lambda: heard.wait(WAIT_SECONDS)))
        await scope.close()
    finally:
        logging.getLogger("fibers.app").removeHandler(handler)

    (record,) = records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("[watchdog] the event loop has not turned for ")


async def test_it_says_what_it_has_seen() -> None:
    """As an occupant, in a dump."""
    alarms = Alarms()
    scope = await watched(alarms)
    before = fb.dump()
    await scope.fork(Effect.sync(alarms.block_until_told))
    after = fb.dump()
    await scope.close()

    assert "occupant watchdog: thresholdSeconds=0.05, blockages=0, longestSeconds=0.0" in before
    assert "blockages=1" in after


async def test_an_alarm_that_raises_does_not_end_the_watch(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = threading.Semaphore(0)

    def broken(_found: Blockage) -> None:
        calls.release()
        raise ValueError("no")

    scope = AppScope()
    await occupy(scope, Watchdog(THRESHOLD_SECONDS, on_block=broken))
    with caplog.at_level(logging.ERROR):
        for _ in range(2):
            await scope.fork(Effect.sync(lambda: calls.acquire(timeout=WAIT_SECONDS)))
    await scope.close()

    assert "on_block raised" in caplog.text


async def test_the_close_of_the_scope_ends_its_thread() -> None:
    """Promptly: it does not wait out the threshold."""
    scope, watchdog = AppScope(), Watchdog(3600)
    await occupy(scope, watchdog)
    thread = watchdog._thread
    assert thread is not None

    await scope.close()
    thread.join(WAIT_SECONDS)

    assert not thread.is_alive()


async def test_a_watchdog_watches_one_loop() -> None:
    scope, watchdog = AppScope(), Watchdog()
    await occupy(scope, watchdog)

    with pytest.raises(RuntimeError, match="make one for each loop"):
        await watchdog.start(scope)
    await scope.close()


@pytest.mark.spec("PD18")
@pytest.mark.parametrize("threshold", [0, -1, float("nan"), float("inf"), timedelta(0)])
def test_a_threshold_that_is_not_positive_is_refused(threshold: Any) -> None:
    with pytest.raises(ValueError, match="threshold must"):
        Watchdog(threshold)


# ---- no false alarm


def test_time_on_the_clock_counts_while_the_ticks_come() -> None:
    waited = Waited(1.0, now=100.0, processor=5.0)

    assert waited.until(101.0, 5.0) == 1.0
    assert waited.until(102.5, 5.0) == 2.5


def test_a_process_that_was_stopped_for_an_hour_has_waited_for_a_tick() -> None:
    waited = Waited(1.0, now=100.0, processor=5.0)

    assert waited.until(3700.0, 5.001) == 1.0


def test_what_kept_every_thread_from_running_counts_with_its_processor_time() -> None:
    """C code that holds the interpreter's lock: a regular expression, say."""
    waited = Waited(1.0, now=100.0, processor=5.0)

    assert waited.until(110.0, 14.0) == 9.0


def test_other_threads_of_a_stopped_process_cannot_make_it_longer_than_it_was() -> None:
    waited = Waited(1.0, now=100.0, processor=5.0)

    assert waited.until(110.0, 45.0) == 10.0


async def test_a_loop_that_waits_for_events_holds_nothing() -> None:
    """Where its answer is late all the same, the machine is slow."""
    loop, watched = asyncio.get_running_loop(), threading.get_ident()

    def look_until_idle() -> bool:
        until = time.monotonic() + WAIT_SECONDS
        while time.monotonic() < until:
            if _runs_on(loop, watched, 1.0) is None:
                return True
        return False

    assert await asyncio.to_thread(look_until_idle)


PROGRAM = """
import asyncio, re, sys, threading, time
import fibers as fb
from fibers.app import AppScope, Watchdog, occupy

told, heard = [], threading.Event()

def hear(blockage):
    told.append(blockage)
    heard.set()

async def backtrack():
    for _ in range(20):
        re.match("(a+)+$", "a" * 24 + "b")
        if await asyncio.to_thread(heard.wait, 0.5):
            return

async def main():
    scope = AppScope()
    await occupy(scope, Watchdog({threshold}, on_block=hear))
    print("ready", flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.readline)
    {then}
    await scope.close()

asyncio.run(main())
print(len(told), flush=True)
for each in told:
    print(each, flush=True)
"""


def program(folder: Path, *, threshold: float, then: str = "pass") -> subprocess.Popen[str]:
    path = folder / "program.py"
    path.write_text(PROGRAM.format(threshold=threshold, then=then), encoding="utf-8")
    started = subprocess.Popen(
        [sys.executable, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert started.stdout is not None
    assert started.stdout.readline() == "ready\n"
    return started


def state_of(process: subprocess.Popen[str]) -> str:
    """The letter of /proc: T is stopped."""
    with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
        return file.read().rpartition(")")[2].split()[0]


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.005)


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_process_that_was_stopped_raises_no_alarm(tmp_path: Path) -> None:
    """For ten times the threshold, as a debugger or a laptop's lid does it."""
    process = program(tmp_path, threshold=0.1)
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: state_of(process) == "T")
    time.sleep(1.0)  # what is tested is that real time goes by while nothing runs
    process.send_signal(signal.SIGCONT)
    output, _ = process.communicate("go\n", timeout=WAIT_SECONDS)

    assert output == "0\n"


@pytest.mark.slow
def test_code_that_keeps_every_thread_from_running_is_named_when_it_lets_go(
    tmp_path: Path,
) -> None:
    """A regular expression that backtracks: no thread can look while it does. Again if the machine
    was too busy to look at the right moment.
    """
    process = program(tmp_path, threshold=0.1, then="await backtrack()")
    output, _ = process.communicate("go\n", timeout=60)

    assert not output.startswith("0\n")
    assert "program.py" in output
