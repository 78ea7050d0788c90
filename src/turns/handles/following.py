"""What was said to a turn after its last word: a turn of its own, once that one is over.

It is a person's message, and must not wait for somebody to write another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import structlog

import fibers as fb
from fibers import Effect, Exit, Fiber
from streamengine import SendError
from streamengine.payloads import text_of

from ..model.record import TurnRecord
from ..open_turn import TurnRunner
from .book import Book
from .creation import follow_up_of
from .offers import KeepsUnheard
from .places import Places

_PLACE: Final = "what follows"
_STOPS: Final = frozenset({"explicit-interrupt", "user-stream-abort"})
"""Causes of a person's stop: what was said before it is held back."""

_log = structlog.get_logger("turns.manager")


@final
class Following:
    """Begins what follows the turns of one manager.

    ``begin`` creates a turn, ``fork`` starts work under a name in the manager's scope,
    ``kept_for_nothing`` is given a turn whose workspace was kept although nothing follows.
    """

    def __init__(
        self,
        runner: TurnRunner,
        book: Book,
        places: Places,
        *,
        begin: Callable[[Callable[[], TurnRecord]], Effect[object, SendError]],
        fork: Callable[[str, Effect[None, Any]], Fiber[None, Any]],
        kept_for_nothing: Callable[[TurnRecord], None],
    ) -> None:
        self._runner = runner
        self._book = book
        self._places = places
        self._begin = begin
        self._fork = fork
        self._kept_for_nothing = kept_for_nothing

    def go_on(self, record: TurnRecord) -> None:
        """A turn is over, and its workspace still its."""
        workspace_id, runner = record.workspace_id, self._runner
        if (
            not isinstance(runner, KeepsUnheard)
            or not record.is_terminal
            or record.cause in _STOPS
            or self._book.has_queued(workspace_id)  # who waits there hears it
        ):
            return
        said = runner.take_unheard(workspace_id)
        if said is None:
            return
        # Its place, before the workspace of a settled turn may be removed.
        self._places.take(workspace_id, _PLACE)
        begin = self._begin(lambda: follow_up_of(record, said)).map(lambda _: None)
        following = self._fork(f"what follows {record.handle_id}", begin)
        following.ignore_failure()  # told here

        def left(exit_: Exit[None, Any]) -> None:
            if isinstance(exit_, fb.Failure) and not self._is_followed(record):
                runner.put_back_unheard(workspace_id, said)
                _log.warning(
                    "a message came after the last word of its turn, and no turn can be begun with "
                    "it: the next one in its workspace hears it, while this process lives",
                    handleId=record.handle_id,
                    workspaceId=workspace_id,
                    error=text_of(exit_.failure().squash()),
                )
            self._places.leave(workspace_id, _PLACE)
            self._kept_for_nothing(self._book.get(record.handle_id))

        following.add_observer(left)

    def _is_followed(self, record: TurnRecord) -> bool:
        # Not by the exit: an interrupt may come right after the record was stored.
        in_workspace = self._book.in_workspace(record.workspace_id)
        return any(other.follows == record.handle_id for other in in_workspace)
