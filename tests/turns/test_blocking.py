"""A tool that blocks the loop: named while it does, and its turn goes on afterwards."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from fibers import AbortSignal
from fibers.app import AppScope, Blockage, Watchdog, occupy
from streamengine import Tool
from tests.streamengine.engine.kit import FINISH, WHOLE, Hand, calls, says, text
from turns.loop import Background

from .kit import MakeHouse

pytestmark = pytest.mark.lifecycle

THRESHOLD_SECONDS = 0.05
WAIT_SECONDS = 20.0


@pytest.mark.parametrize("where", ["in its stream", "in the background"])
async def test_a_tool_that_blocks_the_loop_is_named_with_the_line(
    house: MakeHouse, where: str
) -> None:
    """While it blocks: it goes on only when it has been named."""
    told: list[Blockage] = []
    named = threading.Event()

    def hear(blockage: Blockage) -> None:
        told.append(blockage)
        named.set()

    async def block(_given: dict[str, Any], _signal: AbortSignal) -> object:
        assert named.wait(WAIT_SECONDS), "nobody has named it"
        return "done"

    hand = Hand("blocker", block)
    tool: Tool = Background(hand) if where == "in the background" else hand
    h = house(calls("blocker"), says(text("One moment."), FINISH), WHOLE, tools=lambda _: [tool])
    assert isinstance(h.scope, AppScope)
    await occupy(h.scope, Watchdog(THRESHOLD_SECONDS, on_block=hear))

    handle = await h.create()

    assert (await h.record(handle)).status == "completed"
    line = block.__code__.co_firstlineno + 1
    assert any(f"test_blocking.py:{line} in" in place for place in told[0].places)
    expected = "background blocker-1" if where == "in the background" else "tool"
    assert expected in told[0].who
