"""What was too long, and what was cut off: recovered with exactly the rows that were meant."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from fibers import AbortSignal
from streamengine import StreamError, StreamRequest
from streamengine.model import AssistantRow, Row, TextPart, UserRow
from tests.streamengine.engine.kit import FAULT, WHOLE, WORKSPACE, Call, Hand, Parts, calls, echo
from turns.events import LlmRetryEvent
from turns.loop import LoopConfig
from turns.loop.context import is_context_error, shown, to_omit, tokens_of

from .conftest import MakeRoom
from .kit import TOO_LONG, cut, error_of, fails

pytestmark = pytest.mark.lifecycle


def reasons(told: Sequence[LlmRetryEvent]) -> list[str]:
    return [event.reason for event in told]


# ---- too long


@pytest.mark.spec("U21", "R17")
async def test_after_two_context_retries_the_prompt_is_there_once(room: MakeRoom) -> None:
    """Report R17: each retry added the prompt again."""
    r = room(fails(TOO_LONG), fails(TOO_LONG), WHOLE)

    assert await r.whole("Long") == "Hello there"

    assert r.prompts == ["Long"]
    assert len(r.desk.provider.calls) == 3
    assert reasons(r.of(LlmRetryEvent)) == ["context_limit"] * 2


@pytest.mark.spec("U21")
async def test_the_third_time_it_is_the_named_error(room: MakeRoom) -> None:
    r = room(fails(TOO_LONG))

    error = error_of(await r.start())

    assert error.kind == "context_limit"
    assert error.message == f"context limit exceeded after 2 retries: {TOO_LONG}"
    assert len(r.desk.provider.calls) == 3
    assert (r.prompts, r.ends) == (["Go"], ["error"])


@pytest.mark.spec("U21")
async def test_a_provider_that_refuses_at_once_is_retried_alike(room: MakeRoom) -> None:
    def refuse(_call: Call) -> Parts:
        raise StreamError("context_exceeded", "too much")

    r = room(refuse, refuse, WHOLE)

    assert await r.whole("Long") == "Hello there"

    assert r.prompts == ["Long"]


@pytest.mark.spec("U21")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("context_length_exceeded", True),
        ("This model's maximum context length is 8192", True),
        ("the Context Window is full", True),
        ("Too many tokens", True),
        ("over the token limit", True),
        ("Prompt is too long", True),
        ("context deadline exceeded: token limit", False),
        ("timeout while reading the context window", False),
        ("the request timed out (too many tokens)", False),
        ("no such model", False),
    ],
)
def test_what_counts_as_too_long(text: str, expected: bool) -> None:
    assert is_context_error(None, text) is expected


@pytest.mark.spec("U21")
async def test_a_timeout_is_not_retried_as_too_long(room: MakeRoom) -> None:
    r = room(fails("context deadline exceeded: prompt is too long"))

    assert error_of(await r.start()).kind == "stream"
    assert len(r.desk.provider.calls) == 1


async def test_a_context_retry_in_the_middle_goes_on_after_the_tools(room: MakeRoom) -> None:
    tool = echo()
    r = room(calls("echo"), fails(TOO_LONG), WHOLE, tools=[tool])

    assert await r.whole() == "Hello there"

    assert (len(tool.uses), r.prompts) == (1, ["Go"])
    assert [part.type for part in r.request(2).so_far] == ["dynamic-tool"]


@pytest.mark.spec("U24")
async def test_a_context_retry_shows_the_model_less_and_keeps_the_rows(room: MakeRoom) -> None:
    r = room(WHOLE, WHOLE, WHOLE, fails(TOO_LONG), WHOLE, system="Be brief.")
    for number in range(3):
        await r.whole(f"q{number}")

    await r.whole("Long")

    given = r.request(4)
    assert [row.id for row in given.history] == [r.desk.disk.rows()[n]["id"] for n in (0, 4, 5)]
    assert given.text == "Long"
    assert given.system.startswith("Be brief.\n\n[Context truncated: 3 earlier messages omitted")
    assert r.prompts == ["q0", "q1", "q2", "Long"]
    # For the rest of the conversation, not for this call only.
    await r.whole("And then")
    assert r.request(5).history[0].id == given.history[0].id
    assert len(r.request(5).history) == 5


# ---- cut off


@pytest.mark.spec("U22")
async def test_each_recovery_adds_its_prompt_once(room: MakeRoom) -> None:
    r = room(cut("first half"), WHOLE)

    assert await r.whole() == "Hello there"

    assert r.prompts == ["Go", r.loop.config.recovery_prompt]
    assert r.desk.disk.answers() == ["first half", "Hello there"]
    assert reasons(r.of(LlmRetryEvent)) == ["truncated"]


@pytest.mark.spec("U22")
async def test_after_two_the_text_as_it_was_cut_is_the_answer(room: MakeRoom) -> None:
    r = room(cut("half"))

    assert await r.whole() == "half"

    recovery = r.loop.config.recovery_prompt
    assert (r.prompts, r.ends) == (["Go", recovery, recovery], ["completed"])
    assert len(r.desk.provider.calls) == 3


async def test_one_that_was_cut_before_its_first_word_is_recovered_too(room: MakeRoom) -> None:
    r = room(cut("\n"), WHOLE)

    assert await r.whole() == "Hello there"

    assert r.prompts == ["Go", r.loop.config.recovery_prompt]


@pytest.mark.spec("U23", "R17")
async def test_after_a_context_retry_the_recovery_prompt_is_in_the_history(
    room: MakeRoom,
) -> None:
    """Report R17: by the older rule the prompt of the truncation was dropped."""
    r = room(fails(TOO_LONG), cut("half"), WHOLE)

    assert await r.whole() == "Hello there"

    assert r.prompts == ["Go", r.loop.config.recovery_prompt]


@pytest.mark.spec("U21", "U23")
async def test_a_context_retry_of_a_recovery_prompt_adds_nothing(room: MakeRoom) -> None:
    r = room(fails(TOO_LONG), cut("half"), fails(TOO_LONG), cut("half"), WHOLE)

    assert await r.whole() == "Hello there"

    recovery = r.loop.config.recovery_prompt
    assert r.prompts == ["Go", recovery, recovery]
    assert len(r.desk.provider.calls) == 5


@pytest.mark.spec("U21", "U22")
async def test_the_two_counters_are_independent(room: MakeRoom) -> None:
    r = room(fails(TOO_LONG), fails(TOO_LONG), cut("a"), cut("b"), cut("c"))

    assert await r.whole() == "c"

    assert reasons(r.of(LlmRetryEvent)) == ["context_limit"] * 2 + ["truncated"] * 2


async def test_a_message_that_cannot_be_stored_ends_the_turn(room: MakeRoom) -> None:
    r = room(WHOLE)
    r.desk.history.fail("append_user", FAULT)

    assert error_of(await r.start()).kind == "stream"

    assert (r.prompts, r.desk.provider.calls, r.ends) == ([], [], ["error"])


# ---- the two ways of leaving out


def user(name: str, characters: int = 3) -> UserRow:
    return UserRow(id=name, parts=(TextPart(text="x" * characters),))


def rows(count: int) -> list[Row]:
    return [
        user(f"r{n}") if n % 2 == 0 else AssistantRow(id=f"r{n}", parts=(TextPart(text="yes"),))
        for n in range(count)
    ]


@pytest.mark.spec("U24")
@pytest.mark.parametrize(
    ("count", "omitted"),
    [(0, ""), (1, ""), (4, ""), (5, "r1 r2"), (6, "r1 r2"), (7, "r1 r2 r3"), (9, "r1 r2 r3 r4")],
)
def test_forced_it_keeps_the_first_and_the_last(count: int, omitted: str) -> None:
    assert to_omit(rows(count)) == frozenset(omitted.split())


@pytest.mark.spec("U24")
def test_forced_again_it_leaves_out_more() -> None:
    first = to_omit(rows(9))
    rest = [row for row in rows(9) if row.id not in first]

    assert to_omit(rest) == {"r5", "r6"}


def test_what_the_turn_itself_has_said_is_not_left_out() -> None:
    assert to_omit(rows(7), protected={"r2", "r3", "r4", "r5", "r6"}) == {"r1"}


def test_the_newest_rows_that_fit_are_shown_with_one_note() -> None:
    request = StreamRequest(text="now", system="S", history=tuple(user(f"r{n}", 30) for n in "abc"))

    given = shown(request, omitted={"ra"}, limit_tokens=12)

    assert [row.id for row in given.history] == ["rc"]
    assert given.system is not None
    assert given.system.startswith("S\n\n[Context truncated: 2 earlier messages omitted")
    assert given.text == "now"


def test_what_fits_is_shown_as_it_is() -> None:
    request = StreamRequest(text="now", history=(user("ra", 30),))

    assert tokens_of(request) == 11
    assert shown(request, omitted=(), limit_tokens=11) is request
    assert shown(request, omitted=(), limit_tokens=None) is request


def test_instructions_that_are_too_long_alone_leave_room_for_nothing_else() -> None:
    request = StreamRequest(text="now", system="S" * 300, history=(user("ra"), user("rb")))

    given = shown(request, omitted=(), limit_tokens=50)

    assert given.history == ()
    assert given.text == "now"


@pytest.mark.parametrize(
    ("soft", "window", "expected"),
    [(0, 1000, 750), (0, None, 8000), (-1, 1000, None), (70, 1000, 70)],
)
def test_the_soft_limit(soft: int, window: int | None, expected: int | None) -> None:
    assert LoopConfig(soft_limit_tokens=soft).limit_tokens(window) == expected


async def test_before_each_call_the_soft_limit_is_looked_at(room: MakeRoom) -> None:
    async def read(_given: dict[str, Any], _signal: AbortSignal) -> object:
        return "y" * 60

    config = LoopConfig(soft_limit_tokens=20)
    r = room(WHOLE, calls("read"), WHOLE, tools=[Hand("read", read)], config=config)
    await r.whole("x" * 90)

    await r.whole("short")

    assert [len(r.request(number).history) for number in (1, 2)] == [1, 0]
    assert len(r.desk.disk.rows()) == 4
    assert r.loop._parts.context_of(WORKSPACE).omitted == frozenset()
