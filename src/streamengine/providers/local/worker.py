"""The model's thread: answers are made there, a step of each in turn.

At most one thread at a time, and only while there is something to do: it begins with the first
answer and ends when none is left. The model is loaded on it, once, and stays.

Up to ``lanes`` answers take turns, one step each, so that a short answer never waits for a long one
to end. Further ones wait in the order in which they came. Whose reader is slow is passed over.
"""

from __future__ import annotations

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Final, final

import structlog

from .errors import LocalModelError
from .generation import Ended, Generation, Lane
from .model import LanguageModel, Sampling
from .outbox import Outbox

EXIT_BOUND_SECONDS: Final = 1.0
"""How long the end of the process waits for a step that is under way."""

Piece = bytes | Ended | Exception
"""A token's bytes, or how it ended."""

_log = structlog.get_logger("streamengine.providers.local")


@dataclass(frozen=True, slots=True)
class Ask:
    """What an answer is made from and how. ``prompt`` is called on the thread."""

    prompt: Callable[[LanguageModel], list[int]]
    sampling: Sampling
    limit_tokens: int
    seed: int | None


@final
class Job:
    """An answer that was asked for."""

    __slots__ = ("ask", "cancelled", "generation", "lane", "outbox")

    def __init__(self, ask: Ask, outbox: Outbox[Piece]) -> None:
        self.ask: Ask = ask
        self.outbox: Outbox[Piece] = outbox
        self.cancelled: bool = False
        # The thread's own:
        self.generation: Generation | None = None
        self.lane: Lane | None = None


@final
class Worker:
    """Serves one model to any number of loops. Every method may be called from any thread."""

    def __init__(self, load: Callable[[], LanguageModel], *, lanes: int) -> None:
        self._load = load
        self._max_lanes = lanes
        # Guards the queues, the thread and the marks of jobs; never held during a step.
        self._condition = threading.Condition()
        self._waiting: deque[Job] = deque()
        self._active: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._closed = False
        # Touched by the thread alone, except where there is none.
        self._model: LanguageModel | None = None
        self._free_lanes: list[Lane] = []
        self._lane_count = 0
        _all_workers.add(self)

    # ---- from outside

    def submit(self, job: Job) -> None:
        """Queue a job. Raises LocalModelError ("model_closed")."""
        with self._condition:
            if self._closed:
                raise _closed()
            self._waiting.append(job)
            if self._thread is None:
                # A daemon: a step that never ends must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="local-model", daemon=True)
                self._thread.start()
            self._condition.notify()

    def cancel(self, job: Job) -> None:
        """Make no more of it: not a step after the one that may be under way."""
        with self._condition:
            job.cancelled = True
            self._condition.notify()

    def wake(self) -> None:
        """Look again at who has room."""
        with self._condition:
            self._condition.notify()

    def close(self) -> threading.Thread | None:
        """End all answers and free the model. Gives the thread that does so, if one is needed."""
        with self._condition:
            self._closed = True
            for job in (*self._waiting, *self._active):
                job.cancelled = True
            self._condition.notify()
            if self._thread is None:
                self._free()
            return self._thread

    # ---- on the thread

    def _run(self) -> None:
        while (job := self._next_turn()) is not None:
            try:
                self._step(job)
            except Exception as error:  # noqa: BLE001  # handed to who waits for the answer
                self._end(job, error)

    def _next_turn(self) -> Job | None:
        """Whose turn it is; None: nobody's, and the thread is over."""
        with self._condition:
            while True:
                self._drop_cancelled()
                while self._waiting and len(self._active) < self._max_lanes:
                    self._active.append(self._waiting.popleft())
                for _ in range(len(self._active)):
                    job = self._active.popleft()
                    self._active.append(job)
                    if job.outbox.has_room:
                        return job
                if not self._active and not self._waiting:
                    if self._closed:
                        self._free()
                    self._thread = None
                    return None
                self._condition.wait()

    def _drop_cancelled(self) -> None:
        for jobs in (self._active, self._waiting):
            for job in [job for job in jobs if job.cancelled]:
                jobs.remove(job)
                self._give_lane_back(job)
                if self._closed:
                    job.outbox.put(_closed())

    def _step(self, job: Job) -> None:
        if job.generation is None:
            job.generation = self._begin(job)
        result = job.generation.step()
        if result is not None and not job.outbox.put(result):
            self.cancel(job)
        if isinstance(result, Ended):
            self._leave(job)

    def _begin(self, job: Job) -> Generation:
        model = self._model_loaded()
        prompt = job.ask.prompt(model)
        job.lane = self._take_lane(model, prompt)
        return Generation(
            model,
            job.lane,
            prompt,
            limit_tokens=job.ask.limit_tokens,
            sampling=job.ask.sampling,
            random=Random(job.ask.seed),
        )

    def _end(self, job: Job, error: Exception) -> None:
        if not job.outbox.put(error):
            self.cancel(job)
        self._leave(job)

    def _leave(self, job: Job) -> None:
        with self._condition:
            self._active.remove(job)
            self._give_lane_back(job)

    # ---- the model and its lanes

    def _model_loaded(self) -> LanguageModel:
        if self._model is None:
            _log.info("local model loading")
            started = time.perf_counter()
            self._model = self._load()
            ms = round((time.perf_counter() - started) * 1000)
            _log.info("local model loaded", ms=ms)
        return self._model

    def _take_lane(self, model: LanguageModel, prompt: list[int]) -> Lane:
        """The free lane that has read most of the prompt, or a new one where none has read much:
        another conversation may still want its own.
        """
        best = max(self._free_lanes, key=lambda lane: lane.shared(prompt), default=None)
        is_mine = best is not None and 2 * best.shared(prompt) >= len(best.tokens)
        if best is None or (not is_mine and self._lane_count < self._max_lanes):
            lane = Lane(model.new_context())
            self._lane_count += 1
            return lane
        self._free_lanes.remove(best)
        return best

    def _give_lane_back(self, job: Job) -> None:
        # At the end: of lanes that have read equally little, the one unused longest is taken.
        if job.lane is not None:
            self._free_lanes.append(job.lane)
            job.lane = None

    def _free(self) -> None:
        self._free_lanes.clear()
        self._lane_count = 0
        if self._model is not None:
            self._model.close()
            self._model = None


def _closed() -> LocalModelError:
    return LocalModelError("model_closed", "the local model was closed", "Make another provider.")


# ---- the end of the process

_all_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    # The engine's libraries are about to be torn down: no step may be under way in them then.
    threads = [worker.close() for worker in list(_all_workers)]
    deadline = time.monotonic() + EXIT_BOUND_SECONDS
    for thread in threads:
        if thread is not None:
            thread.join(max(0.0, deadline - time.monotonic()))
