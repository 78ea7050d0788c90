"""Error payloads of any shape become one error event in words (E23)."""

from __future__ import annotations

from typing import Any

import pytest

from streamengine.model import ErrorPart, StreamError
from streamengine.payloads import exception_of, message_of

from .conftest import MakeDesk
from .kit import says, text

pytestmark = pytest.mark.lifecycle


def cyclic() -> dict[str, Any]:
    payload: dict[str, Any] = {"name": "a payload"}
    payload["cause"] = payload
    return payload


def cyclic_with_message() -> dict[str, Any]:
    payload: dict[str, Any] = {"error": {"message": "too busy", "type": "overloaded_error"}}
    payload["error"]["cause"] = payload
    return payload


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no words for it")


class HostileError(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words for it")


@pytest.mark.spec("E23")
@pytest.mark.parametrize(
    ("payload", "said", "error_type"),
    [
        (cyclic(), "a payload", "api"),
        (cyclic_with_message(), "too busy", "server_error"),
        (Hostile(), "a value of type Hostile", "api"),
        (HostileError(), "HostileError", "unknown"),
        ([cyclic()], "a payload", "api"),
        ("x" * 10_000, "xxx...", "api"),
        ({"error": "in words"}, "in words", "api"),
        ({"message": "slow down", "status": 429}, "slow down", "rate_limit"),
        ({"error": {"message": "no", "code": 401}}, "no", "authentication"),
    ],
    ids=lambda value: type(value).__name__,
)
async def test_a_payload_of_any_shape_is_one_readable_error(
    desk: MakeDesk, payload: object, said: str, error_type: str
) -> None:
    d = desk(says(text("half"), ErrorPart(error=payload)))

    completion = await d.whole()

    assert completion.status == "failed"
    assert completion.error is not None
    assert said in completion.error
    assert "circular" not in completion.error.lower()
    assert completion.error_type == error_type
    assert [e.type for e in d.tape.terminals] == ["error"]


def test_an_exception_in_a_payload_is_itself() -> None:
    error = StreamError("network", "gone")

    assert exception_of(error) is error
    assert message_of(error) == "gone"


def test_the_code_of_a_payload_is_kept() -> None:
    error = exception_of({"error": {"message": "no", "code": "previous_response_not_found"}})

    assert isinstance(error, StreamError)
    assert error.code == "previous_response_not_found"
