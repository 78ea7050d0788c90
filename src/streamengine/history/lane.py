"""A lane: jobs that run off the loop, one at a time, in the order in which they were given.

A lock alone would not do. Threads that wait for one get it in any order, and a write that was
interrupted while it waited could then come after the removal that followed it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Generic, TypeVar, final

T = TypeVar("T")


@final
class _Job(Generic[T]):
    """A job and who waits for it. One future, of the waiter's loop: a second one of the thread's,
    chained to it, would double what a hop costs.
    """

    __slots__ = ("_context", "_job", "_loop", "outcome")

    def __init__(self, job: Callable[[], T]) -> None:
        self._job = job
        self._context = contextvars.copy_context()
        self._loop = asyncio.get_running_loop()
        self.outcome: asyncio.Future[T] = self._loop.create_future()

    def run(self) -> None:
        """On a thread."""
        settle: Callable[[Any], None] = self.outcome.set_result
        result: object
        try:
            result = self._context.run(self._job)
        except BaseException as error:  # noqa: BLE001 - handed to who waits for the job
            settle, result = self.outcome.set_exception, error
        try:
            self._loop.call_soon_threadsafe(_settle, self.outcome, settle, result)
        except RuntimeError:
            pass  # the loop was closed meanwhile: nobody waits any more


def _settle(outcome: asyncio.Future[Any], settle: Callable[[Any], None], result: object) -> None:
    if not outcome.done():  # else its waiter was cancelled while the job ran
        settle(result)


@final
class Lane:
    """Runs jobs on the threads of the running loop's default executor, never two at once.

    A job whose waiter is cancelled before it began is left out; one that began runs to its end,
    and the next waits for it.
    """

    def __init__(self) -> None:
        self._jobs: deque[_Job[Any]] = deque()
        self._is_draining = False
        self._lock = Lock()

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        with self._lock:
            return not self._is_draining and not self._jobs

    async def run(self, job: Callable[[], T]) -> T:
        """Queue a job, at once, and wait for its result."""
        queued = _Job(job)
        self._put(queued)
        try:
            return await queued.outcome
        except asyncio.CancelledError:
            # Before anybody hears of it: the job must not begin after it was seen cancelled.
            queued.outcome.cancel()
            raise

    def _put(self, job: _Job[Any]) -> None:
        with self._lock:
            if not self._is_draining:
                # Raises when the loop is shutting down; then nothing was changed.
                asyncio.get_running_loop().run_in_executor(None, self._drain)
                self._is_draining = True
            self._jobs.append(job)

    def _drain(self) -> None:
        while True:
            with self._lock:
                while self._jobs and self._jobs[0].outcome.cancelled():
                    self._jobs.popleft()
                if not self._jobs:
                    self._is_draining = False
                    return
                job = self._jobs.popleft()
            job.run()
