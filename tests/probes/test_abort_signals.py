"""AbortController and AbortSignal: who listens, when, and what a listener can break."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import fibers as fb
from fibers import AbortController, AbortError, Effect
from tests.probes.kit_f import Boom, interrupted, turns

if TYPE_CHECKING:
    import pytest


async def test_wait_gives_the_reason_of_the_abort() -> None:
    controller = AbortController()
    fiber = fb.run_fork(controller.signal.wait())
    before = fiber.poll()

    controller.abort("user")

    assert before is None
    assert await fiber == "user"


async def test_wait_for_what_is_aborted_gives_its_reason_at_once() -> None:
    controller = AbortController()
    controller.abort("user")

    assert await controller.signal.wait() == "user"


async def test_an_interrupted_wait_listens_no_longer() -> None:
    """Nothing of it is kept by a signal that may live for long."""
    controller = AbortController()
    fiber = fb.run_fork(controller.signal.wait())

    fiber.interrupt_unsafe(by=7)
    controller.abort("late")
    await turns()

    assert fiber.poll() == interrupted(by=7)


def test_a_listener_hears_the_reason_once() -> None:
    """The first abort is the only one."""
    controller, heard = AbortController(), list[object]()
    controller.signal.add_listener(heard.append)

    controller.abort("first")
    controller.abort("second")

    assert heard == ["first"]
    assert controller.signal.reason == "first"


def test_a_listener_that_comes_late_is_told_at_once() -> None:
    """And to remove it changes nothing."""
    controller, heard = AbortController(), list[object]()
    controller.abort("user")

    remove = controller.signal.add_listener(heard.append)
    remove()

    assert heard == ["user"]


def test_a_listener_that_was_removed_hears_nothing() -> None:
    controller, heard = AbortController(), list[object]()
    remove = controller.signal.add_listener(heard.append)

    remove()
    remove()
    controller.abort()

    assert heard == []


def test_a_listener_that_raises_keeps_the_abort_from_nobody(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its error is logged."""
    controller, heard = AbortController(), list[object]()

    def broken(_: object) -> None:
        raise Boom("broken listener")

    controller.signal.add_listener(broken)
    controller.signal.add_listener(heard.append)
    with caplog.at_level(logging.ERROR, logger="fibers"):
        controller.abort("user")

    assert heard == ["user"]
    assert "broken listener" in caplog.text


def test_without_a_reason_it_is_an_abort_error() -> None:
    """Something that can be raised."""
    controller = AbortController()
    before = controller.signal.reason

    controller.abort()

    assert before is None
    assert isinstance(controller.signal.reason, AbortError)


async def test_a_runtimes_fork_obeys_a_signal_too() -> None:
    controller, runtime = AbortController(), fb.Runtime()
    fiber = runtime.run_fork(Effect.never(), signal=controller.signal)

    controller.abort("user")
    exit = await fiber.exit()
    await runtime.dispose()

    assert fiber.cancelled()
    assert "user" in str(exit)
