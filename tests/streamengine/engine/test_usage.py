"""What an answer used: counted once, wherever it ends, and never waited for long."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import pytest

from streamengine.model import (
    Finish,
    FinishStep,
    StreamAbortEvent,
    StreamEndEvent,
    ToolCall,
    Usage,
    UsageDeltaEvent,
)

from .conftest import MakeDesk
from .kit import (
    FINISH,
    WORKSPACE,
    Answer,
    Desk,
    Given,
    Line,
    Parts,
    echo,
    says,
    text,
    tokens,
)

pytestmark = pytest.mark.lifecycle

REFUSAL = Finish(finish_reason="refusal", raw_finish_reason="refusal")


def totals(d: Desk) -> list[tuple[int | None, int | None]]:
    """Step and sum of each usage event."""
    return [
        (e.usage.total_tokens, e.cumulative_usage.total_tokens)
        for e in d.tape.events
        if isinstance(e, UsageDeltaEvent)
    ]


def end_usage(d: Desk) -> Usage | None:
    end = d.tape.terminals[-1]
    assert isinstance(end, StreamEndEvent | StreamAbortEvent)
    assert end.metadata is not None
    return end.metadata.usage


@pytest.mark.spec("E22")
async def test_the_total_is_the_sum_of_the_steps(desk: MakeDesk) -> None:
    call = ToolCall(tool_call_id="c", tool_name="echo")
    d = desk(
        says(text("a"), tokens(3), text("b"), tokens(4), call, FINISH),
        says(text("c"), tokens(5, provider_metadata={"maker": {"tier": "x"}}), FINISH),
        tools=[echo()],
    )

    await d.whole()

    assert totals(d) == [(3, 3), (4, 7), (5, 12)]
    metadata = d.disk.rows()[-1]["metadata"]
    assert metadata["usage"] == {"totalTokens": 12}
    assert metadata["contextUsage"] == {"totalTokens": 5}
    assert metadata["providerMetadata"] == {"maker": {"tier": "x"}}
    assert await d.usages() == []


@pytest.mark.spec("E22")
async def test_what_was_used_before_an_internal_retry_counts(desk: MakeDesk) -> None:
    """Of an empty answer, and of a refused one."""
    d = desk(
        says(tokens(3), FINISH),
        says(text("No."), tokens(4), REFUSAL),
        says(text("Yes."), tokens(5), FINISH),
    )

    await d.whole(fallback_models=["other"])

    assert end_usage(d) == Usage(total_tokens=12)


async def test_a_field_that_no_step_gives_stays_unknown(desk: MakeDesk) -> None:
    steps = [
        FinishStep(usage=Usage(input_tokens=1, output_tokens=2)),
        FinishStep(usage=Usage(input_tokens=3, cached_input_tokens=4)),
        FinishStep(),
    ]
    d = desk(says(text("a"), *steps, FINISH))

    await d.whole()

    assert d.disk.rows()[-1]["metadata"]["usage"] == {
        "inputTokens": 4,
        "outputTokens": 2,
        "cachedInputTokens": 4,
    }
    assert d.tape.types.count("usage-delta") == 2


async def test_the_last_usage_is_in_the_snapshot(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    line.give(text("a"), tokens(3), text("b"), tokens(4))
    await d.idle()

    snapshot = d.engine.snapshot(WORKSPACE)

    assert snapshot is not None
    assert snapshot.usage is not None
    assert snapshot.usage.cumulative_usage.total_tokens == 7


# ---- late usage


class Late:
    """The parts of an answer whose usage is asked for at the end."""

    def __init__(self, parts: Parts, final: Callable[[], Awaitable[Any]]) -> None:
        self._parts = parts
        self.final_usage = final

    def __aiter__(self) -> Parts:
        return self._parts

    async def __anext__(self) -> Given:
        return await self._parts.__anext__()


def late(answer: Answer, final: Callable[[], Awaitable[Any]]) -> Answer:
    return lambda call: Late(answer(call), final)


async def _ten() -> Usage:
    return Usage(total_tokens=10)


async def _never() -> Usage:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


async def _fails() -> Usage:
    raise RuntimeError("nobody knows")


async def _nothing() -> None:
    return None


def _raises() -> Any:
    raise RuntimeError("not even begun")


async def _stubborn() -> Usage:
    while True:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return Usage(total_tokens=99)


@pytest.mark.spec("E22")
async def test_a_late_usage_counts_where_no_step_said_any(desk: MakeDesk) -> None:
    d = desk(late(says(text("a"), FINISH), _ten))

    await d.whole()

    assert totals(d) == [(10, 10)]
    assert end_usage(d) == Usage(total_tokens=10)


@pytest.mark.spec("E22")
async def test_a_late_usage_does_not_count_twice(desk: MakeDesk) -> None:
    d = desk(late(says(text("a"), tokens(3), FINISH), _ten))

    await d.whole()

    assert end_usage(d) == Usage(total_tokens=3)


@pytest.mark.spec("E22")
@pytest.mark.parametrize("final", [_never, _stubborn])
async def test_a_late_usage_that_hangs_delays_the_end_by_a_second(
    desk: MakeDesk, final: Callable[[], Awaitable[Any]]
) -> None:
    d = desk(late(says(text("a"), FINISH), final))
    handle = await d.start()
    await d.pass_time(0.99)
    assert d.tape.types[-1] == "stream-delta"

    await d.pass_time(0.01)

    assert (await d.done(handle)).status == "completed"
    assert end_usage(d) is None


@pytest.mark.spec("E22")
async def test_late_usages_are_waited_for_together(desk: MakeDesk) -> None:
    """Each has its own second; one that hangs takes nothing from another."""
    call = ToolCall(tool_call_id="c", tool_name="echo")
    d = desk(
        late(says(text("a"), call, FINISH), _never),
        late(says(text("b"), call, FINISH), _ten),
        late(says(text("c"), FINISH), _never),
        tools=[echo()],
    )
    handle = await d.start()

    await d.pass_time(1)

    assert (await d.done(handle)).status == "completed"
    assert end_usage(d) == Usage(total_tokens=10)


@pytest.mark.parametrize("final", [_fails, _nothing, _raises])
async def test_a_late_usage_that_is_none_does_not_spoil_the_answer(
    desk: MakeDesk, final: Callable[[], Awaitable[Any]]
) -> None:
    d = desk(late(says(text("a"), FINISH), final))

    assert (await d.whole()).status == "completed"
    assert end_usage(d) is None


@pytest.mark.spec("E6")
async def test_a_stop_does_not_wait_for_a_late_usage(desk: MakeDesk) -> None:
    """The answer is whole: it ends as one, at once."""
    d = desk(late(says(text("a"), FINISH), _never))
    handle = await d.start()
    await d.idle()

    await d.stop()

    assert (await d.done(handle)).status == "completed"


# ---- of an answer that was stopped, or failed


@pytest.mark.spec("P16")
async def test_the_usage_of_an_aborted_answer_is_on_its_row(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    line.give(text("half"), tokens(7))
    await d.idle()

    await d.stop()

    assert d.disk.rows()[-1]["metadata"]["usage"] == {"totalTokens": 7}
    assert await d.usages() == []
    assert end_usage(d) == Usage(total_tokens=7)


@pytest.mark.spec("P16")
@pytest.mark.parametrize("said", ["", "\n\n"])
async def test_the_usage_of_an_aborted_answer_without_a_row_is_kept_beside(
    desk: MakeDesk, said: str
) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start(model="m")
    line.give(text(said), tokens(7))
    await d.idle()

    await d.stop()

    assert d.disk.roles() == ["user"]
    assert await d.usages() == [(handle.message_id, 7, "abort")]


@pytest.mark.spec("P15", "P16")
async def test_the_usage_of_an_abandoned_answer_is_kept_beside_once(desk: MakeDesk) -> None:
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(text("half"), tokens(7))
    await d.idle()

    await asyncio.gather(*(d.stop(abandon_partial=True) for _ in range(3)))

    assert d.disk.roles() == ["user"]
    assert d.disk.partial() is None
    assert await d.usages() == [(handle.message_id, 7, "abort")]


@pytest.mark.spec("P16")
async def test_the_usage_is_kept_beside_when_the_row_could_not_be_written(desk: MakeDesk) -> None:
    """Not on the older partial, which the commit makes a row of."""
    line = Line()
    d = desk(line)
    handle = await d.start()
    line.give(text("half"), tokens(7))
    await d.idle()
    d.history.fail("append_partial")
    d.history.fail("write_partial")

    await d.stop()

    assert d.disk.answers() == ["half"]
    assert "usage" not in d.disk.rows()[-1]["metadata"]
    assert await d.usages() == [(handle.message_id, 7, "abort")]


@pytest.mark.spec("P16")
async def test_the_usage_of_a_failed_answer_is_kept_beside_once(desk: MakeDesk) -> None:
    """Its partial becomes a row later, without it."""
    d = desk(says(text("half"), tokens(7)), says(text("whole"), FINISH))
    handle = await d.start()
    await d.idle()
    await d.whole("next")

    rows = d.disk.rows()
    assert [row["role"] for row in rows] == ["user", "assistant", "user", "assistant"]
    assert "usage" not in rows[1]["metadata"]
    assert await d.usages() == [(handle.message_id, 7, "error")]


@pytest.mark.parametrize("ending", ["abort", "error"])
async def test_nothing_is_kept_beside_where_nothing_was_used(
    desk: MakeDesk, ending: Literal["abort", "error"]
) -> None:
    line = Line()
    d = desk(line)
    await d.start()
    line.give(FinishStep(usage=Usage(total_tokens=0)))
    await d.idle()
    if ending == "error":
        line.end()
        await d.idle()
    else:
        await d.stop()

    assert await d.usages() == []
