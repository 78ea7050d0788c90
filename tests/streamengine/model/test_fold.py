"""Folding: how an answer was cut into parts never matters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamengine.model import MessagePart, ReasoningPart, TextPart, ToolPart, fold_parts


def text(value: str, at_ms: int | None = None) -> TextPart:
    return TextPart(text=value, timestamp_ms=at_ms)


def thought(value: str, signature: str | None = None) -> ReasoningPart:
    return ReasoningPart(text=value, signature=signature)


def call(call_id: str, output: str | None = None) -> ToolPart:
    state = "input-available" if output is None else "output-available"
    return ToolPart(tool_call_id=call_id, tool_name="look", state=state, output=output)


PARTS: st.SearchStrategy[MessagePart] = st.one_of(
    st.builds(text, st.sampled_from(["a", "b"])),
    st.builds(thought, st.sampled_from(["", "c"]), st.sampled_from([None, "s"])),
    st.builds(call, st.sampled_from(["p", "q"]), st.sampled_from([None, "o"])),
)


@given(st.lists(PARTS, max_size=9), st.lists(PARTS, max_size=9))
def test_a_base_and_what_was_said_since_fold_to_the_whole(
    before: list[MessagePart], since: list[MessagePart]
) -> None:
    whole = fold_parts([*before, *since])
    assert fold_parts([*fold_parts(before), *since]) == whole
    assert fold_parts(whole) == whole


def test_neighbouring_text_is_one_stamped_as_its_first_piece() -> None:
    assert fold_parts([text("a", 1), text("b", 2)]) == (text("ab", 1),)


def test_a_call_stands_where_it_was_made_and_has_its_last_state() -> None:
    folded = fold_parts([text("a"), call("p"), text("b"), call("p", "done"), text("c")])
    assert folded == (text("a"), call("p", "done"), text("bc"))


def test_a_signature_ends_a_block_of_reasoning() -> None:
    """A provider takes back its reasoning only block by block, each with its own signature."""
    folded = fold_parts([thought("a"), thought("b"), thought("", "s1"), thought("c", "s2")])
    assert folded == (thought("ab", "s1"), thought("c", "s2"))


@pytest.mark.parametrize("count", [20_000])
def test_many_deltas_fold_in_linear_time(count: int) -> None:
    (folded,) = fold_parts([text("x")] * count)
    assert folded == text("x" * count)
