"""What this provider needs of a model and its engine; `llama.py` has the real ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen."""

    temperature: float
    """0: always the likeliest token. The higher, the more varied."""
    top_k: int = 40
    """Only so many of the likeliest tokens count."""
    top_p: float = 0.9
    """Of those the likeliest that together have this probability."""
    repeat_penalty: float = 1.1
    """What was said lately is made less likely by this factor: small models go round in circles."""
    repeat_window_tokens: int = 64


class LanguageModel(Protocol):
    """A loaded model. Used by one thread at a time."""

    @property
    def context_tokens(self) -> int:
        """How many tokens a context holds, the answer included."""
        ...

    def tokens_of(self, text: str) -> list[int]:
        """The tokens of plain text. A marker in it is text like any other."""
        ...

    def marker(self, text: str) -> int:
        """The one token of a marker of the chat format."""
        ...

    def bytes_of(self, token: int) -> bytes:
        """What a token says: UTF-8, though a character may be spread over several tokens."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token says that the answer is over."""
        ...

    def new_context(self) -> ModelContext:
        """Room for one conversation."""
        ...

    def close(self) -> None:
        """Free the model and all its contexts; more than once is fine."""
        ...


class ModelContext(Protocol):
    """What a model has read of one conversation."""

    def keep(self, count: int) -> None:
        """Forget everything but the first `count` tokens."""
        ...

    def read(self, tokens: Sequence[int], position: int) -> None:
        """Read tokens; the first is number `position` of the conversation."""
        ...

    def next_token(self, sampling: Sampling, random: Random, said: Sequence[int]) -> int:
        """Choose what comes after the token that was read last. ``said``: the answer so far; as
        long as it is empty the answer can't end.
        """
        ...
