"""RetryManager: when a failed answer is tried again, and when not any more (1.10)."""

from __future__ import annotations

from typing import final

import pytest

import fibers as fb
from fibers import Deferred, Effect, Scope
from fibers.testing import TestClock
from streamengine import Completion, Event, SendError, StreamHandle
from streamengine.model import ErrorType
from streamengine.retry import NOT_RETRIED, RetryManager, RetryState


@final
class Desk:
    """A manager whose tries the test answers."""

    def __init__(self, *, enabled: bool = True) -> None:
        self.clock = TestClock()
        self.scope = Scope("parallel", name="app")
        self.told: list[Event] = []
        self.tries: list[Deferred[Completion]] = []
        self.refusal: SendError | None = None
        self.manager = RetryManager(
            "w1",
            retry=self.retry,
            tell=self.tell,
            scope=self.scope,
            clock=self.clock,
            enabled=enabled,
        )
        self.on_event: dict[str, list[str]] = {}

    def tell(self, event: Event) -> None:
        self.told.append(event)
        if event.type in self.on_event:
            self.manager.set_enabled(False)

    @fb.effect(raises=SendError)
    async def retry(self) -> StreamHandle:
        if self.refusal is not None:
            raise self.refusal
        ended: Deferred[Completion] = Deferred()
        self.tries.append(ended)
        return StreamHandle(f"a_{len(self.tries) + 1}", ended.await_())

    async def pass_time(self, seconds: float) -> None:
        await self.clock.adjust(seconds)

    async def end_try(self, completion: Completion) -> None:
        await self.tries[-1].succeed(completion)
        await self.pass_time(0)

    async def fail_try(self, error_type: ErrorType) -> None:
        failed = Completion(status="failed", error="no", error_type=error_type)
        await self.end_try(failed)

    def scheduled(self) -> Event | None:
        return self.manager.scheduled

    def said(self) -> list[str]:
        lines: list[str] = []
        for event in self.told:
            match event.type:
                case "auto-retry-scheduled":
                    lines.append(f"scheduled {event.attempt} in {event.delay_ms} ms")
                case "auto-retry-starting":
                    lines.append(f"starting {event.attempt}")
                case "auto-retry-abandoned":
                    lines.append(f"abandoned {event.reason}")
                case _:
                    raise AssertionError(event)
        self.told.clear()
        return lines


@pytest.mark.spec("E31", "BT9")
async def test_delays_double_from_one_second_to_a_minute() -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "server_error")
    for attempt, seconds in enumerate([1, 2, 4, 8, 16, 32, 60, 60, 60], 1):
        await desk.pass_time(0)
        assert desk.said() == [f"scheduled {attempt} in {seconds * 1000} ms"]
        assert desk.manager.state == RetryState(attempt, pending=True, enabled=True)
        await desk.pass_time(seconds - 0.001)
        assert len(desk.tries) == attempt - 1
        await desk.pass_time(0.001)
        assert len(desk.tries) == attempt
        assert desk.said() == [f"starting {attempt}"]
        await desk.fail_try("server_error")
    await desk.scope.close()


async def test_what_was_told_of_a_try_is_there_for_as_long_as_it_is_waited_for() -> None:
    desk = Desk()
    assert desk.scheduled() is None
    desk.manager.handle_failure("a_1", "server_error")
    assert desk.scheduled() is None  # not told yet: who listens now hears of it
    await desk.pass_time(0)
    assert desk.scheduled() is desk.told[-1]
    await desk.pass_time(1)
    assert desk.scheduled() is None
    await desk.fail_try("network")
    assert desk.scheduled() is desk.told[-1]
    desk.manager.handle_failure("a_3", "network")
    assert desk.scheduled() is None
    await desk.pass_time(0)
    desk.manager.call_off("stopped")
    assert desk.scheduled() is None
    await desk.scope.close()


async def test_after_a_whole_answer_the_delays_begin_anew() -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(1)
    await desk.fail_try("network")
    await desk.pass_time(2)
    await desk.end_try(Completion(status="completed"))
    assert desk.manager.state == RetryState(0, pending=False, enabled=True)
    desk.said()
    desk.manager.handle_failure("a_9", "network")
    await desk.pass_time(0)
    assert desk.said() == ["scheduled 1 in 1000 ms"]
    await desk.scope.close()


async def test_a_failure_from_elsewhere_goes_on_where_the_series_was() -> None:
    """The timer that was pending is gone with its fiber: it never fires (E31)."""
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(0.9)
    desk.manager.handle_failure("a_2", "network")
    await desk.pass_time(0)
    assert desk.said() == ["scheduled 1 in 1000 ms", "scheduled 2 in 2000 ms"]
    await desk.pass_time(1.9)
    assert desk.tries == []
    await desk.pass_time(0.1)
    assert desk.said() == ["starting 2"]
    assert len(desk.tries) == 1
    await desk.scope.close()


@pytest.mark.parametrize("error_type", sorted(NOT_RETRIED))
async def test_what_another_try_cant_mend_is_abandoned_at_once(error_type: str) -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(0)
    desk.said()
    desk.manager.handle_failure("a_2", error_type)
    await desk.pass_time(120)
    assert desk.said() == [f"abandoned {error_type}"]
    assert desk.tries == []
    assert desk.manager.state == RetryState(0, pending=False, enabled=True)
    await desk.scope.close()


@pytest.mark.parametrize("error_type", ["unknown", "runtime_start_failed", "invented_later"])
async def test_what_nobody_knows_is_tried_again(error_type: str) -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", error_type)
    await desk.pass_time(1)
    assert desk.said() == ["scheduled 1 in 1000 ms", "starting 1"]
    await desk.scope.close()


async def test_a_try_that_fails_for_good_ends_the_series() -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(1)
    desk.said()
    await desk.fail_try("authentication")
    await desk.pass_time(120)
    assert desk.said() == ["abandoned authentication"]
    assert len(desk.tries) == 1
    await desk.scope.close()


async def test_a_try_that_cant_begin_ends_the_series_with_its_message() -> None:
    desk = Desk()
    desk.refusal = SendError("history", "the disk is full")
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(1)
    assert desk.said() == [
        "scheduled 1 in 1000 ms",
        "starting 1",
        "abandoned history: the disk is full",
    ]
    assert desk.manager.state == RetryState(0, pending=False, enabled=True)
    await desk.scope.close()


@pytest.mark.spec("E30")
@pytest.mark.parametrize("reason", ["user", "startup", "system"])
async def test_a_try_that_was_stopped_schedules_nothing(reason: str) -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(1)
    desk.said()
    await desk.end_try(Completion.model_validate({"status": "aborted", "abortReason": reason}))
    await desk.pass_time(120)
    assert desk.said() == ["abandoned aborted"]
    assert len(desk.tries) == 1
    await desk.scope.close()


async def test_off_calls_off_what_is_pending_and_says_so_once() -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(0.5)
    desk.said()
    desk.manager.set_enabled(False)
    desk.manager.set_enabled(False)
    desk.manager.handle_failure("a_2", "network")
    await desk.pass_time(120)
    assert desk.said() == ["abandoned disabled_by_user"]
    assert desk.tries == []
    desk.manager.set_enabled(True)
    desk.manager.handle_failure("a_3", "network")
    await desk.pass_time(0)
    assert desk.said() == ["scheduled 1 in 1000 ms"]
    await desk.scope.close()


async def test_off_says_nothing_where_nothing_was_tried() -> None:
    desk = Desk(enabled=False)
    desk.manager.set_enabled(False)
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(120)
    assert desk.said() == []
    await desk.scope.close()


@pytest.mark.parametrize("event", ["auto-retry-scheduled", "auto-retry-starting"])
async def test_an_observer_of_the_events_may_turn_the_retries_off(event: str) -> None:
    """Asked again after the event went out: what it called off doesn't run."""
    desk = Desk()
    desk.on_event[event] = []
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(120)
    assert desk.tries == []
    assert desk.said()[-1] == "abandoned disabled_by_user"
    assert desk.manager.state == RetryState(0, pending=False, enabled=False)
    await desk.scope.close()


async def test_the_close_of_the_scope_ends_a_pending_series() -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(0.5)
    await desk.scope.close()
    await desk.pass_time(120)
    assert desk.tries == []


async def test_nothing_is_scheduled_in_a_closed_scope() -> None:
    desk = Desk()
    await desk.scope.close()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(120)
    assert desk.said() == []
    assert desk.manager.state == RetryState(0, pending=False, enabled=True)


async def test_the_end_of_its_own_try_is_known_as_its_own() -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    assert not desk.manager.is_own("a_1")
    await desk.pass_time(1)
    assert desk.manager.is_own("a_2")
    assert not desk.manager.is_own("a_1")
    await desk.end_try(Completion(status="completed"))
    assert not desk.manager.is_own("a_2")
    await desk.scope.close()


def test_deep_series_stay_flat() -> None:
    """A provider that is down for a day: the series is as deep as after the first try."""

    async def hour() -> int:
        desk = Desk()
        desk.manager.handle_failure("a_1", "network")
        for _ in range(1500):
            await desk.pass_time(60)
            await desk.fail_try("network")
        await desk.scope.close()
        return len(desk.tries)

    assert fb.run(Effect.promise(hour)) == 1500


async def test_a_retry_that_breaks_says_so_and_the_next_failure_begins_anew() -> None:
    desk = Desk()
    desk.manager.handle_failure("a_1", "network")
    await desk.pass_time(1)
    desk.said()
    await desk.tries[-1].die(RuntimeError("a bug"))
    await desk.pass_time(0)
    assert desk.said() == ["abandoned the retry broke: RuntimeError"]
    desk.manager.handle_failure("a_3", "network")
    await desk.pass_time(0)
    assert desk.said() == ["scheduled 1 in 1000 ms"]
    await desk.scope.close()
