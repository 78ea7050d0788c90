"""An HTTP server on loopback that answers as it is told, also as no server should.

It counts the connections that are open, so that a test sees whether its client left any behind.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final, final

BOUND_SECONDS: Final = 10.0
"""How long a test waits for something that has to happen."""


@dataclass(frozen=True)
class Asked:
    """A request as it came."""

    path: str
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Any


@final
class Line:
    """One connection, as a plan sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def head(
        self, status: int = 200, kind: str = "text/event-stream", **headers: str
    ) -> None:
        """Status and headers; names with underscores for dashes. What follows ends with the
        connection.
        """
        fields = {"content-type": kind, "connection": "close"}
        fields |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        await self.send(f"HTTP/1.1 {status} As told\r\n{lines}\r\n".encode())

    async def say(self, *events: bytes) -> None:
        for event in events:
            await self.send(event)

    async def client_gone(self) -> None:
        """Stall until the other side hangs up."""
        while await self._reader.read(65536):
            pass

    def reset(self) -> None:
        """End with a reset of the connection, not with an orderly close."""
        sock = self._writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.transport.abort()


Plan = Callable[[Line], Awaitable[None]]


@final
class HostileServer:
    """``plan`` is what it does with each request."""

    def __init__(self) -> None:
        self.plan: Plan = stalls_before_the_head()
        self.asked: list[Asked] = []
        self.arrived = asyncio.Event()
        """Set when a request has been read."""
        self.port = 0
        self._open: set[asyncio.StreamWriter] = set()
        self._changed = asyncio.Condition()
        self.most_open = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    @property
    def open_connections(self) -> int:
        return len(self._open)

    async def none_left(self) -> None:
        """Wait until every connection is closed."""
        async with asyncio.timeout(BOUND_SECONDS), self._changed:
            await self._changed.wait_for(lambda: not self._open)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        self.most_open = max(self.most_open, len(self._open))
        try:
            while (asked := await _read_request(reader)) is not None:
                self.asked.append(asked)
                self.arrived.set()
                await self.plan(Line(reader, writer))
                break  # each plan has said `connection: close`, or has broken off
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client hung up, which is what many tests want of it
        finally:
            writer.close()
            self._open.discard(writer)
            async with self._changed:
                self._changed.notify_all()


async def _read_request(reader: asyncio.StreamReader) -> Asked | None:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    headers = {name.lower(): value.strip() for name, _, value in (x.partition(":") for x in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Asked(first.split()[1], headers, json.loads(body) if body else None)


@asynccontextmanager
async def a_server() -> AsyncGenerator[HostileServer]:
    """A server that listens; at the end what is still open is closed, by force."""
    hostile = HostileServer()
    serving: set[asyncio.Task[None]] = set()

    def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.get_running_loop().create_task(hostile.serve(reader, writer))
        serving.add(task)
        task.add_done_callback(serving.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    hostile.port = server.sockets[0].getsockname()[1]
    try:
        yield hostile
    finally:
        server.close()
        for task in list(serving):
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)
        await server.wait_closed()


# ---- plans


def answers(*events: bytes) -> Plan:
    """A whole answer, event by event."""

    async def plan(line: Line) -> None:
        await line.head()
        await line.say(*events)

    return plan


def refuses(status: int, body: str, kind: str = "application/json", **headers: str) -> Plan:
    async def plan(line: Line) -> None:
        await line.head(status, kind, **headers)
        await line.send(body.encode())

    return plan


def stalls_before_the_head() -> Plan:
    async def plan(line: Line) -> None:
        await line.client_gone()

    return plan


def stalls_after(*events: bytes) -> Plan:
    """Says a part of the answer, and then nothing any more."""

    async def plan(line: Line) -> None:
        await line.head()
        await line.say(*events)
        await line.client_gone()

    return plan


def keeps_talking_after(*events: bytes, noise: bytes) -> Plan:
    """Says it all, and then something that means nothing, again and again."""

    async def plan(line: Line) -> None:
        await line.head()
        await line.say(*events)
        while True:
            await line.send(noise)
            await asyncio.sleep(0.005)

    return plan


def breaks_off_after(*events: bytes) -> Plan:
    """Says a part of the answer, closes in the middle."""

    async def plan(line: Line) -> None:
        # A length that is never reached: the client can tell that it is cut.
        await line.head(content_length="1000000")
        await line.say(*events)

    return plan


def resets_after(*events: bytes) -> Plan:
    async def plan(line: Line) -> None:
        await line.head()
        await line.say(*events)
        line.reset()

    return plan


def drips(events: Iterable[bytes]) -> Plan:
    """The answer byte by byte, so that every cut that there can be is there."""
    data = b"".join(events)

    async def plan(line: Line) -> None:
        await line.head()
        for place in range(len(data)):
            await line.send(data[place : place + 1])
            await asyncio.sleep(0)

    return plan


def floods(event: bytes) -> Plan:
    """The same again and again, until the client goes."""

    async def plan(line: Line) -> None:
        await line.head()
        while True:
            await line.send(event)

    return plan


def sends_endless_line() -> Plan:
    async def plan(line: Line) -> None:
        await line.head()
        await line.send(b"data: ")
        while True:
            await line.send(b"x" * 65536)

    return plan
