"""One HTTP connection: the web server's own, with bounds on how long it may keep us waiting.

The server bounds the size of the headers and the pause between two requests, not the time that
headers, a body that nobody reads, or a client that takes nothing may need.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from .config import Limits
from .problems import MEDIA_TYPE, Problem
from .security import security_headers

_log = structlog.get_logger("turns.host.connection")


class BoundedConnection(H11Protocol):
    """Ends the connection of a client that is too slow. Made by ``bounded_by``."""

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._has_spoken = False
        self._headers_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._rest_timer: asyncio.TimerHandle | None = None
        self._upgraded = False

    # ---- asyncio's protocol

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as its base
        super().connection_made(transport)
        self._await_headers()

    def data_received(self, data: bytes) -> None:
        self._has_spoken = True
        if self._headers_timer is None and self._is_between_requests():
            self._await_headers()
        super().data_received(data)
        if self._upgraded:
            # A WebSocket has the connection from now on, with bounds of its own.
            self._stop_timers()
            return
        if not self._is_between_requests():
            self._stop_headers_timer()
        self._watch_the_rest()

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.stall_seconds, self._on_stall)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        super().connection_lost(exc)

    # ---- what the server calls

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._upgraded = True
        super().handle_websocket_upgrade(event)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch_the_rest()

    def send_400_response(self, msg: str) -> None:
        """What is no HTTP gets a problem like everything else."""
        self._say_and_close(Problem(400, "not-http", msg.rstrip(".")))

    def abort(self) -> None:
        """Give the connection up, with all that waits in it."""
        self.transport.abort()

    # ---- bounds

    def _is_between_requests(self) -> bool:
        """No request is being read or answered, up to its headers."""
        return self.conn.their_state is h11.IDLE

    def _await_headers(self) -> None:
        self._headers_timer = self.loop.call_later(
            self.limits.header_seconds, self._on_slow_headers
        )

    def _on_slow_headers(self) -> None:
        self._headers_timer = None
        if self.transport.is_closing() or not self._is_between_requests():
            return
        if not self._has_spoken:
            self.transport.close()  # opened in advance and not needed: nobody to complain to
            return
        seconds = self.limits.header_seconds
        self._say_and_close(
            Problem(408, "too-slow", f"the headers were not there within {seconds:g} s")
        )

    def _on_stall(self) -> None:
        self._stall_timer = None
        _log.warning("a client takes nothing: its connection is given up")
        self.abort()

    def _watch_the_rest(self) -> None:
        """A body may still come in although its request is answered; it is thrown away."""
        is_rest = self.conn.their_state is h11.SEND_BODY and self.cycle.response_complete
        if not is_rest:
            self._stop_rest_timer()
        elif self._rest_timer is None:
            self._rest_timer = self.loop.call_later(self.limits.body_seconds, self.abort)

    def _stop_timers(self) -> None:
        self._stop_headers_timer()
        self._stop_stall_timer()
        self._stop_rest_timer()

    def _stop_headers_timer(self) -> None:
        if self._headers_timer is not None:
            self._headers_timer.cancel()
            self._headers_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _stop_rest_timer(self) -> None:
        if self._rest_timer is not None:
            self._rest_timer.cancel()
            self._rest_timer = None

    def _say_and_close(self, problem: Problem) -> None:
        _log.warning("refused", status=problem.status, kind=problem.kind, detail=problem.detail)
        headers = [
            (b"content-type", MEDIA_TYPE.encode()),
            (b"connection", b"close"),
            *security_headers(),
        ]
        events = (
            h11.Response(status_code=problem.status, headers=headers),
            h11.Data(data=json.dumps(problem.fields()).encode()),
            h11.EndOfMessage(),
        )
        for event in events:
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


def bounded_by(limits: Limits) -> type[BoundedConnection]:
    """The class of a server's connections; the server makes them itself."""

    class Connection(BoundedConnection):
        pass

    Connection.limits = limits
    return Connection
