"""The HTTP API of turns, and what a stop binds where one is live."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

import fibers as fb
from streamengine import Event
from streamengine.model import StreamAbortEvent, ToolCall
from turns import TurnHandle, TurnRecord
from turns.host.config import Limits
from turns.model.errors import TurnError

from .kit import BOUND_SECONDS, Answer, Site, a_site, heard, rows_of, send, settle, text_of, until

pytestmark = pytest.mark.lifecycle

TURNS = "/api/workspaces/w1/turns"
STOP = "/api/workspaces/w1/stop"


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    async with a_site(tmp_path) as site:
        yield site


async def begin(client: httpx.AsyncClient, prompt: str = "Go", workspace: str = "w1") -> str:
    response = await client.post(f"/api/workspaces/{workspace}/turns", json={"prompt": prompt})
    assert response.status_code == 202, response.text
    handle_id: str = response.json()["handleId"]
    return handle_id


async def record(client: httpx.AsyncClient, handle_id: str) -> dict[str, Any]:
    response = await client.get(f"/api/turns/{handle_id}")
    assert response.status_code == 200, response.text
    fields: dict[str, Any] = response.json()
    return fields


async def settled(site: Site, client: httpx.AsyncClient, handle_id: str) -> dict[str, Any]:
    await site.turns.manager.wait(handle_id, timeout=BOUND_SECONDS).exit()
    return await record(client, handle_id)


async def saying(site: Site, text: str = "half", workspace: str = "w1") -> Answer:
    """The next answer, once it has said this."""
    answer = (await site.provider.next_answer()).say(text)
    await heard(site, text, workspace)
    return answer


def kind_of(response: httpx.Response) -> tuple[int, str]:
    assert response.headers["content-type"] == "application/problem+json", response.text
    return response.status_code, response.json()["kind"]


# ---- to begin one


async def test_a_turn_is_begun_and_its_record_is_on_disk_before_the_202(
    site: Site, tmp_path: Path
) -> None:
    async with site.client() as client:
        response = await client.post(TURNS, json={"prompt": "Go", "attention": "notify"})
        (path,) = (tmp_path / "workspaces" / "w1" / "task-handles").glob("*.json")
        stored = TurnRecord.model_validate_json(path.read_bytes())
        (await site.provider.next_answer()).say("Done.").finish()
        shown = await settled(site, client, stored.handle_id)

    assert response.status_code == 202
    assert response.json() == {"handleId": stored.handle_id, "turnId": stored.turn_id}
    assert response.headers["cache-control"] == "no-store"
    assert (stored.owner_workspace_id, stored.workspace_id) == ("w1", "w1")
    assert stored.attention_policy == "notify_on_terminal"
    assert (shown["status"], shown["cause"]) == ("completed", "correlated-stream-end")
    assert shown["finalMessage"] == "Done."
    assert shown["evidence"]["messageId"] == shown["messageId"]


@pytest.mark.parametrize(
    ("path", "body", "expected"),
    [
        (TURNS, {"prompt": " \n"}, (422, "empty-message")),
        (TURNS, {}, (422, "invalid-body")),
        (TURNS, {"prompt": "Go", "attention": "soon"}, (422, "invalid-body")),
        (TURNS, {"prompt": "Go", "owner": "w2"}, (422, "invalid-body")),
        ("/api/workspaces/W1/turns", {"prompt": "Go"}, (400, "invalid-id")),
        ("/api/workspaces/%2e%2e/turns", {"prompt": "Go"}, (400, "invalid-id")),
    ],
)
async def test_a_turn_that_makes_no_sense_is_refused_and_leaves_nothing(
    site: Site, path: str, body: dict[str, Any], expected: tuple[int, str]
) -> None:
    async with site.client() as client:
        response = await client.post(path, json=body)
        listed = await client.get("/api/turns")

    assert kind_of(response) == expected
    assert listed.json() == {"turns": [], "warnings": []}
    assert site.provider.answers.empty()


async def test_a_store_that_cannot_be_written_is_no_fault_of_the_caller(
    site: Site, tmp_path: Path
) -> None:
    (tmp_path / "workspaces").mkdir(mode=0o700)
    (tmp_path / "workspaces" / "w1").write_text("in the way")
    async with site.client() as client:
        response = await client.post(TURNS, json={"prompt": "Go"})

    assert kind_of(response) == (500, "history")
    assert str(tmp_path / "workspaces" / "w1") in response.json()["detail"]


async def test_turns_and_messages_share_the_bound_of_workspaces_answered_at_a_time(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path, limits=Limits(streams=1)) as site, site.client() as client:
        first = await begin(client)
        answer = await saying(site)
        same = await client.post(TURNS, json={"prompt": "And then"})
        refused = await client.post("/api/workspaces/w2/turns", json={"prompt": "Go"})
        message = await send(client, workspace="w2")
        answer.finish()
        await settled(site, client, first)
        (await site.provider.next_answer()).say("Done.").finish()
        await settled(site, client, same.json()["handleId"])
        after = await client.post("/api/workspaces/w2/turns", json={"prompt": "Go"})

    assert same.status_code == 202
    assert kind_of(refused) == kind_of(message) == (503, "too-many-streams")
    assert "retry-after" in refused.headers
    assert after.status_code == 202


async def test_a_turn_that_the_last_process_left_takes_a_place_too(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        await begin(client)
        await saying(site)
        waiting = await begin(client, "And then")
    async with a_site(tmp_path, limits=Limits(streams=1)) as site, site.client() as client:
        answer = await saying(site)
        refused = await client.post("/api/workspaces/w2/turns", json={"prompt": "Go"})
        answer.finish()
        await settled(site, client, waiting)
        accepted = await client.post("/api/workspaces/w2/turns", json={"prompt": "Go"})

    assert kind_of(refused) == (503, "too-many-streams")
    assert accepted.status_code == 202


async def test_a_refused_turn_takes_no_place(tmp_path: Path) -> None:
    async with a_site(tmp_path, limits=Limits(streams=1)) as site, site.client() as client:
        refused = await client.post("/api/workspaces/w2/turns", json={"prompt": ""})
        accepted = await client.post(TURNS, json={"prompt": "Go"})

    assert (refused.status_code, accepted.status_code) == (422, 202)


async def test_no_turn_begins_once_the_shutdown_has(site: Site) -> None:
    async with site.client() as client:
        site.shutdown.begin()
        response = await client.post(TURNS, json={"prompt": "Go"})

    assert kind_of(response) == (503, "shutting-down")


async def test_no_turn_begins_in_an_app_scope_that_has_closed(site: Site) -> None:
    async with site.client() as client:
        await site.root.app_scope.close(reason="system")
        response = await client.post(TURNS, json={"prompt": "Go"})

    assert kind_of(response) == (503, "shutting-down")


async def test_a_shutdown_that_comes_between_keeps_the_turn_and_says_so(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = site.turns.manager.create_turn

    @fb.effect
    async def create_late(**fields: Any) -> TurnHandle:
        handle = await create(**fields)
        site.shutdown.begin()
        return handle

    monkeypatch.setattr(site.turns.manager, "create_turn", create_late)
    async with site.client() as client:
        response = await client.post(TURNS, json={"prompt": "Go"})

    assert kind_of(response) == (503, "shutting-down")
    assert len(list((tmp_path / "workspaces" / "w1" / "task-handles").glob("*.json"))) == 1


# ---- to look at them


async def test_records_are_listed_the_oldest_first_all_or_of_one_workspace(site: Site) -> None:
    async with site.client() as client:
        made = [await begin(client, workspace=workspace) for workspace in ("w1", "w2", "w1")]
        here = (await client.get(TURNS)).json()["turns"]
        everywhere = (await client.get("/api/turns")).json()["turns"]
        nowhere = (await client.get("/api/workspaces/w3/turns")).json()["turns"]

    assert [fields["handleId"] for fields in here] == [made[0], made[2]]
    assert [fields["handleId"] for fields in everywhere] == made
    assert nowhere == []


@pytest.mark.spec("T20")
async def test_what_cannot_be_read_is_named_beside_what_can(tmp_path: Path) -> None:
    handles = tmp_path / "workspaces" / "w9" / "task-handles"
    handles.mkdir(parents=True, mode=0o700)
    (handles / "wst_torn.json").write_text('{"kind": "workspace_t')
    async with a_site(tmp_path) as site, site.client() as client:
        await begin(client)
        listed = (await client.get("/api/turns")).json()

    assert len(listed["turns"]) == 1
    (warning,) = listed["warnings"]
    assert str(handles / "wst_torn.json") in warning


CALLS: dict[str, dict[str, Any]] = {
    "steer": {"text": "Wait"},
    "subturns": {"prompt": "Look", "agent": "main"},
    "interrupt": {},
    "permissions/p_1": {"allow": True},
}


@pytest.mark.parametrize("call", CALLS)
async def test_what_is_asked_of_no_turn_is_a_404(site: Site, call: str) -> None:
    async with site.client() as client:
        unknown = await client.post(f"/api/turns/wst_none/{call}", json=CALLS[call])
        no_id = await client.post(f"/api/turns/turn_1/{call}", json=CALLS[call])

    assert kind_of(unknown) == (404, "no-such-turn")
    assert kind_of(no_id) == (400, "invalid-id")


async def test_a_record_of_no_turn_is_a_404(site: Site) -> None:
    async with site.client() as client:
        assert kind_of(await client.get("/api/turns/wst_none")) == (404, "no-such-turn")
        assert kind_of(await client.get("/api/turns/..%2f..%2fetc")) == (404, "not-found")
        assert kind_of(await client.get("/api/turns/WST_1")) == (400, "invalid-id")


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("call", CALLS)
async def test_what_is_asked_of_a_turn_that_has_settled_is_a_409(
    site: Site, call: str, hard: bool
) -> None:
    body = {**CALLS[call], "hard": hard} if call == "interrupt" else CALLS[call]
    async with site.client() as client:
        handle_id = await begin(client)
        (await site.provider.next_answer()).say("Done.").finish()
        before = await settled(site, client, handle_id)
        response = await client.post(f"/api/turns/{handle_id}/{call}", json=body)
        after = await record(client, handle_id)

    assert kind_of(response) == (409, "turn-not-running")
    assert "completed" in response.json()["detail"]
    assert after == before


@pytest.mark.parametrize("call", CALLS)
async def test_what_is_asked_of_a_turn_that_has_not_begun_is_a_409(site: Site, call: str) -> None:
    async with site.client() as client:
        await begin(client)
        await saying(site)
        waiting = await begin(client)
        response = await client.post(f"/api/turns/{waiting}/{call}", json=CALLS[call])

    assert kind_of(response) == (409, "turn-not-running")
    assert "queued" in response.json()["detail"]


async def test_a_turn_that_has_not_begun_can_be_ended_hard(site: Site) -> None:
    async with site.client() as client:
        await begin(client)
        answer = await saying(site)
        waiting = await begin(client, "And then")
        response = await client.post(f"/api/turns/{waiting}/interrupt", json={"hard": True})
        fields = await record(client, waiting)
        answer.finish()
        await settle(site)

    assert response.status_code == 204
    assert (fields["status"], fields["cause"]) == ("interrupted", "explicit-interrupt")
    assert fields["evidence"] == {"by": "user"}
    assert site.provider.answers.empty()


@pytest.mark.parametrize("call", CALLS)
async def test_bodies_are_looked_at_closely(site: Site, call: str) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        await saying(site)
        path = f"/api/turns/{handle_id}/{call}"
        torn = await client.post(path, content=b"{", headers={"content-type": "application/json"})
        other = await client.post(path, json=[])
        unknown = await client.post(path, json={**CALLS[call], "more": 1})
        plain = await client.post(path, content=b"{}", headers={"content-type": "text/plain"})

    assert kind_of(torn) == (400, "invalid-json")
    assert kind_of(other) == (422, "invalid-body")
    assert kind_of(unknown) == (422, "invalid-body")
    assert "more" in unknown.json()["detail"]
    assert kind_of(plain) == (415, "not-json")


@pytest.mark.parametrize("allow", ["yes", 1, None])
async def test_nothing_but_true_or_false_answers_a_question(site: Site, allow: object) -> None:
    async with site.client() as client:
        handle_id, request_id = await asking(site, client)
        path = f"/api/turns/{handle_id}/permissions/{request_id}"
        response = await client.post(path, json={"allow": allow})

    assert kind_of(response) == (422, "invalid-body")


# ---- to say something to one


@pytest.mark.spec("U20")
async def test_a_turn_hears_what_it_is_told_in_its_next_call(site: Site) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        answer = await saying(site, "first")
        response = await client.post(f"/api/turns/{handle_id}/steer", json={"text": "And then?"})
        answer.finish()
        again = await site.provider.next_answer()
        again.say("second").finish()
        fields = await settled(site, client, handle_id)
        rows = await rows_of(client)

    assert response.status_code == 202
    assert again.request.text == "And then?"
    assert fields["status"] == "completed"
    assert [text_of(row) for row in rows] == ["Go", "first", "And then?", "second"]


async def test_an_eleventh_message_to_a_turn_has_to_wait(site: Site) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        await saying(site)
        path = f"/api/turns/{handle_id}/steer"
        taken = [await client.post(path, json={"text": f"{n}"}) for n in range(10)]
        full = await client.post(path, json={"text": "one more"})
        empty = await client.post(path, json={"text": " "})

    assert {response.status_code for response in taken} == {202}
    assert kind_of(full) == (429, "steering-full")
    assert "retry-after" in full.headers
    assert kind_of(empty) == (422, "empty-message")


@pytest.mark.spec("U20")
async def test_what_is_said_during_a_batch_of_tools_skips_the_rest_of_them(site: Site) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        first = await site.provider.next_answer()
        first.say(
            ToolCall(tool_call_id="c1", tool_name="shell", input={"command": "true"}),
            ToolCall(tool_call_id="c2", tool_name="files", input={"action": "list"}),
        ).finish()
        request_id = await question(site)
        await client.post(f"/api/turns/{handle_id}/steer", json={"text": "Stop that"})
        path = f"/api/turns/{handle_id}/permissions/{request_id}"
        answered = await client.post(path, json={"allow": False})
        (await site.provider.next_answer()).say("Very well.").finish()
        await settled(site, client, handle_id)
        tools = [part for part in (await rows_of(client))[1]["parts"] if "toolCallId" in part]

    assert answered.status_code == 204
    assert "refused" in str(tools[0]["output"])
    assert "queued user steering message" in str(tools[1]["output"])


@pytest.mark.spec("U18")
async def test_a_subturn_is_named_once_it_runs_and_its_result_told_to_the_turn(
    site: Site,
) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        answer = await saying(site, "first")
        response = await client.post(
            f"/api/turns/{handle_id}/subturns", json={"prompt": "Look it up", "agent": "main"}
        )
        child = await site.provider.next_answer()
        child.say("found it").finish()
        await until(lambda: not site.turns.loop.registry.children)
        answer.finish()
        fields = await settled(site, client, handle_id)

    assert response.status_code == 202
    assert response.json()["childId"].startswith("subturn-")
    assert child.request.text == "Look it up"
    assert fields["status"] == "completed"
    assert fields["finalMessage"] == "first\n\n[SubTurn Result] found it"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"prompt": "Look"}, (422, "invalid-subturn")),
        ({"prompt": " ", "agent": "main"}, (422, "invalid-subturn")),
        ({"prompt": "Look", "agent": "nobody"}, (422, "no-such-agent")),
        ({"prompt": "Look", "agent": "main", "timeoutSeconds": "soon"}, (422, "invalid-body")),
        ({"prompt": "Look", "agent": "main", "tools": []}, (422, "invalid-body")),
        ({"prompt": "Look", "agent": "main", "delivers": False}, (422, "invalid-body")),
    ],
)
async def test_a_subturn_that_makes_no_sense_is_refused(
    site: Site, fields: dict[str, Any], expected: tuple[int, str]
) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        await saying(site)
        response = await client.post(f"/api/turns/{handle_id}/subturns", json=fields)
        children = site.turns.loop.registry.children

    assert kind_of(response) == expected
    assert children == ()


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (TurnError("depth_limit", "too deep", "Do it here."), (409, "depth-limit")),
        (TurnError("concurrency_timeout", "no slot", "Wait."), (429, "too-many-subturns")),
        (TurnError("not_known_here", "it says no", ""), (409, "not-known-here")),
        (TurnError("store", "the disk says no", "Mend it."), (500, "turns")),
        (TurnError("shutting_down", "it ends", ""), (503, "shutting-down")),
    ],
)
async def test_a_subturn_that_has_no_place_is_refused_for_its_reason(
    site: Site, monkeypatch: pytest.MonkeyPatch, error: TurnError, expected: tuple[int, str]
) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        await saying(site)

        def begin_none(*_given: object, **_fields: object) -> fb.Effect[Any, TurnError]:
            return fb.Effect.fail(error)

        monkeypatch.setattr(site.turns.loop.subturns, "begin", begin_none)
        response = await client.post(
            f"/api/turns/{handle_id}/subturns", json={"prompt": "Look", "agent": "main"}
        )

    assert kind_of(response) == expected


async def test_a_subturn_that_the_shutdown_has_ended_is_not_said_to_run(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_subturn = site.turns.manager.begin_subturn

    @fb.effect
    async def begin_late(handle_id: str, fields: Any) -> str:
        child_id = await begin_subturn(handle_id, fields)
        site.shutdown.begin()
        return child_id

    monkeypatch.setattr(site.turns.manager, "begin_subturn", begin_late)
    async with site.client() as client:
        handle_id = await begin(client)
        await saying(site)
        response = await client.post(
            f"/api/turns/{handle_id}/subturns", json={"prompt": "Look", "agent": "main"}
        )

    assert kind_of(response) == (503, "shutting-down")


# ---- questions


async def question(site: Site, workspace: str = "w1") -> str:
    """The id of what a turn asks."""
    desk = site.turns.open_turns.workspaces.get(workspace).permissions
    await until(lambda: desk.card)
    assert desk.card is not None
    return desk.card.request_id


async def asking(site: Site, client: httpx.AsyncClient) -> tuple[str, str]:
    """A turn that waits for a person, and what it asks."""
    handle_id = await begin(client)
    call = ToolCall(tool_call_id="c1", tool_name="shell", input={"command": "echo hello"})
    (await site.provider.next_answer()).say(call).finish()
    return handle_id, await question(site)


@pytest.mark.spec("O12")
@pytest.mark.parametrize("allow", [True, False])
async def test_a_question_is_answered_once(site: Site, allow: bool) -> None:
    async with site.client() as client:
        handle_id, request_id = await asking(site, client)
        path = f"/api/turns/{handle_id}/permissions/{request_id}"
        other = await client.post(f"{path}x", json={"allow": True})
        first = await client.post(path, json={"allow": allow})
        (await site.provider.next_answer()).say("Done.").finish()
        await settled(site, client, handle_id)
        again = await client.post(path, json={"allow": allow})
        output = str((await rows_of(client))[1]["parts"][0]["output"])

    assert kind_of(other) == (409, "question-not-open")
    assert first.status_code == 204
    assert kind_of(again) == (409, "turn-not-running")
    assert ("hello" in output) is allow
    assert ("refused" in output) is not allow


async def test_an_answer_that_is_to_be_remembered_is_given_for_the_next_turn(site: Site) -> None:
    async with site.client() as client:
        handle_id, request_id = await asking(site, client)
        path = f"/api/turns/{handle_id}/permissions/{request_id}"
        await client.post(path, json={"allow": False, "remember": True})
        (await site.provider.next_answer()).say("Done.").finish()
        await settled(site, client, handle_id)
        later = await begin(client)
        call = ToolCall(tool_call_id="c2", tool_name="shell", input={"command": "echo hello"})
        (await site.provider.next_answer()).say(call).finish()
        (await site.provider.next_answer()).say("Done.").finish()
        fields = await settled(site, client, later)

    assert fields["status"] == "completed"


# ---- to end one


@pytest.mark.spec("U26")
async def test_a_soft_interrupt_asks_for_one_last_answer_without_tools(site: Site) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        answer = await saying(site, "much to say")
        response = await client.post(f"/api/turns/{handle_id}/interrupt", json={})
        answer.finish()
        last = await site.provider.next_answer()
        last.say("In short.").finish()
        fields = await settled(site, client, handle_id)

    assert response.status_code == 202
    assert last.request.tools == ()
    assert (fields["status"], fields["finalMessage"]) == ("completed", "In short.")


@pytest.mark.spec("U15", "T18")
async def test_a_hard_interrupt_takes_back_what_was_said(site: Site) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        await saying(site)
        response = await client.post(f"/api/turns/{handle_id}/interrupt", json={"hard": True})
        fields = await record(client, handle_id)
        rows = await rows_of(client)

    assert response.status_code == 204
    assert (fields["status"], fields["cause"]) == ("interrupted", "explicit-interrupt")
    assert rows == []


async def test_a_turn_that_was_taken_up_after_a_restart_counts_as_answered(tmp_path: Path) -> None:
    async with a_site(tmp_path, auto_retry=True) as site, site.client() as client:
        await begin(client)
        await saying(site)
    limits = Limits(streams=1)
    async with a_site(tmp_path, auto_retry=True, limits=limits) as site, site.client() as client:
        answer = await saying(site, "again")
        refused = await client.post("/api/workspaces/w2/turns", json={"prompt": "Go"})
        answer.finish()
        await until(lambda: site.turns.manager.live_in("w1") is None)
        after = await client.post("/api/workspaces/w2/turns", json={"prompt": "Go"})

    assert kind_of(refused) == (503, "too-many-streams")
    assert after.status_code == 202


async def test_a_turn_that_was_taken_up_after_a_restart_can_be_ended_hard(tmp_path: Path) -> None:
    async with a_site(tmp_path, auto_retry=True) as site, site.client() as client:
        handle_id = await begin(client)
        await saying(site)
    async with a_site(tmp_path, auto_retry=True) as site, site.client() as client:
        await saying(site, "again")
        soft = await client.post(f"/api/turns/{handle_id}/interrupt", json={})
        steered = await client.post(f"/api/turns/{handle_id}/steer", json={"text": "Wait"})
        hard = await client.post(f"/api/turns/{handle_id}/interrupt", json={"hard": True})
        fields = await record(client, handle_id)
        await settle(site)

    assert kind_of(soft) == kind_of(steered) == (409, "without-agent")
    assert hard.status_code == 204
    assert fields["evidence"] == {"by": "user"}


# ---- a stop names its turn


@pytest.mark.spec("BT7")
async def test_a_stop_that_does_not_name_the_live_turn_stops_nothing(site: Site) -> None:
    async with site.client() as client:
        begun = (await client.post(TURNS, json={"prompt": "Go"})).json()
        answer = await saying(site)
        unnamed = await client.post(STOP, json={})
        soft = await client.post(STOP, json={"soft": True})
        other = await client.post(STOP, json={"turnId": "turn_other"})
        live = site.root.engine.is_streaming("w1")
        answer.finish()
        fields = await settled(site, client, begun["handleId"])

    assert kind_of(unnamed) == kind_of(soft) == (409, "turn-not-named")
    assert kind_of(other) == (409, "other-turn-live")
    for refused in (unnamed, soft, other):
        assert refused.json()["turnId"] == begun["turnId"]
        assert refused.json()["handleId"] == begun["handleId"]
    assert live
    assert fields["status"] == "completed"


@pytest.mark.spec("T18", "BT7")
async def test_a_stop_that_names_the_live_turn_interrupts_it_for_the_person(site: Site) -> None:
    told: list[Event] = []
    site.root.engine.events.subscribe(told.append)
    async with site.client() as client:
        begun = (await client.post(TURNS, json={"prompt": "Go"})).json()
        await saying(site)
        waiting = await begin(client, "And then")
        response = await client.post(STOP, json={"turnId": begun["turnId"]})
        fields = await record(client, begun["handleId"])
        aborted = [event.abort_reason for event in told if isinstance(event, StreamAbortEvent)]
        (await site.provider.next_answer()).say("Done.").finish()
        later = await settled(site, client, waiting)

    assert response.status_code == 204
    assert (fields["status"], fields["cause"]) == ("interrupted", "explicit-interrupt")
    assert fields["evidence"] == {"by": "user"}
    assert aborted == ["user"]
    assert later["status"] == "completed"


@pytest.mark.spec("T18")
async def test_a_stop_binds_a_turn_that_waits_for_the_end_of_the_one_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    stop_stream = site.root.engine.stop_stream
    stopping, may_stop = asyncio.Event(), asyncio.Event()

    def slowly(*args: Any, **named: Any) -> fb.Effect[None]:
        stopping.set()
        return fb.Effect.promise(may_stop.wait).flat_map(lambda _: stop_stream(*args, **named))

    async with site.client() as client:
        first = (await client.post(TURNS, json={"prompt": "Go"})).json()
        await saying(site)
        waiting = (await client.post(TURNS, json={"prompt": "And then"})).json()
        monkeypatch.setattr(site.root.engine, "stop_stream", slowly)
        ending = asyncio.create_task(client.post(STOP, json={"turnId": first["turnId"]}))
        await asyncio.wait_for(stopping.wait(), BOUND_SECONDS)
        elsewhere = await client.post("/api/workspaces/w2/stop", json={"turnId": waiting["turnId"]})
        still = await record(client, waiting["handleId"])
        response = await client.post(STOP, json={"turnId": waiting["turnId"]})
        fields = await record(client, waiting["handleId"])
        may_stop.set()
        await ending
        await settle(site)

    assert elsewhere.status_code == response.status_code == 204
    assert still["status"] == "queued"
    assert (fields["status"], fields["evidence"]) == ("interrupted", {"by": "user"})
    assert site.provider.answers.empty()


async def test_a_stop_that_names_a_message_of_the_turn_is_a_stop_of_the_turn(site: Site) -> None:
    async with site.client() as client:
        handle_id = await begin(client)
        await saying(site)
        live = site.hub.live_message("w1")
        assert live is not None
        message_id = live[0]
        response = await client.post(STOP, json={"messageId": message_id})
        fields = await settled(site, client, handle_id)

    assert response.status_code == 204
    assert (fields["status"], fields["cause"]) == ("interrupted", "user-stream-abort")


@pytest.mark.spec("BT7", "E24")
async def test_a_stop_of_a_turn_that_has_ended_touches_nothing_that_came_after_it(
    site: Site,
) -> None:
    async with site.client() as client:
        begun = (await client.post(TURNS, json={"prompt": "Go"})).json()
        (await site.provider.next_answer()).say("Done.").finish()
        await settled(site, client, begun["handleId"])
        await send(client, "And then")
        await saying(site)
        late = await client.post(STOP, json={"turnId": begun["turnId"]})
        foreign = await client.post("/api/workspaces/w2/stop", json={"turnId": begun["turnId"]})
        live = site.root.engine.is_streaming("w1")
        plain = await client.post(STOP, json={})

    assert late.status_code == foreign.status_code == plain.status_code == 204
    assert live
    assert not site.root.engine.is_streaming("w1")


@pytest.mark.parametrize(
    "more", [{"soft": True}, {"abandonPartial": True}, {"messageId": "m1"}, {"turn": "x"}]
)
async def test_a_stop_of_a_turn_says_nothing_else(site: Site, more: dict[str, Any]) -> None:
    async with site.client() as client:
        begun = (await client.post(TURNS, json={"prompt": "Go"})).json()
        await saying(site)
        response = await client.post(STOP, json={"turnId": begun["turnId"], **more})

    assert kind_of(response) == (422, "invalid-body")


async def test_a_stop_leaves_a_turn_alone_that_begins_while_a_pending_try_is_called_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_site(tmp_path, auto_retry=True) as site, site.client() as client:
        retries = site.root.retries
        assert retries is not None
        call_off = retries.call_off

        @fb.effect
        async def slowly(workspace_id: str) -> None:
            await call_off(workspace_id)
            await site.turns.manager.create_turn(owner="w1", workspace_id="w1", prompt="Go")
            await saying(site)

        monkeypatch.setattr(retries, "call_off", slowly)
        response = await client.post(STOP, json={})
        live = site.root.engine.is_streaming("w1")

    assert response.status_code == 204
    assert live


# ---- a turn that is asked for again


async def test_a_turn_that_is_asked_for_again_by_its_name_is_begun_once(
    site: Site, tmp_path: Path
) -> None:
    body = {"prompt": "Go", "clientTurnId": "c1"}
    async with site.client() as client:
        together = await asyncio.gather(*(client.post(TURNS, json=body) for _ in range(3)))
        (await site.provider.next_answer()).say("Done.").finish()
        await settled(site, client, together[0].json()["handleId"])
        late = await client.post(TURNS, json={**body, "prompt": "Something else"})
        elsewhere = await client.post("/api/workspaces/w2/turns", json=body)
        other = await client.post(TURNS, json={**body, "clientTurnId": "c2"})

    answers = [response.json() for response in (*together, late)]
    assert {response.status_code for response in (*together, late, elsewhere, other)} == {202}
    assert answers == [answers[0]] * 4
    assert len({r.json()["handleId"] for r in (together[0], elsewhere, other)}) == 3
    assert len(list((tmp_path / "workspaces/w1/task-handles").glob("*.json"))) == 2


async def test_a_turn_that_a_shutdown_kept_is_found_by_its_name(tmp_path: Path) -> None:
    body = {"prompt": "And then", "clientTurnId": "c1"}
    async with a_site(tmp_path) as site, site.client() as client:
        await begin(client)
        await saying(site)
        before = (await client.post(TURNS, json=body)).json()
    async with a_site(tmp_path) as site, site.client() as client:
        again = (await client.post(TURNS, json=body)).json()
        listed = (await client.get("/api/turns")).json()["turns"]

    assert again == before
    assert len(listed) == 2


@pytest.mark.parametrize("name", ["", "c" * 256, 7, None])
async def test_the_name_of_a_turn_is_a_short_text(site: Site, name: object) -> None:
    async with site.client() as client:
        response = await client.post(TURNS, json={"prompt": "Go", "clientTurnId": name})

    assert response.status_code == (202 if name is None else 422)
