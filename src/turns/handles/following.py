"""What was said to a turn after its last word: a turn of its own, once that one is over.

It is a person's message, and must not wait for somebody to write another one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, final

import structlog

import fibers as fb
from fibers import Effect, Fiber
from streamengine import SendError

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
        following = self._fork(
            f"what follows {record.handle_id}", self._follow_up(record, said, runner)
        )

        def left(_exit: object) -> None:
            self._places.leave(workspace_id, _PLACE)
            self._kept_for_nothing(self._book.get(record.handle_id))

        following.add_observer(left)

    @fb.effect
    async def _follow_up(self, record: TurnRecord, said: str, runner: KeepsUnheard) -> None:
        try:
            await self._begin(lambda: follow_up_of(record, said))
        except SendError as error:
            runner.put_back_unheard(record.workspace_id, said)
            _log.warning(
                "a message came after the last word of its turn, and no turn can be begun with it: "
                "the next one in its workspace hears it",
                handleId=record.handle_id,
                workspaceId=record.workspace_id,
                error=str(error),
            )
