"""Connections that are too slow, too large, or no HTTP: each ends, and the server goes on."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import structlog
import structlog.testing

from turns.host.config import Limits

from .kit import BOUND_SECONDS, Live, a_server, events_of, rows_of, send, until


@asynccontextmanager
async def raw(live: Live) -> AsyncGenerator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A bare connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", live.port)
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def answer_of(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """The whole answer, of a connection that the server closes: status, headers, body."""
    data = await asyncio.wait_for(reader.read(), BOUND_SECONDS)
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return int(first.split()[1]), headers, body


def head(live: Live, method: str, path: str, *lines: str) -> bytes:
    host = f"Host: 127.0.0.1:{live.port}"
    token = f"Authorization: Bearer {live.token}"
    return "\r\n".join([f"{method} {path} HTTP/1.1", host, token, *lines, "", ""]).encode()


async def works(live: Live) -> bool:
    async with live.client() as client:
        return (await client.get("/healthz")).text == '{"status":"ok"}'


async def test_headers_that_do_not_end_in_time_are_refused(tmp_path: Path) -> None:
    async with a_server(tmp_path, limits=Limits(header_seconds=0.4)) as live, raw(live) as (r, w):
        w.write(b"GET /healthz HTTP/1.1\r\nHost: ")
        status, headers, body = await answer_of(r)

        assert status == 408
        assert headers["content-type"] == "application/problem+json"
        assert headers["x-content-type-options"] == "nosniff"
        assert json.loads(body)["kind"] == "too-slow"
        assert await works(live)


async def test_headers_that_trickle_have_no_more_time_than_others(tmp_path: Path) -> None:
    async with a_server(tmp_path, limits=Limits(header_seconds=0.4)) as live, raw(live) as (r, w):

        async def trickle() -> None:
            while not w.is_closing():
                w.write(b"x")
                await asyncio.sleep(0.02)

        w.write(b"GET /healthz HTTP/1.1\r\nX: ")
        trickling = asyncio.create_task(trickle())
        try:
            status, _, _ = await answer_of(r)
        except ConnectionResetError:
            # TCP drops an answer that was not read yet, if a byte arrives after the close.
            status = 408
        trickling.cancel()

    assert status == 408


async def test_the_headers_of_a_second_request_are_bounded_too(tmp_path: Path) -> None:
    async with a_server(tmp_path, limits=Limits(header_seconds=0.4)) as live, raw(live) as (r, w):
        w.write(head(live, "GET", "/healthz"))
        await r.readuntil(b"}")
        w.write(b"GET /heal")
        status, _, _ = await answer_of(r)

    assert status == 408


async def test_a_connection_that_never_speaks_is_closed_without_a_word(tmp_path: Path) -> None:
    async with a_server(tmp_path, limits=Limits(header_seconds=0.4)) as live, raw(live) as (r, _):
        assert await asyncio.wait_for(r.read(), BOUND_SECONDS) == b""


async def test_an_event_stream_outlives_the_bound_of_headers(tmp_path: Path) -> None:
    limits = Limits(header_seconds=0.05, body_seconds=0.05)
    async with (
        a_server(tmp_path, limits=limits) as live,
        live.client() as client,
        events_of(client) as events,
    ):
        await events.next()
        await asyncio.sleep(0.2)  # longer than both bounds
        await send(client)
        (await live.provider.next_answer()).say("still here").finish()
        told = await events.until("stream-end")

    assert told[1].data["delta"] == "still here"


async def test_a_body_that_does_not_arrive_in_time_is_refused(tmp_path: Path) -> None:
    async with a_server(tmp_path, limits=Limits(body_seconds=0.4)) as live, raw(live) as (r, w):
        lines = ("Content-Type: application/json", "Content-Length: 20", "Connection: close")
        w.write(head(live, "POST", "/api/workspaces/w1/messages", *lines) + b'{"text"')
        status, _, body = await answer_of(r)

    assert status == 408
    assert json.loads(body)["kind"] == "too-slow"


async def test_ten_megabytes_get_their_refusal_and_the_next_message_works(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client:
        refused = await send(client, "x" * 10_000_000)
        accepted = await send(client, "short")
        rows = await rows_of(client)

    assert refused.status_code == 413
    assert refused.json()["kind"] == "too-large"
    assert accepted.status_code == 202
    assert len(rows) == 1


async def test_a_body_without_an_end_after_its_refusal_is_cut_off(tmp_path: Path) -> None:
    limits = Limits(body_bytes=100, body_seconds=0.2)
    async with a_server(tmp_path, limits=limits) as live, raw(live) as (r, w):
        lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        w.write(head(live, "POST", "/api/workspaces/w1/messages", *lines))

        async def pour() -> None:
            while True:
                w.write(b"64\r\n" + b"x" * 100 + b"\r\n")
                await w.drain()
                await asyncio.sleep(0.005)

        pouring = asyncio.create_task(pour())
        try:
            seen = await asyncio.wait_for(r.read(1000), BOUND_SECONDS)
            with pytest.raises(ConnectionError):
                await asyncio.wait_for(pouring, BOUND_SECONDS)
        finally:
            pouring.cancel()

        assert seen.startswith(b"HTTP/1.1 413 ")
        assert await works(live)


@pytest.mark.parametrize(
    "request_line",
    [b"hello\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\r\n\r\n", b"GET / HTTP/1.1\r\n x\r\n\r\n"],
)
async def test_what_is_no_http_gets_a_problem(tmp_path: Path, request_line: bytes) -> None:
    async with a_server(tmp_path) as live, raw(live) as (r, w):
        w.write(request_line)
        status, headers, body = await answer_of(r)

        assert status == 400
        assert headers["content-type"] == "application/problem+json"
        assert json.loads(body)["kind"] == "not-http"
        assert await works(live)


async def test_headers_without_measure_are_refused(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, raw(live) as (r, w):
        w.write(b"GET / HTTP/1.1\r\nX: " + b"x" * 100_000)
        status, _, _ = await answer_of(r)

        assert status == 400
        assert await works(live)


async def test_a_request_without_a_host_is_refused(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, raw(live) as (r, w):
        w.write(b"GET / HTTP/1.0\r\n\r\n")
        status, _, _ = await answer_of(r)

    assert status == 421


async def test_without_its_extra_a_websocket_is_not_spoken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("turns.host.server.sockets_served", lambda: False)
    async with a_server(tmp_path) as live, raw(live) as (r, w):
        lines = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13")
        w.write(head(live, "GET", "/healthz", *lines))
        first = await asyncio.wait_for(r.readline(), BOUND_SECONDS)

    assert first.startswith(b"HTTP/1.1 200 ")


async def test_one_who_takes_nothing_is_given_up_and_holds_up_nobody(tmp_path: Path) -> None:
    limits = Limits(subscriber_bytes=200_000, stall_seconds=0.2)
    with structlog.testing.capture_logs() as logs, socket.socket() as sleeper:
        async with (
            a_server(tmp_path, limits=limits) as live,
            live.client() as client,
            events_of(client) as events,
        ):
            await events.next()
            sleeper.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sleeper.connect(("127.0.0.1", live.port))
            sleeper.sendall(head(live, "GET", "/api/workspaces/w1/events"))
            sleeper.setblocking(False)
            await until(lambda: has_data(sleeper))
            await send(client)
            answer = await live.provider.next_answer()
            said = 0
            while not was_logged(logs, "an event stream was too far behind"):
                answer.say("x" * 50_000)
                said += 1
                await events.until("stream-delta")
            await until(lambda: was_logged(logs, "a client takes nothing"))
            answer.finish()
            told = await events.until("stream-end")

    assert len(told[-1].data["parts"][0]["text"]) == said * 50_000


def has_data(sock: socket.socket) -> bool:
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False


def was_logged(logs: list[structlog.typing.EventDict], words: str) -> bool:
    return any(words in entry["event"] for entry in logs)
