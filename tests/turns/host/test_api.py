"""Messages in, history out: the calls of the API, with good and with bad input."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from streamengine import SendError, StreamError
from turns.host.config import Limits

from .kit import Site, a_site, heard, kept, rows_of, send, settle, text_of, until

MESSAGES = "/api/workspaces/w1/messages"
STOP = "/api/workspaces/w1/stop"
JSON = {"content-type": "application/json"}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncGenerator[Site]:
    async with a_site(tmp_path) as site:
        yield site


def chat_lines(site: Site, workspace: str = "w1") -> list[dict[str, Any]]:
    path = site.root.state / "workspaces" / workspace / "chat.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


async def answer(site: Site, *texts: str) -> None:
    """Let the answer that was just asked for say this, and end."""
    (await site.provider.next_answer()).say(*texts).finish()
    await settle(site)


# ---- messages


@pytest.mark.spec("BT1")
async def test_a_message_is_on_disk_before_its_202(site: Site) -> None:
    async with site.client() as client:
        response = await send(client, "What is a fiber?", clientMessageId="c1")
        stored = chat_lines(site)

    assert response.status_code == 202
    assert list(response.json()) == ["messageId"]
    assert [(row["role"], text_of(row)) for row in stored] == [("user", "What is a fiber?")]
    assert stored[0]["metadata"]["clientMessageId"] == "c1"


async def test_an_answer_becomes_a_row_of_the_history(site: Site) -> None:
    async with site.client() as client:
        message_id = (await send(client)).json()["messageId"]
        await answer(site, "A fiber ", "is owned.")
        rows = await rows_of(client)

    assert [row["role"] for row in rows] == ["user", "assistant"]
    assert rows[1]["id"] == message_id
    assert text_of(rows[1]) == "A fiber is owned."
    assert "partial" not in rows[1]["metadata"]


@pytest.mark.spec("BT1")
async def test_a_message_sent_twice_is_answered_once(site: Site) -> None:
    async with site.client() as client:
        first = await send(client, clientMessageId="c1")
        second = await send(client, clientMessageId="c1")
        await answer(site, "once")
        third = await send(client, clientMessageId="c1")
        rows = await rows_of(client)

    assert first.json() == second.json() == third.json()
    assert site.provider.answers.empty()
    assert len(rows) == 2


async def test_a_message_sent_again_after_a_restart_gets_its_first_answer(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        first = await send(client, clientMessageId="c1")
        await answer(site, "before the restart")
    async with a_site(tmp_path) as site, site.client() as client:
        second = await send(client, clientMessageId="c1")
        rows = await rows_of(client)

        assert first.json() == second.json()
        assert site.provider.answers.empty()
        assert len(rows) == 2


async def test_a_new_message_replaces_the_answer_that_is_under_way(site: Site) -> None:
    async with site.client() as client:
        await send(client, "first")
        (await site.provider.next_answer()).say("half of it")
        await heard(site, "half of it")
        await send(client, "second")
        await answer(site, "whole")
        rows = await rows_of(client)

    assert [text_of(row) for row in rows] == ["first", "half of it", "second", "whole"]
    assert rows[1]["metadata"]["partial"] is True
    assert rows[1]["metadata"]["abortReason"] == "system"


@pytest.mark.parametrize("text", ["", " ", "\n\t  \u2003"])
async def test_a_message_without_text_is_refused(site: Site, text: str) -> None:
    async with site.client() as client:
        response = await send(client, text)
        after = await send(client, "now with text")

    assert response.status_code == 422
    assert response.json()["kind"] == "empty-message"
    assert after.status_code == 202
    assert len(chat_lines(site)) == 1


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        (b"", 400, "invalid-json"),
        (b"{", 400, "invalid-json"),
        (b'{"text": "\xff"}', 400, "invalid-json"),
        (b'{"text": "\\ud83d"}', 400, "invalid-json"),
        (b"[" * 5000, 400, "invalid-json"),
        (b"[]", 422, "invalid-body"),
        (b"null", 422, "invalid-body"),
        (b"{}", 422, "invalid-body"),
        (b'{"text": 7}', 422, "invalid-body"),
        (b'{"text": "hi", "more": 1}', 422, "invalid-body"),
        (b'{"text": "hi", "client_message_id": "c"}', 422, "invalid-body"),
        (b'{"text": "hi", "clientMessageId": ""}', 422, "invalid-body"),
    ],
)
async def test_a_body_that_is_no_message_is_a_problem(
    site: Site, body: bytes, status: int, kind: str
) -> None:
    with structlog.testing.capture_logs() as logs:
        async with site.client() as client:
            response = await client.post(MESSAGES, content=body, headers=JSON)
            after = await send(client, "hello")

    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["kind"] == kind
    assert [entry["kind"] for entry in logs if entry["event"] == "refused"] == [kind]
    assert after.status_code == 202


async def test_what_was_written_is_not_in_the_complaint_about_it(site: Site) -> None:
    with structlog.testing.capture_logs() as logs:
        async with site.client() as client:
            response = await client.post(MESSAGES, json={"text": ["my secret"]})

    assert response.status_code == 422
    assert response.json()["errors"] == [
        {"field": "text", "problem": "Input should be a valid string"}
    ]
    assert "my secret" not in response.text
    assert "my secret" not in repr(logs)


@pytest.mark.parametrize("body", [{f"k{n}": 1 for n in range(5000)}, {"k" * 500_000: 1}])
async def test_the_complaint_about_a_body_is_short_however_much_is_wrong_with_it(
    site: Site, body: dict[str, int]
) -> None:
    async with site.client() as client:
        response = await client.post(MESSAGES, json=body)

    assert response.status_code == 422
    assert len(response.content) < 3000
    fields = [error["field"] for error in response.json()["errors"]]
    assert fields[:2] == ["text", next(iter(body))[:80]]
    assert response.json()["detail"].endswith("and 4991 more") == (len(body) == 5000)


async def test_the_complaint_about_an_id_names_no_python_error(site: Site) -> None:
    async with site.client() as client:
        response = await client.post(STOP, json={"turnId": "../x"})

    assert response.status_code == 422
    assert response.json()["detail"].startswith("turnId: '../x' is not a valid id: ")


@pytest.mark.parametrize(("method", "status"), [("GET", 405), ("PUT", 405), ("DELETE", 405)])
async def test_other_methods_are_problems(site: Site, method: str, status: int) -> None:
    async with site.client() as client:
        response = await client.request(method, MESSAGES, json={})

    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    assert response.json()["kind"] == "method-not-allowed"


# ---- providers that fail


async def test_a_provider_that_raises_at_creation_is_a_problem_and_the_message_is_kept(
    site: Site,
) -> None:
    site.provider.refusal = SendError("api_key_not_found", "there is no key")
    async with site.client() as client:
        refused = await send(client, "hello", clientMessageId="c1")
        site.provider.refusal = None
        again = await send(client, "hello", clientMessageId="c1")
        await answer(site, "hello to you")
        rows = await rows_of(client)

    assert refused.status_code == 502
    assert refused.json()["kind"] == "model-failed"
    assert refused.json()["errorKind"] == "api_key_not_found"
    assert "there is no key" in refused.json()["detail"]
    assert again.status_code == 202
    assert [text_of(row) for row in rows] == ["hello", "hello to you"]


async def test_a_provider_that_raises_midway_loses_nothing(site: Site) -> None:
    async with site.client() as client:
        await send(client, "one")
        said = (await site.provider.next_answer()).say("as far as ", "this")
        await kept(site)
        said.fail(RuntimeError("the line went dead"))
        await settle(site)
        failed = await rows_of(client)
        await send(client, "two")
        await answer(site, "fine")
        rows = await rows_of(client)

    assert text_of(failed[1]) == "as far as this"
    assert failed[1]["metadata"]["error"] == "the line went dead"
    assert [text_of(row) for row in rows] == ["one", "as far as this", "two", "fine"]
    assert rows[1]["metadata"]["partial"] is True


async def test_an_answer_that_is_cut_off_is_no_answer(site: Site) -> None:
    with structlog.testing.capture_logs() as logs:
        async with site.client() as client:
            await send(client)
            said = (await site.provider.next_answer()).say("only half")
            await kept(site)
            said.cut_off()
            await settle(site)
            rows = await rows_of(client)
            await send(client)
            await answer(site, "whole")

    assert text_of(rows[1]) == "only half"
    assert rows[1]["metadata"]["errorType"] == "stream_truncated"
    failures = [entry for entry in logs if entry["event"] == "stream failed"]
    assert [entry["errorType"] for entry in failures] == ["stream_truncated"]


async def test_a_provider_that_says_nothing_for_too_long_fails_its_stream(tmp_path: Path) -> None:
    async with (
        a_site(tmp_path, limits=Limits(silence_seconds=0.4)) as site,
        site.client() as client,
    ):
        await send(client, "one")
        (await site.provider.next_answer()).say("and then")
        await settle(site)
        rows = await rows_of(client)
        await send(client, "two")
        await answer(site, "fine")

    assert text_of(rows[1]) == "and then"
    assert rows[1]["metadata"]["error"] == "the model sent nothing for 0.4 s"
    assert rows[1]["metadata"]["errorType"] == "network"


async def test_the_provider_s_own_timeout_is_told_as_its_own(site: Site) -> None:
    async with site.client() as client:
        await send(client)
        said = (await site.provider.next_answer()).say("x")
        await kept(site)
        said.fail(TimeoutError("30 s for the next byte"))
        await settle(site)
        rows = await rows_of(client)

    assert rows[1]["metadata"]["error"] == "30 s for the next byte"


async def test_a_provider_that_raises_after_the_abort_is_a_stop(site: Site) -> None:
    async with site.client() as client:
        await send(client)
        said = (await site.provider.next_answer()).say("so far")
        said.signal.add_listener(lambda _reason: said.fail(StreamError("aborted", "I was told to")))
        await heard(site, "so far")
        stopped = await client.post(STOP, json={})
        rows = await rows_of(client)

    assert stopped.status_code == 204
    assert rows[1]["metadata"]["abortReason"] == "user"
    assert "error" not in rows[1]["metadata"]


# ---- stops


async def live_answer(site: Site, text: str) -> None:
    (await site.provider.next_answer()).say(text)
    await heard(site, text)


async def test_a_stop_ends_the_answer_as_the_user_and_keeps_what_was_said(site: Site) -> None:
    async with site.client() as client:
        message_id = (await send(client)).json()["messageId"]
        await live_answer(site, "so far")
        response = await client.post(STOP, json={"messageId": message_id})
        rows = await rows_of(client)

    assert response.status_code == 204
    assert text_of(rows[1]) == "so far"
    assert rows[1]["metadata"]["partial"] is True
    assert rows[1]["metadata"]["abortReason"] == "user"
    assert not (site.root.state / "workspaces/w1/partial.json").exists()


@pytest.mark.spec("BT7")
async def test_a_stop_of_another_message_touches_nothing(site: Site) -> None:
    async with site.client() as client:
        await send(client)
        await live_answer(site, "on and on")
        response = await client.post(STOP, json={"messageId": "a_another"})
        still = site.root.engine.is_streaming("w1")

    assert response.status_code == 204
    assert still


async def test_a_stop_can_drop_what_was_said(site: Site) -> None:
    async with site.client() as client:
        await send(client)
        await live_answer(site, "never mind")
        await client.post(STOP, json={"abandonPartial": True})
        rows = await rows_of(client)

    assert [row["role"] for row in rows] == ["user"]


async def test_a_soft_stop_answers_at_once_and_takes_effect_later(site: Site) -> None:
    async with site.client() as client:
        await send(client)
        said = await site.provider.next_answer()
        said.say("to the end of the block")
        await heard(site, "to the end of the block")
        response = await client.post(STOP, json={"soft": True})
        still = site.root.engine.is_streaming("w1")
        said.finish()
        await settle(site)
        rows = await rows_of(client)

    assert response.status_code == 202
    assert still
    assert rows[1]["metadata"]["abortReason"] == "user"


async def test_a_stop_of_an_idle_workspace_succeeds(site: Site) -> None:
    async with site.client() as client:
        response = await client.post(STOP, json={})

    assert response.status_code == 204


@pytest.mark.spec("I10", "E30")
async def test_a_stop_calls_off_a_retry_that_is_pending_also_for_the_next_process(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path, auto_retry=True) as site, site.client() as client:
        retries = site.root.retries
        assert retries is not None
        await send(client)
        (await site.provider.next_answer()).fail(StreamError("server_error", "too busy"))
        await until(lambda: retries.state("w1").pending)

        response = await client.post(STOP, json={})

        note = await site.root.runtime.run(site.root.history.read_note("w1"))
        assert response.status_code == 204
        assert not retries.state("w1").pending
        assert note.last_end is not None
        assert note.last_end.abort_reason == "user"


# ---- history


async def test_the_history_of_a_new_workspace_is_empty_and_makes_no_files(site: Site) -> None:
    async with site.client() as client:
        assert await rows_of(client) == []

    assert not (site.root.state / "workspaces").exists()


async def test_the_message_that_is_being_answered_is_not_in_the_history(site: Site) -> None:
    async with site.client() as client:
        await send(client)
        await live_answer(site, "still talking")
        rows = await rows_of(client)

    assert [row["role"] for row in rows] == ["user"]


async def test_a_defect_says_nothing_of_itself_to_the_caller(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_workspace_id: str) -> Any:
        raise RuntimeError("a detail of ours")

    monkeypatch.setattr(site.hub, "live_message", broken)
    async with site.client() as client:
        response = await client.get("/api/workspaces/w1/history")

    assert response.status_code == 500
    assert response.json()["kind"] == "internal"
    assert "a detail of ours" not in response.text


# ---- while it shuts down


@pytest.mark.spec("VA9")
@pytest.mark.lifecycle
async def test_new_commands_are_refused_at_once_while_it_shuts_down(site: Site) -> None:
    async with site.client() as client:
        await send(client)
        await live_answer(site, "said before")
        site.shutdown.begin()
        refused = [
            await send(client),
            await client.post(STOP, json={}),
            await client.get("/api/workspaces/w1/events"),
        ]
        health = await client.get("/healthz")
        rows = await rows_of(client)

    for response in refused:
        assert response.status_code == 503
        assert int(response.headers["retry-after"]) > 0
        assert response.json()["kind"] == "shutting-down"
    assert (health.status_code, health.json()) == (503, {"status": "shutting-down"})
    assert len(rows) == 1
    assert len(chat_lines(site)) == 1


@pytest.mark.lifecycle
async def test_a_start_that_the_shutdown_overtook_is_told_to_come_again(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        # The provider is asked while the shutdown begins: the message is stored by then.
        site.provider.on_ask = site.shutdown.begin
        overtaken = await send(client, clientMessageId="c1")
    async with a_site(tmp_path) as site, site.client() as client:
        again = await send(client, clientMessageId="c1")
        if again.status_code == 202 and not site.provider.answers.empty():
            await answer(site, "here it is")
        rows = await rows_of(client)

    assert overtaken.status_code == 503
    assert again.status_code == 202
    assert [(row["role"], text_of(row)) for row in rows] == [
        ("user", "hello"),
        ("assistant", "here it is"),
    ]
