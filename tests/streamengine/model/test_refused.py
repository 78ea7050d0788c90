"""What a model refused: marked, and left out, however the parts around it were cut."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streamengine.model import (
    MessagePart,
    ReasoningPart,
    RefusedPart,
    TextPart,
    ToolPart,
)
from streamengine.model.fold import fold_parts
from streamengine.model.refused import refusal_of, without_refused


def tool(call_id: str, state: str = "output-available") -> ToolPart:
    return ToolPart(tool_call_id=call_id, tool_name="t", state=state)


def parts_with(call_ids: str) -> st.SearchStrategy[list[MessagePart]]:
    words = st.text(min_size=1, max_size=3)
    part: st.SearchStrategy[MessagePart] = st.one_of(
        words.map(lambda text: TextPart(text=text)),
        words.map(lambda text: ReasoningPart(text=text)),
        st.sampled_from(call_ids).map(tool),
    )
    return st.lists(part, max_size=6)


def mark(parts: list[MessagePart]) -> RefusedPart:
    return refusal_of(parts, model="m", timestamp_ms=1)


@given(parts_with("ab"), parts_with("cd"), parts_with("ef"), parts_with("gh"))
def test_what_stands_around_it_is_left_whole(
    before: list[MessagePart],
    first: list[MessagePart],
    second: list[MessagePart],
    after: list[MessagePart],
) -> None:
    said = [*before, *first, mark(first), *second, mark(second), *after]

    assert without_refused(said) == fold_parts([*before, *after])
    assert without_refused(fold_parts(said)) == without_refused(said)


def test_a_seal_goes_with_the_reasoning_that_it_was_of() -> None:
    refused: list[MessagePart] = [ReasoningPart(text="no", signature="seal")]

    (left,) = without_refused([ReasoningPart(text="yes, "), *refused, mark(refused)])

    assert left == ReasoningPart(text="yes, ")


def test_reasoning_without_words_goes_with_what_was_said_after_it() -> None:
    hidden = ReasoningPart(text="", provider_metadata={"maker": {"sealed": "x"}})
    alone: list[MessagePart] = [hidden]
    for refused in (alone, [*alone, tool("a"), TextPart(text="no")]):
        assert without_refused([tool("b"), *refused, mark(refused)]) == (tool("b"),)
