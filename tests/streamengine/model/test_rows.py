from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from streamengine.model import (
    MAX_HISTORY_SEQUENCE,
    AssistantRow,
    FilePart,
    ReasoningPart,
    RowMetadata,
    TextPart,
    ToolPart,
    Usage,
    UserRow,
    parse_row,
)


def test_a_row_is_camel_case_in_json() -> None:
    row = AssistantRow(
        id="a-1",
        workspace_id="ws",
        parts=(
            TextPart(text="hi", timestamp_ms=1),
            ReasoningPart(text="hm"),
            ToolPart(tool_call_id="c", tool_name="t", state="input-available", input={}),
            FilePart(media_type="text/plain", url="data:,x"),
        ),
        metadata=RowMetadata(
            history_sequence=4,
            timestamp_ms=9,
            partial=True,
            client_message_id="key",
            error_type="network",
            abort_reason="user",
            duration_ms=12,
            usage=Usage(output_tokens=2),
        ),
    )

    fields = row.to_mapping()

    assert fields == {
        "id": "a-1",
        "role": "assistant",
        "workspaceId": "ws",
        "parts": [
            {"type": "text", "text": "hi", "timestamp": 1},
            {"type": "reasoning", "text": "hm"},
            {
                "type": "dynamic-tool",
                "toolCallId": "c",
                "toolName": "t",
                "state": "input-available",
                "input": {},
            },
            {"type": "file", "mediaType": "text/plain", "url": "data:,x"},
        ],
        "metadata": {
            "historySequence": 4,
            "timestamp": 9,
            "partial": True,
            "clientMessageId": "key",
            "errorType": "network",
            "abortReason": "user",
            "durationMs": 12,
            "usage": {"outputTokens": 2},
        },
    }
    assert parse_row(fields) == row


@pytest.mark.spec("P13")
@pytest.mark.parametrize("value", [True, False, 1.0, 1.5, -1, "1", MAX_HISTORY_SEQUENCE + 1])
def test_what_is_no_whole_number_from_0_is_no_sequence(value: Any) -> None:
    with pytest.raises(ValidationError):
        RowMetadata.model_validate({"historySequence": value})


def test_the_role_decides_which_row_it_is() -> None:
    assert isinstance(parse_row({"id": "m", "role": "user"}), UserRow)
    assert isinstance(parse_row({"id": "m", "role": "assistant"}), AssistantRow)
    with pytest.raises(ValueError):
        parse_row({"id": "m", "role": "system"})


def test_metadata_of_a_newer_version_is_kept() -> None:
    row = parse_row(
        {"id": "m", "role": "user", "metadata": {"mood": "fine", "abortReason": "eclipse"}}
    )

    assert row.to_mapping()["metadata"] == {"mood": "fine", "abortReason": "eclipse"}


def test_only_the_mark_itself_makes_a_row_partial() -> None:
    assert AssistantRow(id="m", metadata=RowMetadata(partial=True)).is_partial
    assert not AssistantRow(id="m", metadata=RowMetadata(partial=False)).is_partial
    assert not AssistantRow(id="m").is_partial


def test_a_row_can_not_be_changed_in_place() -> None:
    row = UserRow(id="m")

    with pytest.raises(ValidationError):
        row.id = "other"  # type: ignore[misc]  # refused at run time too
