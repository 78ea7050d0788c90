"""TestLoop: an event loop whose time jumps when nothing is ready, in a replayable order."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
import selectors
import weakref
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar, cast

from typing_extensions import TypeVarTuple, Unpack

from fibers.dump import dump
from fibers.dump.chain import places_in
from fibers.loop.queue import ReadyQueue, use_queue

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable, Iterator, Mapping
    from concurrent.futures import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

IO_GRACE_SECONDS: Final = 0.05
"""Real time that something outside (a socket, a pipe, a child) gets before virtual time jumps."""
TASKS_SHOWN: Final = 20
STALL_SECONDS: Final = 5.0
"""Real time without anything that could ever happen, after which the loop gives up."""


class StalledError(RuntimeError):
    """Nothing can happen any more: no timer, no thread, no I/O. The message is a dump."""


class ShufflingQueue(ReadyQueue):
    """Lets ready fibers run in an order drawn from ``rng``, not the one they became ready in."""

    __slots__ = ("_rng",)

    def __init__(self, loop: asyncio.AbstractEventLoop, rng: random.Random) -> None:
        super().__init__(loop)
        self._rng = rng

    def run_ready(self, steps: int) -> None:
        """Let at most ``steps`` fibers run, each drawn from those that are ready then."""
        ready = self.ready
        while ready and steps:
            steps -= 1
            ready.rotate(-self._rng.randrange(len(ready)))
            super().run_ready(1)


class _Moment(float):
    """When a timer is due: of two that are due at the same time the first one set comes first.

    asyncio compares nothing but this, and its heap keeps no order among equals. On a real clock no
    two timers are equal; on a virtual one most are.
    """

    __slots__ = ("_turn",)
    _turn: int

    def __new__(cls, seconds: float, turn: int) -> Self:
        self = super().__new__(cls, seconds)
        self._turn = turn
        return self

    def __lt__(self, other: float, /) -> bool:
        if isinstance(other, _Moment) and self == other:
            return self._turn < other._turn
        return super().__lt__(other)


class TestLoop(asyncio.SelectorEventLoop):
    """An event loop for tests, of fibers and of plain asyncio code.

        with asyncio.Runner(loop_factory=TestLoop) as runner:
            runner.run(main())      # an asyncio.sleep(3600) in it takes no time

    Its time is virtual: it starts at 0 and moves only when nothing is ready, then at once to the
    next timer. Timers that are due at the same time fire in the order they were set in. It stands
    still while a thread of an executor works for the loop. Where a socket, a
    pipe or a child process is being waited for, that gets ``io_grace_seconds`` of real time before
    each jump. Work of threads that the loop wasn't told of is not seen.

    ``seed`` shuffles the order in which ready fibers run, and the steps of plain tasks among
    themselves; the same seed gives the same order again, as far as the code under test is
    deterministic itself. Other callbacks keep asyncio's order, which transports rely on. None:
    nothing is shuffled.

    Where nothing can happen any more it raises StalledError with a dump, after ``stall_seconds`` of
    real time: a test that would hang says where.
    """

    __test__ = False  # not a test class, whatever pytest thinks of the name

    def __init__(
        self,
        *,
        seed: int | None = None,
        jump: bool = True,
        io_grace_seconds: float = IO_GRACE_SECONDS,
        stall_seconds: float = STALL_SECONDS,
    ) -> None:
        self.seed = seed
        self._now_seconds = 0.0
        self._timers = itertools.count()
        self._under_way: set[asyncio.Future[Any]] = set()
        self._children: weakref.WeakSet[asyncio.SubprocessTransport] = weakref.WeakSet()
        self._io_grace_seconds = io_grace_seconds
        self._stall_seconds = stall_seconds
        self._rng = None if seed is None else random.Random(seed)
        # What is virtual only with `jump`: fibers' own clock asks for it by this name.
        self.virtual_time: Callable[[], float] | None = self._virtual_now if jump else None
        super().__init__(_JumpingSelector(self) if jump else None)
        if self._rng is not None:
            use_queue(self, ShufflingQueue(self, self._rng))

    def _virtual_now(self) -> float:
        return self._now_seconds

    def time(self) -> float:
        """Virtual seconds since the loop was made."""
        return super().time() if self.virtual_time is None else self._now_seconds

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        """As asyncio's; timers of the same time fire in the order of these calls."""
        return super().call_at(_Moment(when, next(self._timers)), callback, *args, context=context)

    def _next_timer(self) -> float | None:
        """When the next timer is due. One at infinity never is."""
        scheduled: Any = cast("Any", self)._scheduled  # asyncio's own heap of timers
        when = float(scheduled[0].when()) if scheduled else math.inf
        return None if when == math.inf else when

    def _jump_to(self, when: float) -> None:
        # The very number: now + (when - now) may fall short of it, and asyncio's own time-out ends
        # after a day.
        self._now_seconds = max(self._now_seconds, when)
        # asyncio runs what is due before now + resolution: that has to be more than now, also in
        # the years where a float no longer tells nanoseconds apart.
        loop: Any = self
        loop._clock_resolution = max(loop._clock_resolution, math.ulp(self._now_seconds))

    # ------------------------------------------------------------------ what goes on outside

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As asyncio's; time stands still until the thread is done."""
        future = super().run_in_executor(executor, func, *args)
        # Never done here: also where the executor worked at once, its outcome takes a turn.
        self._under_way.add(future)
        future.add_done_callback(self._under_way.discard)
        return future

    async def shutdown_default_executor(self, *args: Any, **options: Any) -> None:
        """As asyncio's, which waits for a thread of its own; its time-out is no virtual one."""
        joined: asyncio.Future[Any] = self.create_future()
        self._under_way.add(joined)
        try:
            await super().shutdown_default_executor(*args, **options)
        finally:
            self._under_way.discard(joined)

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        """As asyncio's; the child counts as something to wait for."""
        transport, protocol = await super().subprocess_exec(*args, **options)
        self._children.add(transport)
        return transport, protocol

    async def subprocess_shell(self, *args: Any, **options: Any) -> Any:
        """As asyncio's; the child counts as something to wait for."""
        transport, protocol = await super().subprocess_shell(*args, **options)
        self._children.add(transport)
        return transport, protocol

    def _outside_waits(self, registered: int) -> bool:
        # The loop's own pipe, by which other threads wake it, is always registered.
        return registered > 1 or any(child.get_returncode() is None for child in self._children)

    # ------------------------------------------------------------------ order

    def _run_once(self) -> None:
        if self._rng is not None:
            self._shuffle_tasks(self._rng)
        own: Any = super()  # a private method of asyncio's, not in its stubs
        own._run_once()

    def _shuffle_tasks(self, rng: random.Random) -> None:
        ready: Any = cast("Any", self)._ready  # asyncio's own deque of handles
        places = [at for at, handle in enumerate(ready) if _steps_a_task(handle)]
        if len(places) > 1:
            handles = [ready[at] for at in places]
            rng.shuffle(handles)
            for at, handle in zip(places, handles, strict=True):
                ready[at] = handle


def _steps_a_task(handle: Any) -> bool:
    return isinstance(getattr(handle._callback, "__self__", None), asyncio.Task)


def _waiting_tasks(loop: asyncio.AbstractEventLoop) -> Iterator[str]:
    """Plain tasks and where they stand: ``dump`` shows fibers only."""
    every: Any = asyncio.all_tasks(loop)  # fibers among them
    tasks: list[asyncio.Task[Any]] = [task for task in every if isinstance(task, asyncio.Task)]
    for task in tasks[:TASKS_SHOWN]:
        places = ", ".join(places_in(task.get_coro()))
        yield f"task {task.get_name()!r}, at {places}" if places else f"task {task.get_name()!r}"
    if len(tasks) > TASKS_SHOWN:
        yield f"... {len(tasks) - TASKS_SHOWN} more tasks"


class _JumpingSelector(selectors.DefaultSelector):
    """Where the loop would sleep until the next timer, its time jumps there."""

    def __init__(self, loop: TestLoop) -> None:
        super().__init__()
        self._loop = weakref.ref(loop)  # the loop holds its selector

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        events = super().select(0)
        loop = self._loop()
        if events or loop is None or (timeout is not None and timeout <= 0):
            return events
        if loop._under_way:
            return super().select(None)
        when = loop._next_timer()
        registered: Mapping[Any, Any] = self.get_map()
        if loop._outside_waits(len(registered)):
            events = super().select(loop._io_grace_seconds)
            if events or when is None:
                return events
        if when is None:
            events = super().select(loop._stall_seconds)
            if events:
                return events
            raise StalledError(
                "nothing can happen any more: no timer, no thread, no I/O. What waits:\n"
                + "\n".join([dump(), *_waiting_tasks(loop)])
            )
        loop._jump_to(when)
        return []
