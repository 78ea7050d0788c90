"""repeat and retry: run again for as long as a schedule says so, with a sleep between (SD).

What a schedule is stands in ``fibers.schedule``; here it is a step function, asked after each run:
``step(now, input)`` gives ``(output, delay_seconds)``, a ``ScheduleDone``, or a node that gives one
of the two.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, final

from typing_extensions import TypeVar

from fibers.cause import Fail, with_defects_winning, without_fails
from fibers.loop.protocol import FAIL, NEXT, Frame, Node, outcome_of
from fibers.misplaced import refuse_coroutine
from fibers.ops.clock import CLOCK_KEY

if TYPE_CHECKING:
    from fibers.cause import Cause
    from fibers.loop.run_loop import FiberCore

O_co = TypeVar("O_co", covariant=True, default=Any)
I_co = TypeVar("I_co", covariant=True, default=Any)

METADATA_KEY = "fibers.CurrentMetadata"

Step: TypeAlias = Callable[[float, Any], Any]
"""See the module."""
Start: TypeAlias = Callable[[], Step]
"""A schedule, as seen from here: each evaluation of a repeat or retry has a step of its own."""


@final
@dataclass(frozen=True, slots=True)
class ScheduleDone(Generic[O_co]):
    """What a schedule's step gives when it is over: no further run. ``output`` is its last word."""

    output: O_co


@final
@dataclass(frozen=True, slots=True)
class ScheduleMetadata(Generic[O_co, I_co]):
    """One step of a schedule: what it was asked about, what it said, and when (in seconds).

    ``input`` is the value of the run before it, under ``retry`` its error. ``output`` is what the
    schedule gave and ``duration`` how long it waits. ``attempt`` counts the steps from 1. ``start``
    and ``now`` are readings of the clock at the first step and at this one, ``elapsed`` the time
    between them, ``elapsed_since_previous`` that since the step before.
    """

    input: I_co
    output: O_co
    duration: float
    attempt: int
    start: float
    now: float
    elapsed: float
    elapsed_since_previous: float


BEFORE_THE_FIRST_STEP: ScheduleMetadata[None, None] = ScheduleMetadata(
    input=None,
    output=None,
    duration=0.0,
    attempt=0,
    start=0.0,
    now=0.0,
    elapsed=0.0,
    elapsed_since_previous=0.0,
)


class Tally:
    """Counts the steps of one run of a schedule and makes their metadata."""

    __slots__ = ("attempt", "previous", "start")

    def __init__(self) -> None:
        self.attempt: int = 0
        self.start: float = 0.0
        self.previous: float = 0.0

    def step(self, now: float, given: Any, output: Any, duration: float) -> ScheduleMetadata:
        """Another step, at ``now``: its input, its output, and the seconds until the next run."""
        if self.attempt == 0:
            self.start = self.previous = now
        self.attempt += 1
        previous, self.previous = self.previous, now
        return ScheduleMetadata(
            given,
            output,
            duration,
            self.attempt,
            self.start,
            now,
            now - self.start,
            now - previous,
        )


class _RoundsOp(Node):
    """``first`` again and again. A run sees the metadata of the step before it as a service."""

    __slots__ = ("first", "limits", "start")

    def __init__(self, first: Node, start: Start | None, limits: Limits | None) -> None:
        self.first: Node = first
        self.start: Start = _at_once if start is None else start
        self.limits: Limits | None = limits


class RepeatOp(_RoundsOp):
    """After each success: the value is the step's input; a failure ends it (SD1, SD5).

    It gives the schedule's final output; with ``limits``, the last value.
    """

    __slots__ = ()

    def _ev(self, fiber: FiberCore) -> Any:
        return _Repeat(self, fiber).run(fiber)


class RetryOp(_RoundsOp):
    """After each typed failure: the error is the step's input. Defects and interrupts pass (SD5).

    When the schedule is over it fails with the last cause, or goes on with ``or_else(error,
    output)``.
    """

    __slots__ = ("or_else",)

    def __init__(
        self,
        first: Node,
        start: Start | None,
        limits: Limits | None,
        or_else: Callable[[Any, Any], Any] | None = None,
    ) -> None:
        super().__init__(first, start, limits)
        self.or_else: Callable[[Any, Any], Any] | None = or_else

    def _ev(self, fiber: FiberCore) -> Any:
        return _Retry(self, fiber).run(fiber)


def checked_times(times: object) -> int:
    """A number of repetitions; ValueError for anything but an int of at least 0 (PD18)."""
    if isinstance(times, bool) or not isinstance(times, int) or times < 0:
        raise ValueError(f"times must be an int of at least 0, not {times!r}")
    return times


class Limits:
    """times=, while_= and until= of a call: asked after the schedule, in this order: while, until,
    times.
    """

    __slots__ = ("predicates", "times")

    def __init__(
        self,
        times: int | None,
        while_: Callable[[Any], Any] | None,
        until: Callable[[Any], Any] | None,
    ) -> None:
        self.times: int | None = None if times is None else checked_times(times)
        self.predicates: list[tuple[Callable[[Any], Any], bool]] = []
        if while_ is not None:
            self.predicates.append((while_, True))
        if until is not None:
            self.predicates.append((until, False))


def _at_once() -> Step:
    """The schedule of a call that names none: no delay, no end."""
    return lambda _now, _input: (None, 0.0)


class _Rounds(Frame):
    """One evaluation, and the frame of each run. The other phases of a round have frames of their
    own, so that this one takes the outcome of runs only; the stack is as deep after a million
    rounds as in the first.
    """

    __slots__ = ("asked", "env", "first", "limits", "metadata", "proposed", "step", "tally")

    def __init__(self, op: _RoundsOp, fiber: FiberCore) -> None:
        self.first = op.first
        self.env = fiber._env
        self.step = op.start()
        self.limits = op.limits
        self.tally = Tally()
        self.metadata: ScheduleMetadata = BEFORE_THE_FIRST_STEP
        # The question to the schedule that is being answered: (now, input); and its answer, while
        # the limits are asked.
        self.asked: tuple[float, Any] = (0.0, None)
        self.proposed: tuple[Any, float] = (None, 0.0)

    def run(self, fiber: FiberCore) -> Any:
        fiber._stack.append(self)
        fiber._env = {**self.env, METADATA_KEY: self.metadata}
        fiber._next = self.first
        return NEXT

    def ask(self, fiber: FiberCore, given: Any) -> Any:
        """A run is over: what does the schedule say?"""
        now = fiber._env[CLOCK_KEY].now()
        self.asked = (now, given)
        return self.after(fiber, self.step(now, given), self.answered)

    def after(self, fiber: FiberCore, given: Any, then: Callable[[FiberCore, Any], Any]) -> Any:
        """Go on in ``then`` with what a callback gave: a plain value, or an effect's."""
        if isinstance(given, Node):
            fiber._stack.append(_Then(then))
            fiber._next = given
            return NEXT
        refuse_coroutine(given)
        return then(fiber, given)

    def answered(self, fiber: FiberCore, answer: Any) -> Any:
        if isinstance(answer, ScheduleDone):
            return self.over(fiber, answer.output)  # pyright: ignore[reportUnknownMemberType]  # an output of any type
        self.proposed = answer
        return self.next_limit(fiber, 0)

    def next_limit(self, fiber: FiberCore, at: int) -> Any:
        limits = self.limits
        if limits is not None:
            if at < len(limits.predicates):
                predicate, wanted = limits.predicates[at]

                def judged(fiber: FiberCore, verdict: Any) -> Any:
                    if bool(verdict) is not wanted:
                        return self.over(fiber, self.proposed[0])
                    return self.next_limit(fiber, at + 1)

                return self.after(fiber, predicate(self.asked[1]), judged)
            if limits.times is not None and self.tally.attempt >= limits.times:
                return self.over(fiber, self.proposed[0])
        return self.sleep(fiber)

    def sleep(self, fiber: FiberCore) -> Any:
        now, given = self.asked
        output, delay = self.proposed
        self.metadata = self.tally.step(now, given, output, delay)
        self.forget()
        fiber._stack.append(_Then(self.slept))
        fiber._next = fiber._env[CLOCK_KEY].sleep(delay)
        return NEXT

    def slept(self, fiber: FiberCore, _: Any) -> Any:
        return self.run(fiber)

    def forget(self) -> None:
        """Let go of what only the decision needed."""
        self.asked = (0.0, None)
        self.proposed = (None, 0.0)

    def over(self, fiber: FiberCore, output: Any) -> Any:
        """No further run: what is the outcome of them all?"""
        raise NotImplementedError


class _Then(Frame):
    """The next phase of a round; a failure passes."""

    __slots__ = ("f",)

    def __init__(self, f: Callable[[FiberCore, Any], Any]) -> None:
        self.f = f

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return self.f(fiber, value)


class _Repeat(_Rounds):
    __slots__ = ()

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        fiber._env = self.env
        return self.ask(fiber, value)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        fiber._env = self.env
        fiber._cause = cause
        return FAIL

    def over(self, fiber: FiberCore, output: Any) -> Any:
        return output if self.limits is None else self.asked[1]


class _Retry(_Rounds):
    __slots__ = ("cause", "or_else")

    def __init__(self, op: RetryOp, fiber: FiberCore) -> None:
        super().__init__(op, fiber)
        self.or_else = op.or_else
        self.cause: Cause[Any] | None = None

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        fiber._env = self.env
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        fiber._env = self.env
        # As every recovery: passed by when an interrupt from outside lands, not for defects.
        if fiber._skips(cause):
            fiber._cause = without_fails(cause)
            return FAIL
        if not cause.has_dies:
            for reason in cause.reasons:
                if isinstance(reason, Fail):
                    self.cause = cause
                    return self.ask(fiber, reason.error)
        fiber._cause = with_defects_winning(cause)
        return FAIL

    def forget(self) -> None:
        super().forget()
        self.cause = None

    def over(self, fiber: FiberCore, output: Any) -> Any:
        assert self.cause is not None
        if self.or_else is not None:
            return outcome_of(fiber, self.or_else(self.asked[1], output))
        fiber._cause = self.cause
        return FAIL
