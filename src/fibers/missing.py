"""What a missing service says: its tag, who needs it, and which layer could give it (EX13).

All of it is looked up when a service is missing. Layers announce themselves here when they are
made, so that a message can name one that nobody provided.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from fibers.dump import where
from fibers.ops.flight import SCOPE_KEY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fibers.fiber import Fiber
    from fibers.loop.run_loop import FiberCore

LAYERS_KEY: Final = "fibers.Layers"
"""In a fiber's services: the layers around it, an ``InContext`` of ``fibers.memo``."""

_NAMED_GIVERS: Final = 3


class Giver(Protocol):
    """A layer that gives one service; ``str()`` names it and the line that made it."""

    made: int

    def __str__(self) -> str: ...


_givers: dict[str, weakref.WeakSet[Any]] = {}


def announce(name: str, giver: Giver) -> None:
    """``giver`` can give the service of that name. Held weakly."""
    _givers.setdefault(name, weakref.WeakSet()).add(giver)


def givers_of(name: str) -> list[str]:
    """Layers of this process that could give the service, the first ones made first."""
    found = sorted(cast("Iterable[Giver]", _givers.get(name, ())), key=lambda giver: giver.made)
    return [str(giver) for giver in found]


def message(name: str, needed_by: str, way_in: str) -> str:
    """The one sentence on a missing service, for both who looks it up and who checks a graph.

    ``way_in`` says how a layer that exists would get there.
    """
    text = f"Service not found: {name}. Needed by {needed_by}. "
    givers = givers_of(name)
    if name == SCOPE_KEY:
        return text + "Run inside scoped(...) or scope.use(...)"
    if not givers:
        return text + (
            "No layer gives it: use .provide_service(tag, impl), or make one with "
            "Layer.succeed(tag, impl), Layer.effect(tag, effect) or Layer.scoped(tag, effect)"
        )
    named = ", ".join(givers[:_NAMED_GIVERS])
    more = len(givers) - _NAMED_GIVERS
    if more > 0:
        named += f" and {more} more"
    return f"{text}It could come from {named}: {way_in}"


def not_found(fiber: FiberCore, name: str) -> LookupError:
    """The defect of a fiber that asked for a service that nobody provided."""
    who = f"fiber #{fiber.id}, forked at {cast('Fiber[Any, Any]', fiber).forked_at}"
    place = where(fiber)
    if place != "no body":
        who = f"{place} ({who})"
    around = fiber._env.get(LAYERS_KEY)
    if around is not None and around.building is not None:
        who += f", in {around.building}"
        way_in = "give it to that one with .provide(dependency)"
    else:
        way_in = "use .provide(layer), run(effect, layer=layer) or Runtime(layer)"
    return LookupError(message(name, who, way_in))
