"""Events over a WebSocket: the same messages, the same rules, and what is wrong with a client."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from turns.host.config import Limits

from .kit import AUTHORITY, BOUND_SECONDS, PORT, Site, a_server, a_site, events_of, send

SOCKET = "/api/workspaces/w1/socket"


class Socket:
    """A client's end of a socket, without a network: what the application is sent and sends."""

    def __init__(self, site: Site, path: str, query: str, headers: dict[str, str]) -> None:
        self._to_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._from_app: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        scope: dict[str, Any] = {
            "type": "websocket",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": "1.1",
            "scheme": "ws",
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "query_string": query.encode(),
            "headers": [(n.encode(), v.encode()) for n, v in headers.items()],
            "subprotocols": [],
            "server": ("127.0.0.1", PORT),
            "client": ("127.0.0.1", 50000),
            "extensions": {"websocket.http.response": {}},
        }
        self._to_app.put_nowait({"type": "websocket.connect"})

        async def put(message: Any) -> None:
            self._from_app.put_nowait(message)

        app: Any = site.app
        self.task = asyncio.ensure_future(app(scope, self._to_app.get, put))

    async def raw(self) -> dict[str, Any]:
        return await asyncio.wait_for(self._from_app.get(), BOUND_SECONDS)

    async def next(self) -> dict[str, Any]:
        """The next message that it is told."""
        message = await self.raw()
        assert message["type"] == "websocket.send", message
        told: dict[str, Any] = json.loads(message["text"])
        return told

    async def until(self, kind: str) -> list[dict[str, Any]]:
        seen = [await self.next()]
        while seen[-1]["message"]["type"] != kind:
            seen.append(await self.next())
        return seen

    def say(self, text: str) -> None:
        self._to_app.put_nowait({"type": "websocket.receive", "text": text})

    async def leave(self) -> None:
        self._to_app.put_nowait({"type": "websocket.disconnect", "code": 1000})
        await asyncio.wait_for(self.task, BOUND_SECONDS)


@asynccontextmanager
async def a_socket(
    site: Site,
    *,
    path: str = SOCKET,
    cursor: str = "",
    token: bool = True,
    accepted: bool = True,
    **headers: str,
) -> AsyncGenerator[Socket]:
    given = {"host": AUTHORITY, **headers}
    if token and site.access is not None:
        given["authorization"] = f"Bearer {site.access.secret}"
    socket = Socket(site, path, f"cursor={cursor}" if cursor else "", given)
    try:
        if accepted:
            assert (await socket.raw())["type"] == "websocket.accept"
        yield socket
    finally:
        await socket.leave()


async def refusal(socket: Socket) -> tuple[int, str]:
    """Status and kind of the problem that it is refused with."""
    start = await socket.raw()
    assert start["type"] == "websocket.http.response.start"
    headers = dict(start["headers"])
    assert headers[b"x-content-type-options"] == b"nosniff"
    body = await socket.raw()
    return start["status"], json.loads(body["body"])["kind"]


async def test_it_tells_what_an_event_stream_tells(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client, a_socket(site) as socket:
        assert (await socket.next())["message"]["type"] == "caught-up"
        await send(client)
        (await site.provider.next_answer()).say("one ", "two").finish()
        told = await socket.until("stream-end")

    text = "".join(t["message"].get("delta", "") for t in told)
    assert text == "one two"
    message_id = told[0]["message"]["messageId"]
    assert told[0]["cursor"] == f"{message_id}:0"
    assert told[-1]["cursor"] == f"{message_id}:end"


@pytest.mark.spec("W12")
async def test_who_comes_again_with_its_cursor_gets_the_rest(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        async with a_socket(site) as first:
            await first.next()
            await send(client)
            answer = (await site.provider.next_answer()).say("one ", "two ")
            seen = [await first.next() for _ in range(3)]
        answer.say("three ")
        async with a_socket(site, cursor=seen[-1]["cursor"]) as second:
            answer.say("four").finish()
            rest = await second.until("stream-end")

        assert site.hub.subscriber_count == 0
    text = "".join(t["message"].get("delta", "") for t in [*seen, *rest])
    assert text == "one two three four"


@pytest.mark.spec("R25")
async def test_an_end_that_was_missed_is_told(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        async with a_socket(site) as first:
            await first.next()
            await send(client)
            await site.provider.next_answer()
            seen = await first.next()
        await client.post("/api/workspaces/w1/stop", json={})
        async with a_socket(site, cursor=seen["cursor"]) as second:
            terminal, _ = await second.until("caught-up")

    assert terminal["message"]["type"] == "stream-abort"
    assert terminal["message"]["abortReason"] == "user"


async def test_it_closes_when_the_server_does(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, a_socket(site) as socket:
        await socket.next()
        site.hub.close()

        assert (await socket.next())["message"]["type"] == "shutting-down"
        assert await socket.raw() == {"type": "websocket.close", "code": 1001, "reason": ""}


async def test_a_client_that_talks_is_closed(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, a_socket(site) as socket:
        await socket.next()
        socket.say("hello?")

        assert (await socket.raw())["code"] == 1003
        await socket.task
        assert site.hub.subscriber_count == 0


@pytest.mark.parametrize(
    ("options", "status", "kind"),
    [
        ({"token": False}, 401, "not-logged-in"),
        ({"origin": "http://evil.example"}, 403, "foreign-origin"),
        ({"origin": "null"}, 403, "foreign-origin"),
        ({"sec-fetch-site": "cross-site"}, 403, "cross-site"),
        ({"host": "evil.example"}, 421, "unknown-host"),
        ({"path": "/api/workspaces/W%201/socket"}, 400, "invalid-id"),
    ],
)
async def test_the_rules_of_the_api_hold(
    tmp_path: Path, options: dict[str, Any], status: int, kind: str
) -> None:
    async with (
        a_site(tmp_path) as site,
        a_socket(site, accepted=False, **options) as socket,
    ):
        assert await refusal(socket) == (status, kind)
        assert site.hub.subscriber_count == 0


async def test_our_own_page_may(tmp_path: Path) -> None:
    async with (
        a_site(tmp_path) as site,
        a_socket(site, origin=f"http://{AUTHORITY}") as socket,
    ):
        assert (await socket.next())["message"]["type"] == "caught-up"


async def test_one_too_many_is_refused(tmp_path: Path) -> None:
    async with (
        a_site(tmp_path, limits=Limits(subscribers=1)) as site,
        a_socket(site) as first,
    ):
        await first.next()
        async with a_socket(site, accepted=False) as second:
            assert await refusal(second) == (429, "too-many-subscribers")


@pytest.mark.spec("VA9")
async def test_none_is_opened_while_the_server_shuts_down(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        site.shutdown.begin()
        async with a_socket(site, accepted=False) as socket:
            assert await refusal(socket) == (503, "shutting-down")


# ---- over a real connection


class Wire:
    """A client on a TCP connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        wsproto = pytest.importorskip("wsproto")
        self._ws = wsproto.WSConnection(wsproto.ConnectionType.CLIENT)
        self._reader = reader
        self._writer = writer
        self._pending: list[Any] = []

    def send(self, event: Any) -> None:
        self._writer.write(self._ws.send(event))

    async def next(self) -> Any:
        while not self._pending:
            data = await asyncio.wait_for(self._reader.read(65536), BOUND_SECONDS)
            self._ws.receive_data(data or None)
            self._pending = list(self._ws.events())
        return self._pending.pop(0)


async def test_a_socket_over_the_wire(tmp_path: Path) -> None:
    events = pytest.importorskip("wsproto.events")
    async with a_server(tmp_path) as live, live.client() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        wire = Wire(reader, writer)
        headers = [(b"authorization", f"Bearer {live.token}".encode())]
        wire.send(
            events.Request(host=f"127.0.0.1:{live.port}", target=SOCKET, extra_headers=headers)
        )
        assert isinstance(await wire.next(), events.AcceptConnection)
        told = [json.loads((await wire.next()).data)]
        async with events_of(client) as watcher:
            await watcher.next()
            await send(client)
            (await live.provider.next_answer()).say("over ", "the wire").finish()
            while told[-1]["message"]["type"] != "stream-end":
                told.append(json.loads((await wire.next()).data))
            await live.stop()
        goodbye = json.loads((await wire.next()).data)
        closed = await wire.next()
        writer.close()

    assert "".join(t["message"].get("delta", "") for t in told) == "over the wire"
    assert goodbye["message"]["type"] == "shutting-down"
    assert isinstance(closed, events.CloseConnection)
    assert closed.code == 1001


async def test_a_socket_that_takes_nothing_does_not_hold_up_the_stop(tmp_path: Path) -> None:
    events = pytest.importorskip("wsproto.events")
    async with a_server(tmp_path) as live:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        wire = Wire(reader, writer)
        headers = [(b"authorization", f"Bearer {live.token}".encode())]
        wire.send(
            events.Request(host=f"127.0.0.1:{live.port}", target=SOCKET, extra_headers=headers)
        )
        assert isinstance(await wire.next(), events.AcceptConnection)
        started = asyncio.get_running_loop().time()
        await live.stop()

        assert asyncio.get_running_loop().time() - started < BOUND_SECONDS / 2
        writer.close()


async def test_a_connection_that_became_a_socket_has_no_bounds_of_http(tmp_path: Path) -> None:
    events = pytest.importorskip("wsproto.events")
    limits = Limits(body_seconds=0.05, header_seconds=0.2)
    async with a_server(tmp_path, limits=limits) as live, live.client() as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
        host = f"127.0.0.1:{live.port}"
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        await asyncio.wait_for(reader.readuntil(b"}"), BOUND_SECONDS)
        wire = Wire(reader, writer)
        headers = [(b"authorization", f"Bearer {live.token}".encode())]
        wire.send(events.Request(host=host, target=SOCKET, extra_headers=headers))
        assert isinstance(await wire.next(), events.AcceptConnection)
        await wire.next()
        await asyncio.sleep(0.3)  # longer than both bounds
        await send(client)
        told = json.loads((await wire.next()).data)
        writer.close()

    assert told["message"]["type"] == "stream-start"
