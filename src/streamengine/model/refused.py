"""What a model refused to stand by: marked where it ends, left out where a model would read it."""

from __future__ import annotations

from collections.abc import Iterable

from .fold import fold_parts
from .parts import MessagePart, ReasoningPart, RefusedPart, TextPart, ToolPart


def refusal_of(
    parts: Iterable[MessagePart], *, model: str | None, timestamp_ms: int
) -> RefusedPart:
    """The mark that takes back just these parts, put behind them."""
    said = list(parts)
    return RefusedPart(
        model=model,
        text_characters=sum(len(part.text) for part in said if isinstance(part, TextPart)),
        reasoning_characters=sum(
            len(part.text) for part in said if isinstance(part, ReasoningPart)
        ),
        tool_call_ids=tuple(
            dict.fromkeys(part.tool_call_id for part in said if isinstance(part, ToolPart))
        ),
        timestamp_ms=timestamp_ms,
    )


def without_refused(parts: Iterable[MessagePart]) -> tuple[MessagePart, ...]:
    """The parts, folded, without what was refused and its marks."""
    kept: list[MessagePart] = []
    for part in fold_parts(parts):
        if isinstance(part, RefusedPart):
            _take_back(kept, part)
        else:
            kept.append(part)
    return fold_parts(kept)


def _take_back(kept: list[MessagePart], refused: RefusedPart) -> None:
    text, reasoning = refused.text_characters, refused.reasoning_characters
    calls = set(refused.tool_call_ids)
    for at in range(len(kept) - 1, -1, -1):
        if not (text or reasoning or calls):
            break
        part = kept[at]
        if isinstance(part, TextPart):
            cut = min(text, len(part.text))
            text -= cut
            _shorten(kept, at, part, cut)
        elif isinstance(part, ReasoningPart):
            cut = min(reasoning, len(part.text))
            reasoning -= cut
            _shorten(kept, at, part, cut)
        elif isinstance(part, ToolPart) and part.tool_call_id in calls:
            calls.remove(part.tool_call_id)
            del kept[at]
    # Reasoning without words can't be counted, and would lead to nothing now.
    while kept and isinstance(last := kept[-1], ReasoningPart) and not last.text:
        kept.pop()


def _shorten(kept: list[MessagePart], at: int, part: TextPart | ReasoningPart, cut: int) -> None:
    if cut == len(part.text):
        del kept[at]
    elif cut:
        rest: dict[str, object] = {"text": part.text[: len(part.text) - cut]}
        if isinstance(part, ReasoningPart):
            # Its marks came last: they are of what goes.
            rest |= {"signature": None, "provider_metadata": None}
        kept[at] = part.model_copy(update=rest)
