"""Effect: a value that describes work, and the combinators on it.

Nothing runs when an effect is made; it can be run many times. The classes at the end of the module
give each primitive of ``fibers.ops`` this public face; what they do stands there.
"""

from __future__ import annotations

import functools
import inspect
import math
import sys
from collections.abc import Awaitable, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, Protocol, cast, overload

from returns.maybe import Maybe, Nothing, Some
from typing_extensions import ParamSpec, TypeAliasType, TypeVar

from fibers import missing, tracing
from fibers.cause import Cause, Die, Fail, UnknownError
from fibers.duration import Duration, checked_seconds, text_of
from fibers.loop.hooks import offline_task, task_in, this_thread
from fibers.loop.hosted_task import HostedTask
from fibers.loop.inner_task import InnerTask
from fibers.loop.marks import Declares
from fibers.loop.native import hand_over, speed, twins
from fibers.loop.protocol import FAIL, Node
from fibers.misplaced import (
    check_effect,
    check_function,
    check_kind,
    check_scope,
    closed_coroutine,
)
from fibers.ops import (
    basic,
    body,
    clock,
    finalize,
    flight,
    fork,
    generator,
    group,
    region,
    repeat,
    wait,
)

if TYPE_CHECKING:
    from types import UnionType

    from fibers.exit import Exit
    from fibers.fiber import Fiber
    from fibers.layer import Layer
    from fibers.schedule import Schedule
    from fibers.scope import Scope
    from fibers.signal import AbortSignal

A_co = TypeVar("A_co", covariant=True)
E_co = TypeVar("E_co", bound=Exception, covariant=True, default=Never)
A = TypeVar("A")
B = TypeVar("B")
T = TypeVar("T")
E = TypeVar("E", bound=Exception)
F = TypeVar("F", bound=Exception)
# For what may be left out: without an argument to infer it from, it is Never.
NoF = TypeVar("NoF", bound=Exception, default=Never)
X = TypeVar("X", bound=Exception)
P = ParamSpec("P")
E1 = TypeVar("E1", bound=Exception)
E2 = TypeVar("E2", bound=Exception)
E3 = TypeVar("E3", bound=Exception)
E4 = TypeVar("E4", bound=Exception)
E5 = TypeVar("E5", bound=Exception)
E6 = TypeVar("E6", bound=Exception)
E7 = TypeVar("E7", bound=Exception)
E8 = TypeVar("E8", bound=Exception)

Uninterruptible = fork.Uninterruptible

# Set by fibers.edges, which knows how a plain task hosts a root fiber (PD12). Late, because an
# effect must be awaitable from the lowest floor on, and the host needs the whole runtime.
_run_in_task: Callable[[Effect[Any, Any]], Generator[Any, Any, Any]]


def host_in_tasks(host: Callable[[Effect[Any, Any]], Generator[Any, Any, Any]]) -> None:
    """Say how an effect that is awaited outside of a fiber runs."""
    global _run_in_task
    _run_in_task = host


# Where a fork stands is kept as code and offset, and formatted when somebody asks.
_frame = sys._getframe


def site_of(levels: int) -> fork.Site:
    """Where the caller's caller stands, so many levels above the caller."""
    at = _frame(levels + 1)
    return at.f_code, at.f_lasti


_INSIDE = (InnerTask, HostedTask)
"""What is the current task while a fiber runs."""


class _Awaited:
    """What has a compiled ``__await__`` where that was built."""

    __slots__ = ()


if not TYPE_CHECKING and speed is not None:
    _Awaited = speed.Effect


@twins("__await__")
class Effect(_Awaited, Node, Generic[A_co, E_co]):
    """Work that gives an ``A`` or fails with an ``E``, described and not yet run.

        @effect(raises=NotFound)
        async def load(user_id: str) -> User: ...

        name = await load("u1").map(lambda u: u.name).catch(lambda e: Effect.succeed("nobody"))

    In a fiber, ``await`` runs it inline; in a plain task, as that task's root fiber (PD12).
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        """A forgotten await shows in Python's own messages: "'Effect' object has no attribute
        'name'", not in one about a class of ours.
        """
        super().__init_subclass__()
        if cls.__name__.startswith("_"):
            cls.__name__ = "Effect"

    def __await__(self) -> Generator[Any, Any, A_co]:
        # hooks.task_of_step() in place: a call would be a good part of an await. No name for task
        # or loop: a failure's traceback keeps this frame (PD13).
        if type(task_in(this_thread.step.loop)) in _INSIDE or (
            this_thread.step.loop is None and type(offline_task()) in _INSIDE
        ):
            return (yield self)  # type: ignore[no-any-return]  # a cast would cost a call at each await
        return (yield from self._await_outside())

    def _await_outside(self) -> Generator[Any, Any, A_co]:
        """``__await__`` in a plain task."""
        return _run_in_task(self)

    def __iter__(self) -> Generator[Effect[Any, E_co], Any, A_co]:
        # For generator bodies: `yield from`. What it says it yields carries the error type.
        return self.__await__()

    # ------------------------------------------------------------------ make

    @staticmethod
    def succeed(value: T) -> Effect[T, Never]:
        """Give ``value``."""
        return _Succeed(value)

    @staticmethod
    def fail(error: F) -> Effect[Never, F]:
        """Fail with ``error``, an expected error. ``await`` raises the very object."""
        check_kind(error, Exception, "Effect.fail", "an Exception")
        return _FailCause(Cause((Fail(error, None, "Effect.fail"),)))

    @staticmethod
    def die(defect: BaseException) -> Effect[Never, Never]:
        """Die of ``defect``: nobody is expected to handle it."""
        check_kind(defect, BaseException, "Effect.die", "an exception")
        return _FailCause(Cause((Die(defect),)))

    @staticmethod
    def fail_cause(cause: Cause[F]) -> Effect[Never, F]:
        """Fail with a whole cause, as it is."""
        check_kind(cause, Cause, "Effect.fail_cause", "a Cause")
        return _FailCause(cause)

    @staticmethod
    def from_exit(exit_: Exit[T, F]) -> Effect[T, F]:
        """Give the exit's value, or fail with its own cause (FL23)."""
        return _FromExit(exit_)

    @staticmethod
    def sync(f: Callable[[], T]) -> Effect[T, Never]:
        """Call ``f`` at each run. What it raises is a defect."""
        check_function(f, "Effect.sync")
        return _Sync(f)

    @staticmethod
    def suspend(f: Callable[[], Effect[T, F] | Exit[T, F]]) -> Effect[T, F]:
        """Make the effect when it is run."""
        check_function(f, "Effect.suspend")
        return _Suspend(f)

    @staticmethod
    def never() -> Effect[Never, Never]:
        """Wait for ever; an interrupt ends it."""
        return _Never()

    @staticmethod
    def interrupt() -> Effect[Never, Never]:
        """Fail with an Interrupt of one's own making: an ordinary, catchable failure (WI5)."""
        return _Interrupt()

    @staticmethod
    def yield_now() -> Effect[None, Never]:
        """Give the event loop a turn."""
        return _Yield()

    @overload
    @staticmethod
    def promise(thunk: Callable[[], Awaitable[T]]) -> Effect[T, Never]: ...
    @overload
    @staticmethod
    def promise(
        thunk: Callable[[AbortSignal], Awaitable[T]], *, signal: Literal[True]
    ) -> Effect[T, Never]: ...
    @staticmethod
    def promise(thunk: Callable[..., Awaitable[T]], *, signal: bool = False) -> Effect[T, Never]:
        """Run plain asyncio code. A coroutine is a body of this fiber: it sees an interrupt as
        CancelledError. A future or task is only waited for: an interrupt stops the waiting and
        leaves it alone (VF1). With ``signal=True`` the thunk gets an AbortSignal, aborted on
        interrupt. What it raises is a defect; see ``try_promise``.

            supervisor = Effect.promise(lambda: done).on_interrupt(lambda _: stop_and_wait())
        """
        _check_thunk(thunk, "promise")
        return _Promise(thunk, _signal_maker() if signal else None)

    @overload
    @staticmethod
    def try_promise(
        thunk: Callable[[], Awaitable[T]], *, catch: Callable[[Exception], F]
    ) -> Effect[T, F]: ...
    @overload
    @staticmethod
    def try_promise(thunk: Callable[[], Awaitable[T]]) -> Effect[T, UnknownError]: ...
    @overload
    @staticmethod
    def try_promise(
        thunk: Callable[[AbortSignal], Awaitable[T]],
        *,
        catch: Callable[[Exception], F],
        signal: Literal[True],
    ) -> Effect[T, F]: ...
    @overload
    @staticmethod
    def try_promise(
        thunk: Callable[[AbortSignal], Awaitable[T]], *, signal: Literal[True]
    ) -> Effect[T, UnknownError]: ...
    @staticmethod
    def try_promise(
        thunk: Callable[..., Awaitable[T]],
        *,
        catch: Callable[[Exception], Exception] | None = None,
        signal: bool = False,
    ) -> Effect[T, Any]:
        """Like ``promise``, but what is raised is a typed failure: ``catch(exc)``, or UnknownError
        with the original as its ``__cause__``. A ``catch`` that raises is a defect (PR2).
        """
        if catch is not None:
            check_function(catch, "try_promise(catch=)")
        _check_thunk(thunk, "try_promise")
        return _Promise(
            thunk,
            _signal_maker() if signal else None,
            tried=True,
            catch=body.unknown if catch is None else catch,
        )

    @staticmethod
    def callback(
        register: Callable[
            [Callable[[Exit[T, F] | Effect[T, F]], None]], Effect[Any, Never] | None
        ],
    ) -> Effect[T, F]:
        """Wait for ``resume`` to be called, once, with an exit or an effect. What ``register``
        returns is run on interrupt only (PR7).
        """
        check_function(register, "Effect.callback")
        return _Callback(register)

    @staticmethod
    def uninterruptible_mask(
        f: Callable[[_Restore], Effect[T, F] | Exit[T, F]],
    ) -> Effect[T, F]:
        """An uninterruptible region that gets ``restore``: what is wrapped in it has the
        interruptibility from before the region (IN12, IN14).
        """
        check_function(f, "Effect.uninterruptible_mask")
        return _Mask(f, _make_restore)

    # ------------------------------------------------------------------ change

    def map(self, f: Callable[[A_co], B]) -> Effect[B, E_co]:
        """``f`` of the value. What ``f`` raises is a defect."""
        given: Any = f
        if not callable(given):  # in place: chains are made often
            check_function(given, "map")
        return _Map(self, f)

    def flat_map(self, f: Callable[[A_co], Effect[B, F] | Exit[B, F]]) -> Effect[B, E_co | F]:
        """Go on with the effect that ``f`` makes of the value."""
        given: Any = f
        if not callable(given):  # in place: chains are made often
            check_function(given, "flat_map")
        return _FlatMap(self, f)

    def tap(self, f: Callable[[A_co], Effect[Any, F] | Exit[Any, F]]) -> Effect[A_co, E_co | F]:
        """Run ``f(value)`` too, and give the value."""
        check_function(f, "tap")
        return _Tap(self, f)

    def zip(
        self, other: Effect[B, F], *, concurrent: bool = False
    ) -> Effect[tuple[A_co, B], E_co | F]:
        """Both values, one after the other or at once; the first failure ends the other side."""
        check_effect(other, "zip")
        if concurrent:
            both = cast(
                "Effect[Any, E_co | F]", _Workers((self, other), _same, None, False, site_of(1))
            )
            return both.map(tuple)
        return _Sequence((self, other), _same, False).map(tuple)

    def forever(self) -> Effect[Never, E_co]:
        """Again and again, with a turn of the loop between; ends by failure or interrupt."""
        return _Forever(self)

    def catch(self, f: Callable[[E_co], Effect[B, F] | Exit[B, F]]) -> Effect[A_co | B, F]:
        """Recover from a typed failure. Not from a defect, not from an interrupt (EX3, EX4)."""
        check_function(f, "catch")
        return _MatchCause(self, basic.catching(f))

    def catch_if(
        self, wanted: Callable[[E_co], bool], f: Callable[[E_co], Effect[B, F] | Exit[B, F]]
    ) -> Effect[A_co | B, E_co | F]:
        """Recover from a failure that ``wanted`` says yes to; others go on as they are."""
        check_function(wanted, "catch_if")
        check_function(f, "catch_if")
        return _MatchCause(self, basic.catching(f, wanted))

    def catch_tag(
        self, kind: type[X], f: Callable[[X], Effect[B, F] | Exit[B, F]]
    ) -> Effect[A_co | B, E_co | F]:
        """Recover from a failure of class ``kind``; others go on as they are (EX4)."""
        check_kind(kind, type, "catch_tag", "an exception class")
        check_function(f, "catch_tag")
        return _MatchCause(self, basic.catching(f, lambda e: isinstance(e, kind)))

    def catch_cause(
        self, f: Callable[[Cause[E_co]], Effect[B, F] | Exit[B, F]]
    ) -> Effect[A_co | B, F]:
        """Recover from any cause; an interrupt from outside still passes (WI5)."""
        check_function(f, "catch_cause")
        return _MatchCause(self, basic.catching_cause(f))

    def catch_defect(
        self, f: Callable[[BaseException], Effect[B, F] | Exit[B, F]]
    ) -> Effect[A_co | B, E_co | F]:
        """Recover from a defect, say to log it."""
        check_function(f, "catch_defect")
        return _MatchCause(self, basic.catching_defect(f))

    def map_error(self, f: Callable[[E_co], F]) -> Effect[A_co, F]:
        """Every typed error through ``f``."""
        check_function(f, "map_error")
        return _MapError(self, f)

    def or_die(self) -> Effect[A_co, Never]:
        """A failure here is a defect: nobody can handle it."""
        return _MatchCause(self, basic.fails_into_defects)

    def ignore(self) -> Effect[None, Never]:
        """Drop the value and a typed failure; defects pass (EX5)."""
        return _MatchCause(self, basic.ignoring_fails, lambda _fiber, _value: None)

    def sandbox(self) -> Effect[A_co, CauseError[E_co]]:
        """The whole cause as the typed error, to be caught like any other (EX5)."""
        return _MatchCause(self, _sandboxed)

    def exit(self) -> Effect[Exit[A_co, E_co], Never]:
        """How it ended, as a value."""
        return _MatchCause(self, basic.to_failed_exit, basic.to_succeeded_exit)

    def match(
        self, *, on_success: Callable[[A_co], B], on_failure: Callable[[E_co], T]
    ) -> Effect[B | T, Never]:
        """A value either way, from plain functions."""
        check_function(on_success, "match(on_success=)")
        check_function(on_failure, "match(on_failure=)")
        return _MatchCause(
            self,
            basic.catching(lambda e: _Succeed(on_failure(e))),
            lambda _fiber, value: on_success(value),
        )

    # ------------------------------------------------------------------ finalizers, see PD3

    def on_exit(
        self, f: Callable[[Exit[A_co, E_co]], Effect[Any, Never] | Exit[Any, Never] | None]
    ) -> Effect[A_co, E_co]:
        """Run ``f(exit)`` on every way out, uninterruptibly; the exit stays (FI2)."""
        check_function(f, "on_exit")
        return _OnExit(self, f)

    def ensuring(self, last: Effect[Any, Never]) -> Effect[A_co, E_co]:
        """Run ``last`` on every way out, uninterruptibly."""
        check_effect(last, "ensuring")
        return _Ensuring(self, last)

    def on_interrupt(
        self, f: Callable[[frozenset[int]], Effect[Any, Never] | Exit[Any, Never] | None]
    ) -> Effect[A_co, E_co]:
        """Run ``f(interruptors)`` if the cause holds an interrupt, uninterruptibly (FI6). This is
        where an occupant takes the same path as a user's stop.
        """
        check_function(f, "on_interrupt")
        return _OnCause(self, functools.partial(_when_interrupted, f))

    def on_error(
        self, f: Callable[[Cause[E_co]], Effect[Any, Never] | Exit[Any, Never] | None]
    ) -> Effect[A_co, E_co]:
        """Run ``f(cause)`` on every way out that is no success, uninterruptibly."""
        check_function(f, "on_error")
        return _OnCause(self, functools.partial(functools.partial, f))

    # ------------------------------------------------------------------ interruptibility

    def interruptible(self) -> Effect[A_co, E_co]:
        """An interrupt can land inside, whatever is around it (IN15)."""
        return _MaskTo(self, 0)

    def uninterruptible(self) -> Effect[A_co, E_co]:
        """An interrupt waits until the end of it (IN4)."""
        return _Uninterruptible(self)

    def await_all_children(self) -> Effect[A_co, E_co]:
        """The children forked inside end before it does (SU13)."""
        return _AwaitChildren(self)

    # ------------------------------------------------------------------ time

    def timeout(self, after: Duration) -> Effect[A_co, E_co | TimeoutError]:
        """Fail with TimeoutError after ``after`` (timedelta or seconds). The effect runs in a fiber
        of its own and is interrupted and finalized first (TR1, TR3).
        """
        seconds = checked_seconds(after, "a timeout")
        return self._timeout_with(
            seconds, lambda: Effect.fail(TimeoutError(f"timed out after {text_of(seconds)}"))
        )

    def timeout_option(self, after: Duration) -> Effect[Maybe[A_co], E_co]:
        """``Nothing`` after ``after`` (timedelta or seconds), else ``Some(value)``."""
        seconds = checked_seconds(after, "a timeout")
        some: Effect[Maybe[A_co], E_co] = self.map(Some)
        return cast(
            "Effect[Maybe[A_co], E_co]",
            some._timeout_with(seconds, lambda: Effect.succeed(Nothing)),
        )

    def timeout_or_else(
        self, after: Duration, or_else: Callable[[], Effect[B, F] | Exit[B, F]]
    ) -> Effect[A_co | B, E_co | F]:
        """After ``after`` (timedelta or seconds) end the effect, then run ``or_else()`` (TR3)."""
        check_function(or_else, "timeout_or_else")
        return self._timeout_with(checked_seconds(after, "a timeout"), or_else)

    def _timeout_with(self, seconds: float, late: Callable[[], Any]) -> Effect[Any, Any]:
        return _Timeout(
            self, lambda fiber: fiber._env[clock.CLOCK_KEY].sleep(seconds), late, site_of(2)
        )

    # ------------------------------------------------------------------ remembered

    def cached(self) -> Effect[Effect[A_co, E_co], Never]:
        """An effect that runs this one at its first run and gives that outcome ever after.

            settings = await load_settings().cached()
            first, second = await settings, await settings  # loaded once

        It runs in a fiber of its own, which all that ask meanwhile wait for: an interrupt of one
        leaves it running, that of the last one ends it, and the next run starts anew (PI12). A
        failure is an outcome like any other, an interrupt is none.
        """
        return self._remembered(math.inf).map(_Memo)

    def cached_with_ttl(self, time_to_live: Duration) -> Effect[Effect[A_co, E_co], Never]:
        """``cached`` for ``time_to_live`` (timedelta or seconds, on the Clock in context) from the
        moment the outcome was there. ValueError where it is negative.
        """
        return self._remembered(checked_seconds(time_to_live, "time_to_live")).map(_Memo)

    def cached_invalidate_with_ttl(
        self, time_to_live: Duration
    ) -> Effect[tuple[Effect[A_co, E_co], Effect[None, Never]], Never]:
        """``cached_with_ttl`` and an effect that forgets the outcome: the next run is a new one.
        Those that wait for a run under way still get what comes of it.

            rates, forget = await load_rates().cached_invalidate_with_ttl(60)
        """
        remembered = self._remembered(checked_seconds(time_to_live, "time_to_live"))
        return remembered.map(lambda memo: (_Memo(memo), _Sync(memo.forget)))

    def _remembered(self, seconds: float) -> Effect[flight.Memo, Never]:
        return _Access(lambda fiber: flight.Memo(self, seconds, fiber._env))

    # ------------------------------------------------------------------ again

    @overload
    def repeat(self, schedule: Schedule[B, A_co, NoF]) -> Effect[B, E_co | NoF]: ...
    @overload
    def repeat(
        self,
        schedule: Schedule[Any, A_co, NoF] | None = None,
        *,
        times: int,
        while_: Callable[[A_co], bool | Effect[bool]] | None = None,
        until: Callable[[A_co], bool | Effect[bool]] | None = None,
    ) -> Effect[A_co, E_co | NoF]: ...
    @overload
    def repeat(
        self,
        schedule: Schedule[Any, A_co, NoF] | None = None,
        *,
        while_: Callable[[A_co], bool | Effect[bool]],
        until: Callable[[A_co], bool | Effect[bool]] | None = None,
    ) -> Effect[A_co, E_co | NoF]: ...
    @overload
    def repeat(
        self,
        schedule: Schedule[Any, A_co, NoF] | None = None,
        *,
        until: Callable[[A_co], bool | Effect[bool]],
    ) -> Effect[A_co, E_co | NoF]: ...
    def repeat(
        self,
        schedule: Schedule[Any, A_co, Any] | None = None,
        *,
        times: int | None = None,
        while_: Callable[[A_co], bool | Effect[bool]] | None = None,
        until: Callable[[A_co], bool | Effect[bool]] | None = None,
    ) -> Effect[Any, Any]:
        """Run it, then again for as long as ``schedule`` goes on; the first failure ends it (SD1).

            await heartbeat().repeat(Schedule.spaced(30))
            state = await poll().repeat(until=lambda state: state.done)

        A schedule alone: gives its final output. With ``times`` (repetitions after the first run),
        ``while_`` or ``until`` (of the last value, a bool or an effect of one): gives the last
        value, and without a schedule there is no delay. ValueError without any of them.
        """
        start, limits = _rounds("repeat", schedule, times, while_, until)
        return _Repeat(self, start, limits)

    def retry(
        self,
        schedule: Schedule[Any, E_co, NoF] | None = None,
        *,
        times: int | None = None,
        while_: Callable[[E_co], bool | Effect[bool]] | None = None,
        until: Callable[[E_co], bool | Effect[bool]] | None = None,
    ) -> Effect[A_co, E_co | NoF]:
        """Run it again after a typed failure, for as long as ``schedule`` goes on, then fail with
        the last error. Defects and interrupts are not retried (SD2, SD5).

            await fetch().retry(Schedule.exponential(0.1).jittered().up_to(5))
            await fetch().retry(times=3, while_=lambda e: e.transient)

        ``times``: how many retries after the first run; ``while_`` and ``until`` are asked about
        the error. Without a schedule there is no delay. ValueError without any of them.
        """
        start, limits = _rounds("retry", schedule, times, while_, until)
        return _Retry(self, start, limits)

    @overload
    def retry_or_else(
        self,
        schedule: Schedule[B, E_co],
        or_else: Callable[[E_co, B], Effect[T, X] | Exit[T, X]],
    ) -> Effect[A_co | T, X]: ...
    @overload
    def retry_or_else(
        self,
        schedule: Schedule[B, E_co, F],
        or_else: Callable[[E_co, B], Effect[T, X] | Exit[T, X]],
    ) -> Effect[A_co | T, F | X]: ...
    def retry_or_else(
        self,
        schedule: Schedule[Any, E_co, Any],
        or_else: Callable[[E_co, Any], Effect[Any, Any] | Exit[Any, Any]],
    ) -> Effect[Any, Any]:
        """``retry``, and at the end of the schedule ``or_else(last_error, output)`` instead of a
        failure (SD5).
        """
        check_function(or_else, "retry_or_else")
        start, _ = _rounds("retry_or_else", schedule)
        return _Retry(self, start, None, or_else)

    # ------------------------------------------------------------------ services

    def provide_service(self, tag: Tag[T], impl: T) -> Effect[A_co, E_co]:
        """Run with ``impl`` for ``tag``; the outer one is back afterwards (EX14)."""
        check_kind(tag, Tag, "provide_service", "a tag, made by Tag[Service]('name')")
        return _Provide(self, {tag.name: impl})

    def provide(self, layer: Layer[Any, F], *, local: bool = False) -> Effect[A_co, E_co | F]:
        """Build ``layer``, run with its services, release it with the effect's exit (LY2).

            await load_all().provide(repo_layer)

        A layer that is built around here already is used as it is; one that is built here is
        shared with what runs inside, and with nobody else. ``local=True`` builds all of it anew
        (LY3). Fails with what the build fails with, and with what the release does.
        """
        provide_to = getattr(layer, "_provide_to", None)
        if provide_to is None:
            raise ValueError(
                f"provide() takes a Layer, not {layer!r}: use provide_service(tag, impl) for one "
                "service"
            )
        provided: Effect[A_co, E_co | F] = provide_to(self, local=local)
        return provided

    # ------------------------------------------------------------------ tracing

    def with_span(
        self, name: str, attributes: tracing.Attributes | None = None
    ) -> Effect[A_co, E_co]:
        """Run inside an OpenTelemetry span, a child of the current one, ended with the exit on
        every way out; forks inherit it. The effect itself where OpenTelemetry is not installed
        (the extra "tracing") (LY6).

            await load(user_id).with_span("load user", attributes={"user.id": user_id})

        A failure sets the status to ERROR and is recorded; an interrupt is told by the attribute
        ``fiber.interrupted`` and leaves the status unset.
        """
        api = tracing.api()
        return self if api is None else _Span(self, api, name, attributes)

    # ------------------------------------------------------------------ fork

    def fork_child(
        self, *, start_immediately: bool = False, uninterruptible: Uninterruptible = False
    ) -> Effect[Fiber[A_co, E_co], Never]:
        """Fork a fiber that this fiber supervises: it ends when this one does (WI8).

        ``start_immediately`` runs it to its first suspension before the fork returns.
        ``uninterruptible`` masks all of it; "inherit" takes the forker's state (WI7).
        """
        if uninterruptible is not False:
            fork.check_mask(uninterruptible)
        at = _frame(1)
        site = (at.f_code, at.f_lasti)
        return _Fork(self, fork.CHILD, None, start_immediately, uninterruptible, site)

    def fork_detach(
        self, *, start_immediately: bool = False, uninterruptible: Uninterruptible = False
    ) -> Effect[Fiber[A_co, E_co], Never]:
        """Fork a fiber that nobody supervises; the runtime holds it until it ends (SU10)."""
        if uninterruptible is not False:
            fork.check_mask(uninterruptible)
        at = _frame(1)
        site = (at.f_code, at.f_lasti)
        return _Fork(self, fork.DETACHED, None, start_immediately, uninterruptible, site)

    def fork_in(
        self,
        scope: Scope,
        *,
        start_immediately: bool = False,
        uninterruptible: Uninterruptible = False,
    ) -> Effect[Fiber[A_co, E_co], Never]:
        """Fork a fiber into ``scope``: its close interrupts and awaits it. Into a closed scope
        nothing is started, except that ``start_immediately`` runs the body to its first suspension
        and interrupts it there, on_interrupt included, before the fork returns (FO1-FO4).
        """
        check_scope(scope, "fork_in")
        if uninterruptible is not False:
            fork.check_mask(uninterruptible)
        at = _frame(1)
        site = (at.f_code, at.f_lasti)
        return _Fork(self, fork.IN_SCOPE, scope, start_immediately, uninterruptible, site)

    def fork_scoped(
        self, *, start_immediately: bool = False, uninterruptible: Uninterruptible = False
    ) -> Effect[Fiber[A_co, E_co], Never]:
        """``fork_in`` the scope in context."""
        if uninterruptible is not False:
            fork.check_mask(uninterruptible)
        at = _frame(1)
        site = (at.f_code, at.f_lasti)
        return _Access(lambda fiber: service_in(fiber, SCOPE_KEY)).flat_map(
            lambda scope: _Fork(
                self, fork.IN_SCOPE, scope, start_immediately, uninterruptible, site
            )
        )

    def __repr__(self) -> str:
        return f"<Effect {self._label()}>"


class _Restore(Protocol):
    """``restore`` of ``uninterruptible_mask``: takes effects of any type, each as it is."""

    def __call__(self, eff: Effect[B, F], /) -> Effect[B, F]: ...


class CauseError(Exception, Generic[E_co]):
    """The typed error of a sandboxed effect: the whole cause."""

    def __init__(self, cause: Cause[E_co]) -> None:
        super().__init__(str(cause))
        self.cause = cause

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, CauseError):
            return False
        return bool(self.cause == cast("CauseError[Exception]", other).cause)

    def __hash__(self) -> int:
        return hash(self.cause)


def _sandboxed(fiber: Any, cause: Cause[Any]) -> Any:
    fiber._cause = Cause((Fail(CauseError(cause)),))
    return FAIL


def _same(item: T) -> T:
    return item


def _when_interrupted(f: Callable[[frozenset[int]], Any], cause: Cause[Any]) -> Any:
    return functools.partial(f, cause.interruptors) if cause.has_interrupts else None


def _rounds(
    what: str,
    schedule: Any,
    times: int | None = None,
    while_: Callable[[Any], Any] | None = None,
    until: Callable[[Any], Any] | None = None,
) -> tuple[repeat.Start | None, repeat.Limits | None]:
    """The arguments of a repeat or retry, checked (PD18)."""
    for f in (while_, until):
        if f is not None:
            check_function(f, f"{what}(while_=, until=)")
    start = getattr(schedule, "_start", None)
    if schedule is not None and start is None:
        raise ValueError(
            f"{what} takes a Schedule, not {schedule!r}; for a number of times say times="
        )
    if times is None and while_ is None and until is None:
        if schedule is None:
            raise ValueError(
                f"{what} without an end: give it a schedule (Schedule.forever() if that is meant), "
                "times=, while_= or until="
            )
        return start, None
    return start, repeat.Limits(times, while_, until)


def _make_restore(depth: int) -> Callable[[Effect[Any, Any]], Effect[Any, Any]]:
    return lambda first: _MaskTo(first, depth)


# Set by fibers.signal: a promise thunk's signal is made only for signal=True (PD19).
_new_signal: Callable[[], tuple[Any, body.AbortsSignal]]


def make_signals_with(make: Callable[[], tuple[Any, body.AbortsSignal]]) -> None:
    """Say how the AbortSignal of ``promise(thunk, signal=True)`` is made."""
    global _new_signal
    _new_signal = make


def _check_thunk(thunk: object, what: str) -> None:
    if not callable(thunk):
        closed_coroutine(thunk)
        raise TypeError(
            f"{what} takes a function that makes what is awaited, anew at each run, not "
            f"{type(thunk).__name__}: Effect.{what}(lambda: ...)"
        )


def _signal_maker() -> Callable[[], tuple[Any, body.AbortsSignal]]:
    return lambda: _new_signal()


# ---------------------------------------------------------------------------- services

SCOPE_KEY = flight.SCOPE_KEY
_MISSING: Any = object()


def service_in(fiber: Any, name: str, default: Any = _MISSING) -> Any:
    """The service of that name in the fiber's context, else ``default``, else a LookupError."""
    found = fiber._env.get(name, default)
    if found is _MISSING:
        raise missing.not_found(fiber, name)
    return found


class Tag(Effect[A, Never]):
    """The name of a service and its type. Awaiting it gives the service.

        DbTag = Tag[Database]("db")
        db = await DbTag

    ``default`` is used where nothing is provided; without one, a missing service is a defect that
    names the tag (EX13). Two tags of one name are the same service.
    """

    __slots__ = ("default", "name")

    def __init__(self, name: str, default: A = _MISSING) -> None:
        self.name: str = name
        self.default: A = default

    @property
    def _has_default(self) -> bool:
        return self.default is not _MISSING

    def _ev(self, fiber: Any) -> Any:
        return service_in(fiber, self.name, self.default)

    def _label(self) -> str:
        return f"Tag({self.name!r})"


# ---------------------------------------------------------------------------- @effect

EffectGen = TypeAliasType("EffectGen", Generator[Effect[Any, E_co], Any, A], type_params=(A, E_co))
"""The return type of a generator body: ``EffectGen[User, NotFound]`` gives a User and may fail with
NotFound, ``EffectGen[User]`` can't fail."""


class _RaisesTakesATuple:
    """What ``raises=A | B`` gives for a type checker: nothing that decorates. pyright would take
    the union for one class; at run time it is a TypeError.
    """


@overload
def effect(f: Callable[P, Awaitable[T]], /) -> Callable[P, Effect[T, Never]]: ...
@overload
def effect(f: Callable[P, Generator[Effect[Any, E], Any, T]], /) -> Callable[P, Effect[T, E]]: ...
@overload
def effect(*, raises: UnionType) -> _RaisesTakesATuple: ...
@overload
def effect(
    *, raises: type[E1]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1]]]: ...
@overload
def effect(
    *, raises: tuple[type[E1]]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1]]]: ...
@overload
def effect(
    *, raises: tuple[type[E1], type[E2]]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1 | E2]]]: ...
@overload
def effect(
    *, raises: tuple[type[E1], type[E2], type[E3]]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1 | E2 | E3]]]: ...
@overload
def effect(
    *, raises: tuple[type[E1], type[E2], type[E3], type[E4]]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1 | E2 | E3 | E4]]]: ...
@overload
def effect(
    *, raises: tuple[type[E1], type[E2], type[E3], type[E4], type[E5]]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1 | E2 | E3 | E4 | E5]]]: ...
@overload
def effect(
    *, raises: tuple[type[E1], type[E2], type[E3], type[E4], type[E5], type[E6]]
) -> Callable[[Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1 | E2 | E3 | E4 | E5 | E6]]]: ...
@overload
def effect(
    *, raises: tuple[type[E1], type[E2], type[E3], type[E4], type[E5], type[E6], type[E7]]
) -> Callable[
    [Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1 | E2 | E3 | E4 | E5 | E6 | E7]]
]: ...
@overload
def effect(
    *,
    raises: tuple[type[E1], type[E2], type[E3], type[E4], type[E5], type[E6], type[E7], type[E8]],
) -> Callable[
    [Callable[P, Awaitable[T]]], Callable[P, Effect[T, E1 | E2 | E3 | E4 | E5 | E6 | E7 | E8]]
]: ...
def effect(
    f: Callable[..., Any] | None = None,
    /,
    *,
    raises: type[Exception] | tuple[type[Exception], ...] | UnionType = (),
) -> Any:
    """Make a coroutine function, or a generator function, return effects.

        @effect(raises=(NotFound, Denied))
        async def load(user_id: str) -> User: ...

    What leaves the body is a Fail exactly if its type is in ``raises``; anything else is a defect,
    so the error type is a guarantee (PD4). TypeError for ``raises`` that are no Exception classes.

        @effect
        def greet(user_id: str) -> EffectGen[str, NotFound | Denied]:
            user = yield from load(user_id)
            return f"Hello {user.name}"

    In a generator the errors are those of the effects that it yields from, so a type checker knows
    them, and ``raises=`` is a TypeError: fail with ``yield from Effect.fail(error)``. What is
    raised otherwise is a defect.
    """
    given = raises if isinstance(raises, tuple) else (raises,)
    kinds: tuple[Any, ...] = given  # annotations bind nobody who runs no type checker
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise TypeError(
                f"raises= takes Exception classes, one or a tuple of them, not {kind!r}"
            )

    def decorate(f: Callable[..., Any]) -> Callable[..., Effect[Any, Any]]:
        if not callable(f):
            raise TypeError(f"@effect decorates a coroutine function or a generator's, not {f!r}")
        _refuse_error(f)
        if inspect.isasyncgenfunction(f):
            raise TypeError(
                f"an async generator gives many values and is no effect: iterate {f!r} with "
                "for_each_async"
            )
        if kinds and inspect.isgeneratorfunction(f):
            raise TypeError(generator.RAISES_ON_A_GENERATOR)
        declares = Declares(kinds, getattr(f, "__qualname__", repr(f))) if kinds else None
        make = _Body if inspect.iscoroutinefunction(f) else _AnyBody

        @functools.wraps(f)
        def call(*args: Any, **kwargs: Any) -> Effect[Any, Any]:
            return make(f, args, kwargs, declares)

        return call

    return decorate if f is None else decorate(f)


def _refuse_error(f: object) -> None:
    if isinstance(f, type) and issubclass(f, BaseException):
        raise TypeError(
            f"@effect decorates a function, not the error {f.__name__}: write "
            f"@effect(raises={f.__name__})"
        )


# ---------------------------------------------------------------------------- the primitives' face


class _Succeed(basic.SucceedOp, Effect[Any, Any]):
    __slots__ = ()


class _FailCause(basic.FailCauseOp, Effect[Any, Any]):
    __slots__ = ()


class _FromExit(basic.ExitOp, Effect[Any, Any]):
    __slots__ = ()


class _Sync(basic.SyncOp, Effect[Any, Any]):
    __slots__ = ()


class _Suspend(basic.SuspendOp, Effect[Any, Any]):
    __slots__ = ()


class _Interrupt(basic.InterruptOp, Effect[Any, Any]):
    __slots__ = ()


class _Yield(basic.YieldOp, Effect[Any, Any]):
    __slots__ = ()


class _Access(basic.AccessOp, Effect[Any, Any]):
    __slots__ = ()


class _Map(basic.MapOp, Effect[Any, Any]):
    __slots__ = ()


class _FlatMap(basic.FlatMapOp, Effect[Any, Any]):
    __slots__ = ()


class _Tap(basic.TapOp, Effect[Any, Any]):
    __slots__ = ()


class _Forever(basic.ForeverOp, Effect[Any, Any]):
    __slots__ = ()


class _MatchCause(basic.MatchCauseOp, Effect[Any, Any]):
    __slots__ = ()


class _MapError(basic.MapErrorOp, Effect[Any, Any]):
    __slots__ = ()


class _Provide(basic.ProvideOp, Effect[Any, Any]):
    __slots__ = ()


class _Span(tracing.SpanOp, Effect[Any, Any]):
    __slots__ = ()


class _Uninterruptible(region.UninterruptibleOp, Effect[Any, Any]):
    __slots__ = ()


class _MaskTo(region.MaskToOp, Effect[Any, Any]):
    __slots__ = ()


class _Mask(region.MaskOp, Effect[Any, Any]):
    __slots__ = ()


class _OnExit(finalize.OnExitOp, Effect[Any, Any]):
    __slots__ = ()


class _Ensuring(finalize.EnsuringOp, Effect[Any, Any]):
    __slots__ = ()


class _OnCause(finalize.OnCauseOp, Effect[Any, Any]):
    __slots__ = ()


class _Body(body.BodyOp, Effect[Any, Any]):
    __slots__ = ()


class _AnyBody(generator.AnyBodyOp, Effect[Any, Any]):
    __slots__ = ()


class _Promise(body.PromiseOp, Effect[Any, Any]):
    __slots__ = ()


class _Never(wait.NeverOp, Effect[Any, Any]):
    __slots__ = ()


class _Callback(wait.CallbackOp, Effect[Any, Any]):
    __slots__ = ()


class _Memo(flight.MemoOp, Effect[Any, Any]):
    __slots__ = ()


class _Fork(fork.ForkOp, Effect[Any, Any]):
    __slots__ = ()


class _AwaitChildren(fork.AwaitChildrenOp, Effect[Any, Any]):
    __slots__ = ()


class _Timeout(group.TimeoutOp, Effect[Any, Any]):
    __slots__ = ()


class _Repeat(repeat.RepeatOp, Effect[Any, Any]):
    __slots__ = ()


class _Retry(repeat.RetryOp, Effect[Any, Any]):
    __slots__ = ()


class _Sequence(group.SequenceOp, Effect[Any, Any]):
    __slots__ = ()


class _Workers(group.WorkersOp, Effect[Any, Any]):
    __slots__ = ()


hand_over(Fork=_Fork, Body=_Body, Succeed=_Succeed)
