"""Masks made by combinators: uninterruptible, interruptible, and restore.

A mask is a depth, not a flag: each boundary counts, also in what is masked already, because what
was opened above a boundary (an asyncio.timeout) must not reach below it (PD11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.loop.masks import MaskEnd
from fibers.loop.protocol import FAIL, NEXT, Node, outcome_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.loop.run_loop import FiberCore


class UninterruptibleOp(Node):
    """``first`` under one mask more."""

    __slots__ = ("first",)

    def __init__(self, first: Node) -> None:
        self.first: Node = first

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._stack.append(MaskEnd(fiber))
        fiber._mask += 1
        fiber._next = self.first
        return NEXT


class MaskToOp(Node):
    """``first`` at a given depth of masks: 0 for interruptible, the outer depth for restore.

    With an interrupt pending and nothing to hold it, ``first`` is never evaluated (IN12).
    """

    __slots__ = ("depth", "first")

    def __init__(self, first: Node, depth: int) -> None:
        self.first: Node = first
        self.depth: int = depth

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._stack.append(MaskEnd(fiber))
        fiber._mask = min(self.depth, fiber._mask)
        if fiber._pend and not fiber._mask:
            fiber._cause = fiber._own_cause()
            return FAIL
        if fiber._rare.asked:
            fiber._attn = True
        fiber._next = self.first
        return NEXT


class MaskOp(Node):
    """uninterruptible_mask: ``f`` gets restore, which brings the outer state back for a part."""

    __slots__ = ("f", "make_restore")

    def __init__(
        self, f: Callable[[Any], Any], make_restore: Callable[[int], Callable[[Any], Any]]
    ) -> None:
        self.f: Callable[[Any], Any] = f
        self.make_restore: Callable[[int], Callable[[Any], Any]] = make_restore

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._stack.append(MaskEnd(fiber))
        outer = fiber._mask
        fiber._mask += 1
        return outcome_of(fiber, self.f(self.make_restore(outer)))
