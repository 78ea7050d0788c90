"""Things of the wrong kind, refused at the call that they were given to, with the way out.

A coroutine where none belongs is closed, so that one error tells of it and not a warning as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Never, TypeVar, cast

from fibers.loop.protocol import Node
from fibers.loop.run_loop import FiberCore

T = TypeVar("T")

_AS_AN_EFFECT = (
    "decorate the function with @effect, or wrap the call in Effect.promise(lambda: ...)"
)


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


def plain(given: T, what: str) -> T:
    """``given``; TypeError where the function that was to give a value is an ``async def``."""
    if closed_coroutine(given):
        raise TypeError(f"{what} takes a plain function, not one that gives a coroutine")
    return given


# ---------------------------------------------------------------------------- arguments


def refuse(given: object, what: str, wanted: str, way_out: str = "") -> Never:
    """TypeError: ``what`` takes ``wanted``, not ``given``."""
    shown = "a coroutine" if closed_coroutine(given) else repr(given)
    raise TypeError(f"{what} takes {wanted}, not {shown}{way_out and ': ' + way_out}")


def check_effect(eff: object, what: str) -> None:
    """TypeError, before anything runs, where ``eff`` is none: everybody's first mistake."""
    if isinstance(eff, Node):
        return
    if inspect.iscoroutine(eff):
        refuse(eff, what, "an Effect", _AS_AN_EFFECT)
    refuse(eff, what, "an Effect", "call it" if callable(eff) else "")


def checked_effects(effects: Iterable[T], what: str) -> tuple[T, ...]:
    """All of ``effects``; TypeError where one is none, or where they are no iterable."""
    return _checked_all(effects, what, Node, "an Effect", "effects")


def checked_fibers(fibers: Iterable[T], what: str) -> tuple[T, ...]:
    """All of ``fibers``; TypeError as above."""
    return _checked_all(fibers, what, FiberCore, "a Fiber", "fibers")


def _checked_all(
    given: Iterable[T], what: str, kind: type, one: str, several: str
) -> tuple[T, ...]:
    # An effect and a fiber can be iterated, for `yield from`.
    if isinstance(given, kind) or not isinstance(cast("object", given), Iterable):
        refuse(given, what, f"an iterable of {several}", f"{what}([...])")
    items = tuple(given)
    for item in items:
        if not isinstance(item, kind):
            wrong: list[Any] = [each for each in items if inspect.iscoroutine(each)]
            for each in wrong:
                each.close()
            shown = "a coroutine" if inspect.iscoroutine(item) else repr(item)
            way_out = f": {_AS_AN_EFFECT}" if kind is Node and inspect.iscoroutine(item) else ""
            raise TypeError(f"{what} takes {several}, each {one}, not {shown}{way_out}")
    return items


def check_iterable(items: object, what: str) -> None:
    """TypeError where ``items`` can't be iterated."""
    if not isinstance(items, Iterable):
        refuse(items, what, "an iterable")


def check_function(f: object, what: str) -> None:
    """TypeError where ``f`` can't be called: it would show when it is to be, if ever."""
    if callable(f):
        return
    if inspect.iscoroutine(f):
        refuse(f, what, "a function", "give it the function itself, uncalled")
    refuse(f, what, "a function", "lambda: ..." if isinstance(f, Node) else "")


def check_scope(scope: object, what: str) -> None:
    """TypeError where ``scope`` is none, which would show when a fiber is put into it."""
    if not hasattr(scope, "_hold"):
        refuse(scope, what, "a Scope")
    if isinstance(scope, type):  # it has the methods, too
        refuse(scope, what, "a Scope", f"{scope.__name__}()")


def check_kind(given: object, kind: type | tuple[type, ...], what: str, wanted: str) -> None:
    """TypeError where ``given`` is no ``kind``, which the message calls ``wanted``."""
    if not isinstance(given, kind):
        refuse(given, what, wanted)
