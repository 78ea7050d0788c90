"""ToolRun: the tool calls of one step, run side by side, their results taken one by one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, final

import fibers as fb

from .model.tool_output import failure
from .tools import ToolUse

if TYPE_CHECKING:
    from .stream import Stream
    from .tools import Toolbox
    from .transcript import OpenCall

TOOL_CONCURRENCY: Final = 8


@final
class ToolRun:
    """Runs each call in a fiber of the stream, so many at a time.

    ``next`` gives them back as they end. From the abort of the stream on it gives no more: what
    still runs is the stream scope's to interrupt, to wait for, and to abandon.
    """

    def __init__(
        self,
        stream: Stream,
        toolbox: Toolbox,
        calls: Sequence[OpenCall],
        *,
        concurrency: int = TOOL_CONCURRENCY,
        on_start: Callable[[OpenCall], None],
    ) -> None:
        self._stream = stream
        self._toolbox = toolbox
        self._waiting = deque(calls)
        self._running = 0
        self._concurrency = concurrency
        self._on_start = on_start
        self._ended: deque[tuple[OpenCall, Any]] = deque()
        self._news = asyncio.Event()
        self._unlink = stream.controller.signal.add_listener(lambda _reason: self._news.set())

    async def next(self) -> tuple[OpenCall, Any] | None:
        """The next call that ended, with its output. None: all have, or the stream is aborted."""
        while not self._stream.aborted:
            if self._waiting and self._running < self._concurrency:
                await self._start(self._waiting.popleft())
                continue
            if self._ended:
                return self._ended.popleft()
            if not self._running:
                break
            self._news.clear()
            await self._news.wait()
        self._unlink()
        return None

    async def _start(self, call: OpenCall) -> None:
        stream = self._stream
        self._on_start(call)
        if stream.aborted:
            return  # by who was told of it
        self._running += 1
        use = ToolUse(
            stream.workspace_id,
            stream.message_id,
            call.id,
            temp_directory=stream.temp_directory,
            correlation=stream.request.correlation,
        )
        signal = stream.controller.signal
        work = self._toolbox.run(call.part.tool_name, use, signal, call.part.input)
        fiber = await stream.leases.provide(work).fork_in(stream.work)
        stream.put_to_work(fiber, f"tool {call.part.tool_name}")
        fiber.add_observer(lambda exit_: self._end(call, exit_))

    def _end(self, call: OpenCall, exit_: fb.Exit[Any, Any]) -> None:
        self._running -= 1
        match exit_:
            case fb.Success(output):
                pass
            case _:
                output = failure("the tool was interrupted")
        self._ended.append((call, output))
        self._news.set()
