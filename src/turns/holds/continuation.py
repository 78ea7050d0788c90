"""The continuation flag: on disk, that a turn was started by auto-continue.

It is there so that a reload of the process in the middle of such a turn does not begin a second
streak. A turn that will never complete must not leave it behind: the next person's turn would be
taken for a continuation, and would not arm auto-continue.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any, ClassVar, Final, final

import structlog

import fibers as fb
from streamengine.history.directory import DurableDirectory
from streamengine.model.base import CamelModel
from streamengine.model.errors import HistoryError

from ..model.errors import TurnError
from ..open_turn import TurnEnd
from .hold import Hold, Holder

_FILE: Final = "continuation.json"
_log = structlog.get_logger("turns.holds.continuation")


class Continuation(CamelModel):
    """The flag as it is on disk."""

    turn_id: str


@final
class ContinuationFlag:
    """The flag of one workspace."""

    def __init__(self, directory: DurableDirectory) -> None:
        self._directory = directory
        self._writing = asyncio.Lock()

    @fb.effect
    async def read(self) -> Continuation | None:
        """The continuation turn that has not ended, also if a process before this one began it.

        A file that can't be read counts as none, with a warning: then a person's turn arms.
        """
        return await asyncio.to_thread(self._read)

    @fb.effect
    async def may_arm(self) -> bool:
        """Whether a turn that ends now may arm auto-continue: not while the flag is set."""
        return await self.read() is None

    def _read(self) -> Continuation | None:
        try:
            with self._directory.opened() as directory:
                content = None if directory is None else directory.read(_FILE)
            return None if content is None else Continuation.model_validate_json(content.data)
        except (HistoryError, ValueError) as error:
            _log.warning(
                "the continuation flag can't be read: it counts as not set",
                path=str(self._directory.path / _FILE),
                wayOut="Move the file away.",
                error=str(error),
            )
            return None

    async def _set(self, flag: Continuation) -> None:
        async with self._writing:
            await asyncio.to_thread(self._write, flag)

    def _write(self, flag: Continuation) -> None:
        with self._directory.made() as directory:
            directory.replace(_FILE, flag.to_json().encode(), durable=True)

    async def _clear(self, turn_id: str) -> None:
        async with self._writing:
            await asyncio.to_thread(self._remove, turn_id)

    def _remove(self, turn_id: str) -> None:
        flag = self._read()
        if flag is not None and flag.turn_id != turn_id:
            return  # a later turn's
        with self._directory.opened() as directory:
            if directory is not None:
                directory.remove(_FILE, durable=True)


@final
class ContinuationHold(Hold):
    """The flag of this turn. Every end clears it but a teardown, which it exists to survive."""

    name: ClassVar[str] = "continuation flag"

    def __init__(self, holder: Holder, flag: ContinuationFlag) -> None:
        super().__init__(holder)
        self._flag = flag
        self._ended_as: TurnEnd | None = None

    @fb.effect(raises=(HistoryError, TurnError))
    async def mark(self) -> None:
        """Auto-continue has started this turn. Durable when it returns."""
        self._check_open()
        flag = Continuation(turn_id=self._holder.turn_id)
        # To its end, also if it is interrupted: a release must not overtake it.
        await fb.Effect.promise(lambda: self._flag._set(flag)).uninterruptible()
        # The end may have come before it was written, and have found no flag to clear.
        if self._ended_as not in (None, "torn-down"):
            await self._flag._clear(self._holder.turn_id)

    def _release(self, end: TurnEnd) -> Awaitable[Any] | None:
        self._ended_as = end
        return None if end == "torn-down" else self._flag._clear(self._holder.turn_id)
