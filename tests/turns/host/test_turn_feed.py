"""Turns in event streams: in order with the streams, each workspace for itself, the tree first."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, final

import pytest

from streamengine.events import Cursor
from streamengine.model import Finish, ToolCall
from turns import TurnHandle
from turns.events import SteeringInjectedEvent, TurnErrorEvent
from turns.holds.permission import PermissionCard
from turns.host.config import Limits
from turns.host.hub import Subscription
from turns.host.turn_messages import RECORD_CHARACTERS, of_event

from .kit import BOUND_SECONDS, Answer, Site, a_server, a_site, events_of, until
from .kit import Told as Event
from .test_sse import ODD_TEXT
from .test_websocket import a_socket

pytestmark = pytest.mark.lifecycle

WORKSPACES = "/api/workspaces"


@final
class Reader:
    """Somebody who follows a workspace, with the tree that the messages add up to."""

    def __init__(self, subscription: Subscription) -> None:
        self.subscription = subscription
        self._told = subscription.told()
        self.seen: list[dict[str, Any]] = []
        self.cursors: list[str | None] = []
        self.tree: dict[str, Any] = {}

    async def next(self) -> dict[str, Any]:
        told = await asyncio.wait_for(anext(self._told), BOUND_SECONDS)
        message: dict[str, Any] = json.loads(told.data)
        assert message["type"] == told.type
        self.seen.append(message)
        self.cursors.append(told.cursor)
        if told.type == "turns":
            self.tree = {}
        for turn_id in message.get("gone", ()):
            del self.tree[turn_id]
        self.tree.update({node["id"]: node for node in message.get("nodes", ())})
        return message

    async def until(self, kind: str, **fields: Any) -> dict[str, Any]:
        """Read up to the next message of this type with these fields."""
        while True:
            message = await self.next()
            if message["type"] == kind and fields.items() <= message.items():
                return message

    async def until_settled(self) -> None:
        """Read up to the change of the tree that the end of a turn brings about."""
        while (await self.until("turn.record"))["record"].get("cause") is None:
            pass
        await self.next()

    async def until_said(self, text: str) -> None:
        """Read until the deltas, told again or not, add up to this."""
        while self.said != text:
            await self.next()

    @property
    def said(self) -> str:
        return "".join(m["delta"] for m in self.seen if m["type"] == "stream-delta")

    async def rest(self) -> list[dict[str, Any]]:
        """All that is told up to the end of the stream."""
        async with asyncio.timeout(BOUND_SECONDS):
            return [json.loads(told.data) async for told in self._told]

    @property
    def types(self) -> list[str]:
        return [message["type"] for message in self.seen]


@asynccontextmanager
async def a_reader(
    site: Site, workspace: str = "w1", cursor: Cursor | None = None
) -> AsyncGenerator[Reader]:
    """One who is caught up."""
    reader = Reader(site.hub.subscribe(workspace, cursor))
    try:
        await reader.until("caught-up")
        yield reader
    finally:
        reader.subscription.close()


async def create(
    site: Site, prompt: str = "Go", workspace: str = "w1", *, owner: str = "w1"
) -> TurnHandle:
    return await site.turns.manager.create_turn(owner=owner, workspace_id=workspace, prompt=prompt)


def call(answer: Answer, tool: str, **given: Any) -> None:
    """The answer is this call."""
    answer.say(ToolCall(tool_call_id=f"c-{tool}", tool_name=tool, input=given))
    answer.say(Finish(finish_reason="tool-calls", raw_finish_reason="tool_calls"))
    answer.cut_off()


async def question(site: Site, workspace: str = "w1") -> PermissionCard:
    """The question that waits, once there is one."""
    desk = site.turns.open_turns.workspaces.get(workspace).permissions
    await until(lambda: desk.card is not None)
    assert desk.card is not None
    return desk.card


def in_order(types: Sequence[str], *expected: str) -> bool:
    """Whether these are among the types, one after the other."""
    left = iter(types)
    return all(each in left for each in expected)


# ---- what happens


async def test_what_happens_is_told_in_the_order_in_which_it_does(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as reader:
        handle = await create(site)
        call(await site.provider.next_answer(), "shell", command="true")
        asked = await reader.until("permission.asked")
        answering = site.turns.manager.answer_permission(handle.handle_id, asked["requestId"], True)
        assert await answering
        (await site.provider.next_answer()).say("Done.").finish()
        await reader.until_settled()

        record = await site.turns.manager.get(handle.handle_id)
        records = [m["record"] for m in reader.seen if m["type"] == "turn.record"]

    assert in_order(
        reader.types,
        "turn.record",
        "turn.start",
        "stream-start",
        "tool-call-execution-start",
        "tool.start",
        "permission.asked",
        "permission.answered",
        "tool.end",
        "tool-call-end",
        "stream-delta",
        "stream-end",
        "turn.end",
        "turn.record",
    )
    assert [r["status"] for r in records] == ["queued", "starting", "running", "completed"]
    assert records[-1] == record.to_mapping()
    assert {key: asked[key] for key in ("turnId", "question", "subject")} == {
        "turnId": handle.turn_id,
        "question": "Run: true",
        "subject": "shell",
    }
    (node,) = reader.tree.values()
    assert (node["state"], node["cause"]) == ("completed", "correlated-stream-end")


async def test_a_long_prompt_and_a_long_answer_are_not_told_with_each_change(
    tmp_path: Path,
) -> None:
    prompt, answer = "p" * 500_000, "a" * 50_000
    async with a_site(tmp_path) as site, a_reader(site) as reader:
        handle = await create(site, prompt)
        (await site.provider.next_answer()).say(answer).finish()
        await reader.until_settled()

        whole = await site.turns.manager.get(handle.handle_id)
        messages = [m for m in reader.seen if m["type"] == "turn.record"]

    assert (whole.prompt, whole.final_message) == (prompt, answer)
    assert [m["record"]["prompt"] for m in messages] == [prompt[:RECORD_CHARACTERS]] * len(messages)
    assert [m["cut"] for m in messages[:-1]] == [["prompt"]] * (len(messages) - 1)
    assert messages[-1]["cut"] == ["prompt", "finalMessage"]
    assert messages[-1]["record"]["finalMessage"] == answer[:RECORD_CHARACTERS]


async def test_a_record_that_is_short_is_told_whole(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as reader:
        await create(site, "p" * RECORD_CHARACTERS)
        message = await reader.until("turn.record")

    assert message["record"]["prompt"] == "p" * RECORD_CHARACTERS
    assert "cut" not in message


async def test_a_change_of_the_tree_comes_right_after_what_has_brought_it_about(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as reader:
        await create(site)
        call(await site.provider.next_answer(), "subturn", prompt="Look", agent="main")
        (await site.provider.next_answer()).say("Found.").finish()
        (await site.provider.next_answer()).say("Done.").finish()
        await reader.until_settled()

    changes = [
        before
        for before, kind in zip(reader.types, reader.types[1:], strict=False)
        if kind == "turns.changed"
    ]
    # One record is written while the turn goes on.
    assert sorted(changes) == sorted(
        ["subturn.spawn", "subturn.end", "turn.end", *["turn.record"] * 4]
    )
    root, child = reader.tree.values()
    assert (child["parentId"], child["prompt"], child["state"]) == (root["id"], "Look", "completed")


async def test_an_answer_says_what_was_said_and_the_end_of_a_turn_drops_its_question(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as reader:
        handle = await create(site)
        call(await site.provider.next_answer(), "shell", command="false")
        first = await reader.until("permission.asked")
        await site.turns.manager.answer_permission(handle.handle_id, first["requestId"], False)
        denied = await reader.until("permission.answered")
        call(await site.provider.next_answer(), "shell", command="false")
        second = await reader.until("permission.asked")
        await site.turns.manager.interrupt(handle.handle_id, by="ada")
        dropped = await reader.until("permission.dropped")

    assert (denied["requestId"], denied["allowed"]) == (first["requestId"], False)
    assert dropped["requestId"] == second["requestId"] != first["requestId"]
    (node,) = reader.tree.values()
    assert (node["state"], node["reason"]) == ("interrupted", "interrupted by ada")
    assert "question" not in node


def test_the_error_of_a_turn_is_not_taken_for_the_end_of_a_stream() -> None:
    error = TurnErrorEvent(workspace_id="w1", turn_id="t1", error="it broke", timestamp_ms=5)
    other = SteeringInjectedEvent(workspace_id="w1", turn_id="t1", messages=1)

    assert of_event(error).to_mapping() == {
        "type": "turn.error",
        "workspaceId": "w1",
        "turnId": "t1",
        "timestamp": 5,
        "error": "it broke",
    }
    assert of_event(other) is other


async def test_a_workspace_hears_of_the_turns_that_run_in_it_and_of_no_others(
    tmp_path: Path,
) -> None:
    """Whose they are is another matter."""
    async with (
        a_site(tmp_path) as site,
        a_reader(site, "w1") as here,
        a_reader(site, "w2") as there,
    ):
        await create(site, "For w2", "w2", owner="w1")
        call(await site.provider.next_answer(), "shell", command="true")
        await there.until("permission.asked")
        await create(site, "For w1", "w1", owner="w2")
        (await site.provider.next_answer()).say("Done.").finish()
        await here.until_settled()
        async with a_reader(site, "w3") as elsewhere:
            pass

    assert {message["workspaceId"] for message in here.seen} == {"w1"}
    assert {message["workspaceId"] for message in there.seen} == {"w2"}
    assert [node["prompt"] for node in here.tree.values()] == ["For w1"]
    assert [node["prompt"] for node in there.tree.values()] == ["For w2"]
    assert elsewhere.types == ["caught-up"]


async def test_odd_text_arrives_as_it_was_said(tmp_path: Path) -> None:
    """Half an emoji has no UTF-8."""
    async with a_site(tmp_path) as site, a_reader(site) as reader:
        await create(site, ODD_TEXT)
        (await site.provider.next_answer()).say("Done.").finish()
        await reader.until_settled()
        async with a_reader(site) as late:
            pass

    start = next(message for message in reader.seen if message["type"] == "turn.start")
    assert start["prompt"] == ODD_TEXT
    assert [node["prompt"] for node in late.tree.values()] == [ODD_TEXT]
    assert late.tree == reader.tree


# ---- coming late, and coming again


async def test_a_newcomer_gets_the_tree_as_it_is_then_before_it_is_caught_up(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as early:
        handle = await create(site)
        call(await site.provider.next_answer(), "shell", command="true")
        await early.until("permission.asked")
        await early.next()
        async with a_reader(site) as late:
            assert late.tree == early.tree
            card = await question(site)
            await site.turns.manager.answer_permission(handle.handle_id, card.request_id, True)
            (await site.provider.next_answer()).say("Done.").finish()
            for reader in (early, late):
                await reader.until_settled()

    assert early.types.count("turns") == 0
    assert late.types.count("turns") == 1
    at = late.types.index("turns")
    assert late.types[at + 1] == "caught-up"
    # All before is the stream, told again; no turn is told twice.
    assert {m.get("replay") for m in late.seen[:at]} == {True}
    assert early.tree == late.tree
    assert late.seen[at + 2 :] == early.seen[-len(late.seen[at + 2 :]) :]


async def test_who_comes_again_with_its_cursor_gets_the_tree_anew_and_nothing_twice(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as watcher:
        await create(site)
        answer = await site.provider.next_answer()
        answer.say("one ")
        async with a_reader(site) as first:
            await first.until_said("one ")
            place = [cursor for cursor in first.cursors if cursor][-1]
        await create(site, "Next")
        answer.say("two ")
        await watcher.until_said("one two ")
        async with a_reader(site, cursor=Cursor.parse(place)) as again:
            missed = len(again.seen)
            answer.say("three").finish()
            await again.until_settled()

    assert again.types[:missed] == ["stream-start", "stream-delta", "turns", "caught-up"]
    assert [node["prompt"] for node in again.seen[missed - 2]["nodes"]] == ["Go", "Next"]
    assert again.said == "two three"


async def test_messages_of_turns_move_no_cursor(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as reader:
        await create(site)
        (await site.provider.next_answer()).say("Done.").finish()
        await reader.until_settled()

    moved = {kind for kind, place in zip(reader.types, reader.cursors, strict=True) if place}
    assert moved == {"stream-start", "stream-delta", "stream-end"}


async def test_after_a_restart_the_tree_has_the_turns_that_were_there(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        done = await create(site, "Done before")
        (await site.provider.next_answer()).say("Done.").finish()
        await site.turns.manager.wait(done.handle_id)
        await create(site, "Cut off")
        await site.provider.next_answer()
        await create(site, "Queued")

    async with a_site(tmp_path) as site, a_reader(site) as reader:
        nodes = list(reader.tree.values())
        answer = await site.provider.next_answer()
        call(answer, "shell", command="true")
        asked = await reader.until("permission.asked")
        await reader.next()

        assert asked["turnId"] == nodes[2]["id"]
        assert reader.tree[nodes[2]["id"]]["state"] == "waiting"

    assert [node["prompt"] for node in nodes] == ["Done before", "Cut off", "Queued"]
    assert [node["state"] for node in nodes[:2]] == ["completed", "interrupted"]
    assert nodes[1]["cause"] == "stale-restart"


# ---- bounds, and the end


async def test_one_who_is_behind_gets_an_overflow_and_comes_again_to_the_whole_tree(
    tmp_path: Path,
) -> None:
    limits = Limits(subscriber_bytes=2000)
    async with a_site(tmp_path, limits=limits) as site, a_reader(site) as slow:
        await create(site)
        answer = await site.provider.next_answer()
        for number in range(10):
            await create(site, f"Then {number}")
        behind = await slow.rest()
        async with a_reader(site) as again:
            prompts = [node["prompt"] for node in again.tree.values()]
            answer.say("Done.").finish()
            await again.until_settled()

    assert behind[-1]["type"] == "overflow"
    assert 1 < len(behind) < 20
    assert prompts == ["Go", *(f"Then {number}" for number in range(10))]


async def test_a_reader_who_left_hears_nothing_and_the_end_ends_all(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        async with a_reader(site) as gone:
            pass
        async with a_reader(site) as reader:
            await create(site)
            await site.provider.next_answer()
            await reader.until("turn.start")
            assert site.hub.subscriber_count == 1
            site.hub.close()
            told = await reader.rest()
            # The feed goes on, for whoever else follows it.
            assert site.root.turn_feed is not None
            tree = site.root.turn_feed.turns_of("w1")

        assert tree is not None
        assert await gone.rest() == []
        assert told[-1]["type"] == "shutting-down"
        assert site.hub.subscriber_count == 0
        assert len(site.root.turn_feed._subscribers._subscribers) == 0


# ---- over the network


async def test_an_event_stream_tells_of_turns(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        assert (await events.next()).type == "caught-up"
        begun = await client.post(f"{WORKSPACES}/w1/turns", json={"prompt": "Go"})
        turn = begun.json()
        call(await live.provider.next_answer(), "shell", command="true")
        asked = (await events.until("permission.asked"))[-1].data
        path = f"/api/turns/{turn['handleId']}/permissions/{asked['requestId']}"
        answered = await client.post(path, json={"allow": True})
        (await live.provider.next_answer()).say("Done.").finish()
        told = await events.until("turn.end")
        async with events_of(client) as late:
            (tree, _) = await late.until("caught-up")

    assert (begun.status_code, answered.status_code) == (202, 204)
    assert asked["turnId"] == turn["turnId"]
    assert in_order(types_of(told), "permission.answered", "stream-end", "turn.end")
    assert all(event.data["type"] == event.type for event in told)
    (node,) = tree.data["nodes"]
    assert (node["id"], node["handleId"]) == (turn["turnId"], turn["handleId"])


def types_of(events: list[Event]) -> list[str]:
    return [event.type for event in events]


async def test_a_browser_keeps_its_place_over_messages_of_turns(tmp_path: Path) -> None:
    """What has no id leaves the last one."""
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        await events.next()
        await client.post(f"{WORKSPACES}/w1/turns", json={"prompt": "Go"})
        (await live.provider.next_answer()).say("Done.").finish()
        told = await events.until("turn.end")

    assert told[-1].cursor == next(e.cursor for e in told if e.type == "stream-end") != ""


async def test_a_shutdown_tells_of_turns_up_to_the_end(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        await events.next()
        await client.post(f"{WORKSPACES}/w1/turns", json={"prompt": "Go"})
        (await live.provider.next_answer()).say("half")
        await events.until("stream-delta")
        stopping = asyncio.ensure_future(live.stop())
        told = await events.rest()
        await stopping

    assert in_order(types_of(told), "stream-abort", "turn.end", "shutting-down")
    assert told[-1].type == "shutting-down"


async def test_a_socket_tells_the_same(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, a_reader(site) as reader, a_socket(site) as socket:
        await socket.until("caught-up")
        await create(site)
        (await site.provider.next_answer()).say("Done.").finish()
        await reader.until_settled()
        told = await socket.until("turn.end")
        async with a_socket(site) as late:
            tree, _caught_up = await late.until("caught-up")

    seen = [message["message"] for message in told]
    assert seen == reader.seen[1 : len(seen) + 1]
    assert {m["cursor"] for m in told if m["message"]["type"].startswith("turn")} == {None}
    assert tree["message"]["type"] == "turns"


async def test_each_event_reaches_a_reader_who_only_listens(tmp_path: Path) -> None:
    async with a_server(tmp_path) as live, live.client() as client, events_of(client) as events:
        await events.next()
        begun = await client.post(f"{WORKSPACES}/w1/turns", json={"prompt": "Go"})
        answer = await live.provider.next_answer()
        await client.post(
            f"/api/turns/{begun.json()['handleId']}/steer", json={"text": "Only in src"}
        )
        answer.say("First.").finish()
        (await live.provider.next_answer()).say("Done.").finish()
        told = await events.until("turn.end")

    assert in_order(types_of(told), "turn.start", "interrupt.received", "steering.injected")
