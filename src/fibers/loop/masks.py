"""Where a region that a combinator made ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fibers.cause import landed
from fibers.loop import hooks
from fibers.loop.protocol import FAIL, Frame

if TYPE_CHECKING:
    from fibers.cause import Cause
    from fibers.loop.inner_task import InnerTask
    from fibers.loop.run_loop import FiberCore


class MaskEnd(Frame):
    """The end of a region made by a combinator: the mask and the inner task of outside come back,
    and what is pending lands (IN4, IN7).
    """

    __slots__ = ("face", "mask")

    def __init__(self, fiber: FiberCore) -> None:
        self.mask: int = fiber._mask
        self.face: InnerTask = fiber._face

    def leave(self, fiber: FiberCore) -> None:
        """Give ``fiber`` the mask and the inner task of outside back."""
        fiber._mask = self.mask
        face = fiber._face
        if face is not self.face:
            fiber._face = self.face
            hooks.make_current(fiber._queue.loop, self.face)
            face._part(fiber)
        if fiber._rare.asked:
            fiber._attn = True

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        self.leave(fiber)
        if fiber._pend and not self.mask:
            fiber._cause = fiber._own_cause()
            return FAIL
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        self.leave(fiber)
        if fiber._pend and not self.mask:
            cause = landed(cause, fiber._own_cause())
        fiber._cause = cause
        return FAIL
