"""Schedules and scopes nested thousands deep, where Python's stack would not do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

import fibers as fb
from fibers import Effect, Schedule, Scope
from fibers.dump.groups import as_json, report
from fibers.dump.tree import snapshot

LEVELS = 2000

now: Schedule[int] = Schedule.recurs(2)
NESTED: dict[str, Callable[[Schedule[Any]], Schedule[Any]]] = {
    "concat": lambda s: s.concat(Schedule.recurs(0)),
    "concat, from behind": lambda s: Schedule.recurs(0).concat(s),
    "max": lambda s: s.max(Schedule.spaced(0)),
    "max, from behind": lambda s: Schedule.spaced(0).max(s),
    "min": lambda s: s.min(Schedule.recurs(0)),
    "map": lambda s: s.map(lambda m: m.output),
    "while_": lambda s: s.while_(lambda _: True),
    "tap": lambda s: s.tap(lambda _: Effect.succeed(None)),
    "modify_delay": lambda s: s.modify_delay(lambda m: m.duration),
    "add_delay": lambda s: s.add_delay(lambda _: 0),
    "jittered": lambda s: s.jittered(),
    "up_to": lambda s: s.up_to(10),
    "passthrough": lambda s: s.passthrough(),
}


def runs_of(schedule: Schedule[Any]) -> int:
    """How often an effect is run that is repeated on it."""
    runs: list[None] = []
    fb.run(Effect.sync(lambda: runs.append(None)).repeat(schedule))
    return len(runs)


@pytest.mark.spec("SD4")
@pytest.mark.parametrize("how", NESTED)
def test_a_schedule_of_thousands_says_what_a_short_one_does(how: str) -> None:
    nest = NESTED[how]
    short: Schedule[Any] = nest(nest(now))
    deep: Schedule[Any] = now
    for _ in range(LEVELS):
        deep = nest(deep)

    # `recurs(0)` in front or behind adds nothing.
    assert runs_of(deep) == runs_of(short) == 3


@pytest.mark.spec("SD4")
def test_thousands_of_schedules_side_by_side_are_asked_one_after_the_other() -> None:
    assert runs_of(now.max(*[Schedule.spaced(0)] * LEVELS)) == 3
    assert runs_of(now.min(*[Schedule.recurs(1)] * LEVELS)) == 3


@pytest.mark.spec("SO5")
async def test_thousands_of_scopes_inside_each_other_are_told_and_closed() -> None:
    outermost = scope = Scope()
    for _ in range(LEVELS):
        scope = scope.fork_scope()
    fiber = scope.fork(Effect.never())
    await asyncio.sleep(0)

    text = fb.dump()
    plain = as_json(report(snapshot()))
    await outermost.close()

    assert "... more below" in text
    assert plain["count"] >= 1
    assert fiber.done()
