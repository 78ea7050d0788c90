"""What others want of a turn that runs: asked of its runner, by its handle."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, final

import fibers as fb
from fibers import Effect

from ..model.cause import ExplicitInterrupt
from ..model.errors import TurnError
from ..model.record import TurnRecord
from ..open_turn import TurnRunner
from .book import Book
from .offers import AnswersPermissions, AnswersResumed, Finishes, offered
from .running import Running
from .settlement import Settlement


@final
class Asking:
    """Asks the runner of one manager, once the records are read."""

    def __init__(
        self, book: Book, runner: TurnRunner, running: Running, settlement: Settlement
    ) -> None:
        self._book = book
        self._runner = runner
        self._running = running
        self._settlement = settlement

    @fb.effect(raises=TurnError)
    async def ask(
        self,
        handle_id: str,
        protocol: Any,
        what: str,
        call: Callable[[Any, str], Effect[Any, TurnError]],
    ) -> Any:
        """``call(runner, turn_id)`` of a runner that offers ``protocol``; ``what`` says of another
        one that it doesn't. Fails with "not_supported", "not_found", "not_running" and
        "without_agent".
        """
        record, runner = self._asked(handle_id, protocol, what)
        return await call(runner, record.turn_id)

    @fb.effect(raises=TurnError)
    async def answer(self, handle_id: str, request_id: str, answer: object) -> bool:
        """See TurnManager.answer_permission."""
        live = self._running.live(handle_id)
        if live is not None and live.is_resumed and isinstance(self._runner, AnswersResumed):
            return await self._runner.answer_resumed(live.turn_id, request_id, answer)
        record, runner = self._asked(handle_id, AnswersPermissions, "asks nobody")
        answered: bool = await runner.answer_permission(record.turn_id, request_id, answer)
        return answered

    @fb.effect(raises=TurnError)
    async def finish(self, handle_id: str, *, hard: bool) -> None:
        """See TurnManager.finish."""
        known = self._book.find(handle_id)
        if known is None or (hard and known.is_terminal):
            await self._finish_below(handle_id, known, hard=hard)
            return
        record, runner = self._asked(handle_id, Finishes, "ends by itself only")
        finishing = runner.finish(record.turn_id, hard=hard)
        if not hard:
            await finishing
            return
        # Begun first: a runner that refuses leaves the record as it is. One that is done at once
        # does, too: the last word was said before. Settled while it goes on: no stream need be
        # live whose abort would say so.
        ending = await finishing.fork_child(start_immediately=True)
        if ending.poll() is None:
            await self._settlement.settle(handle_id, ExplicitInterrupt(by="user", hard=True))
        await ending

    async def _finish_below(self, handle_id: str, record: TurnRecord | None, *, hard: bool) -> None:
        """End a subturn by its own id, or what a turn that has settled left running."""
        runner = self._runner
        if isinstance(runner, Finishes):
            turn_id = handle_id if record is None else record.turn_id
            try:
                await runner.finish(turn_id, hard=hard)
            except TurnError as error:
                if error.kind != "not_found":
                    raise
            else:
                return
        raise _not_running(self._book.get(handle_id))

    def _asked(self, handle_id: str, protocol: Any, what: str) -> tuple[TurnRecord, Any]:
        """A turn that runs, and its runner as one that offers this."""
        record = self._book.get(handle_id)
        runner = offered(self._runner, protocol, what)
        if not record.is_started:
            raise _not_running(record)
        live = self._running.live(handle_id)
        if live is not None and not live.has_runner:
            why = "only its answer was taken up after a restart"
            raise TurnError(
                "without_agent",
                f"the turn {handle_id} goes on without its agent: "
                f"{why if live.is_resumed else 'that has ended, or was stopped'}",
                "Wait for its end, or interrupt it; then start another one.",
            )
        return record, runner


def _not_running(record: TurnRecord) -> TurnError:
    return TurnError(
        "not_running",
        f"the turn {record.handle_id} is {record.status}",
        "Start another one."
        if record.is_terminal
        else "It waits for its workspace: ask again once it runs, or interrupt it.",
    )
