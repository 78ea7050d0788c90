"""The false settle, as a script: a monitor wakes the agent of a turn that still works.

A turn has started a tool in the background and goes on. The tool fires: a stream of its own tells
the agent, in the same workspace, and ends without the turn's correlation. By the rule of before,
that end settled the turn: its owner was told that it had been superseded, and its disposable
workspace was removed, with the monitor in it, while the turn went on to its real end.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import fibers as fb
from streamengine import StreamRequest
from streamengine.model import Finish, Row
from tests.streamengine.engine.kit import TEXT_END, WHOLE, says, text
from turns import TurnRecord
from turns.handles import judging
from turns.handles.evidence import Judgement, NotOurs, Superseded, Unreadable, anchor_in

from .conftest import MakeProcess
from .kit import WORKSPACE, Conductor


async def the_script(process: MakeProcess) -> None:
    """One turn, one wake in the middle of it, one real end."""
    conductor = Conductor()
    conductor.more = True
    arms = says(text("The monitor is set. "), TEXT_END, Finish(finish_reason="tool-calls"))
    p = await process(
        arms,
        WHOLE,
        says(text("All done"), TEXT_END, Finish(finish_reason="stop")),
        conductor=conductor,
    )
    handle = await p.create(attention="notify", disposable=True)
    waiter = p.waiting(handle)

    woken = await p.rt.run(
        p.desk.engine.resume_stream(WORKSPACE, StreamRequest(text="the monitor fired"))
    )
    await p.desk.done(woken)

    record = await p.get(handle)
    assert record.status == "running"
    assert waiter.poll() is None
    assert p.told.disposed == []
    assert p.told.attention == []

    conductor.go_on("Look at what it saw")
    conductor.end()
    record = await p.get(handle)
    assert (record.status, record.cause) == ("completed", "correlated-stream-end")
    assert record.final_message == "All done"
    assert record.ignored_ends == 1
    assert isinstance(waiter.poll(), fb.Success)
    assert len(p.told.disposed) == len(p.told.attention) == 1


def the_old_rule(rows: Sequence[Row], record: TurnRecord, message_id: str) -> Judgement:
    """Any uncorrelated end at or after the turn's prompt supersedes it."""
    anchor = anchor_in(rows, record)
    end = next((at for at, row in enumerate(rows) if row.id == message_id), None)
    if anchor is None or end is None:
        return Unreadable("not there")
    return NotOurs(is_stale=True) if end < anchor else Superseded(message_id)


@pytest.mark.spec("T2", "T3")
async def test_a_monitor_that_wakes_the_agent_settles_nothing(process: MakeProcess) -> None:
    await the_script(process)


async def test_by_the_rule_of_before_the_script_fails(
    process: MakeProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the script would show nothing."""
    monkeypatch.setattr(judging, "judge_uncorrelated", the_old_rule)

    with pytest.raises(AssertionError, match="interrupted"):
        await the_script(process)
