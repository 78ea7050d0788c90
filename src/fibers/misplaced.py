"""Coroutines where none belong: closed, so that one error tells of it and not a warning as well."""

from __future__ import annotations

import inspect


def closed_coroutine(given: object) -> bool:
    """Whether ``given`` is a coroutine. It is closed then: it would be told as "never awaited"
    beside the error that matters, which the caller raises.
    """
    if not inspect.iscoroutine(given):
        return False
    given.close()
    return True


def refuse_coroutine(given: object) -> None:
    """TypeError for what an ``async def`` gave: as a verdict it would always be a yes."""
    if closed_coroutine(given):
        raise TypeError(
            "expected a plain value or an Effect, got a coroutine: decorate the function with "
            "@effect, or make it a plain one"
        )
