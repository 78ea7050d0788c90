"""Durations: a timedelta, or a number of seconds."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeAlias

Duration: TypeAlias = timedelta | float
"""A span of time: a timedelta, or seconds."""


def seconds_of(d: Duration) -> float:
    """``d`` in seconds."""
    return d.total_seconds() if isinstance(d, timedelta) else float(d)


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
