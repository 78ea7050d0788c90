"""``fiberscope chat``: one message and its answer.

Where a server holds the state directory the message goes to it (remote.py); else this process is a
root of its own, with the same engine, the same files and the same way to end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, final

import structlog
from returns.result import Failure

import fibers as fb
from fibers import Effect, Exit, Scope
from fibers.app.startup import STEP_TIMEOUT_SECONDS
from streamengine import Event, HistoryError, Provider, SendError, StreamRequest
from streamengine.history import StateDirLocked
from streamengine.model import ErrorEvent, StreamAbortEvent, StreamDeltaEvent, StreamEndEvent
from streamengine.redact import Secret

from . import discovery
from .config import Limits
from .endings import INTERRUPTED, by_ctrl_c, told
from .errors import FAILED, HostError
from .remote import ask_server
from .root import Root, open_root
from .state import prepare
from .terminal import Terminal, give_up_output

_log = structlog.get_logger("turns.host.chat")


@dataclass(frozen=True, slots=True)
class ChatConfig:
    """What ``chat`` is told."""

    state: Path
    workspace: str
    text: str
    limits: Limits
    step_seconds: float = STEP_TIMEOUT_SECONDS
    """For each step of the start of a root of its own."""
    database: Secret | None = None
    """What a root of its own keeps conversations in, see ServeConfig."""


@fb.effect(raises=(HostError, HistoryError, SendError))
async def chat(config: ChatConfig, make_provider: Callable[[], Provider]) -> int:
    """Send the message, write the answer as it comes; gives the exit code."""
    state = prepare(config.state)
    outer = Scope(name="chat")
    try:
        return await outer.use(_chat_as_root(state, config, make_provider))
    except StateDirLocked as locked:
        note = None if locked.holder is None else discovery.find(state, locked.holder.pid)
        if note is None:
            raise  # not by a server, or by one that is only starting
        return await ask_server(state, note, config.workspace, config.text)


@fb.effect(raises=(HostError, HistoryError, SendError))
async def _chat_as_root(
    state: Path, config: ChatConfig, make_provider: Callable[[], Provider]
) -> int:
    root = await open_root(
        state,
        make_provider,
        config.limits,
        step_seconds=config.step_seconds,
        database=config.database,
    )
    terminal = Terminal()
    answer = Answering(root, config.workspace, terminal)
    return await answer.run(config.text).on_exit(answer.clean_up)


@final
class Answering:
    """One answer in a root of its own."""

    def __init__(self, root: Root, workspace_id: str, terminal: Terminal) -> None:
        self._root = root
        self._workspace_id = workspace_id
        self._terminal = terminal
        self._events: asyncio.Queue[Event] = asyncio.Queue()

    @fb.effect(raises=(HostError, SendError))
    async def run(self, text: str) -> int:
        self._root.engine.events.subscribe(self._events.put_nowait)
        handle = await self._root.engine.start_stream(self._workspace_id, StreamRequest(text=text))
        try:
            code = await self._write_answer(handle.message_id)
            await handle.completion
            return code
        except BrokenPipeError:
            give_up_output()
            await self._stop_as_user()
            return FAILED

    async def _write_answer(self, message_id: str) -> int:
        while True:
            event = await self._events.get()
            if event.message_id != message_id:
                continue
            if isinstance(event, StreamDeltaEvent):
                await self._terminal.write(event.delta)
            elif isinstance(event, StreamEndEvent | StreamAbortEvent | ErrorEvent):
                await self._terminal.end_line()
                return told(event)

    def clean_up(self, exit_: Exit[int, Any]) -> Effect[None]:
        """What has to be done at the end, each step whatever became of the others (VA11)."""
        interrupted = by_ctrl_c(exit_)
        last_words = INTERRUPTED if interrupted else None
        shutdown = self._root.shutdown(
            [("terminal.leave", lambda: self._terminal.leave(last_words))]
        )

        @fb.effect
        async def steps() -> None:
            if interrupted:
                # Before the scope's close, which would be the first to end it, as "system".
                await self._stop_as_user()
            await shutdown.dispose()

        return steps()

    async def _stop_as_user(self) -> None:
        stop = self._root.engine.stop_stream(self._workspace_id, reason="user")
        exit_ = await stop.exit()
        if isinstance(exit_, Failure):
            _log.warning("the stop failed", error=str(exit_.failure().squash()))
