"""A runtime on virtual time, and processes in a directory of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Protocol

import pytest

import fibers as fb
from fibers.testing import TestClock
from tests.streamengine.engine.kit import Answer, unhandled_failures
from tests.streamengine.history.backends import LASTING_KINDS, LastingKind, postgres_sockets

from .backends import Backend
from .backends import backend as make_backend
from .kit import Process, make_process


class MakeProcess(Protocol):
    """What the fixture `process` is."""

    async def __call__(self, *answers: Answer, **options: Any) -> Process: ...


@pytest.fixture
def clock() -> TestClock:
    """Time that only moves when the test moves it."""
    return TestClock()


@pytest.fixture
async def rt(clock: TestClock) -> AsyncIterator[fb.Runtime]:
    """A runtime on the virtual clock, disposed after the test."""
    runtime = fb.Runtime(clock=clock)
    await runtime.run(clock.adjust(0))
    yield runtime
    await runtime.dispose()


@pytest.fixture
async def process(rt: fb.Runtime, clock: TestClock, tmp_path: Path) -> AsyncIterator[MakeProcess]:
    """Starts a process over the state directory of the test; it is over at the latest with it."""
    begun: list[Process] = []

    async def make(
        *answers: Answer, unstarted: bool = False, failing_reads: bool = False, **options: Any
    ) -> Process:
        made = make_process(rt, clock, tmp_path, *answers, **options)
        begun.append(made)
        if failing_reads:
            made.desk.history.fail("read")
        if made.retries is not None:
            await rt.run(made.retries.start(made.scope))
        if not unstarted:
            await rt.run(made.turns.start(made.scope))
        return made

    yield make
    for made in begun:
        made.store.bury()
        await made.crash()


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The socket directory of a PostgreSQL server; the test is skipped where there is none."""
    yield from postgres_sockets()


@pytest.fixture(params=LASTING_KINDS)
def kind(request: pytest.FixtureRequest) -> LastingKind:
    """Each kind of place that records can be kept in."""
    kind: LastingKind = request.param
    return kind


@pytest.fixture
async def backend(
    request: pytest.FixtureRequest,
    kind: LastingKind,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Backend]:
    """An empty place of that kind."""
    sockets = request.getfixturevalue("postgres") if kind == "postgresql" else None
    async with make_backend(kind, tmp_path, monkeypatch, sockets) as place:
        yield place


@pytest.fixture(autouse=True)
def nothing_unhandled() -> Iterator[None]:
    """No test of the turns leaves a failure that nobody handles."""
    with unhandled_failures() as seen:
        yield
    assert seen == []
