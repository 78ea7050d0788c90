"""What a sequence of recorded parts says, as the parts that a row keeps.

A stream records one part a delta, and a partial on disk is a base and what was said since. Both are
read by the same fold, so that how an answer was cut never matters (P18).
"""

from __future__ import annotations

from collections.abc import Iterable

from typing_extensions import TypeIs

from .parts import MessagePart, ReasoningPart, TextPart, ToolPart


def fold_parts(parts: Iterable[MessagePart]) -> tuple[MessagePart, ...]:
    """Neighbouring text is one text, neighbouring reasoning one reasoning; each is stamped as its
    first piece; a signed reasoning is complete. A tool call stands where it was first seen and is
    what was said of it last.

    Folding what is folded changes nothing: ``fold(fold(a) + b) == fold(a + b)``.
    """
    folded: list[MessagePart] = []
    pieces: list[str] = []
    calls: dict[str, int] = {}

    def put_text_together() -> None:
        if len(pieces) > 1:
            last = folded[-1]
            assert isinstance(last, TextPart | ReasoningPart)
            folded[-1] = last.model_copy(update={"text": "".join(pieces)})
        pieces.clear()

    for part in parts:
        last = folded[-1] if folded else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            pieces.append(part.text)
            continue
        if isinstance(part, ReasoningPart) and _goes_on(last, part):
            pieces.append(part.text)
            if part.signature is not None or part.provider_metadata is not None:
                folded[-1] = _with_marks(last, part)
            continue
        put_text_together()
        if isinstance(part, ToolPart):
            at = calls.setdefault(part.tool_call_id, len(folded))
            if at < len(folded):
                folded[at] = part
                # Not the neighbour of what comes next: the pieces start anew.
                last = folded[-1]
                if isinstance(last, TextPart | ReasoningPart):
                    pieces.append(last.text)
                continue
        folded.append(part)
        if isinstance(part, TextPart | ReasoningPart):
            pieces.append(part.text)
    put_text_together()
    return tuple(folded)


def _goes_on(last: MessagePart | None, part: ReasoningPart) -> TypeIs[ReasoningPart]:
    """A signature is of one block: further text begins the next."""
    return isinstance(last, ReasoningPart) and not (last.signature is not None and part.text)


def _with_marks(part: ReasoningPart, later: ReasoningPart) -> ReasoningPart:
    """The signature that came last counts, and of each provider's entry the last."""
    metadata = {**(part.provider_metadata or {}), **(later.provider_metadata or {})}
    return part.model_copy(
        update={
            "signature": part.signature if later.signature is None else later.signature,
            "provider_metadata": metadata or None,
        }
    )
