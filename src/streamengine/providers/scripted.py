"""ScriptedProvider: plays answers from a script, with the misbehaviour that the script asks for.

Every delay waits on the clock in context, so that a TestClock drives it.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from os import PathLike
from typing import Final, TypeAlias, final

import fibers as fb
from fibers import AbortSignal

from ..model.errors import ErrorType
from ..model.parts import (
    ProviderPart,
    TextDelta,
    TextEnd,
    TextStart,
    UnknownPart,
    parse_provider_part,
)
from ..model.request import StreamRequest
from .script import (
    Answer,
    BlockThread,
    Failure,
    Give,
    GiveRaw,
    Raise,
    Repeat,
    Say,
    Script,
    Step,
    Wait,
    WaitForEver,
)

_WORDS: Final = re.compile(r"\S+\s*|\s+")


class ScriptedError(Exception):
    """What a script raises. ``kind``, ``error_type`` and ``status_code`` are as the script says."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.kind: str | None = failure.kind
        self.error_type: ErrorType | None = failure.error_type
        self.status_code: int | None = failure.status_code


@final
class ScriptedProvider:
    """Plays the first answer of the script that fits the message.

        provider = ScriptedProvider(Script.load("demo.json"))

    An answer obeys the abort signal at once, also in the middle of a wait, unless the script says
    otherwise.
    """

    def __init__(self, script: Script) -> None:
        self._script = script
        self._played = [0] * len(script.answers)
        self._held: set[asyncio.Event] = set()

    @classmethod
    def from_file(cls, path: str | PathLike[str]) -> ScriptedProvider:
        """Play a file. Raises ScriptError where it is no script."""
        return cls(Script.load(path))

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        """Begin the answer. Raises ScriptedError where it refuses, or where no answer fits."""
        answer = self._answer_to(request)
        if answer.refuse is not None:
            raise ScriptedError(answer.refuse)
        return _play(answer, signal, self._hold)

    def release_cleanups(self) -> None:
        """End the cleanups that wait for ever: how a test leaves nothing behind."""
        for event in self._held:
            event.set()

    def _answer_to(self, request: StreamRequest) -> Answer:
        for index, answer in enumerate(self._script.answers):
            fits = answer.when is None or answer.when.text_contains in request.text
            if fits and (answer.times is None or self._played[index] < answer.times):
                self._played[index] += 1
                return answer
        raise ScriptedError(
            Failure(
                message="no answer of the script fits the message; add one without `when`",
                kind="no_answer",
            )
        )

    async def _hold(self) -> None:
        event = asyncio.Event()
        self._held.add(event)
        try:
            while not event.is_set():
                try:
                    await event.wait()
                except asyncio.CancelledError:
                    continue  # that is the point of it
        finally:
            self._held.discard(event)


# ---- an answer as a flat sequence of beats: a wait, then a part or an act


_Act: TypeAlias = "ProviderPart | UnknownPart | Raise | BlockThread | None"
_Beat: TypeAlias = "tuple[float, _Act]"
"""Seconds to wait (infinity: for ever), and what comes then."""


def _beats(steps: Iterable[Step]) -> Iterator[_Beat]:
    for step in steps:
        match step:
            case Give(part=part):
                yield step.after_ms / 1000, part
            case GiveRaw():
                yield step.after_ms / 1000, parse_provider_part(step.part)
            case Say():
                yield 0, TextStart()
                for word in _WORDS.findall(step.text):
                    yield step.every_ms / 1000, TextDelta(text=word)
                yield 0, TextEnd()
            case Wait():
                yield step.ms / 1000, None
            case WaitForEver():
                yield float("inf"), None
            case BlockThread() | Raise():
                yield 0, step
            case Repeat(times=times):
                for _ in itertools.count() if times is None else range(times):
                    yield from _beats(step.steps)


async def _play(
    answer: Answer, signal: AbortSignal, hold: Callable[[], Awaitable[None]]
) -> AsyncIterator[ProviderPart | UnknownPart]:
    try:
        for wait_seconds, act in _beats(answer.steps):
            try:
                await _pause(answer, signal, wait_seconds)
            except asyncio.CancelledError:
                if answer.on_abort == "raise" and signal.aborted:
                    raise _aborted() from None
                if answer.on_cancel != "swallow":
                    raise
            if signal.aborted and answer.on_abort == "raise":
                raise _aborted()
            if signal.aborted and answer.on_abort == "stop" and answer.on_cancel != "swallow":
                return
            if isinstance(act, Raise):
                raise asyncio.CancelledError if act.cancelled else ScriptedError(act)
            elif isinstance(act, BlockThread):
                time.sleep(act.ms / 1000)  # noqa: ASYNC251  # blocking the loop is the point of it
            elif act is not None:
                yield act
    finally:
        if answer.cleanup_ms == "for-ever":
            await hold()
        elif answer.cleanup_ms:
            await fb.sleep(answer.cleanup_ms / 1000)


async def _pause(answer: Answer, signal: AbortSignal, seconds: float) -> None:
    if not seconds:
        return
    if answer.on_abort == "ignore" or answer.on_cancel == "swallow":
        await fb.sleep(seconds)
    else:
        await fb.race_first(fb.sleep(seconds), signal.wait())


def _aborted() -> ScriptedError:
    return ScriptedError(Failure(message="the script raises because it was aborted"))
