"""The turn in whose name something runs: what a tool finds without being told."""

from __future__ import annotations

from typing import Final

from fibers import Tag

from .state import TurnState

CURRENT_TURN: Final = Tag[TurnState | None]("turns.current", None)
"""Awaited inside a tool: the turn that it runs for; None elsewhere."""
