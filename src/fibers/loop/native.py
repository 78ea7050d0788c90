"""The C twin of the hot paths, where it was built and is wanted; see docs/development/native.md.

Nothing but speed depends on it. A class with a twin takes its fields from there, and loses the
methods that the twin has: one decorator says which.
"""

from __future__ import annotations

import importlib
import os
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

C = TypeVar("C", bound=type)

speed: Any = None
if os.environ.get("FIBERS_PURE", "0") == "0":
    try:
        speed = importlib.import_module("fibers._speed")  # by name: it is built on request only
    except ImportError:
        pass


def twins(*methods: str) -> Callable[[C], C]:
    """Class decorator: these methods have C twins in a base class, which take over if built."""

    def decorate(kind: C) -> C:
        if speed is not None:
            for name in methods:
                delattr(kind, name)
        return kind

    return decorate


def set_op_budget(primitives: int) -> None:
    """The twin's number of primitives in one step: for tests that want to stop at each."""
    if speed is not None:
        speed.set_op_budget(primitives)


def hand_over(**objects: Any) -> None:
    """Tell the twin of what the Python side defines."""
    if speed is not None:
        speed.setup(**objects)
