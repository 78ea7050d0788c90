"""The pytest plugin. It changes nothing for tests that don't ask for it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from typing import TYPE_CHECKING

import pytest

from fibers.testing import exploring
from fibers.testing.clock import TestClock
from fibers.testing.leaks import LeakCheck
from fibers.testing.loop import TestLoop

if TYPE_CHECKING:
    import asyncio


def pytest_addoption(parser: pytest.Parser) -> None:
    """``--fiber-seed N`` and ``--fiber-explore N``."""
    group = parser.getgroup("fibers")
    group.addoption(
        "--fiber-seed",
        type=int,
        default=None,
        metavar="N",
        help="run ready fibers and tasks in the order of seed N: the one of `explore` that failed, "
        "and every asyncio test of pytest-asyncio",
    )
    group.addoption(
        "--fiber-explore",
        type=_positive,
        default=None,
        metavar="N",
        help="try N orders in every `explore`, whatever the tests say",
    )


def _positive(text: str) -> int:
    count = int(text)
    if count < 1:
        raise ValueError(text)
    return count


def pytest_configure(config: pytest.Config) -> None:
    """Pass the options on; only with a seed are the loops of pytest-asyncio ours."""
    seed: int | None = config.getoption("--fiber-seed")
    exploring.force(seed=seed, count=config.getoption("--fiber-explore"))
    if seed is not None:
        config.pluginmanager.register(_Shuffled(seed), "fibers-shuffled")


def pytest_unconfigure() -> None:
    """Forget the options: a process may run pytest more than once."""
    exploring.force(seed=None, count=None)


class _Shuffled:
    """Lets the tests of pytest-asyncio run in the order of one seed, in real time."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @pytest.hookimpl(optionalhook=True)
    def pytest_asyncio_loop_factories(
        self,
    ) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
        return {f"seed-{self._seed}": lambda: TestLoop(seed=self._seed, jump=False)}


@pytest.fixture
def test_clock() -> TestClock:
    """A TestClock at 0 s."""
    return TestClock()


@pytest.fixture
def no_leaks() -> LeakCheck:
    """The test fails if it leaves a live fiber, an open scope, a task or a thread."""
    return LeakCheck()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Look for leaks right after the test: later, its loop ends all that is left."""
    result = yield
    check = getattr(item, "funcargs", {}).get("no_leaks")
    if isinstance(check, LeakCheck):
        check.check()
    return result
