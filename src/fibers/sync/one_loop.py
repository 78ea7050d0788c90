"""One event loop at a time: what guards the state of most primitives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fibers.loop import hooks

if TYPE_CHECKING:
    import asyncio


class OneLoop:
    """The base of primitives whose state is guarded by the event loop that uses them.

    A lock would make them good for several threads, at a price for everybody and with a deadlock
    for whoever uses one in a signal handler or in ``__del__``. Instead a use from a second loop, or
    from a thread without one, is an error for as long as the first loop runs.
    """

    __slots__ = ("_loop",)

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def _here(self) -> None:
        """Every operation asks this first. RuntimeError in a second loop."""
        loop = hooks.running_loop()
        if loop is self._loop:
            return
        if self._loop is not None and self._loop.is_running():
            raise RuntimeError(
                f"{self!r} is in use by another event loop: give each loop its own, or let "
                "loop.call_soon_threadsafe(...) make the call (a Deferred takes calls from any "
                "thread)"
            )
        self._loop = loop
