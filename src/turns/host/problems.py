"""Problems: what a caller is told when something can't be done (RFC 9457, problem JSON)."""

from __future__ import annotations

import http
from collections.abc import Mapping
from typing import Any, Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from streamengine import HistoryError, SendError

MEDIA_TYPE: Final = "application/problem+json"
RETRY_AFTER_SECONDS: Final = 5

_log = structlog.get_logger("turns.host.http")


class Problem(Exception):
    """An answer that says no. ``kind`` is for programs, ``detail`` for people."""

    def __init__(
        self,
        status: int,
        kind: str,
        detail: str,
        *,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(status, kind, detail)
        self.status = status
        self.kind = kind
        self.detail = detail
        self.headers: dict[str, str] = dict(headers or {})
        self.extra: dict[str, Any] = dict(extra or {})

    def fields(self) -> dict[str, Any]:
        """The JSON of the answer."""
        return {
            "type": f"urn:fiberscope:problem:{self.kind}",
            "title": http.HTTPStatus(self.status).phrase,
            "status": self.status,
            "kind": self.kind,
            "detail": self.detail,
            **self.extra,
        }

    def response(self, method: str, path: str) -> Response:
        """The answer itself; the refusal is logged."""
        log = _log.error if self.status >= 500 and self.status != 503 else _log.warning
        log(
            "refused",
            status=self.status,
            kind=self.kind,
            method=method,
            path=path,
            detail=self.detail,
        )
        return JSONResponse(
            self.fields(), self.status, {"cache-control": "no-store", **self.headers}, MEDIA_TYPE
        )


def later(status: int, kind: str, detail: str) -> Problem:
    """A problem that goes away by itself: the answer says when to come again."""
    return Problem(status, kind, detail, headers={"retry-after": str(RETRY_AFTER_SECONDS)})


def shutting_down() -> Problem:
    """What every command gets from the begin of the shutdown on (VA9)."""
    return later(503, "shutting-down", "the server is shutting down: try again in a few seconds")


def of_send_error(error: SendError) -> Problem:
    """Why a message could not be answered."""
    if error.kind == "empty_message":
        return Problem(422, "empty-message", "the message has no text: write some")
    if error.kind == "invalid_id":
        return Problem(400, "invalid-id", error.message)
    if error.kind == "history":
        kind = None if error.details is None else error.details.get("kind")
        return _of_history(kind, error.message)
    # The model's side. The message itself is kept, so the caller may send it again.
    return Problem(
        502,
        "model-failed",
        f"the model could not begin: {error.message}",
        extra={"errorKind": error.kind},
    )


def of_history_error(error: HistoryError) -> Problem:
    """Why the history could not be read or written."""
    return _of_history(error.kind, str(error))


def _of_history(kind: object, detail: str) -> Problem:
    if kind == "disk_full":
        return Problem(507, "disk-full", detail)
    return Problem(500, "history", detail, extra={"errorKind": kind})


# ---- exception handlers of Starlette; it would run plain functions on a thread


async def on_problem(request: Request, exc: Exception) -> Response:
    """For Problem."""
    assert isinstance(exc, Problem)
    return exc.response(request.method, request.url.path)


async def on_http_exception(request: Request, exc: Exception) -> Response:
    """For what Starlette itself refuses: no such path, no such method."""
    assert isinstance(exc, HTTPException)
    kind = http.HTTPStatus(exc.status_code).phrase.lower().replace(" ", "-")
    problem = Problem(exc.status_code, kind, exc.detail, headers=exc.headers)
    return problem.response(request.method, request.url.path)


async def on_defect(request: Request, _exc: Exception) -> Response:
    """For everything else. What happened is in the log, not in the answer."""
    problem = Problem(500, "internal", "something went wrong inside the server; its log says what")
    return problem.response(request.method, request.url.path)
