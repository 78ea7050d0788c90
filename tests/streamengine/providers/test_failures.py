"""What an API's own word for an error means: to a provider, and to whoever gets an exception."""

from __future__ import annotations

import pytest

from streamengine.model import ErrorType, categorize
from streamengine.model.errors import ERROR_TYPES_BY_CODE
from streamengine.providers.failures import Subject, of_answer, of_event

SUBJECT = Subject("api.test", "m", "A_API_KEY")


class CodedError(Exception):
    """As clients of APIs raise them."""

    def __init__(self, code: str, status_code: int | None = None) -> None:
        super().__init__("no")
        self.code = code
        self.status_code = status_code


@pytest.mark.parametrize(("code", "error_type"), ERROR_TYPES_BY_CODE.items())
def test_a_code_means_the_same_in_an_event_of_an_api_and_on_an_exception(
    code: str, error_type: ErrorType
) -> None:
    assert of_event(SUBJECT, {"code": code, "message": "no"}).error_type == error_type
    assert categorize(CodedError(code)) == error_type


@pytest.mark.parametrize("code", ["api_error", "server_error"])
def test_a_server_that_blames_itself_for_a_bad_request_is_not_believed(code: str) -> None:
    """It would be tried again for ever."""
    answer = of_answer(SUBJECT, 400, {"error": {"code": code, "message": "no"}}, None)

    assert answer.error_type == "api"
    assert categorize(CodedError(code, 400)) == "api"
    assert categorize(CodedError(code, 503)) == "server_error"
