"""A lane: jobs that run off the loop, one at a time, in the order in which they were given.

A lock alone would not do. Threads that wait for one get it in any order, and a write that was
interrupted while it waited could then come after the removal that followed it.

The lanes of a history share a crew: a few threads that go from lane to lane as long as there is
work. To hand each job to the executor by itself, and to wake the loop for each result, would cost
more than most jobs do.
"""

from __future__ import annotations

import asyncio
import contextvars
import os
from collections import deque
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, Generic, TypeAlias, TypeVar, final

T = TypeVar("T")

Settle: TypeAlias = Callable[[], None]

CREW_THREADS: Final = min(32, (os.cpu_count() or 1) + 4) - 2
"""How many lanes of a crew work at once. Two less than the threads of an executor by default: who
else needs one does not wait until the crew has nothing to do.
"""


@final
class _Post:
    """Brings results to a loop: all that have gathered, each time it looks."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._sent: list[Settle] = []
        self._lock = Lock()

    def send(self, settle: Settle) -> None:
        """On a thread."""
        with self._lock:
            self._sent.append(settle)
            if len(self._sent) > 1:
                return  # the loop has been called, and has not come yet
        try:
            self.loop.call_soon_threadsafe(self._deliver)
        except RuntimeError:
            pass  # the loop was closed meanwhile: nobody waits any more

    def _deliver(self) -> None:
        with self._lock:
            sent, self._sent = self._sent, []
        for settle in sent:
            settle()


@final
class _Job(Generic[T]):
    """A job and who waits for it. One future, of the waiter's loop: a second one of the thread's,
    chained to it, would double what a hop costs.
    """

    __slots__ = ("_context", "_job", "_post", "outcome")

    def __init__(self, job: Callable[[], T], post: _Post) -> None:
        self._job = job
        self._post = post
        self._context = contextvars.copy_context()
        self.outcome: asyncio.Future[T] = post.loop.create_future()

    def run(self) -> None:
        """On a thread."""
        try:
            result = self._context.run(self._job)
        except StopIteration as error:
            # No future takes it, and an error there would cost the others their results.
            failed = RuntimeError("a job raised StopIteration")
            failed.__cause__ = error
            self._post.send(_settling(self.outcome, self.outcome.set_exception, failed))
        except BaseException as error:  # noqa: BLE001 - handed to who waits for the job
            self._post.send(_settling(self.outcome, self.outcome.set_exception, error))
        else:
            self._post.send(_settling(self.outcome, self.outcome.set_result, result))


def _settling(outcome: asyncio.Future[Any], settle: Callable[[Any], None], result: Any) -> Settle:
    def settle_unless_cancelled() -> None:
        if not outcome.done():  # else its waiter was cancelled while the job ran
            settle(result)

    return settle_unless_cancelled


@final
class Crew:
    """The threads that do the work of some lanes, on the executors of the loops that give it."""

    def __init__(self, *, threads: int = CREW_THREADS) -> None:
        self._most = threads
        self._at_work = 0
        self._waiting: deque[Lane] = deque()
        self._post: _Post | None = None
        self.lock: Lock = Lock()

    def post_of(self, loop: asyncio.AbstractEventLoop) -> _Post:
        """Of the loop that is running: the one of before, unless that was another one."""
        # Read once: a loop on another thread may put its own there between any two steps.
        post = self._post
        if post is None or post.loop is not loop:
            post = self._post = _Post(loop)
        return post

    def take_up(self, lane: Lane) -> None:
        """See to it that somebody works on this lane. Called with the lock; raises RuntimeError,
        with nothing changed, when the running loop is shutting down.
        """
        if self._at_work < self._most:
            asyncio.get_running_loop().run_in_executor(None, self._work)
            self._at_work += 1
        self._waiting.append(lane)

    def _work(self) -> None:
        lane: Lane | None = None
        while True:
            with self.lock:
                if lane is not None and lane.has_work():
                    self._waiting.append(lane)  # behind the others
                job = None
                while job is None:
                    if not self._waiting:
                        self._at_work -= 1
                        return
                    lane = self._waiting.popleft()
                    job = lane.next_job()
            job.run()


@final
class Lane:
    """Runs jobs on the threads of its crew, never two at once.

    A job whose waiter is cancelled before it began is left out; one that began runs to its end,
    and the next waits for it.
    """

    def __init__(self, crew: Crew | None = None) -> None:
        self._crew = Crew() if crew is None else crew
        self._jobs: deque[_Job[Any]] = deque()
        self._is_taken_up = False

    @property
    def is_idle(self) -> bool:
        """Whether no job runs or waits."""
        with self._crew.lock:
            return not self._is_taken_up

    async def run(self, job: Callable[[], T]) -> T:
        """Queue a job, at once, and wait for its result."""
        crew = self._crew
        queued = _Job(job, crew.post_of(asyncio.get_running_loop()))
        with crew.lock:
            if not self._is_taken_up:
                crew.take_up(self)
                self._is_taken_up = True
            self._jobs.append(queued)
        try:
            return await queued.outcome
        except asyncio.CancelledError:
            # Before anybody hears of it: the job must not begin after it was seen cancelled.
            queued.outcome.cancel()
            raise

    # ---- for the crew, with its lock

    def has_work(self) -> bool:
        """Whether a job is left; the lane is let go where none is."""
        self._is_taken_up = bool(self._jobs)
        return self._is_taken_up

    def next_job(self) -> _Job[Any] | None:
        """The next job that somebody still waits for; the lane is let go where there is none."""
        while self.has_work():
            job = self._jobs.popleft()
            if not job.outcome.cancelled():
                return job
        return None
