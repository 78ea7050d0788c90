"""What the tests of the host share: a provider that says what a test tells it, a server in the
test's own loop, a reader of its events.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from httpx_sse import aconnect_sse
from starlette.types import ASGIApp

import fibers as fb
from fibers import AbortSignal
from fibers.app import Shutdown
from streamengine import StreamRequest, Tool
from streamengine.model import Finish, ProviderPart, TextDelta, TextEnd
from turns.agent_turns import AgentTurns
from turns.host.config import Limits, ServeConfig
from turns.host.hub import Hub
from turns.host.root import Root, open_root
from turns.host.serve import Ready, make_http, serve
from turns.host.token import AccessToken, load_or_make

BOUND_SECONDS = 20.0
"""How long a test waits for something that has to happen."""

DONE = Finish(finish_reason="stop", raw_finish_reason="stop")
PORT = 8642
AUTHORITY = f"127.0.0.1:{PORT}"


class Answer:
    """One answer of a TalkativeProvider: it says what it is told, when it is told."""

    def __init__(self, request: StreamRequest, signal: AbortSignal) -> None:
        self.request = request
        self.signal = signal
        self._parts: asyncio.Queue[ProviderPart | Exception | None] = asyncio.Queue()

    def say(self, *said: str | ProviderPart) -> Answer:
        for part in said:
            self._parts.put_nowait(TextDelta(text=part) if isinstance(part, str) else part)
        return self

    def finish(self) -> None:
        """The orderly end."""
        self._parts.put_nowait(TextEnd())
        self._parts.put_nowait(DONE)
        self._parts.put_nowait(None)

    def cut_off(self) -> None:
        """The end without a finish."""
        self._parts.put_nowait(None)

    def fail(self, error: Exception) -> None:
        self._parts.put_nowait(error)

    async def parts(self) -> AsyncIterator[ProviderPart]:
        while True:
            part = await self._parts.get()
            if part is None:
                return
            if isinstance(part, Exception):
                raise part
            yield part


class TalkativeProvider:
    """``answers`` gets an Answer for each message."""

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Answer] = asyncio.Queue()
        self.refusal: Exception | None = None
        self.on_ask: Callable[[], None] = lambda: None

    def stream(self, request: StreamRequest, signal: AbortSignal) -> AsyncIterator[ProviderPart]:
        self.on_ask()
        if self.refusal is not None:
            raise self.refusal
        answer = Answer(request, signal)
        self.answers.put_nowait(answer)
        return answer.parts()

    async def next_answer(self) -> Answer:
        return await asyncio.wait_for(self.answers.get(), BOUND_SECONDS)


# ---- the application alone


@dataclass
class Site:
    """The application over a root, without a socket."""

    app: ASGIApp
    root: Root
    hub: Hub
    provider: TalkativeProvider
    shutdown: Shutdown
    access: AccessToken | None

    @property
    def turns(self) -> AgentTurns:
        assert self.root.turns is not None
        return self.root.turns

    def client(self, *, token: bool = True, **headers: str) -> httpx.AsyncClient:
        """A client on this machine; with the token unless told otherwise."""
        if token and self.access is not None:
            headers["authorization"] = f"Bearer {self.access.secret}"
        return httpx.AsyncClient(
            transport=httpx.ASGITransport(self.app, raise_app_exceptions=False),
            base_url=f"http://{AUTHORITY}",
            headers=headers,
            timeout=BOUND_SECONDS,
        )


@asynccontextmanager
async def a_site(
    state: Path,
    *,
    limits: Limits | None = None,
    auth: bool = True,
    host: str = "127.0.0.1",
    auto_retry: bool = False,
) -> AsyncGenerator[Site]:
    """Open the application; everything is closed at the end, as serve does it."""
    config = ServeConfig(state=state, host=host, port=PORT, auth=auth, limits=limits or Limits())
    provider = TalkativeProvider()
    async with fb.Scope(name="test") as outer:
        opening = open_root(
            state, lambda: provider, config.limits, with_turns=True, auto_retry=auto_retry
        )
        root = await outer.provide(opening)
        access = load_or_make(state) if auth else None
        shutdown = root.shutdown([])
        app, hub = make_http(
            root,
            config,
            port=PORT,
            access=access,
            outer=outer,
            is_shutting_down=lambda: shutdown.is_shutting_down,
        )
        try:
            yield Site(app, root, hub, provider, shutdown, access)
        finally:
            await shutdown.dispose()


# ---- a server in the test's own loop


@dataclass
class Live:
    """A server that listens."""

    url: str
    port: int
    token: str | None
    provider: TalkativeProvider
    fiber: fb.Fiber[None, Any]

    def client(self) -> httpx.AsyncClient:
        headers = {} if self.token is None else {"authorization": f"Bearer {self.token}"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=BOUND_SECONDS)

    async def stop(self) -> None:
        """End it as a SIGTERM does."""
        await self.fiber.interrupt(reason="SIGTERM")


@asynccontextmanager
async def a_server(
    state: Path,
    *,
    limits: Limits | None = None,
    auth: bool = True,
    auto_retry: bool = False,
    tools: Sequence[Tool] = (),
) -> AsyncGenerator[Live]:
    provider = TalkativeProvider()
    config = ServeConfig(
        state=state, port=0, auth=auth, limits=limits or Limits(), auto_retry=auto_retry
    )
    ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
    fiber = fb.run_fork(
        serve(config, ready.set_result, make_provider=lambda: provider, tools=tools)
    )
    fiber.ignore_failure()
    try:
        said = await asyncio.wait_for(ready, BOUND_SECONDS)
        url, _, fragment = said.url.partition("/#token=")
        yield Live(url, said.port, fragment or None, provider, fiber)
    finally:
        await fiber.interrupt(reason="SIGTERM")


@dataclass(frozen=True)
class Told:
    """One event of an event stream."""

    type: str
    data: dict[str, Any]
    cursor: str = ""
    """Where a reader stands after it."""


class Events:
    """The events of an open stream, one after another."""

    def __init__(self, source: AsyncIterator[Told]) -> None:
        self._source = source

    async def next(self) -> Told:
        return await asyncio.wait_for(anext(self._source), BOUND_SECONDS)

    async def until(self, kind: str) -> list[Told]:
        """All events up to the first of this type, that one included."""
        seen = [await self.next()]
        while seen[-1].type != kind:
            seen.append(await self.next())
        return seen

    async def rest(self) -> list[Told]:
        """All events to the end of the stream."""
        async with asyncio.timeout(BOUND_SECONDS):
            return [told async for told in self._source]


@asynccontextmanager
async def events_of(
    client: httpx.AsyncClient, workspace: str = "w1", *, cursor: str | None = None
) -> AsyncGenerator[Events]:
    path = f"/api/workspaces/{workspace}/events"
    headers = {} if cursor is None else {"last-event-id": cursor}
    async with aconnect_sse(client, "GET", path, headers=headers) as source:
        source.response.raise_for_status()

        async def told() -> AsyncIterator[Told]:
            async for event in source.aiter_sse():
                yield Told(event.event, json.loads(event.data), event.id)

        yield Events(told())


async def send(
    client: httpx.AsyncClient, text: str = "hello", workspace: str = "w1", **fields: Any
) -> httpx.Response:
    return await client.post(f"/api/workspaces/{workspace}/messages", json={"text": text, **fields})


async def rows_of(client: httpx.AsyncClient, workspace: str = "w1") -> list[dict[str, Any]]:
    response = await client.get(f"/api/workspaces/{workspace}/history")
    assert response.status_code == 200, response.text
    rows: list[dict[str, Any]] = response.json()["rows"]
    return rows


def text_of(row: dict[str, Any]) -> str:
    return "".join(part["text"] for part in row["parts"])


async def until(condition: Callable[[], object]) -> None:
    """Wait for something that nobody tells of."""
    async with asyncio.timeout(BOUND_SECONDS):
        while not condition():  # noqa: ASYNC110  # nobody sets an event for it
            await asyncio.sleep(0.001)


async def settle(site: Site, workspace: str = "w1") -> None:
    """Wait until the workspace is idle: what was asked for has ended and is stored."""
    await until(lambda: site.root.engine.live_text(workspace) is None)


async def heard(site: Site, text: str, workspace: str = "w1") -> None:
    """Wait until the live answer has said this much."""
    await until(lambda: (site.hub.live_message(workspace) or ("", ""))[1] == text)


async def kept(site: Site, workspace: str = "w1") -> None:
    """Wait until something of the live answer is on disk."""
    await until((site.root.state / "workspaces" / workspace / "partial.json").exists)
