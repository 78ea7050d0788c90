"""RcMap: resources by key, each shared by those that use it and released after the last (PI10)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, Never, cast, final, overload

from typing_extensions import TypeVar

from fibers.cause import FiberDeadlockError
from fibers.clock import sleep
from fibers.duration import checked_seconds
from fibers.effect import Effect, _Access
from fibers.fiber import current_fiber
from fibers.loop.protocol import NEXT, SWITCH, Node, WillJoin
from fibers.loop.run_loop import FiberCore
from fibers.loop.states import ENDED
from fibers.ops.flight import shared_env
from fibers.ops.fork import _AfterFirstSegment
from fibers.owned.members import INTERNAL
from fibers.scope import current_scope
from fibers.sync.checks import checked_count, checked_lookup
from fibers.sync.one_loop import OneLoop
from fibers.waiting import waits_for

if TYPE_CHECKING:
    from fibers.duration import Duration
    from fibers.fiber import Fiber
    from fibers.scope import Scope

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")
E = TypeVar("E", bound=Exception)
J = TypeVar("J", bound=Hashable)
B = TypeVar("B")
F = TypeVar("F", bound=Exception)


class ExceededCapacityError(Exception):
    """There is no place for one more key: ``capacity`` of them are in use or idle."""

    def __init__(self, capacity: int) -> None:
        super().__init__(f"the RcMap holds {capacity} keys, which is its capacity")
        self.capacity = capacity


class _Held:
    """One resource on its way, in use or idle."""

    __slots__ = ("key", "lookup", "own", "refs", "scope", "seconds", "timer", "wanted")

    def __init__(self, key: Hashable, seconds: float, parent: Scope) -> None:
        self.key = key
        self.seconds = seconds
        # Its close ends the lookup, which is forked into it, and then what the lookup acquired:
        # what was added last goes first.
        self.scope = parent.fork_scope()
        self.own = self.scope.fork_scope()
        self.lookup: FiberCore | None = None
        self.refs = 0
        # In the map. One that was invalidated lives on for those that hold it.
        self.wanted = True
        # While nobody holds it.
        self.timer: Fiber[Any, Any] | None = None

    @property
    def is_there(self) -> bool:
        """Its lookup has succeeded."""
        return self.lookup is not None and self.lookup._state == ENDED and self.lookup._ok

    @property
    def has_failed(self) -> bool:
        return self.lookup is not None and self.lookup._state == ENDED and not self.lookup._ok

    def stop_timer(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.interrupt_unsafe(by=INTERNAL, reason="in use")


@final
class RcMap(OneLoop, Generic[K, A, E]):
    """Resources that are made when somebody first wants them and shared while anybody does.

        connections = await RcMap.make(connect, idle_time_to_live=60)
        connection = await connections.get("db.example")  # in a scope: its close gives it back

    ``lookup(key)`` runs in a fiber of its own and in a scope of its own; all that get the same key
    meanwhile wait for it. A failure is shared by those that hold the key, and the next one tries
    again. The close of the map's scope releases everything.
    """

    __slots__ = (
        "__weakref__",
        "_capacity",
        "_held",
        "_keeps_failures",
        "_lookup",
        "_made",
        "_scope",
        "_seconds",
    )

    def __init__(
        self,
        lookup: Callable[[K], Effect[A, Any]],
        scope: Scope,
        made: dict[str, Any],
        seconds: Callable[[K], float],
        capacity: int | None,
        *,
        keeps_failures: bool = True,
    ) -> None:
        super().__init__()
        self._lookup = lookup
        self._scope = scope
        self._made = made
        self._seconds = seconds
        self._capacity = capacity
        self._keeps_failures = keeps_failures
        self._held: dict[K, _Held] = {}

    @overload
    @staticmethod
    def make(
        lookup: Callable[[J], Effect[B, F]],
        *,
        idle_time_to_live: Duration | Callable[[J], Duration] = 0.0,
        capacity: None = None,
    ) -> Effect[RcMap[J, B, F], Never]: ...
    @overload
    @staticmethod
    def make(
        lookup: Callable[[J], Effect[B, F]],
        *,
        idle_time_to_live: Duration | Callable[[J], Duration] = 0.0,
        capacity: int,
    ) -> Effect[RcMap[J, B, F | ExceededCapacityError], Never]: ...
    @staticmethod
    def make(
        lookup: Callable[[J], Effect[B, F]],
        *,
        idle_time_to_live: Duration | Callable[[J], Duration] = 0.0,
        capacity: int | None = None,
    ) -> Effect[RcMap[J, B, Any], Never]:
        """An empty map, tied to the scope in context.

        ``idle_time_to_live``: how long what nobody holds is kept (timedelta or seconds, on the
        Clock in context), for all keys or by key. ``capacity``: how many keys it takes, those that
        are idle included; beyond it ``get`` fails with ExceededCapacityError. ValueError for a
        negative time and a capacity that is no positive int.
        """
        checked_lookup(lookup, "RcMap.make")
        seconds = _seconds_by_key(idle_time_to_live)
        if capacity is not None:
            checked_count(capacity, "capacity")
        return make_rc_map(lookup, seconds, capacity, keeps_failures=True)

    # ------------------------------------------------------------------ using

    def get(self, key: K) -> Effect[A, E]:
        """The resource of ``key``, held until the scope in context closes (an interrupt while it
        is awaited gives it back at once). A closed map fails with an Interrupt.
        """
        return Effect.uninterruptible_mask(
            lambda restore: current_scope().flat_map(lambda scope: self._lend(key, scope, restore))
        )

    def _lend(
        self, key: K, scope: Scope, restore: Callable[[Effect[A, E]], Effect[A, E]]
    ) -> Effect[A, E]:
        self._here()
        # One step up to the fork of the lookup: what is counted is registered, and the other way
        # round, whoever runs next.
        if scope._is_closed:
            return Effect.interrupt()
        held = self._held.get(key)
        if held is not None and held.has_failed and not self._keeps_failures:
            self._forget(held)
            held = None
        if held is not None and held.lookup is not None and held.lookup._state != ENDED:
            _refuse_a_cycle(held)
        if held is None:
            if self._capacity is not None and len(self._held) >= self._capacity:
                return cast("Effect[A, E]", Effect.fail(ExceededCapacityError(self._capacity)))
            held = _Held(key, self._seconds(key), self._scope)
            self._held[key] = held
        there = held
        there.refs += 1
        there.stop_timer()
        # A scope of its own: given back early it leaves no trace in the user's.
        lease = scope.fork_scope()
        lease._add(lambda _: self._give_back(there))
        started = cast("Effect[Fiber[A, E], Never]", _StartLookup(self, there))
        return started.flat_map(lambda fiber: restore(fiber.join())).on_interrupt(
            lambda _: lease.close()
        )

    def _give_back(self, held: _Held) -> Effect[None, Never]:
        held.refs -= 1
        if held.refs:
            return Effect.succeed(None)
        if not held.wanted or not held.is_there or not held.seconds or self._scope._is_closed:
            return self._end(held)
        return self._let_idle(held)

    def _let_idle(self, held: _Held) -> Effect[None, Never]:
        if not math.isinf(held.seconds):
            # Masked but for the sleep: what it has taken out of the map it also closes.
            timer: Effect[None, Never] = Effect.uninterruptible_mask(
                lambda restore: restore(sleep(held.seconds)).flat_map(lambda _: self._end(held))
            )
            held.timer = self._scope.fork(timer)
        return Effect.succeed(None)

    # ------------------------------------------------------------------ ending

    def _forget(self, held: _Held) -> None:
        held.wanted = False
        if self._held.get(cast("K", held.key)) is held:
            del self._held[cast("K", held.key)]

    def _end(self, held: _Held) -> Effect[None, Never]:
        self._forget(held)
        held.timer = None
        return held.scope.close()

    def invalidate(self, key: K) -> Effect[None, Never]:
        """Forget what is there: the next ``get`` makes a new one. It is released now, or after the
        last that holds it.
        """

        def forget() -> Effect[None, Never]:
            held = self._held.get(key)
            if held is None:
                return Effect.succeed(None)
            self._forget(held)
            if held.refs:
                return Effect.succeed(None)
            held.stop_timer()
            return self._end(held)

        return Effect.suspend(forget).uninterruptible()

    def touch(self, key: K) -> Effect[None, Never]:
        """Start the idle time of ``key`` anew, if nobody holds it."""

        def again() -> Effect[None, Never]:
            held = self._held.get(key)
            if held is None or held.timer is None:
                return Effect.succeed(None)
            held.stop_timer()
            return self._let_idle(held)

        return Effect.suspend(again).uninterruptible()

    # ------------------------------------------------------------------ looking

    def keys(self) -> Effect[list[K], Never]:
        """The keys that are in use, idle or on their way. A closed map fails with an Interrupt."""
        return Effect.suspend(
            lambda: (
                Effect.interrupt() if self._scope._is_closed else Effect.succeed(list(self._held))
            )
        )

    def has(self, key: K) -> Effect[bool, Never]:
        """Whether ``key`` is among them."""
        return Effect.sync(lambda: key in self._held)

    def __repr__(self) -> str:
        return f"<RcMap {'closed' if self._scope._is_closed else f'{len(self._held)} keys'}>"


def make_rc_map(
    lookup: Callable[[K], Effect[B, Any]],
    seconds: Callable[[K], float],
    capacity: int | None,
    *,
    keeps_failures: bool,
) -> Effect[RcMap[K, B, Any], Never]:
    """``RcMap.make`` of checked arguments; ``keeps_failures``: for as long as they are held."""

    def made(scope: Scope, env: dict[str, Any]) -> RcMap[K, B, Any]:
        own = scope.fork_scope()
        rc_map = RcMap[K, B, Any](
            lookup, own, env, seconds, capacity, keeps_failures=keeps_failures
        )
        if not own._is_closed:
            own._add(lambda _: rc_map._held.clear())
        return rc_map

    return current_scope().flat_map(lambda scope: _Access(lambda fiber: made(scope, fiber._env)))


def _seconds_by_key(
    time_to_live: Duration | Callable[[K], Duration],
) -> Callable[[K], float]:
    if callable(time_to_live):
        by_key = time_to_live
        return lambda key: checked_seconds(by_key(key), "idle_time_to_live")
    seconds = checked_seconds(time_to_live, "idle_time_to_live")
    return lambda _: seconds


def _refuse_a_cycle(held: _Held) -> None:
    # Before anything is counted: a reference of a lookup to itself would keep both for ever.
    fiber = current_fiber()
    if fiber is not None and held.lookup is not None and waits_for(held.lookup, fiber):
        raise FiberDeadlockError(
            f"fiber #{fiber.id} would wait for itself: the lookup of {held.key!r}, in fiber "
            f"#{held.lookup.id}, waits for it"
        )


class _StartLookup(Effect[Any, Never]):
    """Give the fiber of the lookup, starting it where nobody has."""

    __slots__ = ("held", "rc_map")

    def __init__(self, rc_map: RcMap[Any, Any, Any], held: _Held) -> None:
        self.rc_map = rc_map
        self.held = held

    def _ev(self, fiber: FiberCore) -> Any:
        held = self.held
        if held.lookup is not None:
            return held.lookup
        if held.scope._is_closed:
            fiber._next = Effect.interrupt()
            return NEXT
        # Known before its first segment runs, which may ask for the same key.
        child = held.lookup = fiber._spawn(_Lookup(self.rc_map, held), 0, None)
        child._owner = held.scope
        fiber._switch = child
        fiber._cont = _AfterLookupStarts(child, held.scope)
        return SWITCH


class _AfterLookupStarts(_AfterFirstSegment, WillJoin):
    __slots__ = ("target",)

    def __init__(self, child: FiberCore, scope: Scope) -> None:
        super().__init__(child, scope)
        self.target = child


class _Lookup(Node):
    __slots__ = ("held", "rc_map")

    def __init__(self, rc_map: RcMap[Any, Any, Any], held: _Held) -> None:
        self.rc_map = rc_map
        self.held = held

    def _ev(self, fiber: FiberCore) -> Any:
        rc_map, held = self.rc_map, self.held
        fiber._env = shared_env(rc_map._made, fiber._env)
        fiber._next = held.own.provide(Effect.suspend(lambda: rc_map._lookup(held.key)))
        return NEXT
