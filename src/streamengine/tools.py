"""Tool: what a model may call and the engine runs.

A tool is an object with a ``spec`` that the model sees and a ``run``:

    class Clock:
        spec = ToolSpec(name="now", description="The time of day.")

        async def run(self, call: ToolUse, signal: AbortSignal) -> object:
            return {"time": "12:00"}

    engine = StreamEngine(history=history, provider=provider, tools=[Clock()])

It runs in a fiber of its stream. What it acquires with ``fb.acquire_release`` is a lease: held to
the end of the stream, and released there however that ends.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol, final

from fibers import AbortSignal, Effect, Failure, Success, effect

from .model.plain import is_mapping, plain
from .model.tool_output import failure
from .model.tools import ToolSpec
from .payloads import text_of


@dataclass(frozen=True, slots=True)
class ToolUse:
    """One call of a tool."""

    workspace_id: str
    message_id: str
    tool_call_id: str
    input: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """What the model gave; an object, but of no checked shape."""
    temp_directory: Path | None = None
    """A directory of this stream, gone at its end; None where the engine makes none."""
    correlation: Mapping[str, Any] | None = None


class Tool(Protocol):
    """A tool that the engine runs for the model."""

    @property
    def spec(self) -> ToolSpec:
        """Name, description and input of the tool, as the model sees them."""
        ...

    def run(self, call: ToolUse, signal: AbortSignal) -> Awaitable[object]:
        """Do it. The result is given to the model as JSON. What is raised is told to the model too,
        and the answer goes on.

        ``signal`` is aborted when the stream stops; then the fiber is interrupted. A tool that ends
        on neither within the grace is abandoned, and nothing it gives is recorded.
        """
        ...


@final
class Toolbox:
    """The tools of an engine or of one answer, by name. Raises ValueError for a name used twice."""

    def __init__(self, tools: Iterable[Tool] = (), *, max_output_bytes: int) -> None:
        self._tools: dict[str, Tool] = {}
        self._max_output_bytes = max_output_bytes
        for tool in tools:
            if tool.spec.name in self._tools:
                raise ValueError(f"two tools are called {tool.spec.name!r}; rename one of them")
            self._tools[tool.spec.name] = tool

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """What the model is told."""
        return tuple(tool.spec for tool in self._tools.values())

    @effect
    async def run(self, tool_name: str, use: ToolUse, signal: AbortSignal, raw: object) -> Any:
        """The output of one call, as plain JSON; ``raw`` is its input as the model gave it. Never
        fails: what goes wrong is the output, in words for the model.
        """
        tool = self._tools.get(tool_name)
        if tool is None:
            known = ", ".join(self._tools) or "there are none"
            return failure(f"there is no tool {tool_name!r} (tools: {known})")
        try:
            # A copy: what was recorded is not the tool's to change.
            arguments = deepcopy(arguments_of(raw))
        except ValueError as error:
            return failure(str(error))
        use = replace(use, input=arguments)
        # As an exit: a CancelledError that the tool itself raised must not pass for an interrupt.
        exit_ = await Effect.promise(lambda: tool.run(use, signal)).exit()
        match exit_:
            case Success(result):
                return self._checked(result)
            case Failure(cause):
                return failure(text_of(cause.squash()))

    def _checked(self, result: object) -> Any:
        try:
            output = plain(result)
        except ValueError as error:
            return failure(f"the result is no JSON: {error}")
        size_bytes = len(json.dumps(output, ensure_ascii=False).encode("utf-8", "surrogatepass"))
        if size_bytes > self._max_output_bytes:
            return failure(
                f"the result has {size_bytes} bytes; at most {self._max_output_bytes} are kept. "
                "Ask for less."
            )
        return output


def arguments_of(raw: object) -> Mapping[str, Any]:
    """The input of a call as an object. Raises ValueError, in words for the model, if it is none.

    A model that gives nothing gives the empty object. A text is read as JSON.
    """
    if isinstance(raw, str) and raw.strip():
        try:
            raw = json.loads(raw)
        except ValueError as error:
            raise ValueError(f"the input is not valid JSON: {error}") from error
    if raw is None or raw == "" or (isinstance(raw, str) and not raw.strip()):
        return {}
    if not is_mapping(raw):
        raise ValueError("the input must be a JSON object")
    return {str(name): value for name, value in raw.items()}
