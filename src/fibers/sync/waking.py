"""Letting a waiting fiber go on, from whatever thread (AT16)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fibers.loop import hooks

if TYPE_CHECKING:
    from fibers.loop.protocol import Node, Wait
    from fibers.loop.run_loop import FiberCore


def wake_with(fiber: FiberCore, wait: Wait, node: Node) -> bool:
    """Let ``fiber`` evaluate ``node`` next, if it still waits in ``wait`` by then: through the
    ready queue of its loop. False: that loop is closed, and the fiber will never run again.
    """

    def go_on() -> None:
        if fiber._wait is wait:
            fiber._wake_next(node)

    loop = fiber._queue.loop
    if loop is None or loop is hooks.running_loop():
        go_on()
        return True
    try:
        loop.call_soon_threadsafe(go_on)
    except RuntimeError:
        # It is closed. Not asked before the call: another thread may close it in between.
        return False
    return True
