"""Occupants: how a service moves into the app scope, and what is seen of it there."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import fibers as fb
from fibers import Effect, Scope
from fibers.app import AppScope, Occupant, Watchdog, occupy

pytestmark = pytest.mark.lifecycle

ROOT = Path(__file__).resolve().parents[2]


class Lodger:
    """Writes what happens to it."""

    def __init__(
        self, log: list[str], name: str = "lodger", error: Exception | None = None
    ) -> None:
        self.name = name
        self._log = log
        self._error = error

    def start(self, scope: Scope) -> Effect[None, Any]:
        @fb.effect(raises=Exception)
        async def begin() -> None:
            self._log.append(f"{self.name} starts")
            await asyncio.sleep(0)
            if self._error is not None:
                raise self._error
            never: Effect[None] = Effect.never()
            ends = Effect.sync(lambda: self._log.append(f"{self.name} ends"))
            scope.fork(never.on_interrupt(lambda _: ends), start_immediately=True)
            self._log.append(f"{self.name} started")

        return begin()

    def describe(self) -> Mapping[str, object]:
        return {"says": self.name}


async def test_occupants_start_one_after_another_and_end_with_the_scope() -> None:
    log, scope = list[str](), AppScope()

    await occupy(scope, Lodger(log, "a"), Lodger(log, "b"))
    await scope.close()

    assert log[:4] == ["a starts", "a started", "b starts", "b started"]
    assert sorted(log[4:]) == ["a ends", "b ends"]


async def test_an_occupant_is_in_the_dump_from_its_start_on() -> None:
    """One sees what a start waits for, too."""
    scope = AppScope()
    seen = list[str]()

    class Slow(Lodger):
        def start(self, scope: Scope) -> Effect[None, Any]:
            return Effect.sync(lambda: seen.append(fb.dump()))

    await occupy(scope, Slow([]))
    seen.append(fb.dump())
    await scope.close()

    assert all("occupant lodger: says='lodger'" in text for text in seen)


async def test_an_occupant_is_described_while_its_scope_closes() -> None:
    """That is when it matters what is still in flight."""
    log, scope, gate = list[str](), AppScope(), asyncio.Event()
    await occupy(scope, Lodger(log))
    scope.fork(Effect.promise(gate.wait).uninterruptible(), start_immediately=True)

    closing = fb.run_fork(scope.close())
    await asyncio.sleep(0)
    while_closing = fb.dump()
    gate.set()
    await closing

    assert "AppScope, parallel, closed" in while_closing
    assert "occupant lodger" in while_closing
    assert "occupant lodger" not in fb.dump()


async def test_a_start_that_fails_fails_the_call_and_the_later_ones_do_not_start() -> None:
    log, scope = list[str](), AppScope()
    error = ValueError("no room")

    with pytest.raises(ValueError, match="no room") as told:
        await occupy(scope, Lodger(log, "a"), Lodger(log, "b", error), Lodger(log, "c"))

    text = fb.dump()
    await scope.close()
    assert told.value is error
    assert log == ["a starts", "a started", "b starts", "a ends"]
    assert "occupant a: " in text
    assert "occupant b: " not in text


async def test_one_that_failed_may_try_again() -> None:
    log, scope = list[str](), AppScope()
    with pytest.raises(ValueError, match="no room"):
        await occupy(scope, Lodger(log, error=ValueError("no room")))

    await occupy(scope, Lodger(log))
    await scope.close()

    assert log[-1] == "lodger ends"


async def test_an_interrupted_start_leaves_no_occupant() -> None:
    scope = AppScope()

    class Stuck(Lodger):
        def start(self, scope: Scope) -> Effect[None, Any]:
            return Effect.never()

    moving_in = fb.run_fork(occupy(scope, Stuck([])))
    before = fb.dump()
    await moving_in.interrupt()

    assert "occupant lodger" in before
    assert "occupant lodger" not in fb.dump()


@pytest.mark.spec("PD18")
async def test_two_of_one_name_are_refused_at_the_call() -> None:
    """Before anything starts: in one call, or beside one that is there."""
    log, scope = list[str](), AppScope()

    with pytest.raises(ValueError, match="names of their own: lodger twice"):
        occupy(scope, Lodger(log), Lodger(log))
    await occupy(scope, Lodger(log))
    with pytest.raises(ValueError, match="names of their own: lodger twice"):
        occupy(scope, Lodger(log))
    await scope.close()

    assert log == ["lodger starts", "lodger started", "lodger ends"]


async def test_two_of_one_name_in_calls_at_the_same_time_are_refused_too() -> None:
    """The check at the call has not seen the other one yet."""
    log, scope = list[str](), AppScope()
    first, second = occupy(scope, Lodger(log)), occupy(scope, Lodger(log))

    await first
    with pytest.raises(ValueError, match="lodger twice"):
        await second
    text = fb.dump()
    await scope.close()

    assert "occupant lodger" in text
    assert log == ["lodger starts", "lodger started", "lodger ends"]


async def test_nobody_moves_into_a_closed_scope() -> None:
    log, scope = list[str](), AppScope()
    await scope.close()

    with pytest.raises(RuntimeError, match=r"lodger can't move into .* before the shutdown"):
        await occupy(scope, Lodger(log))

    assert log == []


def test_the_watchdog_is_an_occupant() -> None:
    assert isinstance(Watchdog(), Occupant)


@pytest.mark.slow
def test_the_example_runs_and_says_what_its_guide_says() -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "examples.occupant"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    guide = (ROOT / "docs" / "occupants.md").read_text(encoding="utf-8")

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        "tea is ready!\noccupant reminders: waiting=['call home']\nsaved: call home\n"
    )
    assert f"```text\n{done.stdout}```" in guide
