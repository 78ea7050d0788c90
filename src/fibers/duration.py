"""Durations: a timedelta, or a number of seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

Duration: TypeAlias = timedelta | float
"""A span of time: a timedelta, or seconds."""


def seconds_of(d: Duration) -> float:
    """``d`` in seconds; TypeError where it is neither a timedelta nor a number."""
    if isinstance(d, timedelta):
        return d.total_seconds()
    # float("1") would take what somebody forgot to convert.
    if not hasattr(d, "__float__"):
        raise TypeError(f"a duration is a timedelta or a number of seconds, not {d!r}")
    return float(d)


def checked_seconds(d: Duration, what: str) -> float:
    """``d`` in seconds; ValueError where it is negative or no number (PD18)."""
    seconds = seconds_of(d)
    if not seconds >= 0:
        raise ValueError(f"{what} must not be negative: {seconds!r} s")
    return seconds


def text_of(seconds: float) -> str:
    """For messages: ``10 ms``, ``2 s``, ``1.5 s``."""
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    return f"{seconds:g} s"
