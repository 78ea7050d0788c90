"""Occupant: a service that lives in the app scope, and how it gets there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from fibers.app.scope import AppScope
from fibers.effect import Effect, effect
from fibers.scope import Scope


@runtime_checkable
class Occupant(Protocol):
    """A service whose work in flight belongs to the app scope.

    It forks into the scope whatever must not outlive the application, and says what it has in
    flight. Everything else, its own methods, is its own business. See ``occupy``.
    """

    name: str
    """What it is called in a dump; one of its name in a scope."""

    def start(self, scope: Scope) -> Effect[None, Any]:
        """Begin to use ``scope``, once; it is over when the service can be used.

        Fork into it, or keep it and fork when there is work: the close interrupts what was forked
        with the reason "system" and waits for it, bounded. So what has to be saved at a shutdown is
        saved by the ``on_interrupt`` of that fork, which takes the path that a user's stop takes.
        Never close the scope: it belongs to the application. A start that fails leaves nothing
        running; what it had forked already, the close ends.
        """
        ...

    def describe(self) -> Mapping[str, object]:
        """What it has in flight, in plain values: numbers, text, lists and mappings of those.

        Read only, and quick. It may be called from another thread, and while the loop is blocked:
        no waiting, no lock that the loop's thread may hold. What it raises stands in the dump.
        """
        ...


def occupy(scope: AppScope, *occupants: Occupant) -> Effect[None, Any]:
    """Start each of ``occupants`` in ``scope``, one after another; ``dump()`` shows them from then
    on, for as long as the scope is there.

        await occupy(app_scope, engine, Watchdog())

    Fails with what a start fails with: that one is out again, later ones don't start; with
    RuntimeError where the scope is closed. ValueError at the call where two have one name,
    TypeError where one is no Occupant or the scope no AppScope.
    """
    given: Any = scope  # annotations bind nobody who runs no type checker
    if not isinstance(given, AppScope):
        raise TypeError(f"occupy() takes the AppScope of the application, not {given!r}")
    for given in occupants:
        if not isinstance(given, Occupant):
            raise TypeError(f"an occupant has name, start(scope) and describe(): {given!r} is none")
    names = [occupant.name for occupant in occupants]
    _refuse_twice([*scope._occupants, *names])
    return _occupy(scope, occupants)


@effect(raises=Exception)
async def _occupy(scope: AppScope, occupants: tuple[Occupant, ...]) -> None:
    for occupant in occupants:
        if scope.state == "closed":
            raise RuntimeError(
                f"{occupant.name} can't move into {scope!r}: occupy it before the shutdown"
            )
        _refuse_twice([*scope._occupants, occupant.name])
        # Before its start, which may take its time: a dump shows what that waits for.
        scope._occupants[occupant.name] = occupant
        try:
            await occupant.start(scope)
        except BaseException:
            del scope._occupants[occupant.name]
            raise


def _refuse_twice(names: list[str]) -> None:
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"occupants need names of their own: {', '.join(twice)} twice")
