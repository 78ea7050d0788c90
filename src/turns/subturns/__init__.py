"""Subturns: turns that a turn starts, on a conversation of their own."""

from __future__ import annotations

from .agents import Agent, Agents
from .config import SpawnRequest, SubturnLimits, SubturnResult, TokenBudget
from .context import CURRENT_TURN
from .registry import Claim, TurnRegistry
from .spawn import ChildRun, Subturns
from .state import TurnState

__all__ = [
    "CURRENT_TURN",
    "Agent",
    "Agents",
    "ChildRun",
    "Claim",
    "SpawnRequest",
    "SubturnLimits",
    "SubturnResult",
    "Subturns",
    "TokenBudget",
    "TurnRegistry",
    "TurnState",
]
