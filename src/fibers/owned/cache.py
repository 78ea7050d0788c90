"""Cache: the outcomes of a lookup by key, the newest ones (PI12)."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, final

from returns.maybe import Maybe, Nothing, Some
from returns.result import Success
from typing_extensions import TypeVar

from fibers.duration import Duration, checked_seconds
from fibers.effect import Effect, _Access
from fibers.exit import succeeded
from fibers.loop.protocol import NEXT, Frame, Node
from fibers.misplaced import check_function, refuse_coroutine
from fibers.ops.basic import exit_outcome
from fibers.ops.clock import CLOCK_KEY
from fibers.ops.finalize import OnExitOp
from fibers.ops.flight import Env, Flight, FlightOp, is_interrupted
from fibers.sync.checks import checked_count, checked_lookup
from fibers.sync.one_loop import OneLoop

if TYPE_CHECKING:
    from fibers.exit import Exit
    from fibers.loop.run_loop import FiberCore

K = TypeVar("K", bound=Hashable)
A = TypeVar("A")
E = TypeVar("E", bound=Exception)
J = TypeVar("J", bound=Hashable)
B = TypeVar("B")
F = TypeVar("F", bound=Exception)


class _Entry:
    """The outcome of one key, or the lookup on its way there."""

    __slots__ = ("exit", "flight", "until")

    def __init__(self) -> None:
        self.flight: Flight | None = None
        self.exit: Any = None
        self.until = math.inf


@final
class Cache(OneLoop, Generic[K, A, E]):
    """What a lookup gave for a key, kept for those that ask later.

        users = await Cache.make(load_user, capacity=1000, time_to_live=300)
        user = await users.get("u1")

    All that ask for a key while its lookup is under way wait for that one. It runs in a fiber of
    its own: an interrupt of one that waits leaves it running, the last one's ends it, and nothing
    is kept. A failure is an outcome, kept like a value. When there are more than ``capacity``, the
    key that was asked for longest ago goes.
    """

    __slots__ = ("_capacity", "_entries", "_lookup", "_made", "_seconds")

    def __init__(
        self,
        lookup: Callable[[K], Effect[A, E]],
        capacity: float,
        seconds: Callable[[Exit[A, E], K], float],
        made: Env,
    ) -> None:
        super().__init__()
        self._lookup = lookup
        self._capacity = capacity
        self._seconds = seconds
        self._made = made
        # In the order of their last use.
        self._entries: dict[K, _Entry] = {}

    @staticmethod
    def make(
        lookup: Callable[[J], Effect[B, F]],
        *,
        capacity: int | Literal["unbounded"],
        time_to_live: Duration | Callable[[Exit[B, F], J], Duration] = math.inf,
    ) -> Effect[Cache[J, B, F], Never]:
        """An empty cache.

        ``time_to_live``: how long an outcome is kept (timedelta or seconds, on the Clock in
        context), for all or by exit and key; zero keeps nothing. ValueError for a negative time and
        a ``capacity`` that is neither a positive int nor "unbounded".
        """
        checked_lookup(lookup, "Cache.make")
        most = math.inf if capacity == "unbounded" else checked_count(capacity, "capacity")
        seconds = _seconds_by_exit(time_to_live)
        return _Access(lambda fiber: Cache(lookup, most, seconds, fiber._env))

    # ------------------------------------------------------------------ asking

    def get(self, key: K) -> Effect[A, E]:
        """What is known of ``key``; where nothing is, the lookup's outcome."""
        return _Get(self, key)

    def get_option(self, key: K) -> Effect[Maybe[A], E]:
        """What is known of ``key``, or will be when a lookup under way has ended; no lookup is
        started for it.
        """
        return _GetOption(self, key)

    def get_success(self, key: K) -> Effect[Maybe[A], Never]:
        """The value that is there for ``key``, without waiting."""

        return _Access(lambda fiber: _value_of(self._live(key, fiber)))

    def has(self, key: K) -> Effect[bool, Never]:
        """Whether anything is known of ``key``, or on its way. Not a use."""
        return _Access(lambda fiber: self._live(key, fiber, used=False) is not None)

    # ------------------------------------------------------------------ changing

    def set(self, key: K, value: A) -> Effect[None, Never]:
        """Put ``value`` there, without a lookup. Those that wait for one get its outcome."""

        def put(fiber: FiberCore) -> None:
            self._put(key, _Entry(), succeeded(value), fiber._env[CLOCK_KEY].now())

        return _Access(put)

    def refresh(self, key: K) -> Effect[A, E]:
        """Look ``key`` up again. What is known stays until the new outcome takes its place."""
        return _Refresh(self, key)

    def invalidate(self, key: K) -> Effect[None, Never]:
        """Forget what is known of ``key``; of a lookup under way only those that wait will hear."""

        def forget() -> None:
            self._here()
            self._entries.pop(key, None)

        return Effect.sync(forget)

    def invalidate_when(self, key: K, f: Callable[[A], bool]) -> Effect[bool, Never]:
        """Forget the value of ``key`` if there is one and ``f`` says so; whether it did."""
        check_function(f, "Cache.invalidate_when")

        def forget(value: Maybe[A]) -> bool:
            if value is Nothing:
                return False
            verdict = f(value.unwrap())
            refuse_coroutine(verdict)
            unwanted = bool(verdict)
            if unwanted:
                self._entries.pop(key, None)
            return unwanted

        return self.get_success(key).map(forget)

    def invalidate_all(self) -> Effect[None, Never]:
        """Forget everything."""

        def forget() -> None:
            self._here()
            self._entries.clear()

        return Effect.sync(forget)

    # ------------------------------------------------------------------ looking

    def size(self) -> Effect[int, Never]:
        """How many keys something is known of, or on its way."""
        return self.keys().map(len)

    def keys(self) -> Effect[list[K], Never]:
        """Those keys, the one used longest ago first."""
        return _Access(
            lambda fiber: [k for k in list(self._entries) if self._live(k, fiber, used=False)]
        )

    def entries(self) -> Effect[list[tuple[K, A]], Never]:
        """Keys and values, of those that have one."""

        def successes(fiber: FiberCore) -> list[tuple[K, A]]:
            known = [(k, _value_of(self._live(k, fiber, used=False))) for k in list(self._entries)]
            return [(key, value.unwrap()) for key, value in known if value is not Nothing]

        return _Access(successes)

    # ------------------------------------------------------------------ entries

    def _live(self, key: K, fiber: FiberCore, *, used: bool = True) -> _Entry | None:
        self._here()
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.exit is not None and fiber._env[CLOCK_KEY].now() >= entry.until:
            del self._entries[key]
            return None
        if used:
            self._entries[key] = self._entries.pop(key)
        return entry

    def _add(self, key: K, entry: _Entry) -> None:
        self._entries.pop(key, None)
        self._entries[key] = entry
        while len(self._entries) > self._capacity:
            del self._entries[next(iter(self._entries))]

    def _put(self, key: K, entry: _Entry, exit_: Exit[A, E], now: float) -> None:
        """``exit_`` is what is known of ``key`` now, if it is an answer and may be kept."""
        entry.flight = None
        seconds = 0.0
        try:
            if not is_interrupted(exit_):
                seconds = self._seconds(exit_, key)
        finally:
            # Also where the function of the time raises.
            if not seconds:
                self._entries.pop(key, None)
        if seconds:
            entry.exit, entry.until = exit_, now + seconds
            self._add(key, entry)

    def _settle(self, key: K, entry: _Entry, exit_: Exit[A, E], now: float) -> None:
        if self._entries.get(key) is entry:
            self._put(key, entry, exit_, now)
        # else: forgotten or pushed out meanwhile
        entry.flight = None

    def _left(self, key: K, entry: _Entry) -> None:
        entry.flight = None
        if self._entries.get(key) is entry:
            del self._entries[key]

    def __repr__(self) -> str:
        return f"<Cache of {len(self._entries)} keys>"


def _value_of(entry: _Entry | None) -> Maybe[Any]:
    """The value of an entry that is there and has one."""
    exit_: Exit[Any, Any] | None = None if entry is None else entry.exit
    return Some(exit_.unwrap()) if isinstance(exit_, Success) else Nothing


def _seconds_by_exit(
    time_to_live: Duration | Callable[[Exit[B, F], J], Duration],
) -> Callable[[Exit[B, F], J], float]:
    if callable(time_to_live):
        by_exit = time_to_live
        return lambda exit_, key: checked_seconds(by_exit(exit_, key), "time_to_live")
    seconds = checked_seconds(time_to_live, "time_to_live")
    return lambda _exit, _key: seconds


class _Lookup(Node):
    """What a flight runs: the lookup, then its outcome into the cache."""

    __slots__ = ("cache", "key", "settle")

    def __init__(
        self, cache: Cache[Any, Any, Any], key: Any, settle: Callable[[Any, float], None]
    ) -> None:
        self.cache = cache
        self.key = key
        self.settle = settle

    def _ev(self, fiber: FiberCore) -> Any:
        cache, key, settle = self.cache, self.key, self.settle
        clock = fiber._env[CLOCK_KEY]
        lookup: Effect[Any, Any] = Effect.suspend(lambda: cache._lookup(key))
        fiber._next = OnExitOp(lookup, lambda exit_: settle(exit_, clock.now()))
        return NEXT

    def _label(self) -> str:
        return f"the lookup of {self.key!r}"


class _Get(Effect[Any, Any]):
    __slots__ = ("cache", "key")

    def __init__(self, cache: Cache[Any, Any, Any], key: Any) -> None:
        self.cache = cache
        self.key = key

    def _ev(self, fiber: FiberCore) -> Any:
        cache, key = self.cache, self.key
        entry = cache._live(key, fiber)
        if entry is None:
            new = entry = _Entry()
            entry.flight = Flight(
                _Lookup(cache, key, lambda exit_, now: cache._settle(key, new, exit_, now)),
                cache._made,
                lambda _: cache._left(key, new),
            )
            cache._add(key, entry)
        if entry.flight is None:
            return exit_outcome(fiber, entry.exit)
        return FlightOp(entry.flight)._ev(fiber)


class _GetOption(Effect[Any, Any]):
    __slots__ = ("cache", "key")

    def __init__(self, cache: Cache[Any, Any, Any], key: Any) -> None:
        self.cache = cache
        self.key = key

    def _ev(self, fiber: FiberCore) -> Any:
        if self.cache._live(self.key, fiber) is None:
            return Nothing
        fiber._stack.append(_TO_SOME)
        return _Get(self.cache, self.key)._ev(fiber)


class _ToSome(Frame):
    __slots__ = ()

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return Some(value)


_TO_SOME = _ToSome()


class _Refresh(Effect[Any, Any]):
    __slots__ = ("cache", "key")

    def __init__(self, cache: Cache[Any, Any, Any], key: Any) -> None:
        self.cache = cache
        self.key = key

    def _ev(self, fiber: FiberCore) -> Any:
        cache, key = self.cache, self.key
        if cache._live(key, fiber) is None:
            return _Get(cache, key)._ev(fiber)

        def settle(exit_: Any, now: float) -> None:
            if not is_interrupted(exit_):
                cache._put(key, _Entry(), exit_, now)

        return FlightOp(Flight(_Lookup(cache, key, settle), cache._made, lambda _: None))._ev(fiber)
