"""Arguments that make no sense are refused at the call (PD18)."""

from __future__ import annotations


def checked_count(n: object, what: str, *, least: int = 1) -> int:
    """``n`` if it is an int of at least ``least``, else a ValueError."""
    if isinstance(n, bool) or not isinstance(n, int) or n < least:
        wanted = "a positive int" if least == 1 else f"an int of at least {least}"
        raise ValueError(f"{what} must be {wanted}, not {n!r}")
    return n
