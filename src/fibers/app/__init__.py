"""The application's side: one scope for all that is in flight, closed, bounded, at shutdown."""

from __future__ import annotations

from fibers.app.budget import (
    OUTER_BUDGET_SECONDS,
    RUNTIME_DISPOSE_TIMEOUT_SECONDS,
    SCOPE_CLOSE_TIMEOUT_SECONDS,
)
from fibers.app.main import run_main
from fibers.app.occupant import Occupant, occupy
from fibers.app.scope import AppScope, close_bounded
from fibers.app.shutdown import Shutdown, dispose_bounded
from fibers.app.startup import Startup, StartupStepTimeoutError
from fibers.app.watchdog import Blockage, Watchdog

__all__ = [
    "OUTER_BUDGET_SECONDS",
    "RUNTIME_DISPOSE_TIMEOUT_SECONDS",
    "SCOPE_CLOSE_TIMEOUT_SECONDS",
    "AppScope",
    "Blockage",
    "Occupant",
    "Shutdown",
    "Startup",
    "StartupStepTimeoutError",
    "Watchdog",
    "close_bounded",
    "dispose_bounded",
    "occupy",
    "run_main",
]
