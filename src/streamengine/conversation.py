"""The conversation as a provider may get it: what an interrupted answer left is made acceptable.

Providers reject a tool call without a result, and an assistant message of blanks, for as long as it
stands in the history (P7, P22). The rows on disk stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable

from .model.parts import MessagePart, ReasoningPart, TextPart, ToolPart
from .model.refused import without_refused
from .model.rows import AssistantRow, Row
from .model.tool_output import ABORTED


def for_provider(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows without blank text in answers, and with a result for each tool call.

    A call that was cut off gets the synthetic result "aborted". An answer that says nothing is left
    out. What users wrote is passed on as it is.
    """
    clean: list[Row] = []
    for row in rows:
        if not isinstance(row, AssistantRow):
            clean.append(row)
            continue
        parts = speaking(row.parts)
        if parts:
            clean.append(row if parts == row.parts else row.model_copy(update={"parts": parts}))
    return tuple(clean)


def speaking(parts: Iterable[MessagePart]) -> tuple[MessagePart, ...]:
    """The parts that say something and were not refused, folded, each tool call with a result."""
    return tuple(_answered(part) for part in without_refused(parts) if not _is_blank(part))


def _answered(part: MessagePart) -> MessagePart:
    if isinstance(part, ToolPart) and not part.has_output:
        return part.model_copy(update={"state": "output-available", "output": dict(ABORTED)})
    return part


def _is_blank(part: MessagePart) -> bool:
    if isinstance(part, TextPart):
        return not part.text.strip()
    if isinstance(part, ReasoningPart):
        # A sealed block without text is what some providers give in place of it.
        sealed = part.signature is not None or part.provider_metadata is not None
        return not sealed and not part.text.strip()
    return False
