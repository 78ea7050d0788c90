"""The HTTP API: messages in, events out."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable
from typing import Annotated, Final, final

from pydantic import Field
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket

import fibers as fb
from fibers import Scope
from fibers.dump import as_json, report, snapshot
from fibers.dump.render import text_of
from streamengine import HistoryError, SendError, StreamHandle, StreamRequest
from streamengine.events import Cursor
from streamengine.model import Row

from .admission import Admission
from .bodies import Body, ClientId, read_body, workspace_id_in
from .config import Limits
from .hub import Hub
from .problems import (
    Problem,
    of_history_error,
    of_send_error,
    shutting_down,
)
from .root import Root
from .security import SESSION_PATH
from .sse import EventStream
from .stops import StopBody, stop
from .token import AccessToken
from .turns_api import TurnsApi
from .websocket import deliver

FIBERS_PATH: Final = "/api/fibers"


class MessageBody(Body):
    """A message to answer."""

    text: str
    client_message_id: ClientId | None = None


class SessionBody(Body):
    """The token, from a page that got it in its fragment."""

    token: Annotated[str, Field(max_length=255)]


@final
class Api:
    """The routes over one root. ``outer``: the scope of the server's own tasks."""

    def __init__(
        self,
        root: Root,
        hub: Hub,
        *,
        outer: Scope,
        is_shutting_down: Callable[[], bool],
        token: AccessToken | None,
        cookie_name: str,
        limits: Limits,
        tells_its_fibers: bool = False,
    ) -> None:
        self._tells_its_fibers = tells_its_fibers
        self._root = root
        self._hub = hub
        self._outer = outer
        self._is_shutting_down = is_shutting_down
        self._token = token
        self._cookie_name = cookie_name
        self._admission = Admission(limits.streams)
        self._turns = TurnsApi(root, self._admission, is_shutting_down=is_shutting_down)

    def routes(self) -> list[BaseRoute]:
        """Method and path of each call."""
        workspace = "/api/workspaces/{workspace_id}"
        # Not a refusal where it is off: what isn't there can't be opened by a mistake elsewhere.
        inspection = [Route(FIBERS_PATH, self.fibers, methods=["GET"])]
        return [
            *(inspection if self._tells_its_fibers else ()),
            Route("/healthz", self.health, methods=["GET"]),
            Route(SESSION_PATH, self.log_in, methods=["POST"]),
            Route(f"{workspace}/messages", self.send_message, methods=["POST"]),
            Route(f"{workspace}/events", self.events, methods=["GET"]),
            WebSocketRoute(f"{workspace}/socket", self.socket),
            Route(f"{workspace}/stop", self.stop, methods=["POST"]),
            Route(f"{workspace}/history", self.history, methods=["GET"]),
            *self._turns.routes(),
        ]

    async def health(self, _request: Request) -> Response:
        """Whether it takes messages. Says nothing else: anybody may ask."""
        if self._is_shutting_down():
            return JSONResponse(
                {"status": "shutting-down"}, 503, {"retry-after": "5", "cache-control": "no-store"}
            )
        return JSONResponse({"status": "ok"}, headers={"cache-control": "no-store"})

    async def fibers(self, _request: Request) -> Response:
        """What is alive in this process (``fiberscope ps``)."""
        # On a thread: ten thousand fibers are a quarter of a second.
        content = await asyncio.to_thread(_alive)
        return Response(
            content, headers={"cache-control": "no-store"}, media_type="application/json"
        )

    async def log_in(self, request: Request) -> Response:
        """Give a cookie for the token."""
        body = await read_body(request, SessionBody)
        response = Response(status_code=204, headers={"cache-control": "no-store"})
        if self._token is None:
            return response
        if not self._token.matches(body.token):
            raise Problem(
                401,
                "wrong-token",
                "this is not the token of this server",
                headers={"www-authenticate": "Bearer"},
            )
        response.set_cookie(
            self._cookie_name, self._token.cookie, httponly=True, samesite="strict", path="/"
        )
        return response

    async def send_message(self, request: Request) -> Response:
        """Begin an answer: 202 when the message is on disk and its stream is registered."""
        workspace_id = workspace_id_in(request)
        body = await read_body(request, MessageBody)
        leave = self._admission.enter(workspace_id)
        try:
            handle = await self._start(workspace_id, body)
        except BaseException:
            leave()
            raise
        self._outer.fork(handle.completion.ensuring(fb.Effect.sync(leave)))
        if self._is_shutting_down():
            # The shutdown came between: it has ended what began here. The message is kept, and
            # the same client message id gets its answer from the next process.
            raise shutting_down()
        return JSONResponse(
            {"messageId": handle.message_id}, 202, headers={"cache-control": "no-store"}
        )

    async def _start(self, workspace_id: str, body: MessageBody) -> StreamHandle:
        start = self._root.engine.start_stream(
            workspace_id,
            StreamRequest(text=body.text, client_message_id=body.client_message_id),
        )
        try:
            return await self._root.runtime.run(start)
        except SendError as error:
            raise of_send_error(error) from error

    async def stop(self, request: Request) -> Response:
        """Stop as the person at the other end. 204: it has ended. 202: it ends at a next block."""
        workspace_id = workspace_id_in(request)
        body = await read_body(request, StopBody)
        await stop(self._root, workspace_id, body)
        return Response(
            status_code=202 if body.soft else 204, headers={"cache-control": "no-store"}
        )

    async def events(self, request: Request) -> Response:
        """What the reader has missed, then everything that happens in the workspace."""
        workspace_id = workspace_id_in(request)
        return EventStream(self._hub.subscribe(workspace_id, _cursor(request)))

    async def socket(self, websocket: WebSocket) -> None:
        """The same as ``events``, over a WebSocket."""
        try:
            workspace_id = workspace_id_in(websocket)
            subscription = self._hub.subscribe(workspace_id, _cursor(websocket))
        except Problem as problem:
            await websocket.send_denial_response(problem.response("GET", websocket.url.path))
            return
        await deliver(websocket, subscription)

    async def history(self, request: Request) -> Response:
        """The rows, without the message that is being answered (its event stream has that).

        What a failed stream has said is kept as a partial until the next message: it is given as
        the row that it will be.
        """
        workspace_id = workspace_id_in(request)
        history = self._root.history
        try:
            # The partial first: a stream that ends in between is in both, never in neither.
            partial = await self._root.runtime.run(history.read_partial(workspace_id))
            rows = await self._root.runtime.run(history.read(workspace_id))
        except HistoryError as error:
            raise of_history_error(error) from error
        live = self._hub.live_message(workspace_id)
        shown: list[Row] = list(rows)
        if (
            partial is not None
            and (live is None or live[0] != partial.id)
            and all(row.id != partial.id for row in rows)
        ):
            shown.append(partial)
        # Rows write themselves: they may hold text that a plain encoder refuses (half an emoji).
        content = (
            f'{{"workspaceId":"{workspace_id}","rows":[{",".join(r.to_json() for r in shown)}]}}'
        )
        return Response(
            content, headers={"cache-control": "no-store"}, media_type="application/json"
        )


def _alive() -> str:
    found = report(snapshot())
    return json.dumps({"pid": os.getpid(), **as_json(found), "text": text_of(found)})


def _cursor(connection: HTTPConnection) -> Cursor | None:
    # A browser sends the header when it comes again by itself; a page that does so can't.
    sent = connection.headers.get("last-event-id") or connection.query_params.get("cursor", "")
    return Cursor.parse(sent)
