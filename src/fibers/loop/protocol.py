"""How the run loop and the primitives talk.

A node is evaluated with ``_ev(fiber)``; a frame on the fiber's stack gets a value with
``_val(fiber, value)`` or a failure with ``_err(fiber, cause)``. Each of the three returns either
the value to go on with, or one of the signals below. Many nodes are their own frames: no
allocation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

from returns.result import Failure, Success

from fibers.loop.native import hand_over

if TYPE_CHECKING:
    from collections.abc import Iterable

    from fibers.cause import Cause
    from fibers.loop.run_loop import FiberCore


@final
class Signal:
    """What a step says instead of a value. Compared by identity, told from values by its type."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


NEXT = Signal("NEXT")
"""Evaluate ``fiber._next``."""
FAIL = Signal("FAIL")
"""Unwind with ``fiber._cause``."""
SUSPEND = Signal("SUSPEND")
"""The fiber waits; whoever wakes it sets what it goes on with."""
SWITCH = Signal("SWITCH")
"""Run ``fiber._switch`` to its next suspension, then come back to this fiber."""
DONE = Signal("DONE")
"""The fiber has ended."""


class Node:
    """Something that a fiber can evaluate."""

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        raise NotImplementedError

    def _label(self) -> str:
        """A short name for dumps and messages."""
        # Not __name__: see Effect.__init_subclass__.
        return type(self).__qualname__.rpartition(".")[2].lstrip("_")


hand_over(NEXT=NEXT, FAIL=FAIL, SUSPEND=SUSPEND, SWITCH=SWITCH, DONE=DONE, Node=Node)


class Frame:
    """Something on a fiber's stack that wants the outcome of what is above it."""

    __slots__ = ()

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        """A value arrives; the frame is already off the stack."""
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        """A failure arrives; the frame is already off the stack."""
        fiber._cause = cause
        return FAIL


class Around(Node, Frame):
    """A node that evaluates another one first and is itself the frame that gets its outcome."""

    __slots__ = ("first",)

    def __init__(self, first: Node) -> None:
        self.first: Node = first

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._stack.append(self)
        fiber._next = self.first
        return NEXT


class WillJoin(Node):
    """A node that waits for a fiber, ``target``; what follows that fiber's first segment may be one
    (PD9).
    """

    __slots__ = ()

    target: FiberCore


class Wait:
    """What a suspended fiber waits for: how to stop waiting, and whom it waits for (SO6)."""

    __slots__ = ()

    def _abandon(self, fiber: FiberCore) -> None:
        """Stop waiting: an interrupt lands. Never raises, never runs a fiber."""

    def _waits_for(self) -> Iterable[Any]:
        """Fibers and futures that must end before this wait does."""
        return ()

    def _label(self) -> str:
        """What is waited for, in a few words for dumps."""
        raise NotImplementedError


def outcome_of(fiber: FiberCore, given: Any) -> Any:
    """Go on with what a callback returned: an effect, or an exit (PD22)."""
    if isinstance(given, Node):
        fiber._next = given
        return NEXT
    if isinstance(given, Success):
        return given._inner_value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # an exit of anything
    if isinstance(given, Failure):
        fiber._cause = given._inner_value  # pyright: ignore[reportUnknownMemberType]  # an exit's failure is a Cause
        return FAIL
    close = getattr(given, "close", None)
    if hasattr(given, "send") and close is not None:
        close()  # a coroutine that nobody will ever await
        raise TypeError(
            "expected an Effect or an Exit, got a coroutine: decorate the function with @effect, "
            "or wrap the call in Effect.promise(lambda: ...)"
        )
    raise TypeError(
        f"expected an Effect or an Exit, got {type(given).__name__}: Effect.succeed(...) makes one "
        "of it"
    )
