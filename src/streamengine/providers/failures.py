"""What went wrong with a request, as a ProviderError that says what to do about it."""

from __future__ import annotations

import email.utils
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import httpx

from ..model.errors import ErrorType, categorize, type_of_code
from ..redact import Secret, redact
from . import loose
from .errors import ProviderError

_MESSAGE_CHARACTERS: Final = 600
_LONGEST_WAIT_SECONDS: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class Subject:
    """Whom a failure is about: what its message names."""

    host: str
    model: str
    key_place: str
    key: Secret | None = None
    secrets: tuple[Secret, ...] = ()
    """Others that its texts may hold."""

    def clean(self, text: str) -> str:
        """A text of the other side without secrets."""
        return redact(text, self.secrets if self.key is None else (self.key, *self.secrets))


@dataclass(frozen=True, slots=True)
class _Said:
    """What an error body says."""

    message: str
    codes: tuple[str, ...] = ()


class _Coded(Exception):
    """For `categorize`, which knows the statuses and the phrases."""

    def __init__(self, message: str, status_code: int | None) -> None:
        super().__init__(message)
        self.status_code = status_code


def of_status(
    subject: Subject, status: int, headers: Mapping[str, str], body: str
) -> ProviderError:
    """For an answer that isn't 200. ``body`` may be cut off, and anything at all."""
    said = _said_in_body(body, headers.get("content-type", ""))
    wait = retry_after_seconds(headers)
    if 300 <= status < 400:
        text = f"{subject.host} sends elsewhere ({status}), and redirects aren't followed: a key "
        return ProviderError(
            "api", text + "belongs to one host. Give the base URL itself", status_code=status
        )
    return _made(subject, said, status, wait)


def of_event(subject: Subject, error: object) -> ProviderError:
    """For an error that comes inside a stream: what the API has under `error`."""
    return _made(subject, _said(error), None, None)


def of_answer(
    subject: Subject, status: int, error: object, wait_seconds: float | None
) -> ProviderError:
    """For an answer that somebody else has read: ``error`` is what it has, as JSON or as text."""
    fields = loose.fields(error)
    said = _said(fields.get("error") or fields or error)
    return _made(subject, said, status, wait_seconds)


def _made(
    subject: Subject, said: _Said, status: int | None, wait_seconds: float | None
) -> ProviderError:
    kind = _type_of(said, status)
    where = subject.host if status is None else f"{subject.host} ({status})"
    what = subject.clean(said.message)
    if len(what) > _MESSAGE_CHARACTERS:
        what = what[:_MESSAGE_CHARACTERS] + "..."
    message = f"{where} says: {what}" if what else f"{where} refuses without a word"
    way_out = _way_out(kind, status, subject, wait_seconds)
    if way_out:
        message = f"{message.rstrip('. ')}. {way_out}"
    return ProviderError(
        kind,
        message,
        code=subject.clean(said.codes[0]) if said.codes else None,
        status_code=status,
        retry_after_seconds=wait_seconds,
    )


def _type_of(said: _Said, status: int | None) -> ErrorType:
    known: list[ErrorType | None] = [type_of_code(code, status) for code in said.codes]
    for kind in known:
        # A rate limit of an account without money never ends: only the text tells the two apart.
        if kind is not None and kind != "rate_limit":
            return kind
    if status is None and "rate_limit" in known:
        status = 429
    if status == 403:
        return "authentication"
    if status in (404, 400) and "not_found_error" in said.codes and "model" in said.message:
        return "model_not_found"
    kind = categorize(_Coded(said.message, status))
    return "api" if kind == "unknown" else kind


def _way_out(
    kind: ErrorType, status: int | None, subject: Subject, wait_seconds: float | None
) -> str:
    match kind:
        case "authentication":
            return f"Check the key in {subject.key_place}, and what it may be used for"
        case "quota":
            return f"The account of {subject.key_place} has nothing left to spend"
        case "rate_limit" | "server_error" if wait_seconds is not None:
            return f"Try again in {math.ceil(wait_seconds)} s"
        case "rate_limit" | "server_error":
            return "Try again later"
        case "model_not_found":
            return f"Check the name of the model: {subject.model}"
        case "context_exceeded":
            return f"The conversation is too long for {subject.model}"
        case "api" if status in (404, 405):
            return "Is the base URL right?"
        case _:
            return ""


def retry_after_seconds(headers: Mapping[str, str]) -> float | None:
    """How long an answer asks to wait: in seconds or until a date; None where it doesn't say."""
    milliseconds = _number(headers.get("retry-after-ms", ""))
    if milliseconds is not None:
        return min(milliseconds / 1000, _LONGEST_WAIT_SECONDS)
    value = headers.get("retry-after", "")
    seconds = _number(value)
    if seconds is None and value:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except (ValueError, OverflowError):
            return None
    return None if seconds is None else min(max(seconds, 0.0), _LONGEST_WAIT_SECONDS)


def _number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) and number >= 0 else None


def _said_in_body(body: str, content_type: str) -> _Said:
    content = body.strip()
    fields = loose.fields_in(content)
    if fields:
        # Some put the error at the top; some put a plain sentence under `error` or `detail`.
        return _said(fields.get("error") or fields.get("detail") or fields)
    if "html" in content_type or content[:1] == "<":
        return _Said("a web page, not an answer of an API. Is the base URL right?")
    return _Said(" ".join(content.split()))


def _said(error: object) -> _Said:
    if isinstance(error, str):
        return _Said(error)
    fields = loose.fields(error)
    codes = tuple(code for name in ("code", "type") if (code := loose.word(fields.get(name))))
    message = loose.text(fields.get("message")) or loose.text(fields.get("msg"))
    return _Said(message or (codes[0] if codes else ""), codes)


# ---- of the connection


def of_transport(subject: Subject, error: httpx.HTTPError | httpx.InvalidURL) -> ProviderError:
    """For a request that got no answer, or not all of it."""
    return ProviderError("network", f"{_what_broke(subject, error)}")


def _what_broke(subject: Subject, error: Exception) -> str:
    detail = subject.clean(str(error))
    host = subject.host
    if isinstance(error, httpx.ConnectTimeout | httpx.PoolTimeout):
        return f"{host} doesn't take the connection. Is the base URL right, and the network up?"
    if isinstance(error, httpx.ProxyError):
        return f"the proxy on the way to {host} refuses: {detail}"
    if isinstance(error, httpx.ConnectError):
        if "CERTIFICATE" in detail or "SSL" in detail:
            return (
                f"{host} can't prove who it is ({detail}). A certificate of your own is named by "
                "SSL_CERT_FILE"
            )
        return f"{host} can't be reached ({detail}). Is the base URL right, and the network up?"
    if isinstance(error, httpx.TimeoutException):
        return f"{host} takes nothing of what is sent to it"
    if isinstance(error, httpx.DecodingError):
        return f"{host} sent what can't be unpacked ({detail})"
    return f"the connection to {host} was cut ({detail or type(error).__name__})"
