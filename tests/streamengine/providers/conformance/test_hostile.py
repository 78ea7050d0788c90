"""Providers over HTTP, against a server that does what no server should."""

from __future__ import annotations

import asyncio
import socket
import ssl
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from streamengine.model import (
    ErrorType,
    Finish,
    FinishStep,
    ToolCall,
    ToolCallDelta,
    categorize,
)
from streamengine.providers.errors import ProviderError
from streamengine.providers.http import Bounds, Wire

from .contestants import (
    KEY,
    MODEL,
    OVER_HTTP,
    OWN_WIRE,
    PATIENT,
    OverHttp,
    over_http,
    own_provider,
)
from .dialects import GIVEN, MADE
from .hostile_server import (
    BOUND_SECONDS,
    Line,
    Plan,
    a_server,
    answers,
    breaks_off_after,
    drips,
    floods,
    keeps_talking_after,
    refuses,
    resets_after,
    sends_endless_line,
    stalls_after,
    stalls_before_the_head,
)
from .kit import Reading, a_desk, all_parts

over_any_wire = pytest.mark.parametrize("name", OVER_HTTP)
over_own_wire = pytest.mark.parametrize("name", OWN_WIRE)

HASTY = Bounds(connect_seconds=1, idle_seconds=0.15, error_seconds=0.15, late_usage_seconds=0.15)
TEXTS = ("It rains ", "in Bergen.")
WHOLE = "".join(TEXTS)


async def failure_of(contestant: OverHttp, plan: Plan) -> tuple[Exception, Reading]:
    """How an answer fails when the server does this; no connection is left."""
    contestant.server.plan = plan
    reading = Reading(contestant.provider)
    failure = await reading.failure()
    await contestant.nothing_left()
    return failure, reading


def beginning(contestant: OverHttp) -> list[bytes]:
    return [*contestant.dialect.begin(), *map(contestant.dialect.text, TEXTS)]


# ---- silence


@over_own_wire
async def test_a_server_that_never_answers_has_a_bound(name: str) -> None:
    async with over_http(name, HASTY) as contestant:
        failure, reading = await failure_of(contestant, stalls_before_the_head())

        assert categorize(failure) == "network"
        assert str(failure) == f"127.0.0.1:{contestant.server.port} sent nothing for 0.15 s"
        assert reading.parts == []


@over_own_wire
async def test_a_server_that_stalls_in_the_middle_has_a_bound(name: str, tmp_path: Path) -> None:
    async with over_http(name, HASTY) as contestant:
        contestant.server.plan = stalls_after(*beginning(contestant))
        async with a_desk(contestant.provider, tmp_path) as desk:
            completion = await desk.completion(await desk.send())

            assert (completion.status, completion.error_type) == ("failed", "network")
            assert desk.terminals == ["error"]
            assert await desk.stored_answers() == [WHOLE]
            await contestant.nothing_left()


@pytest.mark.parametrize("name", ["openai-chat", "anthropic"])
@pytest.mark.spec("E22")
async def test_what_comes_after_the_answer_is_waited_for_a_short_time(name: str) -> None:
    bounds = replace(PATIENT, idle_seconds=60, late_usage_seconds=0.05)
    async with over_http(name, bounds) as contestant:
        said_all = contestant.dialect.answer(*TEXTS)[: -2 if name == "openai-chat" else -1]
        contestant.server.plan = stalls_after(*said_all)

        reading = Reading(contestant.provider)
        await reading.end()

        assert reading.text == WHOLE
        assert reading.kinds[-2:] == ["finish-step", "finish"]
        await contestant.nothing_left()


@pytest.mark.parametrize("name", ["openai-chat", "anthropic"])
@pytest.mark.parametrize("noise", [b": still here\n\n", b'data: {"type": "ping"}\n\n'])
@pytest.mark.spec("E22")
async def test_noise_after_the_answer_gets_no_time_of_its_own(name: str, noise: bytes) -> None:
    # The bound of a single wait would never be reached.
    bounds = replace(PATIENT, late_usage_seconds=0.05)
    async with over_http(name, bounds) as contestant:
        said_all = contestant.dialect.answer(*TEXTS)[: -2 if name == "openai-chat" else -1]
        contestant.server.plan = keeps_talking_after(*said_all, noise=noise)

        reading = Reading(contestant.provider)
        await reading.end()

        assert reading.text == WHOLE
        assert reading.kinds[-2:] == ["finish-step", "finish"]
        await contestant.nothing_left()


@pytest.mark.parametrize("name", ["openai-chat", "anthropic"])
@pytest.mark.parametrize("bounds", [{"event_bytes": 10_000}, {"answer_bytes": 10_000}])
async def test_a_flood_after_the_answer_spoils_nothing(name: str, bounds: dict[str, int]) -> None:
    async with over_http(name, replace(PATIENT, **bounds)) as contestant:
        said_all = contestant.dialect.answer(*TEXTS)[: -2 if name == "openai-chat" else -1]

        async def plan(line: Line) -> None:
            await line.head()
            await line.say(*said_all, b"data: ")
            while True:
                await line.send(b"x" * 4096)

        contestant.server.plan = plan
        reading = Reading(contestant.provider)
        await reading.end()

        assert reading.text == WHOLE
        assert reading.kinds[-1] == "finish"
        await contestant.nothing_left()


# ---- cuts


@over_any_wire
async def test_a_connection_that_breaks_is_a_failure_of_the_network(name: str) -> None:
    async with over_http(name) as contestant:
        failure, reading = await failure_of(contestant, breaks_off_after(*beginning(contestant)))

        assert categorize(failure) == "network"
        assert reading.text == WHOLE


@over_any_wire
async def test_a_reset_is_a_failure_of_the_network(name: str) -> None:
    async with over_http(name) as contestant:
        failure, _ = await failure_of(contestant, resets_after(*contestant.dialect.begin()))

        assert categorize(failure) == "network"


@over_any_wire
@pytest.mark.spec("E12")
async def test_an_answer_without_its_end_is_no_answer(name: str, tmp_path: Path) -> None:
    async with over_http(name) as contestant:
        # Closed as if all had been said, in the middle of an event.
        contestant.server.plan = answers(*beginning(contestant), b'data: {"cho')
        async with a_desk(contestant.provider, tmp_path) as desk:
            completion = await desk.completion(await desk.send())

            assert completion.error_type == "stream_truncated"
            assert desk.terminals == ["error"]
            assert await desk.stored_answers() == [WHOLE]
            await contestant.nothing_left()


@over_own_wire
async def test_a_connection_that_breaks_after_the_answer_spoils_nothing(name: str) -> None:
    async with over_http(name) as contestant:
        whole = contestant.dialect.answer(*TEXTS)
        said_all = whole[: -1 if name != "openai-responses" else len(whole)]
        contestant.server.plan = breaks_off_after(*said_all)

        parts = await all_parts(contestant.provider)

        assert isinstance(parts[-1], Finish)
        await contestant.nothing_left()


# ---- forms


@over_any_wire
@pytest.mark.parametrize("line_end", [b"\n", b"\r\n", b"\r"])
async def test_a_dripping_answer_is_the_same_answer(name: str, line_end: bytes) -> None:
    if name == "pydantic-ai-openai" and line_end == b"\r":
        line_end = b"\n"  # its client doesn't know this end of a line
    async with over_http(name) as contestant:
        text = "Ünïcode: 🌧 漢字"
        whole = b"".join(contestant.dialect.answer(text, " and\n\nlines"))
        contestant.server.plan = drips([whole.replace(b"\n", line_end)])

        reading = Reading(contestant.provider)
        await reading.end()

        assert reading.text == text + " and\n\nlines"
        await contestant.nothing_left()


@over_any_wire
async def test_the_usage_of_a_step_is_told(name: str) -> None:
    async with over_http(name) as contestant:
        contestant.answers(*TEXTS)

        parts = await all_parts(contestant.provider)

        usage = next(part.usage for part in parts if isinstance(part, FinishStep))
        assert usage is not None
        assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (
            GIVEN,
            MADE,
            GIVEN + MADE,
        )


@over_own_wire
@pytest.mark.parametrize(
    "noise",
    [
        b": a comment\n\n",
        b"\n\n\n",
        b'event: from.next.year\ndata: {"type": "from.next.year", "choices": 7}\n\n',
        b"id: 7\nretry: 10\n\n",
        b'data: {"choices": [null, {"delta": null}, {"index": 9, "delta": {"content": ""}}]}\n\n',
        b'data: {"type": "content_block_delta", "index": 99, "delta": 5}\n\n',
        b'data: {"type": "response.output_item.done", "item": [], "output_index": {}}\n\n',
    ],
)
async def test_what_it_does_not_know_it_passes_over(name: str, noise: bytes) -> None:
    async with over_http(name) as contestant:
        begun, *rest = contestant.dialect.answer(*TEXTS)
        contestant.server.plan = answers(noise, begun, noise, *rest)

        reading = Reading(contestant.provider)
        await reading.end()

        assert reading.text == WHOLE


@over_own_wire
@pytest.mark.parametrize(
    "garbage",
    [b"data: {nonsense\n\n", b"data: [1, 2]\n\n", b"data: " + b"[" * 20_000 + b"\n\n"],
    ids=["no JSON", "no object", "too deep"],
)
async def test_an_event_that_is_garbled_is_a_failure(name: str, garbage: bytes) -> None:
    async with over_http(name) as contestant:
        failure, reading = await failure_of(
            contestant, answers(*beginning(contestant), garbage, *contestant.dialect.end())
        )

        assert str(failure).endswith("sent an event that is no JSON object")
        assert reading.text == WHOLE


@over_own_wire
async def test_bytes_that_are_no_text_become_a_mark(name: str) -> None:
    async with over_http(name) as contestant:
        whole = b"".join(contestant.dialect.answer("It ??? rains"))
        contestant.server.plan = answers(whole.replace(b"???", b"\xff\xc3(\xed"))

        reading = Reading(contestant.provider)
        await reading.end()

        assert reading.text.startswith("It \ufffd")
        assert reading.text.endswith(" rains")


# ---- too much


@over_own_wire
async def test_a_flood_is_held_back_by_its_reader(name: str, tmp_path: Path) -> None:
    async with over_http(name) as contestant:
        begun = contestant.dialect.begin()

        async def plan(line: Line) -> None:
            await line.head()
            await line.say(*begun)
            await floods(contestant.dialect.text("x" * 1000))(line)

        contestant.server.plan = plan
        async with a_desk(contestant.provider, tmp_path) as desk:
            handle = await desk.send()
            await desk.said("x" * 20_000)

            await desk.stop()

            assert (await desk.completion(handle)).abort_reason == "user"
            assert desk.terminals == ["stream-abort"]
            await contestant.nothing_left()


@over_own_wire
async def test_an_answer_has_a_bound(name: str) -> None:
    async with over_http(name, replace(PATIENT, answer_bytes=100_000)) as contestant:

        async def plan(line: Line) -> None:
            await line.head()
            await floods(b": nothing to say\n\n" * 100)(line)

        failure, _ = await failure_of(contestant, plan)

        assert str(failure).endswith("sent more than 100000 bytes")


@over_own_wire
async def test_a_line_that_never_ends_has_a_bound(name: str) -> None:
    async with over_http(name, replace(PATIENT, event_bytes=300_000)) as contestant:
        failure, _ = await failure_of(contestant, sends_endless_line())

        assert str(failure).endswith("sent an event of more than 300000 bytes")


@over_own_wire
async def test_the_body_of_a_refusal_has_bounds(name: str) -> None:
    async with over_http(name, replace(PATIENT, error_seconds=0.15)) as contestant:

        async def stalls(line: Line) -> None:
            await line.head(500, "text/plain")
            await line.send(b"Our machine room " * 5)
            await line.client_gone()

        stalled, _ = await failure_of(contestant, stalls)

        async def is_endless(line: Line) -> None:
            await line.head(500, "text/plain")
            while True:
                await line.send(b"sorry " * 10_000)

        endless, _ = await failure_of(contestant, is_endless)

        assert categorize(stalled) == categorize(endless) == "server_error"
        assert "Our machine room" in str(stalled)
        assert len(str(endless)) < 1000


# ---- refusals


REFUSALS: list[tuple[int, str, str, ErrorType]] = [
    (401, "invalid_api_key", "That key is not known.", "authentication"),
    (403, "permission_error", "Not for you.", "authentication"),
    (402, "billing_error", "Insufficient balance.", "quota"),
    (404, "model_not_found", "The model `m-1` does not exist.", "model_not_found"),
    (404, "not_found_error", "model: m-1", "model_not_found"),
    (404, "route", "Not found.", "api"),
    (404, "api_error", "model 'm-1' not found", "model_not_found"),
    (400, "server_error", "Unknown field.", "api"),
    (429, "rate_limit_error", "Too many requests.", "rate_limit"),
    (429, "insufficient_quota", "You exceeded your current quota.", "quota"),
    (429, "rate_limit_exceeded", "Check your plan and billing.", "quota"),
    (400, "context_length_exceeded", "This is more than the model can hold.", "context_exceeded"),
    (400, "invalid_request_error", "prompt is too long: 9 > 8", "context_exceeded"),
    (400, "invalid_request_error", "Unknown field.", "api"),
    (500, "internal_server_error", "Something broke.", "server_error"),
    (529, "overloaded_error", "Overloaded.", "server_error"),
]


@over_any_wire
@pytest.mark.parametrize(("status", "code", "message", "error_type"), REFUSALS)
async def test_a_refusal_has_its_category(
    name: str, status: int, code: str, message: str, error_type: ErrorType
) -> None:
    async with over_http(name) as contestant:
        body = contestant.dialect.refusal(code, message)

        failure, reading = await failure_of(contestant, refuses(status, body))

        assert isinstance(failure, ProviderError)
        assert categorize(failure) == failure.error_type == error_type
        assert failure.status_code == status
        assert message.rstrip(".") in str(failure)
        assert f"127.0.0.1:{contestant.server.port} ({status})" in str(failure)
        assert reading.parts == []


@over_own_wire
async def test_the_way_out_is_named(name: str) -> None:
    async with over_http(name) as contestant:

        async def told(status: int, code: str) -> str:
            body = contestant.dialect.refusal(code, "No.")
            return str((await failure_of(contestant, refuses(status, body)))[0])

        assert "CONFORMANCE_API_KEY" in await told(401, "invalid_api_key")
        assert f"name of the model: {MODEL}" in await told(404, "model_not_found")
        assert "nothing left to spend" in await told(429, "insufficient_quota")
        assert f"too long for {MODEL}" in await told(400, "context_length_exceeded")
        assert (await told(529, "overloaded_error")).endswith("says: No. Try again later")
        assert (await told(404, "route")).endswith("says: No. Is the base URL right?")


@over_own_wire
async def test_a_header_of_any_length_makes_a_short_message(name: str) -> None:
    async with over_http(name) as contestant:
        failure, _ = await failure_of(contestant, refuses(200, "", "text/" + "x" * 60_000))

        assert "answered with text/xxx" in str(failure)
        assert len(str(failure)) < 1000


@over_any_wire
@pytest.mark.parametrize("status", [429, 529])
async def test_the_time_to_wait_is_kept(name: str, status: int) -> None:
    async with over_http(name) as contestant:
        body = contestant.dialect.refusal("rate_limit_error", "Slow down.")

        failure, _ = await failure_of(contestant, refuses(status, body, retry_after="17"))

        assert isinstance(failure, ProviderError)
        assert failure.retry_after_seconds == 17
        assert "Try again in 17 s" in str(failure)


@over_own_wire
@pytest.mark.parametrize("status", [200, 502])
async def test_a_web_page_is_no_answer(name: str, status: int) -> None:
    async with over_http(name) as contestant:
        page = "<html><body><h1>It works!</h1></body></html>"

        failure, _ = await failure_of(contestant, refuses(status, page, "text/html"))

        assert str(failure).endswith(
            "Is the base URL right?" if status == 200 else "base URL right?. Try again later"
        )
        assert "<h1>" not in str(failure)


@over_own_wire
async def test_a_no_with_status_200_is_a_no(name: str) -> None:
    async with over_http(name) as contestant:
        body = contestant.dialect.refusal("overloaded_error", "Overloaded.")

        failure, _ = await failure_of(contestant, refuses(200, body))

        assert categorize(failure) == "server_error"


@over_own_wire
@pytest.mark.parametrize(
    "body", ["", "null", '"no"', '{"error": "no key"}', '{"detail": [1]}', "\x00\x1b[31m", "{" * 9]
)
async def test_a_refusal_may_be_anything(name: str, body: str) -> None:
    async with over_http(name) as contestant:
        failure, _ = await failure_of(contestant, refuses(401, body))

        assert categorize(failure) == "authentication"


@over_own_wire
@pytest.mark.parametrize("status", [301, 302, 307, 308])
async def test_a_redirect_is_not_followed(name: str, status: int) -> None:
    async with over_http(name) as contestant, a_server() as elsewhere:
        plan = refuses(status, "", location=f"{elsewhere.url}/here")

        failure, _ = await failure_of(contestant, plan)

        assert categorize(failure) == "api"
        assert "redirects aren't followed" in str(failure)
        assert elsewhere.asked == []
        assert len(contestant.server.asked) == 1


@over_own_wire
async def test_a_server_that_is_not_there_is_named(name: str) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        gone = f"127.0.0.1:{free.getsockname()[1]}"

    failure = await Reading(own_provider(name, f"http://{gone}/v1", PATIENT)).failure()

    assert categorize(failure) == "network"
    assert str(failure).startswith(f"{gone} can't be reached (")


@over_own_wire
async def test_a_server_that_can_not_prove_who_it_is_is_refused(name: str) -> None:
    def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 no TLS here\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"

        failure = await Reading(own_provider(name, url, PATIENT)).failure()

    assert categorize(failure) == "network"
    assert "can't prove who it is" in str(failure)
    assert "SSL_CERT_FILE" in str(failure)


def test_certificates_and_names_are_verified() -> None:
    tls = Wire("https://api.test/v1")._tls

    assert tls is not None
    assert tls.verify_mode is ssl.CERT_REQUIRED
    assert tls.check_hostname


# ---- the request


@over_own_wire
async def test_the_key_comes_in_its_header_and_nowhere_else(name: str) -> None:
    async with over_http(name) as contestant:
        contestant.answers(*TEXTS)
        await all_parts(contestant.provider)

        (asked,) = contestant.server.asked
        header = contestant.dialect.key_header
        assert asked.headers[header].removeprefix("Bearer ") == KEY
        rest = [value for key, value in asked.headers.items() if key != header]
        assert KEY not in f"{rest} {asked.path} {asked.body}"


@over_own_wire
async def test_a_request_names_its_model_and_its_bounds(name: str) -> None:
    async with over_http(name) as contestant:
        contestant.answers(*TEXTS)
        await all_parts(contestant.provider, model="m-2", max_output_tokens=11, temperature=0.5)

        body: dict[str, Any] = contestant.server.asked[0].body
        assert (body["model"], body["temperature"], body["stream"]) == ("m-2", 0.5, True)
        assert 11 in (body.get("max_tokens"), body.get("max_output_tokens"))


@over_any_wire
async def test_a_tool_call_comes_with_its_input(name: str) -> None:
    async with over_http(name) as contestant:
        calling = contestant.dialect.answer_calling("c-1", "weather", ['{"pla', 'ce": "Bergen"}'])
        contestant.server.plan = answers(*calling)

        parts = await all_parts(contestant.provider)

        told = [p.to_mapping() for p in parts if isinstance(p, ToolCall | ToolCallDelta)]
        named = {"toolCallId": "c-1", "toolName": "weather"}
        assert told == [
            {"type": "tool-call-delta", **named, "delta": '{"pla'},
            {"type": "tool-call-delta", **named, "delta": 'ce": "Bergen"}'},
            {"type": "tool-call", **named, "input": {"place": "Bergen"}},
        ]
        assert isinstance(parts[-1], Finish)
        assert parts[-1].finish_reason == "tool-calls"


@over_any_wire
@pytest.mark.parametrize("reason", ["length", "content-filter"])
async def test_why_an_answer_ended_is_told(name: str, reason: str) -> None:
    async with over_http(name) as contestant:
        contestant.server.plan = answers(*beginning(contestant), *contestant.dialect.end(reason))

        parts = await all_parts(contestant.provider)

        expected = "refusal" if (name, reason) == ("anthropic", "content-filter") else reason
        assert isinstance(parts[-1], Finish)
        assert parts[-1].finish_reason == expected
        assert parts[-1].raw_finish_reason not in (None, "stop")


@over_own_wire
async def test_a_hundred_answers_leave_no_connection(name: str) -> None:
    async with over_http(name) as contestant:
        contestant.answers(*TEXTS)

        for _ in range(5):
            readings = [Reading(contestant.provider) for _ in range(20)]
            for reading in readings[::2]:
                reading.task.cancel()
            async with asyncio.timeout(BOUND_SECONDS):
                await asyncio.gather(*(r.task for r in readings), return_exceptions=True)

        await contestant.nothing_left()
        assert contestant.server.most_open > 1
