from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from streamengine.model import Completion, StreamRequest, TextPart, UserRow


def test_a_request_needs_only_its_text() -> None:
    request = StreamRequest(text="hi")

    assert request.client_message_id is None
    assert request.correlation is None
    assert request.history == ()


def test_a_request_is_read_from_camel_case_json() -> None:
    request = StreamRequest.model_validate(
        {
            "text": "hi",
            "clientMessageId": "key",
            "correlation": {"turnId": "t"},
            "history": [{"id": "m", "role": "user", "parts": [{"type": "text", "text": "yo"}]}],
        }
    )

    assert request == StreamRequest(
        text="hi",
        client_message_id="key",
        correlation={"turnId": "t"},
        history=(UserRow(id="m", parts=(TextPart(text="yo"),)),),
    )


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "hi", "clientMesageId": "typo"},
        {"text": "hi", "clientMessageId": ""},
        {"text": "hi", "clientMessageId": "x" * 256},
        {"clientMessageId": "key"},
    ],
)
def test_a_request_with_a_field_that_is_wrong_missing_or_unknown_is_refused(
    fields: dict[str, Any],
) -> None:
    with pytest.raises(ValidationError):
        StreamRequest.model_validate(fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "completed"},
        {"status": "failed", "error": "no", "errorType": "network"},
        {"status": "failed"},
        {"status": "aborted", "abortReason": "user"},
    ],
)
def test_a_completion_says_what_its_status_asks_for(fields: dict[str, Any]) -> None:
    assert Completion.model_validate(fields).to_mapping() == fields


@pytest.mark.parametrize(
    "fields",
    [
        {"status": "aborted"},
        {"status": "completed", "abortReason": "user"},
        {"status": "failed", "abortReason": "system"},
        {"status": "completed", "error": "no"},
        {"status": "aborted", "abortReason": "user", "errorType": "network"},
        {"status": "aborted", "abortReason": "bored"},
    ],
)
def test_a_completion_that_contradicts_itself_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        Completion.model_validate(fields)
