"""Probes VA: what a shutdown says and survives: its listeners, its steps, a dispose that fails."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

import fibers as fb
from fibers import Effect, Layer, Tag
from fibers.app import AppScope, Shutdown
from fibers.app.shutdown import dispose_bounded
from tests.probes.kit_f import Boom, new_gate, wait_for

if TYPE_CHECKING:
    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle

ATag = Tag[str]("a")


def layer_released_by(release: Effect[None]) -> Layer[str]:
    """A layer whose release is this effect."""
    return Layer.scoped(ATag, fb.acquire_release(Effect.succeed("a"), lambda _, __: release))


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The warnings of the app's logger."""
    return [
        record.getMessage()
        for record in caplog.records
        if record.name == "fibers.app" and record.levelno == logging.WARNING
    ]


def test_who_listens_hears_of_the_begin_once() -> None:
    """However often it begins."""
    log = list[str]()
    shutdown = Shutdown(AppScope(), [])
    shutdown.on_begin(lambda: log.append("first"))
    shutdown.on_begin(lambda: log.append("second"))

    shutdown.begin()
    shutdown.begin()

    assert log == ["first", "second"]


def test_who_listens_late_is_told_at_once() -> None:
    """It has begun, and will not begin again."""
    log = list[str]()
    shutdown = Shutdown(AppScope(), [])
    shutdown.begin()

    shutdown.on_begin(lambda: log.append("late"))

    assert log == ["late"]


def test_a_listener_that_raises_keeps_it_from_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """The next one is told, and the error is in the log."""
    log = list[str]()
    shutdown = Shutdown(AppScope(), [])

    def broken() -> None:
        raise Boom("broken listener")

    shutdown.on_begin(broken)
    shutdown.on_begin(lambda: log.append("next"))
    shutdown.begin()

    assert log == ["next"]
    assert shutdown.is_shutting_down
    assert "broken listener" in caplog.text


@pytest.mark.spec("VA14")
async def test_a_step_that_fails_is_logged_with_its_time(caplog: pytest.LogCaptureFixture) -> None:
    """And the next one runs."""
    log = list[str]()

    async def fails() -> None:
        raise Boom("no disk")

    async def runs() -> None:
        log.append("flushed")

    shutdown = Shutdown(AppScope(), [("close", fails), ("flush", runs)])
    await shutdown.dispose()

    (warning,) = warnings_in(caplog)
    assert warning.startswith("[shutdown] close failed {ms: ")
    assert "no disk" in warning
    assert log == ["flushed"]


async def test_a_dispose_that_fails_is_logged_and_not_raised(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was in time, and there is nobody to handle it."""
    runtime = fb.Runtime(layer_released_by(Effect.die(Boom("no release"))))
    await runtime.run(ATag)

    in_time = await dispose_bounded(runtime)

    (warning,) = warnings_in(caplog)
    assert in_time
    assert warning.startswith("[shutdown] Runtime dispose failed\n")
    assert "no release" in warning


async def test_a_dispose_that_takes_too_long_is_left_and_goes_on(
    clock: TestClock, rt: fb.Runtime, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning, and the release ends when it can."""
    log, gate = list[str](), new_gate()
    released = wait_for(gate).map(lambda _: log.append("released"))
    runtime = fb.Runtime(layer_released_by(released))
    await runtime.run(ATag)

    disposing = rt.run_fork(Effect.promise(lambda: dispose_bounded(runtime, 3)))
    await rt.run(clock.adjust(3))
    in_time = await disposing
    before = list(log)
    gate.set_result(1)
    await runtime.dispose()
    await rt.run(clock.adjust(0))

    assert not in_time
    assert warnings_in(caplog) == ["[shutdown] Runtime dispose timed out after 3 s; it continues"]
    assert (before, log) == ([], ["released"])
