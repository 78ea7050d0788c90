"""Whether Python's stack has room for a fiber to be driven on it, as a plain call (PD16).

A step that meets the recursion limit half way can't be taken back: a coroutine that is entered
there is gone without its ``finally``, a finalizer counts as run. An interrupt therefore asks first,
and goes through the queue where there is no room. A start doesn't ask, it would pay for that each
time: what overflows in it goes on from the queue, with the RecursionError as its failure.
"""

from __future__ import annotations

import functools
import sys
from typing import Final

ROOM_CALLS: Final = 40
"""Calls that must still fit: the run loop's own, what ends with the fiber, and some cleanup."""
MORE_ROOM_CALLS: Final = 256
"""By so much the limit is lifted while a fiber that met it is put into the queue."""


def _in_a_tuple(inner: object, _depth: int = 0) -> tuple[object, ...]:
    return (inner,)


if sys.version_info >= (3, 12):
    # Python's frames alone count there. None: the stack is not that deep.
    _module_at = sys._getframemodulename

    def has_room() -> bool:
        """Whether ROOM_CALLS more calls fit."""
        return _module_at(sys.getrecursionlimit() - ROOM_CALLS) is None

else:
    # C's calls count too, so the frames don't tell. isinstance enters a tuple in a tuple as it
    # would a call, at a hundredth of the price.
    _nested: Final = functools.reduce(_in_a_tuple, range(ROOM_CALLS - 1), _in_a_tuple(int))

    def has_room() -> bool:
        """Whether ROOM_CALLS more calls fit."""
        try:
            isinstance(None, _nested)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # as deep as it gets, on purpose
        except RecursionError:
            return False
        return True
