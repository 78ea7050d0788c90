"""The local provider in the engine, on real files; and the real model, where that is asked for."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from fibers import AbortController
from fibers.app import AppScope, close_bounded
from streamengine import (
    Event,
    FileHistory,
    Provider,
    SendError,
    StreamEngine,
    StreamRequest,
)
from streamengine.model import AssistantRow, TextPart, UserRow
from streamengine.model.events import ErrorEvent, StreamDeltaEvent, StreamEndEvent
from streamengine.model.parts import Finish, FinishStep, ProviderPart, TextDelta, UnknownPart
from streamengine.model.usage import Usage
from streamengine.providers.local import LocalModelError, LocalProvider
from streamengine.providers.local.files import find_model_file

from .fake_model import BOUND_SECONDS, FakeModel
from .kit import row_text, text_of

FIRST_TOKEN_BOUND_SECONDS = 5.0

WORKSPACE = "w1"


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.local_model)])
def provider(request: pytest.FixtureRequest) -> Iterator[LocalProvider]:
    """Gives long answers; both models take the same path from the thread on."""
    if request.param == "fake":
        local = LocalProvider(load=lambda: FakeModel("word " * 10_000, context_tokens=60_000))
    else:
        local = LocalProvider(seed=1)
    yield local
    local.close()


class App:
    """An engine in an app scope, on real files, and what it told."""

    def __init__(self, directory: Path, provider: Provider) -> None:
        self.scope = AppScope()
        self.history = FileHistory(directory, fsync="off")
        self.engine = StreamEngine(history=self.history, provider=provider, scope=self.scope)
        self.events: list[Event] = []
        self._news = asyncio.Event()
        self.engine.events.subscribe(self._note)

    def _note(self, event: Event) -> None:
        self.events.append(event)
        self._news.set()

    @property
    def text(self) -> str:
        """What was told so far."""
        return "".join(event.delta for event in self.events if isinstance(event, StreamDeltaEvent))

    async def deltas(self, count: int) -> None:
        """Until so many deltas were told."""
        async with asyncio.timeout(6 * BOUND_SECONDS):
            while sum(isinstance(event, StreamDeltaEvent) for event in self.events) < count:
                last = self.events[-1] if self.events else None
                assert not isinstance(last, ErrorEvent | StreamEndEvent), last
                self._news.clear()
                await self._news.wait()

    async def last_text(self) -> tuple[str, bool]:
        """The text of the last row, and whether it is a partial one."""
        last = (await self.history.read(WORKSPACE))[-1]
        return row_text(last), last.is_partial


@pytest.fixture
async def app(tmp_path: Path, provider: LocalProvider) -> AsyncIterator[App]:
    app = App(tmp_path, provider)
    yield app
    await close_bounded(app.scope)


@pytest.mark.lifecycle
async def test_a_close_in_the_middle_of_an_answer_keeps_what_was_said(app: App) -> None:
    handle = await app.engine.start_stream(WORKSPACE, StreamRequest(text="Tell me a story."))
    await app.deltas(5)

    assert await close_bounded(app.scope)

    completion = await handle.completion
    assert (completion.status, completion.abort_reason) == ("aborted", "system")
    assert await app.last_text() == (app.text, True)
    assert app.engine.describe()["abandoned"] == []


async def test_a_stop_in_the_middle_then_another_message(app: App) -> None:
    first = await app.engine.start_stream(WORKSPACE, StreamRequest(text="Tell me a story."))
    await app.deltas(5)
    await app.engine.stop_stream(WORKSPACE, reason="user")
    stopped = await app.last_text()
    told = len(app.events)

    second = await app.engine.start_stream(WORKSPACE, StreamRequest(text="Go on."))
    await app.deltas(10)
    await app.engine.stop_stream(WORKSPACE, reason="user")

    assert stopped[1]
    assert (await first.completion).abort_reason == "user"
    assert (await second.completion).abort_reason == "user"
    assert [event.type for event in app.events[:told]].count("stream-abort") == 1


async def test_an_answer_that_is_told_whole_is_the_row(tmp_path: Path) -> None:
    app = App(tmp_path, LocalProvider(load=lambda: FakeModel("It is 🦊.")))

    handle = await app.engine.start_stream(WORKSPACE, StreamRequest(text="What is it?"))

    assert (await handle.completion).status == "completed"
    assert isinstance(app.events[-1], StreamEndEvent)
    assert await app.last_text() == ("It is 🦊.", False)
    await close_bounded(app.scope)


async def test_a_model_that_is_not_there_is_the_answer_to_the_send(tmp_path: Path) -> None:
    app = App(tmp_path, LocalProvider(model_file=tmp_path / "missing.gguf"))

    with pytest.raises(SendError) as raised:
        await app.engine.start_stream(WORKSPACE, StreamRequest(text="What is it?"))

    assert raised.value.kind == "model_missing"
    assert "make run" in raised.value.message
    assert app.events == []
    await close_bounded(app.scope)


async def test_a_message_that_is_too_long_ends_as_such(tmp_path: Path) -> None:
    model = FakeModel(context_tokens=1000)
    app = App(tmp_path, LocalProvider(load=lambda: model, max_new_tokens=900))

    handle = await app.engine.start_stream(WORKSPACE, StreamRequest(text="long " * 100))

    completion = await handle.completion
    assert (completion.status, completion.error_type) == ("failed", "context_exceeded")
    await close_bounded(app.scope)


# ---- the real model


async def _read(
    provider: LocalProvider, text: str, **request: Any
) -> list[ProviderPart | UnknownPart]:
    signal = AbortController().signal
    return [part async for part in provider.stream(StreamRequest(text=text, **request), signal)]


def _usage(parts: list[ProviderPart | UnknownPart]) -> Usage:
    usage = next(part.usage for part in parts if isinstance(part, FinishStep))
    assert usage is not None
    return usage


@pytest.fixture
def real() -> Iterator[LocalProvider]:
    provider = LocalProvider(temperature=0, max_new_tokens=24)
    yield provider
    provider.close()


@pytest.mark.local_model
async def test_the_real_model_answers_soon_and_token_by_token(real: LocalProvider) -> None:
    started = time.perf_counter()
    first = None
    texts: list[str] = []
    async for part in real.stream(
        StreamRequest(text="What is the capital of France?"), AbortController().signal
    ):
        if isinstance(part, TextDelta):
            first = first or time.perf_counter()
            texts.append(part.text)

    assert first is not None
    assert first - started < FIRST_TOKEN_BOUND_SECONDS
    assert "Paris" in "".join(texts)
    assert len(texts) > 3


@pytest.mark.local_model
async def test_the_real_model_says_how_it_ended(real: LocalProvider) -> None:
    short = await _read(real, "What is the capital of France?")
    long = await _read(real, "Write a long story about the sea.")

    assert isinstance(short[-1], Finish)
    assert isinstance(long[-1], Finish)
    assert (short[-1].finish_reason, long[-1].finish_reason) == ("stop", "length")
    assert _usage(long).output_tokens == 24


@pytest.mark.local_model
async def test_of_a_conversation_that_goes_on_only_what_is_new_is_read(
    real: LocalProvider,
) -> None:
    question = "What is the capital of France?"
    answer = await _read(real, question)
    history = (
        UserRow(id="u", parts=(TextPart(text=question),)),
        AssistantRow(id="a", parts=(TextPart(text=text_of(answer)),)),
    )

    more = _usage(await _read(real, "And of Spain?", history=history))

    before = _usage(answer)
    assert before.total_tokens is not None
    assert more.cached_input_tokens is not None
    assert more.cached_input_tokens >= before.total_tokens - 1
    # It read the marker that ends the answer, the question, and what opens the next answer.
    assert more.input_tokens is not None
    assert more.input_tokens - more.cached_input_tokens < 20


@pytest.mark.local_model
async def test_two_answers_of_the_real_model_at_once_are_those_of_each_alone(
    real: LocalProvider,
) -> None:
    questions = ["What is the capital of France?", "Name three colours."]
    alone = [text_of(await _read(real, question)) for question in questions]

    together = await asyncio.gather(*(_read(real, question) for question in questions))

    assert [text_of(parts) for parts in together] == alone


@pytest.mark.local_model
async def test_a_remembered_beginning_changes_nothing_in_the_answer(real: LocalProvider) -> None:
    question = "Name three colours of the rainbow, please."
    expected = text_of(await _read(real, question))
    one_lane = LocalProvider(temperature=0, max_new_tokens=24, lanes=1)
    await _read(one_lane, "Name three colours of the flag.")

    parts = await _read(one_lane, question)

    one_lane.close()
    assert _usage(parts).cached_input_tokens
    assert text_of(parts) == expected


@pytest.mark.local_model
async def test_the_same_seed_gives_the_same_answer() -> None:
    texts: list[str] = []
    for seed in (7, 7, 8):
        provider = LocalProvider(temperature=1.5, max_new_tokens=24, seed=seed)
        texts.append(text_of(await _read(provider, "Invent a word.")))
        provider.close()

    assert texts[0] == texts[1] != texts[2]


@pytest.mark.local_model
async def test_characters_of_several_tokens_come_whole(real: LocalProvider) -> None:
    from streamengine.providers.local.llama import load_model

    text = "日本 🦊 ñ"
    model = load_model(find_model_file(), context_tokens=64)
    tokens = model.tokens_of(text)

    assert b"".join(model.bytes_of(token) for token in tokens).decode() == text
    assert len(tokens) > len(text)  # so some token is less than a character
    model.close()


@pytest.mark.local_model
async def test_the_engine_says_nothing_on_stderr(
    real: LocalProvider, capfd: pytest.CaptureFixture[str]
) -> None:
    await _read(real, "Hello")

    assert capfd.readouterr().err == ""


@pytest.mark.local_model
async def test_a_file_that_is_cut_off_is_reported_and_not_tried_again(tmp_path: Path) -> None:
    path = tmp_path / "half.gguf"
    path.write_bytes(find_model_file().read_bytes()[:50_000_000])
    provider = LocalProvider(model_file=path)
    with pytest.raises(LocalModelError, match="corrupted or incomplete") as raised:
        await _read(provider, "Hello")
    assert raised.value.kind == "model_unusable"

    with pytest.raises(LocalModelError, match="corrupted or incomplete"):
        provider.stream(StreamRequest(text="Hello"), AbortController().signal)


@pytest.mark.local_model
async def test_more_lanes_than_the_engine_can_keep_are_an_error_not_a_crash() -> None:
    provider = LocalProvider(lanes=40, max_new_tokens=4, context_tokens=64)
    try:
        results = await asyncio.gather(
            *(_read(provider, f"{number}?") for number in range(40)), return_exceptions=True
        )
    finally:
        provider.close()

    # Their lanes are freed by the thread, and the next test may want them.
    for thread in threading.enumerate():
        if thread.name == "local-model":
            await asyncio.to_thread(thread.join, BOUND_SECONDS)
    failed = [result for result in results if isinstance(result, BaseException)]
    assert 0 < len(failed) < 40
    assert {getattr(error, "kind", None) for error in failed} == {"model_failed"}
