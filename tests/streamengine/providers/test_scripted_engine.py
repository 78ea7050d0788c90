"""What the engine makes of each misbehaviour that a script can ask for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import structlog.testing

import fibers as fb
from fibers.app import close_bounded
from fibers.testing import TestClock
from streamengine import SendError
from streamengine.providers.scripted import ScriptedProvider

from .kit import SCRIPTS, Service, ended

SAID = "one two three"


@pytest.fixture(autouse=True)
def logged() -> Iterator[list[Any]]:
    """What is logged, most of it on purpose, is no output of the tests."""
    with structlog.testing.capture_logs() as logs:
        yield cast("list[Any]", logs)


def _service(rt: fb.Runtime, clock: TestClock, script: str, directory: Path) -> Service:
    provider = ScriptedProvider.from_file(SCRIPTS / f"{script}.json")
    return Service(rt, clock, provider, directory)


@pytest.mark.parametrize(
    "script", ["well_behaved", "unknown_part", "garbled_part", "slow_cleanup", "blocks_thread"]
)
async def test_a_stream_completes(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, script: str
) -> None:
    service = _service(rt, clock, script, tmp_path)

    completion = await service.answer("hello")

    assert completion.status == "completed"
    assert service.told == ["stream-start", *["stream-delta"] * 3, "stream-end"]
    assert await service.texts() == ["hello", SAID]


@pytest.mark.parametrize(
    ("script", "error_type"),
    [
        ("raises_midway", "unknown"),
        ("raises_rate_limit", "rate_limit"),
        ("error_part", "api"),
        ("no_finish", "stream_truncated"),
        ("made_up_finish", "stream_truncated"),
        ("blank_text", "empty_output"),
    ],
)
async def test_a_stream_fails_with_its_category(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, script: str, error_type: str
) -> None:
    service = _service(rt, clock, script, tmp_path)

    completion = await service.answer("hello")

    assert (completion.status, completion.error_type) == ("failed", error_type)
    assert service.told[-1] == "error"
    assert await service.texts() == ["hello"]


@pytest.mark.parametrize("script", ["no_parts", "raises_cancelled"])
async def test_a_stream_that_ends_without_a_word_of_why_has_failed(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, script: str
) -> None:
    service = _service(rt, clock, script, tmp_path)

    completion = await service.answer("hello")

    assert completion.status == "failed"
    assert service.told.count("error") == 1


@pytest.mark.parametrize(
    "script",
    ["never_yields", "raises_after_abort", "ignores_abort", "swallows_cancel", "endless_cleanup"],
)
async def test_a_stop_ends_the_stream_whatever_the_provider_does(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, script: str
) -> None:
    provider = ScriptedProvider.from_file(SCRIPTS / f"{script}.json")
    service = Service(rt, clock, provider, tmp_path)

    completion = await service.answer("hello")

    assert (completion.status, completion.abort_reason) == ("aborted", "user")
    assert service.told[-1] == "stream-abort"
    assert service.told.count("stream-abort") == 1
    provider.release_cleanups()


@pytest.mark.parametrize(
    ("script", "kind"), [("refuses", "unknown"), ("refuses_with_kind", "api_key_not_found")]
)
async def test_a_refusal_is_the_answer_to_the_send(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path, script: str, kind: str
) -> None:
    service = _service(rt, clock, script, tmp_path)

    with pytest.raises(SendError) as raised:
        await service.answer("hello")

    assert raised.value.kind == kind
    assert service.events == []


@pytest.mark.lifecycle
async def test_a_close_in_the_middle_of_a_scripted_answer(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    service = _service(rt, clock, "ignores_abort", tmp_path)
    answer = await service.send("hello")
    await rt.run(clock.adjust(0.05))

    closed_in_time = await close_bounded(service.scope)

    assert closed_in_time
    assert ended(answer).abort_reason == "system"
    assert (await service.texts())[-1].startswith(SAID)
