"""Starting an application: steps, occupants, the watchdog."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any, assert_type

from fibers import Effect, Scope
from fibers.app import (
    AppScope,
    Blockage,
    Occupant,
    Shutdown,
    Startup,
    StartupStepTimeoutError,
    Watchdog,
    occupy,
)
from streamengine import StreamEngine
from tests.typing.kit import NotFound


class Lodger:
    """An occupant by its shape; no base class."""

    name = "lodger"

    def start(self, scope: Scope) -> Effect[None, NotFound]:
        return Effect.fail(NotFound())

    def describe(self) -> Mapping[str, int]:
        return {"rooms": 1}


async def a_step() -> int:
    return 1


def plain() -> None: ...


def starts(app_scope: AppScope, shutdown: Shutdown) -> None:
    startup = Startup([("a", a_step), ("b", lambda: Effect.succeed(2))], timedelta(seconds=5))
    assert_type(startup.run(), Effect[None, Exception])
    assert_type(startup.durations_ms, dict[str, float])
    Startup(
        [("move in", lambda: occupy(app_scope, Lodger()))],
        step_timeout=5,
        shutdown=shutdown,
        housekeeping=[("sweep", a_step)],
        services=[("tick", plain), ("tock", a_step)],
    )


def says(error: StartupStepTimeoutError) -> None:
    assert_type(error.step, str)
    assert_type(error.timeout, timedelta)


def moves_in(app_scope: AppScope, engine: StreamEngine) -> None:
    assert_type(occupy(app_scope, Lodger(), engine, Watchdog()), Effect[None, Any])
    occupants: list[Occupant] = [Lodger(), engine, Watchdog(0.5)]
    occupy(app_scope, *occupants)


def hears(found: Blockage) -> None:
    assert_type(found.seconds, float)
    assert_type(found.places, tuple[str, ...])
    Watchdog(timedelta(milliseconds=500), on_block=hears)
