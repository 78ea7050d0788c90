"""What goes on when its turn is over: it is bounded, named, and can still be ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any, final

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import AbortSignal
from tests.streamengine.engine.kit import FINISH, WORKSPACE, Hand, Line, calls, says, text
from turns import TurnError, TurnHandle
from turns.events import InterruptReceivedEvent, SubturnEndEvent, SubturnOrphanEvent, TurnEvent
from turns.loop import Background, LoopConfig
from turns.release import RELEASE_SECONDS
from turns.subturns import SubturnResult

from .kit import House, MakeHouse

pytestmark = pytest.mark.lifecycle


@final
class Deaf:
    """Work that ignores its interrupt until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.hand = Hand("deaf", self._run)

    async def _run(self, _given: dict[str, Any], _signal: AbortSignal) -> object:
        with fb.uninterruptible():
            await self.go.wait()
        return "done at last"


@pytest.fixture
def deaf(house: MakeHouse) -> Iterator[Deaf]:
    """Let go before the house is closed."""
    work = Deaf()
    yield work
    work.go.set()


@pytest.mark.spec("O1", "R29")
@pytest.mark.parametrize("end", ["soft end", "interrupt"])
async def test_background_work_that_ignores_its_interrupt_keeps_no_workspace(
    house: MakeHouse, deaf: Deaf, end: str
) -> None:
    h = house(
        calls("deaf"),
        says(text("Waiting."), FINISH),
        says(text("In short."), FINISH),
        tools=lambda _: [Background(deaf.hand)],
    )
    handle = await h.create()
    waiting = await h.create("Next")
    if end == "interrupt":
        await h.do(h.turns.interrupt(handle.handle_id, by="ada"))
    else:
        await h.do(h.turns.finish(handle.handle_id))
    assert len(h.open_turns) == 0, "its holds are given back at once"
    assert (await h.record(waiting)).status == "queued"

    with capture_logs() as logs:
        await h.desk.pass_time(RELEASE_SECONDS)

    assert (await h.record(waiting)).status in ("running", "completed")
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert warning["turn"] == handle.handle_id
    assert any("background deaf-1" in line for line in warning["stillAlive"])


@pytest.mark.spec("U9", "R34")
async def test_background_work_of_a_subturn_that_ignores_its_interrupt_keeps_no_slot(
    house: MakeHouse, deaf: Deaf
) -> None:
    line = Line()
    h = house(
        line,
        children=[calls("deaf"), says(text("Waiting."), FINISH)],
        tools=lambda _: [Background(deaf.hand)],
    )
    handle = await h.create()
    told: list[TurnEvent] = []
    h.joined.loop.events.subscribe(told.append)
    request = {"prompt": "Look", "agent": "main", "timeoutSeconds": 5}
    spawning = h.rt.run_fork(h.turns.spawn_subturn(handle.handle_id, request))
    await h.desk.idle()
    state = h.joined.loop.registry.root(WORKSPACE)
    assert state is not None
    assert state.slots.available == state.slots.limit - 1

    with capture_logs() as logs:
        await h.desk.pass_time(5)
        await h.desk.pass_time(RELEASE_SECONDS)

    assert state.slots.available == state.slots.limit
    assert isinstance(spawning.poll(), fb.Success)
    assert [event.status for event in told if isinstance(event, SubturnEndEvent)] == ["error"]
    assert any("background deaf-1" in str(log.get("stillAlive")) for log in logs)


# ---- a subturn that outlives its root


async def outlived(h: House, line: Line) -> tuple[TurnHandle, str]:
    """A turn that has completed, and the id of a critical subturn of it that goes on."""
    handle = await h.create()
    request = {"prompt": "Look", "agent": "main", "critical": True}
    h.rt.run_fork(h.turns.spawn_subturn(handle.handle_id, request)).ignore_failure()
    await h.desk.idle()
    (child,) = h.joined.loop.registry.children
    line.give(text("done"), FINISH)
    line.end()
    await h.desk.idle()
    assert (await h.record(handle)).status == "completed"
    assert h.joined.loop.registry.children == (child,)
    return handle, child.turn_id


@pytest.mark.spec("U2", "U5")
@pytest.mark.parametrize("by", ["the handle of its root", "its own id"])
async def test_a_subturn_that_outlives_its_root_can_be_ended(house: MakeHouse, by: str) -> None:
    line = Line()
    h = house(line, children=[Line()])
    handle, child_id = await outlived(h, line)
    before = await h.record(handle)

    ended = handle.handle_id if by == "the handle of its root" else child_id
    await h.do(h.turns.finish(ended, hard=True))

    assert h.joined.loop.registry.children == ()
    assert await h.record(handle) == before
    with pytest.raises(TurnError) as again:
        await h.do(h.turns.finish(ended, hard=True))
    assert again.value.kind == ("not_running" if ended == handle.handle_id else "not_found")


@pytest.mark.spec("U1", "R31")
async def test_neither_an_interrupt_nor_a_soft_end_of_a_settled_turn_ends_what_it_left(
    house: MakeHouse,
) -> None:
    line, below = Line(), Line()
    h = house(line, children=[below])
    handle, _ = await outlived(h, line)
    told: list[TurnEvent] = []
    h.joined.loop.events.subscribe(told.append)

    await h.do(h.turns.interrupt(handle.handle_id, by="ada"))
    with pytest.raises(TurnError) as refused:
        await h.do(h.turns.finish(handle.handle_id))

    assert refused.value.kind == "not_running"
    assert len(h.joined.loop.registry.children) == 1
    below.give(text("found it"), FINISH)
    below.end()
    await h.desk.idle()
    assert [event.status for event in told if isinstance(event, SubturnEndEvent)] == ["completed"]
    assert [event for event in told if isinstance(event, SubturnOrphanEvent)] == []


@pytest.mark.spec("U2", "U14")
async def test_a_subturn_that_is_ended_hard_by_its_id_says_so_and_harms_nobody(
    house: MakeHouse,
) -> None:
    line = Line()
    h = house(line, children=[Line()])
    handle = await h.create()
    told: list[TurnEvent] = []
    h.joined.loop.events.subscribe(told.append)
    request = {"prompt": "Look", "agent": "main"}
    spawning = h.rt.run_fork(h.turns.spawn_subturn(handle.handle_id, request))
    await h.desk.idle()
    (child,) = h.joined.loop.registry.children

    await h.do(h.turns.finish(child.turn_id, hard=True))

    result = await spawning
    assert isinstance(result, SubturnResult)
    assert result.error == "the subturn was ended hard"
    heard = [event for event in told if isinstance(event, InterruptReceivedEvent)]
    assert [(event.turn_id, event.kind) for event in heard] == [(child.turn_id, "hard_abort")]
    (end,) = [event for event in told if isinstance(event, SubturnEndEvent)]
    assert (end.status, end.error) == ("error", result.error)
    assert (await h.record(handle)).status == "running"


async def test_a_subturn_can_be_ended_softly_by_its_id(house: MakeHouse) -> None:
    line, below = Line(), Line()
    h = house(line, children=[below, says(text("in short"), FINISH)])
    handle = await h.create()
    request = {"prompt": "Look", "agent": "main"}
    spawning = h.rt.run_fork(h.turns.spawn_subturn(handle.handle_id, request))
    await h.desk.idle()
    (child,) = h.joined.loop.registry.children

    await h.do(h.turns.finish(child.turn_id))
    below.give(text("so far"), FINISH)
    below.end()
    await h.desk.idle()

    exit_ = spawning.poll()
    assert isinstance(exit_, fb.Success)
    assert getattr(exit_.unwrap(), "content", None) == "in short"
    assert (await h.record(handle)).status == "running"


async def test_a_hard_end_waits_for_a_subturn_that_ignores_it_for_a_while_only(
    house: MakeHouse, deaf: Deaf
) -> None:
    line = Line()
    h = house(
        line,
        children=[calls("deaf"), says(text("Waiting."), FINISH)],
        tools=lambda _: [Background(deaf.hand)],
    )
    handle, child_id = await outlived(h, line)

    with capture_logs() as logs:
        ending = h.rt.run_fork(h.turns.finish(handle.handle_id, hard=True))
        await h.desk.pass_time(LoopConfig().abort_grace_seconds)

    assert isinstance(ending.poll(), fb.Success)
    assert [log["turnId"] for log in logs if "goes on" in log["event"]] == [child_id]
    deaf.go.set()
    await h.desk.idle()
    assert h.joined.loop.registry.children == ()
