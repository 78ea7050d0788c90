"""The errors of the engine as values, and the categories that a failed stream falls into."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Iterator, Mapping
from os import PathLike, fspath
from typing import Any, Final, Literal, get_args

from typing_extensions import TypeIs

ErrorType = Literal[
    "authentication",
    "quota",
    "rate_limit",
    "server_error",
    "model_not_found",
    "context_exceeded",
    "stream_truncated",
    "aborted",
    "network",
    "retry_failed",
    "empty_output",
    "model_refusal",
    "api",
    "unknown",
]
"""Why a stream failed, coarse enough to decide whether another try makes sense."""

HistoryErrorKind = Literal[
    "disk_full",
    "unwritable",
    "unsafe_path",
    "io",
    "invalid_id",
    "invalid_row",
    "empty_row",
    "malformed_sequence",
    "stale_sequence",
    "sequence_taken",
    "no_sequence",
    "not_found",
    "locked",
    "newer_version",
]


class SendError(Exception):
    """A message could not be sent: no stream began, and nothing was emitted for it."""

    def __init__(
        self, kind: str, message: str, *, details: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(kind, message)
        self.kind = kind
        self.message = message
        self.details = details

    def __str__(self) -> str:
        return f"{self.kind}: {self.message}"


class HistoryError(Exception):
    """The history could not be read or written.

    `path` is the file or directory concerned, `way_out` what a person can do about it. What was
    stored before is untouched.
    """

    def __init__(
        self, kind: HistoryErrorKind, path: str | PathLike[str], message: str, way_out: str
    ) -> None:
        super().__init__(kind, fspath(path), message, way_out)
        self.kind: HistoryErrorKind = kind
        self.path: str = fspath(path)
        self.message = message
        self.way_out = way_out

    def __str__(self) -> str:
        return f"{self.path}: {self.message}. {self.way_out}"


class StreamError(Exception):
    """A stream failed for a reason that is already known by its category."""

    def __init__(self, error_type: ErrorType, message: str, *, code: str | None = None) -> None:
        """``code``: the provider's own word for it, such as "context_length_exceeded"."""
        super().__init__(error_type, message)
        self.error_type: ErrorType = error_type
        self.message = message
        self.code = code

    def __str__(self) -> str:
        return self.message


PREVIOUS_RESPONSE_NOT_FOUND: Final = "previous_response_not_found"
"""The code of a StreamError that says that the request's previous_response_id is not known."""

_ERROR_TYPES: frozenset[object] = frozenset(get_args(ErrorType))


def _is_error_type(value: object) -> TypeIs[ErrorType]:
    return isinstance(value, str) and value in _ERROR_TYPES


def categorize(exc: BaseException) -> ErrorType:
    """The category of an exception that ended a stream.

    Knows Python's own exceptions, HTTP status codes and what every provider says when a prompt
    is too long; not one provider by name. An exception (a StreamError, or a provider's own) that
    carries a valid `error_type` has the last word. A cause is asked when the exception itself
    says nothing, so that a wrapper doesn't hide what is known.

    The words looked for in a message are phrases, never single words such as "key" or "limit",
    which stand in messages of every kind.
    """
    found: ErrorType = "unknown"
    for link in _with_causes(exc):
        own = _category_of(link)
        if own not in ("unknown", "retry_failed"):
            return own
        if found == "unknown":
            found = own
    return found


def _with_causes(exc: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    link: BaseException | None = exc
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _category_of(exc: BaseException) -> ErrorType:
    declared = getattr(exc, "error_type", None)
    if _is_error_type(declared):
        return declared
    names = {base.__name__ for base in type(exc).__mro__}
    if isinstance(exc, asyncio.CancelledError) or "AbortError" in names:
        return "aborted"
    if "RetryError" in names:
        return "retry_failed"
    text = str(exc).lower()
    status = _http_status(exc)
    if status == 429:
        # The same status serves "slow down" and "your money is used up"; only the text tells.
        # Asked first: a rate limit is one of tokens as well.
        spent = any(word in text for word in ("quota", "billing", "credit"))
        return "quota" if spent else "rate_limit"
    code = _category_of_code(exc, status)
    if code is not None:
        return code
    if _says_too_long(text):
        return "context_exceeded"
    if status is not None:
        return _category_of_status(status, text)
    # By name, as the HTTP client is no dependency of the model: its errors of the wire all have
    # a base class of this name.
    if "TransportError" in names or isinstance(
        exc, ConnectionError | TimeoutError | socket.gaierror | ssl.SSLError
    ):
        return "network"
    return "unknown"


ERROR_TYPES_BY_CODE: Final[Mapping[str, ErrorType]] = {
    "api_key_not_found": "authentication",
    "authentication_error": "authentication",
    "invalid_api_key": "authentication",
    "permission_error": "authentication",
    "insufficient_quota": "quota",
    "billing_error": "quota",
    "billing_hard_limit_reached": "quota",
    "rate_limit_error": "rate_limit",
    "rate_limit_exceeded": "rate_limit",
    "api_error": "server_error",
    "internal_server_error": "server_error",
    "overloaded_error": "server_error",
    "server_error": "server_error",
    "timeout_error": "server_error",
    "model_not_found": "model_not_found",
    "context_length_exceeded": "context_exceeded",
    "request_too_large": "context_exceeded",
    "content_filter": "model_refusal",
    "content_policy_violation": "model_refusal",
    PREVIOUS_RESPONSE_NOT_FOUND: "api",
}
"""What APIs call one kind of error, as an error's `code`, `type` or `kind`."""


def type_of_code(code: str, status_code: int | None) -> ErrorType | None:
    """What an API's own word says, which is more than its status: a 400 can be many things. None
    where it is not known, or where the status belies it.
    """
    known = ERROR_TYPES_BY_CODE.get(code)
    # Some call everything their own fault, also what no further try mends.
    if known == "server_error" and status_code is not None and 400 <= status_code < 500:
        return None
    return known


def _category_of_code(exc: BaseException, status_code: int | None) -> ErrorType | None:
    for name in ("code", "type", "kind"):
        word = getattr(exc, name, None)
        known = type_of_code(word, status_code) if isinstance(word, str) else None
        if known is not None:
            return known
    return None


def _says_too_long(text: str) -> bool:
    if "prompt is too long" in text or "input is too long" in text:
        return True
    return all(word in text for word in ("token", "exceed", "limit"))


def _http_status(exc: BaseException) -> int | None:
    for carrier in (exc, getattr(exc, "response", None)):
        status = getattr(carrier, "status_code", None)
        if isinstance(status, int) and 100 <= status <= 999:
            return status
    return None


def _category_of_status(status: int, text: str) -> ErrorType:
    if status == 401:
        return "authentication"
    if status == 402:
        return "quota"
    if status >= 500:
        return "server_error"
    if status == 404 and "model" in text:
        return "model_not_found"
    return "api"
