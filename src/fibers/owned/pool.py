"""Pool: a bounded number of resources, lent and taken back (PI11)."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, cast, final

from returns.result import Success
from typing_extensions import TypeVar

from fibers.clock import sleep
from fibers.duration import checked_seconds
from fibers.effect import Effect, _Access, _Provide
from fibers.exit import succeeded
from fibers.misplaced import check_effect, check_function
from fibers.ops.flight import SCOPE_KEY, shared_env
from fibers.ops.wait import CallbackOp
from fibers.owned.members import INTERNAL
from fibers.scope import Scope, current_scope
from fibers.sync.checks import checked_count
from fibers.sync.deferred import Deferred
from fibers.sync.one_loop import OneLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.duration import Duration
    from fibers.exit import Exit
    from fibers.fiber import Fiber
    from fibers.ops.flight import Env

A = TypeVar("A")
E = TypeVar("E", bound=Exception)
B = TypeVar("B")
F = TypeVar("F", bound=Exception)

Strategy = Literal["creation", "usage"]

_LEAST_UTILIZATION = 0.1


class _Item:
    """One resource of a pool."""

    __slots__ = ("retired", "scope", "timer", "users", "value")

    def __init__(self, value: Any, scope: Scope) -> None:
        self.value = value
        self.scope = scope
        self.users = 0
        # Lent no more; it goes when the last user has given it back.
        self.retired = False
        # While nobody uses it.
        self.timer: Fiber[Any, Any] | None = None

    def stop_timer(self) -> None:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.interrupt_unsafe(by=INTERNAL, reason="in use")


class _Waiter:
    """Somebody who waits for an item. What it was given and could not take is given back."""

    __slots__ = ("item", "resume")

    def __init__(self, resume: Callable[[Exit[_Item, Any] | Effect[_Item, Any]], None]) -> None:
        self.resume = resume
        self.item: _Item | None = None


class _Waiting(CallbackOp, Effect[_Item, Any]):
    __slots__ = ("pool",)

    def __init__(self, pool: Pool[Any, Any]) -> None:
        super().__init__(pool._wait)
        self.pool = pool

    def _awaited(self) -> str:
        return f"an item of {self.pool!r}"


@final
class Pool(OneLoop, Generic[A, E]):
    """Resources that cost something to make, lent to one user after the other.

        pool = await Pool.make(connect, size=10)
        rows = await pool.use(lambda connection: query(connection, sql))

    Where all are lent, who asks waits, first come, first served. An item that cannot be made fails
    the one that it was made for; the next who asks tries again. The close of the pool's scope waits
    until all items are back, and those that still wait for one then fail with an Interrupt: what
    is lent must not be held by a scope that closes after the pool's.
    """

    __slots__ = (
        "_acquire",
        "_available",
        "_concurrency",
        "_drained",
        "_items",
        "_leases",
        "_made",
        "_max",
        "_min",
        "_own",
        "_seconds",
        "_starting",
        "_strategy",
        "_utilization",
        "_waiters",
        "_work",
    )

    def __init__(
        self,
        acquire: Effect[A, E],
        own: Scope,
        made: Env,
        *,
        least: int,
        most: int,
        concurrency: int,
        utilization: float,
        seconds: float,
        strategy: Strategy,
    ) -> None:
        super().__init__()
        self._acquire = acquire
        self._own = own
        self._made = made
        self._min = least
        self._max = most
        self._concurrency = concurrency
        self._utilization = utilization
        self._seconds = seconds
        self._strategy: Strategy = strategy
        # All that exist, the oldest first: retired ones too, until they are released.
        self._items: dict[_Item, None] = {}
        # Those that one more can use, the one that is free for longest first.
        self._available: dict[_Item, None] = {}
        self._waiters: dict[_Waiter, None] = {}
        self._leases = 0
        self._starting = 0
        self._drained: Deferred[None, Never] = Deferred()
        if not own._is_closed:
            own._add(lambda _: self._shut_down())
        # Closed before that: no item is made any more.
        self._work = own.fork_scope("parallel")

    @staticmethod
    def make(
        acquire: Effect[B, F],
        *,
        size: int,
        concurrency: int = 1,
        target_utilization: float = 1.0,
    ) -> Effect[Pool[B, F], Never]:
        """A pool of ``size`` items, tied to the scope in context; they are made in the background.

        ``concurrency``: how many may use one item at a time. ValueError for numbers that are no
        positive ints.
        """
        checked_count(size, "size")
        return Pool.make_with_ttl(
            acquire,
            min=size,
            max=size,
            concurrency=concurrency,
            target_utilization=target_utilization,
        )

    @staticmethod
    def make_with_ttl(
        acquire: Effect[B, F],
        *,
        min: int,
        max: int,
        time_to_live: Duration = math.inf,
        time_to_live_strategy: Strategy = "usage",
        concurrency: int = 1,
        target_utilization: float = 1.0,
    ) -> Effect[Pool[B, F], Never]:
        """A pool of ``min`` to ``max`` items, which grows as they are asked for.

        ``time_to_live`` (timedelta or seconds, on the Clock in context) by strategy: "usage"
        releases an item above ``min`` that nobody has used for so long, "creation" one that is so
        old, and makes another if it is needed. ``concurrency``: how many may use one item at a
        time. ``target_utilization``: below 1.0 new items are made before all are in use. ValueError
        where a number is out of its range.
        """
        check_effect(acquire, "Pool.make")
        checked_count(max, "max")
        checked_count(min, "min", least=0)
        checked_count(concurrency, "concurrency")
        if min > max:
            raise ValueError(f"min must not be greater than max: {min} > {max}")
        if time_to_live_strategy not in ("creation", "usage"):
            raise ValueError(
                f'time_to_live_strategy must be "creation" or "usage", not '
                f"{time_to_live_strategy!r}"
            )
        if not _LEAST_UTILIZATION <= target_utilization <= 1:
            raise ValueError(
                f"target_utilization must be from {_LEAST_UTILIZATION} to 1, not "
                f"{target_utilization!r}"
            )
        seconds = checked_seconds(time_to_live, "time_to_live")

        def made(scope: Scope, env: Env) -> Pool[B, F]:
            pool = Pool(
                acquire,
                scope.fork_scope(),
                env,
                least=min,
                most=max,
                concurrency=concurrency,
                utilization=target_utilization,
                seconds=seconds,
                strategy=time_to_live_strategy,
            )
            pool._grow(min)
            return pool

        return current_scope().flat_map(
            lambda scope: _Access(lambda fiber: made(scope, fiber._env))
        )

    # ------------------------------------------------------------------ lending

    def get(self) -> Effect[A, E]:
        """An item, lent until the scope in context closes. Waits where all are lent; fails with
        what the item that is made for this call fails with. A closed pool: an Interrupt.
        """
        return Effect.uninterruptible_mask(
            lambda restore: current_scope().flat_map(lambda scope: self._lend(scope, restore))
        )

    def _lend(self, scope: Scope, restore: Callable[[Effect[Any, Any]], Any]) -> Effect[A, E]:
        def lent(item: _Item) -> Effect[A, E]:
            lease = scope.add_finalizer(lambda _: self._give_back(item))
            return lease.map(lambda _: cast("A", item.value))

        return self._take(restore).flat_map(lent)

    def use(self, f: Callable[[A], Effect[B, F] | Exit[B, F]]) -> Effect[B, E | F]:
        """Run ``f(item)`` with an item that is lent for just that long."""
        check_function(f, "Pool.use")

        def masked(restore: Callable[[Effect[Any, Any]], Any]) -> Effect[B, E | F]:
            def with_item(item: _Item) -> Effect[B, F]:
                used: Effect[B, F] = restore(Effect.suspend(lambda: f(cast("A", item.value))))
                return used.on_exit(lambda _: self._give_back(item))

            return self._take(restore).flat_map(with_item)

        return Effect.uninterruptible_mask(masked)

    def _take(self, restore: Callable[[Effect[Any, Any]], Any]) -> Effect[_Item, E]:
        """An item, counted as lent. Only the waiting is interruptible: what is given in the same
        moment as the interrupt goes to the next.
        """

        def take() -> Effect[_Item, E]:
            self._here()
            if self._own._is_closed:
                return Effect.interrupt()
            item = next(iter(self._available), None)
            if item is None:
                return cast("Effect[_Item, E]", restore(_Waiting(self)))
            item.stop_timer()
            self._count_in(item)
            return Effect.succeed(item)

        return Effect.suspend(take)

    def _wait(
        self, resume: Callable[[Exit[_Item, E] | Effect[_Item, E]], None]
    ) -> Effect[None, Never] | None:
        item = next(iter(self._available), None)
        if item is not None:  # it came back in a turn of the loop since the look in ``take``
            item.stop_timer()
            self._count_in(item)
            resume(succeeded(item))
            return None
        if self._own._is_closed:
            resume(Effect.interrupt())
            return None
        waiter = _Waiter(resume)
        self._waiters[waiter] = None
        self._grow()
        return Effect.suspend(lambda: self._leave(waiter))

    def _leave(self, waiter: _Waiter) -> Effect[None, Never]:
        self._waiters.pop(waiter, None)
        return Effect.succeed(None) if waiter.item is None else self._give_back(waiter.item)

    def _count_in(self, item: _Item) -> None:
        item.users += 1
        self._leases += 1
        if item.users >= self._concurrency:
            self._available.pop(item, None)

    def _give_back(self, item: _Item) -> Effect[None, Never]:
        item.users -= 1
        self._leases -= 1
        if item.retired or self._own._is_closed:
            return Effect.succeed(None) if item.users else self._discard(item)
        self._offer(item)
        return Effect.succeed(None)

    def _offer(self, item: _Item) -> None:
        """An item can be used by one more: by those that wait, else by who comes."""
        while self._waiters and item.users < self._concurrency:
            waiter = next(iter(self._waiters))
            del self._waiters[waiter]
            waiter.item = item
            self._count_in(item)
            waiter.resume(succeeded(item))
        if item.users < self._concurrency:
            self._available[item] = None
        if not item.users:
            self._let_idle(item)

    # ------------------------------------------------------------------ making

    def _grow(self, least: int = 0) -> None:
        """Start to make what those that use and wait need, and ``least`` in all."""
        if len(self._items) + self._starting >= self._max:
            return
        needed = math.ceil(
            (self._leases + len(self._waiters)) / self._utilization / self._concurrency
        )
        wanted = min(max(needed, least), self._max)
        while (
            not self._work._is_closed
            and self._count_active() + self._starting < wanted
            and len(self._items) + self._starting < self._max
        ):
            self._starting += 1
            self._work.fork(self._make(for_waiter=bool(self._waiters)))

    def _count_active(self) -> int:
        return sum(not item.retired for item in self._items)

    def _make(self, *, for_waiter: bool) -> Effect[None, Never]:
        scope = Scope()

        def acquire(env: Env) -> Effect[A, E]:
            services = {**shared_env(self._made, env), SCOPE_KEY: scope}
            return _Provide(self._acquire, services)

        def made(exit_: Exit[A, E]) -> Effect[None, Never]:
            return there(exit_.unwrap()) if isinstance(exit_, Success) else failed(exit_)

        def there(value: A) -> Effect[None, Never]:
            self._starting -= 1
            item = _Item(value, scope)
            self._items[item] = None
            if self._own._is_closed:
                return self._discard(item)
            if self._strategy == "creation" and not math.isinf(self._seconds):
                self._age(item)
            self._offer(item)
            return Effect.succeed(None)

        def failed(exit_: Exit[A, E]) -> Effect[None, Never]:
            return scope.close(exit_).on_exit(lambda _: Effect.sync(lambda: told(exit_)))

        def told(exit_: Exit[A, E]) -> None:
            self._starting -= 1
            # What was made in the background fails nobody: who waits gets an attempt of its own.
            if for_waiter and self._waiters and not self._work._is_closed:
                waiter = next(iter(self._waiters))
                del self._waiters[waiter]
                waiter.resume(cast("Exit[_Item, E]", exit_))
            self._grow()

        return Effect.uninterruptible_mask(
            lambda restore: (
                restore(_Access(lambda fiber: acquire(fiber._env)).flat_map(_same))
                .exit()
                .flat_map(made)
            )
        )

    # ------------------------------------------------------------------ ending

    def invalidate(self, value: A) -> Effect[None, Never]:
        """Lend the item with this very value no more: it is released, now or when it is back, and
        replaced where it is needed.
        """

        def retire() -> Effect[None, Never]:
            self._here()
            item = next((i for i in self._items if i.value is value and not i.retired), None)
            return Effect.succeed(None) if item is None else self._retire(item)

        return Effect.suspend(retire).uninterruptible()

    def _retire(self, item: _Item) -> Effect[None, Never]:
        if item.users:
            item.retired = True
            self._available.pop(item, None)
            return Effect.succeed(None)
        return self._discard(item)

    def _discard(self, item: _Item) -> Effect[None, Never]:
        """Release an item that nobody uses."""
        item.retired = True
        item.timer = None
        self._available.pop(item, None)

        def gone() -> None:
            self._items.pop(item, None)
            if self._own._is_closed:
                self._tell_if_drained()
            else:
                self._grow(self._min)

        return item.scope.close().ensuring(Effect.sync(gone))

    def _let_idle(self, item: _Item) -> None:
        if self._strategy != "usage" or math.isinf(self._seconds):
            return
        if self._count_active() <= self._min:
            return

        def expire() -> Effect[None, Never]:
            if self._count_active() <= self._min:
                return Effect.succeed(None)
            return self._discard(item)

        item.timer = self._after_ttl(item, expire)

    def _age(self, item: _Item) -> None:
        self._after_ttl(item, lambda: Effect.succeed(None) if item.retired else self._retire(item))

    def _after_ttl(
        self, item: _Item, then: Callable[[], Effect[None, Never]]
    ) -> Fiber[None, Never]:
        # Masked but for the sleep: what it has taken out of the pool it also releases. Forked into
        # the item's scope: it goes with the item, and may close that scope itself (FO6).
        timer: Effect[None, Never] = Effect.uninterruptible_mask(
            lambda restore: restore(sleep(self._seconds)).flat_map(lambda _: then())
        )
        return item.scope.fork(timer)

    def _shut_down(self) -> Effect[None, Never]:
        """Release what is idle, wait for what is lent, then tell those that wait."""

        def tell() -> None:
            waiters, self._waiters = self._waiters, {}
            for waiter in waiters:
                waiter.resume(Effect.interrupt())

        idle = [item for item in self._items if not item.users and not item.retired]
        last: Effect[None, Never] = self._drained.await_().ensuring(Effect.sync(tell))
        self._tell_if_drained()
        # Each whatever becomes of the others.
        return functools.reduce(lambda rest, item: self._discard(item).ensuring(rest), idle, last)

    def _tell_if_drained(self) -> None:
        if not self._items:
            self._drained.done_unsafe(succeeded(None))

    def __repr__(self) -> str:
        if self._own._is_closed:
            return "<Pool closed>"
        return (
            f"<Pool of {len(self._items)}, {len(self._available)} available, "
            f"{len(self._waiters)} waiting>"
        )


def _same(eff: Effect[B, F]) -> Effect[B, F]:
    return eff
