"""One answer in the making, in steps so small that a stop never waits long for one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final, Literal, final

from .model import LanguageModel, ModelContext, Sampling

PROMPT_STEP_TOKENS: Final = 32
"""How much of a prompt is read in one step: about as slow as eight new tokens."""


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer is over: the model said so ("stop"), or it may not go on ("length")."""

    reason: Literal["stop", "length"]
    prompt_tokens: int
    remembered_tokens: int
    """How many of the prompt's tokens needn't be read, as the context had them already."""
    new_tokens: int


@final
class Lane:
    """A context, and the tokens that it has read: the next prompt often begins with them."""

    def __init__(self, context: ModelContext) -> None:
        self.context = context
        self.tokens: list[int] = []

    def shared(self, prompt: Sequence[int]) -> int:
        """How many tokens at the beginning of ``prompt`` it has read, of which one is always left
        to read: what comes next is known only right after reading.
        """
        count = 0
        for mine, theirs in zip(self.tokens, prompt[:-1], strict=False):
            if mine != theirs:
                break
            count += 1
        return count

    def rewind(self, count: int) -> None:
        """Go back to the first ``count`` tokens."""
        # Empty until it is done: after a failure nothing that it holds can be relied on.
        tokens, self.tokens = self.tokens[:count], []
        self.context.keep(count)
        self.tokens = tokens

    def read(self, tokens: Sequence[int]) -> None:
        before, self.tokens = self.tokens, []
        self.context.read(tokens, len(before))
        before.extend(tokens)
        self.tokens = before


@final
class Generation:
    """An answer to one prompt. ``limit_tokens`` bounds what is new."""

    def __init__(
        self,
        model: LanguageModel,
        lane: Lane,
        prompt: Sequence[int],
        *,
        limit_tokens: int,
        sampling: Sampling,
        random: Random,
    ) -> None:
        self._model = model
        self._lane = lane
        self._sampling = sampling
        self._random = random
        self._prompt_tokens = len(prompt)
        self._limit = min(limit_tokens, model.context_tokens - len(prompt))
        self._said: list[int] = []
        self._remembered = lane.shared(prompt)
        lane.rewind(self._remembered)
        self._unread = list(prompt[self._remembered :])

    def step(self) -> bytes | Ended | None:
        """Read a little more of the prompt (None), or make the next token, or find the end."""
        if len(self._said) >= self._limit:
            return self._ended("length")
        self._lane.read(self._unread[:PROMPT_STEP_TOKENS])
        del self._unread[:PROMPT_STEP_TOKENS]
        if self._unread:
            return None
        token = self._lane.context.next_token(self._sampling, self._random, self._said)
        if self._model.is_end(token):
            return self._ended("stop")
        self._said.append(token)
        self._unread.append(token)
        return self._model.bytes_of(token)

    def _ended(self, reason: Literal["stop", "length"]) -> Ended:
        return Ended(reason, self._prompt_tokens, self._remembered, len(self._said))
