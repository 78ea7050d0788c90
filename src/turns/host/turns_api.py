"""The HTTP API of turns: begin one, look at it, say something to it, end it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final, Literal, final

from pydantic import Field, StrictBool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route

from fibers import Effect
from streamengine import SendError

from ..manager import TurnHandle, TurnManager
from ..model.errors import TurnError
from ..model.ids import check_handle_id
from ..model.record import TurnRecord
from .admission import Admission
from .bodies import Body, ClientId, read_body, workspace_id_in
from .problems import Problem, shutting_down
from .root import Root
from .stops import USER
from .turn_problems import asked, no_such_turn, of_turn_error

TURNS_PATH: Final = "/api/turns"

_NO_STORE: Final = {"cache-control": "no-store"}


class TurnBody(Body):
    """A turn that is wanted."""

    prompt: str
    attention: Literal["blocking", "notify"] = "blocking"
    client_turn_id: ClientId | None = None


class SteerBody(Body):
    """What the turn is to hear."""

    text: str


class SubturnBody(Body):
    """A subturn that is wanted: a SpawnRequest whose result the turn is told."""

    prompt: str
    agent: str | None = None
    model: str | None = None
    system: str | None = None
    critical: StrictBool = False
    timeout_seconds: Annotated[float, Field(gt=0)] | None = None
    token_budget: Annotated[int, Field(gt=0)] | None = None


class InterruptBody(Body):
    """How a turn is to end: with one last answer, or ``hard``: with what it said taken back."""

    hard: StrictBool = False


class AnswerBody(Body):
    """A person's answer to a question. ``remember``: it is not asked again."""

    allow: StrictBool
    remember: StrictBool = False


@final
class TurnsApi:
    """The routes of the turns of one root; there are none where it has none."""

    def __init__(
        self, root: Root, admission: Admission, *, is_shutting_down: Callable[[], bool]
    ) -> None:
        self._root = root
        self._admission = admission
        self._is_shutting_down = is_shutting_down
        # What ends the count of each turn, whoever has begun it.
        self._leave: dict[str, Callable[[], None]] = {}
        if root.turns is not None:
            # Those that the start has taken up count, too.
            for record in root.turns.manager.unsettled():
                self._on_record(record)
            root.turns.manager.observe(self._on_record)

    def routes(self) -> list[BaseRoute]:
        """Method and path of each call."""
        if self._root.turns is None:
            return []
        in_workspace = "/api/workspaces/{workspace_id}/turns"
        turn = f"{TURNS_PATH}/{{handle_id}}"
        return [
            Route(in_workspace, self.begin, methods=["POST"]),
            Route(in_workspace, self.in_workspace, methods=["GET"]),
            Route(TURNS_PATH, self.all, methods=["GET"]),
            Route(turn, self.one, methods=["GET"]),
            Route(f"{turn}/steer", self.steer, methods=["POST"]),
            Route(f"{turn}/subturns", self.begin_subturn, methods=["POST"]),
            Route(f"{turn}/interrupt", self.interrupt, methods=["POST"]),
            Route(f"{turn}/permissions/{{request_id}}", self.answer, methods=["POST"]),
        ]

    @property
    def _manager(self) -> TurnManager:
        assert self._root.turns is not None, "there are no routes without turns"
        return self._root.turns.manager

    # ---- to begin one

    async def begin(self, request: Request) -> Response:
        """202 when its record is on disk; it runs once its workspace is free."""
        workspace_id = workspace_id_in(request)
        body = await read_body(request, TurnBody)
        leave = self._admission.enter(workspace_id)
        try:
            handle = await asked(self._root, self._created(workspace_id, body))
        finally:
            leave()  # from its record on it is counted by that
        if self._is_shutting_down():
            # The shutdown came between: the record is kept, the next process begins the turn, and
            # gives it to who asks again by its client turn id.
            raise shutting_down()
        content = {"handleId": handle.handle_id, "turnId": handle.turn_id}
        return JSONResponse(content, 202, headers=_NO_STORE)

    def _created(self, workspace_id: str, body: TurnBody) -> Effect[TurnHandle, SendError]:
        create = self._manager.create_turn
        if body.client_turn_id is not None:
            create = partial(self._manager.create_turn_once, body.client_turn_id)
        return create(
            owner=workspace_id,
            workspace_id=workspace_id,
            prompt=body.prompt,
            attention=body.attention,
        )

    def _on_record(self, record: TurnRecord) -> None:
        if record.is_terminal:
            self._leave.pop(record.handle_id, _nothing)()
        elif record.handle_id not in self._leave:
            self._leave[record.handle_id] = self._admission.count(record.workspace_id)

    # ---- to look at them

    async def in_workspace(self, request: Request) -> Response:
        """The records of the turns that run or ran in a workspace, the oldest first."""
        workspace_id = workspace_id_in(request)
        records = await asked(self._root, self._manager.list())
        return await self._listed([r for r in records if r.workspace_id == workspace_id])

    async def all(self, _request: Request) -> Response:
        """All records, the oldest first."""
        return await self._listed(await asked(self._root, self._manager.list()))

    async def _listed(self, records: Sequence[TurnRecord]) -> Response:
        # On a thread: ten thousand records are half a second.
        return _json(await asyncio.to_thread(_list_of, records, self._manager.warnings))

    async def one(self, request: Request) -> Response:
        """One record."""
        return _json((await self._record(_handle_id_in(request))).to_json())

    async def _record(self, handle_id: str) -> TurnRecord:
        try:
            return await self._root.runtime.run(self._manager.get(handle_id))
        except TurnError as error:
            if error.kind == "not_found":
                raise no_such_turn(handle_id) from error
            raise of_turn_error(error) from error

    # ---- to say something to one

    async def steer(self, request: Request) -> Response:
        """202: it hears that at its next step."""
        handle_id = await self._known(request)
        body = await read_body(request, SteerBody)
        await asked(self._root, self._manager.steer(handle_id, body.text))
        return _accepted()

    async def begin_subturn(self, request: Request) -> Response:
        """202 once it runs. Its result is told to the turn."""
        handle_id = await self._known(request)
        body = await read_body(request, SubturnBody)
        fields = {**body.model_dump(by_alias=True), "delivers": True}
        child_id = await asked(self._root, self._manager.begin_subturn(handle_id, fields))
        if self._is_shutting_down():
            raise shutting_down()  # it was ended with the rest
        return JSONResponse({"childId": child_id}, 202, headers=_NO_STORE)

    async def answer(self, request: Request) -> Response:
        """204: the question is answered. A problem where it is not the one that waits now."""
        handle_id = await self._known(request)
        body = await read_body(request, AnswerBody)
        request_id: str = request.path_params["request_id"]
        said = {"allow": body.allow, "remember": body.remember}
        answering = self._manager.answer_permission(handle_id, request_id, said)
        if not await asked(self._root, answering):
            raise Problem(
                409,
                "question-not-open",
                "this question does not wait for an answer any more: look at the turn again",
            )
        return _done()

    async def interrupt(self, request: Request) -> Response:
        """202: it ends with one last answer. 204, where it is ``hard``: it has ended."""
        handle_id = await self._known(request)
        body = await read_body(request, InterruptBody)
        if not body.hard:
            await self._refuse_before_its_begin(handle_id)
            await asked(self._root, self._manager.finish(handle_id))
            return _accepted()
        record = await self._record(handle_id)
        if record.is_terminal or self._is_run(record):
            await asked(self._root, self._manager.finish(handle_id, hard=True))
        else:
            # Queued, or taken up after a restart: nothing of it can be taken back.
            await asked(self._root, self._manager.interrupt(handle_id, by=USER))
        return _done()

    async def _refuse_before_its_begin(self, handle_id: str) -> None:
        if (await self._record(handle_id)).status == "queued":
            raise Problem(
                409,
                "turn-not-running",
                f"the turn {handle_id} is queued and has no answer to give: end it hard",
            )

    def _is_run(self, record: TurnRecord) -> bool:
        turns = self._root.turns
        return turns is not None and turns.loop.is_running(record.turn_id)

    async def _known(self, request: Request) -> str:
        """The handle of the path. Raises Problem where there is no such turn."""
        return (await self._record(_handle_id_in(request))).handle_id


def _handle_id_in(request: Request) -> str:
    handle_id: str = request.path_params["handle_id"]
    try:
        return check_handle_id(handle_id)
    except ValueError as error:
        raise Problem(400, "invalid-id", str(error)) from error


def _list_of(records: Sequence[TurnRecord], warnings: Sequence[str]) -> str:
    # Records write themselves: they may hold text that a plain encoder refuses.
    turns = ",".join(record.to_json() for record in records)
    return f'{{"turns":[{turns}],"warnings":{json.dumps(list(warnings))}}}'


def _json(content: str) -> Response:
    return Response(content, headers=_NO_STORE, media_type="application/json")


def _accepted() -> Response:
    return Response(status_code=202, headers=_NO_STORE)


def _done() -> Response:
    return Response(status_code=204, headers=_NO_STORE)


def _nothing() -> None:
    pass
