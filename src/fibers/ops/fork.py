"""Forking: which fiber, started when, owned by whom (SU, FO)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

from fibers.cause import Cause, Interrupt
from fibers.loop.native import speed
from fibers.loop.protocol import FAIL, NEXT, SWITCH, Frame, Node
from fibers.loop.states import ENDED, NESTING_LIMIT_CALLS, SHALLOW_CALLS
from fibers.ops.wait import WaitForEnds

if TYPE_CHECKING:
    from collections.abc import Callable
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


def check_mask(uninterruptible: object) -> None:
    """ValueError where a fork's option is none: what is misspelt would mask all of the fiber."""
    if uninterruptible is not True and uninterruptible != "inherit":
        raise ValueError(
            f'uninterruptible must be True, False or "inherit", not {uninterruptible!r}'
        )


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


CHILD: Final = 0
DETACHED: Final = 1
IN_SCOPE: Final = 2


class _ForkFields:
    """What a fork consists of."""

    __slots__ = ("first", "immediate", "masked", "mode", "owner", "site")

    def __init__(
        self,
        first: Node,
        mode: int,
        owner: Any,
        immediate: bool,
        uninterruptible: Uninterruptible,
        site: Site,
    ) -> None:
        self.first: Node = first
        self.mode: int = mode
        self.owner: Any = owner
        self.immediate: bool = immediate
        self.masked: Uninterruptible = uninterruptible
        self.site: Site = site


if TYPE_CHECKING or speed is None:
    _ForkBase = _ForkFields
else:
    _ForkBase = speed.Fork


class ForkOp(_ForkBase, Node):
    """fork_child, fork_detach and fork_in in one: they differ in the owner only."""

    __slots__ = ()

    def __reduce__(self) -> Any:
        given = (self.first, self.mode, self.owner, self.immediate, self.masked, self.site)
        return type(self), given  # see SucceedOp

    def _ev(self, fiber: FiberCore) -> Any:
        masked = self.masked
        mask = 0 if masked is False else mask_of(fiber, masked)
        queue = fiber._queue
        child = fiber._spawn(self.first, mask, self.site)
        scope: Owner | None = None
        mode = self.mode
        if mode == CHILD:
            fiber._adopt(child)
        elif mode == IN_SCOPE:
            scope = self.owner
            child._owner = scope
            if self.owner._is_closed and (mask or not self.immediate):
                return stillborn(child, Interrupt(fiber.id, SCOPE_CLOSED))
        if not self.immediate:
            if scope is not None:
                scope._hold(child)
            queue.ready.append(child)
            if not queue._armed:
                queue._arm()
            return child
        try:
            if queue.depth < SHALLOW_CALLS:
                child._drive()
                return child if scope is None else _look_at_scope(fiber, child, scope)
            fiber._switch = child
            if scope is None:
                fiber._rv = child
            else:
                fiber._cont = _AfterFirstSegment(child, scope)
            return SWITCH
        finally:
            del self, fiber, child, queue  # see FiberCore._drive


def _look_at_scope(fiber: FiberCore, child: FiberCore, scope: Owner) -> Any:
    """The child's first segment is over (FO2, FO3)."""
    if child._state == ENDED:
        return child
    if not scope._is_closed:
        scope._hold(child)
    elif child._ask(Interrupt(fiber.id, SCOPE_CLOSED)) and child._cut_loose():
        fiber._rv = child
        fiber._switch = child
        return SWITCH
    return child


class _AfterFirstSegment(Node):
    """What comes after the child's first segment, where that ran on the trampoline."""

    __slots__ = ("child", "scope")

    def __init__(self, child: FiberCore, scope: Owner) -> None:
        self.child = child
        self.scope = scope

    def _ev(self, fiber: FiberCore) -> Any:
        return _look_at_scope(fiber, self.child, self.scope)


def fork_now(
    child: FiberCore,
    scope: Owner,
    forker: Callable[[], FiberCore | None],
    *,
    immediate: bool,
) -> None:
    """The same as a plain call, at the edge and from sync callbacks: it nests (PD16)."""
    child._owner = scope
    if not immediate or child._mask:
        if scope._is_closed:
            stillborn(child, _closed_by(forker()))
            return
        if not immediate:
            scope._hold(child)
            child._queue.push(child)
            return
    if child._queue.depth >= NESTING_LIMIT_CALLS:
        if scope._is_closed:
            stillborn(child, _closed_by(forker()))
            return
        child._owner = None
        raise RuntimeError(
            f"more than {NESTING_LIMIT_CALLS} plain calls of fork(start_immediately=True) inside "
            "each other: fork from an effect with fork_in, which doesn't nest, or start deferred"
        )
    child._drive()
    if child._state != ENDED:
        if scope._is_closed:
            child._interrupt_here(_closed_by(forker()))
        else:
            scope._hold(child)
    del child  # see FiberCore._drive


def _closed_by(forker: FiberCore | None) -> Interrupt:
    return Interrupt(None if forker is None else forker.id, SCOPE_CLOSED)


class AwaitChildrenOp(Node):
    """await_all_children: the children forked inside end before the effect does (SU13, SU14)."""

    __slots__ = ("first",)

    def __init__(self, first: Node) -> None:
        self.first: Node = first

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
