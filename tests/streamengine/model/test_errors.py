from __future__ import annotations

import asyncio
import errno
import pickle
import socket
from types import SimpleNamespace

import pytest

from streamengine.model import ErrorType, HistoryError, SendError, StreamError, categorize


class StatusError(Exception):
    """As HTTP clients make them: the status on the error."""

    def __init__(self, status_code: int, text: str = "") -> None:
        super().__init__(text)
        self.status_code = status_code


class ResponseError(Exception):
    """As HTTP clients make them: the status on its response."""

    def __init__(self, status_code: int) -> None:
        super().__init__()
        self.response = SimpleNamespace(status_code=status_code)


class CodeError(Exception):
    code = "context_length_exceeded"


class WordError(Exception):
    """As APIs report them inside a stream: a word of their own, and no status."""

    def __init__(self, word: str, name: str = "code") -> None:
        super().__init__("something went wrong")
        setattr(self, name, word)


class AbortError(Exception):
    pass


class TransportError(Exception):
    pass


class ReadError(TransportError):
    pass


class RetryError(Exception):
    pass


@pytest.mark.parametrize(
    ("exc", "category"),
    [
        (StatusError(401), "authentication"),
        (StatusError(402), "quota"),
        (StatusError(429), "rate_limit"),
        (StatusError(429, "You exceeded your current quota"), "quota"),
        (StatusError(500), "server_error"),
        (StatusError(529), "server_error"),
        (ResponseError(503), "server_error"),
        (StatusError(404, "no such model"), "model_not_found"),
        (StatusError(404, "no such page"), "api"),
        (StatusError(400), "api"),
        (StatusError(400, "prompt is too long: 9 tokens"), "context_exceeded"),
        (Exception("Input is too long"), "context_exceeded"),
        (Exception("tokens exceed the limit of 5"), "context_exceeded"),
        (CodeError(), "context_exceeded"),
        (WordError("invalid_api_key"), "authentication"),
        (WordError("authentication_error", "type"), "authentication"),
        (WordError("api_key_not_found", "kind"), "authentication"),
        (WordError("insufficient_quota"), "quota"),
        (WordError("billing_error", "type"), "quota"),
        (WordError("rate_limit_error", "type"), "rate_limit"),
        (WordError("overloaded_error", "type"), "server_error"),
        (WordError("model_not_found"), "model_not_found"),
        (WordError("content_filter"), "model_refusal"),
        (WordError("a word of no meaning"), "unknown"),
        (StatusError(429, "token rate exceeds your limit"), "rate_limit"),
        (asyncio.CancelledError(), "aborted"),
        (AbortError(), "aborted"),
        (ConnectionResetError(), "network"),
        (TimeoutError(), "network"),
        (socket.gaierror(), "network"),
        (ReadError(), "network"),
        (RetryError(), "retry_failed"),
        (StreamError("stream_truncated", "cut"), "stream_truncated"),
        (StreamError("empty_output", "nothing"), "empty_output"),
        (Exception("something else"), "unknown"),
    ],
)
def test_an_exception_has_a_category(exc: BaseException, category: ErrorType) -> None:
    assert categorize(exc) == category


@pytest.mark.parametrize(
    "text", ["unexpected token in JSON", "the sky is the limit", "missing key in a dict"]
)
def test_a_single_word_in_a_message_decides_nothing(text: str) -> None:
    assert categorize(ValueError(text)) == "unknown"


def test_a_full_disk_is_no_network_error() -> None:
    assert categorize(OSError(errno.ENOSPC, "no space left")) == "unknown"


def test_a_wrapper_does_not_hide_what_its_cause_says() -> None:
    wrapped = Exception("wrapped")
    wrapped.__cause__ = StatusError(401)
    retried = RetryError("gave up")
    retried.__cause__ = StatusError(503)

    assert categorize(wrapped) == "authentication"
    assert categorize(retried) == "server_error"


def test_a_retry_with_a_cause_that_says_nothing_is_a_failed_retry() -> None:
    retried = RetryError("gave up")
    retried.__cause__ = Exception("odd")

    assert categorize(retried) == "retry_failed"


def test_a_circle_of_causes_ends() -> None:
    first, second = Exception("a"), Exception("b")
    first.__cause__, second.__cause__ = second, first

    assert categorize(first) == "unknown"


def test_a_history_error_names_the_file_and_the_way_out() -> None:
    error = HistoryError("disk_full", "/state/chat.jsonl", "no room", "Free some.")

    assert str(error) == "/state/chat.jsonl: no room. Free some."


@pytest.mark.parametrize(
    "error",
    [
        SendError("unknown", "no"),
        HistoryError("io", "p", "m", "w"),
        StreamError("network", "no"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_errors_survive_pickling(error: Exception) -> None:
    copy = pickle.loads(pickle.dumps(error))

    assert (type(copy), str(copy)) == (type(error), str(error))
