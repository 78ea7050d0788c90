"""For tests of code that runs on fibers: a clock that moves when the test says so."""

from __future__ import annotations

from fibers.testing.clock import TestClock

__all__ = ["TestClock"]
