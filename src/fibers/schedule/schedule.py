"""Schedule: when to run again, how long to wait before it, and when to stop (SD).

Values that are combined, used by ``Effect.repeat`` and ``Effect.retry``.
"""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Any, Final, Generic, Never, TypeAlias, final, overload

from typing_extensions import TypeVar

from fibers.duration import Duration, checked_seconds
from fibers.effect import Effect, Tag
from fibers.misplaced import check_function, refuse
from fibers.ops.repeat import (
    BEFORE_THE_FIRST_STEP,
    METADATA_KEY,
    ScheduleDone,
    ScheduleMetadata,
    Start,
    checked_times,
)
from fibers.schedule import cron as calendar
from fibers.schedule import grid, steps

Out = TypeVar("Out")
In = TypeVar("In")
E = TypeVar("E", bound=Exception)
B = TypeVar("B")
F = TypeVar("F", bound=Exception, default=Never)
Out_co = TypeVar("Out_co", covariant=True)
In_contra = TypeVar("In_contra", contravariant=True, default=object)
E_co = TypeVar("E_co", bound=Exception, covariant=True, default=Never)

StepResult: TypeAlias = "tuple[Out, Duration] | ScheduleDone[Out]"

CurrentMetadata: Tag[ScheduleMetadata] = Tag(METADATA_KEY, BEFORE_THE_FIRST_STEP)
"""Inside what ``repeat`` and ``retry`` run: the schedule step before this run; attempt 0 in the
first run, and outside."""


LEVELS_CALLED: Final = 32
"""So many schedules made of each other ask each other by plain calls."""


@final
class Schedule(Generic[Out_co, In_contra, E_co]):
    """When to run again: gives an ``Out`` at each step and at its end, is told an ``In`` (a value,
    or under ``retry`` an error), and may itself fail with an ``E``.

        polling = Schedule.spaced(1).up_to(duration=60)
        backoff = Schedule.exponential(0.1).jittered().up_to(5)
        await fetch().retry(backoff)

    The first run is never delayed: a schedule is asked after each run. It is a value: each
    ``repeat`` or ``retry`` starts it afresh. Durations are timedelta or seconds; ValueError where
    one is negative (PD18).
    """

    __slots__ = ("_levels", "_start")

    def __init__(self, start: Start, *made_of: Schedule[Any, Any, Any]) -> None:
        levels = 1 + max((part._levels for part in made_of), default=0)
        if levels == LEVELS_CALLED:
            start, levels = steps.in_the_run_loop(start), 0
        self._start = start
        self._levels: int = levels

    # ------------------------------------------------------------------ make

    @staticmethod
    def from_step(
        start: Callable[
            [],
            Callable[[float, In], StepResult[Out] | Effect[StepResult[Out], F]],
        ],
    ) -> Schedule[Out, In, F]:
        """A schedule of one's own. ``start()`` gives the step function of one run, which is called
        with the clock's seconds and the input after each run of the effect; it gives ``(output,
        delay)`` or ``ScheduleDone(output)``, or an effect of one of them.
        """
        check_function(start, "Schedule.from_step")
        return Schedule(steps.checked(start))

    @staticmethod
    def forever() -> Schedule[int]:
        """No delay, no end; counts from 0."""
        return Schedule(steps.counting(0.0))

    @staticmethod
    def recurs(times: int) -> Schedule[int]:
        """``times`` repetitions after the first run, at once; counts, its last output is ``times``
        (SD1).
        """
        return Schedule.forever().up_to(checked_times(times))

    @staticmethod
    def spaced(duration: Duration) -> Schedule[int]:
        """``duration`` between the end of a run and the start of the next; counts (SD3)."""
        return Schedule(steps.counting(checked_seconds(duration, "a delay")))

    @staticmethod
    def fixed(interval: Duration) -> Schedule[int]:
        """Runs start at multiples of ``interval`` after the end of the first run; counts. After a
        run that took longer the next starts at once, and what was missed is not made up for (SD3).
        """
        return Schedule(grid.fixed(grid.window_ns(interval)))

    @staticmethod
    def windowed(interval: Duration) -> Schedule[int]:
        """Time since the end of the first run is cut into windows of ``interval``: each run waits
        for the next window, also after one that took longer; counts (SD3).
        """
        return Schedule(grid.windowed(grid.window_ns(interval)))

    @staticmethod
    def exponential(base: Duration, factor: float = 2.0) -> Schedule[float]:
        """Delays ``base``, ``base * factor``, ``base * factor ** 2``, ...; gives the delay in
        seconds (SD2). One too large for a float is infinite: it never comes. ValueError for a
        factor that is not positive.
        """
        first = checked_seconds(base, "a delay")
        if not factor > 0:
            raise ValueError(f"the factor of exponential delays must be positive, not {factor!r}")

        def delay(attempt: int) -> float:
            try:
                return first * factor**attempt
            except OverflowError:
                return math.inf if first else 0.0

        return Schedule(steps.delays(delay))

    @staticmethod
    def fibonacci(one: Duration) -> Schedule[float]:
        """Each delay is the sum of the two before it, from ``one``: 1, 1, 2, 3, 5 of it; gives the
        delay in seconds (SD3).
        """
        return Schedule(steps.fibonacci(checked_seconds(one, "a delay")))

    @staticmethod
    def cron(expression: str, zone: tzinfo | None = None) -> Schedule[datetime]:
        """Each time that a cron expression names, in ``zone`` (None: the machine's); gives it.

            Schedule.cron("30 2 * * mon-fri", ZoneInfo("Europe/Berlin"))

        A time that daylight saving skips or doubles comes once, as in Debian's cron. The clock in
        context passes it: a TestClock starts from the real date. ValueError for what is not such an
        expression, ModuleNotFoundError without the extra "cron".
        """
        return Schedule(calendar.cron(expression, zone))

    @staticmethod
    def duration(d: Duration) -> Schedule[float]:
        """One repetition after ``d``; gives it in seconds, and 0 at the end."""
        return Schedule(steps.once(checked_seconds(d, "a delay")))

    @staticmethod
    def during(d: Duration) -> Schedule[float]:
        """Again at once until ``d`` has passed since its first step; gives what has, in seconds
        (SD4).
        """
        most = grid.limit_ns(d)
        return Schedule.elapsed().while_(lambda m: grid.ns(m.elapsed) <= most)

    @staticmethod
    def elapsed() -> Schedule[float]:
        """No delay, no end; gives the seconds since its first step."""
        return Schedule.forever().map(lambda m: m.elapsed)

    @staticmethod
    def identity() -> Schedule[Any, Any]:
        """No delay, no end; gives its input."""
        return Schedule.forever().passthrough()

    # ------------------------------------------------------------------ stop

    def up_to(
        self, times: int | None = None, *, duration: Duration | None = None
    ) -> Schedule[Out_co, In_contra, E_co]:
        """Stop after ``times`` repetitions, or once ``duration`` has passed since the first step,
        whichever is first. ValueError for a number of times that is no int of at least 0.
        """
        if times is None and duration is None:
            raise ValueError("up_to limits nothing: give times, duration, or both")
        most = None if times is None else checked_times(times)
        longest = math.inf if duration is None else grid.limit_ns(duration)

        def goes_on(m: ScheduleMetadata) -> bool:
            return (most is None or m.attempt <= most) and grid.ns(m.elapsed) <= longest

        return Schedule(steps.after(self._start, steps.stop_unless(goes_on)), self)

    def while_(
        self: Schedule[Out, In, E],
        predicate: Callable[[ScheduleMetadata[Out, In]], bool | Effect[bool, F]],
    ) -> Schedule[Out, In, E | F]:
        """Stop, with the output of this very step, where ``predicate(metadata)`` says no."""
        check_function(predicate, "Schedule.while_")
        return Schedule(steps.after(self._start, steps.stop_unless(predicate)), self)

    # ------------------------------------------------------------------ change

    @overload
    def map(
        self: Schedule[Out, In, E], f: Callable[[ScheduleMetadata[Out, In]], Effect[B, F]]
    ) -> Schedule[B, In, E | F]: ...
    @overload
    def map(
        self: Schedule[Out, In, E], f: Callable[[ScheduleMetadata[Out, In]], B]
    ) -> Schedule[B, In, E]: ...
    def map(
        self: Schedule[Any, Any, Any], f: Callable[[ScheduleMetadata[Any, Any]], Any]
    ) -> Schedule[Any, Any, Any]:
        """``f(metadata)`` for the output, the last one included (its duration is 0)."""
        check_function(f, "Schedule.map")

        def mapped(m: ScheduleMetadata, _: Any) -> Any:
            return steps.then(f(m), lambda output: (output, m.duration))

        def last(m: ScheduleMetadata) -> Any:
            return steps.then(f(m), ScheduleDone)

        return Schedule(steps.after(self._start, mapped, last), self)

    def for_input(self: Schedule[Out, object, E], kind: type[In]) -> Schedule[Out, In, E]:
        """Say what its input will be, to a type checker and nobody else: callbacks then know it.

        Schedule.forever().for_input(Busy).modify_delay(lambda m: m.input.retry_after)
        """
        return self

    def tap(
        self: Schedule[Out, In, E],
        f: Callable[[ScheduleMetadata[Out, In]], Effect[Any, F] | None],
    ) -> Schedule[Out, In, E | F]:
        """Run ``f(metadata)`` too, a plain function or one that gives an effect, before each wait;
        not at the end.
        """
        check_function(f, "Schedule.tap")
        return Schedule(
            steps.after(self._start, lambda m, result: steps.then(f(m), lambda _: result)), self
        )

    def passthrough(self: Schedule[Any, In, E]) -> Schedule[In, In, E]:
        """Give the input instead of the output, the last one included."""

        def passed(m: ScheduleMetadata, _: Any) -> Any:
            return m.input, m.duration

        def last(m: ScheduleMetadata) -> Any:
            return ScheduleDone(m.input)

        return Schedule(steps.after(self._start, passed, last), self)

    # ------------------------------------------------------------------ delay

    def modify_delay(
        self: Schedule[Out, In, E],
        f: Callable[[ScheduleMetadata[Out, In]], Duration | Effect[Duration, F]],
    ) -> Schedule[Out, In, E | F]:
        """Wait for ``f(metadata)`` instead of ``metadata.duration``."""
        check_function(f, "Schedule.modify_delay")

        def modified(m: ScheduleMetadata, _: Any) -> Any:
            return steps.then(f(m), lambda delay: (m.output, checked_seconds(delay, "a delay")))

        return Schedule(steps.after(self._start, modified), self)

    def add_delay(
        self: Schedule[Out, In, E],
        f: Callable[[ScheduleMetadata[Out, In]], Duration | Effect[Duration, F]],
    ) -> Schedule[Out, In, E | F]:
        """Wait for ``f(metadata)`` on top of ``metadata.duration``."""
        check_function(f, "Schedule.add_delay")

        def longer(m: ScheduleMetadata, _: Any) -> Any:
            return steps.then(
                f(m), lambda more: (m.output, m.duration + checked_seconds(more, "a delay"))
            )

        return Schedule(steps.after(self._start, longer), self)

    def jittered(
        self, *, random: Callable[[], float] = _random.random
    ) -> Schedule[Out_co, In_contra, E_co]:
        """Each delay times a random factor from 0.8 to 1.2, so that those who failed together don't
        come back together. ``random()`` gives a float from 0 to 1.
        """
        check_function(random, "Schedule.jittered(random=)")

        def shaken(m: ScheduleMetadata, _: Any) -> Any:
            return m.output, m.duration * (0.8 + 0.4 * random())

        return Schedule(steps.after(self._start, shaken), self)

    # ------------------------------------------------------------------ combine

    def concat(
        self: Schedule[Out, In, E], other: Schedule[B, In, F]
    ) -> Schedule[Out | B, In, E | F]:
        """This one to its end, whose output is dropped, then ``other`` (SD4)."""
        _check_schedules("concat()", other)
        return Schedule(steps.one_after_the_other(self._start, other._start), self, other)

    def max(
        self: Schedule[Any, In, E], *others: Schedule[Any, In, F]
    ) -> Schedule[float, In, E | F]:
        """While all of them go on, with the longest of their delays; gives it in seconds (SD4).

        Schedule.max(Schedule.exponential(0.1), Schedule.recurs(5))
        """
        return _together(self, others, steps.longest)

    def min(
        self: Schedule[Any, In, E], *others: Schedule[Any, In, F]
    ) -> Schedule[float, In, E | F]:
        """While one of them goes on, with the shortest of the delays of those that do; gives it in
        seconds (SD4).

            Schedule.min(Schedule.exponential(0.1), Schedule.spaced(30))
        """
        return _together(self, others, steps.shortest)

    def __repr__(self) -> str:
        return f"<Schedule at {id(self):#x}>"


def _together(
    first: Schedule[Any, In, E],
    others: tuple[Schedule[Any, In, F], ...],
    choose: Callable[[list[float | None]], float | None],
) -> Schedule[float, In, E | F]:
    _check_schedules("max() or min()", first, *others)
    starts = (first._start, *(other._start for other in others))
    return Schedule(steps.together(starts, choose), first, *others)


def _check_schedules(what: str, *given: object) -> None:
    for each in given:
        if not isinstance(each, Schedule):
            way_out = "Schedule.spaced(seconds) or Schedule.recurs(times) makes one"
            refuse(each, what, "schedules", way_out)
