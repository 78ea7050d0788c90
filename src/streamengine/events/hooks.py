"""Hooks: named places where others take part, as observers or in a waterfall.

Observers hear of what happened and change nothing. A waterfall stands around what is about to
happen: each of its steps sees the context before the next one, and may keep it from going on.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Awaitable, Callable
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

import fibers as fb
from fibers import Effect

from ..model.events import StreamStartEvent, TerminalEvent

C = TypeVar("C")

Next: TypeAlias = Callable[[], Effect[None]]
Step: TypeAlias = Callable[[C, Next], Awaitable[object]]
"""A step of a waterfall: ``await next()`` is everything after it. Not to call it ends the way."""


@final
class Hook(Generic[C]):
    """A place with a name, and the type of what is said there. Compared by identity."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name: str = name

    def __repr__(self) -> str:
        return f"<Hook {self.name}>"


STREAM_START: Final = Hook[StreamStartEvent]("stream.start")
"""A stream was launched: once each, never for a replay."""

STREAM_END: Final = Hook[TerminalEvent]("stream.end")
"""A stream that was launched has ended: once each, never for a replay."""


class Blockable:
    """A context of a waterfall that a step can block: from then on no further step runs, nor what
    the waterfall stands around.
    """

    blocked: str | None = None
    """Why, where it is blocked."""

    def block(self, why: str) -> None:
        """Keep it from going on. The first reason counts."""
        if self.blocked is None:
            self.blocked = why


@final
class Waterfall(Generic[C]):
    """Steps around something, in the order of their number, then of their registration.

    admission = Waterfall[Admission]("admission")
    admission.use(check_quota, order=-10)
    await admission.run(Admission(request), lambda a: start(a.request))
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._steps: dict[object, tuple[int, int, Step[C]]] = {}
        self._count = itertools.count()

    def use(self, step: Step[C], *, order: int = 0) -> Callable[[], None]:
        """Add a step; gives a function that takes it away. Twice added is twice in the way."""
        key = object()
        self._steps[key] = (order, next(self._count), step)

        def remove() -> None:
            self._steps.pop(key, None)

        return remove

    def run(self, context: C, terminal: Callable[[C], Awaitable[object]]) -> Effect[bool]:
        """Lead ``context`` through all steps, then to ``terminal``. Whether it came there.

        The steps are those of now. What a step raises ends it and passes through the steps before.
        A step that calls ``next()`` twice gets an AssertionError.
        """
        steps = [step for _, _, step in sorted(self._steps.values(), key=lambda s: s[:2])]
        return _Descent(self.name, steps, context, terminal).run()

    def __repr__(self) -> str:
        return f"<Waterfall {self.name}, {len(self._steps)} steps>"


@final
class _Descent(Generic[C]):
    """One way down."""

    def __init__(
        self,
        name: str,
        steps: list[Step[C]],
        context: C,
        terminal: Callable[[C], Awaitable[object]],
    ) -> None:
        self._name = name
        self._steps = steps
        self._context = context
        self._terminal = terminal
        self._arrived = False

    @fb.effect
    async def run(self) -> bool:
        await self._from(0)
        return self._arrived

    @fb.effect
    async def _from(self, index: int) -> None:
        if isinstance(self._context, Blockable) and self._context.blocked is not None:
            return
        if index == len(self._steps):
            self._arrived = True
            await self._terminal(self._context)
            return
        called = False

        def go_on() -> Effect[None]:
            nonlocal called
            assert not called, (
                f"a step of the waterfall {self._name} called next() twice: "
                "what comes after it would happen twice"
            )
            called = True
            return self._from(index + 1)

        await _checked(self._steps[index](self._context, go_on))


def _checked(given: Any) -> Awaitable[object]:
    if not inspect.isawaitable(given):
        raise TypeError(f"a step of a waterfall gives an awaitable, not {given!r}")
    return given
