"""Canaries: each private name of asyncio, and each habit of it, that src/fibers relies on.

They run in the suite on every supported Python, and alone on newer ones (see .ci/run): there a
failure says what has changed and where to look, before anybody is hurt by it.
"""

from __future__ import annotations

import ast
import asyncio
import contextvars
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

import fibers as fb
from fibers.loop import hooks, traps
from fibers.loop.inner_task import InnerTask
from tests.canary.kit import PINNED, pins, read_of_future, read_of_task
from tests.interop.tools import TOOLS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SRC: Final = Path(fb.__file__).parent
HOOKS: Final = ("hooks.py", "traps.py")

tasks: Any = asyncio.tasks
EVER_GREEN: Final = sys.version_info >= (3, 12)


async def forever() -> None:
    await asyncio.get_running_loop().create_future()


class Boom(Exception):
    """The error of these tests."""


async def fails() -> None:
    raise Boom


# ---- who is current, who is there


@pins("_get_running_loop", by="loop/hooks.py, running_loop")
async def test_the_running_loop_can_be_asked_for_without_an_exception() -> None:
    """None where no loop runs, here the loop."""
    assert asyncio._get_running_loop() is asyncio.get_running_loop()
    assert await asyncio.to_thread(asyncio._get_running_loop) is None


@pins("_register_task", "_unregister_task", by="loop/hooks.py, register_task")
async def test_a_task_of_ones_own_can_be_registered() -> None:
    """all_tasks() lists whatever has done() and get_loop(), until it is unregistered."""

    class Own:
        def done(self) -> bool:
            return False

        def get_loop(self) -> asyncio.AbstractEventLoop:
            return asyncio.get_running_loop()

    own: Any = Own()
    tasks._register_task(own)
    during = asyncio.all_tasks()
    tasks._unregister_task(own)
    assert own in during
    assert own not in asyncio.all_tasks()


if sys.version_info >= (3, 14):

    @pins("_swap_current_task", by="loop/hooks.py, current_tasks")
    async def test_the_current_task_can_be_swapped() -> None:
        """For any object, nested, and back; it gives the one before."""
        loop, me, other = asyncio.get_running_loop(), asyncio.current_task(), object()
        before = tasks._swap_current_task(loop, other)
        inside = asyncio.current_task()
        back = tasks._swap_current_task(loop, me)
        assert (before, inside, back) == (me, other, other)
        assert asyncio.current_task(loop) is me

else:

    @pins("_current_tasks", by="loop/hooks.py, current_tasks; _speed.c, put_current")
    async def test_the_current_task_can_be_set_in_the_dict_that_asyncio_reads() -> None:
        """The C code of asyncio shares it with Python."""
        loop, me, other = asyncio.get_running_loop(), asyncio.current_task(), object()
        assert tasks._current_tasks[loop] is me
        tasks._current_tasks[loop] = other
        inside = asyncio.current_task()
        tasks._current_tasks[loop] = me
        assert inside is other

    @pins("_scheduled_tasks", "_all_tasks", by="loop/hooks.py, hand_over; _speed.c, note_task")
    async def test_a_task_of_ones_own_can_be_put_into_the_set_that_asyncio_reads() -> None:
        """As WeakSet.add and discard do it, without their frames."""

        class Own:
            def done(self) -> bool:
                return False

            def get_loop(self) -> asyncio.AbstractEventLoop:
                return asyncio.get_running_loop()

        own: Any = Own()
        known = getattr(tasks, "_scheduled_tasks" if EVER_GREEN else "_all_tasks")
        if known._pending_removals:
            known._commit_removals()
        known.data.add(weakref.ref(own, known._remove))
        during = asyncio.all_tasks()
        known.data.discard(weakref.ref(own))
        assert own in during
        assert own not in asyncio.all_tasks()


if sys.version_info >= (3, 12):

    @pins("get_context", by="loop/hooks.py, context_of")
    async def test_a_task_says_which_context_it_runs_in() -> None:
        """What an effect that a task awaits runs in (PD12)."""
        variable = contextvars.ContextVar("variable", default=0)
        task: Any = asyncio.current_task()
        variable.set(1)
        assert task.get_context()[variable] == 1


@pins("_get_loop", by="loop/hooks.py, loop_of")
async def test_the_loop_of_a_future_is_told_by_a_function() -> None:
    """Of whatever has get_loop()."""
    future = asyncio.get_running_loop().create_future()
    assert hooks.loop_of(future) is asyncio.get_running_loop()


@pins("_task_name_counter", by="loop/hooks.py, next_task_name_number")
def test_asyncio_counts_the_names_of_its_tasks() -> None:
    """Task-1, Task-2, ...: a function that gives the next number."""
    assert tasks._task_name_counter() < tasks._task_name_counter()


@pins(
    "_task_get_stack",
    "_task_print_stack",
    "_task_repr_info",
    by="loop/hooks.py, task_stack, print_task_stack, task_description",
)
async def test_a_task_is_described_by_functions_that_take_any_task() -> None:
    """Its stack, its stack in print, and the words of its repr."""
    task = asyncio.create_task(forever(), name="mine")
    await asyncio.sleep(0)
    assert [frame.f_code for frame in hooks.task_stack(task, None)] == [forever.__code__]
    assert any("forever" in word for word in hooks.task_description(task))
    task.cancel()


# ---- what a future and a task are made of


@pins("_asyncio_future_blocking", by="loop/bodies.py, _await_future; ops/body.py, PromiseOp")
async def test_a_future_is_yielded_with_its_blocking_flag_set() -> None:
    """By __await__, for whoever drives the coroutine; the class has the attribute."""
    future: Any = asyncio.get_running_loop().create_future()
    before: object = future._asyncio_future_blocking
    yielded = next(future.__await__())
    after: object = future._asyncio_future_blocking
    assert (before, yielded, after) == (False, future, True)
    assert asyncio.isfuture(fb.run_fork(fb.Effect.succeed(1)))


@pins("_make_cancelled_error", by="ops/body.py, FutureWait.outcome")
async def test_a_cancelled_future_makes_the_error_with_its_message() -> None:
    """The CancelledError that its awaiter would get."""
    future: Any = asyncio.get_running_loop().create_future()
    future.cancel("why")
    error = future._make_cancelled_error()
    assert type(error) is asyncio.CancelledError
    assert error.args == ("why",)


@pins("_fut_waiter", by="loop/hooks.py, waited_for_by")
async def test_a_task_shows_the_future_that_it_waits_for() -> None:
    """Which a close follows, so as not to wait for itself (SO6)."""
    future = asyncio.get_running_loop().create_future()

    async def waits() -> None:
        await future

    task: Any = asyncio.create_task(waits())
    await asyncio.sleep(0)
    assert task._fut_waiter is future
    future.set_result(None)
    await task
    assert task._fut_waiter is None


@pins("_children", by="loop/hooks.py, gathered_by")
async def test_a_gather_shows_what_it_gathers() -> None:
    """Also followed by a close."""
    task = asyncio.create_task(forever())
    gathered: Any = asyncio.gather(task)
    assert list(gathered._children) == [task]
    gathered.cancel()


@pins("_tasks", "fs", "fut", by="loop/hooks.py, awaited_in")
async def test_the_frames_of_asyncios_waits_show_what_they_wait_for() -> None:
    """A group by its `_tasks`, wait() by its `fs`, 3.11's wait_for by its `fut`."""
    inner = asyncio.create_task(forever())

    async def in_a_group() -> None:
        async with asyncio.TaskGroup() as group:
            found.append(group.create_task(forever()))

    found = list[Any]()

    async def in_wait() -> None:
        await asyncio.wait([inner])

    async def in_wait_for() -> None:
        await asyncio.wait_for(inner, 60)

    for waits in (in_a_group, in_wait, in_wait_for):
        coro = waits()
        task = asyncio.create_task(coro)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waited = hooks.awaited_in(coro)
        direct = hooks.waited_for_by(task)
        assert inner in waited or found[0] in waited or direct is inner, waits.__name__
        task.cancel()
        await asyncio.wait([task])
        found[1:] = []
        inner = asyncio.create_task(forever()) if inner.done() else inner
    inner.cancel()


# ---- the habits of TaskGroup, Condition, wait_for and timeout


@pins(
    "_on_task_done",
    "_errors",
    "_parent_cancel_requested",
    by="loop/traps.py, failing_group, has_raised, asked_its_parent",
)
async def test_a_group_with_a_failed_task_asks_whether_its_parent_is_done() -> None:
    """From _on_task_done, before it cancels the parent; when it raises, its errors are gone."""
    groups = list[Any]()
    seen = list[tuple[bool, bool]]()

    class Parent:
        def __init__(self, task: Any) -> None:
            self.task = task

        def done(self) -> bool:
            group = traps.failing_group(sys._getframe(1))
            groups.append(group)
            seen.append((group._parent_cancel_requested, traps.has_raised(group)))
            return False

        def __getattr__(self, name: str) -> Any:
            return getattr(self.task, name)

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            any_group: Any = group
            any_group._parent_task = Parent(any_group._parent_task)
            group.create_task(fails())
            await forever()

    with pytest.raises(ExceptionGroup):
        await body()

    assert seen == [(False, False)]
    assert traps.has_raised(groups[0])
    assert traps.asked_its_parent(groups[0])


@pins("propagate_cancellation_error", by="loop/traps.py, cancel_held_by")
async def test_a_group_that_is_left_keeps_the_cancelled_error_in_a_local() -> None:
    """Of __aexit__, by this name, as long as it waits for its tasks."""
    groups = list[asyncio.TaskGroup]()

    async def stays() -> None:
        try:
            await forever()
        finally:
            await asyncio.sleep(0.01)

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            groups.append(group)
            group.create_task(stays())
            await forever()

    coro = body()
    task = asyncio.create_task(coro)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel("why")
    await asyncio.sleep(0)
    held = traps.cancel_held_by(groups[0], coro)
    await asyncio.wait([task])

    assert isinstance(held, asyncio.CancelledError)
    assert held.args == ("why",)


@pins("__aexit__", by="loop/traps.py, is_group_exit")
async def test_a_group_gives_its_request_back_from_its_exit() -> None:
    """uncancel() is called by __aexit__ itself, with the group as `self`."""
    callers = list[bool]()

    class Parent:
        def __init__(self, task: Any) -> None:
            self.task = task

        def uncancel(self) -> int:
            callers.append(traps.is_group_exit(sys._getframe(1)))
            count: int = self.task.uncancel()
            return count

        def __getattr__(self, name: str) -> Any:
            return getattr(self.task, name)

    async def body() -> None:
        async with asyncio.TaskGroup() as group:
            any_group: Any = group
            any_group._parent_task = Parent(any_group._parent_task)
            group.create_task(fails())
            await forever()

    with pytest.raises(ExceptionGroup):
        await body()

    assert callers
    assert all(callers)


@pins("_waiters", "_notify", by="loop/traps.py, pass_on_wake_up")
async def test_a_condition_keeps_its_waiters_in_a_list_of_futures() -> None:
    """And its wait() the one that was woken in `fut`; or it passes a wake-up on by itself."""
    condition: Any = asyncio.Condition()

    async def waits() -> None:
        async with condition:
            await condition.wait()

    coro = waits()
    task = asyncio.create_task(coro)
    await asyncio.sleep(0)
    assert [future.done() for future in condition._waiters] == [False]
    (wait,) = [c for c in chain(coro) if c.cr_frame.f_code is asyncio.Condition.wait.__code__]
    assert wait.cr_frame.f_locals["fut"] is condition._waiters[0]
    assert wait.cr_frame.f_locals["self"] is condition
    assert hasattr(condition, "_notify") or sys.version_info < (3, 13)
    task.cancel()


def chain(coro: Any) -> Iterator[Any]:
    """``coro`` and the coroutines that it awaits."""
    while hasattr(coro, "cr_frame"):
        yield coro
        coro = coro.cr_await


@pins("wait_for", by="loop/traps.py, is_wait_for")
async def test_wait_for_awaits_what_it_is_given_or_cancels_it() -> None:
    """3.12+: its own frame awaits it; 3.11: it calls cancel()."""
    callers = list[bool]()

    class Late(asyncio.Future[None]):
        def __await__(self) -> Any:
            callers.append(traps.is_wait_for(sys._getframe(1)))
            return super().__await__()

        def cancel(self, msg: object = None) -> bool:
            callers.append(True)
            return super().cancel(msg)

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(Late(), 0.001)

    assert callers
    assert callers[0]


@pins("_on_timeout", by="(tests) what an asyncio.timeout's timer calls")
async def test_a_timeout_cancels_its_task_when_its_timer_fires() -> None:
    """Nothing else: it counts with cancelling() and gives back with uncancel()."""

    async def body() -> None:
        async with asyncio.timeout(None) as limit:
            any_limit: Any = limit
            any_limit._on_timeout()
            await forever()

    with pytest.raises(TimeoutError):
        await body()


# ---- coroutines, contexts and references


@pins("cr_frame", "cr_await", by="loop/hooks.py, awaited_in; dump")
async def test_a_coroutine_shows_its_frame_and_what_it_awaits() -> None:
    """Down to the innermost one."""

    async def outer() -> None:
        await forever()

    coro = outer()
    task = asyncio.create_task(coro)
    await asyncio.sleep(0)
    assert [c.cr_frame.f_code for c in chain(coro)] == [outer.__code__, forever.__code__]
    task.cancel()


@pins("get_referents", by="loop/traps.py, handles_an_exception")
async def test_a_suspended_coroutine_refers_to_the_exception_that_it_handles() -> None:
    """In a finally or an except, and no longer behind it."""
    steps = [asyncio.get_running_loop().create_future() for _ in range(3)]

    async def body() -> None:
        try:
            try:
                raise Boom
            finally:
                await steps[0]
        except Boom:
            await steps[1]
        await steps[2]

    coro = body()
    task = asyncio.create_task(coro)
    seen = list[bool]()
    for step in steps:
        for _ in range(3):
            await asyncio.sleep(0)
        seen.append(traps.handles_an_exception(coro))
        step.set_result(None)
    await task

    assert seen == [True, True, False]


@pins("cannot enter context", by="loop/run_loop.py, _drive")
def test_a_context_that_is_entered_already_says_so() -> None:
    """In the words by which the run loop tells it from a RuntimeError of somebody's own."""
    context = contextvars.copy_context()
    with pytest.raises(RuntimeError, match=r"^cannot enter context"):
        context.run(lambda: context.run(int))


@pins("getrefcount", by="loop/marks.py, Caught.remember; loop/run_loop.py, _end")
def test_an_exception_that_only_the_record_of_a_body_holds_is_told_by_its_count() -> None:
    """One that somebody else holds too is not dropped from the record, one that nobody does is."""
    from fibers.cause import Fail
    from fibers.loop.marks import _forgotten

    kept = Boom()
    # Asked outside of the assert: pytest's own names for its parts would count.
    told = [_forgotten(reason) for reason in [Fail(kept), Fail(Boom())]]

    assert told == [False, True]


# ---- the loop


@pins("__fibers_queue__", by="loop/queue.py, queue_of")
async def test_a_loop_takes_attributes() -> None:
    """The ready queue is one, so that both go together."""
    loop: Any = asyncio.get_running_loop()
    loop.__canary__ = 1
    assert loop.__canary__ == 1


@pins("_ready", by="testing/clock.py, settle")
async def test_asyncios_loop_shows_what_is_ready() -> None:
    """By which virtual time tells that nothing happens any more."""
    loop: Any = asyncio.get_running_loop()
    assert len(loop._ready) == 0
    loop.call_soon(int)
    assert len(loop._ready) == 1


@pins("run_in_executor", by="testing/clock.py, _ThreadWork")
async def test_to_thread_goes_through_the_loops_own_run_in_executor() -> None:
    """An attribute of the loop goes before the method of its class."""
    loop: Any = asyncio.get_running_loop()
    calls = list[object]()
    original = loop.run_in_executor

    def run_in_executor(*args: Any) -> Any:
        calls.append(args[0])
        return original(*args)

    loop.run_in_executor = run_in_executor
    await asyncio.to_thread(int)
    assert calls == [None]


@pins("shutdown_default_executor", by="threads.py, BoundedThreads")
def test_the_end_of_a_loop_shuts_its_executor_down_with_wait() -> None:
    """Whose join is ours to bound."""
    waits = list[bool]()

    class Threads(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            waits.append(wait)
            super().shutdown(wait, cancel_futures=cancel_futures)

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(Threads())
        await asyncio.to_thread(int)

    asyncio.run(main())
    assert waits[0] is True


# ---- what asyncio reads of a fiber and of its inner task


def gathered(future: Any) -> Any:
    gather: Any = asyncio.gather
    return gather(future, return_exceptions=True)


def first_completed(future: Any) -> Any:
    waits: Any = asyncio.as_completed([future])
    return next(waits)


WAITS: Final[dict[str, Callable[[Any], Any]]] = {
    "gather": gathered,
    "wait": lambda future: asyncio.wait([future]),
    "wait_for": lambda future: asyncio.wait_for(future, 60),
    "shield": lambda future: asyncio.shield(future),
    "as_completed": first_completed,
    "ensure_future": lambda future: asyncio.ensure_future(future),
    "await": lambda future: future,
}


async def waited_for_by_asyncio(make: Callable[[], Any]) -> None:
    """Everything of asyncio's that takes futures, up to a result and up to a cancel."""
    loop = asyncio.get_running_loop()

    async def waits(name: str, future: Any) -> None:
        await WAITS[name](future)

    for name in WAITS:
        future = make()
        loop.call_soon(future.set_result, 1)
        await waits(name, future)
        task = asyncio.create_task(waits(name, make()))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(make(), 0)


def test_a_fiber_has_all_that_asyncio_reads_of_a_future() -> None:
    """gather, wait, wait_for, shield, as_completed, and the task that awaits it."""
    read = read_of_future(waited_for_by_asyncio)

    lacking = sorted(name for name in read if not hasattr(fb.Fiber, name))
    assert lacking == [], f"fiber.py, Fiber has to have what this Python reads: {lacking}"
    assert "add_done_callback" in read


# Reads of asyncio's that are of its own classes only, guarded or made where no fiber comes.
_GUARDED: Final = {"_asyncio_awaited_by", "_log_destroy_pending", "_source_traceback"}


@pytest.mark.parametrize("tool", TOOLS)
def test_an_inner_task_has_all_that_is_read_of_the_current_task(tool: str) -> None:
    """By asyncio.timeout, TaskGroup, anyio, httpx and the others of AT21."""
    read = read_of_task(TOOLS[tool])

    lacking = sorted(n for n in read - _GUARDED if not hasattr(InnerTask, n))
    assert lacking == [], f"loop/inner_task.py has to have what is read of a task: {lacking}"


# ---- completeness


def private_names_in(source: str) -> set[str]:
    """Private attributes that a module reads, by dot, getattr, hasattr or as a frame's local."""
    names = set[str]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            names.add(node.attr)
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
            and isinstance(node.args[1], ast.Constant)
        ):
            names.add(str(node.args[1].value))
    return {n for n in names if n.startswith("_") and not n.startswith("__")}


def test_every_private_name_in_the_modules_of_hooks_has_a_canary() -> None:
    """A new one needs a test here that says what it is relied on for."""
    used = set[str]()
    for name in HOOKS:
        used |= private_names_in((SRC / "loop" / name).read_text(encoding="utf-8"))
    other = "_current_tasks" if sys.version_info >= (3, 14) else "_swap_current_task"
    own = {"_getframe", other}

    assert sorted(used - set(PINNED) - own) == []


def test_no_other_module_reads_private_names_of_asyncios_modules() -> None:
    """They go through hooks.py and traps.py; asyncio's protocol of futures and tasks excepted."""
    found = dict[str, list[str]]()
    for path in sorted(SRC.rglob("*.py")):
        if path.name in HOOKS:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_"):
                continue
            if node.attr.endswith("__"):
                continue
            root = ast.unparse(node.value)
            if root == "asyncio" or root.startswith("asyncio."):
                found.setdefault(path.name, []).append(f"{root}.{node.attr}")

    assert found == {}
