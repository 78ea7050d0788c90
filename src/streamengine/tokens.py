"""TokenTracker: how many tokens a piece of text is, for those who show it."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from operator import index
from typing import Final, TypeAlias, final

import structlog

Tokenizer: TypeAlias = Callable[[str], int]
"""The number of tokens of a text."""

LoadTokenizer: TypeAlias = Callable[[str], Tokenizer | None]
"""The tokenizer of a model, None where there is none for it. May be slow: its answers are kept."""

_log = structlog.get_logger("streamengine.tokens")

KEPT_TOKENIZERS: Final = 16
"""How many models' tokenizers an engine keeps."""


def kept(load: LoadTokenizer | None) -> LoadTokenizer | None:
    """``load``, which remembers what it gave for the models asked for last."""
    return None if load is None else lru_cache(KEPT_TOKENIZERS)(load)


@final
class TokenTracker:
    """Counts the tokens of what one stream says, where a tokenizer is known.

        tracker = TokenTracker(lambda model: encoding_of(model).count)
        tracker.set_model("some-model")
        tracker.count("a text")

    A tokenizer that fails is logged and not asked again: no answer depends on it.
    """

    def __init__(self, load: LoadTokenizer | None = None) -> None:
        self._load = load
        self._key: str | None = None
        self._count: Tokenizer | None = None

    def set_model(self, model: str | None, override: str | None = None) -> None:
        """Count for ``model`` from now on, or with the tokenizer of the model ``override``."""
        key = override or model
        if key == self._key:
            return
        self._key = key
        self._count = None
        if self._load is not None and key is not None:
            try:
                self._count = self._load(key)
            except Exception:  # noqa: BLE001  # somebody else's code
                _log.warning("no tokenizer could be loaded", model=key, exc_info=True)

    def count(self, text: str) -> int:
        """The tokens of ``text``: 0 for no text, and where there is no tokenizer."""
        if self._count is None or not text:
            return 0
        try:
            tokens = index(self._count(text))
            if tokens < 0:
                raise ValueError(f"{tokens} is no number of tokens")
            return tokens
        except Exception:  # noqa: BLE001  # somebody else's code
            _log.warning("a tokenizer failed", model=self._key, exc_info=True)
            self._count = None
            return 0

    def told(self, text: str) -> int | None:
        """What an event says of ``text``: None where nobody counts."""
        return None if self._count is None else self.count(text)
