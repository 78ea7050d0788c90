"""Cancels that a failing TaskGroup of asyncio's drops, asked for again (AT2)."""

from __future__ import annotations

from asyncio import CancelledError
from types import CoroutineType
from typing import TYPE_CHECKING, Any

from fibers.loop import traps
from fibers.loop.interrupts import Interruptible

if TYPE_CHECKING:
    from fibers.loop.inner_task import InnerTask


class FailingGroup:
    """A TaskGroup of asyncio's with a failed task. When it raises, a cancel that was thrown into it
    is gone (3.13's asks its parent again, for asyncio's own cancels), and on 3.11 and 3.12 one that
    it asked for itself while it was being left is never given back.
    """

    __slots__ = ("dropped_own", "face", "gave_back", "group", "over")

    def __init__(self, face: InnerTask, group: Any) -> None:
        self.face: InnerTask = face
        self.group: Any = group
        # The fiber's own interrupt was thrown into it.
        self.dropped_own: bool = False
        self.gave_back: bool = False
        self.over: bool = False


class WithGroups(Interruptible):
    """A fiber in which task groups of asyncio's may fail."""

    __slots__ = ()

    def _watch_group(self, face: InnerTask, group: Any) -> None:
        """``group``, opened at ``face``, has a failed task."""
        failing = next((f for f in self._rare.groups or () if f.group is group), None)
        if failing is None:
            failing = FailingGroup(face, group)
            self._own_rare().groups = [*(self._rare.groups or ()), failing]
        held = traps.cancel_held_by(group, self.get_coro())
        failing.dropped_own |= isinstance(held, CancelledError) and self._is_own(held)
        self._attn = True

    def _given_back_by(self, group: Any) -> None:
        """``group``, about to be left, gives its request to this fiber back."""
        for failing in self._rare.groups or ():
            failing.gave_back |= failing.group is group

    def _look_at_groups(self) -> None:
        """Ask again for the cancels that a group dropped when it raised its errors (AT2)."""
        left: list[FailingGroup] = []
        for failing in self._rare.groups or ():
            if not traps.has_raised(failing.group):
                left.append(failing)
                continue
            if not failing.over:
                failing.over = True
                face = failing.face
                if traps.asked_its_parent(failing.group) and not failing.gave_back:
                    face._give_back()
                if face._num:
                    face._must = True
            if failing.dropped_own:
                if any(traps.handles_an_exception(c) for c in self._coroutines()):
                    left.append(failing)  # a cleanup is not cut (PD2)
                else:
                    self._pend = True
        self._own_rare().groups = left or None
        self._attn = bool(left)

    def _coroutines(self) -> list[Any]:
        return [frame for frame in self._stack if type(frame) is CoroutineType]
