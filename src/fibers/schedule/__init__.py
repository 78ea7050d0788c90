"""When to run again: schedules for ``Effect.repeat`` and ``Effect.retry`` (SD)."""

from __future__ import annotations

from fibers.ops.repeat import ScheduleDone, ScheduleMetadata
from fibers.schedule.schedule import CurrentMetadata, Schedule

__all__ = ["CurrentMetadata", "Schedule", "ScheduleDone", "ScheduleMetadata"]
