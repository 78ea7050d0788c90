"""Scope: the owner of everything in flight (SO, SC, FO).

AsyncExitStack can't be the base: it loses the finalizer in flight on one cancel (SO7).
"""

from __future__ import annotations

import functools
import inspect
import sys
from asyncio import CancelledError
from typing import TYPE_CHECKING, Any, Literal, Never, Self

from returns.result import Failure, Success
from typing_extensions import TypeVar

from fibers import root, waiting
from fibers.cause import Cause, Die, FiberInterrupted, Interrupt, interrupt_of
from fibers.effect import SCOPE_KEY, Effect, service_in
from fibers.exit import failed, succeeded
from fibers.fiber import Fiber, current_fiber
from fibers.loop.ends import EndFibers, Unheard
from fibers.loop.masks import MaskEnd
from fibers.loop.native import hand_over
from fibers.loop.protocol import FAIL, NEXT, SWITCH, Frame, Node, outcome_of
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED, SHALLOW_CALLS
from fibers.misplaced import check_effect, check_function, check_kind
from fibers.ops import basic, body, fork
from fibers.ops.wait import WaitForEnds

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fibers.exit import Exit
    from fibers.ops.fork import Uninterruptible

A = TypeVar("A")
E = TypeVar("E", bound=Exception)

Strategy = Literal["sequential", "parallel"]
_NOTHING = succeeded(None)


class _Finalizer:
    """A registered callback; its identity is its place in the order."""

    __slots__ = ("f",)

    def __init__(self, f: Callable[[Any], Any]) -> None:
        self.f = f


class Scope:
    """What is forked into it or acquired in it ends with it.

        async with Scope() as scope:
            fiber = await work().fork_in(scope)

    ``sequential``: finalizers one after another, last added first. ``parallel``: started in that
    order and awaited together. A failing finalizer never stops the others (SC3).
    """

    __slots__ = (
        "__weakref__",
        "_entries",
        "_exit",
        "_parent",
        "_reason",
        "_strategy",
        "_unheard",
        "name",
    )

    def __init__(self, strategy: Strategy = "sequential", *, name: str | None = None) -> None:
        if strategy not in ("sequential", "parallel"):
            raise ValueError(f'strategy must be "sequential" or "parallel", not {strategy!r}')
        self._strategy: Strategy = strategy
        self.name: str | None = name
        self._entries: dict[FiberCore | _Finalizer, None] = {}
        self._exit: Exit[Any, Any] | None = None
        self._parent: tuple[Scope, _Finalizer] | None = None
        # What the interrupts of the close say.
        self._reason = fork.SCOPE_CLOSED
        self._unheard: Unheard | None = None

    # ------------------------------------------------------------------ looking

    @property
    def state(self) -> Literal["empty", "open", "closed"]:
        """``empty``: nothing to finalize. ``closed``: from the first moment of the close (SO1)."""
        if self._exit is not None:
            return "closed"
        return "open" if self._entries else "empty"

    @property
    def finalizer_count(self) -> int:
        """Finalizers and live fibers that the close will take care of."""
        return len(self._entries)

    @property
    def _is_closed(self) -> bool:
        return self._exit is not None

    # ------------------------------------------------------------------ owning

    def _hold(self, fiber: FiberCore) -> None:
        self._entries[fiber] = None

    def _drop(self, child: FiberCore) -> None:
        self._entries.pop(child, None)

    def _note_unheard(self, fiber: FiberCore) -> None:
        if self._exit is not None and not self._entries:
            fiber._report()  # the owner has ended already
            return
        if self._unheard is None:
            self._unheard = Unheard()
        self._unheard.add(fiber)

    def add_finalizer(
        self,
        f: Callable[
            [Exit[Any, Any]], Effect[Any, Never] | Exit[Any, Never] | Awaitable[Any] | None
        ],
    ) -> Effect[None, Never]:
        """Run ``f(exit)`` when the scope closes, uninterruptibly. In a closed scope it runs at
        once, in the caller, and its failure is the caller's (SO3).
        """
        check_function(f, "Scope.add_finalizer")
        return Effect.suspend(lambda: self._add(f))

    def _add(self, f: Callable[[Any], Any]) -> Effect[None, Never]:
        if self._exit is not None:
            late = _RunFinalizer(f, self._exit)
            return late.uninterruptible()
        self._entries[_Finalizer(f)] = None
        return Effect.succeed(None)

    def fork(
        self,
        eff: Effect[A, E],
        *,
        start_immediately: bool = False,
        uninterruptible: Uninterruptible = False,
    ) -> Fiber[A, E]:
        """``fork_in`` as a plain call, at the edge: also from a synchronous callback (PD24).

        RuntimeError where no event loop runs, and beyond 100 immediate starts inside each other.
        """
        check_effect(eff, "Scope.fork")
        mask = 0
        if uninterruptible is not False:
            fork.check_mask(uninterruptible)
            mask = fork.mask_of(current_fiber(), uninterruptible)
        at = sys._getframe(1)
        fiber = root.new_fiber(eff, mask=mask, site=(at.f_code, at.f_lasti))
        try:
            fork.fork_now(fiber, self, current_fiber, immediate=start_immediately)
            return fiber
        finally:
            del fiber, at  # see FiberCore._drive

    def fork_scope(self, strategy: Strategy = "sequential") -> Scope:
        """A child scope at this place in the order; closing it first takes it out (SO5). Of a
        closed scope it is closed with the same exit (SC9).
        """
        child = Scope(strategy)
        if self._exit is not None:
            child._exit = self._exit
            return child
        place = _Finalizer(lambda exit_: child.close(exit_, reason=self._reason))
        child._parent = (self, place)
        self._entries[place] = None
        return child

    # ------------------------------------------------------------------ using

    def provide(self, eff: Effect[A, E]) -> Effect[A, E]:
        """Run ``eff`` with this scope in context; it stays open."""
        check_effect(eff, "Scope.provide")
        return _ProvideScope(eff, {SCOPE_KEY: self})

    def use(self, eff: Effect[A, E]) -> Effect[A, E]:
        """Run ``eff`` with this scope in context, then close it with the effect's exit (SC11)."""
        check_effect(eff, "Scope.use")
        return self.provide(eff).on_exit(self.close)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, exc: BaseException | None, tb: object) -> None:
        await self.close(_exit_of_block(exc))

    # ------------------------------------------------------------------ closing

    def close(
        self, exit: Exit[Any, Any] = _NOTHING, *, reason: str | None = None
    ) -> Effect[None, Never]:
        """Interrupt and await every fiber, run every finalizer with ``exit``; uninterruptible.

        Closed is closed from the first moment: a second close returns at once (SO1). ``reason`` is
        what the interrupts say. Fails with the finalizers' failures only, each once (SO4).
        """
        check_kind(
            exit, (Success, Failure), "Scope.close", "an Exit, Success(value) or Failure(cause)"
        )
        return _Close(self, exit, reason)

    def _shut(self, exit_: Exit[Any, Any]) -> list[FiberCore | _Finalizer]:
        """Mark closed; what there is to end, last added first."""
        self._exit = exit_
        entries = list(reversed(self._entries))
        for entry in entries:
            if isinstance(entry, _Finalizer):
                del self._entries[entry]
        if self._parent is not None:
            parent, place = self._parent
            parent._entries.pop(place, None)
            self._parent = None
        return entries

    def _closed(self) -> None:
        if self._unheard is not None:
            self._unheard.report()

    def __reduce__(self) -> Never:
        # Else both would finalize the same things.
        name = "" if self.name is None else f" {self.name!r}"
        raise TypeError(
            f"the scope{name} owns what is alive here: it can't be copied or pickled; pass it on "
            "as it is, or fork_scope() a child"
        )

    def __repr__(self) -> str:
        name = "" if self.name is None else f" {self.name!r}"
        return f"<{type(self).__name__}{name} {self.state}, {len(self._entries)} to finalize>"


hand_over(Scope=Scope)


def _exit_of_block(exc: BaseException | None) -> Exit[Any, Any]:
    if exc is None:
        return _NOTHING
    if isinstance(exc, CancelledError):
        return failed(Cause((interrupt_of(exc) or Interrupt(None, "task.cancel"),)))
    if isinstance(exc, FiberInterrupted):
        return failed(exc.cause)
    return failed(Cause((Die(exc, exc.__traceback__),)))


# ---------------------------------------------------------------------------- running finalizers


def _evaluate(fiber: FiberCore, f: Callable[[Any], Any], exit_: Any) -> Any:
    """What a finalizer callback gives: an effect, an exit, something awaitable, or nothing."""
    given = f(exit_)
    if given is None:
        return None
    if not isinstance(given, Node) and inspect.isawaitable(given):
        fiber._next = body.PromiseOp(lambda: given, None)
        return NEXT
    return outcome_of(fiber, given)


class _RunFinalizerOp(Node):
    __slots__ = ("f", "given")

    def __init__(self, f: Callable[[Any], Any], given: Any) -> None:
        self.f = f
        self.given = given

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._stack.append(_DROP_VALUE)
        return _evaluate(fiber, self.f, self.given)


class _DropValue(Frame):
    __slots__ = ()

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return None


_DROP_VALUE = _DropValue()


class CloseOp(Node):
    """One close of one scope."""

    __slots__ = ("given", "reason", "scope")

    def __init__(self, scope: Scope, given: Any, reason: str | None) -> None:
        self.scope: Scope = scope
        self.given: Any = given
        self.reason: str | None = reason

    def _ev(self, fiber: FiberCore) -> Any:
        scope = self.scope
        if scope._exit is not None:
            return None
        if self.reason is not None:
            scope._reason = self.reason
        entries = scope._shut(self.given)
        if not entries:
            scope._closed()
            return None
        fiber._stack.append(MaskEnd(fiber))
        fiber._mask += 1
        work = (_SequentialClose if scope._strategy == "sequential" else _ParallelClose)(
            self, fiber, entries
        )
        return work.go(fiber)


class _Closing(Frame):
    """What both strategies share: who closes, why, and what failed."""

    __slots__ = ("cause", "close", "entries", "why")

    def __init__(
        self, close: CloseOp, fiber: FiberCore, entries: list[FiberCore | _Finalizer]
    ) -> None:
        self.close = close
        closer = waiting.closer_of(fiber)
        self.why = Interrupt(closer.id, close.scope._reason)
        # The closer is no target of its own close. Those that wait for it are signalled and not
        # awaited (SO6); who they are is asked when the close gets to them.
        self.entries = [e for e in entries if e is not fiber and e is not closer]
        self.cause: Cause[Any] = Cause(())

    def finish(self, fiber: FiberCore) -> Any:
        self.close.scope._closed()
        if not self.cause.reasons:
            return None
        fiber._cause = self.cause
        return FAIL


class _SequentialClose(_Closing):
    """Each entry ends before the next is touched (SC1)."""

    __slots__ = ("at",)

    def __init__(
        self, close: CloseOp, fiber: FiberCore, entries: list[FiberCore | _Finalizer]
    ) -> None:
        super().__init__(close, fiber, entries)
        self.at = 0

    def go(self, fiber: FiberCore) -> Any:
        queue = fiber._queue
        entry: FiberCore | _Finalizer | None = None
        try:
            while self.at < len(self.entries):
                entry = self.entries[self.at]
                self.at += 1
                if isinstance(entry, FiberCore):
                    if entry._queue is queue and queue.depth < SHALLOW_CALLS:
                        entry._interrupt_here(self.why)
                    if entry._state == ENDED:
                        continue
                    fiber._stack.append(self)
                    fiber._next = EndFibers(
                        [entry], self.why, leads_to=waiting.leads_to_close_by(fiber)
                    )
                    return NEXT
                fiber._stack.append(self)
                fiber._next = _RunFinalizerOp(entry.f, self.close.given)
                return NEXT
            return self.finish(fiber)
        finally:
            del self, fiber, entry, queue  # see FiberCore._drive

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return self.go(fiber)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        self.cause = self.cause.combine(cause)
        return self.go(fiber)


class _ParallelClose(_Closing, Node):
    """Everyone is signalled or started, then all are awaited (SC2). A scope of fibers forks
    nothing.
    """

    __slots__ = ("at", "callbacks")

    def __init__(
        self, close: CloseOp, fiber: FiberCore, entries: list[FiberCore | _Finalizer]
    ) -> None:
        super().__init__(close, fiber, entries)
        self.at = 0
        self.callbacks: list[FiberCore] = []

    def go(self, fiber: FiberCore) -> Any:
        return self._ev(fiber)

    def _ev(self, fiber: FiberCore) -> Any:
        queue = fiber._queue
        entry: FiberCore | _Finalizer | None = None
        target: FiberCore | None = None
        try:
            while self.at < len(self.entries):
                entry = self.entries[self.at]
                self.at += 1
                shallow = queue.depth < SHALLOW_CALLS
                if isinstance(entry, FiberCore):
                    if entry._queue.loop is not queue.loop:
                        # Asked for there: its mask may be another by then.
                        entry._elsewhere(functools.partial(entry._interrupt_here, self.why))
                        continue
                    if shallow:
                        entry._interrupt_here(self.why)
                        continue
                    if not entry._ask(self.why) or not entry._cut_loose():
                        continue
                    target = entry
                else:
                    target = fiber._spawn(_RunFinalizerOp(entry.f, self.close.given), 1, None)
                    target._seen = True  # its failure is the close's
                    target._own_rare().closer = waiting.closer_of(fiber)
                    self.callbacks.append(target)
                    if shallow:
                        target._drive()
                        continue
                fiber._cont = self
                fiber._switch = target
                return SWITCH
            members = [e for e in self.entries if isinstance(e, FiberCore)]
            fiber._stack.append(self)
            fiber._next = WaitForEnds(
                members + self.callbacks, leads_to=waiting.leads_to_close_by(fiber)
            )
            return NEXT
        finally:
            del self, fiber, entry, target, queue  # see FiberCore._drive

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        for callback in self.callbacks:
            if callback._state != ENDED:
                callback._seen = False  # it waits for the closer: nobody will hear of its failure
            elif not callback._ok:
                self.cause = self.cause.combine(callback._result)
        return self.finish(fiber)


class _Close(CloseOp, Effect[Any, Any]):
    __slots__ = ()


class _RunFinalizer(_RunFinalizerOp, Effect[Any, Any]):
    __slots__ = ()


class _ProvideScope(basic.ProvideOp, Effect[Any, Any]):
    __slots__ = ()


class _CurrentScope(basic.AccessOp, Effect[Any, Any]):
    __slots__ = ()


def current_scope() -> Effect[Scope, Never]:
    """The scope in context; a defect that names the way out where there is none."""
    return _CurrentScope(lambda fiber: service_in(fiber, SCOPE_KEY))


def scoped(eff: Effect[A, E]) -> Effect[A, E]:
    """Run ``eff`` in a scope of its own, closed with its exit (SC12)."""
    check_effect(eff, "scoped")
    return Effect.suspend(lambda: Scope().use(eff))


def add_finalizer(
    f: Callable[[Exit[Any, Any]], Effect[Any, Never] | Exit[Any, Never]],
) -> Effect[None, Never]:
    """Run ``f(exit)`` when the scope in context closes."""
    check_function(f, "add_finalizer")
    return current_scope().flat_map(lambda scope: scope.add_finalizer(f))


__all__ = ["Scope", "add_finalizer", "current_scope", "scoped"]
