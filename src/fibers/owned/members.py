"""What FiberSet, FiberMap and FiberHandle share: fibers under keys, which end with a scope (PI7).

A member is nobody's child: it is started at once, on whoever runs ``run``, and outlives that fiber.
Closing interrupts all members and waits for them; one that ends by itself leaves nothing behind.
"""

from __future__ import annotations

import functools
import sys
from typing import TYPE_CHECKING, Any, Final, Literal, Never, Self

from fibers import waiting
from fibers.cause import Cause, Interrupt
from fibers.effect import Effect
from fibers.loop.ends import EndFibers, Unheard
from fibers.loop.observing import Observer, watch
from fibers.loop.protocol import FAIL, NEXT, SWITCH, Frame, Node
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED
from fibers.misplaced import check_effect, refuse
from fibers.ops.fork import SCOPE_CLOSED, stillborn
from fibers.ops.wait import WaitForEnds, _no_wait_for_itself
from fibers.resource import acquire_release
from fibers.scope import current_scope
from fibers.sync.deferred import Deferred
from fibers.sync.one_loop import OneLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from fibers.ops.fork import Site
    from fibers.scope import Scope

INTERNAL: Final = -1
"""The interruptor's id where the container itself ends a member: its ``join`` knows those from
interrupts by others."""

REPLACED: Final = "replaced"
ALREADY_RUNNING: Final = "already running"
CLEARED: Final = "cleared"


class Members(OneLoop):
    """Fibers by key, until closed."""

    __slots__ = (
        "_closed",
        "_failed_first",
        "_fibers",
        "_joiners",
        "_leaving",
        "_parent",
        "_refused",
        "_unheard",
        "deferred",
    )

    _strategy = "parallel"
    """How it closes, in a dump."""

    _closes_as_closer = True
    """Closing interrupts in the name of the closing fiber, else as INTERNAL."""

    _refuses_caller = True
    """``run`` on a closed one fails its caller, else it gives a fiber that has ended."""

    def __init__(self) -> None:
        super().__init__()
        self._fibers: dict[Hashable, FiberCore] = {}
        # Interrupted for another's sake and not ended yet: nobody waits for them but the close.
        self._leaving: dict[FiberCore, None] = {}
        self._closed = False
        # Held so that a later join finds it unreported (PD8).
        self._failed_first: FiberCore | None = None
        self._joiners = 0
        self._unheard = Unheard()
        self._refused: FiberCore | None = None
        # For dumps, where it stands like a scope below its scope.
        self._parent: tuple[Scope, Members] | None = None
        # What ``join`` waits for: the first failure of a member, or the close.
        self.deferred: Deferred[None, Exception] = Deferred()

    @classmethod
    def _scoped(cls) -> Effect[Self, Never]:
        made = current_scope().map(cls._below)
        return acquire_release(made, lambda members, _: _Close(members))

    @classmethod
    def _below(cls, scope: Scope) -> Self:
        members = cls()
        members._parent = (scope, members)
        return members

    # ------------------------------------------------------------------ for all three

    def size(self) -> Effect[int, Never]:
        """How many members are alive."""
        return Effect.sync(lambda: len(self._fibers))

    def clear(self) -> Effect[None, Never]:
        """Interrupt all members (by -1) and wait until they have ended; it stays open."""
        return EndMembers(lambda: list(self._fibers.values()))

    def join(self) -> Effect[None, Exception]:
        """Wait for the first failure of a member and fail with it; end when the scope has closed.

        The other members go on. A member that was interrupted is no failure, unless it was started
        with ``propagate_interruption`` and somebody else interrupted it.
        """
        return _Join(self)

    def await_empty(self) -> Effect[None, Never]:
        """Wait until no member is left. FiberDeadlockError in a member (PD9)."""
        return _AwaitEmpty(self)

    def _run(
        self,
        key: Hashable,
        eff: Effect[Any, Any],
        *,
        only_if_missing: bool = False,
        propagate_interruption: bool,
    ) -> Effect[Any, Never]:
        check_effect(eff, f"{type(self).__name__}.run")
        # Now: in the step that takes it in, the fiber would have started and be nobody's.
        hash(key)
        frame = sys._getframe(2)
        return _Run(
            self, key, eff, only_if_missing, propagate_interruption, (frame.f_code, frame.f_lasti)
        )

    def _set(
        self,
        key: Hashable,
        fiber: FiberCore,
        *,
        only_if_missing: bool = False,
        propagate_interruption: bool,
    ) -> Effect[None, Never]:
        given: Any = fiber  # annotations bind nobody who runs no type checker
        if not isinstance(given, FiberCore):
            way_out = "start an effect with run(...)"
            refuse(given, type(self).__name__, "in a Fiber that runs already", way_out)
        hash(key)
        return _Set(self, key, fiber, only_if_missing, propagate_interruption)

    # ------------------------------------------------------------------ as an owner of fibers

    @property
    def state(self) -> Literal["empty", "open", "closed"]:
        """``empty``: no member is alive. ``closed``: from the first moment of the close."""
        if self._closed:
            return "closed"
        return "open" if self._fibers else "empty"

    @property
    def _entries(self) -> list[FiberCore]:
        return [*self._leaving, *self._fibers.values()]

    def _drop(self, child: FiberCore) -> None:
        """A fiber of ``run`` ended: its ``_Member`` has more to say."""

    def _note_unheard(self, child: FiberCore) -> None:
        if self._closed and not self._fibers:
            child._report()  # the owner has ended already
        else:
            self._unheard.add(child)

    # ------------------------------------------------------------------ members come and go

    def _place(
        self,
        key: Hashable,
        fiber: FiberCore,
        only_if_missing: bool,
        propagate: bool,
        runner: FiberCore,
    ) -> tuple[FiberCore, str] | None:
        """Take ``fiber`` in; who has to be interrupted for it, and why."""
        self._here()
        if self._closed:
            return fiber, SCOPE_CLOSED
        there = self._fibers.get(key)
        if there is fiber:
            return None
        member = _Member(self, key, propagate)
        if there is not None and only_if_missing:
            if fiber._state != ENDED:
                self._leaving[fiber] = None
                watch(fiber, member, runner)
            return fiber, ALREADY_RUNNING
        if there is not None:
            self._leaving[there] = None
        if fiber._state == ENDED:
            self._fibers.pop(key, None)
            member._fiber_done(fiber)
        else:
            self._fibers[key] = fiber
            watch(fiber, member, runner)
        return None if there is None else (there, REPLACED)

    def _ended(self, key: Hashable, fiber: FiberCore, propagate: bool) -> None:
        if self._fibers.get(key) is fiber:
            del self._fibers[key]
        self._leaving.pop(fiber, None)
        if self._closed or fiber._ok:
            return
        cause: Cause[Any] = fiber._result
        if cause.has_interrupts_only and not (propagate and INTERNAL not in cause.interruptors):
            return
        if self.deferred.done_unsafe(Effect.fail_cause(cause)):
            self._failed_first = fiber
            if self._joiners:
                fiber._seen = True

    def _refusal(self, runner: FiberCore, why: str) -> FiberCore:
        """The fiber that stands for one that was not started: one for all, it has ended."""
        if self._refused is None:
            self._refused = stillborn(
                runner._spawn(Effect.succeed(None), 0, None), Interrupt(INTERNAL, why)
            )
        return self._refused

    def __repr__(self) -> str:
        how = "closed" if self._closed else f"{len(self._fibers)} alive"
        return f"<{type(self).__name__} {how}>"


class _Member(Observer):
    """The tie between a container and one of its fibers; gone when the fiber has ended."""

    __slots__ = ("key", "members", "propagate")

    def __init__(self, members: Members, key: Hashable, propagate: bool) -> None:
        self.members = members
        self.key = key
        self.propagate = propagate

    def _fiber_done(self, fiber: FiberCore) -> None:
        self.members._ended(self.key, fiber, self.propagate)


# ---------------------------------------------------------------------------- starting, taking in


class _Run(Effect[Any, Never]):
    """Start an effect at once; then the slot is looked at (the old member is interrupted after the
    new one has started).
    """

    __slots__ = ("first", "key", "members", "only_if_missing", "propagate", "site")

    def __init__(
        self,
        members: Members,
        key: Hashable,
        first: Node,
        only_if_missing: bool,
        propagate: bool,
        site: Site,
    ) -> None:
        self.members = members
        self.key = key
        self.first = first
        self.only_if_missing = only_if_missing
        self.propagate = propagate
        self.site: Site = site

    def _ev(self, fiber: FiberCore) -> Any:
        members = self.members
        members._here()
        if members._closed:
            if members._refuses_caller:
                fiber._cause = Cause((Interrupt(fiber.id, SCOPE_CLOSED),))
                return FAIL
            return members._refusal(fiber, SCOPE_CLOSED)
        if self.only_if_missing and self.key in members._fibers:
            return members._refusal(fiber, ALREADY_RUNNING)
        child = fiber._spawn(self.first, 0, self.site)
        child._owner = members
        key = child if self.key is EACH_ITS_OWN else self.key
        fiber._switch = child
        fiber._cont = _Placed(members, key, child, self.only_if_missing, self.propagate, child)
        return SWITCH


EACH_ITS_OWN: Any = object()
"""The key of a member that is its own key (FiberSet)."""


class _Placed(Node):
    """The rest of ``run`` and ``set``: over before anything lands in the fiber that runs it."""

    __slots__ = ("child", "given", "key", "members", "only_if_missing", "propagate")

    def __init__(
        self,
        members: Members,
        key: Hashable,
        child: FiberCore,
        only_if_missing: bool,
        propagate: bool,
        given: FiberCore | None,
    ) -> None:
        self.members = members
        self.key = key
        self.child = child
        self.only_if_missing = only_if_missing
        self.propagate = propagate
        self.given = given

    def _ev(self, fiber: FiberCore) -> Any:
        unwanted = self.members._place(
            self.key, self.child, self.only_if_missing, self.propagate, fiber
        )
        if unwanted is None:
            return self.given
        target, why = unwanted
        interrupt = Interrupt(INTERNAL, why)
        if target._queue.loop is not fiber._queue.loop:
            target._elsewhere(functools.partial(target._interrupt_here, interrupt))
        elif target._ask(interrupt) and target._cut_loose():
            fiber._rv = self.given
            fiber._switch = target
            return SWITCH
        return self.given


class _Set(_Placed, Effect[None, Never]):
    __slots__ = ()

    def __init__(
        self,
        members: Members,
        key: Hashable,
        child: FiberCore,
        only_if_missing: bool,
        propagate: bool,
    ) -> None:
        super().__init__(members, key, child, only_if_missing, propagate, None)


# ---------------------------------------------------------------------------- ending, waiting


class EndMembers(Effect[None, Never]):
    """Interrupt some members by -1, all before any is awaited."""

    __slots__ = ("chosen",)

    def __init__(self, chosen: Callable[[], list[FiberCore]]) -> None:
        self.chosen: Callable[[], list[FiberCore]] = chosen

    def _ev(self, fiber: FiberCore) -> Any:
        fiber._next = EndFibers(self.chosen(), Interrupt(INTERNAL, CLEARED))
        return NEXT


class _Close(Frame, Effect[None, Never]):
    """The scope closes: no more members, and none is left when it is over (SO6: those that wait
    for the closer are signalled and not awaited).
    """

    __slots__ = ("members",)

    def __init__(self, members: Members) -> None:
        self.members = members

    def _ev(self, fiber: FiberCore) -> Any:
        members = self.members
        members._closed = True
        closer = waiting.closer_of(fiber)
        closers = (fiber, closer)
        told = [f for f in members._leaving if f not in closers]
        others = (f for f in members._fibers.values() if f not in members._leaving)
        by = closer.id if members._closes_as_closer else INTERNAL
        end = EndFibers(
            [*told, *(f for f in others if f not in closers)],
            Interrupt(by, SCOPE_CLOSED),
            leads_to=waiting.leads_to_close_by(fiber),
        )
        # Those that are leaving already are only waited for.
        end.at = len(told)
        fiber._stack.append(self)
        fiber._next = end
        return NEXT

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        members = self.members
        members._fibers.clear()
        members._leaving.clear()
        members._parent = None
        members.deferred.done_unsafe(Effect.succeed(None))
        members._failed_first = None
        members._unheard.report()
        return None


class _Join(Frame, Effect[None, Exception]):
    __slots__ = ("members",)

    def __init__(self, members: Members) -> None:
        self.members = members

    def _ev(self, fiber: FiberCore) -> Any:
        members = self.members
        if members._failed_first is not None:
            members._failed_first._seen = True
        members._joiners += 1
        fiber._stack.append(self)
        fiber._next = members.deferred.await_()
        return NEXT

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        self.members._joiners -= 1
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        self.members._joiners -= 1
        fiber._cause = cause
        return FAIL


class _AwaitEmpty(Frame, Effect[None, Never]):
    __slots__ = ("members",)

    def __init__(self, members: Members) -> None:
        self.members = members

    def _ev(self, fiber: FiberCore) -> Any:
        alive = list(self.members._fibers.values())
        if not alive:
            return None
        for member in alive:
            _no_wait_for_itself(fiber, member, "await_empty")
        fiber._stack.append(self)
        fiber._next = WaitForEnds(alive)
        return NEXT

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        # Others may have come meanwhile.
        return self._ev(fiber)
