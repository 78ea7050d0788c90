"""`python -m tools.turn_tree`: a turn with a tool and two subturns, stopped softly, then hard.

Each run is printed as a tree with times: what every turn did and why it ended. The words are the
local model's. It calls no tools, so the first step of the turn, with its three calls, is given; so
is when the stop comes.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, Literal, final

import rich
from rich.text import Text
from rich.tree import Tree

import fibers as fb
from fibers import AbortSignal
from streamengine import Provider, StreamRequest
from streamengine.model import Finish, ProviderPart, ToolCall
from turns import TurnRecord
from turns.events import (
    InterruptReceivedEvent,
    LlmRequestEvent,
    LlmResponseEvent,
    SubturnOrphanEvent,
    SubturnResultDeliveredEvent,
    ToolEndEvent,
    ToolStartEvent,
    TurnEvent,
)
from turns.host import logs
from turns.host.board import Board, TurnNode
from turns.host.config import Limits
from turns.host.models import provider_for
from turns.host.root import Root, open_root

WORKSPACE: Final = "tree"
PROMPT: Final = "Write a note about rivers, and have two helpers look at lakes and seas."
LAKES: Final = "Say three sentences about lakes."
SEAS: Final = "Say three sentences about seas."

Stop = Literal["soft", "hard"]

_CALLS: Final = (
    ToolCall(
        tool_call_id="call_note",
        tool_name="files",
        input={"action": "write", "path": "rivers.txt", "text": "Rivers flow."},
    ),
    ToolCall(
        tool_call_id="call_lakes",
        tool_name="subturn",
        input={"prompt": LAKES, "agent": "main", "background": True},
    ),
    ToolCall(
        tool_call_id="call_seas",
        tool_name="subturn",
        input={"prompt": SEAS, "agent": "main", "background": True, "critical": True},
    ),
)


@final
class FirstStepGiven:
    """A provider whose first answer to the prompt is the calls; all others are of another one."""

    def __init__(self, inner: Provider) -> None:
        self._inner = inner
        self.answers_wait_in_line = getattr(inner, "answers_wait_in_line", False)

    def stream(self, request: StreamRequest, signal: AbortSignal) -> AsyncIterator[Any]:
        """See Provider."""
        if request.text == PROMPT and not request.so_far:
            return _calls()
        return self._inner.stream(request, signal)

    def close(self) -> None:
        """Let go of what the other one holds."""
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()


async def _calls() -> AsyncGenerator[ProviderPart]:
    for call in _CALLS:
        yield call
    yield Finish(finish_reason="tool-calls")


@final
class Watched:
    """What is told of the turns of one root, and when."""

    def __init__(self, root: Root) -> None:
        assert root.turns is not None
        self.turns = root.turns
        self.began_ms = time.time() * 1000
        self.board = Board()
        self.told: list[TurnEvent] = []
        self.changed = asyncio.Event()
        self.turns.loop.events.subscribe(self._hear)
        self.turns.manager.observe(self._see)

    def _hear(self, event: TurnEvent) -> None:
        self.told.append(event)
        self.board.fold_event(event)
        self.changed.set()

    def _see(self, record: TurnRecord) -> None:
        self.board.fold_record(record)
        self.changed.set()

    @property
    def nodes(self) -> tuple[TurnNode, ...]:
        return self.board.nodes(WORKSPACE)

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait for something that an event or a record brings about."""
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    def is_at_work(self) -> bool:
        """Whether the tool is done, and both helpers have begun."""
        done = any(isinstance(e, ToolEndEvent) and e.tool_name == "files" for e in self.told)
        return done and sum(node.parent_id is not None for node in self.nodes) == 2

    def is_over(self) -> bool:
        return bool(self.nodes) and all(node.has_ended for node in self.nodes)

    def tree(self, title: str) -> Tree:
        """All of it, each turn with what it did and the turns below it."""
        top = Tree(Text(title, "bold"))
        places: dict[str, Tree] = {}
        for node in self.nodes:
            above = top if node.parent_id is None else places[node.parent_id]
            place = places[node.id] = above.add(Text(self._line(node)))
            for event in self.told:
                what = _what(event)
                if what is not None and what[0] == node.id:
                    place.add(
                        Text(f"{event.timestamp_ms - self.began_ms:6.0f} ms  {what[1]}", "dim")
                    )
        return top

    def _line(self, node: TurnNode) -> str:
        began_ms = (node.started_at_ms or node.created_at_ms) - self.began_ms
        ended_ms = (node.ended_at_ms or node.created_at_ms) - self.began_ms
        kind = "turn" if node.parent_id is None else "subturn"
        said = ", ".join(
            word
            for word in (
                "critical" if node.critical else "",
                node.cause or "",
                node.reason or "",
                "" if node.orphan is None else f"result kept: {node.orphan}",
            )
            if word
        )
        tail = f" ({said})" if said else ""
        return f"{began_ms:6.0f} - {ended_ms:6.0f} ms  {kind} {node.state}{tail}: {node.prompt}"


def _what(event: TurnEvent) -> tuple[str, str] | None:
    """Whose event it is, and its line; None for one that the tree shows otherwise."""
    match event:
        case LlmRequestEvent(call=call):
            return event.turn_id, f"asks the model, call {call}"
        case LlmResponseEvent(call=call, finish_reason=reason):
            return event.turn_id, f"has the answer to call {call}: {reason}"
        case ToolStartEvent(tool_name=name):
            return event.turn_id, f"{name} begins"
        case ToolEndEvent(tool_name=name, is_error=is_error):
            return event.turn_id, f"{name} {'fails' if is_error else 'is done'}"
        case InterruptReceivedEvent(kind=kind):
            return event.turn_id, f"hears of a stop: {kind}"
        case SubturnResultDeliveredEvent(child_id=child, content_length=length):
            return child, f"its result is delivered, {length} characters"
        case SubturnOrphanEvent(child_id=child, reason=reason):
            return child, f"nobody takes its result: {reason}"
        case _:
            return None


@fb.effect(raises=Exception)
async def stopped(state: Path, make_provider: Callable[[], Provider], stop: Stop) -> Watched:
    """Run the turn to its stop and the end of all below it. Gives what was told of it."""
    root = await open_root(
        state, lambda: FirstStepGiven(make_provider()), Limits(), with_turns=True
    )
    try:
        watched = Watched(root)
        manager = watched.turns.manager
        handle = await manager.create_turn(owner=WORKSPACE, workspace_id=WORKSPACE, prompt=PROMPT)
        await watched.until(watched.is_at_work)
        await manager.finish(handle.handle_id, hard=stop == "hard")
        await watched.until(watched.is_over)
        return watched
    finally:
        await root.shutdown([]).dispose()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.turn_tree", description=__doc__)
    parser.add_argument("--model", default="local", help="whose words, as for fiberscope serve")
    model: str = parser.parse_args().model
    logs.configure(logs.level_of(default="warning"))
    for stop in ("soft", "hard"):
        with tempfile.TemporaryDirectory() as state:
            watched = fb.run(fb.scoped(stopped(Path(state), lambda: provider_for(model), stop)))
        rich.print(watched.tree(f"stopped {'softly' if stop == 'soft' else 'hard'}"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
