"""One WebSocket connection: the web server's own, with a bound on a client that takes nothing."""

from __future__ import annotations

import asyncio
from typing import Any

import structlog
from uvicorn.protocols.websockets.wsproto_impl import WSProtocol

from .config import Limits

_log = structlog.get_logger("turns.host.connection")


class BoundedSocket(WSProtocol):
    """Ends the connection of a client that takes nothing. Made by ``socket_bounded_by``."""

    limits: Limits

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._stall_timer: asyncio.TimerHandle | None = None

    def pause_writing(self) -> None:
        super().pause_writing()
        if self._stall_timer is None:
            self._stall_timer = self.loop.call_later(self.limits.stall_seconds, self._on_stall)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_stall_timer()
        super().connection_lost(exc)

    def abort(self) -> None:
        """Give the connection up, with all that waits in it."""
        self.transport.abort()

    def _on_stall(self) -> None:
        self._stall_timer = None
        _log.warning("a client takes nothing: its connection is given up")
        self.abort()

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None


def socket_bounded_by(limits: Limits) -> type[BoundedSocket]:
    """The class of a server's sockets; the server makes them itself."""

    class Socket(BoundedSocket):
        pass

    Socket.limits = limits
    return Socket
