"""A model without weights: a token a byte, answers that are known, steps that the test can hold."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from random import Random
from typing import Final

from streamengine.providers.local.model import ModelContext, Sampling
from streamengine.providers.local.prompt import BEGIN, END

BEGIN_TOKEN: Final = 1001
END_TOKEN: Final = 1002

BOUND_SECONDS: Final = 10
"""How long a thread waits for the test, so that a failing test still ends."""


def shown(tokens: Sequence[int]) -> str:
    """A prompt as text, with its markers."""
    names = {BEGIN_TOKEN: BEGIN.encode(), END_TOKEN: END.encode()}
    return b"".join(names.get(token) or bytes([token]) for token in tokens).decode()


class FakeModel:
    """See LanguageModel. ``answer`` gives the text for a prompt; every answer ends by itself."""

    def __init__(
        self,
        answer: str | Callable[[str], str] = "ok",
        *,
        context_tokens: int = 1000,
        before_read: Callable[[FakeContext], None] | None = None,
    ) -> None:
        self.context_tokens = context_tokens
        self.contexts: list[FakeContext] = []
        self.trace: list[FakeContext] = []
        """The context of each read, in order."""
        self.closed = 0
        self.before_read = before_read
        self._answer = answer

    def tokens_of(self, text: str) -> list[int]:
        return list(text.encode())

    def marker(self, text: str) -> int:
        return {BEGIN: BEGIN_TOKEN, END: END_TOKEN}[text]

    def bytes_of(self, token: int) -> bytes:
        return bytes([token])

    def is_end(self, token: int) -> bool:
        return token == END_TOKEN

    def new_context(self) -> ModelContext:
        self.contexts.append(FakeContext(self))
        return self.contexts[-1]

    def close(self) -> None:
        self.closed += 1

    def answer_to(self, prompt: str) -> bytes:
        answer = self._answer if isinstance(self._answer, str) else self._answer(prompt)
        return answer.encode()


class FakeContext:
    """See ModelContext."""

    def __init__(self, model: FakeModel) -> None:
        self.tokens: list[int] = []
        self.reads: list[int] = []
        """How many tokens each read had."""
        self._model = model

    def keep(self, count: int) -> None:
        assert count <= len(self.tokens)
        del self.tokens[count:]

    def read(self, tokens: Sequence[int], position: int) -> None:
        assert position == len(self.tokens)
        assert tokens
        self._model.trace.append(self)
        if self._model.before_read is not None:
            self._model.before_read(self)
        self.tokens.extend(tokens)
        self.reads.append(len(tokens))
        assert len(self.tokens) <= self._model.context_tokens

    def next_token(self, sampling: Sampling, random: Random, said: Sequence[int]) -> int:
        prompt = self.tokens[: len(self.tokens) - len(said)]
        assert self.tokens[len(prompt) :] == list(said)
        answer = self._model.answer_to(shown(prompt))
        return answer[len(said)] if len(said) < len(answer) else END_TOKEN


class Gate:
    """Holds the model's thread until the test lets it make so many steps."""

    def __init__(self) -> None:
        self._permits = threading.Semaphore(0)
        self._arrivals = threading.Semaphore(0)
        self.is_open = False

    def pass_through(self, _context: object = None) -> None:
        """Called by the thread."""
        self._arrivals.release()
        if not self.is_open and not self._permits.acquire(timeout=BOUND_SECONDS):
            raise AssertionError("the test never opened the gate")

    def let(self, steps: int) -> None:
        self._permits.release(steps)

    def open(self) -> None:
        self.is_open = True
        self._permits.release(1000)

    def wait_for_arrival(self) -> None:
        """Until the thread stands at the gate once more. Not for the thread of a busy loop."""
        assert self._arrivals.acquire(timeout=BOUND_SECONDS), "the thread never came"


@contextmanager
def opened(gate: Gate) -> Generator[None]:
    """Whatever happens in the test, its thread is let go."""
    try:
        yield
    finally:
        gate.open()
