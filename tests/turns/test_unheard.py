"""What is said to a turn after its last word is run as a turn of its own, or held; never lost."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import Effect
from tests.streamengine.engine.kit import (
    WHOLE,
    WORKSPACE,
    Hand,
    Line,
    calls,
)
from turns import TurnError, TurnHandle, TurnOptions, TurnRecord
from turns.loop import Background

from .kit import House, MakeHouse

pytestmark = pytest.mark.lifecycle


async def said_too_late(h: House, *messages: str, disposable: bool = False) -> TurnHandle:
    """A turn that completes, after this was said to it when it had said its last word."""
    hold = h.desk.history.hold("finalize")
    handle = await h.rt.run(
        h.turns.create_turn(
            owner="owner", workspace_id=WORKSPACE, prompt="Go", disposable=disposable
        )
    )
    await hold.begun.wait()
    for message in messages:
        await h.rt.run(h.turns.steer(handle.handle_id, message))
    hold.go.set()
    await h.desk.idle()
    return handle


async def followers(h: House, handle: TurnHandle) -> list[TurnRecord]:
    return [r for r in await h.do(h.turns.list()) if r.follows == handle.handle_id]


def prompts(h: House) -> list[str]:
    return [row["parts"][0]["text"] for row in h.desk.disk.rows() if row["role"] == "user"]


@pytest.mark.spec("U20", "T8")
async def test_what_comes_after_the_last_word_is_run_as_a_turn_of_its_own(
    house: MakeHouse,
) -> None:
    h = house(WHOLE)

    handle = await said_too_late(h, "And then?")

    record = await h.record(handle)
    (after,) = await followers(h, handle)
    assert (record.status, after.status, after.prompt) == ("completed", "completed", "And then?")
    assert prompts(h) == ["Go", "And then?"]
    # A person's words began it: it is gone on with as any other, and counts in no streak.
    assert after.continues is None
    assert h.is_free


async def test_several_are_heard_one_after_the_other_by_that_turn(house: MakeHouse) -> None:
    h = house(WHOLE)

    handle = await said_too_late(h, "one", "two", "three")

    assert prompts(h) == ["Go", "one", "two", "three"]
    assert len(await followers(h, handle)) == 1


async def test_a_turn_that_waits_for_the_workspace_hears_it(house: MakeHouse) -> None:
    h = house(WHOLE)
    hold = h.desk.history.hold("finalize")
    handle = await h.create()
    await hold.begun.wait()
    next_one = await h.rt.run(
        h.turns.create_turn(owner="owner", workspace_id=WORKSPACE, prompt="Next")
    )

    await h.rt.run(h.turns.steer(handle.handle_id, "too late"))
    hold.go.set()
    await h.desk.idle()

    assert prompts(h) == ["Go", "Next", "too late"]
    assert await followers(h, handle) == []
    assert (await h.record(next_one)).status == "completed"


async def test_a_turn_that_was_interrupted_while_it_waited_hears_nothing(
    house: MakeHouse,
) -> None:
    h = house(WHOLE)
    hold = h.desk.history.hold("finalize")
    handle = await h.create()
    await hold.begun.wait()
    waiting = await h.rt.run(
        h.turns.create_turn(owner="owner", workspace_id=WORKSPACE, prompt="Next")
    )
    await h.rt.run(h.turns.interrupt(waiting.handle_id, by="ada"))

    await h.rt.run(h.turns.steer(handle.handle_id, "too late"))
    hold.go.set()
    await h.desk.idle()

    assert prompts(h) == ["Go", "too late"]
    assert len(await followers(h, handle)) == 1


async def test_after_a_failure_it_is_run_too(house: MakeHouse) -> None:
    line = Line()
    h = house(line, WHOLE)
    handle = await h.create()
    await h.do(h.turns.steer(handle.handle_id, "Try this instead"))

    line.fail(RuntimeError("gone"))
    await h.desk.idle()

    assert (await h.record(handle)).status == "error"
    (after,) = await followers(h, handle)
    assert (after.prompt, after.status) == ("Try this instead", "completed")


@pytest.mark.spec("U25")
@pytest.mark.parametrize("how", ["interrupt", "hard end"])
async def test_after_a_stop_it_is_held_until_somebody_begins_a_turn(
    house: MakeHouse, how: str
) -> None:
    h = house(Line(), WHOLE)
    handle = await h.create()
    await h.do(h.turns.steer(handle.handle_id, "said before the stop"))

    if how == "interrupt":
        await h.do(h.turns.interrupt(handle.handle_id, by="ada"))
    else:
        await h.do(h.turns.finish(handle.handle_id, hard=True))
    await h.desk.pass_time(60)

    assert await followers(h, handle) == []
    assert len(await h.do(h.turns.list())) == 1
    await h.create("Now this")
    assert prompts(h)[-2:] == ["Now this", "said before the stop"]


@pytest.mark.spec("U25")
async def test_after_a_stop_before_the_start_a_message_that_comes_later_runs(
    house: MakeHouse,
) -> None:
    h = house(WHOLE)
    hold = h.desk.history.hold("tail")
    handle = await h.rt.run(h.turns.create_turn(owner="owner", workspace_id=WORKSPACE, prompt="Go"))
    await hold.begun.wait()

    assert await h.rt.run(h.joined.loop.stop(WORKSPACE))
    await h.rt.run(h.joined.loop.queue(WORKSPACE, "follow up"))
    hold.go.set()
    await h.desk.idle()

    assert (await h.record(handle)).cause == "launch-canceled"
    assert prompts(h) == ["follow up"]
    assert [r.status for r in await followers(h, handle)] == ["completed"]


async def test_what_can_t_become_a_turn_is_told_and_heard_by_the_next_one(
    house: MakeHouse,
) -> None:
    h = house(WHOLE)
    hold = h.desk.history.hold("finalize")
    handle = await h.create()
    await hold.begun.wait()
    for message in ("one", "two"):
        await h.rt.run(h.turns.steer(handle.handle_id, message))
    h.store.refuses = lambda record: record.follows is not None

    with capture_logs() as logs:
        hold.go.set()
        await h.desk.idle()

    assert (await h.record(handle)).status == "completed"
    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert warning["handleId"] == handle.handle_id
    assert "the next one" in warning["event"]
    h.store.refuses = lambda _record: False
    await h.create("Next")
    assert prompts(h) == ["Go", "Next", "one", "two"]


async def test_what_a_broken_store_keeps_from_becoming_a_turn_is_heard_by_the_next_one(
    house: MakeHouse,
) -> None:
    """It raises what it should not."""
    h = house(WHOLE)

    def breaks(record: TurnRecord) -> Effect[object]:
        return Effect.die(RuntimeError("broken")) if record.follows else Effect.succeed(None)

    h.store.before_write = breaks
    with capture_logs() as logs:
        handle = await said_too_late(h, "And then?")

    (warning,) = [log for log in logs if log["log_level"] == "warning"]
    assert (warning["handleId"], warning["error"]) == (handle.handle_id, "broken")
    h.store.before_write = None
    await h.create("Next")
    assert prompts(h) == ["Go", "Next", "And then?"]


async def test_what_a_shutdown_keeps_from_becoming_a_turn_is_told(
    house: MakeHouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    h = house(WHOLE)
    hold = h.desk.history.hold("finalize")
    handle = await h.create()
    await hold.begun.wait()
    await h.rt.run(h.turns.steer(handle.handle_id, "And then?"))
    closing: list[object] = []
    take_unheard = h.joined.loop.take_unheard

    def taken(workspace_id: str) -> str | None:
        said = take_unheard(workspace_id)
        closing.append(fb.run_fork(h.scope.close(reason="system")))
        return said

    # In the tick in which the turn is over, and what follows it has not begun.
    monkeypatch.setattr(h.joined.loop, "take_unheard", taken)
    with capture_logs() as logs:
        hold.go.set()
        await h.desk.idle()

    assert len(closing) == 1
    told = [log for log in logs if log["log_level"] == "warning"]
    assert [log.get("handleId") for log in told] == [handle.handle_id]


@pytest.mark.spec("T21")
@pytest.mark.parametrize("can_follow", [True, False])
async def test_a_disposable_workspace_is_not_removed_before_what_follows(
    house: MakeHouse, *, can_follow: bool
) -> None:
    removed: list[list[str]] = []

    def dispose(_record: TurnRecord) -> Effect[object, Exception]:
        return Effect.sync(lambda: removed.append(prompts(h)))

    h = house(WHOLE, options=TurnOptions(dispose=dispose))
    h.store.refuses = lambda record: record.follows is not None and not can_follow
    being_written = h.store.hold(lambda record: record.follows is not None)

    await said_too_late(h, "And then?", disposable=True)
    assert (being_written.begun.is_set(), removed) == (True, [])
    being_written.go.set()
    await h.desk.idle()

    assert removed == [["Go", "And then?"] if can_follow else ["Go"]]


async def test_a_shutdown_begins_nothing_more(house: MakeHouse) -> None:
    line = Line()
    h = house(line)
    handle = await h.create()
    await h.do(h.turns.steer(handle.handle_id, "And then?"))

    await h.do(h.scope.close(reason="system"))

    assert (await h.on_disk(handle)).status == "running"
    assert len((await h.rt.run(h.store.load())).records) == 1


async def test_a_settled_turn_takes_no_message(house: MakeHouse) -> None:
    h = house(WHOLE)
    handle = await h.create()

    with pytest.raises(TurnError) as refused:
        await h.do(h.turns.steer(handle.handle_id, "hello?"))

    assert refused.value.kind == "not_running"
    assert refused.value.way_out
    assert prompts(h) == ["Go"]


@pytest.mark.spec("U20")
async def test_a_turn_that_waits_for_its_work_hears_it_itself(house: MakeHouse) -> None:
    never = Hand("monitor", lambda _given, signal: signal.wait())
    h = house(calls("monitor"), WHOLE, tools=lambda _: [Background(never)])
    handle = await h.create()

    await h.do(h.turns.steer(handle.handle_id, "Anything yet?"))

    assert prompts(h) == ["Go", "Anything yet?"]
    assert await followers(h, handle) == []
