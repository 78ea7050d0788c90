"""The host on a loop whose every task is a fiber: uvicorn, anyio and httpx know nothing of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

import fibers as fb
from tests.turns.host.kit import a_server, events_of, send


@pytest.mark.lifecycle
@pytest.mark.spec("TF10")
async def test_an_event_stream_gets_its_terminal_event_at_shutdown(tmp_path: Path) -> None:
    """Also where the server's own tasks belong to a scope, which closes after the server."""
    loop = asyncio.get_running_loop()
    async with fb.Scope("parallel", name="service") as scope:
        loop.set_task_factory(fb.task_factory(scope=scope))
        try:
            async with (
                a_server(tmp_path) as server,
                server.client() as client,
                events_of(client) as events,
            ):
                await send(client)
                answer = await server.provider.next_answer()
                answer.say("some", " words")
                await events.until("stream-delta")
                shown = fb.dump()
                await server.stop()
                rest = [told.type for told in await events.rest()]
        finally:
            loop.set_task_factory(None)

    assert "EventStream.__call__" in shown.partition("Scope 'service'")[2]
    assert rest[-2:] == ["stream-abort", "shutting-down"]
    assert rest.count("stream-abort") == 1
    assert scope.finalizer_count == 0


@pytest.mark.spec("TF10")
async def test_serve_leaves_the_loops_task_factory_alone(tmp_path: Path) -> None:
    """It is for who asks for it."""
    async with a_server(tmp_path):
        assert asyncio.get_running_loop().get_task_factory() is None


@pytest.mark.lifecycle
@pytest.mark.spec("TF10")
async def test_the_close_of_the_scope_ends_a_server_that_is_hosted_whole(tmp_path: Path) -> None:
    """The connection too, and nothing is left in the scope."""
    loop = asyncio.get_running_loop()
    scope = fb.Scope("parallel", name="service")
    loop.set_task_factory(fb.task_factory(scope=scope))
    try:
        async with (
            a_server(tmp_path) as server,
            server.client() as client,
            events_of(client) as events,
        ):
            await events.next()
            hosted = scope.finalizer_count
            loop.set_task_factory(None)
            await scope.close()
            await server.stop()
    finally:
        loop.set_task_factory(None)

    assert hosted > 0
    assert scope.finalizer_count == 0
