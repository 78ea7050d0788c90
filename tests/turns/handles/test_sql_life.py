"""Turns whose conversations and records are in one database, from one process to the next."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

import fibers as fb
from fibers.app import AppScope, close_bounded
from streamengine import StreamEngine, StreamRequest
from tests.streamengine.engine.kit import WHOLE, Answer, Line, Provider, text
from turns import TurnManager

from .backends import Backend, InDatabase

pytest.importorskip("sqlalchemy", reason="the extra `sql` is not installed: NOTHING of it was run")

from streamengine.history.sql import SqlHistory
from turns.handles.sql import SqlTurnStore

pytestmark = pytest.mark.lifecycle


@asynccontextmanager
async def process(url: str, *answers: Answer) -> AsyncGenerator[tuple[StreamEngine, TurnManager]]:
    """One life of a process on this database; it ends in order, as a shutdown does."""
    async with fb.Scope() as outer:
        history = await outer.provide(SqlHistory.open(url))
        scope = AppScope()
        engine = StreamEngine(history=history, provider=Provider(*answers), scope=scope)
        store = await SqlTurnStore.open(history)
        turns = TurnManager(engine=engine, store=store, scope=scope)
        try:
            await turns.start(scope)
            yield engine, turns
        finally:
            assert await close_bounded(scope)


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.spec("T14", "T16", "T9")
async def test_turns_of_one_process_are_reconciled_by_the_next(backend: Backend) -> None:
    assert isinstance(backend, InDatabase)
    url = backend.place.url
    said = fb.Deferred[None]()
    line = Line()

    async with process(url, WHOLE, line) as (engine, turns):
        whole = await turns.create_turn(owner="ada", workspace_id="w1", prompt="Count them")
        assert (await turns.wait(whole.handle_id)).final_message == "Hello there"
        engine.events.subscribe(
            lambda event: event.type == "stream-delta" and said.done_unsafe(fb.Success(None))
        )
        cut = await turns.create_turn(owner="ada", workspace_id="w2", prompt="And these")
        waits = await turns.create_turn(owner="bob", workspace_id="w2", prompt="And those")
        line.give(text("One, "))
        await said

    async with process(url, WHOLE) as (engine, turns):
        assert (await turns.wait(waits.handle_id)).final_message == "Hello there"
        records = {record.handle_id: record for record in await turns.list()}

        assert {handle: (r.status, r.cause) for handle, r in records.items()} == {
            whole.handle_id: ("completed", "correlated-stream-end"),
            cut.handle_id: ("interrupted", "stale-restart"),
            waits.handle_id: ("completed", "correlated-stream-end"),
        }
        assert [r.handle_id for r in await turns.list(owner="bob")] == [waits.handle_id]
        rows = await engine.history.read("w2")
        assert [row.role for row in rows] == ["user", "assistant", "user", "assistant"]

    async with process(url, WHOLE) as (_, turns):
        assert {record.handle_id: record for record in await turns.list()} == records


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"], indirect=True)
@pytest.mark.spec("T17")
async def test_streams_of_others_go_on_beside_the_turns(backend: Backend) -> None:
    """One pool of connections for both, also where many are at work."""
    assert isinstance(backend, InDatabase)

    async with process(backend.place.url, WHOLE) as (engine, turns):

        @fb.effect(raises=Exception)
        async def both(number: int) -> str:
            handle = await turns.create_turn(
                owner="ada", workspace_id=f"w{number}", prompt="Count them"
            )
            other = await engine.start_stream(f"x{number}", StreamRequest(text="Hi"))
            await other.completion
            return (await turns.wait(handle.handle_id)).status

        statuses = await fb.for_each(range(30), both, concurrency=10)

        assert set(statuses) == {"completed"}
        assert len(await turns.list()) == 30
