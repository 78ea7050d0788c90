"""What a host and its agent say to each other, one JSON object a line."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, TypeAdapter, ValidationError

from streamengine.model.base import CamelModel

# ---- from the agent


class _Said(CamelModel):
    turn_id: str
    """The turn that it is for. What is said for a turn that has ended is dropped."""


class MessageBegins(_Said):
    type: Literal["message"] = "message"
    message_id: str


class Text(_Said):
    type: Literal["text"] = "text"
    text: str
    is_reasoning: bool = False


class ToolBegins(_Said):
    type: Literal["tool-start"] = "tool-start"
    tool_call_id: str
    tool_name: str
    can_be_undone: bool = True


class ToolAlive(_Said):
    """The tool works, however silent it is."""

    type: Literal["tool-alive"] = "tool-alive"
    tool_call_id: str


class ToolEnds(_Said):
    type: Literal["tool-end"] = "tool-end"
    tool_call_id: str
    failed: bool = False


class TaskBegins(_Said):
    """A call has started something that goes on beside it."""

    type: Literal["task-start"] = "task-start"
    task_id: str
    tool_call_id: str


class AsksPermission(_Said):
    type: Literal["permission"] = "permission"
    request_id: str
    question: str
    subject: str = "agent"


class Used(_Said):
    type: Literal["usage"] = "usage"
    tokens: int | None = None
    cost_usd: float | None = None


class TurnDone(_Said):
    """The clean end of a turn."""

    type: Literal["done"] = "done"


class TurnFailed(_Said):
    type: Literal["error"] = "error"
    error: str


AgentEvent = (
    MessageBegins
    | Text
    | ToolBegins
    | ToolAlive
    | ToolEnds
    | TaskBegins
    | AsksPermission
    | Used
    | TurnDone
    | TurnFailed
)

_event: TypeAdapter[AgentEvent] = TypeAdapter(Annotated[AgentEvent, Field(discriminator="type")])


def parse_agent_event(line: bytes) -> AgentEvent:
    """Raises ValueError, without the line itself: it holds what people wrote."""
    try:
        return _event.validate_json(line)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        raise ValueError(first["msg"]) from None


# ---- to the agent


class Prompt(CamelModel):
    type: Literal["prompt"] = "prompt"
    turn_id: str
    text: str


class Answer(CamelModel):
    """A person's answer to a permission."""

    type: Literal["answer"] = "answer"
    request_id: str
    allow: bool


class Interrupt(CamelModel):
    """Leave the turn."""

    type: Literal["interrupt"] = "interrupt"
    turn_id: str | None = None


HostMessage = Prompt | Answer | Interrupt
