"""TurnState: what one running turn, root or child, is in the tree of turns."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final, final

from fibers import AbortController, Effect, Fiber

from ..events import TurnStatus
from .agents import Agent
from .config import SubturnLimits, TokenBudget
from .results import Results
from .slots import Slots

HARD_ABORT: Final = "hard_abort"
"""The reason of an interrupt that ends a turn and all below it."""


@dataclass(frozen=True, slots=True)
class RestorePoint:
    """What the conversation was when the turn began."""

    last_sequence: int | None
    """The sequence of its last row, which stands for its length; None where there was none."""
    omitted: frozenset[str]
    """The messages that the model was no longer shown."""


@final
class TurnState:
    """One turn in the tree. All of it is touched by one event loop only: it needs no lock.

    ``end`` marks the end; what that means for the turns below is finish.py's.
    """

    def __init__(
        self,
        turn_id: str,
        workspace_id: str,
        *,
        agent: Agent | None = None,
        parent: TurnState | None = None,
        critical: bool = False,
        limits: SubturnLimits | None = None,
        budget: TokenBudget | None = None,
    ) -> None:
        limits = limits or SubturnLimits()
        self.turn_id = turn_id
        self.workspace_id = workspace_id
        """Of its conversation; that of a child is its own."""
        self.agent = agent
        self.parent = parent
        self.depth: int = 0 if parent is None else parent.depth + 1
        self.critical = critical
        self.budget = budget
        self.child_ids: list[str] = []
        """All that it ever started, in order."""
        self.results: Results = Results(limits.pending_results)
        self.slots: Slots = Slots(limits.max_children)
        self.controller: AbortController = AbortController()
        """Its own: that of a child is not the parent's."""
        self.restore_point: RestorePoint | None = None
        self.status: TurnStatus = "running"
        self.parent_ended_here: bool = False
        self._fiber: Fiber[Any, Any] | None = None
        self._is_over = False
        self._is_aborted = False
        self._abort_wanted = False
        self._finished = asyncio.Event()

    @property
    def session(self) -> str:
        """The workspace of the root: where its events belong, and what its tools work on."""
        return self.workspace_id if self.parent is None else self.parent.session

    @property
    def ancestors(self) -> Iterator[TurnState]:
        """The turns above, the nearest first."""
        above = self.parent
        while above is not None:
            yield above
            above = above.parent

    # ---- its end

    @property
    def is_finished(self) -> bool:
        return self._finished.is_set()

    @property
    def is_aborted(self) -> bool:
        """Whether it was ended hard."""
        return self._is_aborted

    def wait_finished(self) -> Effect[bool]:
        """Wait for its end, of either kind."""
        return Effect.promise(self._finished.wait)

    @property
    def parent_ended(self) -> bool:
        """Whether the parent has ended by itself. Always False for a root."""
        return self.parent is not None and self.parent.parent_ended_here

    def end(self, *, hard: bool) -> bool:
        """Mark its end; True for the first hard one, which may come after a graceful one. Graceful
        after hard changes nothing.
        """
        if not self.is_finished and not hard:
            self.parent_ended_here = True
        self._finished.set()
        self.results.close()
        if not hard or self._is_aborted:
            return False
        self._is_aborted = True
        return True

    def want_abort(self) -> bool:
        """Ask for the hard abort; False where that was done before."""
        first, self._abort_wanted = not self._abort_wanted, True
        return first

    @property
    def abort_wanted(self) -> bool:
        return self._abort_wanted

    # ---- the fiber that it is

    def run_by(self, fiber: Fiber[Any, Any]) -> None:
        """``fiber`` is this turn. One that was ended hard meanwhile is interrupted at once."""
        self._fiber = fiber
        if self._is_aborted:
            self.cancel()

    def let_go(self) -> None:
        """All that it has to say is said: nothing of it is to be cancelled any more."""
        self._is_over = True

    @property
    def fiber(self) -> Fiber[Any, Any] | None:
        return self._fiber

    def cancel(self) -> None:
        """Stop the provider's call, as a person would, and interrupt the turn. Nothing where that
        comes too late.
        """
        if self._is_over:
            return
        self.controller.abort("user")
        if self._fiber is not None:
            self._fiber.interrupt_unsafe(reason=HARD_ABORT)
