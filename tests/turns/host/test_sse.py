"""Event streams: snapshot first, then events; bounded for who is behind."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from streamengine.model import StreamDeltaEvent
from turns.host.config import Limits
from turns.host.sse import Subscription

from .kit import TalkativeProvider, a_server, a_site, events_of, rows_of, send, settle

ODD_TEXT = "a\u2028b\u2029c\x85d\x0be\x0cf\rg\nh\x00i\ud83dj\x1b[31m</script>\U0001f642"


def subscription(limit_bytes: int = 100) -> Subscription:
    return Subscription(b"snapshot", limit_bytes, lambda: None)


async def drained(subscription: Subscription) -> list[bytes]:
    subscription.end()
    return [frame async for frame in subscription.frames()]


# ---- what is held


async def test_the_snapshot_comes_before_what_was_pushed_earlier() -> None:
    held = subscription()
    held.push(b"1")
    held.push(b"2")

    assert await drained(held) == [b"snapshot", b"1", b"2"]


async def test_what_is_held_is_bounded() -> None:
    held = subscription(limit_bytes=10)

    assert held.push(b"12345")
    assert held.push(b"67890")
    assert held.held_bytes == 10
    assert not held.push(b"x")
    assert held.held_bytes == 0


async def test_an_event_larger_than_the_bound_reaches_who_is_not_behind() -> None:
    held = subscription(limit_bytes=10)

    assert held.push(b"x" * 1000)
    assert await drained(held) == [b"snapshot", b"x" * 1000]


async def test_the_last_word_comes_after_what_waits_and_nothing_after_it() -> None:
    held = subscription()
    held.push(b"1")
    held.end(b"bye")
    held.push(b"late")
    held.end(b"bye again")

    assert [frame async for frame in held.frames()] == [b"snapshot", b"1", b"bye"]


async def test_a_subscriber_who_left_holds_nothing() -> None:
    left: list[bool] = []
    held = Subscription(b"snapshot", 100, lambda: left.append(True))
    held.push(b"1")
    held.close()
    held.push(b"2")

    assert held.held_bytes == 0
    assert left == [True]


async def test_one_who_is_behind_gets_an_overflow_and_the_others_everything(
    tmp_path: Path,
) -> None:
    limits = Limits(subscriber_bytes=2000)
    async with a_site(tmp_path, limits=limits) as site, site.client() as client:
        slow = site.hub.subscribe("w1")
        message_id = (await send(client)).json()["messageId"]
        answer = await site.provider.next_answer()
        quick = site.hub.subscribe("w1")
        seen: list[bytes] = []
        frames = quick.frames()
        for number in range(40):
            answer.say(f"word {number} ")
            while f'"word {number} "'.encode() not in b"".join(seen[-1:]):
                seen.append(await anext(frames))
        got = [frame async for frame in slow.frames()]
        slow.close()
        again = site.hub.subscribe("w1")
        first = await anext(again.frames())

    assert [frame.partition(b"\r\n")[0] for frame in got[1:]] == [b"event: overflow"]
    text = "".join(f"word {number} " for number in range(40))
    assert message_id.encode() in first
    assert json.dumps(text).encode() in first


# ---- over HTTP


async def test_an_idle_workspace_has_an_empty_snapshot(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        first = await events.next()

    assert first.type == "snapshot"
    assert first.data == {
        "type": "snapshot",
        "workspaceId": "w1",
        "messageId": None,
        "text": "",
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
            snapshot = await late.next()
            answer.say("and after").finish()
            told = await late.until("stream-end")

    assert snapshot.data["messageId"] == message_id
    rest = "".join(event.data.get("delta", "") for event in told)
    assert snapshot.data["text"] + rest == "said before and after"


async def test_after_the_end_the_snapshot_is_empty_although_the_provider_lingers(
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
            assert (await events.next()).type == "snapshot"


def test_a_delta_is_json_on_one_line() -> None:
    event = StreamDeltaEvent(workspace_id="w1", message_id="a1", delta=ODD_TEXT, timestamp_ms=1)

    assert "\n" not in event.to_json()
    assert "\r" not in event.to_json()


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
