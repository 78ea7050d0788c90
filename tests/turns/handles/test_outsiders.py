"""Somebody outside finds a fiber of the turns and ends it: no shutdown, and no stop of the manager.

What the fiber was there for is not lost with it: the turn settles, for a cause that says so.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final, final

import pytest

import fibers as fb
from fibers import Effect
from fibers.dump.tree import live_fibers
from tests.streamengine.engine.kit import FINISH, TEXT_END, WHOLE, Line, says, text
from turns import BareTurn, TurnEnd, TurnHandle, TurnRecord

from .conftest import MakeProcess
from .kit import STORE_FAULT, WORKSPACE, correlation

pytestmark = pytest.mark.lifecycle

NOBODY: Final = "somebody who stopped its fiber"


@final
class Held(BareTurn):
    """A turn that writes down how it ended."""

    ends: list[TurnEnd]

    @fb.effect
    async def close(self, end: TurnEnd) -> None:
        self.ends.append(self._decide(end))


@pytest.fixture
def ends() -> list[TurnEnd]:
    """How the turns of the test gave back what they held."""
    Held.ends = []
    return Held.ends


def found(name: str) -> fb.Fiber[Any, Any]:
    """The fiber of this name, as everybody can find it."""
    return next(fiber for fiber in live_fibers() if fiber.get_name() == name)


def fiber_of(handle: TurnHandle) -> fb.Fiber[Any, Any]:
    return found(f"turn {handle.handle_id}")


@pytest.mark.spec("T1", "T7")
@pytest.mark.parametrize(
    ("interrupt", "by"),
    [
        (None, NOBODY),
        ({}, NOBODY),
        ({"by": 7}, f"{NOBODY} (fiber 7)"),
        ({"by": 7, "reason": "spring cleaning"}, f"{NOBODY} (fiber 7): spring cleaning"),
        ({"reason": "user"}, "user"),
    ],
)
async def test_a_turn_whose_fiber_is_interrupted_settles_and_says_by_whom(
    process: MakeProcess, ends: list[TurnEnd], interrupt: dict[str, Any] | None, by: str
) -> None:
    line = Line()
    p = await process(line, WHOLE, open_turn=Held)
    handle = await p.create()
    line.give(text("One, two"))
    waiter = p.waiting(handle)
    await p.idle()

    if interrupt is None:
        fiber_of(handle).cancel()
    else:
        fiber_of(handle).interrupt_unsafe(**interrupt)

    record = await p.get(handle)
    assert (record.status, record.cause) == ("interrupted", "explicit-interrupt")
    assert record.evidence == {"by": by}
    assert record.error == f"interrupted by {by}"
    exit_ = waiter.poll()
    assert isinstance(exit_, fb.Failure)
    assert ends == ["interrupted"]
    assert p.turns.describe() == {"running": [], "queued": []}
    assert not p.desk.engine.is_streaming(WORKSPACE)
    assert await p.status(await p.create("Next")) == "completed"


@pytest.mark.spec("T9", "T18")
async def test_the_record_of_such_a_turn_is_on_disk_before_its_stream_is_stopped(
    process: MakeProcess,
) -> None:
    p = await process(Line())
    handle = await p.create()
    hold = p.store.hold(lambda record: record.is_terminal)

    fiber_of(handle).cancel()
    await hold.begun.wait()
    await p.idle()

    assert p.desk.engine.is_streaming(WORKSPACE)
    hold.go.set()
    assert await p.status(handle) == "interrupted"
    assert not p.desk.engine.is_streaming(WORKSPACE)


async def test_one_that_is_only_being_opened_settles_too(
    process: MakeProcess, ends: list[TurnEnd]
) -> None:
    p = await process(WHOLE, open_turn=Held)
    hold = p.store.hold(lambda each: each.status == "starting")
    handle = await p.create()
    await hold.begun.wait()

    fiber_of(handle).cancel()
    hold.go.set()

    assert await p.cause(handle) == "explicit-interrupt"
    assert ends == ["interrupted"]
    assert await p.status(await p.create("Next")) == "completed"


async def test_one_whose_fiber_has_not_taken_a_step_settles_too(process: MakeProcess) -> None:
    p = await process(WHOLE)

    begun: fb.Deferred[str] = fb.Deferred()

    @fb.effect
    async def outsider() -> None:
        found(await begun).interrupt_unsafe()

    def hurry(record: TurnRecord) -> None:
        # Woken now, it runs before the fiber of the turn, which is forked next.
        begun.done_unsafe(Effect.succeed(f"turn {record.handle_id}"))

    p.rt.run_fork(outsider())
    p.turns.observe(hurry)
    handle = await p.create()

    record = await p.get(handle)
    assert (record.cause, record.message_id) == ("explicit-interrupt", None)
    assert p.store.statuses(handle.handle_id) == ["queued", "interrupted"]
    assert await p.status(await p.create("Next")) == "completed"


async def test_one_that_goes_on_after_a_restart_has_its_stream_stopped(
    process: MakeProcess,
) -> None:
    first = await process(Line())
    handle = await first.create()
    await first.crash()
    p = await process(Line(), unstarted=True)
    await p.stream("Go on", correlation=correlation(handle, "owner"))
    await p.rt.run(p.turns.start(p.scope))
    assert await p.status(handle) == "running"

    fiber_of(handle).cancel()

    assert await p.cause(handle) == "explicit-interrupt"
    assert not p.desk.engine.is_streaming(WORKSPACE)


async def test_where_the_record_cannot_be_written_it_settles_later(
    process: MakeProcess, ends: list[TurnEnd]
) -> None:
    p = await process(Line(), WHOLE, open_turn=Held)
    handle = await p.create()
    p.store.failing = STORE_FAULT

    fiber_of(handle).cancel()
    await p.idle()

    assert (ends, p.turns.live_in(WORKSPACE)) == (["interrupted"], None)
    p.store.failing = None
    await p.desk.pass_time(60)
    assert await p.cause(handle) == "explicit-interrupt"


async def test_where_the_store_says_cancelled_it_settles_later_too(
    process: MakeProcess, ends: list[TurnEnd]
) -> None:
    p = await process(Line(), open_turn=Held)
    handle = await p.create()
    p.store.before_write = lambda _record: Effect.interrupt()

    fiber_of(handle).cancel()
    await p.idle()

    assert (ends, await p.status(handle)) == (["interrupted"], "running")
    p.store.before_write = None
    await p.desk.pass_time(60)
    assert await p.cause(handle) == "explicit-interrupt"


@pytest.mark.spec("T14")
@pytest.mark.parametrize("reason", ["system", "startup"])
async def test_what_says_that_it_is_a_shutdown_leaves_it_resumable(
    process: MakeProcess, ends: list[TurnEnd], reason: str
) -> None:
    p = await process(Line(), open_turn=Held)
    handle = await p.create()

    fiber_of(handle).interrupt_unsafe(reason=reason)

    assert await p.status(handle) == "running"
    assert ends == ["torn-down"]


@pytest.mark.spec("T8", "T14")
async def test_a_shutdown_in_the_middle_of_it_changes_nothing(
    process: MakeProcess, ends: list[TurnEnd]
) -> None:
    p = await process(Line(), open_turn=Held)
    handle = await p.create()
    hold = p.store.hold(lambda record: record.is_terminal)
    fiber_of(handle).cancel()
    await hold.begun.wait()
    closing = p.rt.run_fork(p.scope.close(reason="system"))
    await p.idle()
    hold.go.set()
    await closing

    assert p.store.statuses(handle.handle_id)[-1] == "interrupted"
    assert ends == ["interrupted"]


@pytest.mark.spec("T3")
async def test_an_end_is_judged_although_the_fiber_that_judges_it_is_interrupted(
    process: MakeProcess,
) -> None:
    line = Line()
    p = await process(line)
    handle = await p.create()
    hold = p.desk.history.hold("read")
    line.give(text("Three"), TEXT_END, FINISH)
    line.end()
    await hold.begun.wait()

    found(f"inbox of {handle.handle_id}").cancel()
    hold.go.set()

    assert await p.status(handle) == "completed"


@pytest.mark.spec("T1")
async def test_a_settlement_that_waits_for_the_disk_is_not_lost_with_its_fiber(
    process: MakeProcess,
) -> None:
    p = await process(says(text("Three"), TEXT_END, FINISH))
    p.store.refuses = lambda record: record.is_terminal
    handle = await p.create()
    assert await p.status(handle) == "running"

    for fiber in [fiber for fiber in live_fibers() if fiber.get_name() == "a later settlement"]:
        fiber.cancel()
    await p.idle()
    p.store.refuses = lambda _record: False
    await p.desk.pass_time(60)

    assert await p.status(handle) == "completed"


@pytest.mark.spec("T19", "T21")
async def test_what_is_due_after_a_turn_is_done_although_its_fiber_is_interrupted(
    process: MakeProcess,
) -> None:
    hold = asyncio.Event()
    disposed: list[str] = []

    def dispose(record: TurnRecord) -> Effect[object, Exception]:
        return Effect.promise(hold.wait).map(lambda _: disposed.append(record.handle_id))

    p = await process(WHOLE, dispose=dispose)
    handle = await p.create(attention="notify", disposable=True)
    await p.idle()
    found(f"after {handle.handle_id}").cancel()
    await p.idle()
    hold.set()
    await p.idle()

    assert disposed == [handle.handle_id]
    assert [record.handle_id for record in p.told.attention] == [handle.handle_id]


async def test_a_store_that_says_cancelled_is_not_asked_without_a_pause(
    process: MakeProcess,
) -> None:
    """Its word passes for an interrupt of who asks."""
    p = await process(WHOLE)
    asked: list[str] = []

    def cancelled(record: TurnRecord) -> Effect[object]:
        if not record.is_terminal or len(asked) >= 5:
            return Effect.succeed(None)
        asked.append(record.handle_id)
        return Effect.interrupt()

    p.store.before_write = cancelled
    handle = await p.create()
    at_once = len(asked)
    await p.desk.pass_time(60)

    assert 1 <= at_once <= 3
    assert len(asked) == 5
    assert await p.status(handle) == "completed"


async def test_who_waits_for_the_records_is_told_that_somebody_stopped_the_reading(
    process: MakeProcess,
) -> None:
    p = await process(WHOLE, unstarted=True)
    begun, go = asyncio.Event(), asyncio.Event()
    p.store.before_load = Effect.sync(begun.set).flat_map(lambda _: Effect.promise(go.wait))
    listing = p.rt.run_fork(p.turns.list().exit())
    await begun.wait()

    found("start of the turns").cancel()
    told = await listing
    go.set()

    assert isinstance(told, fb.Failure)
    assert str(told.failure().squash()).startswith("store: the turns were not read: somebody")
    assert list(await p.rt.run(p.turns.list())) == []
