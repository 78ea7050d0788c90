"""Occupant: a service that forks its work into the app scope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from fibers.effect import Effect
from fibers.scope import Scope


@runtime_checkable
class Occupant(Protocol):
    """What the application knows of a service in its scope."""

    name: str

    def start(self, scope: Scope) -> Effect[None, Any]:
        """Begin to use ``scope``; the close ends what was forked there."""
        ...

    def describe(self) -> Mapping[str, object]:
        """What it has in flight, for a dump: plain values."""
        ...
