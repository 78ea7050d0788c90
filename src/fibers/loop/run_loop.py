"""The run loop: one fiber and its stack of frames, from step to step.

A FiberCore drives its coroutines itself. An effect awaited in a body is yielded to the loop, which
evaluates it on the fiber's own stack, so neither long chains nor deep recursion touch Python's.

Read in this order: protocol (what a step says), state (what a fiber is made of), interrupts,
bodies, then this module.
"""

from __future__ import annotations

import contextvars
import logging
import sys
from asyncio import CancelledError
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final

from fibers.cause import Cause, Die, Interrupt, TaskCancel, forget_traceback, landed
from fibers.loop import hooks, traps
from fibers.loop.bodies import WithBodies
from fibers.loop.ends import EndFibers, EndOfParent, Unheard
from fibers.loop.hooks import current_tasks, task_in, this_thread
from fibers.loop.inner_task import InnerTask
from fibers.loop.judging import published, user_part
from fibers.loop.native import twins
from fibers.loop.protocol import DONE, FAIL, NEXT, SUSPEND, SWITCH, Node, Signal, Wait
from fibers.loop.room import MORE_ROOM_CALLS, has_room
from fibers.loop.states import (
    ENDED,
    OP_BUDGET_PRIMITIVES,
    READY,
    RUNNING,
)

if TYPE_CHECKING:
    from types import CodeType


_log = logging.getLogger("fibers")
_FATAL: Final = (KeyboardInterrupt, SystemExit)
_UNSEEN_REFERENCES: Final = 3
"""To an inner task that nobody outside has: the fiber's, the current task's, the argument's."""
_references = sys.getrefcount


def _others(cause: Cause[Any]) -> bool:
    """Is there a failure besides the first defect?"""
    return cause.has_fails or len(cause.defects) > 1


@twins("_drive", "_follow", "_later", "_run")
class FiberCore(WithBodies):
    """A fiber without its public face: what the run loop needs of it."""

    __slots__ = ()

    # ------------------------------------------------------------------ driving

    def _drive(self, *, here: bool = False) -> None:
        """Run this fiber, and whom it switches to, until each is suspended or has ended.

        ``here``: the Context that runs now is this fiber's own (PD12).
        """
        queue = self._queue
        loop = queue.loop
        before: Any
        # hooks.make_current in place, here and in run_ready: a step may be as short as the call.
        if loop is None:
            before = this_thread.task
            this_thread.task = self._face
        else:
            before = task_in(loop)
            current_tasks[loop] = self._face
        step = this_thread.step
        loop_before = step.loop
        step.loop = loop
        queue.depth += 1
        queue.steps += 1
        try:
            try:
                signal = self._run() if here else self._ctx.run(self._run)
            except RuntimeError as exc:
                signal = self._later(exc)
            if signal is SWITCH:
                self._follow(here=here)
        finally:
            queue.depth -= 1
            step.loop = loop_before
            if loop is None:
                this_thread.task = before
            elif before is None:
                current_tasks.pop(loop, None)
            else:
                current_tasks[loop] = before
            # A failure's traceback holds the body's frame, which on 3.12+ leads by f_back to this
            # frame and to its callers. None of them may keep the fiber (PD13), so each drops its
            # own name for it when it is done.
            del self, before

    def _follow(self, *, here: bool = False) -> None:
        """This fiber said SWITCH: run the others and come back, without a Python stack a level."""
        loop = self._queue.loop
        waiting: list[FiberCore] = []
        fiber: FiberCore = self
        signal: Signal = SWITCH
        try:
            while True:
                if signal is SWITCH:
                    waiting.append(fiber)
                    fiber = fiber._switch
                    del waiting[-1]._switch
                elif waiting:
                    fiber = waiting.pop()
                else:
                    return
                hooks.make_current(loop, fiber._face)
                try:
                    if here and fiber is self:
                        signal = fiber._run()
                    else:
                        signal = fiber._ctx.run(fiber._run)
                except RuntimeError as exc:
                    signal = fiber._later(exc)
        finally:
            del self, fiber, waiting  # see _drive

    def _later(self, exc: RuntimeError) -> Signal:
        """Go on in turn: a root fiber that shares its task's Context (PD12), while code of that
        Context runs below; and one that met the recursion limit, here or half way in a step.
        """
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(limit + MORE_ROOM_CALLS)
        try:
            if isinstance(exc, RecursionError):
                return self._overflowed(exc)
            if not str(exc).startswith("cannot enter context"):
                raise exc
            self._state = READY
            self._queue.push(self)
        finally:
            sys.setrecursionlimit(limit)
        return SUSPEND

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
                            # Not kept while it runs: what is suspended in it may be many.
                            top, self._next = self._next, None
                            value = top._ev(self)
                        elif value is FAIL:
                            if not stack:
                                value = self._end(False, self._cause)
                                continue
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
                    if not stack:
                        value = self._end(True, value)
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
                        if value is None:
                            # sleep(0), and whatever else only wants the others to run.
                            value = self._yield_turn()
                            if not self._attn:
                                del self, stack, top  # see _drive
                                return SUSPEND
                        elif isinstance(value, Node):
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
                value = self._raised(exc)

    def _attend(self, value: Any) -> Any:
        """Something was asked for while the fiber ran: does it land before ``value`` goes on?"""
        if value is SWITCH or value is DONE:
            return value
        self._attn = False
        if self._rare.groups is not None:
            self._look_at_groups()
        if self._pend and not self._mask:
            cause: Cause[Any] = self._own_cause()
        elif (face := self._due()) is not None:
            if value is SUSPEND and not isinstance(self._wait, Wait) and self._wait is not None:
                # asyncio's own order: cancel what is awaited, go on when that has ended.
                if self._wait.cancel(msg=face._msg):
                    face._must = False
                else:
                    self._attn = True  # it is as good as done: thrown when the fiber is woken
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
        for face in self._rare.asked or ():
            if face._must and self._mask <= face._depth:
                return face
        return None

    def _raised(self, exc: BaseException) -> Any:
        """A node or a frame raised."""
        if self._state != ENDED:
            self._stay()
            failed = self._defect(exc)
            return self._put_off() if isinstance(exc, RecursionError) and not has_room() else failed
        # Somebody who heard of the end raised. It can't start the fiber again.
        _log.error("the end of fiber #%d was not taken well", self.id, exc_info=exc)
        if isinstance(exc, _FATAL):
            self._queue.stop_for(exc)
        return DONE

    def _overflowed(self, exc: BaseException) -> Signal:
        """A step met the recursion limit, and so did the telling of it."""
        if self._state == ENDED:
            return DONE
        self._stay()
        self._defect(exc)
        return self._put_off()

    def _defect(self, exc: BaseException) -> Any:
        """A callback raised: a defect (EX6), unless it is what a restore() raised in it."""
        if isinstance(exc, CancelledError) and self._is_own(exc):
            self._cause = self._own_cause()
            return FAIL
        tb = user_part(exc.__traceback__)
        forget_traceback(exc)
        self._cause = Cause((Die(exc, tb),))
        return FAIL

    # ------------------------------------------------------------------ children

    def _spawn(self, effect: Node, mask: int, site: tuple[CodeType, int] | None) -> FiberCore:
        """A new fiber of the same runtime: a snapshot of the context, its own stack."""
        return type(self)(self._queue, effect, contextvars.copy_context(), self._env, mask, site)

    def _adopt(self, child: FiberCore) -> None:
        """Supervise ``child``: it ends when this fiber does."""
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
        rare = self._own_rare()
        if rare.unheard is None:
            rare.unheard = Unheard()
        rare.unheard.add(child)

    def _report(self) -> None:
        """Tell of this fiber's failure, unless somebody has seen it."""
        raise NotImplementedError

    # ------------------------------------------------------------------ ending

    def _end(self, ok: bool, result: Any) -> Signal:
        if self._children:
            self._stack.append(EndOfParent(self, ok, result))
            self._mask += 1
            self._next = EndFibers(list(self._children), Interrupt(self.id, "parent ended"))
            return NEXT
        if not ok:
            result = self._told(result)
        self._ok = ok
        self._result = result
        self._state = ENDED
        if self._registered:
            self._queue.live.pop(self, None)
            hooks.unregister_task(self)
        if type(self._face) is InnerTask:
            if _references(self._face) > _UNSEEN_REFERENCES:
                self._face._part(self)
            else:
                self._face._fiber = None
        self._let_go()
        owner = self._owner
        if owner is not None:
            owner._drop(self)
        if self._observers is not None:
            self._tell_observers()
        if self._rare.unheard is not None:
            self._rare.unheard.report()  # nobody will look any more
        if not ok:
            self._failed(owner)
        self._owner = None
        return DONE

    def _told(self, cause: Cause[Any]) -> Cause[Any]:
        """The cause of this fiber's end, as others see it."""
        if len(cause.reasons) == 1 and type(cause.reasons[0]) is Interrupt:
            return cause
        cause = published(cause)
        if self._rare.task is None:
            # In a plain task the exception itself decides, where it is raised.
            for reason in cause.reasons:
                if isinstance(reason, Die) and isinstance(reason.defect, _FATAL):
                    self._queue.stop_for(reason.defect)
                    if self._queue.fatal is reason.defect and not _others(cause):
                        self._seen = True  # whoever runs the queue raises it
        return cause

    def _tell_observers(self) -> None:
        observers, self._observers = self._observers, None
        for observer in observers or ():
            try:
                observer._fiber_done(self)
            except BaseException as exc:
                # The fiber has ended: nobody's failure to hear of it may start it again.
                _log.exception("an observer of fiber #%d raised", self.id)
                if isinstance(exc, _FATAL):
                    self._queue.stop_for(exc)

    def _failed(self, owner: Any) -> None:
        """The fiber ended with a failure; the public face decides who hears of it."""
        raise NotImplementedError
