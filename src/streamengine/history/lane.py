"""A lane: jobs that run off the loop, one at a time, in the order in which they were given.

A lock alone would not do. Threads that wait for one get it in any order, and a write that was
interrupted while it waited could then come after the removal that followed it.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from threading import Lock
from typing import TypeVar, final

T = TypeVar("T")


@final
class Lane:
    """Runs jobs on the threads of the running loop's default executor, never two at once.

    A job whose waiter is cancelled before it began is left out; one that began runs to its end,
    and the next waits for it.
    """

    def __init__(self) -> None:
        self._jobs: deque[Callable[[], None]] = deque()
        self._is_draining = False
        self._lock = Lock()

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        with self._lock:
            return not self._is_draining and not self._jobs

    async def run(self, job: Callable[[], T]) -> T:
        """Queue a job, at once, and wait for its result."""
        outcome: Future[T] = Future()
        context = contextvars.copy_context()

        def run_job() -> None:
            if not outcome.set_running_or_notify_cancel():
                return
            try:
                result = context.run(job)
            except BaseException as error:  # noqa: BLE001 - handed to who waits for the job
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        self._put(run_job)
        try:
            return await asyncio.wrap_future(outcome)
        except asyncio.CancelledError:
            # The wrapper would pass this on one turn of the loop later. Until then the job could
            # begin, although who waited for it has seen it cancelled.
            outcome.cancel()
            raise

    def _put(self, run_job: Callable[[], None]) -> None:
        with self._lock:
            if not self._is_draining:
                # Raises when the loop is shutting down; then nothing was changed.
                asyncio.get_running_loop().run_in_executor(None, self._drain)
                self._is_draining = True
            self._jobs.append(run_job)

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._jobs:
                    self._is_draining = False
                    return
                run_job = self._jobs.popleft()
            run_job()
