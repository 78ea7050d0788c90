"""What a fiber is made of, how it waits and wakes, and what asyncio asks of any task.

The class grows in four steps, each a module: state (here), interrupts, bodies, run_loop. One
object, one set of slots: a fiber made of parts would pay for each part, in bytes and in hops.
"""

from __future__ import annotations

import itertools
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Protocol, cast

from returns.result import Success

from fibers.cause import EMPTY
from fibers.exit import failed, succeeded
from fibers.loop import hooks
from fibers.loop.inner_task import NOTHING_TOLD, InnerTask
from fibers.loop.native import hand_over, speed, twins
from fibers.loop.protocol import FAIL, NEXT, SUSPEND, Signal, Wait
from fibers.loop.states import ENDED, NEW, READY, RUNNING, SUSPENDED

if TYPE_CHECKING:
    import contextvars
    from collections.abc import Callable
    from types import CodeType

    from fibers.cause import Cause
    from fibers.loop.ends import EndFibers, Unheard
    from fibers.loop.groups import FailingGroup
    from fibers.loop.observing import Observer
    from fibers.loop.protocol import Node
    from fibers.loop.queue import ReadyQueue
    from fibers.loop.run_loop import FiberCore

_ids = itertools.count(1)
_new = object.__new__


class Undo(Protocol):
    """Something that was done, as the fiber knows it."""

    def _undo(self, outcome: Any) -> None:
        """As if it had not been."""


class Rare:
    """What hardly any fiber has, in one slot: all others share the one that says "nothing"."""

    __slots__ = (
        "asked",
        "closer",
        "closing",
        "cut",
        "groups",
        "name",
        "region",
        "task",
        "undo",
        "unheard",
    )

    def __init__(self) -> None:
        # Inner tasks with cancel() requests not given back.
        self.asked: list[InnerTask] | None = None
        # Whose close this fiber runs a finalizer of (SO6).
        self.closer: Any = None
        # Closes that wait for this fiber.
        self.closing: tuple[EndFibers, ...] | None = None
        # Interrupted, and what its body awaits has to end first.
        self.cut: bool = False
        # Failing task groups of asyncio's that have not raised yet.
        self.groups: list[FailingGroup] | None = None
        self.name: str | None = None
        # The innermost open region of a body (PD17).
        self.region: Any = None
        self.task: Any = None
        # What its last act was, where that can be taken back.
        self.undo: Undo | None = None
        # Failures of children that nobody has looked at.
        self.unheard: Unheard | None = None


_NOTHING_RARE: Final = Rare()
_NO_FRAMES: Final[list[Any]] = []


class _Fields:
    """What a fiber consists of."""

    __slots__ = (
        "__weakref__",
        "_attn",
        "_base_mask",
        "_cause",
        "_children",
        "_cont",
        "_ctx",
        "_delivered",
        "_env",
        "_exit",
        "_face",
        "_icause",
        "_mask",
        "_next",
        "_observers",
        "_ok",
        "_owner",
        "_pend",
        "_queue",
        "_rare",
        "_registered",
        "_result",
        "_rv",
        "_seen",
        "_site",
        "_stack",
        "_stale",
        "_state",
        "_switch",
        "_thrown",
        "_wait",
        "id",
    )

    id: int
    _mask: int
    _base_mask: int
    _stale: int
    _delivered: int
    _ctx: contextvars.Context
    _env: dict[str, Any]
    _face: InnerTask
    _ok: bool
    _result: Any
    _exit: Any
    _rv: Any
    _cause: Cause[Any]
    _next: Any
    _wait: Any
    _switch: FiberCore

    def __init__(
        self,
        queue: ReadyQueue,
        effect: Node,
        context: contextvars.Context,
        env: dict[str, Any],
        mask: int,
        site: tuple[CodeType, int] | None,
    ) -> None:
        self.id = next(_ids)
        self._queue = queue
        self._ctx = context
        self._env = env
        self._mask = mask
        self._base_mask = mask
        self._site = site
        # Bodies and frames, outermost first. Empty: what comes now is the fiber's own outcome.
        self._stack: list[Any] = []
        self._rv = NEXT
        self._next = effect
        self._wait = None
        self._stale = 0
        self._state = NEW
        self._icause: Cause[Any] | None = None
        self._pend = False
        self._attn = False
        # How often the fiber's own interrupt was thrown into a body; what was thrown, with its
        # cause and whether it lands again, while the body has neither let it pass nor handled it.
        self._delivered = 0
        self._thrown: tuple[BaseException, Cause[Any], bool] | None = None
        # The rest of a primitive that switched to another fiber: it is over before anything lands.
        self._cont: Node | None = None
        # Its constructor would cost more than what it does: every fiber pays for one.
        face = _new(InnerTask)
        face._fiber = self  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # every fiber is a FiberCore
        face._depth = mask
        face._told = NOTHING_TOLD
        self._face = face
        self._exit = None
        self._observers: list[Observer] | None = None
        self._children: dict[FiberCore, None] | None = None
        self._owner: Any = None
        self._registered = False
        self._seen = False
        self._rare = _NOTHING_RARE


if TYPE_CHECKING or speed is None:
    _Base = _Fields
else:
    _Base = speed.Fiber


def _exit_made(self: FiberState) -> Any:
    """The exit, made when somebody wants it."""
    if self._exit is None:
        result = self._result
        self._exit = succeeded(result) if self._ok else failed(result)
    return self._exit


@twins("_suspend", "_yield_turn", "_register", "_wake", "_wake_cause", "_wake_next", "_exit_made")
class FiberState(_Base):
    """The small moves: suspend, yield, wake, and what is left at the end."""

    __slots__ = ()

    _asyncio_future_blocking = False  # there, as asyncio.isfuture asks; nobody ever sets it

    def _own_rare(self) -> Rare:
        """The rare state to write to."""
        rare = self._rare
        if rare is _NOTHING_RARE:
            rare = self._rare = Rare()
        return rare

    @property
    def _name(self) -> str | None:
        return self._rare.name

    @_name.setter
    def _name(self, value: str | None) -> None:
        self._own_rare().name = value

    @property
    def _task(self) -> Any:
        """The plain task whose root this fiber is (PD12)."""
        return self._rare.task

    @_task.setter
    def _task(self, value: Any) -> None:
        self._own_rare().task = value

    # ------------------------------------------------------------------ suspending and waking

    def _suspend(self, wait: Any) -> Signal:
        self._wait = wait
        self._state = SUSPENDED
        if not self._registered:
            self._register()
        closing = self._rare.closing
        if closing is not None:
            for close in closing:
                close.let_go(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # see __init__
        return SUSPEND

    def _yield_turn(self) -> Signal:
        if not self._registered:
            self._register()
        queue = self._queue
        queue.turn.append(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # see __init__
        self._state = READY  # not earlier: see _stay
        if not queue._armed:
            queue._arm()
        return SUSPEND

    def _register(self) -> None:
        self._registered = True
        self._queue.live[self] = monotonic()  # type: ignore[index]  # pyright: ignore[reportArgumentType]  # see __init__
        if self._queue.loop is not None:
            hooks.register_task(self)

    def _wake(self, value: Any) -> None:
        """Go on with ``value``, in turn."""
        self._wait = None
        self._rv = value
        self._state = READY
        queue = self._queue
        queue.ready.append(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # see __init__
        if not queue._armed:
            queue._arm()

    def _wake_cause(self, cause: Cause[Any]) -> None:
        self._cause = cause
        self._wake(FAIL)

    def _wake_next(self, node: Node) -> None:
        self._next = node
        self._wake(NEXT)

    def _stay(self) -> None:
        """It raised as it suspended, so it goes on: nothing may wake it from there any more."""
        wait = self._wait
        if isinstance(wait, Wait):
            wait._abandon(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # see __init__
        self._wait = None
        if self._state == READY:  # it yielded: its place in the queue is void
            self._stale += 1
        self._state = RUNNING

    def _put_off(self) -> Signal:
        """Unwind with ``_cause`` in turn, where the stack is less deep."""
        self._rv = FAIL
        queue = self._queue
        queue.ready.append(self)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # see __init__
        self._state = READY
        queue.wake_loop()
        return SUSPEND

    def _future_waited_for(self) -> Any:
        """The asyncio future that the top body awaits directly, else None."""
        wait = self._wait
        return None if wait is None or isinstance(wait, Wait) else wait

    # ------------------------------------------------------------------ the end

    def _let_go(self) -> None:
        """An ended fiber holds nothing of its run: its context may be large (PD13)."""
        self._stack = _NO_FRAMES
        self._ctx = None  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # an ended fiber runs no more
        self._env = None  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # see above
        self._next = None
        self._cause = EMPTY
        rare = self._rare
        if rare is not _NOTHING_RARE:
            rare.closer = rare.closing = rare.groups = None
        del self._face

    _exit_made = _exit_made  # a method, and by its own name for the twin

    def _watch(self, observer: Observer) -> None:
        if self._observers is None:
            self._observers = [observer]
        else:
            self._observers.append(observer)

    def _unwatch(self, observer: Observer) -> None:
        if self._observers is not None and observer in self._observers:
            self._observers.remove(observer)

    # ------------------------------------------------------------------ asyncio's view; see Fiber

    def done(self) -> bool:
        """Whether it has ended, its children included."""
        return self._state == ENDED

    def get_loop(self) -> Any:
        """The event loop that it runs in; None in ``run_sync`` where no loop runs."""
        return self._queue.loop

    def get_name(self) -> str:
        """Its name, ``fiber-<id>`` unless ``set_name`` gave another."""
        return self._name or f"fiber-{self.id}"

    def set_name(self, value: object) -> None:
        """Name it, for dumps and for asyncio's debug messages."""
        self._name = str(value)

    def get_coro(self) -> Any:
        """The innermost coroutine of this fiber, or None."""
        for frame in reversed(self._stack):
            if type(frame) is CoroutineType:
                return frame  # pyright: ignore[reportUnknownVariableType]  # a coroutine of anything
        return None

    def get_context(self) -> contextvars.Context:
        """The Context that it runs in (PD10, PD12); let go of at its end."""
        return self._ctx

    def get_stack(self, *, limit: int | None = None) -> list[Any]:
        """The frames of its suspended bodies, outermost first; ``limit``: the last so many."""
        frames = [f.cr_frame for f in self._stack if type(f) is CoroutineType and f.cr_frame]
        return frames if limit is None else frames[-limit:]

    @property
    def _callbacks(self) -> list[Any]:
        raise NotImplementedError

    def cancelled(self) -> bool:
        """Whether it has ended by interrupts and nothing else."""
        raise NotImplementedError

    def result(self) -> Any:
        """The value of an ended fiber, or its error raised."""
        raise NotImplementedError

    def exception(self) -> BaseException | None:
        """The error of an ended fiber, None after a success."""
        raise NotImplementedError

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        """Let the loop call ``fn(fiber)`` once it has ended, in ``context``."""
        raise NotImplementedError

    def _call_when_done(
        self,
        fn: Callable[[Any], object],
        task: InnerTask | None,
        context: contextvars.Context | None,
    ) -> None:
        """``add_done_callback`` of ``task``, an inner task of it, which ``fn`` then gets."""
        raise NotImplementedError

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        """Forget ``fn``; gives how often it was registered."""
        raise NotImplementedError


hand_over(
    monotonic=monotonic,
    EMPTY=EMPTY,
    NOTHING_RARE=_NOTHING_RARE,
    slow_exit_made=_exit_made,
    Success=Success,
    inner_value=cast("Any", Success)._inner_value,
)
