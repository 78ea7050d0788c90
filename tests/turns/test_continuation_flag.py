"""The continuation flag of a managed turn: set as it begins by itself, cleared by its verdict."""

from __future__ import annotations

import pytest

from tests.streamengine.engine.kit import FINISH, Hand, Line, calls, text
from turns import TurnHandle
from turns.loop import Background

from .kit import House, MakeHouse

pytestmark = pytest.mark.lifecycle


async def flag_of(h: House) -> str | None:
    flag = await h.rt.run(h.workspace.continuation.read())
    return None if flag is None else flag.turn_id


async def continued(h: House) -> TurnHandle:
    """A turn that began by itself after one that was cut off, and runs."""
    cut_off = await h.create()
    await h.do(h.turns.interrupt(cut_off.handle_id, by="ada"))
    handle = await h.do(h.turns.continue_turn(cut_off.handle_id, prompt="Go on"))
    await h.desk.idle()
    return handle


@pytest.mark.spec("O3", "I12")
async def test_a_turn_that_begins_by_itself_is_marked_before_its_first_stream(
    house: MakeHouse,
) -> None:
    h = house(Line(), Line())
    seen: list[bool] = []
    path = h.desk.disk.path / "of turns" / "continuation.json"
    h.desk.tape.on_event = lambda _event: seen.append(path.exists())
    person = await h.create()
    assert await flag_of(h) is None
    await h.do(h.turns.interrupt(person.handle_id, by="ada"))
    seen.clear()

    handle = await h.do(h.turns.continue_turn(person.handle_id, prompt="Go on"))
    await h.desk.idle()

    assert await flag_of(h) == handle.turn_id
    assert seen[0]
    assert not await h.rt.run(h.workspace.continuation.may_arm())


@pytest.mark.spec("O3")
@pytest.mark.parametrize("end", ["completes", "fails", "is interrupted", "is ended hard"])
async def test_the_verdict_of_the_turn_clears_it(house: MakeHouse, end: str) -> None:
    """Left behind, it would keep the next person's turn from being gone on with."""
    line = Line()
    h = house(Line(), line)
    handle = await continued(h)
    line.give(text("half"))
    match end:
        case "completes":
            line.give(FINISH)
            line.end()
        case "fails":
            line.fail(RuntimeError("gone"))
        case "is interrupted":
            await h.do(h.turns.interrupt(handle.handle_id, by="ada"))
        case _:
            await h.do(h.turns.finish(handle.handle_id, hard=True))
    await h.desk.idle()

    assert (await h.record(handle)).is_terminal
    assert await h.rt.run(h.workspace.continuation.may_arm())


@pytest.mark.spec("O8", "O9", "T16")
async def test_it_survives_a_shutdown_and_goes_with_the_verdict_of_the_next_process(
    house: MakeHouse,
) -> None:
    h = house(Line(), Line())
    handle = await continued(h)

    await h.do(h.scope.close(reason="system"))
    assert await flag_of(h) == handle.turn_id
    after = house(Line())

    assert (await after.record(handle)).cause == "stale-restart"
    assert await after.rt.run(after.workspace.continuation.may_arm())
    assert len(after.open_turns) == 0


@pytest.mark.spec("O14")
async def test_an_interrupt_is_no_teardown_for_what_is_known_of_tasks(house: MakeHouse) -> None:
    never = Hand("monitor", lambda _given, signal: signal.wait())
    h = house(calls("monitor"), Line(), tools=lambda _: [Background(never)])
    handle = await h.create()
    turn = h.open_turns.get(handle.turn_id)
    assert turn is not None
    turn.records.open("c1", "Task")
    turn.records.task_started("t1", "c1")
    turn.records.close("c1")

    await h.do(h.turns.interrupt(handle.handle_id, by="ada"))

    assert turn.end == "interrupted"
    assert h.workspace.records.call_of("t1") == "c1"
