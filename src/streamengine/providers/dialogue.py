"""Dialogue: a request as what each side said in turn, the form that every API is told it in.

Rows, the message and what this answer has said so far become utterances. Those of one side that
follow each other are one; what says nothing is left out; a tool's result follows its call.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from ..model.parts import FilePart, MessagePart, ReasoningPart, TextPart, ToolPart
from ..model.request import StreamRequest
from . import loose

ABORTED: Final = "The call was interrupted and has no result."
"""What a call is answered with that has no result: an API refuses one without an answer."""

_CALL_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_TOOL_NAME_CHARACTERS: Final = 64


@dataclass(frozen=True, slots=True)
class Text:
    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Neighbouring reasoning as it was recorded; only the API that it came from can read it."""

    parts: tuple[ReasoningPart, ...]


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call, with an id and a name that every API takes."""

    id: str
    name: str
    arguments: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What a tool call gave, as text."""

    id: str
    name: str
    text: str
    is_error: bool


@dataclass(frozen=True, slots=True)
class File:
    media_type: str
    url: str
    name: str

    @property
    def data(self) -> str | None:
        """Its content in base64, where the URL holds it."""
        head, comma, data = self.url.partition(",")
        return data if comma and head.startswith("data:") and head.endswith(";base64") else None

    @property
    def is_image(self) -> bool:
        return self.media_type.startswith("image/")

    @property
    def instead(self) -> str:
        """What a model is told that can't be given it."""
        return f"[a file that can't be shown here: {self.name or 'unnamed'}, {self.media_type}]"


Piece: TypeAlias = Text | Reasoning | Call | Result | File


@dataclass(frozen=True, slots=True)
class Utterance:
    """What one side said before the other did. Results of tools are said by the user's side."""

    role: Literal["user", "assistant"]
    pieces: list[Piece] = field(default_factory=list[Piece])


def dialogue_of(request: StreamRequest, *, only_new: bool = False) -> list[Utterance]:
    """All that was said, the user first and in turns. ``only_new``: without the history, for an API
    that keeps it.
    """
    dialogue: list[Utterance] = []
    ids = _CallIds()
    for row in () if only_new else request.history:
        ids.next_row()
        pieces = _of_user(row.parts) if row.role == "user" else _of_assistant(row.parts, ids)
        _say(dialogue, pieces)
    _say(dialogue, _of_user((TextPart(text=request.text),)))
    ids.next_row()
    _say(dialogue, _of_assistant(request.so_far, ids))
    _begin_with_the_user(dialogue)
    return dialogue


def _begin_with_the_user(dialogue: list[Utterance]) -> None:
    """Every API wants that; a conversation whose first row was lost begins otherwise."""
    while dialogue and dialogue[0].role == "assistant":
        del dialogue[0]
        if dialogue:
            # Of calls that are gone now.
            kept = [piece for piece in dialogue[0].pieces if not isinstance(piece, Result)]
            dialogue[0].pieces[:] = kept
            if not kept:
                del dialogue[0]


_Said: TypeAlias = "tuple[Literal['user', 'assistant'], Piece]"


def _say(dialogue: list[Utterance], pieces: Iterable[_Said]) -> None:
    for role, piece in pieces:
        if not dialogue or dialogue[-1].role != role:
            if dialogue and dialogue[-1].role == "assistant":
                _drop_last_thoughts(dialogue)
            dialogue.append(Utterance(role))
        dialogue[-1].pieces.append(piece)


def _drop_last_thoughts(dialogue: list[Utterance]) -> None:
    """Reasoning that leads to nothing (it was interrupted) is refused by those that sign it."""
    pieces = dialogue[-1].pieces
    while pieces and isinstance(pieces[-1], Reasoning):
        del pieces[-1]
    if not pieces:
        del dialogue[-1]


def _of_user(parts: Iterable[MessagePart]) -> Iterator[_Said]:
    for part in parts:
        if isinstance(part, TextPart) and part.text.strip():
            yield "user", Text(part.text)
        elif isinstance(part, FilePart):
            yield "user", File(part.media_type, part.url, part.filename or "")


def _of_assistant(parts: Iterable[MessagePart], ids: _CallIds) -> Iterator[_Said]:
    """Calls that stand side by side were made at once: their results follow the last of them."""
    thoughts: list[ReasoningPart] = []
    results: list[Result] = []
    for part in parts:
        if isinstance(part, ReasoningPart):
            thoughts.append(part)
            continue
        if isinstance(part, TextPart) and not part.text.strip():
            continue
        is_call = isinstance(part, ToolPart) and not part.provider_executed
        if not is_call or thoughts:
            yield from _told(results)
            results.clear()
        if thoughts:
            yield "assistant", Reasoning(tuple(thoughts))
            thoughts.clear()
        if isinstance(part, TextPart):
            yield "assistant", Text(part.text)
        elif isinstance(part, ToolPart) and is_call:
            call_id = ids.of(part.tool_call_id)
            name = _tool_name(part.tool_name)
            yield "assistant", Call(call_id, name, _arguments(part.input))
            results.append(_result(call_id, name, part))
    yield from _told(results)
    if thoughts:
        yield "assistant", Reasoning(tuple(thoughts))


def _told(results: Iterable[Result]) -> Iterator[_Said]:
    for result in results:
        yield "user", result


def _result(call_id: str, name: str, part: ToolPart) -> Result:
    if not part.has_output:
        return Result(call_id, name, ABORTED, is_error=True)
    output = part.output
    failed = loose.fields(output).get("success") is False
    if isinstance(output, str):
        text = output
    else:
        try:
            text = json.dumps(output, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            text = f"a result of the type {type(output).__name__}, which is no JSON"
    return Result(call_id, name, text, failed)


def _arguments(value: object) -> Mapping[str, Any]:
    """Of a call; a model that wrote something else than an object is shown it as one."""
    if isinstance(value, Mapping):
        return cast("Mapping[str, Any]", value)
    return {} if value is None else {"input": value}


def _tool_name(name: str) -> str:
    """One that models invent may have any character, and would be refused from then on."""
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:_TOOL_NAME_CHARACTERS] or "tool"


class _CallIds:
    """Ids that are unique in the dialogue and that every API takes.

    Another provider may have made them: APIs differ in which characters and lengths they take, and
    some models number their calls anew in each answer.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._of_row: dict[str, str] = {}

    def next_row(self) -> None:
        self._of_row = {}

    def of(self, call_id: str) -> str:
        if call_id not in self._of_row:
            fitting = call_id if _CALL_ID.fullmatch(call_id) else _digest(call_id)
            number = 0
            while fitting in self._taken:
                number += 1
                fitting = _digest(f"{call_id}\n{number}")
            self._taken.add(fitting)
            self._of_row[call_id] = fitting
        return self._of_row[call_id]


def _digest(call_id: str) -> str:
    # The same each time: what an API has cached of a conversation begins as it did before.
    return "call_" + hashlib.sha256(call_id.encode("utf-8", "surrogatepass")).hexdigest()[:24]
