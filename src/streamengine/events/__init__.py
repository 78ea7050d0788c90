"""How the engine tells what happens."""

from __future__ import annotations

from .spine import EventSpine

__all__ = ["EventSpine"]
