"""Inboxes: what happens to a turn is dealt with one after the other, in the order it happened."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar, final

import structlog

import fibers as fb
from fibers import Effect

T = TypeVar("T")

_log = structlog.get_logger("turns.handles.inbox")


@final
class Inboxes(Generic[T]):
    """One inbox a key. A fiber works on one only while something is in it.

    ``deal_with`` gets each item; ``fork`` starts the work, in a scope of the caller's, and again
    where it was interrupted. What is left at the end of the scope is what a restart finds.
    """

    def __init__(
        self,
        deal_with: Callable[[str, T], Effect[None]],
        fork: Callable[[str, Effect[None]], object],
    ) -> None:
        self._deal_with = deal_with
        self._fork = fork
        self._inboxes: dict[str, deque[T]] = {}

    def post(self, key: str, item: T) -> None:
        """Deal with ``item`` after all that was posted under this key before. A plain call."""
        inbox = self._inboxes.get(key)
        if inbox is not None:
            inbox.append(item)
            return
        self._inboxes[key] = deque([item])
        try:
            self._fork(f"inbox of {key}", self._work(key))
        except BaseException:
            del self._inboxes[key]  # nobody works on it: the next item tries again
            raise

    @fb.effect
    async def _work(self, key: str) -> None:
        inbox = self._inboxes[key]
        while inbox:
            await self._deal_with(key, inbox[0]).catch_defect(
                lambda defect: Effect.sync(lambda: _report(key, defect))
            )
            # Now only: interrupted before, it is dealt with again.
            inbox.popleft()
        del self._inboxes[key]


def _report(key: str, defect: BaseException) -> None:
    _log.error("what happened to a turn could not be dealt with", handleId=key, exc_info=defect)
