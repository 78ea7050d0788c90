"""What a provider sends in place of an exception: an error part's payload, of any shape."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from typing_extensions import TypeIs

from .model.errors import ErrorType, StreamError, categorize
from .model.plain import is_mapping, words_of


class ReportedError(Exception):
    """An error inside a stream, in the provider's words. ``code`` and ``status_code`` are its own,
    where it gives them; categorize() reads them.
    """

    def __init__(self, message: str, code: str | None, status_code: int | None) -> None:
        super().__init__(message)
        self.code = code
        self.status_code = status_code


def exception_of(payload: object) -> Exception:
    """``payload`` as something to raise, with a text for a person. An exception is itself."""
    if isinstance(payload, Exception):
        return payload
    if not is_mapping(payload):
        return StreamError("api", message_of(payload))
    codes = [v for v in _fields(payload, "code", "type") if isinstance(v, str)]
    statuses = [
        v for v in _fields(payload, "status", "statusCode", "status_code", "code") if _is_status(v)
    ]
    error = ReportedError(
        message_of(payload), codes[0] if codes else None, statuses[0] if statuses else None
    )
    error_type: ErrorType = categorize(error)
    if error_type == "unknown":
        error_type = "api"
    return StreamError(error_type, str(error), code=error.code)


def message_of(payload: object) -> str:
    """The text of an error payload: its nested or own message, else all of it in words."""
    if isinstance(payload, BaseException):
        return text_of(payload)
    if is_mapping(payload):
        for message in _fields(payload, "message"):
            if isinstance(message, str) and message:
                return words_of(message)
        nested = payload.get("error")
        if isinstance(nested, str) and nested:
            return words_of(nested)
    return words_of(payload) or repr(payload)


def text_of(exc: BaseException) -> str:
    """The text of an exception; its class where it has none or can't be printed. Never raises."""
    try:
        return words_of(str(exc) or type(exc).__name__)
    except Exception:  # noqa: BLE001  # a hostile __str__ must not leave a stream open
        return type(exc).__name__


def type_of(exc: BaseException) -> ErrorType:
    """The category of an exception. Never raises."""
    try:
        return categorize(exc)
    except Exception:  # noqa: BLE001  # see text_of
        return "unknown"


def _fields(payload: Mapping[object, object], *names: str) -> Iterator[object]:
    """These fields of the nested error first, then of the payload itself."""
    nested = payload.get("error")
    for source in (nested, payload):
        if is_mapping(source):
            yield from (source.get(name) for name in names)


def _is_status(value: object) -> TypeIs[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 100 <= value <= 599
