"""An engine with the built-in tools, and a turn for its answers to work in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, final

import pytest

import fibers as fb
from fibers.testing import TestClock
from tests.streamengine.engine.kit import FINISH, Desk, calls, make_desk, says, text
from turns.tools import FilesTool, ShellTool
from turns.turn import Turn

from ..holds.kit import Bench


@final
class Toolbench:
    """A bench, and answers that call one tool with given inputs, one after the other."""

    def __init__(self, rt: fb.Runtime, clock: Any, directory: Path) -> None:
        self.bench = Bench(rt, clock, directory)
        self.shell = ShellTool(self.bench.turns, permission="granted")
        self._asking = ShellTool(self.bench.turns)

    def desk(self, tool: str, *inputs: dict[str, Any], asking: bool = False) -> Desk:
        answers = [calls(tool, **{tool: given}) for given in inputs]
        return make_desk(
            self.bench.rt,
            self.bench.clock,
            self.bench.directory / "history",
            *answers,
            says(text("Done."), FINISH),
            scope=self.bench.scope,
            tools=[FilesTool(self.bench.turns), self._asking if asking else self.shell],
        )

    async def outputs(self, turn: Turn | None, tool: str, *inputs: dict[str, Any]) -> list[Any]:
        """What the tool gives for each input, in an answer that belongs to ``turn``."""
        d = self.desk(tool, *inputs)
        correlation = None if turn is None else {"turnId": turn.turn_id}
        handle = await d.start(correlation=correlation)
        completion = await self.bench.run(handle.completion)
        assert completion.status == "completed"
        return [part["output"] for part in d.parts() if part["type"] == "dynamic-tool"]


@pytest.fixture
async def tools(tmp_path: Path) -> AsyncIterator[Toolbench]:
    """On virtual time."""
    clock = TestClock()
    runtime = fb.Runtime(clock=clock)
    await runtime.run(clock.adjust(0))
    made = Toolbench(runtime, clock, tmp_path)
    yield made
    await runtime.run(made.bench.scope.close())
    await runtime.dispose()


@pytest.fixture
async def live_tools(tmp_path: Path) -> AsyncIterator[Toolbench]:
    """On the machine's time, which is what real commands take."""
    runtime = fb.Runtime()
    made = Toolbench(runtime, await runtime.run(fb.current_clock()), tmp_path)
    yield made
    await runtime.run(made.bench.scope.close())
    await runtime.dispose()


async def file_at(path: Path) -> str:
    """What a command put there at one stroke, once it did."""
    while True:
        try:
            return await asyncio.to_thread(path.read_text)
        except FileNotFoundError:
            await asyncio.sleep(0.005)  # another process writes it; nobody tells
