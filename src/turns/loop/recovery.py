"""Recovery: which prompt is asked now, and how often what went wrong is tried again. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, final

from .config import LoopConfig
from .context import is_context_error

PromptKind = Literal["prompt", "steering", "hint", "subturn-result", "background", "recovery"]

_FOR_THE_MOMENT: Final = frozenset({"network", "rate_limit", "server_error"})
_BACKOFF_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Again:
    """What to do about a failure: try again."""

    reason: Literal["transient", "context_limit"]
    attempt: int
    delay_seconds: float = 0.0


@final
class Recovery:
    """The prompt of one turn, and its three counters. Each is independent of the others.

    ``is_added`` says whether the prompt is in the history. A new prompt, a recovery prompt as any
    other, is not: whoever asks adds it once, and from then on only answers it again (U23).
    """

    def __init__(self, config: LoopConfig) -> None:
        self._config = config
        self.prompt: str = ""
        self.kind: PromptKind = "prompt"
        self.number: int = 0
        self.is_added: bool = False
        self._context_retries = 0
        self._truncation_retries = 0
        self._llm_retries = 0

    def ask(self, prompt: str, kind: PromptKind) -> None:
        """A new prompt, which nobody has added yet."""
        self.prompt, self.kind = prompt, kind
        self.number += 1
        self.is_added = False
        self._llm_retries = 0

    def may_recover_truncated(self) -> bool:
        """Whether an answer that was cut off is asked for again."""
        return self._truncation_retries < self._config.truncation_retries

    def recover_truncated(self) -> int:
        """Ask for it; gives which time it is."""
        self._truncation_retries += 1
        self.ask(self._config.recovery_prompt, "recovery")
        return self._truncation_retries

    def after(self, error_type: str | None, error: str) -> Again | None:
        """What to do about this failure; None: it is the turn's."""
        if is_context_error(error_type, error):
            if self._context_retries >= self._config.context_retries:
                return None
            self._context_retries += 1
            return Again("context_limit", self._context_retries)
        if error_type not in _FOR_THE_MOMENT or self._llm_retries >= self._config.llm_retries:
            return None
        self._llm_retries += 1
        return Again("transient", self._llm_retries, self._llm_retries * _BACKOFF_SECONDS)
