"""History over HTTP while a stream ends: its answer is never in neither place."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest
from starlette.requests import Request

import fibers as fb
from fibers.app import AppScope
from streamengine import FileHistory, HistoryStore, StreamEngine
from streamengine.model import AssistantRow, RowMetadata, TextPart, UserRow
from streamengine.providers.scripted import ScriptedProvider
from turns.host.api import Api
from turns.host.config import Limits
from turns.host.hub import Hub
from turns.host.root import Root

USER = UserRow(id="u", parts=(TextPart(text="ask"),), metadata=RowMetadata(history_sequence=0))


def answer(*, partial: bool) -> AssistantRow:
    return AssistantRow(
        id="a",
        parts=(TextPart(text="kept text"),),
        metadata=RowMetadata(history_sequence=1, partial=partial or None),
    )


class EndingHistory:
    """A history whose stream ends after the first thing that is read of it."""

    def __init__(self) -> None:
        self._ended = False

    def _look(self) -> bool:
        before, self._ended = self._ended, True
        return before

    def read(self, workspace_id: str) -> fb.Effect[list[Any]]:
        return fb.Effect.sync(
            lambda: [USER, answer(partial=False)] if self._look() else list[Any]([USER])
        )

    def read_partial(self, workspace_id: str) -> fb.Effect[AssistantRow | None]:
        return fb.Effect.sync(lambda: None if self._look() else answer(partial=True))


@pytest.mark.spec("P19")
async def test_an_answer_that_ends_while_the_history_is_read_is_in_it_once(tmp_path: Path) -> None:
    script = tmp_path / "script.json"
    script.write_text(json.dumps({"answers": [{}]}))
    scope = AppScope()
    engine = StreamEngine(
        history=FileHistory(tmp_path), provider=ScriptedProvider.from_file(script), scope=scope
    )
    history = cast("HistoryStore", EndingHistory())
    runtime = fb.Runtime()
    root = Root(tmp_path, history, engine, scope, runtime)
    api = Api(
        root,
        Hub(root, Limits()),
        outer=fb.Scope(),
        is_shutting_down=lambda: False,
        token=None,
        cookie_name="session",
        limits=Limits(),
    )
    request = Request(
        {"type": "http", "method": "GET", "headers": [], "path_params": {"workspace_id": "w1"}}
    )
    response = await api.history(request)
    await runtime.dispose()

    rows = json.loads(bytes(response.body))["rows"]
    assert [row["id"] for row in rows] == ["u", "a"]
