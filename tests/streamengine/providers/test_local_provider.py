"""LocalProvider on a fake model: the hand-over from its thread, turns, stops, ends."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import aclosing
from typing import Any, cast

import pytest
import structlog.testing

from fibers import AbortController
from streamengine import StreamRequest
from streamengine.model.parts import (
    Finish,
    FinishStep,
    ProviderPart,
    TextDelta,
    TextEnd,
    TextStart,
    UnknownPart,
)
from streamengine.model.usage import Usage
from streamengine.providers.local import LocalModelError, LocalProvider
from streamengine.providers.local.provider import OUTBOX_PIECES

from .fake_model import BOUND_SECONDS, FakeContext, FakeModel, Gate, opened
from .kit import text_of

Part = ProviderPart | UnknownPart


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def _provider(model: FakeModel, **options: Any) -> LocalProvider:
    options.setdefault("context_tokens", 1000)
    return LocalProvider(load=lambda: model, **options)


def _stream(
    provider: LocalProvider, text: str = "hello", controller: AbortController | None = None
) -> AsyncIterator[Part]:
    signal = (controller or AbortController()).signal
    return provider.stream(StreamRequest(text=text), signal)


async def _read(parts: AsyncIterator[Part]) -> list[Part]:
    async with aclosing(cast("Any", parts)):
        return [part async for part in parts]


async def _bounded(work: Any) -> Any:
    async with asyncio.timeout(BOUND_SECONDS):
        return await work


async def _in_thread(wait: Callable[[], None]) -> None:
    await asyncio.to_thread(wait)


def _model_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "local-model"]


async def _thread_ended() -> None:
    for thread in _model_threads():
        await asyncio.to_thread(thread.join, BOUND_SECONDS)
    assert _model_threads() == []


# ---- an answer


async def test_an_answer_is_text_token_by_token_then_usage_and_finish() -> None:
    parts = await _read(_stream(_provider(FakeModel("Hi."), system=""), "hello"))

    prompt = len("<\nuser\nhello>\n<assistant\n") - 1  # a marker is one token
    assert parts == [
        TextStart(),
        TextDelta(text="H"),
        TextDelta(text="i"),
        TextDelta(text="."),
        TextEnd(),
        FinishStep(
            finish_reason="stop",
            usage=Usage(
                input_tokens=prompt,
                cached_input_tokens=0,
                output_tokens=3,
                total_tokens=prompt + 3,
            ),
        ),
        Finish(finish_reason="stop", raw_finish_reason="stop"),
    ]


@pytest.mark.parametrize("text", ["naïve", "日本語", "🦊🇫🇷", "e\u0301"])
async def test_a_character_that_is_spread_over_tokens_comes_whole(text: str) -> None:
    parts = await _read(_stream(_provider(FakeModel(text))))

    deltas = [part.text for part in parts if isinstance(part, TextDelta)]
    assert deltas == list(text)


async def test_half_a_character_at_the_bound_is_left_out() -> None:
    parts = await _read(_stream(_provider(FakeModel("a🦊"), max_new_tokens=3)))

    assert text_of(parts) == "a"
    assert isinstance(parts[-1], Finish)
    assert parts[-1].finish_reason == "length"


async def test_bytes_that_are_no_character_are_replaced() -> None:
    model = FakeModel("a?b")
    plain = model.bytes_of
    model.bytes_of = lambda token: b"\xff" if token == ord("?") else plain(token)  # type: ignore[method-assign]  # the model says something that is no UTF-8

    assert text_of(await _read(_stream(_provider(model)))) == "a\ufffdb"


async def test_the_conversation_so_far_is_in_the_prompt() -> None:
    prompts: list[str] = []

    def answer(prompt: str) -> str:
        prompts.append(prompt)
        return "ok"

    await _read(_stream(_provider(FakeModel(answer), system="Be kind."), "what now?"))

    assert prompts[0] == (
        "<|im_start|>system\nBe kind.<|im_end|>\n"
        "<|im_start|>user\nwhat now?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


# ---- the thread


async def test_the_model_is_loaded_once_off_the_loop_and_the_thread_ends() -> None:
    loaded_on: list[str] = []

    def load() -> FakeModel:
        loaded_on.append(threading.current_thread().name)
        return FakeModel()

    provider = LocalProvider(load=load)
    assert loaded_on == []
    for _ in range(3):
        await _read(_stream(provider))
        await _thread_ended()

    assert loaded_on == ["local-model"]


async def test_a_second_answer_begins_where_the_first_has_read() -> None:
    model = FakeModel("ok")
    provider = _provider(model)
    await _read(_stream(provider, "the same question"))

    parts = await _read(_stream(provider, "the same question"))

    step = next(part for part in parts if isinstance(part, FinishStep))
    assert step.usage is not None
    assert step.usage.input_tokens is not None
    assert step.usage.cached_input_tokens == step.usage.input_tokens - 1
    assert len(model.contexts) == 1


async def test_another_conversation_gets_a_lane_of_its_own() -> None:
    model = FakeModel("ok")
    provider = _provider(model, lanes=2, system="")
    for text in ("a" * 50, "b" * 50, "a" * 50, "c" * 50):
        await _read(_stream(provider, text))

    # The third found its lane again; the fourth got that of the second, unused for longest.
    a, b = model.contexts
    assert [len(context.tokens) > 50 for context in (a, b)] == [True, True]
    assert b"a" * 50 in bytes(t for t in a.tokens if t < 256)
    assert b"c" * 50 in bytes(t for t in b.tokens if t < 256)


async def test_a_slow_reader_holds_up_nobody_and_the_thread_is_not_far_ahead_of_it() -> None:
    model = FakeModel(lambda prompt: "x" * 200 if "slow" in prompt else "y" * 200)
    provider = _provider(model, lanes=2)
    slow = _stream(provider, "slow")
    async with aclosing(cast("Any", slow)):
        got = [await _bounded(anext(slow)) for _ in range(2)]

        quick = await _bounded(_read(_stream(provider, "quick")))

        # Between any two steps of the other it had its turn, as long as there was room.
        assert text_of(quick) == "y" * 200
        assert _said(model.contexts[0]) <= len(got) - 1 + OUTBOX_PIECES
        assert text_of(await _bounded(_read(slow))) == "x" * 199


def _said(context: FakeContext) -> int:
    """How many tokens of an answer of nothing but x it has made and read."""
    return sum(
        1 for _ in itertools.takewhile(lambda token: token == ord("x"), context.tokens[::-1])
    )


async def test_answers_take_turns_step_by_step() -> None:
    gate = Gate()
    model = FakeModel("1234", before_read=gate.pass_through)
    provider = _provider(model, lanes=2, system="")
    with opened(gate):
        first = asyncio.ensure_future(_read(_stream(provider, "a")))
        await _in_thread(gate.wait_for_arrival)
        second = asyncio.ensure_future(_read(_stream(provider, "b")))
        await asyncio.sleep(0)
    both = await _bounded(asyncio.gather(first, second))

    assert [text_of(parts) for parts in both] == ["1234", "1234"]
    a, b = model.contexts
    # Who comes takes its place at the end, so the first had one more step alone.
    assert model.trace == [a, *[a, b] * 4, b]


async def test_what_finds_no_lane_waits_in_its_order() -> None:
    gate = Gate()
    order: list[str] = []

    def answer(prompt: str) -> str:
        name = prompt.split("user\n")[1][0]
        if name not in order:
            order.append(name)
        return "ok"

    model = FakeModel(answer, before_read=gate.pass_through)
    provider = _provider(model, lanes=1, system="")
    with opened(gate):
        reads = [asyncio.ensure_future(_read(_stream(provider, name))) for name in "abc"]
        await _in_thread(gate.wait_for_arrival)
    await _bounded(asyncio.gather(*reads))

    assert order == ["a", "b", "c"]


# ---- stops


async def test_an_abort_ends_the_stream_at_once_and_the_thread_after_its_step() -> None:
    gate = Gate()
    model = FakeModel("x" * 200, before_read=gate.pass_through)
    controller = AbortController()
    parts = _stream(_provider(model, system=""), "hello", controller)
    with opened(gate):
        gate.let(3)
        got = [await _bounded(anext(parts)) for _ in range(4)]
        for _ in range(4):
            await _in_thread(gate.wait_for_arrival)  # it stands in its fourth step
        controller.abort()

        rest = await _bounded(_read(parts))

        assert (text_of(got), rest) == ("xxx", [])
        steps = len(model.trace)
    await _thread_ended()
    assert (steps, len(model.trace)) == (4, 4)


async def test_an_abort_while_waiting_for_a_lane() -> None:
    gate = Gate()
    model = FakeModel("ok", before_read=gate.pass_through)
    provider = _provider(model, lanes=1, system="")
    controller = AbortController()
    with opened(gate):
        running = asyncio.ensure_future(_read(_stream(provider, "a")))
        await _in_thread(gate.wait_for_arrival)
        waiting = asyncio.ensure_future(_read(_stream(provider, "b", controller)))
        await asyncio.sleep(0)
        controller.abort()

        assert await _bounded(waiting) == [TextStart()]
        assert not running.done()
    assert text_of(await _bounded(running)) == "ok"
    assert len(model.trace) == 3  # nothing of the second was read


async def test_a_cancelled_reader_frees_its_lane() -> None:
    gate = Gate()
    model = FakeModel("x" * 500, before_read=gate.pass_through)
    provider = _provider(model, lanes=1, system="")
    with opened(gate):
        reading = asyncio.ensure_future(_read(_stream(provider, "a")))
        await _in_thread(gate.wait_for_arrival)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
    parts = await _bounded(_read(_stream(provider, "b")))

    assert text_of(parts) == "x" * 500
    assert len(model.trace) == 1 + 501


async def test_aborted_before_the_first_part_nothing_is_made() -> None:
    model = FakeModel()
    controller = AbortController()
    parts = _stream(_provider(model), "hello", controller)
    controller.abort()

    assert await _bounded(_read(parts)) == []
    assert model.trace == []


async def test_a_stream_that_is_never_read_leaves_nothing() -> None:
    model = FakeModel()
    controller = AbortController()
    parts = cast("Any", _stream(_provider(model), "hello", controller))

    await parts.aclose()

    assert (model.trace, _model_threads()) == ([], [])
    assert controller.signal._listeners == {}


async def test_after_an_answer_nothing_listens_to_the_signal() -> None:
    controller = AbortController()

    await _read(_stream(_provider(FakeModel()), "hello", controller))

    assert controller.signal._listeners == {}


# ---- the end of a provider, and what goes wrong


async def test_close_ends_what_runs_and_what_waits_and_frees_the_model() -> None:
    gate = Gate()
    model = FakeModel("x" * 500, before_read=gate.pass_through)
    provider = _provider(model, lanes=1)
    with opened(gate):
        reads = [asyncio.ensure_future(_read(_stream(provider))) for _ in range(2)]
        await _in_thread(gate.wait_for_arrival)
        provider.close()
    results = await _bounded(asyncio.gather(*reads, return_exceptions=True))
    await _thread_ended()

    assert [getattr(result, "kind", None) for result in results] == ["model_closed"] * 2
    assert model.closed == 1
    with pytest.raises(LocalModelError, match="closed"):
        await _read(_stream(provider))


async def test_close_of_an_idle_provider_frees_the_model_at_once() -> None:
    model = FakeModel()
    provider = _provider(model)
    await _read(_stream(provider))
    await _thread_ended()

    provider.close()
    provider.close()

    assert model.closed == 1


async def test_a_failed_load_fails_the_stream_and_the_next_tries_again() -> None:
    results: list[FakeModel | Exception] = [OSError("no memory"), FakeModel("ok")]

    def load() -> FakeModel:
        result = results.pop(0)
        if isinstance(result, Exception):
            raise result
        return result

    provider = LocalProvider(load=load)
    with pytest.raises(OSError, match="no memory"):
        await _bounded(_read(_stream(provider)))

    assert text_of(await _bounded(_read(_stream(provider)))) == "ok"


async def test_a_failure_in_the_middle_ends_that_stream_only() -> None:
    def fail(context: FakeContext) -> None:
        if bytes(t for t in context.tokens if t < 256).endswith(b"xx"):
            raise OSError("the engine broke")

    model = FakeModel(lambda prompt: "xxx" if "bad" in prompt else "yyy", before_read=fail)
    provider = _provider(model)

    results = await _bounded(
        asyncio.gather(
            _read(_stream(provider, "bad")), _read(_stream(provider)), return_exceptions=True
        )
    )

    assert isinstance(results[0], OSError)
    assert text_of(results[1]) == "yyy"


async def test_a_message_that_is_too_long_fails_the_stream_with_its_category() -> None:
    provider = _provider(FakeModel(), context_tokens=1000, max_new_tokens=900)

    with pytest.raises(LocalModelError) as raised:
        await _bounded(_read(_stream(provider, "x" * 200)))

    assert raised.value.error_type == "context_exceeded"


def test_another_model_is_refused_at_creation() -> None:
    provider = _provider(FakeModel())

    with pytest.raises(LocalModelError) as raised:
        provider.stream(StreamRequest(text="x", model="gpt-9"), AbortController().signal)

    assert (raised.value.kind, raised.value.error_type) == ("unknown_model", "model_not_found")
    assert "'gpt-9'" in str(raised.value)


@pytest.mark.parametrize("name", ["local", "smollm2-135m-instruct"])
def test_the_local_model_has_names(name: str) -> None:
    provider = _provider(FakeModel())

    parts = provider.stream(StreamRequest(text="x", model=name), AbortController().signal)

    assert hasattr(parts, "__anext__")


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": float("nan")},
        {"lanes": 0},
        {"max_new_tokens": 0},
        {"max_new_tokens": 1280},
    ],
)
def test_bad_numbers_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError):
        LocalProvider(**options)
