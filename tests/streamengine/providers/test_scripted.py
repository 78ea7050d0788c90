"""ScriptedProvider alone: each behaviour of a script, on the virtual clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

import fibers as fb
from fibers import AbortController
from fibers.testing import TestClock
from streamengine import StreamRequest
from streamengine.model.parts import Finish, UnknownPart
from streamengine.providers.script import Script
from streamengine.providers.scripted import ScriptedError, ScriptedProvider

from .kit import SCRIPTS, Reading

Read = Callable[..., Reading]


@pytest.fixture
def read(rt: fb.Runtime, clock: TestClock) -> Read:
    """Begin to read the answer of a script of the tests (or of a provider)."""

    def begin(script: str | ScriptedProvider, text: str = "hello") -> Reading:
        provider = script if isinstance(script, ScriptedProvider) else _provider(script)
        return Reading(rt, clock, provider, text)

    return begin


def _provider(script: str) -> ScriptedProvider:
    return ScriptedProvider.from_file(SCRIPTS / f"{script}.json")


def _steps(steps: str, **answer: Any) -> ScriptedProvider:
    fields = "".join(f'"{name}": "{value}", ' for name, value in answer.items())
    return ScriptedProvider(Script.parse(f'{{"answers": [{{{fields}"steps": [{steps}]}}]}}'))


# ---- parts and time


async def test_words_come_at_their_times_and_join_to_the_text(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    reading = read(_steps('{"do": "say", "text": "one  two\\n three", "everyMs": 10}'))

    await rt.run(clock.adjust(1))

    assert reading.kinds == ["text-start", *["text-delta"] * 3, "text-end"]
    assert reading.times_ms == [0, 10, 20, 30, 30]
    assert reading.text == "one  two\n three"


async def test_a_part_waits_as_long_as_it_says(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    part = '"part": {"type": "text-delta", "delta": "x"}'
    reading = read(
        _steps(
            f'{{"do": "give", {part}, "afterMs": 7}}, {{"do": "wait", "ms": 100}}, '
            f'{{"do": "give-raw", {part}, "afterMs": 5}}'
        )
    )

    await rt.run(clock.adjust(1))

    assert (reading.times_ms, reading.text) == ([7, 112], "xx")


async def test_a_repeat_plays_its_steps_that_often(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    inner = '{"do": "repeat", "times": 2, "steps": [{"do": "say", "text": "a"}]}'
    reading = read(
        _steps(f'{{"do": "repeat", "times": 3, "steps": [{inner}, {{"do": "say", "text": "b"}}]}}')
    )

    await rt.run(clock.adjust(1))

    assert reading.text == "aabaabaab"


async def test_a_repeat_without_times_goes_on_until_the_abort(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    say = '{"do": "say", "text": "x", "everyMs": 10}'
    reading = read(_steps(f'{{"do": "repeat", "steps": [{say}]}}'))

    await rt.run(clock.adjust(10.005))
    reading.controller.abort()
    await rt.run(clock.adjust(1))

    assert reading.text == "x" * 1000
    assert reading.fiber.poll() == fb.Success(None)


async def test_no_parts_at_all(rt: fb.Runtime, clock: TestClock, read: Read) -> None:
    reading = read("no_parts")

    await rt.run(clock.adjust(0))

    assert (reading.parts, reading.fiber.poll()) == ([], fb.Success(None))


async def test_an_unknown_and_a_garbled_part_are_given_as_such(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    unknown, garbled = read("unknown_part"), read("garbled_part")

    await rt.run(clock.adjust(1))

    first = unknown.parts[0]
    assert isinstance(first, UnknownPart)
    assert (first.type, first.problem) == ("hologram", None)
    second = garbled.parts[0]
    assert isinstance(second, UnknownPart)
    assert (second.type, second.problem) == ("text-delta", "text: Field required")


async def test_a_made_up_finish_is_not_terminal(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    reading = read("made_up_finish")

    await rt.run(clock.adjust(1))

    last = reading.parts[-1]
    assert isinstance(last, Finish)
    assert not last.is_terminal


async def test_the_thread_is_blocked_for_as_long_as_the_script_says(
    rt: fb.Runtime, clock: TestClock, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocked_for: list[float] = []
    monkeypatch.setattr(time, "sleep", blocked_for.append)
    reading = read("blocks_thread")

    await rt.run(clock.adjust(1))

    assert (blocked_for, reading.text) == ([0.02], "one two three")


# ---- raising


@pytest.mark.parametrize(
    ("script", "kind"), [("refuses", None), ("refuses_with_kind", "api_key_not_found")]
)
def test_a_refusal_is_raised_at_creation(script: str, kind: str | None) -> None:
    with pytest.raises(ScriptedError) as raised:
        _provider(script).stream(StreamRequest(text="hello"), AbortController().signal)

    assert raised.value.kind == kind


async def test_an_exception_in_the_middle_comes_after_the_parts(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    reading = read("raises_rate_limit")

    await rt.run(clock.adjust(1))

    error = reading.cause.squash()
    assert isinstance(error, ScriptedError)
    assert (str(error), error.status_code, reading.text) == ("slow down", 429, "one two three")


async def test_a_cancelled_error_that_nobody_asked_for(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    reading = read("raises_cancelled")

    await rt.run(clock.adjust(1))

    assert type(reading.cause.squash()) is asyncio.CancelledError
    assert not reading.cause.has_interrupts


# ---- abort and interrupt


@pytest.mark.parametrize("script", ["never_yields", "well_behaved", "endless_repeat"])
async def test_by_default_an_abort_ends_it_in_the_middle_of_a_wait(
    rt: fb.Runtime, clock: TestClock, read: Read, script: str
) -> None:
    long_words = _steps('{"do": "repeat", "steps": [{"do": "say", "text": "x", "everyMs": 50}]}')
    reading = read(long_words if script == "endless_repeat" else script)
    await rt.run(clock.adjust(0.005))

    reading.controller.abort()
    await rt.run(clock.adjust(0))

    assert reading.fiber.poll() == fb.Success(None)
    assert reading.text == ""


async def test_what_ignores_the_abort_ends_on_an_interrupt(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    reading = read("ignores_abort")
    await rt.run(clock.adjust(0.05))
    reading.controller.abort()
    before = len(reading.parts)

    await rt.run(clock.adjust(0.05))
    assert len(reading.parts) == before + 5
    await rt.run(reading.fiber.interrupt())

    assert reading.cause.has_interrupts_only


async def test_what_swallows_cancellation_goes_on_yielding(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    say = '{"do": "say", "text": "x", "everyMs": 10}'
    reading = read(
        _steps(
            f'{{"do": "repeat", "times": 10, "steps": [{say}]}}',
            onAbort="ignore",
            onCancel="swallow",
        )
    )
    await rt.run(clock.adjust(0.025))
    reading.controller.abort()

    reading.fiber.interrupt_unsafe()
    await rt.run(clock.adjust(0))
    assert reading.text == "xxx"  # the interrupt only cut a wait short
    reading.fiber.interrupt_unsafe(again=True)
    await rt.run(clock.adjust(0.04))
    assert reading.text == "xxxxxxxx"

    await rt.run(clock.adjust(1))
    assert reading.text == "x" * 10
    assert reading.cause.has_interrupts_only


@pytest.mark.parametrize("how", ["abort", "abort and interrupt"])
async def test_what_raises_after_the_abort(
    rt: fb.Runtime, clock: TestClock, read: Read, how: str
) -> None:
    reading = read("raises_after_abort")
    await rt.run(clock.adjust(0.1))

    reading.controller.abort()
    if how == "abort and interrupt":
        reading.fiber.interrupt_unsafe()
    await rt.run(clock.adjust(0))

    assert any(isinstance(error, ScriptedError) for error in reading.cause.failures)


# ---- cleanup


async def test_a_slow_cleanup_takes_its_time_after_the_last_part(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    reading = read("slow_cleanup")

    await rt.run(clock.adjust(0.1))
    assert (reading.kinds[-1], reading.fiber.poll()) == ("finish", None)
    await rt.run(clock.adjust(0.03))

    assert reading.fiber.poll() == fb.Success(None)


async def test_a_slow_cleanup_is_not_cut_by_further_interrupts(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    reading = read("slow_cleanup")
    await rt.run(clock.adjust(0.005))
    reading.fiber.interrupt_unsafe()
    reading.fiber.interrupt_unsafe()

    await rt.run(clock.adjust(0.099))
    assert reading.fiber.poll() is None
    await rt.run(clock.adjust(0.001))

    assert reading.fiber.poll() is not None


async def test_an_endless_cleanup_survives_cancellation_until_it_is_released(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    provider = _provider("endless_cleanup")
    reading = read(provider)
    await rt.run(clock.adjust(0.1))
    reading.controller.abort()
    reading.fiber.interrupt_unsafe()
    for _ in range(3):
        reading.fiber.interrupt_unsafe(again=True)
        await rt.run(clock.adjust(60))
    assert reading.fiber.poll() is None

    provider.release_cleanups()
    await rt.run(clock.adjust(0))

    assert reading.fiber.poll() is not None


# ---- which answer


async def test_the_first_answer_that_fits_the_message_is_played(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    provider = _provider("by_text")
    asked, other = read(provider, "how is the weather?"), read(provider, "hi")

    await rt.run(clock.adjust(1))

    assert (asked.text, other.text) == ("It rains.", "Hello.")


async def test_an_answer_is_passed_over_when_it_was_played_so_often(
    rt: fb.Runtime, clock: TestClock, read: Read
) -> None:
    provider = _provider("by_text")
    signal = AbortController().signal
    for _ in range(2):
        with pytest.raises(ScriptedError, match="try again"):
            provider.stream(StreamRequest(text="flaky"), signal)

    third = read(provider, "flaky")
    await rt.run(clock.adjust(1))

    assert third.text == "Hello."


def test_a_message_that_no_answer_fits_is_refused() -> None:
    provider = ScriptedProvider(
        Script.parse('{"answers": [{"when": {"textContains": "weather"}}]}')
    )

    with pytest.raises(ScriptedError) as raised:
        provider.stream(StreamRequest(text="hello"), AbortController().signal)

    assert raised.value.kind == "no_answer"
