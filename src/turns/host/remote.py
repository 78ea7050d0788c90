"""``fiberscope chat`` as a client of the server that holds the state directory."""

from __future__ import annotations

import json
import uuid
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, cast, final

import httpx
import structlog
from httpx_sse import EventSource, ServerSentEvent, SSEError, aconnect_sse

import fibers as fb
from fibers import Effect, Exit
from streamengine.events import HEARTBEAT_SECONDS
from streamengine.model import (
    ErrorEvent,
    MessagePart,
    StreamAbortEvent,
    StreamDeltaEvent,
    StreamEndEvent,
    TextPart,
    parse_event,
)

from . import token
from .discovery import ServerNote
from .endings import INTERRUPTED, by_ctrl_c, told
from .errors import FAILED, HostError
from .terminal import Terminal, give_up_output

_ANSWER_SECONDS: Final = 15.0
_STOP_SECONDS: Final = 2.0
# A server that says nothing for so long, not even a heartbeat, is gone.
_SILENCE_SECONDS: Final = 9.0 * HEARTBEAT_SECONDS

_TOLD_OF: Final = frozenset({"stream-delta", "stream-end", "stream-abort", "error"})

_log = structlog.get_logger("turns.host.remote")


@fb.effect(raises=HostError)
async def ask_server(state: Path, note: ServerNote, workspace_id: str, text: str) -> int:
    """Send the message to a running server, write the answer as it comes; gives the exit code."""
    talk = _Talk(note.url, token.load(state), workspace_id)
    return await talk.run(text).on_exit(talk.clean_up)


class _Overflow(Exception):
    """The server closed an event stream that was too far behind."""


@final
class _Talk:
    """One message to a server, and its answer."""

    def __init__(self, url: str, access: token.AccessToken | None, workspace_id: str) -> None:
        self._url = url
        self._access = access
        self._path = f"/api/workspaces/{workspace_id}"
        self._terminal = Terminal()
        self._client_message_id = str(uuid.uuid4())
        self._message_id: str | None = None
        self._cursor = ""
        self._written_characters = 0

    @fb.effect(raises=HostError)
    async def run(self, text: str) -> int:
        try:
            async with self._client() as client:
                while True:
                    try:
                        return await self._follow(client, text)
                    except _Overflow:
                        continue  # the cursor says what was missed
        except BrokenPipeError:
            give_up_output()
            await self._stop()
            return FAILED
        except (httpx.HTTPError, SSEError) as error:
            raise HostError(
                f"{broken(error)}. What was said is kept; see its log, or try again"
            ) from error

    def _client(self) -> httpx.AsyncClient:
        return client_of(self._url, self._access)

    # ---- the answer

    async def _follow(self, client: httpx.AsyncClient, text: str) -> int:
        async with self._events(client) as events:
            async for event in events:
                self._cursor = event.id or self._cursor
                if event.event == "caught-up":
                    await self._on_caught_up(client, text)
                elif event.event == "overflow":
                    raise _Overflow
                elif event.event in _TOLD_OF:
                    code = await self._on_event(event)
                    if code is not None:
                        return code
        raise HostError("the server ended the connection. What was said is kept")

    @asynccontextmanager
    async def _events(
        self, client: httpx.AsyncClient
    ) -> AsyncGenerator[AsyncIterator[ServerSentEvent]]:
        timeout = httpx.Timeout(_ANSWER_SECONDS, read=_SILENCE_SECONDS)
        headers = {"last-event-id": self._cursor} if self._cursor else {}
        source: EventSource
        async with aconnect_sse(
            client, "GET", f"{self._path}/events", timeout=timeout, headers=headers
        ) as source:
            await check(source.response)
            yield source.aiter_sse()

    async def _on_caught_up(self, client: httpx.AsyncClient, text: str) -> None:
        if self._message_id is None:
            # Subscribed first, so that nothing of the answer is missed. Not to be cut in between:
            # a Ctrl-C has to know which message it stops.
            self._message_id = await Effect.promise(
                lambda: self._send(client, text)
            ).uninterruptible()

    async def _on_event(self, sse: ServerSentEvent) -> int | None:
        event = parse_event(_object(sse.data))
        if event.message_id != self._message_id:
            return None
        if isinstance(event, StreamDeltaEvent):
            self._written_characters += len(event.delta)
            await self._terminal.write(event.delta)
        elif isinstance(event, StreamEndEvent | StreamAbortEvent | ErrorEvent):
            if event.replay:
                # It ended while we were behind, and this has all of it.
                await self._write_from(_text_of(event.parts or ()))
            await self._terminal.end_line()
            return told(event)
        return None

    async def _write_from(self, whole: str) -> None:
        rest = whole[self._written_characters :]
        self._written_characters += len(rest)
        await self._terminal.write(rest)

    async def _send(self, client: httpx.AsyncClient, text: str) -> str:
        body = {"text": text, "clientMessageId": self._client_message_id}
        response = await client.post(f"{self._path}/messages", json=body)
        await check(response)
        return str(response.json()["messageId"])

    # ---- the end

    def clean_up(self, exit_: Exit[int, Any]) -> Effect[None]:
        """A Ctrl-C stops the answer on the server; any other end leaves it to itself."""

        @fb.effect
        async def steps() -> None:
            if by_ctrl_c(exit_):
                await self._stop()
                await self._terminal.leave(INTERRUPTED)

        return steps()

    async def _stop(self) -> None:
        if self._message_id is None:
            return
        try:
            async with self._client() as client:
                response = await client.post(
                    f"{self._path}/stop",
                    json={"messageId": self._message_id},
                    timeout=_STOP_SECONDS,
                )
                await check(response)
        except (httpx.HTTPError, HostError) as error:
            _log.warning("the stop failed", error=str(error))


def _text_of(parts: Iterable[MessagePart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, TextPart))


def client_of(url: str, access: token.AccessToken | None) -> httpx.AsyncClient:
    """A client of the server at ``url``, with its token."""
    headers = {} if access is None else {"authorization": f"Bearer {access.secret}"}
    # Not through a proxy of the environment: the token is for this machine only.
    return httpx.AsyncClient(
        base_url=url, headers=headers, trust_env=False, timeout=_ANSWER_SECONDS
    )


def broken(error: httpx.HTTPError | SSEError) -> HostError:
    """A connection that failed, for a person."""
    if isinstance(error, httpx.TimeoutException):
        return HostError(
            "the server does not answer: its log says what holds it, and SIGQUIT makes it write "
            "what is alive"
        )
    return HostError(f"the connection to the server broke: {str(error) or type(error).__name__}")


async def check(response: httpx.Response) -> None:
    """HostError, with what the server says, for an answer that says no."""
    if response.is_success:
        return
    await response.aread()
    try:
        detail = _object(response.text).get("detail")
    except ValueError:
        detail = None
    raise HostError(
        detail if isinstance(detail, str) else f"the server answered {response.status_code}"
    )


def _object(data: str) -> Mapping[str, Any]:
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    return cast("dict[str, Any]", value)
