"""Probes of the dump's text: readable with one fiber and with ten thousand."""

from __future__ import annotations

import json
import logging
import re
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect, Scope
from fibers.app import AppScope, close_bounded
from fibers.app.scope import NAMED_STILL_ALIVE
from fibers.dump import as_json, report, snapshot
from fibers.dump.groups import ALIKE_FROM, SIBLINGS_SHOWN
from fibers.dump.groups import report as grouped
from fibers.dump.render import LINES_SHOWN, text_of
from fibers.dump.tree import FiberShot, ScopeShot, Snapshot
from tests.probes.kit_f import endless, new_gate, turns, wait_for

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


@pytest.fixture
async def scope() -> AsyncIterator[AppScope]:
    """A scope for the fibers of a test, closed after it."""
    scope = AppScope(name="under test")
    yield scope
    await scope.close()


def a_shot(id: int, **fields: Any) -> FiberShot:
    """A fiber as a snapshot shows it."""
    given: dict[str, Any] = {
        "name": None,
        "state": "suspended",
        "masked": False,
        "interrupts": (),
        "age_seconds": 1.0,
        "places": ("a.py:1 in main",),
        "waits_for": "never",
        "forked_at": "b.py:2",
    }
    return FiberShot(id=id, **{**given, **fields})


def text_with(*fibers: FiberShot) -> str:
    """The text of a process that has these fibers, owned by nobody."""
    count = len(fibers) + sum(len(fiber.children) for fiber in fibers)
    return text_of(grouped(Snapshot(count, [], list(fibers))))


# ---- one fiber


def test_one_fiber_is_a_line_and_its_places() -> None:
    shot = a_shot(3, name="pump", masked=True, interrupts=("by #1 (system)",), age_seconds=3.25)
    said = "#3 pump, suspended, for 3.2 s, masked, interrupted by #1 (system)"

    assert text_with(shot).splitlines() == [
        "1 live fiber: 1 suspended",
        "owned by no scope",
        f"  {said}; waits for never; forked at b.py:2",
        "      a.py:1 in main",
    ]


def test_nothing_alive_is_said_so() -> None:
    assert text_of(grouped(Snapshot(0, [], []))) == "no live fibers"


async def test_names_cannot_break_a_line(scope: AppScope) -> None:
    """A name may come from what somebody sent."""
    scope.fork(endless(), start_immediately=True).set_name("a\nforged line\x1b[2J")

    text = fb.dump()

    assert r"a\nforged line\x1b[2J" in text
    assert all(line.isprintable() for line in text.splitlines())


# ---- many


async def test_ten_thousand_fibers_that_are_alike_are_one_entry(scope: AppScope) -> None:
    """With how many, from which to which, and how old."""
    fibers = [scope.fork(endless(), start_immediately=True) for _ in range(10_000)]

    text = fb.dump()

    assert len(text.splitlines()) < 30
    first, last = fibers[0].id, fibers[-1].id
    assert re.search(
        rf"10,000 alike, #{first} to #{last}, suspended, for .*; waits for never", text
    )


async def test_ten_thousand_fibers_with_names_of_their_own_are_one_entry(scope: AppScope) -> None:
    """Some of the names stand in it."""
    for at in range(10_000):
        name = f"job {at:x} of {at * 7:x}"
        scope.fork(endless(), start_immediately=True).set_name(name)

    text = fb.dump()

    assert len(text.splitlines()) < 30
    assert "job 0 of 0, job 1 of 7, job 2 of e, ..." in text


async def test_a_few_fibers_with_different_names_are_shown_each_for_itself(
    scope: AppScope,
) -> None:
    for name in ("red", "green", "blue"):
        scope.fork(endless(), start_immediately=True).set_name(name)

    text = fb.dump()

    assert [line.split(",")[0].split()[1] for line in text.splitlines() if "never" in line] == [
        "red",
        "green",
        "blue",
    ]


async def test_what_differs_in_numbers_only_is_alike_when_there_is_much_of_it(
    scope: AppScope,
) -> None:
    targets = [scope.fork(endless(), start_immediately=True) for _ in range(ALIKE_FROM)]
    for target in targets:
        scope.fork(target.join(), start_immediately=True)

    text = fb.dump()

    assert text.count("waits for join of") == 1
    assert f"{ALIKE_FROM} alike" in text


async def test_few_that_wait_for_different_things_are_not_alike(scope: AppScope) -> None:
    for seconds in (100, 200):
        scope.fork(fb.sleep(seconds), start_immediately=True)

    text = fb.dump()

    assert "sleep(100)" in text
    assert "sleep(200)" in text


async def test_another_place_makes_another_group(scope: AppScope) -> None:
    @fb.effect
    async def here() -> None:
        await Effect.never()

    @fb.effect
    async def there() -> None:
        await Effect.never()

    for body in (here, there):
        for _ in range(20):
            scope.fork(body(), start_immediately=True)

    text = fb.dump()

    assert text.count("20 alike") == 2


@pytest.mark.parametrize(
    "other",
    [
        {"state": "ready"},
        {"masked": True},
        {"interrupts": ("by #1 (system)",)},
        {"forked_at": "c.py:9"},
        {"waits_for": "callback"},
    ],
    ids=lambda other: next(iter(other)),
)
def test_what_differs_in_anything_else_is_not_alike(other: dict[str, Any]) -> None:
    same = [a_shot(id) for id in range(1, 11)]
    different = [a_shot(id, **other) for id in range(11, 21)]

    assert text_with(*same, *different).count("10 alike") == 2


def test_those_with_other_children_are_not_alike() -> None:
    """A group shows one subtree for all: they have to look the same all the way down."""
    with_child = [a_shot(id, children=[a_shot(id + 100)]) for id in range(1, 11)]
    without = [a_shot(id) for id in range(11, 21)]

    text = text_with(*with_child, *without)

    assert text.count("10 alike") == 2
    assert "    #101, suspended" in text


def test_ten_thousand_fibers_that_are_all_different_are_bounded() -> None:
    """The rest is counted."""
    text = text_with(*(a_shot(id, places=(f"x{id}.py:1 in f{id}",)) for id in range(10_000)))

    assert len(text.splitlines()) <= LINES_SHOWN
    assert f"... {10_000 - SIBLINGS_SHOWN:,} more of {10_000 - SIBLINGS_SHOWN:,} kinds" in text


def test_ten_thousand_fibers_inside_each_other_are_bounded() -> None:
    """No recursion counts them, and the text doesn't walk off to the right."""
    top = at = a_shot(1)
    for id in range(2, 10_001):
        below = a_shot(id)
        at.children.append(below)
        at = below

    text = text_of(grouped(Snapshot(10_000, [], [top])))

    assert len(text.splitlines()) < 100
    assert "more below" in text


def test_many_scopes_are_bounded_in_both_directions() -> None:
    deep = at = ScopeShot("Scope 0", "sequential", "open", 1, {})
    for id in range(1, 300):
        below = ScopeShot(f"Scope {id}", "sequential", "open", 1, {})
        at.scopes.append(below)
        at = below
    wide = [ScopeShot(f"Scope w{id}", "parallel", "open", 1, {}) for id in range(1000)]

    text = text_of(grouped(Snapshot(0, [deep, *wide], [])))

    assert len(text.splitlines()) < 100
    assert "more below" in text
    assert "more scopes" in text


def test_a_text_that_is_still_too_long_is_cut() -> None:
    places = tuple(f"x.py:{line} in f" for line in range(12))
    scopes = [
        ScopeShot(
            f"Scope {at}",
            "parallel",
            "open",
            1,
            {},
            [
                a_shot(at * 100 + id, places=(*places, f"y.py:{id} in g"))
                for id in range(SIBLINGS_SHOWN)
            ],
        )
        for at in range(SIBLINGS_SHOWN)
    ]

    lines = text_of(grouped(Snapshot(1600, scopes, []))).splitlines()

    assert len(lines) == LINES_SHOWN + 1
    assert re.fullmatch(r"\.\.\. [\d]+ more lines", lines[-1])


async def test_the_warning_of_a_close_that_ran_out_of_time_is_bounded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """One that ten thousand fibers hold up names some, and counts the rest."""
    scope, gate = AppScope(), new_gate()
    for _ in range(NAMED_STILL_ALIVE + 25):
        scope.fork(wait_for(gate).uninterruptible(), start_immediately=True)

    with caplog.at_level(logging.WARNING):
        await close_bounded(scope, 0.01)
    gate.set_result(1)
    await turns()

    lines = caplog.messages[0].splitlines()
    assert sum("holds up the close" in line for line in lines) == NAMED_STILL_ALIVE
    assert lines[-1].strip() == "... and 25 more; dump() groups what is alike"


def test_addresses_are_numbers_too() -> None:
    """What a label shows of an object without a name."""
    waits = [a_shot(id, waits_for=f"<object at {id * 0xABCDEF:#x}>") for id in range(1, 11)]

    assert "10 alike" in text_with(*waits)


# ---- for programs


async def test_the_report_as_json_has_what_the_text_has(scope: AppScope) -> None:
    for _ in range(50):
        scope.fork(endless(), start_immediately=True)
    await turns()

    found = as_json(report(snapshot()))

    (app,) = [s for s in found["scopes"] if s["name"] == "AppScope 'under test'"]
    (group,) = app["fibers"]
    assert group["count"] == 50
    assert group["waitsFor"] == "never"
    assert found["states"]["suspended"] >= 50
    json.dumps(found)


def test_the_report_as_json_is_bounded_too() -> None:
    top = at = a_shot(1)
    for id in range(2, 10_001):
        at.children.append(a_shot(id))
        at = at.children[0]
    others = [a_shot(id, places=(f"x{id}.py:1 in f{id}",)) for id in range(20_000, 30_000)]

    found = as_json(grouped(Snapshot(20_000, [], [top, *others])))

    assert len(json.dumps(found)) < 100_000
    assert (
        found["unowned"][-1] == {"count": 10_001 - SIBLINGS_SHOWN, "leftOut": True}
        or (found["unowned"][-1]["leftOut"])
    )


async def test_a_scope_of_no_fiber_and_no_occupant_is_not_shown() -> None:
    """A dump is about what is alive."""
    async with Scope(name="forgotten"):
        assert "forgotten" not in fb.dump()


def test_scopes_inside_a_scope_are_bounded() -> None:
    """As those beside each other are."""
    outer = ScopeShot("Scope 0", "sequential", "open", 1000, {})
    outer.scopes = [
        ScopeShot(f"Scope w{number}", "parallel", "open", 1, {}) for number in range(1000)
    ]

    text = text_of(grouped(Snapshot(0, [outer], [])))

    assert len(text.splitlines()) < 100
    assert f"  ... {1000 - SIBLINGS_SHOWN} more scopes" in text


def test_many_of_one_name_are_shown_with_it() -> None:
    """Once."""
    text = text_with(*(a_shot(id, name="worker") for id in range(ALIKE_FROM)))

    assert f"{ALIKE_FROM} alike, #0 to #{ALIKE_FROM - 1} worker, suspended" in text
