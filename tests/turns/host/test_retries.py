"""Failed and interrupted answers under ``fiberscope serve``: taken up without anybody asking."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamengine import retry

from .kit import Answer, Live, a_server, events_of, rows_of, send


async def finish(live: Live, answer: Answer) -> list[str]:
    """Let the answer be whole; the roles of the history then."""
    async with live.client() as client, events_of(client) as events:
        await events.next()
        answer.say("Once upon a time").finish()
        await events.until("stream-end")
        return [row["role"] for row in await rows_of(client)]


async def test_a_failed_answer_is_tried_again(tmp_path: Path) -> None:
    async with a_server(tmp_path, auto_retry=True) as live, live.client() as client:
        await send(client, "Tell me")
        (await live.provider.next_answer()).fail(ConnectionError("reset"))
        again = await live.provider.next_answer()
        assert again.request.text == "Tell me"
        assert await finish(live, again) == ["user", "assistant"]


async def test_what_a_shutdown_interrupted_is_taken_up_by_the_next_server(tmp_path: Path) -> None:
    async with a_server(tmp_path, auto_retry=True) as live, live.client() as client:
        await send(client, "Tell me")
        await live.provider.next_answer()
    async with a_server(tmp_path, auto_retry=True) as live:
        again = await live.provider.next_answer()
        assert again.request.text == "Tell me"
        assert await finish(live, again) == ["user", "assistant"]


async def test_a_stop_calls_off_a_try_that_is_waited_for(tmp_path: Path) -> None:
    async with (
        a_server(tmp_path, auto_retry=True) as live,
        live.client() as client,
        events_of(client) as events,
    ):
        await send(client, "Tell me")
        (await live.provider.next_answer()).fail(ConnectionError("reset"))
        await events.until("auto-retry-scheduled")
        await client.post("/api/workspaces/w1/stop", json={})
        abandoned = await events.next()
        assert (abandoned.type, abandoned.data["reason"]) == ("auto-retry-abandoned", "stopped")


@pytest.mark.parametrize("comes", ["anew", "again"])
async def test_a_reader_that_comes_while_a_try_is_waited_for_is_told_of_it_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, comes: str
) -> None:
    monkeypatch.setattr(retry, "FIRST_DELAY_SECONDS", 60.0)
    async with a_server(tmp_path, auto_retry=True) as live, live.client() as client:
        async with events_of(client) as events:
            await send(client, "Tell me")
            (await live.provider.next_answer()).fail(ConnectionError("reset"))
            first = (await events.until("auto-retry-scheduled"))[-1]
        ended = f"{first.data['messageId']}:end"
        cursor = ended if comes == "again" else None
        async with events_of(client, cursor=cursor) as events:
            again, caught_up = await events.until("caught-up")

            assert again.type == "auto-retry-scheduled"
            assert again.data["replay"] is True
            assert 0 < again.data["delayMs"] <= first.data["delayMs"]
            same = ("messageId", "attempt", "scheduledAt")
            assert [again.data[name] for name in same] == [first.data[name] for name in same]
            assert caught_up.data.get("cursor") == cursor
            await client.post("/api/workspaces/w1/stop", json={})
            assert (await events.next()).type == "auto-retry-abandoned"
        async with events_of(client, cursor=cursor) as events:
            assert [told.type for told in await events.until("caught-up")] == ["caught-up"]
