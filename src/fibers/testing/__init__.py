"""For tests of code that runs on fibers.

TestClock moves when the test says so; TestLoop jumps when nothing is ready, and replays an order
from a seed; ``explore`` hunts for an order that fails, ``sweep`` for a point where an interrupt
does harm, ``assert_no_leaks`` for what is left over. ``fibers.testing.plugin`` is for pytest.
"""

from __future__ import annotations

from fibers.testing.clock import TestClock, settle
from fibers.testing.exploring import explore, virtual_time
from fibers.testing.leaks import LeakCheck, LeakError, assert_no_leaks
from fibers.testing.loop import StalledError, TestLoop
from fibers.testing.sweep import Case, SweepError, SweepReport, sweep

__all__ = [
    "Case",
    "LeakCheck",
    "LeakError",
    "StalledError",
    "SweepError",
    "SweepReport",
    "TestClock",
    "TestLoop",
    "assert_no_leaks",
    "explore",
    "settle",
    "sweep",
    "virtual_time",
]
