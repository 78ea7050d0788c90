"""The web server: uvicorn without its signal handlers, stopped by us within a bound."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import socket
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, Protocol, cast, final, runtime_checkable

import structlog
import uvicorn
from starlette.types import ASGIApp

from .config import Limits
from .connection import bounded_by
from .errors import HostError

GRACE_SECONDS: Final = 0.4
"""How long a stop waits for answers that are on their way."""

END_SECONDS: Final = 0.4
"""How long it then waits for the server to be done with connections that were given up."""

_MAX_HEADER_BYTES: Final = 16 * 1024
_KEEP_ALIVE_SECONDS: Final = 5
_MAX_SOCKET_MESSAGE_BYTES: Final = 4096  # the server takes no messages
_BACKLOG: Final = 128
_POLL_SECONDS: Final = 0.01

_log = structlog.get_logger("turns.host.server")


@runtime_checkable
class _Connection(Protocol):
    """What ours have, of HTTP or a WebSocket."""

    def abort(self) -> None: ...


def sockets_served() -> bool:
    """Whether WebSockets are spoken: their protocol comes with the extra `websocket`."""
    return importlib.util.find_spec("wsproto") is not None


def _socket_protocol(limits: Limits) -> Any:
    if not sockets_served():
        return "none"
    from .socket_connection import socket_bounded_by

    return socket_bounded_by(limits)


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; port 0 takes a free one. Raises HostError."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host.strip("[]"), port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        sock = socket.socket(family, kind, protocol)
        try:
            # A port that an ended process used is free at once. One that is listened on is not:
            # hence the listen here and not later.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_BACKLOG)
            sock.setblocking(False)
        except BaseException:
            sock.close()
            raise
    except (OSError, UnicodeError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        taken = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
        way_out = (
            "Use another one with --port, or 0 for any that is free"
            if taken
            else "Name an address of this machine with --host"
        )
        raise HostError(f"can't listen on {host} port {port}: {why}. {way_out}") from error
    return sock


def port_of(sock: socket.socket) -> int:
    """The port that a socket listens on."""
    port: int = sock.getsockname()[1]
    return port


class _Uvicorn(uvicorn.Server):
    """Leaves signals to run_main, and says when it has started."""

    def __init__(self, config: uvicorn.Config, on_started: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_started = on_started

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_started()


@final
class HttpServer:
    """Serves an application on a socket. Before the server ends, ``end_streams`` is called: it has
    to end the responses that have no end of their own.
    """

    def __init__(
        self,
        app: ASGIApp,
        sock: socket.socket,
        limits: Limits,
        end_streams: Callable[[], None],
    ) -> None:
        self._socket = sock
        self._end_streams = end_streams
        self._started = asyncio.Event()
        self._over = asyncio.Event()
        self._stopping = False
        config = uvicorn.Config(
            app,
            loop="none",
            http=bounded_by(limits),
            ws=_socket_protocol(limits),
            ws_max_size=_MAX_SOCKET_MESSAGE_BYTES,
            # What a client compresses may be far larger than it looks.
            ws_per_message_deflate=False,
            lifespan="off",
            log_config=None,
            # Ours names no query and escapes what is in a path.
            access_log=False,
            proxy_headers=False,
            server_header=False,
            limit_concurrency=limits.connections,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            h11_max_incomplete_event_size=_MAX_HEADER_BYTES,
        )
        self._uvicorn = _Uvicorn(config, self._started.set)

    async def started(self) -> None:
        """Wait until it serves."""
        await self._started.wait()

    async def run(self) -> None:
        """Serve until ``stop``. Cancelled, it leaves at once."""
        try:
            await self._uvicorn.serve(sockets=[self._socket])
        finally:
            self._give_up()
            self._over.set()

    async def stop(self) -> None:
        """Take no more connections, let open event streams have what waits in them and end, give
        up who doesn't take it. Bounded by GRACE_SECONDS + END_SECONDS.
        """
        self._stopping = True
        self._uvicorn.should_exit = True
        for server in getattr(self._uvicorn, "servers", ()):
            server.close()  # now, not at uvicorn's next look
        self._end_streams()
        await self._until(lambda: not self._connections(), GRACE_SECONDS)
        self._give_up()
        if not await self._until(self._over.is_set, END_SECONDS):
            _log.warning("requests are still being answered: left behind")

    async def _until(self, done: Callable[[], bool], bound_seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        until = loop.time() + bound_seconds
        while not done() and loop.time() < until:  # noqa: ASYNC110  # uvicorn tells of neither
            await asyncio.sleep(_POLL_SECONDS)
        return done()

    def _connections(self) -> list[_Connection]:
        every = cast("set[object]", self._uvicorn.server_state.connections)
        return [connection for connection in every if isinstance(connection, _Connection)]

    def _give_up(self) -> None:
        left = self._connections()
        if left:
            _log.info("connections given up", connections=len(left))
        for connection in left:
            connection.abort()
