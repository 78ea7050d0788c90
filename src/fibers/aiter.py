"""Async iteration, both ways: an effect that is pulled as an async iterator, and an async iterator
that effects consume. What is iterated is always closed, in the fiber and the Context that iterated
it (AT10).
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, Literal, Never, TypeAlias, cast, final, overload

from returns.result import Success
from typing_extensions import TypeVar

from fibers.cause import Cause, Die, Fail, FiberDeadlockError
from fibers.concurrent import all_
from fibers.effect import Effect, EffectGen, effect
from fibers.exit import failed, succeeded
from fibers.fiber import current_fiber
from fibers.misplaced import check_effect, check_function
from fibers.resource import acquire_release, acquire_use_release
from fibers.sync.deferred import Deferred
from fibers.waiting import waits_for

if TYPE_CHECKING:
    from types import TracebackType

    from fibers.exit import Exit
    from fibers.fiber import Fiber

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
X = TypeVar("X")
E = TypeVar("E", bound=Exception)
F = TypeVar("F", bound=Exception, default=Never)
G = TypeVar("G", bound=Exception)

Source: TypeAlias = "AsyncIterable[X] | Callable[[], AsyncIterable[X]]"
Restore: TypeAlias = "Callable[[Effect[Any, Any]], Effect[Any, Any]]"

_log = logging.getLogger("fibers")


# ---------------------------------------------------------------------------- out of effects


def to_async_iterable(
    pull: Effect[A, E | StopAsyncIteration],
    *,
    on_close: Callable[[Exit[Any, Any]], Effect[Any, Never]] | None = None,
) -> AsyncGenerator[A, None]:
    """An async iterator whose every item is a run of ``pull``, until that fails with
    StopAsyncIteration. For ``async for`` in a fiber or a plain task, under ``aclosing``: ``break``
    alone doesn't close an iterator in Python.

        async with contextlib.aclosing(fb.to_async_iterable(queue_pull)) as items:
            async for item in items:
                ...

    ``on_close(exit)`` runs once, uninterruptibly, in the fiber that ends the iteration: with a
    success at the end and for ``aclose()``, with the failure of a pull or the interrupt of the
    consumer, with Die(exc) for ``athrow(exc)``. A pull that fails raises its error itself; what
    ``on_close`` fails with after that is logged. ``aclose()`` interrupts a pull that is under way
    and waits for it; the ``anext`` that waits for that pull ends the iteration. It may be called
    more than once. RuntimeError for an ``anext`` while another one waits.
    """
    if on_close is not None:
        check_function(on_close, "to_async_iterable(on_close=)")
    check_effect(pull, "to_async_iterable")
    return _Pulled(pull, on_close)


@final
class _Pulled(AsyncGenerator[A, None]):
    __slots__ = ("_busy", "_closed", "_closer", "_kept", "_on_close", "_pull", "_running")

    def __init__(
        self,
        pull: Effect[A, Any],
        on_close: Callable[[Exit[Any, Any]], Effect[Any, Never]] | None,
    ) -> None:
        self._pull = pull
        self._on_close = on_close
        self._busy = False
        # An item on its way. Where its consumer is interrupted in the tick in which it comes, it is
        # the next one's.
        self._kept: Exit[A, Any] | None = None
        # The pull under way; the outcome of the close, from its first moment on; who closes.
        self._running: Fiber[A, Any] | None = None
        self._closed: Deferred[None, Any] | None = None
        self._closer: int | None = None

    # ------------------------------------------------------------------ as Python asks for it

    async def __anext__(self) -> A:
        if self._closed is not None:
            raise StopAsyncIteration
        if self._busy:
            raise RuntimeError(
                "anext() of an iterator that is being asked already: let one task ask, "
                "or give each its own to_async_iterable(...)"
            )
        self._busy = True
        try:
            got = await Effect.uninterruptible_mask(self._next)
        finally:
            self._busy = False
        # Here it has arrived: a plain task may be cancelled after its effect has ended.
        self._kept = None
        if got is _OVER:
            raise StopAsyncIteration
        return cast("A", got)

    async def asend(self, value: None, /) -> A:
        if cast("object", value) is not None:
            raise TypeError("nobody takes what is sent to an effect's iterator: use anext()")
        return await self.__anext__()

    async def athrow(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
        /,
    ) -> A:
        exc = _exception_of(typ, val)
        await self._close(failed(Cause((Die(exc, tb),))))
        raise exc if tb is None else exc.with_traceback(tb)

    async def aclose(self) -> None:
        await self._close(_AT_AN_END)

    # ------------------------------------------------------------------ one item

    def _next(self, restore: Restore) -> Effect[Any, Any]:
        # The end is a value here: as a failure it would join an interrupt that waits outside the
        # mask, and be taken for one.
        if self._kept is not None:
            return Effect.from_exit(self._kept)
        # A fiber of its own, so that a close by somebody else can end it and nothing but it.
        pulled = Effect.suspend(self._begin).fork_child(start_immediately=True)
        return pulled.flat_map(lambda fiber: self._wait_for(fiber, restore))

    def _begin(self) -> Effect[A, Any]:
        # From the inside: its first segment is over before the fork returns.
        self._running = current_fiber()
        return self._pull

    def _wait_for(self, fiber: Fiber[A, Any], restore: Restore) -> Effect[Any, Any]:
        waited = restore(fiber.exit()).on_exit(lambda waited: self._after_wait(fiber, waited))
        return waited.flat_map(self._go_on)

    def _after_wait(self, fiber: Fiber[A, Any], waited: Exit[Any, Any]) -> Effect[None] | None:
        """The finalizer of the wait, which fails only where the consumer is interrupted, or
        cancelled by asyncio's own protocol: no recovery would see that.
        """
        if isinstance(waited, Success):
            self._running = None
            return None
        ended = fiber.interrupt(reason="consumer interrupted")
        return ended.flat_map(lambda _: self._cut(fiber, waited))

    def _cut(self, fiber: Fiber[A, Any], waited: Exit[Any, Any]) -> Effect[None]:
        self._running = None
        exit_ = fiber.poll()
        if isinstance(exit_, Success):
            self._kept = exit_
            return Effect.succeed(None)
        return self._close(waited)

    def _go_on(self, exit_: Exit[A, Any]) -> Effect[Any, Any]:
        if isinstance(exit_, Success):
            self._kept = exit_
            return Effect.from_exit(exit_)
        cause: Cause[Any] = exit_.failure()
        over = Effect.succeed(_OVER)
        if _is_the_end(cause):
            return self._closed_first(_AT_AN_END, over)
        if self._closed is not None:
            return over if cause.has_interrupts_only else Effect.fail_cause(cause)
        return self._closed_first(exit_, Effect.fail_cause(cause))

    def _closed_first(self, exit_: Exit[Any, Any], then: Effect[Any, Any]) -> Effect[Any, Any]:
        return self._close(exit_).flat_map(lambda _: then)

    # ------------------------------------------------------------------ the end

    def _close(self, exit_: Exit[Any, Any]) -> Effect[None, Any]:
        """Close with ``exit_``, or wait for whoever does."""
        return Effect.uninterruptible_mask(lambda restore: self._close_once(exit_, restore))

    def _close_once(self, exit_: Exit[Any, Any], restore: Restore) -> Effect[None, Any]:
        me = current_fiber()
        assert me is not None
        closed = self._closed
        if closed is not None:
            # on_close may close again: it doesn't wait for itself.
            return Effect.succeed(None) if me.id == self._closer else restore(closed.await_())
        if self._running is not None and waits_for(self._running, me):
            return Effect.die(
                FiberDeadlockError("a pull that closes its own iterator would wait for itself")
            )
        closed = self._closed = Deferred()
        self._closer = me.id
        return Deferred.into(self._shut(exit_), closed).flat_map(lambda _: self._shut_by_me(closed))

    def _shut(self, exit_: Exit[Any, Any]) -> Effect[None, Never]:
        running = self._running
        quiet: Effect[None, Never] = Effect.succeed(None)
        ended = quiet if running is None else running.interrupt(reason="iterator closed")
        on_close = self._on_close
        if on_close is None:
            return ended
        closing = ended.flat_map(lambda _: on_close(exit_)).map(_nothing)
        return closing if isinstance(exit_, Success) else closing.catch_cause(_log_failed_close)

    def _shut_by_me(self, closed: Deferred[None, Any]) -> Effect[None, Any]:
        self._closer = None
        return closed.await_()


_OVER: Final = object()
_AT_AN_END: Exit[Any, Any] = succeeded(None)


def _is_the_end(cause: Cause[Any]) -> bool:
    return any(
        isinstance(r, Fail) and isinstance(r.error, StopAsyncIteration) for r in cause.reasons
    ) and all(isinstance(r, Fail) for r in cause.reasons)


def _log_failed_close(cause: Cause[Any]) -> Effect[None, Never]:
    return Effect.sync(
        lambda: _log.error("closing an iterator after a failure failed too\n%s", cause.pretty())
    )


def _exception_of(
    typ: type[BaseException] | BaseException, val: BaseException | object
) -> BaseException:
    """What ``athrow``'s arguments name."""
    if isinstance(typ, BaseException):
        return typ
    if isinstance(val, BaseException):
        return val
    return typ() if val is None else typ(val)


def _nothing(_: object) -> None:
    return None


# ---------------------------------------------------------------------------- into effects


def from_async_iterable(
    items: Source[X], *, catch: Callable[[Exception], F] | None = None
) -> Effect[Effect[X, F | StopAsyncIteration], Never]:
    """Open an async iterable in the scope in context. Gives an effect that pulls: each run is the
    next item, or fails with StopAsyncIteration. The close of the scope ends a pull that is under
    way, which then fails with StopAsyncIteration as all later ones do, and awaits the ``aclose()``
    of its iterator.

        pull = await fb.from_async_iterable(lambda: client.stream(request))
        first = await pull

    ``items``: the iterable, or a function that makes it, called at each run (a generator can be
    iterated once only). What it raises is a defect, or ``catch(exc)``.
    """
    opened = _opened(items).map(lambda iterator: _Pulls(iterator, catch))
    return acquire_release(opened, lambda pulls, _: pulls.close()).map(
        lambda pulls: pulls.item.flat_map(_or_stop)
    )


@overload
def for_each_async(
    items: Source[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    discard: Literal[False] = False,
) -> Effect[list[A], E]: ...
@overload
def for_each_async(
    items: Source[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    discard: Literal[True],
) -> Effect[None, E]: ...
@overload
def for_each_async(
    items: Source[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    catch: Callable[[Exception], G],
    discard: Literal[False] = False,
) -> Effect[list[A], E | G]: ...
@overload
def for_each_async(
    items: Source[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    catch: Callable[[Exception], G],
    discard: Literal[True],
) -> Effect[None, E | G]: ...
def for_each_async(
    items: Source[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    catch: Callable[[Exception], Exception] | None = None,
    discard: bool = False,
) -> Effect[Any, Any]:
    """``f(item)`` for each item of an async iterable, one after another; the results in a list,
    nothing with ``discard=True``.

        await fb.for_each_async(lambda: client.stream(request), handle, discard=True)

    It is iterated in this fiber, and however that ends, by a failure or an interrupt too, the
    ``aclose()`` of its iterator is awaited in this fiber and Context before the effect ends (AT10).

    ``items``: the iterable, or a function that makes it, called at each run (a generator can be
    iterated once only). What it raises is a defect, or ``catch(exc)``.
    """
    check_function(f, "for_each_async")
    return acquire_use_release(
        _opened(items),
        lambda iterator: _each(_item(iterator, catch), f, discard),
        lambda iterator, _: _aclose(iterator),
    )


@effect
def _each(
    item: Effect[tuple[X] | None, G],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    discard: bool,
) -> EffectGen[list[A] | None, E | G]:
    results: list[A] = []
    while (got := (yield from item)) is not None:
        result = yield from Effect.suspend(functools.partial(f, got[0]))
        if not discard:
            results.append(result)
    return None if discard else results


def _opened(items: Source[X]) -> Effect[AsyncIterator[X], Never]:
    given: Any = items  # annotations bind nobody who runs no type checker
    if not hasattr(given, "__aiter__") and not callable(given):
        raise TypeError(
            f"expected an async iterable, or a function that makes one at each run, not {given!r}"
        )

    def opened() -> AsyncIterator[X]:
        source: Any = given if hasattr(given, "__aiter__") else given()
        return aiter(source)

    return Effect.sync(opened)


def _item(
    iterator: AsyncIterator[X], catch: Callable[[Exception], F] | None
) -> Effect[tuple[X] | None, F]:
    """The next item, in a tuple of its own; None at the end."""
    return _asked(lambda: _next_of(iterator), catch)


def _asked(
    one: Callable[[], Awaitable[tuple[X] | None]], catch: Callable[[Exception], F] | None
) -> Effect[tuple[X] | None, F]:
    """What it raises is a defect, or ``catch(exc)``."""
    if catch is None:
        return Effect.promise(one)
    return Effect.try_promise(one, catch=catch)


async def _next_of(iterator: AsyncIterator[X]) -> tuple[X] | None:
    try:
        return (await anext(iterator),)
    except StopAsyncIteration:
        return None


class _Pull:
    """One that is under way: the cancel requests there were before it, and how it tells its end."""

    __slots__ = ("cut", "ended", "requests")

    def __init__(self, requests: int) -> None:
        self.requests = requests
        self.ended: Deferred[None] = Deferred()
        self.cut = False


class _Pulls:
    """The pulls of one iterator. A scope may close while another fiber waits for an item: a
    generator can't be closed while it runs, so what runs is cut short first, as ``asyncio.timeout``
    would do it.
    """

    __slots__ = ("_closing", "_iterator", "_under_way", "item")

    def __init__(
        self, iterator: AsyncIterator[Any], catch: Callable[[Exception], Exception] | None
    ) -> None:
        self._iterator = iterator
        self._closing = False
        self._under_way: dict[asyncio.Task[Any], _Pull] = {}
        self.item: Effect[tuple[Any] | None, Any] = _asked(self._one, catch)

    async def _one(self) -> tuple[Any] | None:
        if self._closing:
            return None
        task = cast("asyncio.Task[Any]", asyncio.current_task())
        pull = self._under_way[task] = _Pull(task.cancelling())
        try:
            return await _next_of(self._iterator)
        except asyncio.CancelledError:
            if pull.cut and task.cancelling() == pull.requests + 1:
                return None
            raise
        finally:
            del self._under_way[task]
            if pull.cut:
                task.uncancel()
            pull.ended.done_unsafe(_AT_AN_END)

    def close(self) -> Effect[None, Never]:
        """End the pulls under way, then the iterator."""
        self._closing = True
        me: Any = current_fiber()  # equal to each of its inner tasks
        if me in self._under_way:
            return Effect.die(
                FiberDeadlockError("a pull that closes the scope of its iterator waits for itself")
            )
        pulls = list(self._under_way.items())
        for task, pull in pulls:
            # One that is interrupted already ends by itself: a second cut would hit its cleanup.
            if task.cancelling() == pull.requests:
                pull.cut = task.cancel()
        ended = [pull.ended.await_() for _, pull in pulls]
        return all_(ended, discard=True).flat_map(lambda _: _aclose(self._iterator))


def _or_stop(got: tuple[X] | None) -> Effect[X, StopAsyncIteration]:
    if got is None:
        return Effect.fail(StopAsyncIteration())
    return Effect.succeed(got[0])


def _aclose(iterator: AsyncIterator[Any]) -> Effect[None, Never]:
    """Generators have one; an iterator of another kind need not."""
    aclose: Any = getattr(iterator, "aclose", None)
    return Effect.succeed(None) if aclose is None else Effect.promise(aclose)
