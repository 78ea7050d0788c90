"""What both checkers have to refuse about starts and occupants: the marked lines, no other."""

from __future__ import annotations

from fibers import Effect, Scope
from fibers.app import AppScope, Startup, Watchdog, occupy


class Silent:
    """Says nothing of what it has in flight."""

    name = "silent"

    def start(self, scope: Scope) -> Effect[None]:
        return Effect.succeed(None)


def an_occupant_that_describes_nothing(app_scope: AppScope) -> None:
    occupy(app_scope, Silent())  # rejected: arg-type, reportArgumentType


def an_occupant_of_any_scope(scope: Scope) -> None:
    occupy(scope, Watchdog())  # rejected: arg-type, reportArgumentType


def a_step_that_is_no_call(step: Effect[None]) -> None:
    Startup([("open", step)])  # rejected: list-item, reportArgumentType


def an_alarm_that_takes_nothing() -> None:
    def hear() -> None: ...

    Watchdog(on_block=hear)  # rejected: arg-type, reportArgumentType
