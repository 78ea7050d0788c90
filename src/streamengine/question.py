"""The question that an answer is for: the user's row, and the conversation before it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .conversation import for_provider, speaking
from .model.parts import MessagePart, TextPart, ToolPart
from .model.refused import without_refused
from .model.request import StreamRequest
from .model.rows import Row, RowMetadata, UserRow
from .model.tools import ToolSpec


@dataclass(frozen=True, slots=True)
class Question:
    """A user's row that is stored, and what was said in answer to it before."""

    row: UserRow
    so_far: tuple[MessagePart, ...] = ()
    tried_before: bool = False
    """Whether an answer to it may have been begun before, and may have ended somehow."""

    @property
    def sequence(self) -> int | None:
        return self.row.metadata.history_sequence

    def asked(self, request: StreamRequest, rows: Sequence[Row]) -> StreamRequest:
        """``request`` with the conversation before the question, as the provider may get it."""
        before = [row for row in rows if row.id != self.row.id and self._is_before(row)]
        return request.model_copy(update={"history": for_provider(before), "so_far": self.so_far})

    def missing(self, tools: Sequence[ToolSpec]) -> tuple[str, ...]:
        """Of the tools that the message was sent with, those that are not among these."""
        known = {tool.name for tool in tools}
        return tuple(name for name in self.row.metadata.tools or () if name not in known)

    def _is_before(self, row: Row) -> bool:
        sequence = row.metadata.history_sequence
        return self.sequence is None or sequence is None or sequence < self.sequence


def new_id(kind: Literal["a", "u"]) -> str:
    """An id for an answer or for a user's message."""
    return f"{kind}_{uuid.uuid4().hex}"


def user_row(workspace_id: str, request: StreamRequest, tools: Sequence[ToolSpec] = ()) -> UserRow:
    """The row of a new message; it keeps what is needed to ask it again, of ``tools`` the names."""
    now_ms = time.time_ns() // 1_000_000
    return UserRow(
        id=new_id("u"),
        workspace_id=workspace_id,
        parts=(TextPart(text=request.text, timestamp_ms=now_ms),),
        metadata=RowMetadata(
            timestamp_ms=now_ms,
            client_message_id=request.client_message_id,
            correlation=request.correlation,
            request=request.settings(),
            tools=tuple(tool.name for tool in tools) or None,
        ),
    )


def open_question(rows: Sequence[Row]) -> Question | None:
    """The last message, if it has no whole answer: none, an interrupted one, or one that ended at
    its tools (whoever bounds the steps goes on with it).

    What was said of one is not repeated as far as tools had been run for it: another try goes on
    after the last of their results.
    """
    so_far: list[MessagePart] = []
    for row in reversed(rows):
        if isinstance(row, UserRow):
            return Question(row, speaking(so_far), tried_before=True)
        if not row.is_partial and not _ended_at_its_tools(row):
            return None
        parts = list(without_refused(row.parts))
        while parts and not (isinstance(parts[-1], ToolPart) and parts[-1].has_output):
            parts.pop()
        so_far = [*parts, *so_far]
    return None


def _ended_at_its_tools(row: Row) -> bool:
    return row.metadata.finish_reason == "tool-calls" or row.metadata.step_limit is not None
