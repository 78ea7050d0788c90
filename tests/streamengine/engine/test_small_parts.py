"""The small pieces that the engine is made of: locks, tokens, phases, the conversation."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest
from structlog.testing import capture_logs

from streamengine import EngineOptions
from streamengine.conversation import for_provider
from streamengine.locks import WorkspaceLocks
from streamengine.model import (
    AssistantRow,
    FilePart,
    MessagePart,
    ReasoningDeltaEvent,
    ReasoningPart,
    Row,
    StreamDeltaEvent,
    StreamLifecycleEvent,
    TextPart,
    ToolPart,
    UserRow,
)
from streamengine.tokens import Tokenizer, TokenTracker, kept

from .conftest import MakeDesk
from .kit import FINISH, WHOLE, Line, says, text

# ---- locks


async def test_a_lock_of_an_idle_workspace_is_forgotten() -> None:
    """Thousands of workspaces come and go in one process."""
    locks = WorkspaceLocks()
    for number in range(1000):
        async with locks.hold(f"w{number}"):
            assert len(locks) == 1

    assert len(locks) == 0


async def test_a_lock_is_held_by_one_at_a_time_in_order() -> None:
    locks = WorkspaceLocks()
    order: list[int] = []

    async def use(number: int) -> None:
        async with locks.hold("w"):
            order.append(number)
            await asyncio.sleep(0)
            order.append(number)

    await asyncio.gather(*(use(number) for number in range(3)))

    assert order == [0, 0, 1, 1, 2, 2]
    assert len(locks) == 0


async def test_who_is_cancelled_while_waiting_leaves_no_lock_behind() -> None:
    locks = WorkspaceLocks()
    async with locks.hold("w"):
        waiting = asyncio.ensure_future(locks.hold("w").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    assert len(locks) == 0


async def test_the_engine_keeps_no_lock_of_an_answered_workspace(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    for number in range(3):
        await d.done(await d.start("Hi", f"w{number}"))

    assert d.engine.describe()["starting"] == []
    assert len(d.engine._starting.locks) == 0  # nothing else shows what is kept


# ---- tokens


def test_tokens_are_counted_with_the_tokenizer_of_the_model() -> None:
    loaded: list[str] = []

    def words(said: str) -> int:
        return len(said.split())

    def load(model: str) -> Tokenizer:
        loaded.append(model)
        return len if model == "letters" else words

    tracker = TokenTracker(load)
    assert tracker.count("two words") == 0
    tracker.set_model("words")
    assert tracker.count("two words") == 2
    tracker.set_model("words")
    tracker.set_model("words", override="letters")
    assert tracker.count("two words") == 9

    assert tracker.count("") == 0
    assert loaded == ["words", "letters"]


def test_without_a_tokenizer_the_count_is_zero_and_nothing_is_told() -> None:
    for tracker in (TokenTracker(), TokenTracker(lambda _model: None)):
        tracker.set_model("m")

        assert (tracker.count("text"), tracker.told("text")) == (0, None)


def test_a_tokenizer_that_fails_is_not_asked_again() -> None:
    asked: list[str] = []

    def count(said: str) -> int:
        asked.append(said)
        raise RuntimeError("no")

    tracker = TokenTracker(lambda _model: count)
    tracker.set_model("m")

    assert [tracker.count("a"), tracker.count("b")] == [0, 0]
    assert asked == ["a"]


@pytest.mark.parametrize("given", ["many", None, 1.5, -1])
async def test_a_tokenizer_that_gives_no_count_spoils_no_answer(
    desk: MakeDesk, given: object
) -> None:
    def count(_said: str) -> object:
        return given

    tokenizer = cast("Tokenizer", count)
    d = desk(WHOLE, options=EngineOptions(load_tokenizer=lambda _model: tokenizer))

    with capture_logs() as logs:
        completion = await d.whole(model="m")

    assert completion.status == "completed"
    assert len([log for log in logs if log["event"] == "a tokenizer failed"]) == 1


def test_a_tokenizer_that_cannot_be_loaded_counts_nothing() -> None:
    def load(model: str) -> None:
        raise RuntimeError(f"no {model}")

    tracker = TokenTracker(load)
    with capture_logs() as logs:
        tracker.set_model("m")

    assert tracker.count("a") == 0
    assert len(logs) == 1


def test_a_loaded_tokenizer_is_kept_for_the_next_stream() -> None:
    loaded: list[str] = []
    load = kept(lambda model: loaded.append(model))
    for _ in range(3):
        TokenTracker(load).set_model("m")

    assert loaded == ["m"]
    assert kept(None) is None


async def test_events_say_how_many_tokens_they_bring(desk: MakeDesk) -> None:
    from streamengine.model import ReasoningDelta, ToolCall, ToolCallStartEvent

    call = ToolCall(tool_call_id="c", tool_name="t", input={"q": 1}, provider_executed=True)
    d = desk(
        says(ReasoningDelta(text="abc"), text("de"), call, FINISH),
        options=EngineOptions(load_tokenizer=lambda _model: len),
    )

    await d.whole(model="m")

    counted = (StreamDeltaEvent, ReasoningDeltaEvent)
    assert [e.tokens for e in d.tape.events if isinstance(e, counted)] == [3, 2]
    (start,) = (e for e in d.tape.events if isinstance(e, ToolCallStartEvent))
    assert start.tokens is not None
    assert start.tokens > 0


# ---- phases


@pytest.mark.parametrize(
    ("how", "phases"),
    [
        ("completes", ["preparing", "streaming", "completing", "idle"]),
        ("fails", ["preparing", "streaming", "failed"]),
        ("is stopped", ["preparing", "streaming", "interrupted"]),
    ],
)
async def test_the_phases_of_a_stream_are_told_where_they_are_wanted(
    desk: MakeDesk, how: str, phases: list[str]
) -> None:
    """The last before the terminal event, after which nothing comes."""
    line = Line()
    d = desk(line, options=EngineOptions(lifecycle_events=True))
    await d.start()
    line.give(text("a"))
    await d.idle()
    if how == "completes":
        line.give(FINISH)
    if how == "is stopped":
        await d.stop()
    line.end()
    await d.idle()

    told = [e for e in d.tape.events if isinstance(e, StreamLifecycleEvent)]
    assert [e.phase for e in told] == phases
    assert [e.had_any_output for e in told] == [False, False, *[True] * (len(phases) - 2)]
    assert d.tape.events[-1] == d.tape.terminals[0]


# ---- the conversation


def answer(*parts: MessagePart, id: str = "a1") -> AssistantRow:  # the row's field
    return AssistantRow(id=id, parts=parts)


USER = UserRow(id="u1", parts=(TextPart(text=" "),))
OPEN = ToolPart(tool_call_id="c", tool_name="t", state="input-available", input={"x": 1})
DONE = ToolPart(tool_call_id="d", tool_name="t", state="output-available", output=None)
FILE = FilePart(media_type="text/plain", url="data:,x")


@pytest.mark.spec("P22", "BT8")
@pytest.mark.parametrize("state", ["input-available", "input-streaming", "of-a-newer-version"])
def test_each_call_has_a_result_when_the_provider_gets_it(state: str) -> None:
    (row,) = for_provider([answer(OPEN.model_copy(update={"state": state}), DONE)])

    aborted, done = row.parts
    assert isinstance(aborted, ToolPart)
    assert aborted.has_output
    assert aborted.output == {"success": False, "error": "aborted"}
    assert aborted.input == {"x": 1}
    assert done == DONE


@pytest.mark.spec("P7", "P22")
def test_the_provider_gets_no_blank_answer() -> None:
    rows: list[Row] = [
        USER,
        answer(TextPart(text="\n\n"), id="a1"),
        answer(id="a2"),
        answer(TextPart(text=" "), OPEN, id="a3"),
        answer(ReasoningPart(text=""), TextPart(text="Yes."), id="a4"),
        answer(FILE, id="a5"),
    ]

    clean = for_provider(rows)

    assert [(row.id, [part.type for part in row.parts]) for row in clean] == [
        ("u1", ["text"]),
        ("a3", ["dynamic-tool"]),
        ("a4", ["text"]),
        ("a5", ["file"]),
    ]


def test_a_sealed_reasoning_without_text_stays() -> None:
    sealed = ReasoningPart(text="", signature="seal")

    (row,) = for_provider([answer(sealed, TextPart(text="Yes."))])

    assert row.parts[0] == sealed


def test_a_row_that_is_acceptable_is_passed_on_itself() -> None:
    row = answer(TextPart(text="Yes."), DONE)

    assert for_provider([row])[0] is row
