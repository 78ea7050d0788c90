"""What schedules are made of: functions that begin a step function (``fibers.ops.repeat`` says what
those give), and functions that change one or join several.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeGuard, cast, final

from fibers.duration import checked_seconds
from fibers.effect import Effect
from fibers.misplaced import refuse_coroutine
from fibers.ops.repeat import (
    ScheduleDone,
    ScheduleMetadata,
    Start,
    Step,
    Tally,
)


def _is_effect(given: Any) -> TypeGuard[Effect[Any, Any]]:
    return isinstance(given, Effect)


def then(given: Any, f: Callable[[Any], Any]) -> Any:
    """``f`` of a plain value now, of an effect's value when it has run."""
    if _is_effect(given):
        return given.flat_map(lambda value: _as_effect(f(value)))
    refuse_coroutine(given)
    return f(given)


def _as_effect(given: Any) -> Effect[Any, Any]:
    return given if _is_effect(given) else Effect.succeed(given)


def after(
    start: Start,
    change: Callable[[ScheduleMetadata, Any], Any],
    last: Callable[[ScheduleMetadata], Any] | None = None,
) -> Start:
    """``change(metadata, result)`` for each step's result, ``last(metadata)`` for its end."""

    def begin() -> Step:
        step = start()
        tally = Tally()

        def changed(now: float, given: Any) -> Any:
            def decide(result: Any) -> Any:
                if isinstance(result, ScheduleDone):
                    if last is None:
                        return result  # pyright: ignore[reportUnknownVariableType]  # of any output
                    return last(tally.step(now, given, cast("Any", result).output, 0.0))
                output, delay = result
                return change(tally.step(now, given, output, delay), result)

            return then(step(now, given), decide)

        return changed

    return begin


def stop_unless(predicate: Callable[[ScheduleMetadata[Any, Any]], Any]) -> Callable[..., Any]:
    """A change for ``after``: the result while ``predicate(metadata)`` says yes, else the end."""

    def change(m: ScheduleMetadata, result: Any) -> Any:
        return then(predicate(m), lambda yes: result if yes else ScheduleDone(m.output))

    return change


def delays(delay: Callable[[int], float]) -> Start:
    """For ever, with the delay of each attempt, from 0, for the output too."""

    def begin() -> Step:
        attempt = -1

        def step(_now: float, _input: object) -> tuple[float, float]:
            nonlocal attempt
            attempt += 1
            seconds = delay(attempt)
            return seconds, seconds

        return step

    return begin


def counting(seconds: float) -> Start:
    """For ever, with one delay; counts from 0."""

    def begin() -> Step:
        count = -1

        def step(_now: float, _input: object) -> tuple[int, float]:
            nonlocal count
            count += 1
            return count, seconds

        return step

    return begin


def fibonacci(first: float) -> Start:
    """For ever, each delay the sum of the two before it."""

    def begin() -> Step:
        pair = (first, 0.0)

        def step(_now: float, _input: object) -> tuple[float, float]:
            nonlocal pair
            now, before = pair
            pair = (now + before, now)
            return now, now

        return step

    return begin


def once(seconds: float) -> Start:
    """One repetition."""

    def begin() -> Step:
        left = iter([(seconds, seconds)])
        return lambda _now, _input: next(left, ScheduleDone(0.0))

    return begin


def checked(start: Start) -> Start:
    """A user's own, whose delays may be any Duration."""

    def check(result: Any) -> Any:
        if isinstance(result, ScheduleDone):
            return result  # pyright: ignore[reportUnknownVariableType]  # of any output
        output, delay = result
        return output, checked_seconds(delay, "a delay")

    def begin() -> Step:
        step = start()
        return lambda now, given: then(step(now, given), check)

    return begin


def in_the_run_loop(start: Start) -> Start:
    """The same, as effects: a schedule of many is then no deep call of Python's. Begun at the first
    step.
    """

    def begin() -> Step:
        begun: list[Step] = []

        def step(now: float, given: Any) -> Effect[Any, Any]:
            def run() -> Effect[Any, Any]:
                if not begun:
                    begun.append(start())
                return _as_effect(begun[0](now, given))

            return Effect.suspend(run)

        return step

    return begin


# ---------------------------------------------------------------------------- several


def one_after_the_other(first: Start, second: Start) -> Start:
    """The end of the first, whose output is dropped, is the first step of the second."""

    def begin() -> Step:
        current = first()
        over = False

        def step(now: float, given: Any) -> Any:
            return current(now, given) if over else then(current(now, given), go_on(now, given))

        def go_on(now: float, given: Any) -> Callable[[Any], Any]:
            def decide(result: Any) -> Any:
                nonlocal current, over
                if not isinstance(result, ScheduleDone):
                    return result
                current, over = second(), True
                return current(now, given)

            return decide

        return step

    return begin


def together(
    starts: tuple[Start, ...], choose: Callable[[list[float | None]], float | None]
) -> Start:
    """All are asked at each step, also those that are over; ``choose`` gets the delay of each,
    None for over, and gives the delay of them all, None for over.
    """

    def begin() -> Step:
        steps = [start() for start in starts]
        return lambda now, given: _Poll(steps, choose, now, given).go_on()

    return begin


@final
class _Poll:
    """One step of several schedules. An object: closures that call each other would be a cycle for
    the collector at each step.
    """

    __slots__ = ("choose", "delays", "given", "now", "steps")

    def __init__(
        self,
        steps: list[Step],
        choose: Callable[[list[float | None]], float | None],
        now: float,
        given: Any,
    ) -> None:
        self.steps = steps
        self.choose = choose
        self.now = now
        self.given = given
        self.delays: list[float | None] = []

    def go_on(self) -> Any:
        while len(self.delays) < len(self.steps):
            result = self.steps[len(self.delays)](self.now, self.given)
            if _is_effect(result):
                return result.flat_map(lambda value: _as_effect(self.collect(value)))
            self.note(result)
        delay = self.choose(self.delays)
        return ScheduleDone(0.0) if delay is None else (delay, delay)

    def collect(self, result: Any) -> Any:
        self.note(result)
        return self.go_on()

    def note(self, result: Any) -> None:
        self.delays.append(None if isinstance(result, ScheduleDone) else result[1])


def longest(delays: list[float | None]) -> float | None:
    """For ``together``: the longest delay, and over as soon as one of them is."""
    going_on = [d for d in delays if d is not None]
    return max(going_on) if len(going_on) == len(delays) else None


def shortest(delays: list[float | None]) -> float | None:
    """For ``together``: the shortest delay, and over when all of them are."""
    return min((d for d in delays if d is not None), default=None)
