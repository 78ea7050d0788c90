"""The numbers that a fiber's life is told in."""

from __future__ import annotations

from typing import Final

OP_BUDGET_PRIMITIVES: Final = 2048
"""Primitives in one step before the loop gets a turn (WI9)."""
NESTING_LIMIT_CALLS: Final = 100
"""Plain calls that may run fibers inside each other; effects don't nest beyond SHALLOW_CALLS."""
SHALLOW_CALLS: Final = 8
"""Up to this depth an effect runs another fiber as a call of its own stack: a step back to the
trampoline and in again costs more than the whole of a short fiber. Deeper ones go by the
trampoline, so that no stack grows with the number of fibers (PD16)."""

NEW: Final = 0
READY: Final = 1
RUNNING: Final = 2
SUSPENDED: Final = 3
ENDED: Final = 4

STATE_NAMES: Final = ("not started", "ready", "running", "suspended", "ended")
