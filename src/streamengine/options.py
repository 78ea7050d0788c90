"""What an engine can be told beside its history, its provider and its tools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fibers import Effect

from .model.errors import SendError
from .model.parts import Finish, MessagePart
from .model.request import AbortReason, StreamRequest
from .model.rows import UserRow
from .tokens import LoadTokenizer
from .toolrun import TOOL_CONCURRENCY
from .tools import Tool

ForResumed: TypeAlias = "Callable[[UserRow], StartOptions | None]"
"""Given the row of a message: what an answer to it is resumed with; None: nothing of its own. A
plain call; what it raises is the failure of the start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Of all answers of an engine. Raises ValueError for a bound below 1."""

    fallback_models: tuple[str, ...] = ()
    """Asked in this order where a model refuses to answer and the request names no others."""
    max_steps: int = 50
    """Calls of the provider that one answer may take; it ends after the tools of the last."""
    tool_concurrency: int = TOOL_CONCURRENCY
    """How many tools of one answer run at a time."""
    max_tool_output_bytes: int = 1 << 20
    """A longer result of a tool is given to the model as an error. In bytes of its JSON."""
    temp_directory: Path | None = None
    """Where each stream gets a directory of its own for its tools; None: none is made."""
    load_tokenizer: LoadTokenizer | None = None
    """The tokenizer of a model; None: events say nothing of tokens."""
    lifecycle_events: bool = False
    """Whether the phase of each stream is told too, as stream-lifecycle events."""
    for_resumed: ForResumed | None = None
    """Asked where an answer is resumed without options, as a retry does it, perhaps in another
    process: what can't be on disk is given here, the tools first of all. None: those of the engine.
    """
    ask_user_tools: frozenset[str] = frozenset({"ask_user"})
    """Tools that wait for a person: their calls are on disk before anything else happens."""

    def __post_init__(self) -> None:
        for name in ("max_steps", "tool_concurrency", "max_tool_output_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, not {getattr(self, name)}")


class Steps(Protocol):
    """Who has a say between the provider's calls of one answer. Plain calls: nothing waits here.

    ``said`` is what the answer has recorded so far. What a method raises is the failure of the
    stream; before the first call, that of the start.
    """

    def before_call(self, request: StreamRequest) -> StreamRequest:
        """What the provider is given in the place of ``request``. Of this call only."""
        ...

    def after_tools(self, said: Sequence[MessagePart]) -> str | None:
        """Asked when the tools of a step have their results. None: go on with the next call. A
        text (which may be empty) ends the answer here, complete, and is added to it.
        """
        ...

    def at_end(self, finish: Finish | None, said: Sequence[MessagePart]) -> str:
        """Asked when the model is done: a text that is added to the answer, or "". ``finish`` is
        None where the model gave nothing at all, twice; with a text that is an answer too.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOptions:
    """Of one answer, for those who build on the engine."""

    admit: Effect[None, SendError] | None = None
    """Run before the provider is asked; a failure is that of the start."""
    stop_fence: Callable[[], AbortReason | None] | None = None
    """Asked last, with nothing between it and the provider's call: a reason stops the start."""
    on_constructed: Callable[[str, int], Effect[None, Any]] | None = None
    """Given message id and history sequence once the stream is registered, and awaited before it is
    launched: what must be durable before the first event. A failure is that of the start."""
    temp_directory: Path | None = None
    """A directory that the caller has made: the stream takes it over and removes it."""
    tools: tuple[Tool, ...] | None = None
    """In place of the engine's."""
    steps: Steps | None = None
    """Asked between the calls of the provider."""
