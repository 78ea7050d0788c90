"""What the models of turns stand on: a loop that steps run in, virtual time, a folder."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Final, TypeVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine
from structlog.testing import capture_logs

import fibers as fb
from fibers.testing import TestClock

T = TypeVar("T")

WORKSPACES: Final = ("w1", "w2")

workspaces = st.sampled_from(WORKSPACES)


class LoopMachine(RuleBasedStateMachine):
    """A state machine whose rules are plain calls into one loop. ``close`` gives all of it back."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.directory = tempfile.TemporaryDirectory()
        self.state = Path(self.directory.name)
        self.logs = capture_logs()
        self.logs.__enter__()
        self.clock = TestClock()
        self.rt = fb.Runtime(clock=self.clock)
        self.run(self.rt.run(self.clock.adjust(0)))

    def run(self, work: Awaitable[T]) -> T:
        async def whole() -> T:
            return await work

        coroutine: Coroutine[Any, Any, T] = whole()
        return self.loop.run(coroutine)

    def inside(self, f: Callable[[], T]) -> T:
        """A plain call, in the loop."""

        async def call() -> T:
            return f()

        return self.run(call())

    def close(self) -> None:
        self.run(self.rt.dispose())
        self.loop.close()
        self.logs.__exit__(None, None, None)
        self.directory.cleanup()
