"""Probes PD18: what makes no sense is refused at the call, with the way out."""

from __future__ import annotations

import math
import signal
from typing import TYPE_CHECKING, Any

import pytest

import fibers as fb
from fibers import Effect, Scope
from tests.probes.kit_f import cause_of

if TYPE_CHECKING:
    from collections.abc import Callable

ANYTHING: Any = "anything"


@pytest.mark.spec("PD18")
def test_a_mode_that_is_none_is_refused() -> None:
    """Of all_."""
    with pytest.raises(ValueError, match='mode must be "fail" or "result"'):
        fb.all_([Effect.succeed(1)], mode=ANYTHING)


@pytest.mark.spec("PD18")
def test_a_strategy_that_is_none_is_refused() -> None:
    """Of a scope."""
    with pytest.raises(ValueError, match='strategy must be "sequential" or "parallel"'):
        Scope(ANYTHING)


@pytest.mark.spec("PD18")
@pytest.mark.parametrize("given", ["inherited", "yes", None, 1])
@pytest.mark.parametrize("way", ["fork_child", "fork_detach", "fork_in", "fork_scoped", "fork"])
async def test_a_mask_that_is_none_is_refused(way: str, given: Any) -> None:
    """A misspelt "inherit" would mask the whole fiber."""
    scope = Scope()
    work = Effect.succeed(1)
    forks: dict[str, Callable[[], object]] = {
        "fork_child": lambda: work.fork_child(uninterruptible=given),
        "fork_detach": lambda: work.fork_detach(uninterruptible=given),
        "fork_in": lambda: work.fork_in(scope, uninterruptible=given),
        "fork_scoped": lambda: work.fork_scoped(uninterruptible=given),
        "fork": lambda: scope.fork(work, uninterruptible=given),
    }

    with pytest.raises(ValueError, match='uninterruptible must be True, False or "inherit", not'):
        forks[way]()

    assert scope.state == "empty"


@pytest.mark.spec("PD18")
async def test_a_sleep_of_no_number_is_refused() -> None:
    """NaN is neither over nor to come: a timer would be lost."""
    exit = await fb.sleep(math.nan).exit()

    (defect,) = cause_of(exit).defects
    assert isinstance(defect, ValueError)


@pytest.mark.parametrize("raises", [5, "ValueError", KeyboardInterrupt, (ValueError, 5)])
def test_raises_takes_exception_classes_only(raises: Any) -> None:
    """A base exception is never an expected failure."""
    with pytest.raises(TypeError, match="raises= takes Exception classes"):
        fb.effect(raises=raises)


def test_what_cannot_be_called_cannot_be_decorated() -> None:
    """A coroutine instead of its function, say."""
    with pytest.raises(TypeError, match="@effect decorates a coroutine function"):
        fb.effect(ANYTHING)


async def plain() -> int:
    return 5


@pytest.mark.parametrize(
    "given",
    [plain, lambda: 5],
    ids=["a coroutine", "a plain value"],
)
async def test_a_callback_has_to_give_an_effect(given: Callable[[], Any]) -> None:
    """The message says what came instead; a coroutine is closed, not "never awaited"."""
    exit: fb.Exit[Any, Any] = await Effect.succeed(1).flat_map(lambda _: given()).exit()

    (defect,) = cause_of(exit).defects
    assert isinstance(defect, TypeError)
    assert "expected an Effect or an Exit" in str(defect)


async def test_from_exit_takes_an_exit() -> None:
    """What is none is a defect that names its type."""
    exit: fb.Exit[Any, Any] = await Effect.from_exit(ANYTHING).exit()

    (defect,) = cause_of(exit).defects
    assert isinstance(defect, TypeError)
    assert "got str" in str(defect)


async def test_run_inside_a_loop_says_to_await_instead() -> None:
    """A loop inside a loop would hold the outer one."""
    with pytest.raises(RuntimeError, match="await the effect instead"):
        fb.run(Effect.succeed(1))


async def test_run_main_inside_a_loop_says_to_await_instead() -> None:
    """Before it takes the process's signals."""
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    with pytest.raises(RuntimeError, match=r"run_main\(\) inside a running event loop: await the"):
        fb.run_main(Effect.succeed(1))

    assert handlers == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]


def test_an_effect_awaited_without_a_loop_names_the_runner() -> None:
    """As by a coroutine that somebody steps by hand."""

    async def main() -> int:
        return await Effect.succeed(1)

    coro = main()
    with pytest.raises(RuntimeError, match="no event loop runs"):
        coro.send(None)


def test_a_fork_without_a_loop_names_the_runner() -> None:
    """Nobody would run it."""
    with pytest.raises(RuntimeError, match="no running event loop"):
        fb.run_fork(Effect.succeed(1))
