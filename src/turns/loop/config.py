"""What the agent loop can be told."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

SteeringMode = Literal["one-at-a-time", "all"]

UNKNOWN_WINDOW_LIMIT_TOKENS: Final = 8000


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopConfig:
    """Of all turns of one loop. Raises ValueError for a bound below 1, or a count below 0."""

    max_iterations: int = 20
    """Calls of the provider in one turn, whatever streams they are in."""
    steering_capacity: int = 10
    """How many messages wait in one session."""
    steering_mode: SteeringMode = "one-at-a-time"
    """How many of them the turn hears at a time."""
    soft_limit_tokens: int = 0
    """From where on old rows are left out of a call: 0 for 75 % of the model's window, -1 for
    never."""
    context_retries: int = 2
    """How often a call that was too long is tried again with less."""
    truncation_retries: int = 2
    """How often an answer that was cut off is asked for again, shorter."""
    llm_retries: int = 2
    """How often a call that failed for the moment is tried again, after 2, 4 ... seconds."""
    abort_grace_seconds: float = 2.0
    """How long a hard abort waits for the turns below to end."""
    hint: str = (
        "The user has interrupted. Start no further tool calls; give a short final summary of what "
        "was done and what is left."
    )
    recovery_prompt: str = (
        "Your previous response was truncated because it was too long. Give a shorter, complete "
        "response."
    )
    tool_limit_text: str = (
        "The limit of tool calls for this turn was reached before the work was done. Say how to go "
        "on, or ask for less at a time."
    )
    empty_text: str = "The model had nothing to say."

    def __post_init__(self) -> None:
        for name in ("max_iterations", "steering_capacity"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("context_retries", "truncation_retries", "llm_retries"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0, not {getattr(self, name)}")

    def limit_tokens(self, window_tokens: int | None) -> int | None:
        """From where on old rows are left out; None: never."""
        if self.soft_limit_tokens < 0:
            return None
        if self.soft_limit_tokens > 0:
            return self.soft_limit_tokens
        if window_tokens is None:
            return UNKNOWN_WINDOW_LIMIT_TOKENS
        return window_tokens * 3 // 4
