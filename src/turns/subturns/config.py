"""What subturns may take, what is asked of one, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

from streamengine import Tool

MAX_DEPTH: Final = 3
MAX_CHILDREN: Final = 5
SLOT_TIMEOUT_SECONDS: Final = 30.0
TIMEOUT_SECONDS: Final = 300.0
HISTORY_ROWS: Final = 50
PENDING_RESULTS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class SubturnLimits:
    """The bounds of all subturns. A value of 0 or less means the default."""

    max_depth: int = MAX_DEPTH
    """A turn this deep (the root is 0) starts no further one."""
    max_children: int = MAX_CHILDREN
    """How many children of one turn run at a time."""
    slot_timeout_seconds: float = SLOT_TIMEOUT_SECONDS
    """How long a spawn waits for one of those to end."""
    timeout_seconds: float = TIMEOUT_SECONDS
    """How long a child runs where its request says nothing."""
    history_rows: int = HISTORY_ROWS
    """How many rows a child's conversation keeps: the newest."""
    pending_results: int = PENDING_RESULTS
    """How many results wait in a turn until it looks."""
    token_budget: int | None = None
    """Shared by a tree of subturns that none was given to; None: no bound."""

    def __post_init__(self) -> None:
        for name, default in (
            ("max_depth", MAX_DEPTH),
            ("max_children", MAX_CHILDREN),
            ("slot_timeout_seconds", SLOT_TIMEOUT_SECONDS),
            ("timeout_seconds", TIMEOUT_SECONDS),
            ("history_rows", HISTORY_ROWS),
            ("pending_results", PENDING_RESULTS),
        ):
            if getattr(self, name) <= 0:
                object.__setattr__(self, name, default)


@final
class TokenBudget:
    """A counter that turns share: spent together, over for all of them."""

    __slots__ = ("limit", "used")

    def __init__(self, limit: int) -> None:
        self.limit: int = limit
        self.used: int = 0

    @property
    def is_spent(self) -> bool:
        return self.used >= self.limit

    def spend(self, tokens: int) -> None:
        self.used += tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SpawnRequest:
    """A subturn that is wanted. It needs a ``model`` or an ``agent``."""

    prompt: str
    model: str | None = None
    agent: str | None = None
    """Whose tools and instructions it gets; None: those of the parent."""
    system: str | None = None
    """Instructions in the place of the agent's."""
    tools: tuple[Tool, ...] | None = None
    """Tools in the place of the agent's."""
    delivers: bool = False
    """Whether the result is also put into the parent's queue. The spawn gives it in any case."""
    critical: bool = False
    """Whether it goes on to its natural end when the parent has ended."""
    timeout_seconds: float | None = None
    token_budget: TokenBudget | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SubturnResult:
    """What a subturn gave: its answer, or why there is none."""

    child_id: str
    content: str
    error: str | None = None

    @staticmethod
    def failed(child_id: str, error: str) -> SubturnResult:
        return SubturnResult(child_id=child_id, content=f"SubTurn failed: {error}", error=error)
