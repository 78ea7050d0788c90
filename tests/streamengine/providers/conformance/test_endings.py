"""Every provider, every way in which an answer ends: bare, and through the engine."""

from __future__ import annotations

import asyncio
import gc
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

import pytest

from fibers import AbortController
from streamengine import StreamRequest
from streamengine.model import Finish

from .contestants import ALL, FAILURE, OverHttp, a_contestant
from .hostile_server import BOUND_SECONDS
from .kit import Reading, a_desk

every_provider = pytest.mark.parametrize("name", ALL)

TEXTS = ("It rains ", "in Bergen. ", "🌧")
WHOLE = "".join(TEXTS)

# ---- bare


@every_provider
async def test_a_whole_answer_ends_with_one_finish(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.answers(*TEXTS)

        reading = Reading(contestant.provider)
        await reading.end()

        finishes = [part for part in reading.parts if isinstance(part, Finish)]
        assert reading.text == WHOLE
        assert finishes == [reading.parts[-1]]
        assert finishes[0].finish_reason == "stop"
        assert finishes[0].is_terminal
        await contestant.nothing_left()


@every_provider
async def test_every_block_that_begins_ends(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.answers(*TEXTS)

        reading = Reading(contestant.provider)
        await reading.end()

        kinds = [kind for kind in reading.kinds if kind in ("text-start", "text-end")]
        assert kinds in (["text-start", "text-end"], ["text-end"])
        assert reading.kinds.index("text-end") < reading.kinds.index("finish")


@every_provider
async def test_a_failure_is_raised_after_what_was_said(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.fails_after(*TEXTS)

        reading = Reading(contestant.provider)
        failure = await reading.failure()

        assert FAILURE in str(failure)
        assert reading.text == WHOLE
        assert "finish" not in reading.kinds
        await contestant.nothing_left()


@every_provider
async def test_an_abort_of_the_signal_ends_it_without_a_failure(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.stalls_after(*TEXTS)
        reading = Reading(contestant.provider)
        await reading.said(WHOLE)

        reading.controller.abort("enough")
        await reading.end()

        assert "finish" not in reading.kinds
        await contestant.nothing_left()


@every_provider
async def test_a_signal_that_was_aborted_before_gives_nothing(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.answers(*TEXTS)
        reading = Reading(contestant.provider)
        reading.controller.abort("enough")

        await reading.end()

        assert reading.parts == []


@every_provider
async def test_a_cancelled_reader_leaves_nothing(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.stalls_after(*TEXTS)
        reading = Reading(contestant.provider)
        await reading.said(WHOLE)

        reading.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading.end()

        await contestant.nothing_left()


@every_provider
async def test_a_reader_that_breaks_off_and_closes_leaves_nothing(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.stalls_after(*TEXTS)
        signal = AbortController().signal
        parts = cast("Any", contestant.provider.stream(StreamRequest(text="Hi"), signal))

        async with asyncio.timeout(BOUND_SECONDS), aclosing(parts):
            async for part in parts:
                if part.type == "text-delta":
                    break

        await contestant.nothing_left()


@every_provider
async def test_a_reader_that_just_drops_the_iterator_leaves_nothing(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.stalls_after(*TEXTS)

        async def take_one() -> None:
            signal = AbortController().signal
            async for part in contestant.provider.stream(StreamRequest(text="Hi"), signal):
                if part.type == "text-delta":
                    return

        await asyncio.wait_for(take_one(), BOUND_SECONDS)
        gc.collect()

        await contestant.nothing_left()


@every_provider
async def test_an_iterator_that_nobody_reads_costs_nothing(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.answers(*TEXTS)
        signal = AbortController().signal

        parts = cast("Any", contestant.provider.stream(StreamRequest(text="Hi"), signal))
        await parts.aclose()

        if isinstance(contestant, OverHttp):
            assert contestant.server.asked == []


@every_provider
async def test_two_answers_at_once_do_not_mix(name: str) -> None:
    async with a_contestant(name) as contestant:
        contestant.answers(*TEXTS)

        first, second = Reading(contestant.provider), Reading(contestant.provider)
        await first.end()
        await second.end()

        assert (first.text, second.text) == (WHOLE, WHOLE)
        await contestant.nothing_left()


# ---- through the engine


@every_provider
async def test_a_whole_answer_is_one_row_and_one_stream_end(name: str, tmp_path: Path) -> None:
    async with a_contestant(name) as contestant:
        contestant.answers(*TEXTS)
        async with a_desk(contestant.provider, tmp_path) as desk:
            completion = await desk.completion(await desk.send())

            assert completion.status == "completed"
            assert desk.terminals == ["stream-end"]
            assert desk.text == WHOLE
            assert await desk.stored_answers() == [WHOLE]
            await contestant.nothing_left()


@every_provider
@pytest.mark.spec("E1")
async def test_a_failure_is_one_error_and_the_text_is_kept(name: str, tmp_path: Path) -> None:
    async with a_contestant(name) as contestant:
        contestant.fails_after(*TEXTS)
        async with a_desk(contestant.provider, tmp_path) as desk:
            completion = await desk.completion(await desk.send())

            assert completion.status == "failed"
            assert FAILURE in (completion.error or "")
            assert desk.terminals == ["error"]
            assert await desk.stored_answers() == [WHOLE]
            await contestant.nothing_left()


@every_provider
@pytest.mark.spec("E1")
async def test_a_stop_is_one_abort_and_the_text_is_kept(name: str, tmp_path: Path) -> None:
    async with a_contestant(name) as contestant:
        contestant.stalls_after(*TEXTS)
        async with a_desk(contestant.provider, tmp_path) as desk:
            handle = await desk.send()
            await desk.said(WHOLE)

            await desk.stop()

            assert (await desk.completion(handle)).abort_reason == "user"
            assert desk.terminals == ["stream-abort"]
            assert await desk.stored_answers() == [WHOLE]
            await contestant.nothing_left()


@every_provider
@pytest.mark.spec("E1")
async def test_a_shutdown_is_one_abort_and_the_text_is_kept(name: str, tmp_path: Path) -> None:
    async with a_contestant(name) as contestant:
        contestant.stalls_after(*TEXTS)
        async with a_desk(contestant.provider, tmp_path) as desk:
            handle = await desk.send()
            await desk.said(WHOLE)

            await desk.close_scope()

            assert (await desk.completion(handle)).abort_reason == "system"
            assert desk.terminals == ["stream-abort"]
            assert await desk.stored_answers() == [WHOLE]
            await contestant.nothing_left()


@pytest.mark.parametrize("name", [name for name in ALL if name != "scripted"])
async def test_the_workspace_takes_the_next_message(name: str, tmp_path: Path) -> None:
    async with a_contestant(name) as contestant:
        contestant.stalls_after(*TEXTS)
        async with a_desk(contestant.provider, tmp_path) as desk:
            first = await desk.send()
            await desk.said(WHOLE)
            contestant.answers("Sun.")

            second = await desk.send("And tomorrow?")

            assert (await desk.completion(first)).status == "aborted"
            assert (await desk.completion(second)).status == "completed"
            assert desk.terminals == ["stream-abort", "stream-end"]
            assert await desk.stored_answers() == [WHOLE, "Sun."]
            await contestant.nothing_left()
