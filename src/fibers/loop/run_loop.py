"""The run loop: one fiber, its stack of frames, and where an interrupt lands in it.

A FiberCore drives its coroutines itself. An effect awaited in a body is yielded to the loop, which
evaluates it on the fiber's own stack, so neither long chains nor deep recursion touch Python's.

Interrupt state (sections WI and PD2 of the semantics):

- ``_icause``: every interrupt ever asked for, or None.
- ``_pend``: it still has to land. Cleared when it is thrown into a body (the body's cleanup runs
  undisturbed), set again when that body ends.
- ``_mask``: how many regions protect what runs now; 0 is interruptible.
- ``_attn``: something has to be looked at before the next primitive. The only polling there is.
"""

from __future__ import annotations

import contextvars
import functools
import itertools
import logging
import sys
import weakref
from asyncio import CancelledError
from time import monotonic
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from fibers.cause import (
    EMPTY,
    Cause,
    Die,
    Fail,
    FiberDeadlockError,
    FiberInterrupted,
    Interrupt,
    TaskCancel,
    add_note_once,
    forget_traceback,
    interrupt_error,
    interrupt_of,
    landed,
)
from fibers.exit import failed, succeeded
from fibers.loop import hooks, traps
from fibers.loop.inner_task import InnerTask
from fibers.loop.protocol import DONE, FAIL, NEXT, SUSPEND, SWITCH, Frame, Node, Signal, Wait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from types import CodeType, TracebackType

    from fibers.loop.queue import ReadyQueue

OP_BUDGET_PRIMITIVES: Final = 2048
"""Primitives in one step before the loop gets a turn (WI9)."""
NESTING_LIMIT_CALLS: Final = 100
"""Plain calls that may run fibers inside each other; effects don't nest (PD16)."""
_KEPT_REASONS: Final = 8
"""Failures seen by one body that are remembered before dead ones are dropped."""

NEW: Final = 0
READY: Final = 1
RUNNING: Final = 2
SUSPENDED: Final = 3
ENDED: Final = 4

STATE_NAMES: Final = ("not started", "ready", "running", "suspended", "ended")

_ids = itertools.count(1)
_log = logging.getLogger("fibers")
_FATAL: Final = (KeyboardInterrupt, SystemExit)


class Caught(Frame):
    """What one body has seen, right under its coroutine; made at its first failure or region."""

    __slots__ = ("cause", "exc", "own", "rearm", "regions", "seen")

    own: Cause[Any] | None

    def __init__(self) -> None:
        # The exception thrown last, and the whole cause that it stood for.
        self.exc: BaseException | None = None
        self.cause: Cause[Any] | None = None
        # The fiber's own interrupt was thrown in here, with this cause; it has to land again when
        # the body ends.
        self.own = None
        self.rearm = False
        # Failures and defects of awaited effects, by identity (PD4).
        self.seen: list[Fail[Any] | Die] = []
        self.regions: list[Any] = []

    def remember(self, reason: Fail[Any] | Die) -> None:
        seen = self.seen
        if len(seen) >= _KEPT_REASONS:
            # An exception that only this list refers to can't be raised again. Held by: the
            # reason, the local name and the argument of getrefcount.
            seen[:] = [r for r in seen if not _forgotten(r)]
        seen.append(reason)

    def reason_for(self, exc: BaseException) -> Fail[Any] | Die | None:
        # The last one: a shared object may have failed before and died now.
        return next((r for r in reversed(self.seen) if _error_in(r) is exc), None)

    def close_regions(self, fiber: FiberCore) -> BaseException | None:
        """Regions that the body left open: closed here, and a defect (PD17)."""
        if not self.regions:
            return None
        outermost = self.regions[0]
        count = len(self.regions)
        self.regions.clear()
        outermost.force_close(fiber)
        return RuntimeError(
            f"{count} uninterruptible region(s) still open when the body ended: "
            "leave each with its `with` block"
        )

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        broken = self.close_regions(fiber)
        if self.rearm:
            fiber._pend = True
        if fiber._pend and not fiber._mask:
            assert fiber._icause is not None
            cause = fiber._icause
            fiber._cause = cause if broken is None else landed(Cause((Die(broken),)), cause)
            return FAIL
        if broken is not None:
            fiber._cause = Cause((Die(broken),))
            return FAIL
        return value


def _error_in(reason: Fail[Any] | Die) -> BaseException:
    error: BaseException = reason.error if isinstance(reason, Fail) else reason.defect
    return error


def _forgotten(reason: Fail[Any] | Die) -> bool:
    error = _error_in(reason)
    return sys.getrefcount(error) <= 3


class Declares(Frame):
    """Under a body's coroutine: the error types that the body may fail with (PD4)."""

    __slots__ = ("name", "raises")

    def __init__(self, raises: tuple[type[BaseException], ...], name: str) -> None:
        self.raises = raises
        self.name = name


class MaskEnd(Frame):
    """The end of a region made by a combinator: the mask and the inner task of outside come back,
    and what is pending lands (IN4, IN7).
    """

    __slots__ = ("face", "mask")

    def __init__(self, fiber: FiberCore) -> None:
        self.mask = fiber._mask
        self.face = fiber._face

    def leave(self, fiber: FiberCore) -> None:
        fiber._mask = self.mask
        if fiber._face is not self.face:
            fiber._face = self.face
            hooks.swap_current(fiber._queue.loop, self.face)
        if fiber._asked:
            fiber._attn = True

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        self.leave(fiber)
        if fiber._pend and not self.mask:
            fiber._cause = fiber._own_cause()
            return FAIL
        return value

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        self.leave(fiber)
        if fiber._pend and not self.mask:
            cause = landed(cause, fiber._own_cause())
        fiber._cause = cause
        return FAIL


class _Bottom(Frame):
    """The end of every stack."""

    __slots__ = ()

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        return fiber._end(True, value)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        return fiber._end(False, cause)


class _EndOfParent(Frame):
    """The fiber's outcome, withheld until its children are done (WI8)."""

    __slots__ = ("asked", "ok", "result")

    def __init__(self, fiber: FiberCore, ok: bool, result: Any) -> None:
        self.ok = ok
        self.result = result
        self.asked = fiber._icause

    def _val(self, fiber: FiberCore, value: Any) -> Any:
        fiber._mask -= 1
        if fiber._icause is not self.asked and not fiber._base_mask:
            # Interrupted while it waited: a success becomes I, a failure keeps its cause.
            own = fiber._own_cause()
            self.result = own if self.ok else landed(self.result, own)
            self.ok = False
        return fiber._end(self.ok, self.result)

    def _err(self, fiber: FiberCore, cause: Cause[Any]) -> Any:
        raise AssertionError(f"waiting for children can't fail: {cause}")


_BOTTOM: Final = _Bottom()


class Observer:
    """Called when a fiber ends. Fibers that wait and user callbacks are both observers."""

    __slots__ = ()

    def _fiber_done(self, fiber: FiberCore) -> None:
        raise NotImplementedError


class _Remote(Observer):
    """An observer in another loop than the fiber that it observes: told there (AT16)."""

    __slots__ = ("loop", "observer")

    def __init__(self, observer: Observer, loop: Any) -> None:
        self.observer = observer
        self.loop = loop

    def _fiber_done(self, fiber: FiberCore) -> None:
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self.observer._fiber_done, fiber)


def watch(target: FiberCore, observer: Observer, waiter: FiberCore) -> None:
    """Tell ``observer``, in ``waiter``'s loop, when ``target`` has ended."""
    if target._queue.loop is waiter._queue.loop:
        target._watch(observer)
        return
    remote = _Remote(observer, waiter._queue.loop)

    def begin() -> None:
        if target._state == ENDED:
            remote._fiber_done(target)
        else:
            target._watch(remote)

    target._elsewhere(begin)


def unwatch(target: FiberCore, observer: Observer, waiter: FiberCore) -> None:
    """Undo ``watch``."""
    if target._queue.loop is waiter._queue.loop:
        target._unwatch(observer)
        return

    def end() -> None:
        for at in target._observers or ():
            if isinstance(at, _Remote) and at.observer is observer:
                target._unwatch(at)
                return

    target._elsewhere(end)


class EndFibers(Node, Wait, Observer):
    """Interrupt all of ``targets`` in order, then wait for all: everyone is signalled before
    anyone is awaited. One object is node, wait and observer of one evaluation.
    """

    __slots__ = ("again", "at", "leads_to", "left", "targets", "waiter", "why")

    def __init__(
        self,
        targets: list[FiberCore],
        why: Interrupt,
        *,
        again: bool = False,
        leads_to: Callable[[FiberCore, FiberCore], bool] | None = None,
    ) -> None:
        self.targets = targets
        self.why = why
        self.again = again
        # For a close: does a target wait for the closer? Then it is signalled and not awaited, also
        # where it begins to wait later (SO6).
        self.leads_to = leads_to
        self.at = 0
        self.left = 0
        self.waiter: FiberCore | None = None

    def _ev(self, fiber: FiberCore) -> Any:
        while self.at < len(self.targets):
            target = self.targets[self.at]
            self.at += 1
            if target._queue.loop is not fiber._queue.loop:
                # Asked for there: its mask may be another by then.
                target._elsewhere(functools.partial(target._interrupt_here, self.why, self.again))
            elif target._ask(self.why, self.again) and target is not fiber and target._cut_loose():
                fiber._cont = self
                fiber._switch = target
                return SWITCH
        self.waiter = fiber
        for target in self.targets:
            if target._state == ENDED or target is fiber:
                continue
            if self.leads_to is not None:
                if self.leads_to(target, fiber):
                    continue
                target._closing = (*(target._closing or ()), self)
            self.left += 1
            watch(target, self, fiber)
        if not self.left:
            return None
        return fiber._suspend(self)

    def _fiber_done(self, fiber: FiberCore) -> None:
        self.left -= 1
        if not self.left and self.waiter is not None:
            self.waiter._wake(None)

    def let_go(self, target: FiberCore) -> None:
        """``target`` suspends: if it waits for the closer now, it is no longer awaited."""
        waiter = self.waiter
        if waiter is None or self.leads_to is None or not self.leads_to(target, waiter):
            return
        target._closing = tuple(c for c in target._closing or () if c is not self) or None
        unwatch(target, self, waiter)
        self._fiber_done(target)

    def _abandon(self, fiber: FiberCore) -> None:
        self.waiter = None
        for target in self.targets:
            unwatch(target, self, fiber)

    def _waits_for(self) -> Iterable[Any]:
        return [t for t in self.targets if t._state != ENDED]

    def _label(self) -> str:
        ids = ", ".join(f"#{t.id}" for t in self.targets if t._state != ENDED)
        return f"the end of {ids}"


class Unheard:
    """Failed fibers that nobody has looked at yet, held weakly: their owner reports those that are
    still there when it ends (PD8).
    """

    __slots__ = ("_fibers",)

    def __init__(self) -> None:
        self._fibers: weakref.WeakSet[FiberCore] = weakref.WeakSet()

    def add(self, fiber: FiberCore) -> None:
        self._fibers.add(fiber)

    def report(self) -> None:
        for fiber in sorted(self._fibers, key=lambda f: f.id):
            fiber._report()
        self._fibers.clear()


class _FailingGroup:
    """A TaskGroup of asyncio's with a failed task. When it raises, a cancel that was thrown into it
    is gone (3.13's asks its parent again, for asyncio's own cancels), and on 3.11 and 3.12 one that
    it asked for itself while it was being left is never given back.
    """

    __slots__ = ("dropped_own", "face", "gave_back", "group", "over")

    def __init__(self, face: InnerTask, group: Any) -> None:
        self.face = face
        self.group = group
        # The fiber's own interrupt was thrown into it.
        self.dropped_own = False
        self.gave_back = False
        self.over = False


class FiberCore:
    """A fiber without its public face: what the run loop needs of it."""

    __slots__ = (
        "__weakref__",
        "_asked",
        "_asyncio_future_blocking",
        "_attn",
        "_base_mask",
        "_cause",
        "_children",
        "_closing",
        "_cont",
        "_ctx",
        "_cut",
        "_delivered",
        "_env",
        "_exit",
        "_face",
        "_groups",
        "_icause",
        "_mask",
        "_name",
        "_next",
        "_observers",
        "_ok",
        "_owner",
        "_pend",
        "_queue",
        "_region",
        "_registered",
        "_result",
        "_rv",
        "_seen",
        "_site",
        "_stack",
        "_stale",
        "_state",
        "_switch",
        "_task",
        "_unheard",
        "_wait",
        "id",
    )

    id: int
    _ctx: contextvars.Context
    _env: dict[str, Any]
    _result: Any
    _exit: Any
    _rv: Any
    _cause: Cause[Any]
    _next: Node
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
        self._stack: list[Any] = [_BOTTOM]
        self._rv = NEXT
        self._next = effect
        self._wait = None
        self._stale = 0
        self._state = NEW
        self._icause: Cause[Any] | None = None
        self._pend = False
        self._attn = False
        self._cut = False
        self._delivered = 0
        # The rest of a primitive that switched to another fiber: it is over before anything lands.
        self._cont: Node | None = None
        # Inner tasks with cancel() requests not given back.
        self._asked: list[InnerTask] | None = None
        self._face = InnerTask(self, mask)
        # Failing task groups of asyncio's that have not raised yet.
        self._groups: list[_FailingGroup] | None = None
        self._ok = False
        self._exit = None
        self._observers: list[Observer] | None = None
        self._children: dict[FiberCore, None] | None = None
        # Closes that wait for this fiber.
        self._closing: tuple[EndFibers, ...] | None = None
        self._owner: Any = None
        self._registered = False
        self._seen = False
        self._region: Any = None
        self._task: Any = None
        self._unheard: Unheard | None = None
        self._name: str | None = None
        self._asyncio_future_blocking = False

    # ------------------------------------------------------------------ driving

    def _drive(self, *, here: bool = False) -> None:
        """Run this fiber, and whom it switches to, until each is suspended or has ended.

        ``here``: the Context that runs now is this fiber's own (PD12).
        """
        queue = self._queue
        loop = queue.loop
        fiber: FiberCore = self
        waiting: list[FiberCore] | None = None
        before = hooks.swap_current(loop, self._face)
        queue.depth += 1
        queue.steps += 1
        try:
            while True:
                if here and fiber is self:
                    signal = fiber._run()
                else:
                    try:
                        signal = fiber._ctx.run(fiber._run)
                    except RuntimeError as exc:
                        if not str(exc).startswith("cannot enter context"):
                            raise
                        # A root fiber that shares its task's Context (PD12), while code of that
                        # Context runs below: in turn, as soon as that code is suspended.
                        fiber._state = READY
                        queue.push(fiber)
                        signal = SUSPEND
                if signal is SWITCH:
                    if waiting is None:
                        waiting = []
                    waiting.append(fiber)
                    fiber = fiber._switch
                    del waiting[-1]._switch
                elif waiting:
                    fiber = waiting.pop()
                else:
                    break
                hooks.swap_current(loop, fiber._face)
        finally:
            queue.depth -= 1
            hooks.swap_current(loop, before)
            # A failure's traceback holds the body's frame, which on 3.12+ leads by f_back to this
            # frame and to its callers. None of them may keep the fiber (PD13), so each drops its
            # own name for it when it is done.
            del self, fiber, waiting, before

    def _run(self) -> Signal:
        """One step: until the fiber suspends, switches or ends."""
        self._state = RUNNING
        stack = self._stack
        top: Any = None
        value: Any = self._rv
        self._rv = None
        ops = OP_BUDGET_PRIMITIVES
        while True:
            try:
                if self._cont is not None:
                    cont, self._cont = self._cont, None
                    value = cont._ev(self)
                    del cont
                while True:
                    if self._attn:
                        value = self._attend(value)
                    if type(value) is Signal:
                        if value is NEXT:
                            ops -= 1
                            if not ops:
                                self._rv = NEXT
                                self._yield_turn()
                                del self, stack, top  # see _drive
                                return SUSPEND
                            value = self._next._ev(self)
                        elif value is FAIL:
                            top = stack[-1]
                            if type(top) is CoroutineType:
                                value = self._throw_into(top)
                            else:
                                stack.pop()
                                value = top._err(self, self._cause)
                        else:
                            del self, stack, top  # see _drive
                            return value
                        continue
                    top = stack[-1]
                    if type(top) is CoroutineType:
                        try:
                            value = top.send(value)  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]  # a coroutine of anything
                        except StopIteration as stop:
                            stack.pop()
                            value = stop.value
                            continue
                        except BaseException as exc:
                            stack.pop()
                            value = self._left(exc)
                            continue
                        if isinstance(value, Node):
                            if self._attn or ops <= 1:
                                self._next = value
                                value = NEXT
                                continue
                            ops -= 1
                            value = value._ev(self)
                        else:
                            value = self._await_future(value)
                    else:
                        stack.pop()
                        value = top._val(self, value)
            except BaseException as exc:
                if self.done():
                    # Somebody who heard of the end raised. It can't start the fiber again.
                    _log.exception("the end of fiber #%d was not taken well", self.id)
                    if isinstance(exc, _FATAL):
                        self._queue.stop_for(exc)
                    value = DONE
                else:
                    value = self._defect(exc)

    def _attend(self, value: Any) -> Any:
        """Something was asked for while the fiber ran: does it land before ``value`` goes on?"""
        if value is SWITCH or value is DONE:
            return value
        self._attn = False
        if self._groups is not None:
            self._look_at_groups()
        if self._pend and not self._mask:
            cause: Cause[Any] = self._own_cause()
        elif (face := self._due()) is not None:
            if value is SUSPEND and not isinstance(self._wait, Wait) and self._wait is not None:
                # asyncio's own order: cancel what is awaited, go on when that has ended.
                if self._wait.cancel(msg=face._msg):
                    face._must = False
                return value
            face._must = False
            cause = Cause((TaskCancel(face._make_cancelled_error()),))
        else:
            return value
        if value is SUSPEND:
            if self._state == READY:
                self._stale += 1
            elif not self._stop_waiting():
                return SUSPEND
            self._state = RUNNING
            if self._rv is FAIL:
                cause = landed(self._cause, cause)
            self._rv = None
        elif value is FAIL:
            cause = landed(self._cause, cause)
        elif type(value) is not Signal:
            traps.pass_on_wake_up(self.get_coro())
        self._cause = cause
        return FAIL

    def _due(self) -> InnerTask | None:
        """An inner task whose cancel() can be thrown here: opened under the masks that hold."""
        for face in self._asked or ():
            if face._must and self._mask <= face._depth:
                return face
        return None

    def _defect(self, exc: BaseException) -> Any:
        """A callback raised: a defect (EX6)."""
        tb = _user_part(exc.__traceback__)
        forget_traceback(exc)
        self._cause = Cause((Die(exc, tb),))
        return FAIL

    # ------------------------------------------------------------------ bodies

    def _await_future(self, yielded: Any) -> Any:
        """A body yielded something that is no effect: asyncio's side of the house."""
        if yielded is None:
            self._rv = None
            return self._yield_turn()
        if getattr(yielded, "_asyncio_future_blocking", None):
            yielded._asyncio_future_blocking = False
            if type(yielded) is InnerTask and yielded._fiber is self:
                raise FiberDeadlockError(
                    f"fiber #{self.id} would wait for itself: Task awaits itself"
                )
            if yielded.get_loop() is not self._queue.loop:
                raise RuntimeError(
                    f"fiber #{self.id} got a future of a different loop: {yielded!r}"
                )
            yielded.add_done_callback(self._future_done, context=self._queue.context)
            return self._suspend(yielded)
        raise RuntimeError(
            f"a body in a fiber awaited {yielded!r}, which is neither an effect nor an asyncio "
            "future"
        )

    def _future_done(self, future: Any) -> None:
        if self._wait is not future:
            return
        self._wait = None
        if self._cut:
            self._cut = False
            self._rv = FAIL
            self._cause = self._joined_by(future)
        else:
            self._rv = None
            if self._attn and not future.cancelled():
                # Something else will be thrown: its failure counts as looked at all the same.
                future.exception()
        self._drive()
        del self  # see _drive

    def _throw_into(self, coro: Any) -> Any:
        exc = self._exception_for(self._cause)
        yielded: Any = None
        try:
            yielded = coro.throw(exc)
            outcome: Any = NEXT
        except StopIteration as stop:
            self._stack.pop()
            outcome = stop.value
            coro = None
        except BaseException as raised:
            self._stack.pop()
            outcome = self._left(raised)
            coro = None
        _clear_await(exc.__traceback__)
        if coro is not None:
            if isinstance(yielded, Node):
                self._next = yielded
            else:
                outcome = self._await_future(yielded)
        del self, coro, exc, yielded  # see _drive
        return outcome

    def _mark(self) -> Caught:
        """The record of the body on top of the stack."""
        stack = self._stack
        below = stack[-2]
        if type(below) is Caught:
            return below
        mark = Caught()
        stack.insert(-1, mark)
        return mark

    def _exception_for(self, cause: Cause[Any]) -> BaseException:
        """What the body on top sees of ``cause``."""
        mark = self._mark()
        own = self._own_interrupt(cause)
        exc: BaseException
        if own is not None:
            exc = interrupt_error(own)
            self._deliver(mark, cause)
        else:
            chosen = cause._chosen()
            travelling = None if chosen is not None else _task_cancel(cause)
            if travelling is not None:
                exc = travelling.exc
            else:
                exc = cause.squash()
                if chosen is not None:
                    mark.remember(chosen)
        mark.exc = exc
        mark.cause = cause
        return exc

    def _deliver(self, mark: Caught, cause: Cause[Any]) -> None:
        """The fiber's own interrupt goes into the body of ``mark``."""
        mark.own = cause
        self._delivered += 1
        for failing in self._groups or ():
            failing.dropped_own |= not traps.has_raised(failing.group)
        # Both asked for in one tick are one CancelledError, as two cancel() calls are.
        for face in self._asked or ():
            if self._mask <= face._depth:
                face._must = False
        if self._pend and not self._mask:
            self._pend = False
            mark.rearm = True

    def _left(self, exc: BaseException) -> Any:
        """``exc`` left a body, whose coroutine is off the stack: which cause is it?"""
        stack = self._stack
        mark: Caught | None = None
        raises: tuple[type[BaseException], ...] = ()
        name: str | None = None
        if type(stack[-1]) is Caught:
            mark = stack.pop()
        if type(stack[-1]) is Declares:
            declared: Declares = stack.pop()
            raises, name = declared.raises, declared.name
        tb = _user_part(exc.__traceback__)
        cause: Cause[Any]
        if isinstance(exc, CancelledError):
            if mark is not None and mark.own is not None and self._is_own(exc):
                cause = _judged(mark.own, raises)
            elif any(self._mask <= face._depth for face in self._asked or ()):
                cause = Cause((TaskCancel(exc),))
            else:
                cause = Cause((Die(exc, tb),))
        elif isinstance(exc, FiberInterrupted):
            cause = exc.cause
        else:
            seen = None if mark is None else mark.reason_for(exc)
            reason = _classify(exc, tb, raises, name, seen)
            if mark is not None and mark.cause is not None and exc is mark.exc:
                cause = _passed_on(mark.cause, exc, reason, raises)
            else:
                cause = Cause((reason,))
            forget_traceback(exc)
        if mark is not None:
            broken = mark.close_regions(self)
            if broken is not None:
                cause = cause.combine(Cause((Die(broken),)))
            if mark.rearm:
                self._pend = True
                if not self._mask:
                    cause = landed(cause, self._own_cause())
        self._cause = cause
        return FAIL

    # ------------------------------------------------------------------ suspending and waking

    def _suspend(self, wait: Any) -> Signal:
        self._wait = wait
        self._state = SUSPENDED
        if not self._registered:
            self._register()
        if self._closing is not None:
            for close in self._closing:
                close.let_go(self)
        return SUSPEND

    def _yield_turn(self) -> Signal:
        self._state = READY
        if not self._registered:
            self._register()
        self._queue.push_next_turn(self)
        return SUSPEND

    def _register(self) -> None:
        self._registered = True
        self._queue.live[self] = monotonic()
        if self._queue.loop is not None:
            hooks.register_task(self)

    def _wake(self, value: Any) -> None:
        """Go on with ``value``, in turn."""
        self._wait = None
        self._rv = value
        self._state = READY
        self._queue.push(self)

    def _wake_cause(self, cause: Cause[Any]) -> None:
        self._cause = cause
        self._wake(FAIL)

    def _wake_next(self, node: Node) -> None:
        self._next = node
        self._wake(NEXT)

    def _future_waited_for(self) -> Any:
        """The asyncio future that the top body awaits directly, else None."""
        wait = self._wait
        return None if wait is None or isinstance(wait, Wait) else wait

    # ------------------------------------------------------------------ interrupting

    def _own_cause(self) -> Cause[Any]:
        assert self._icause is not None
        return self._icause

    def _own_interrupt(self, cause: Cause[Any]) -> Interrupt | None:
        """This fiber's own interrupt inside ``cause``: told by identity, so that one that was
        observed and failed with again is still ours and a joined fiber's equal one is not.
        """
        if self._icause is None:
            return None
        for own in self._icause.reasons:
            for reason in cause.reasons:
                if reason is own and isinstance(reason, Interrupt):
                    return reason
        return None

    def _is_own(self, exc: CancelledError) -> bool:
        """Is ``exc`` the delivery of this fiber's own interrupt?"""
        why = interrupt_of(exc)
        return self._icause is not None and any(why is own for own in self._icause.reasons)

    def _skips(self, cause: Cause[Any]) -> bool:
        """Does ``cause`` pass recovery handlers by? An interrupt from outside does, in a region
        that can be interrupted (WI5), and so does a task cancel on its way to a body.
        """
        return (self._pend and not self._mask) or _task_cancel(cause) is not None

    def _ask(self, why: Interrupt, again: bool = False) -> bool:
        """Record an interrupt. True: it has to be carried out now, by ``_unwind`` or a switch."""
        if self._state == ENDED:
            return False
        # An object of this fiber's own: others may be interrupted with the same ``why``, and to
        # those that see this one's exit it is somebody else's (PD14).
        own = Cause((Interrupt(why.by, why.reason),))
        if self._icause is None:
            self._icause = own
            self._pend = True
        else:
            self._icause = self._icause.combine(own)
            if again:
                self._pend = True
        if not self._pend or self._mask or (self._cut and not again):
            return False
        if self._state == RUNNING:
            self._attn = True
            return False
        return True

    def _cut_loose(self) -> bool:
        """Stop what the fiber waits for, so that it can unwind. False: an awaited task or gather
        has to end first (WI1).
        """
        if self._state == SUSPENDED:
            if not self._stop_waiting():
                return False
        else:
            self._stale += 1
        own = self._own_cause()
        self._cause = landed(self._cause, own) if self._rv is FAIL else own
        self._rv = FAIL
        self._state = RUNNING
        return True

    def _stop_waiting(self) -> bool:
        wait = self._wait
        if isinstance(wait, Wait):
            self._wait = None
            wait._abandon(self)
            return True
        # A future that a body awaits directly is cancelled first, as asyncio does. Without the
        # callback: its call would be late, and a second step.
        wait.remove_done_callback(self._future_done)
        if not wait.cancel():
            traps.pass_on_wake_up(self.get_coro())
        if not wait.done():
            wait.add_done_callback(self._future_done, context=self._queue.context)
            self._cut = True
            return False
        self._wait = None
        cause = self._outcome_of(wait)
        if cause is not None:
            self._cause = cause
            self._rv = FAIL
        return True

    def _outcome_of(self, future: Any) -> Cause[Any] | None:
        """Of a future that was cancelled for us: its value and its CancelledError are dropped."""
        if future.cancelled():
            return None
        exc = future.exception()
        if exc is None or isinstance(exc, CancelledError):
            return None
        return Cause((Die(exc, exc.__traceback__),))

    def _joined_by(self, future: Any) -> Cause[Any]:
        outcome = self._outcome_of(future)
        own = self._own_cause()
        return own if outcome is None else landed(outcome, own)

    def _unwind(self, *, here: bool = False) -> None:
        """Carry out an interrupt that ``_ask`` found due: synchronously, on this stack, unless
        plain calls nest too deep already.
        """
        if self._state == ENDED or self._state == RUNNING or not self._cut_loose():
            return
        if self._queue.depth >= NESTING_LIMIT_CALLS:
            self._state = READY
            self._queue.push(self)
        else:
            self._drive(here=here)
        del self  # see _drive

    def _interrupt_now(self, why: Interrupt, again: bool = False) -> None:
        """A plain call's interrupt, from any thread (AT16)."""
        loop = self._queue.loop
        if loop is not None and hooks.running_loop() is not loop and not loop.is_closed():
            loop.call_soon_threadsafe(self._interrupt_here, why, again)
        else:
            self._interrupt_here(why, again)
        del self  # see _drive

    def _interrupt_here(self, why: Interrupt, again: bool = False, *, here: bool = False) -> None:
        if self._ask(why, again):
            self._unwind(here=here)
        del self  # see _drive

    def _elsewhere(self, f: Callable[[], None]) -> None:
        """Call ``f`` in the loop of this fiber, which is not the one that runs here."""
        loop = self._queue.loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(f)

    def _cancel_inner(self, face: InnerTask, msg: object) -> None:
        """asyncio's own cancel, aimed at what was opened at ``face``'s depth (PD11)."""
        face._must = True
        face._msg = msg
        if self._mask > face._depth:
            return  # lands when the mask is left
        if self._state == SUSPENDED:
            if isinstance(self._wait, Wait):
                if self._queue.loop is not None:
                    self._queue.loop.call_soon(self._land_inner_cancel, face)
                return
            if self._wait.cancel(msg=msg):
                face._must = False
                return
        self._attn = True

    def _land_inner_cancel(self, face: InnerTask) -> None:
        if self._state == SUSPENDED and face._must and self._mask <= face._depth:
            if not isinstance(self._wait, Wait):
                self._cancel_inner(face, face._msg)
                return
            face._must = False
            wait, self._wait = self._wait, None
            wait._abandon(self)
            self._cause = Cause((TaskCancel(face._make_cancelled_error()),))
            self._rv = FAIL
            self._drive()
        elif face._must:
            self._attn = True

    def _watch_group(self, face: InnerTask, group: Any) -> None:
        """``group``, opened at ``face``, has a failed task."""
        failing = next((f for f in self._groups or () if f.group is group), None)
        if failing is None:
            failing = _FailingGroup(face, group)
            self._groups = [*(self._groups or ()), failing]
        held = traps.cancel_held_by(group, self.get_coro())
        failing.dropped_own |= isinstance(held, CancelledError) and self._is_own(held)
        self._attn = True

    def _given_back_by(self, group: Any) -> None:
        """``group``, about to be left, gives its request to this fiber back."""
        for failing in self._groups or ():
            failing.gave_back |= failing.group is group

    def _look_at_groups(self) -> None:
        """Ask again for the cancels that a group dropped when it raised its errors (AT2)."""
        left: list[_FailingGroup] = []
        for failing in self._groups or ():
            if not traps.has_raised(failing.group):
                left.append(failing)
                continue
            if not failing.over:
                failing.over = True
                face = failing.face
                if traps.asked_its_parent(failing.group) and not failing.gave_back:
                    face._give_back()
                if face._num:
                    face._must = True
            if failing.dropped_own:
                if any(traps.handles_an_exception(c) for c in self._coroutines()):
                    left.append(failing)  # a cleanup is not cut (PD2)
                else:
                    self._pend = True
        self._groups = left or None
        self._attn = bool(left)

    def _coroutines(self) -> list[Any]:
        return [frame for frame in self._stack if type(frame) is CoroutineType]

    # ------------------------------------------------------------------ children

    def _spawn(self, effect: Node, mask: int, site: tuple[CodeType, int] | None) -> FiberCore:
        """A new fiber of the same runtime: a snapshot of the context, its own stack."""
        return type(self)(self._queue, effect, contextvars.copy_context(), self._env, mask, site)

    def _adopt(self, child: FiberCore) -> None:
        """Supervise ``child``: it ends when this fiber does."""
        if child._state != ENDED:
            if self._children is None:
                self._children = {}
            self._children[child] = None
        child._owner = self

    def _drop(self, child: FiberCore) -> None:
        """A child ended."""
        if self._children is not None:
            self._children.pop(child, None)

    def _note_unheard(self, child: FiberCore) -> None:
        """A child failed and nobody has looked yet."""
        if self._unheard is None:
            self._unheard = Unheard()
        self._unheard.add(child)

    def _report(self) -> None:
        """Tell of this fiber's failure, unless somebody has seen it."""
        raise NotImplementedError

    # ------------------------------------------------------------------ ending

    def _end(self, ok: bool, result: Any) -> Signal:
        if self._children:
            self._stack.append(_BOTTOM)
            self._stack.append(_EndOfParent(self, ok, result))
            self._mask += 1
            self._next = EndFibers(list(self._children), Interrupt(self.id, "parent ended"))
            return NEXT
        if not ok:
            result = _published(result)
            if self._task is None:
                # In a plain task the exception itself decides, where it is raised.
                for reason in result.reasons:
                    if isinstance(reason, Die) and isinstance(reason.defect, _FATAL):
                        self._queue.stop_for(reason.defect)
        self._ok = ok
        self._result = result
        self._state = ENDED
        if self._registered:
            self._queue.live.pop(self, None)
            if self._queue.loop is not None:
                hooks.unregister_task(self)
        self._stack = _NOTHING_LEFT
        self._wait = None
        self._ctx = None  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # an ended fiber runs no more; its context may be large
        self._env = None  # type: ignore[assignment]  # pyright: ignore[reportAttributeAccessIssue]  # see above
        del self._face, self._next
        self._groups = None
        self._cause = EMPTY
        owner = self._owner
        if owner is not None:
            owner._drop(self)
        observers = self._observers
        if observers is not None:
            self._observers = None
            for observer in observers:
                try:
                    observer._fiber_done(self)
                except BaseException as exc:
                    # The fiber has ended: nobody's failure to hear of it may start it again.
                    _log.exception("an observer of fiber #%d raised", self.id)
                    if isinstance(exc, _FATAL):
                        self._queue.stop_for(exc)
        if self._unheard is not None:
            self._unheard.report()
        if not ok:
            self._failed(owner)
        self._owner = None
        return DONE

    def _failed(self, owner: Any) -> None:
        """The fiber ended with a failure; the public face decides who hears of it."""
        raise NotImplementedError

    def _exit_made(self) -> Any:
        """The exit, made when somebody wants it."""
        if self._exit is None:
            result = self._result
            self._exit = succeeded(result) if self._ok else failed(result)
        return self._exit

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
        raise NotImplementedError

    def result(self) -> Any:
        raise NotImplementedError

    def exception(self) -> BaseException | None:
        raise NotImplementedError

    def add_done_callback(
        self, fn: Callable[[Any], object], *, context: contextvars.Context | None = None
    ) -> None:
        raise NotImplementedError

    def remove_done_callback(self, fn: Callable[[Any], object]) -> int:
        raise NotImplementedError


_NOTHING_LEFT: list[Any] = []


def _task_cancel(cause: Cause[Any]) -> TaskCancel | None:
    for reason in cause.reasons:
        if type(reason) is TaskCancel:
            return reason
    return None


def _published(cause: Cause[Any]) -> Cause[Any]:
    """The cause as others see it: a task cancel is an ordinary interrupt from here on."""
    if _task_cancel(cause) is None:
        return cause
    return Cause(Interrupt(r.by, r.reason) if type(r) is TaskCancel else r for r in cause.reasons)


def _classify(
    exc: BaseException,
    tb: TracebackType | None,
    raises: tuple[type[BaseException], ...],
    name: str | None,
    seen: Fail[Any] | Die | None,
) -> Fail[Any] | Die:
    """PD4: E is a guarantee. Only a declared type is a Fail, an awaited effect's defect never."""
    if isinstance(seen, Die):
        return Die(exc, tb)
    if isinstance(exc, Exception) and raises and isinstance(exc, raises):
        return Fail(exc, tb, name)
    if isinstance(seen, Fail):
        origin = seen._origin or "an awaited effect"
        add_note_once(exc, f"declared by {origin}; add it to raises= or catch it")
    return Die(exc, tb)


def _passed_on(
    cause: Cause[Any],
    exc: BaseException,
    reason: Fail[Any] | Die,
    raises: tuple[type[BaseException], ...],
) -> Cause[Any]:
    """A body let go through what was thrown in: the whole cause, each Fail judged again."""
    if len(cause.reasons) == 1:
        return Cause((reason,))
    out: list[Any] = []
    for r in cause.reasons:
        if isinstance(r, Fail):
            if r.error is exc:
                out.append(reason)
                continue
            if not isinstance(r.error, raises):
                out.append(Die(r.error, r._tb))
                continue
        elif isinstance(r, Die) and r.defect is exc:
            out.append(reason)
            continue
        out.append(r)
    return Cause(out)


def _clear_await(tb: TracebackType | None) -> None:
    """Drop what the frame of Effect.__await__ holds: an effect may hold the very error (PD13)."""
    while tb is not None:
        frame = tb.tb_frame
        if frame.f_code.co_name == "__await__":
            if frame.f_globals.get("__name__") == "fibers.effect":
                try:
                    frame.clear()
                except RuntimeError:
                    pass  # of an effect that runs again meanwhile
            return
        tb = tb.tb_next


def _judged(cause: Cause[Any], raises: tuple[type[BaseException], ...]) -> Cause[Any]:
    """``cause`` as it leaves a body: what the body doesn't declare is a defect (PD4)."""
    if not cause.has_fails:
        return cause
    return Cause(
        Die(r.error, r._tb) if isinstance(r, Fail) and not isinstance(r.error, raises) else r
        for r in cause.reasons
    )


def _user_part(tb: TracebackType | None) -> TracebackType | None:
    """Without the leading frames of this package; all of it where there is nothing else."""
    at = tb
    while at is not None and at.tb_frame.f_globals.get("__name__", "").startswith("fibers."):
        at = at.tb_next
    if at is None:
        return tb
    while tb is not at and tb is not None:
        try:
            # What is left leads back to these frames by f_back, and their locals to the fiber.
            tb.tb_frame.clear()
        except RuntimeError:
            pass  # still running: it drops its own names
        tb = tb.tb_next
    return at
