"""The wire of the providers: one POST an answer, and the events that come back.

A connection of its own for each answer, closed at every ending: none is kept for later. TLS is
verified, redirects aren't followed, and each wait and each size has a bound.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from ipaddress import ip_address
from types import TracebackType
from typing import Any, Final, Self, TypeVar, final

import httpx

from fibers import AbortSignal

from ..redact import MASK, SHORTEST_SECRET, Secret
from . import failures
from .errors import ProviderError
from .failures import Subject
from .patience import OutOfPatience, Patience
from .sse import EventTooLarge, SseDecoder, SseEvent

T = TypeVar("T")

USER_AGENT: Final = "fiberscope"

_EVENT_STREAM: Final = "text/event-stream"
_KIND_CHARACTERS: Final = 100
"""Of a content type that is quoted in a message."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """How long and how much a provider waits for and takes."""

    connect_seconds: float = 10.0
    idle_seconds: float = 120.0
    """For the next bytes, those of the head included: models think before they speak."""
    error_seconds: float = 5.0
    """For the body of a refusal."""
    late_usage_seconds: float = 1.0
    """For all that comes after the answer's end, which is told without it then."""
    event_bytes: int = 16 * 1024 * 1024
    answer_bytes: int = 256 * 1024 * 1024
    error_bytes: int = 64 * 1024


@final
class Wire:
    """Where the requests of one provider go.

    ``base_url``: with the version in its path, as vendors give it. Raises ValueError for one that
    isn't https (or http on loopback), that nobody can be asked at, or that holds more than a place.
    """

    def __init__(self, base_url: str, *, bounds: Bounds | None = None) -> None:
        self._base = _checked(base_url)
        self.bounds: Bounds = bounds or Bounds()
        # Once: reading the certificates takes tens of milliseconds.
        self._tls = httpx.create_ssl_context() if self._base.scheme == "https" else None

    @property
    def host(self) -> str:
        """Host and port, for a message."""
        return self._base.netloc.decode("ascii")

    @property
    def is_local(self) -> bool:
        """Whether only this machine can be at the other end."""
        return _is_loopback(self._base.host)

    def post(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        auth: httpx.Auth | None,
        headers: Mapping[str, str],
        subject: Subject,
        signal: AbortSignal,
    ) -> Exchange:
        """Ask. Nothing is sent before the exchange is entered."""
        base = str(self._base).rstrip("/")
        # How long it may be silent is told by the exchange, which hears of an abort as well.
        timeout = httpx.Timeout(
            None, connect=self.bounds.connect_seconds, write=self.bounds.idle_seconds
        )

        def client() -> httpx.AsyncClient:
            return httpx.AsyncClient(
                auth=auth,
                # Without https there is nothing to verify.
                verify=self._tls or False,
                follow_redirects=False,
                timeout=timeout,
                # Proxies, for what isn't on this machine.
                trust_env=not self.is_local,
            )

        request = httpx.Request(
            "POST",
            f"{base}/{path}",
            content=json_bytes(body),
            headers={
                "content-type": "application/json",
                "accept": _EVENT_STREAM,
                # A few bytes would unpack to any number.
                "accept-encoding": "identity",
                "user-agent": USER_AGENT,
                **headers,
            },
        )
        return Exchange(client, request, self.bounds, subject, signal)


@final
class Exchange:
    """One request and the events of its answer.

        async with wire.post(...) as exchange:
            async for event in exchange: ...

    Entering sends it, and raises ProviderError for every answer that is no stream of events. An
    abort of the signal raises Aborted out of whatever waits. Leaving closes the connection.
    """

    def __init__(
        self,
        client: Callable[[], httpx.AsyncClient],
        request: httpx.Request,
        bounds: Bounds,
        subject: Subject,
        signal: AbortSignal,
    ) -> None:
        self._make_client = client
        self._request = request
        self._bounds = bounds
        self._subject = subject
        self._keys_in_json = () if subject.key is None else _spellings_in_json(subject.key)
        self._patience = Patience(signal)
        self._stack = AsyncExitStack()
        self._chunks: AsyncIterator[bytes] | None = None
        self._decoder = SseDecoder(limit_bytes=bounds.event_bytes)
        self._ready: deque[SseEvent] = deque()
        self._taken_bytes = 0
        self._excess: str | None = None
        self._late_seconds: float | None = None
        """What is left of the time for what comes late; None before the answer is whole."""

    async def __aenter__(self) -> Self:
        self._stack.callback(self._patience.close)
        try:
            await self._open()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._stack.aclose()

    def __aiter__(self) -> Self:
        return self

    def hurry(self) -> None:
        """The answer is whole: what is still to come has only a short time, all of it together."""
        if self._late_seconds is None:
            self._late_seconds = self._bounds.late_usage_seconds

    async def __anext__(self) -> SseEvent:
        while not self._ready:
            if self._excess is not None:
                raise self._too_much(self._excess)
            chunk = await self._next_chunk()
            if chunk is None:
                raise StopAsyncIteration
            self._take(chunk)
        return self._without_key(self._ready.popleft())

    def _take(self, chunk: bytes) -> None:
        """What a bound cuts off is told after what came before it, be it in the same chunk."""
        self._taken_bytes += len(chunk)
        if self._taken_bytes > self._bounds.answer_bytes:
            self._excess = f"sent more than {self._bounds.answer_bytes} bytes"
        try:
            self._ready.extend(self._decoder.feed(chunk))
        except EventTooLarge as error:
            self._ready.extend(error.before)
            self._excess = f"sent an event of more than {error.limit_bytes} bytes"

    def _too_much(self, what: str) -> Exception:
        """Behind a whole answer it is just its end."""
        return self._broken(what) if self._late_seconds is None else StopAsyncIteration()

    def _without_key(self, event: SseEvent) -> SseEvent:
        """Before anybody reads it: what a frame holds, a traceback may show."""
        data = event.data
        for spelled in self._keys_in_json:
            if spelled.reveal() in data:
                data = data.replace(spelled.reveal(), MASK)
        return event if data is event.data else SseEvent(event.name, data)

    async def _open(self) -> None:
        client = await self._stack.enter_async_context(self._make_client())
        response = await self._within(
            self._bounds.idle_seconds, client.send(self._request, stream=True)
        )
        self._stack.push_async_callback(response.aclose)
        if response.status_code != 200:
            body = await self._error_body(response)
            raise failures.of_status(self._subject, response.status_code, response.headers, body)
        kind = self._subject.clean(response.headers.get("content-type", ""))
        if not kind.lower().startswith(_EVENT_STREAM):
            body = await self._error_body(response)
            if "json" in kind.lower():
                # Some say no with a 200.
                raise failures.of_status(self._subject, 200, response.headers, body)
            raise self._broken(
                f"answered with {kind[:_KIND_CHARACTERS] or 'something unnamed'}, not with a "
                "stream of events. Is the base URL right?"
            )
        # Closed with the response.
        self._chunks = response.aiter_bytes()

    async def _error_body(self, response: httpx.Response) -> str:
        """As much of it as comes in time, without secrets: the refusal is told in any case."""
        body = bytearray()

        async def read() -> None:
            async for chunk in response.aiter_bytes():
                body.extend(chunk)
                if len(body) >= self._bounds.error_bytes:
                    return

        try:
            await self._within(self._bounds.error_seconds, read())
        except ProviderError:
            pass
        return self._subject.clean(body[: self._bounds.error_bytes].decode("utf-8", "replace"))

    async def _next_chunk(self) -> bytes | None:
        assert self._chunks is not None, "the exchange isn't entered"
        if self._late_seconds is None:
            return await self._within(self._bounds.idle_seconds, anext(self._chunks, None))
        if self._late_seconds <= 0:
            return None
        # All waits share it, as noise that keeps coming would never end. Only waits count: a
        # reader that takes long between them loses nothing that has come meanwhile.
        now = asyncio.get_running_loop().time
        began = now()
        try:
            return await self._within(self._late_seconds, anext(self._chunks, None))
        except ProviderError:
            return None
        finally:
            self._late_seconds -= now() - began

    async def _within(self, seconds: float, work: Awaitable[T]) -> T:
        """Wait for the other side. Raises ProviderError for its failures, Aborted at an abort."""
        try:
            return await self._patience.within(seconds, work)
        except OutOfPatience:
            failure = self._broken(f"sent nothing for {seconds:g} s")
        except TimeoutError:
            failure = self._broken("broke off in the middle")
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            failure = failures.of_transport(self._subject, error)
        # Out here, as what was caught holds the request with its headers: no traceback shall.
        raise failure

    def _broken(self, what: str) -> ProviderError:
        return ProviderError("network", f"{self._subject.host} {what}")


@final
class KeyHeader(httpx.Auth):
    """Puts the key into a header as the request leaves, so that it lies nowhere before."""

    def __init__(self, name: str, key: Secret, *, prefix: str = "") -> None:
        self._name = name
        self._key = key
        self._prefix = prefix

    def sync_auth_flow(self, request: httpx.Request) -> Any:
        raise RuntimeError("this provider is for asyncio only")

    async def async_auth_flow(
        self, request: httpx.Request
    ) -> AsyncGenerator[httpx.Request, httpx.Response]:
        request.headers[self._name] = self._prefix + self._key.reveal()
        yield request


def _spellings_in_json(key: Secret) -> tuple[Secret, ...]:
    """A key as JSON has it: some servers escape slashes, all of them quotes. None for a placeholder
    such as "x", as local servers are given: it stands in the names of fields.
    """
    if len(key.reveal()) < SHORTEST_SECRET:
        return ()
    quoted = json.dumps(key.reveal())[1:-1]
    return tuple({key, Secret(quoted), Secret(quoted.replace("/", "\\/"))})


def json_bytes(body: Mapping[str, Any]) -> bytes:
    """A JSON text. Half of an emoji that was cut in two, which no UTF-8 has, becomes U+FFFD."""
    text = json.dumps(body, ensure_ascii=False, allow_nan=False, default=str)
    try:
        return text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()


def _checked(base_url: str) -> httpx.URL:
    try:
        url = httpx.URL(base_url)
    except httpx.InvalidURL:
        raise ValueError("the base URL is no URL") from None
    # None of these messages has the URL in it: it may hold a password.
    if url.userinfo:
        raise ValueError(
            "the base URL holds a user or a password: keys come from the environment or a file"
        )
    if not url.host or url.scheme not in ("https", "http"):
        raise ValueError("a base URL begins with https:// and a host")
    if url.port is not None and not 0 < url.port < 65536:
        raise ValueError(f"the base URL names the port {url.port}, which can't be")
    if url.scheme == "http" and not _is_loopback(url.host):
        raise ValueError(f"the base URL of {url.host} isn't https: others could read what is said")
    if url.query or url.fragment:
        # Left out it would be missed, and in a log it might be a key.
        raise ValueError("a base URL ends with its path: there is no place for a query behind it")
    return url.copy_with(query=None, fragment=None)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
