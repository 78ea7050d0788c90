"""TurnSteps: what the turn decides between the provider's calls of one of its streams."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final, Literal, final

from streamengine import StreamRequest
from streamengine.history.partial import is_commit_worthy
from streamengine.model import Finish, MessagePart, TextPart, ToolPart
from streamengine.model.refused import without_refused

from ..events import LlmRequestEvent, LlmResponseEvent
from .context import shown

if TYPE_CHECKING:
    from .turn_run import TurnRun

Ended = Literal["more", "truncated", "done"]
"""How the stream ended for the turn: there is a next prompt, now or later; it was cut off; or that
was all."""

TRUNCATED: Final = frozenset({"length", "truncated", "max_tokens"})


@final
class TurnSteps:
    """Of one stream. ``ended`` is None until it says how it ended; the decision is made in one go,
    with nothing between the last look and the mark that the turn is finished.
    """

    def __init__(self, run: TurnRun) -> None:
        self._run = run
        self.ended: Ended | None = None

    def before_call(self, request: StreamRequest) -> StreamRequest:
        run = self._run
        given = shown(request, omitted=run.context.omitted, limit_tokens=run.limit_tokens)
        run.calls += 1
        run.tell(LlmRequestEvent(**run.about, call=run.calls, messages=len(given.history)))
        return given

    def after_tools(self, said: Sequence[MessagePart]) -> str | None:
        run = self._run
        run.tell(LlmResponseEvent(**run.about, call=run.calls, finish_reason="tool-calls"))
        if run.must_stop or run.is_last_call:
            return self._end(said, was_cut=True)
        if run.has_next_prompt and (run.may_call or run.wants_last_call):
            self.ended = "more"
            return ""
        if not run.may_call:
            return self._end(said, run.config.tool_limit_text, was_cut=True)
        return None

    def at_end(self, finish: Finish | None, said: Sequence[MessagePart]) -> str:
        run = self._run
        reason = None if finish is None else finish.finish_reason
        run.tell(LlmResponseEvent(**run.about, call=run.calls, finish_reason=reason))
        if run.may_go_on and reason in TRUNCATED and run.recovery.may_recover_truncated():
            self.ended = "truncated"
            return ""
        words = "" if is_commit_worthy(without_refused(said)) else run.config.empty_text
        if run.may_go_on and (run.is_spoken_to or run.jobs.running):
            self.ended = "more"
            return words
        return self._end(said, words, was_cut=reason in TRUNCATED)

    def _end(self, said: Sequence[MessagePart], words: str = "", *, was_cut: bool) -> str:
        """The last look, and the end: what comes from here on comes too late for this turn."""
        late = [f"\n\n{text}" for text in self._run.late_results()]
        added = "".join([words, *late])
        self._run.finish(_answer_in(said) + added, was_cut=was_cut)
        self.ended = "done"
        return added


def _answer_in(said: Sequence[MessagePart]) -> str:
    """What was said after the last tool call, or all that was said where that is nothing."""
    parts = without_refused(said)
    last_call = max((at for at, part in enumerate(parts) if isinstance(part, ToolPart)), default=-1)
    return _text_in(parts[last_call + 1 :]) or _text_in(parts)


def _text_in(parts: Sequence[MessagePart]) -> str:
    text = "".join(part.text for part in parts if isinstance(part, TextPart))
    return text if text.strip() else ""
