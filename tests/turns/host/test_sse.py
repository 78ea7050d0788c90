"""Event streams: what was missed, then what happens; bounded for who is behind."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.requests import HTTPConnection

import fibers as fb
from fibers.testing import TestClock
from streamengine import FileHistory
from streamengine.events import Cursor
from streamengine.model import StreamAbortEvent, StreamDeltaEvent
from turns.host.api import _cursor
from turns.host.config import Limits
from turns.host.hub import RECENT_ROWS, REMEMBERED_ENDS, Hub, Subscription, Told

from .kit import (
    Answer,
    Events,
    Live,
    TalkativeProvider,
    a_server,
    a_site,
    events_of,
    rows_of,
    send,
    settle,
)
from .kit import Told as Event

COUNT = REMEMBERED_ENDS + 50
ODD_TEXT = "a\u2028b\u2029c\x85d\x0be\x0cf\rg\nh\x00i\ud83dj\x1b[31m</script>\U0001f642"


# ---- what is held


async def test_one_who_is_behind_gets_what_waits_and_an_overflow_and_the_others_everything(
    tmp_path: Path,
) -> None:
    limits = Limits(subscriber_bytes=2000)
    async with a_site(tmp_path, limits=limits) as site, site.client() as client:
        slow = site.hub.subscribe("w1")
        slowly = slow.told()
        await anext(slowly)
        message_id = (await send(client)).json()["messageId"]
        answer = await site.provider.next_answer()
        quick = site.hub.subscribe("w1")
        quickly = quick.told()
        seen: list[str] = []
        while "caught-up" not in seen:
            seen.append((await anext(quickly)).type)
        deltas: list[str] = []
        for number in range(40):
            answer.say(f"word {number} ")
            while len(deltas) <= number:
                told = await anext(quickly)
                if told.type == "stream-delta":
                    deltas.append(json.loads(told.data)["delta"])
        got = [told async for told in slowly]
        slow.close()
        cursor = Cursor.parse([told.cursor for told in got if told.cursor][-1] or "")
        again = site.hub.subscribe("w1", cursor)
        missed = [told async for told in _until_caught_up(again)]
        for reader in (quick, again):
            reader.close()

    text = "".join(f"word {number} " for number in range(40))
    assert "".join(deltas) == text
    assert got[-1].type == "overflow"
    assert cursor is not None
    assert cursor.message_id == message_id
    first = [json.loads(told.data).get("delta", "") for told in got]
    rest = [json.loads(told.data).get("delta", "") for told in missed]
    assert 0 < len("".join(first)) < len(text)
    assert "".join(first + rest) == text


async def _until_caught_up(reader: Subscription) -> AsyncIterator[Told]:
    async for told in reader.told():
        yield told
        if told.type == "caught-up":
            return


async def test_a_reader_who_left_holds_nothing(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        reader = site.hub.subscribe("w1")
        told = reader.told()
        await anext(told)
        reader.close()
        reader.close()
        await send(client)
        (await site.provider.next_answer()).say("x").finish()

        assert [message async for message in told] == []
        assert site.hub.subscriber_count == 0


async def test_the_ends_that_are_remembered_are_bounded(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        for number in range(COUNT + 1):
            site.root.engine.events.emit(
                StreamAbortEvent(
                    workspace_id=f"w{number}", message_id=f"a{number}", abort_reason="user"
                )
            )

        assert len(site.hub._ends) == REMEMBERED_ENDS
        last = await site.hub.end_of(f"w{COUNT}", f"a{COUNT}")
        assert isinstance(last, StreamAbortEvent)
        assert last.abort_reason == "user"  # as it was told


# ---- over HTTP


def said(events: list[Event]) -> str:
    """The text that deltas add up to."""
    return "".join(event.data["delta"] for event in events if event.type == "stream-delta")


async def test_in_an_idle_workspace_a_reader_is_caught_up_at_once(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        first = await events.next()

    assert first.data == {
        "type": "caught-up",
        "workspaceId": "w1",
        "replay": "live",
        "hasOlderHistory": False,
    }


async def test_events_come_in_order_and_are_the_data(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        await events.next()
        message_id = (await send(client)).json()["messageId"]
        (await live.provider.next_answer()).say("one ", "two").finish()
        told = await events.until("stream-end")

    assert [event.type for event in told] == [
        "stream-start",
        "stream-delta",
        "stream-delta",
        "stream-end",
    ]
    assert all(event.data["type"] == event.type for event in told)
    assert all(event.data["messageId"] == message_id for event in told)
    assert [event.data["delta"] for event in told[1:3]] == ["one ", "two"]
    assert told[-1].data["parts"][0]["text"] == "one two"


async def test_who_comes_late_misses_nothing_and_gets_nothing_twice(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as early:
        await early.next()
        message_id = (await send(client)).json()["messageId"]
        answer = (await live.provider.next_answer()).say("said ", "before ")
        for _ in range(3):
            await early.next()
        async with events_of(client) as late:
            replayed = await late.until("caught-up")
            answer.say("and after").finish()
            told = await late.until("stream-end")

    *events, caught_up = replayed
    assert [event.type for event in events] == ["stream-start", "stream-delta", "stream-delta"]
    assert all(event.data["replay"] and event.data["messageId"] == message_id for event in events)
    assert caught_up.data["replay"] == "full"
    assert caught_up.cursor == events[-1].cursor == caught_up.data["cursor"]
    assert said([*replayed, *told]) == "said before and after"


async def test_after_the_end_nothing_is_live_although_the_provider_lingers(
    tmp_path: Path,
) -> None:
    # Its terminal event is told: a late subscriber would wait for it in vain.
    async with a_site(tmp_path) as site, site.client() as client:
        ended: list[object] = []
        site.root.engine.events.subscribe(
            lambda event: (
                ended.append(site.hub.live_message("w1")) if event.type == "stream-end" else None
            )
        )
        await send(client)
        (await site.provider.next_answer()).say("done").finish()
        await settle(site)

    assert ended == [None]


async def test_workspaces_hear_only_of_themselves(tmp_path: Path) -> None:
    async with (
        a_server(tmp_path) as live,
        live.client() as client,
        events_of(client, "w1") as here,
        events_of(client, "w2") as there,
    ):
        await here.next()
        await there.next()
        await send(client, workspace="w2")
        (await live.provider.next_answer()).say("not for w1").finish()
        await there.until("stream-end")
        await send(client, workspace="w1")
        (await live.provider.next_answer()).say("for w1").finish()
        told = await here.until("stream-end")

    assert {event.data["workspaceId"] for event in told} == {"w1"}


async def test_odd_text_arrives_as_it_was_said(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        await events.next()
        await send(client)
        (await live.provider.next_answer()).say(ODD_TEXT).finish()
        told = await events.until("stream-end")
        rows = await rows_of(client)

    assert told[1].data["delta"] == ODD_TEXT
    assert rows[1]["parts"][0]["text"] == ODD_TEXT


async def test_a_failure_is_told(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        await events.next()
        await send(client)
        (await live.provider.next_answer()).say("x").fail(RuntimeError("no more"))
        told = await events.until("error")

    assert told[-1].data["error"] == "no more"


async def test_a_client_that_leaves_gives_its_place_back(tmp_path: Path) -> None:
    async with (
        a_server(tmp_path, limits=Limits(subscribers=1)) as live,
        live.client() as client,
    ):
        async with events_of(client) as events:
            await events.next()
            assert (await client.get("/api/workspaces/w1/events")).status_code == 429
        while (await client.head("/api/workspaces/w1/events")).status_code == 429:
            pass
        async with events_of(client) as events:
            assert (await events.next()).type == "caught-up"


def test_a_delta_is_json_on_one_line() -> None:
    event = StreamDeltaEvent(workspace_id="w1", message_id="a1", delta=ODD_TEXT, timestamp_ms=1)

    assert "\n" not in event.to_json()
    assert "\r" not in event.to_json()


# ---- coming again


@pytest.mark.spec("W12")
async def test_who_comes_again_with_its_cursor_gets_the_rest_and_nothing_twice(
    tmp_path: Path,
) -> None:
    async with a_server(tmp_path) as live, live.client() as client:
        async with events_of(client) as first:
            await first.next()
            await send(client)
            answer = (await live.provider.next_answer()).say("one ", "two ")
            seen = [await first.next() for _ in range(3)]
        answer.say("three ")
        async with events_of(client) as watcher:
            await hears(watcher, "one two three ")
            async with events_of(client, cursor=seen[-1].cursor) as second:
                missed = await second.until("caught-up")
                answer.say("four").finish()
                rest = await second.until("stream-end")

    assert missed[-1].data["replay"] == "since"
    assert [event.type for event in missed] == ["stream-start", "stream-delta", "caught-up"]
    assert missed[0].cursor == ""  # a start that is told again leads nobody back
    assert said([*seen, *missed, *rest]) == "one two three four"


async def test_a_cursor_ahead_of_its_message_makes_nobody_deaf(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client:
        message_id = (await send(client)).json()["messageId"]
        answer = (await live.provider.next_answer()).say("one ")
        async with events_of(client) as watcher:
            await hears(watcher, "one ")
            async with events_of(client, cursor=f"{message_id}:{10**16 - 1}") as events:
                await events.until("caught-up")
                answer.say("two ").finish()
                told = await events.until("stream-end")

    assert said(told) == "two "


async def hears(events: Events, text: str) -> None:
    """Wait until a new reader has heard this much of the live message."""
    heard: list[Event] = []
    while said(heard) != text:
        heard.append(await events.next())


async def ended_meanwhile(
    tmp_path: Path, end: Callable[[Live, httpx.AsyncClient, Answer, str], Awaitable[None]]
) -> tuple[list[Event], str]:
    """A reader has heard "half "; the answer ends while it is away; what it hears then."""
    async with a_server(tmp_path) as live, live.client() as client:
        async with events_of(client) as first:
            await first.next()
            message_id = (await send(client)).json()["messageId"]
            answer = (await live.provider.next_answer()).say("half ")
            seen = [await first.next() for _ in range(2)]
        async with events_of(client) as watcher:
            await watcher.until("caught-up")
            await end(live, client, answer, message_id)
            while (await watcher.next()).type not in TERMINALS:
                pass
        async with events_of(client, cursor=seen[-1].cursor) as second:
            return await second.until("caught-up"), message_id


TERMINALS = {"stream-end", "stream-abort", "error"}


async def finishes(_live: Live, _client: httpx.AsyncClient, answer: Answer, _id: str) -> None:
    answer.say("and whole").finish()


async def is_stopped(_live: Live, client: httpx.AsyncClient, answer: Answer, _id: str) -> None:
    await client.post("/api/workspaces/w1/stop", json={})


async def is_dropped(_live: Live, client: httpx.AsyncClient, answer: Answer, _id: str) -> None:
    await client.post("/api/workspaces/w1/stop", json={"abandonPartial": True})


async def fails(_live: Live, _client: httpx.AsyncClient, answer: Answer, _id: str) -> None:
    answer.fail(RuntimeError("no more"))


@pytest.mark.spec("R25", "W13")
@pytest.mark.parametrize(
    ("end", "kind", "text", "why"),
    [
        (finishes, "stream-end", "half and whole", None),
        (is_stopped, "stream-abort", "half ", "user"),
        (is_dropped, "stream-abort", "", "user"),
        (fails, "error", "half ", "no more"),
    ],
)
async def test_an_end_that_was_missed_is_told_with_all_that_was_said(
    tmp_path: Path, end: Any, kind: str, text: str, why: str | None
) -> None:
    told, message_id = await ended_meanwhile(tmp_path, end)
    terminal, caught_up = told

    assert terminal.type == kind
    assert terminal.data["messageId"] == message_id
    assert terminal.data["replay"] is True
    assert "".join(part["text"] for part in terminal.data["parts"]) == text
    assert terminal.data.get("abortReason", terminal.data.get("error")) == why
    assert terminal.cursor == caught_up.cursor == f"{message_id}:end"
    assert caught_up.data["replay"] == "live"
    assert caught_up.data["hasOlderHistory"] is True


@pytest.mark.spec("R25")
async def test_an_end_is_told_again_by_the_next_process(tmp_path: Path) -> None:
    """From the row: the one that heard it is gone."""
    async with a_server(tmp_path) as live, live.client() as client:
        async with events_of(client) as first:
            await first.next()
            await send(client)
            (await live.provider.next_answer()).say("so far")
            seen = [await first.next() for _ in range(2)]
        await live.stop()
    async with (
        a_server(tmp_path) as live,
        live.client() as client,
        events_of(client, cursor=seen[-1].cursor) as second,
    ):
        terminal, _ = await second.until("caught-up")

    assert (terminal.type, terminal.data["abortReason"]) == ("stream-abort", "system")
    assert terminal.data["parts"][0]["text"] == "so far"


async def test_an_end_that_was_heard_is_not_told_again(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client:
        async with events_of(client) as first:
            await first.next()
            await send(client)
            (await live.provider.next_answer()).say("x").finish()
            seen = await first.until("stream-end")
        async with events_of(client, cursor=seen[-1].cursor) as second:
            told = await second.next()

    assert told.type == "caught-up"
    assert told.cursor == seen[-1].cursor


@pytest.mark.spec("R25")
async def test_one_answer_later_the_old_end_is_told_and_the_new_one_in_full(
    tmp_path: Path,
) -> None:
    async with a_server(tmp_path) as live, live.client() as client:
        async with events_of(client) as first:
            await first.next()
            old = (await send(client)).json()["messageId"]
            await live.provider.next_answer()
            seen = [await first.next()]  # its start only
        new = (await send(client)).json()["messageId"]
        (await live.provider.next_answer()).say("new")
        async with events_of(client) as watcher:
            await hears(watcher, "new")
        async with events_of(client, cursor=seen[-1].cursor) as second:
            told = await second.until("caught-up")

    assert [(event.type, event.data.get("messageId")) for event in told[:2]] == [
        ("stream-abort", old),
        ("stream-start", new),
    ]
    assert told[-1].data["replay"] == "full"


def many_rows(state: Path, count: int) -> None:
    """A conversation with that many rows: a question, an answer, and so on."""
    place = state / "workspaces" / "w1"
    place.mkdir(0o700, parents=True)
    rows = [
        {
            "role": "user" if number % 2 == 0 else "assistant",
            "id": f"m_{number}",
            "parts": [{"type": "text", "text": f"words {number}"}],
            "metadata": {"historySequence": number},
        }
        for number in range(count)
    ]
    (place / "chat.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("message_id", ["a_unknown", "m_1"])
async def test_a_cursor_of_nothing_near_begins_the_reader_anew_and_reads_no_more_than_the_tail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, message_id: str
) -> None:
    """Of a message that nobody knows, or that is far back."""
    many_rows(tmp_path, RECENT_ROWS * 2)
    # The last that did not become whole; all since have.
    note = {"lastEnd": {"messageId": "m_1", "afterSequence": 0, "errorType": "network"}}
    (tmp_path / "workspaces" / "w1" / "note.json").write_text(json.dumps(note))
    async with a_server(tmp_path) as live, live.client() as client:

        def refuse(*_what: object, **_how: object) -> Any:
            raise AssertionError("all that was ever said is read")

        monkeypatch.setattr(FileHistory, "read", refuse)
        async with events_of(client, cursor=f"{message_id}:5") as events:
            caught_up = await events.next()
        async with events_of(client, cursor=f"m_{RECENT_ROWS * 2 - 1}:5") as events:
            (last, _) = await events.until("caught-up")

    assert caught_up.type == "caught-up"
    assert "cursor" not in caught_up.data
    assert (caught_up.data["replay"], caught_up.data["hasOlderHistory"]) == ("live", True)
    assert (last.type, last.data["parts"][0]["text"]) == (
        "stream-end",
        f"words {RECENT_ROWS * 2 - 1}",
    )


async def test_a_reader_that_begins_anew_stands_nowhere_on_each_kind_of_connection(
    tmp_path: Path,
) -> None:
    many_rows(tmp_path, RECENT_ROWS)
    async with a_site(tmp_path) as site:
        reader = site.hub.subscribe("w1", Cursor("a_unknown", 5))
        told = reader.told()
        caught_up = await anext(told)
        await told.aclose()
        reader.close()

    assert b"\nid: \r\n" in b"\n" + caught_up.as_sse  # a browser forgets what it came with
    assert json.loads(caught_up.as_text)["cursor"] is None


async def test_what_was_dropped_last_is_told_also_in_a_long_conversation(tmp_path: Path) -> None:
    """It has no row, and the note says that it needs none."""
    many_rows(tmp_path, RECENT_ROWS * 2)
    async with a_server(tmp_path) as live, live.client() as client:
        async with events_of(client) as first:
            await first.until("caught-up")
            message_id = (await send(client)).json()["messageId"]
            await live.provider.next_answer()
            seen = [await first.next()]
            await client.post("/api/workspaces/w1/stop", json={"abandonPartial": True})
        async with events_of(client, cursor=seen[-1].cursor) as second:
            terminal, caught_up = await second.until("caught-up")

    assert (terminal.type, terminal.data["messageId"]) == ("stream-abort", message_id)
    assert caught_up.cursor == f"{message_id}:end"


@pytest.mark.parametrize("cursor", ["nonsense", "a1", "a1:x", "../x:5", "a1:1:1"])
async def test_what_is_no_cursor_counts_as_none(tmp_path: Path, cursor: str) -> None:
    async with (
        a_server(tmp_path) as live,
        live.client() as client,
        events_of(client, cursor=cursor) as events,
    ):
        told = await events.next()

    assert told.type == "caught-up"
    assert "cursor" not in told.data


async def test_a_page_may_send_its_cursor_in_the_query(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        request = HTTPConnection(
            {"type": "http", "headers": [], "query_string": b"cursor=a1:5", "path": "/"}
        )

        assert _cursor(request) == Cursor("a1", 5)
        assert site.hub.subscriber_count == 0


async def test_a_reader_of_an_idle_workspace_gets_heartbeats(tmp_path: Path) -> None:
    clock = TestClock()
    runtime = fb.Runtime(clock=clock)
    async with a_site(tmp_path) as site:
        hub = Hub(dataclasses.replace(site.root, runtime=runtime), Limits())
        reader = hub.subscribe("w1")
        told = reader.told()
        await anext(told)
        beats: list[str] = []

        async def reads() -> None:
            beats.extend([message.type async for message in told])

        reading = asyncio.create_task(reads())
        await runtime.run(clock.adjust(15))
        reader.close()
        await reading
        hub.close()
    await runtime.dispose()

    assert beats == ["heartbeat"] * 3


@pytest.mark.lifecycle
async def test_every_open_stream_gets_its_terminal_event_when_the_server_stops(
    tmp_path: Path,
) -> None:
    provider: TalkativeProvider
    async with (
        a_server(tmp_path) as live,
        live.client() as client,
        events_of(client, "w1") as first,
        events_of(client, "w1") as second,
        events_of(client, "w2") as other,
        events_of(client, "w3") as idle,
    ):
        provider = live.provider
        streams = [first, second, other, idle]
        for stream in streams:
            await stream.next()
        for workspace in ("w1", "w2"):
            await send(client, workspace=workspace)
            (await provider.next_answer()).say("so far")
        for stream in (first, second, other):
            await stream.until("stream-delta")
        await live.stop()
        rests = [await stream.rest() for stream in streams]

    kinds = [[event.type for event in rest] for rest in rests]
    assert kinds == [
        ["stream-abort", "shutting-down"],
        ["stream-abort", "shutting-down"],
        ["stream-abort", "shutting-down"],
        ["shutting-down"],
    ]
    assert {rest[0].data["abortReason"] for rest in rests[:3]} == {"system"}
    lines = (tmp_path / "workspaces/w1/chat.jsonl").read_text().splitlines()
    assert json.loads(lines[1])["metadata"]["partial"] is True
    assert not (tmp_path / "workspaces/w1/partial.json").exists()
