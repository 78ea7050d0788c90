"""Forking: which fiber, started when, owned by whom (SU, FO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from fibers.cause import Cause, Interrupt
from fibers.loop.protocol import FAIL, NEXT, SWITCH, Frame, Node
from fibers.loop.run_loop import ENDED, NESTING_LIMIT_CALLS
from fibers.ops.wait import WaitForEnds

if TYPE_CHECKING:
    from types import CodeType

    from fibers.loop.run_loop import FiberCore

Uninterruptible: TypeAlias = 'bool | Literal["inherit"]'
Site: TypeAlias = "tuple[CodeType, int] | None"

SCOPE_CLOSED = "scope closed"


class Owner(Protocol):
    """What a fiber can be forked into: a scope, as seen from here."""

    @property
    def _is_closed(self) -> bool: ...

    def _hold(self, fiber: FiberCore) -> None:
        """Interrupt and await ``fiber`` when the scope closes, until ``_drop``."""

    def _drop(self, child: FiberCore) -> None: ...


def mask_of(forker: FiberCore | None, uninterruptible: Uninterruptible) -> int:
    """A child is interruptible unless asked otherwise (WI7)."""
    if uninterruptible == "inherit":
        return 1 if forker is not None and forker._mask else 0
    return 1 if uninterruptible else 0


def stillborn(child: FiberCore, why: Interrupt) -> FiberCore:
    """Nothing of it runs; its exit is there at once (FO1, FO4)."""
    child._icause = Cause((why,))
    child._end(False, child._icause)
    return child


class ForkOp(Node):
    """fork_child, fork_detach and fork_in in one: they differ in the owner only."""

    __slots__ = ("first", "immediate", "masked", "mode", "owner", "site")

    def __init__(
        self,
        first: Node,
        mode: Literal["child", "detach", "scope"],
        owner: Any,
        *,
        immediate: bool,
        uninterruptible: Uninterruptible,
        site: Site,
    ) -> None:
        self.first = first
        self.mode = mode
        self.owner = owner
        self.immediate = immediate
        self.masked: Uninterruptible = uninterruptible
        self.site: Site = site

    def _ev(self, fiber: FiberCore) -> Any:
        mask = mask_of(fiber, self.masked)
        child = fiber._spawn(self.first, mask, self.site)
        scope: Owner | None = None
        if self.mode == "child":
            fiber._adopt(child)
        elif self.mode == "scope":
            scope = self.owner
            child._owner = scope
            if self.owner._is_closed and (mask or not self.immediate):
                return stillborn(child, Interrupt(fiber.id, SCOPE_CLOSED))
        if self.immediate:
            fiber._switch = child
            if scope is None:
                fiber._rv = child
            else:
                fiber._cont = _AfterFirstSegment(child, scope)
            return SWITCH
        if scope is not None:
            scope._hold(child)
        fiber._queue.push(child)
        return child


class _AfterFirstSegment(Node):
    """The scope is looked at when the child's first segment is over (FO2, FO3)."""

    __slots__ = ("child", "scope")

    def __init__(self, child: FiberCore, scope: Owner) -> None:
        self.child = child
        self.scope = scope

    def _ev(self, fiber: FiberCore) -> Any:
        child = self.child
        if child._state == ENDED:
            return child
        if not self.scope._is_closed:
            self.scope._hold(child)
        elif child._ask(Interrupt(fiber.id, SCOPE_CLOSED)) and child._cut_loose():
            fiber._rv = child
            fiber._switch = child
            return SWITCH
        return child


def fork_now(child: FiberCore, scope: Owner, by: int | None, *, immediate: bool) -> None:
    """The same as a plain call, at the edge and from sync callbacks: it nests (PD16)."""
    child._owner = scope
    why = Interrupt(by, SCOPE_CLOSED)
    closed = scope._is_closed
    if closed and (child._mask or not immediate):
        stillborn(child, why)
        return
    if not immediate:
        scope._hold(child)
        child._queue.push(child)
        return
    if child._queue.depth >= NESTING_LIMIT_CALLS:
        if closed:
            stillborn(child, why)
            return
        child._owner = None
        raise RuntimeError(
            f"more than {NESTING_LIMIT_CALLS} plain calls of fork(start_immediately=True) inside "
            "each other: fork from an effect with fork_in, which doesn't nest, or start deferred"
        )
    child._drive()
    if child._state != ENDED:
        if scope._is_closed:
            child._interrupt_here(why)
        else:
            scope._hold(child)
    del child  # see FiberCore._drive


class AwaitChildrenOp(Node):
    """await_all_children: the children forked inside end before the effect does (SU13, SU14)."""

    __slots__ = ("first",)

    def __init__(self, first: Node) -> None:
        self.first = first

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._stack.append(_WithChildren(frozenset(fiber._children or ())))
        fiber._next = self.first
        return NEXT


class _WithChildren(Frame):
    __slots__ = ("before",)

    def __init__(self, before: frozenset[FiberCore]) -> None:
        self.before = before

    def _wait(self, fiber: FiberCore, then: Frame) -> Any:
        fiber._stack.append(then)
        fiber._next = WaitForEnds([c for c in fiber._children or () if c not in self.before])
        return NEXT

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return self._wait(fiber, _GoOn(value, None))

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        if fiber._skips(cause):
            fiber._cause = cause
            return FAIL
        return self._wait(fiber, _GoOn(None, cause))


class _GoOn(Frame):
    __slots__ = ("cause", "value")

    def __init__(self, value: Any, cause: Cause[Any] | None) -> None:
        self.value = value
        self.cause = cause

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        if self.cause is None:
            return self.value
        fiber._cause = self.cause
        return FAIL

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        fiber._cause = cause if self.cause is None else self.cause.combine(cause)
        return FAIL
