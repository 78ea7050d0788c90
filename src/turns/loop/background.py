"""Background tools: they go on while the turn does, and wake it when they are done."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, Final, final

import fibers as fb
from fibers import AbortSignal, Effect, Exit, Scope
from streamengine import Tool, ToolSpec, ToolUse
from streamengine.model.plain import plain
from streamengine.payloads import text_of

MAX_RESULT_BYTES: Final = 1 << 20
"""How much of a result becomes a message: as much as that of any other tool."""


@final
class Background(Tool):
    """A tool whose call ends at once, and whose work goes on for as long as the turn is open.

        Agent(name="coder", tools=(Background(WatchLog()),))

    When the work is done, the turn hears what it gave, as a message. A turn that has such work is
    not done, whatever the model says: it waits. Outside of the agent loop it is a plain tool.
    """

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    @property
    def spec(self) -> ToolSpec:
        return self.tool.spec

    def run(self, call: ToolUse, signal: AbortSignal) -> Awaitable[object]:
        return self.tool.run(call, signal)


@final
class Jobs:
    """The background work of one turn: fibers of its scope."""

    def __init__(self, scope: Scope, on_news: Callable[[], None]) -> None:
        self._scope = scope
        self._on_news = on_news
        self._running = 0
        self._started = 0
        self._messages: deque[str] = deque()

    @property
    def running(self) -> int:
        return self._running

    @property
    def has_news(self) -> bool:
        return bool(self._messages)

    def take(self) -> str | None:
        """The oldest message of work that is done."""
        return self._messages.popleft() if self._messages else None

    @fb.effect
    async def start(self, tool: Background, call: ToolUse) -> dict[str, object]:
        """Begin the work of a call; gives what the call answers with."""
        self._started += 1
        name = f"{tool.spec.name}-{self._started}"
        work = Effect.promise(lambda signal: tool.tool.run(call, signal), signal=True)
        fiber = await work.fork_in(self._scope)
        fiber.set_name(f"background {name}")
        fiber.ignore_failure()
        self._running += 1
        fiber.add_observer(lambda exit_: self._end(name, exit_))
        return {"started": name, "note": "You will be told when it is done."}

    def _end(self, name: str, exit_: Exit[object, Any]) -> None:
        self._running -= 1
        match exit_:
            case fb.Success(value):
                said = f"is done: {_words_of(value)}"
            case fb.Failure(cause) if cause.has_interrupts_only:
                said = "was stopped."
            case fb.Failure(cause):
                said = f"failed: {text_of(cause.squash())}"
        self._messages.append(f"[Background] {name} {said}")
        self._on_news()


def _words_of(value: object) -> str:
    try:
        text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    except ValueError as error:
        return f"(a result that is no JSON: {error})"
    size_bytes = len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > MAX_RESULT_BYTES:
        return (
            f"(a result of {size_bytes} bytes; at most {MAX_RESULT_BYTES} are told. Ask for less.)"
        )
    return text
