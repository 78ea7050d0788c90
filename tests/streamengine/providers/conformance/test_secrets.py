"""A key that the other side sends back stands in no log, event, file, error, dump, traceback."""

from __future__ import annotations

import logging
import traceback
from pathlib import Path

import pytest

from streamengine.redact import MASK

from .contestants import KEY, OVER_HTTP, OWN_WIRE, PATIENT, over_http, own_provider
from .hostile_server import Plan, answers, refuses
from .kit import Reading, a_desk

over_any_wire = pytest.mark.parametrize("name", OVER_HTTP)

ECHO = f"Incorrect API key provided: {KEY}. See https://me:{KEY}@example.test/{KEY}"

PLANS: dict[str, Plan] = {
    "in the body": refuses(401, f'{{"error": {{"message": "{ECHO}", "code": "{KEY}"}}}}'),
    "in text": refuses(403, f"Authorization: Bearer {KEY}", "text/plain"),
    "in a page": refuses(502, f"<html>{KEY}</html>", "text/html"),
    "in a header": refuses(429, "{}", x_request_id=KEY, retry_after=KEY),
    "in the kind": refuses(200, "", f"text/{KEY}"),
    "in a redirect": refuses(302, "", location=f"https://example.test/?key={KEY}"),
}


async def everything_about(name: str, plan: Plan | None, tmp_path: Path) -> str:
    """All that is told of a failure: bare and in the engine, printed in every way."""
    async with over_http(name) as contestant:
        contestant.server.plan = plan or answers(contestant.dialect.failure(ECHO))
        failure = await Reading(contestant.provider).failure()
        shown = traceback.TracebackException.from_exception(failure, capture_locals=True)
        told = [str(failure), repr(failure), repr(vars(failure)), repr(contestant.provider)]
        told += [repr(vars(contestant.provider)), *shown.format()]
        async with a_desk(contestant.provider, tmp_path) as desk:
            completion = await desk.completion(await desk.send())
            assert completion.status == "failed"
            told += [completion.to_json(), desk.everything_told(), desk.dump()]
        return "\n".join(told)


@over_any_wire
@pytest.mark.parametrize("place", [*PLANS, "in the stream"])
async def test_a_key_that_comes_back_is_nowhere(
    name: str,
    place: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with caplog.at_level(logging.INFO):
        told = await everything_about(name, PLANS.get(place), tmp_path)
    captured = capsys.readouterr()

    assert KEY not in told
    assert KEY not in caplog.text
    assert KEY not in captured.out + captured.err


@over_any_wire
async def test_what_surrounds_the_key_is_still_told(name: str, tmp_path: Path) -> None:
    told = await everything_about(name, PLANS["in the body"], tmp_path)

    assert f"Incorrect API key provided: {MASK}" in told
    assert f"https://{MASK}@example.test/{MASK}" in told


@pytest.mark.parametrize("name", OWN_WIRE)
@pytest.mark.parametrize("spelled", ["as it is", "with escaped slashes", "with escaped quotes"])
async def test_a_key_in_the_text_of_an_answer_is_masked(name: str, spelled: str) -> None:
    key = {
        "as it is": "odd-key/0123+4567==",
        "with escaped slashes": "odd-key/0123+4567==",
        "with escaped quotes": 'odd-key"0123\\4567',
    }[spelled]
    async with over_http(name) as contestant:
        whole = contestant.dialect.answer(f"It is {key}.")
        if spelled == "with escaped slashes":
            whole = [event.replace(b"/", b"\\/") for event in whole]
        contestant.server.plan = answers(*whole)
        provider = own_provider(name, contestant.server.url, PATIENT, key=key)

        reading = Reading(provider)
        await reading.end()

        assert reading.text == f"It is {MASK}."


@pytest.mark.parametrize("name", OWN_WIRE)
async def test_a_placeholder_in_the_place_of_a_key_garbles_nothing(name: str) -> None:
    async with over_http(name) as contestant:
        contestant.answers("It rains ", "in Bergen.")
        provider = own_provider(name, contestant.server.url, PATIENT, key="e")

        reading = Reading(provider)
        await reading.end()

        assert reading.text == "It rains in Bergen."
