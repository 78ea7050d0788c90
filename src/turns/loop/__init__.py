"""The agent loop: what a turn does, from its prompt to its last stream."""

from __future__ import annotations

from .agent import AgentLoop
from .background import Background
from .config import LoopConfig

__all__ = ["AgentLoop", "Background", "LoopConfig"]
