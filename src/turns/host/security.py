"""Who may ask, from where, and how much: one ASGI middleware a rule.

``guarded`` puts them in order. Each rule says no with a problem (problems.py), before anything of
the application has seen the request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, final

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .config import Limits
from .problems import Problem, shutting_down
from .token import AccessToken

API_PREFIX: Final = "/api/"
SESSION_PATH: Final = "/api/session"

_HEADERS: Final = {
    # `default-src` covers scripts and styles, so that none is inline; not the other three.
    "content-security-policy": (
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_READING: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_DEFAULT_PORT_SUFFIX: Final = ":80"


def guarded(
    app: ASGIApp,
    *,
    allowed_hosts: Iterable[str],
    token: AccessToken | None,
    cookie_name: str,
    is_shutting_down: Callable[[], bool],
    limits: Limits,
) -> ASGIApp:
    """``app`` behind all rules. ``allowed_hosts``: values of Host, with port."""
    app = BodyLimit(app, limits)
    app = ShutdownGate(app, is_shutting_down)
    if token is not None:
        app = Login(app, token, cookie_name)
    app = SameOrigin(app)
    app = KnownHost(app, allowed_hosts)
    return SafeHeaders(app)


def security_headers() -> list[tuple[bytes, bytes]]:
    """What every answer carries, also those that no application made."""
    return [(name.encode(), value.encode()) for name, value in _HEADERS.items()]


async def _refuse(problem: Problem, scope: Scope, receive: Receive, send: Send) -> None:
    await problem.response(_method(scope), scope["path"])(scope, receive, send)


def _method(scope: Scope) -> str:
    # The request that asks for a WebSocket is a GET, and nothing says so in its scope.
    method: str = scope.get("method", "GET")
    return method


@final
class SafeHeaders:
    """Adds the headers that keep a browser from doing more than it should with an answer."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return  # the server has no lifespan

        async def send_safely(message: Message) -> None:
            if message["type"] in ("http.response.start", "websocket.http.response.start"):
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        await self._app(scope, receive, send_safely)


@final
class KnownHost:
    """Answers only under its own names, not under one that was made to lead here (rebinding)."""

    def __init__(self, app: ASGIApp, allowed: Iterable[str]) -> None:
        self._app = app
        self._allowed = frozenset(host.lower() for host in allowed)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        hosts = Headers(scope=scope).getlist("host")
        if len(hosts) != 1 or _with_port(hosts[0]) not in self._allowed:
            problem = Problem(421, "unknown-host", "this server isn't known by the name in Host")
            await _refuse(problem, scope, receive, send)
            return
        await self._app(scope, receive, send)


def _with_port(host: str) -> str:
    # The port that HTTP leaves out. In brackets there are colons of an address.
    host = host.lower()
    return host if ":" in host.rpartition("]")[2] else host + _DEFAULT_PORT_SUFFIX


@final
class SameOrigin:
    """The API is for the server's own page, and for programs; no other page may use it.

    A cookie alone would let one in: to a browser every port of this machine is the same site, and a
    WebSocket may be opened by any page.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = Headers(scope=scope)
        writes = _method(scope) not in _READING
        if writes or scope["path"].startswith(API_PREFIX):
            problem = _foreign(headers) or (_not_json(headers) if writes else None)
            if problem is not None:
                await _refuse(problem, scope, receive, send)
                return
        await self._app(scope, receive, send)


def _foreign(headers: Headers) -> Problem | None:
    origins = headers.getlist("origin")
    own = f"http://{headers['host'].lower()}"  # KnownHost has seen to it that there is one
    # "null" is no origin of ours either: a sandboxed frame, a file, a redirect from elsewhere.
    if any(origin.lower() != own for origin in origins):
        return Problem(403, "foreign-origin", "requests of other pages are not answered")
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return Problem(403, "cross-site", "requests of other sites are not answered")
    return None


def _not_json(headers: Headers) -> Problem | None:
    # Also what keeps a form of another page out: no form can send this type.
    media_type = headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json":
        return None
    return Problem(415, "not-json", "send JSON, with the header Content-Type: application/json")


@final
class Login:
    """The API is for those who know the token, or have the cookie that was given for it."""

    def __init__(self, app: ASGIApp, token: AccessToken, cookie_name: str) -> None:
        self._app = app
        self._token = token
        self._cookie_name = cookie_name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        is_login = path == SESSION_PATH and _method(scope) == "POST"
        if path.startswith(API_PREFIX) and not is_login and not self._knows(HTTPConnection(scope)):
            problem = Problem(
                401,
                "not-logged-in",
                "open the URL that `fiberscope serve` printed, or send its token",
                headers={"www-authenticate": "Bearer"},
            )
            await _refuse(problem, scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _knows(self, connection: HTTPConnection) -> bool:
        scheme, _, credentials = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer":
            return self._token.matches(credentials.strip())
        return self._token.matches_cookie(connection.cookies.get(self._cookie_name, ""))


@final
class ShutdownGate:
    """From the begin of the shutdown on, nothing new is begun (VA9). What is there can be read."""

    def __init__(self, app: ASGIApp, is_shutting_down: Callable[[], bool]) -> None:
        self._app = app
        self._is_shutting_down = is_shutting_down

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        begins = (
            scope["type"] == "websocket"
            or _method(scope) not in _READING
            or scope["path"].endswith("/events")
        )
        if begins and self._is_shutting_down():
            await _refuse(shutting_down(), scope, receive, send)
            return
        await self._app(scope, receive, send)


@final
class BodyLimit:
    """Bounds the size of a body, and the time it may take to arrive."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            # Its messages are bounded by the connection, and they may come as long as it lives.
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdecimal() or int(declared) > self._limits.body_bytes:
            await _refuse(self._too_large(), scope, receive, send)
            return
        await self._app(scope, _BoundedBody(receive, self._limits, self._too_large()), send)

    def _too_large(self) -> Problem:
        most = self._limits.body_bytes
        return Problem(413, "too-large", f"the body is larger than {most} bytes")


@final
class _BoundedBody:
    """A request's ``receive`` that raises where the body goes beyond its bounds. After the body it
    only waits for the client to leave, which has no bound.
    """

    def __init__(self, receive: Receive, limits: Limits, too_large: Problem) -> None:
        self._receive = receive
        self._limits = limits
        self._too_large = too_large
        self._seen_bytes = 0
        self._complete = False
        self._until: float | None = None

    async def __call__(self) -> Message:
        if self._complete:
            return await self._receive()
        if self._until is None:
            self._until = asyncio.get_running_loop().time() + self._limits.body_seconds
        try:
            async with asyncio.timeout_at(self._until):
                message = await self._receive()
        except TimeoutError:
            raise Problem(
                408, "too-slow", f"the body took longer than {self._limits.body_seconds:g} s"
            ) from None
        if message["type"] == "http.request":
            self._seen_bytes += len(message.get("body", b""))
            if self._seen_bytes > self._limits.body_bytes:
                raise self._too_large
            self._complete = not message.get("more_body", False)
        return message
