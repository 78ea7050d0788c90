"""Probes TF1: one scenario on asyncio's tasks and on hosted ones, and the same log."""

from __future__ import annotations

import asyncio
import collections.abc
import contextvars
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.probes.kit_hosting import hosted_run, plain_run, task_of, turns

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Generator

    from tests.probes.kit_hosting import Scenario

Log = list[object]
SCENARIOS = list["Scenario"]()


def scenario(f: Scenario) -> Scenario:
    """Add to the scenarios that have to run alike."""
    SCENARIOS.append(f)
    return f


class Boom(Exception):
    """The failure of these scenarios."""


async def noting(log: Log, name: str, steps: int = 2) -> str:
    """Write each step, with a turn of the loop between."""
    for step in range(steps):
        log.append((name, step))
        await asyncio.sleep(0)
    return name


async def ends(log: Log, task: Any) -> None:
    """Write how a task ends for who awaits it."""
    try:
        log.append(("value", await task))
    except asyncio.CancelledError as exc:
        log.append(("cancelled", exc.args))
    except BaseException as exc:
        log.append((type(exc).__name__, exc.args))


def me() -> Any:
    """The task that runs this."""
    return asyncio.current_task()


# ---- the order of steps


@scenario
async def starts_and_callbacks_of_the_loop_in_order(log: Log) -> None:
    """A task starts in its place among the loop's callbacks."""
    loop = asyncio.get_running_loop()
    loop.call_soon(log.append, "before")
    first = task_of(noting(log, "a"))
    loop.call_soon(log.append, "between")
    second = task_of(noting(log, "b"))
    loop.call_soon(log.append, "after")
    log.append("created")
    await first
    log.append("first")
    await second


@scenario
async def yields_take_turns_with_callbacks(log: Log) -> None:
    """sleep(0) gives every other callback its turn."""
    loop = asyncio.get_running_loop()

    def again(left: int) -> None:
        log.append(("callback", left))
        if left:
            loop.call_soon(again, left - 1)

    task = task_of(noting(log, "task", 4))
    again(4)
    await task


@scenario
async def wake_ups_of_futures_in_order(log: Log) -> None:
    """Tasks that wait for one future go on in the order in which they came."""
    gate = asyncio.get_running_loop().create_future()

    async def waits(name: str) -> None:
        log.append((name, await gate))

    tasks = [task_of(waits(name)) for name in "abc"]
    await turns(1)
    gate.add_done_callback(lambda _: log.append("callback"))
    gate.set_result(1)
    log.append("set")
    for task in tasks:
        await task


@scenario
async def done_callbacks_in_order_and_context(log: Log) -> None:
    """Each in its own Context, in the order of registration, after the end."""
    var = contextvars.ContextVar[str]("var", default="none")
    task = task_of(noting(log, "task", 1))

    def told(done: Any) -> None:
        log.append((var.get(), done is task, done.done()))

    for name in "ab":
        context = contextvars.copy_context()
        context.run(var.set, name)
        task.add_done_callback(told, context=context)
    task.add_done_callback(told)
    removed = log.append
    task.add_done_callback(removed)
    log.append(task.remove_done_callback(removed))
    await task
    task.add_done_callback(told)
    log.append("added late")
    await turns(1)


@scenario
async def a_chain_of_tasks_ends_turn_by_turn(log: Log) -> None:
    """How many turns an end takes through three tasks that wait for each other."""

    async def outer(inner: Any) -> None:
        await inner

    first = task_of(noting(log, "first", 1))
    last = task_of(outer(task_of(outer(first))))
    turn = 0
    while not last.done():
        log.append(("turn", turn, first.done()))
        turn += 1
        await asyncio.sleep(0)


# ---- cancel


@scenario
async def cancel_before_the_start(log: Log) -> None:
    """Nothing of it runs."""
    task = task_of(noting(log, "never"))
    log.append((task.cancel("why"), task.cancelled(), task.done(), task.cancelling()))
    await ends(log, task)
    log.append((task.cancelled(), task.cancel(), task.cancelling()))


@scenario
async def cancel_while_it_sleeps(log: Log) -> None:
    """The message reaches body and waiter; what waits in finally is waited for."""

    async def body() -> None:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError as exc:
            log.append(("body", exc.args))
            raise
        finally:
            await asyncio.sleep(0)
            log.append("cleaned")

    task = task_of(body())
    await turns(1)
    log.append(task.cancel("why"))
    await ends(log, task)


@scenario
async def cancel_that_is_swallowed(log: Log) -> None:
    """The value counts, the request stays counted."""

    async def body() -> str:
        try:
            await asyncio.sleep(10)
        except asyncio.CancelledError:
            log.append(("cancelling", me().cancelling()))
        return "went on"

    task = task_of(body())
    await turns(1)
    task.cancel()
    await ends(log, task)
    log.append((task.cancelled(), task.cancelling(), task.result()))


@scenario
async def cancel_of_itself(log: Log) -> None:
    """The segment goes on; the next await raises."""

    async def body() -> None:
        me().cancel("self")
        log.append("still runs")
        try:
            await asyncio.sleep(0)
        finally:
            log.append(("after", me().cancelling()))

    await ends(log, task_of(body()))


@scenario
async def cancel_of_itself_before_a_yield_lands_a_turn_later(log: Log) -> None:
    """What others do in that turn comes first."""

    async def body() -> None:
        asyncio.get_running_loop().call_soon(log.append, "their turn")
        me().cancel()
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            log.append("landed")

    await task_of(body())


@scenario
async def cancel_of_itself_right_before_the_end(log: Log) -> None:
    """Cancelled all the same."""

    async def body() -> str:
        me().cancel("late")
        return "value"

    await ends(log, task_of(body()))


@scenario
async def cancel_in_the_tick_of_the_result(log: Log) -> None:
    """The future is done and the task is not: the cancel is thrown in its place."""
    gate = asyncio.get_running_loop().create_future()

    async def body() -> object:
        return await gate

    task = task_of(body())
    await turns(1)
    gate.set_result("value")
    log.append(task.cancel("just now"))
    await ends(log, task)


@scenario
async def uncancel_gives_requests_back(log: Log) -> None:
    """Counted down, never below zero."""

    async def body() -> None:
        for _ in range(2):
            try:
                await asyncio.sleep(10)
            except asyncio.CancelledError as exc:
                log.append((exc.args, me().cancelling()))
        log.append([me().uncancel(), me().uncancel(), me().uncancel(), me().cancelling()])

    task = task_of(body())
    for message in "ab":
        await turns(1)
        task.cancel(message)
    await ends(log, task)


@scenario
async def a_future_that_others_cancel_cancels_who_awaits_it(log: Log) -> None:
    """Nobody asked this task to end, and to asyncio it is cancelled."""
    gate = asyncio.get_running_loop().create_future()

    async def body() -> None:
        await gate

    task = task_of(body())
    await turns(1)
    gate.cancel("theirs")
    await ends(log, task)
    log.append((task.cancelled(), task.cancelling()))


@scenario
async def cancel_goes_to_the_awaited_task(log: Log) -> None:
    """As far in as it gets, then back out."""

    async def inner() -> None:
        try:
            await asyncio.sleep(10)
        finally:
            log.append("inner")

    async def outer() -> None:
        try:
            await task_of(inner())
        finally:
            log.append("outer")

    task = task_of(outer())
    await turns(2)
    task.cancel("deep")
    await ends(log, task)


# ---- asyncio's own tools


@scenario
async def groups_timeouts_and_gather(log: Log) -> None:
    """Failures, cancels and results are passed on alike."""

    async def fails(after: int) -> None:
        await turns(after)
        raise Boom(after)

    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(fails(2))
            group.create_task(noting(log, "sibling", 9))
    except* Boom as errors:
        log.append([e.args for e in errors.exceptions])
    try:
        async with asyncio.timeout(0):
            await asyncio.sleep(10)
    except TimeoutError:
        log.append("timed out")
    try:
        await asyncio.wait_for(asyncio.sleep(10), 0.001)
    except TimeoutError:
        log.append("waited in vain")
    gathered = await asyncio.gather(noting(log, "a"), fails(1), return_exceptions=True)
    log.append([str(outcome) for outcome in gathered])
    shielded = task_of(noting(log, "shielded", 3))
    outer = task_of(asyncio.wait_for(asyncio.shield(shielded), 10))
    await turns(2)
    outer.cancel()
    await ends(log, outer)
    log.append(await shielded)
    done, pending = await asyncio.wait([task_of(noting(log, n)) for n in "xy"])
    log.append((len(done), len(pending), sorted(t.result() for t in done)))


@scenario
async def who_is_current_and_who_is_alive(log: Log) -> None:
    """The same object everywhere."""
    seen = list[object]()

    async def body() -> None:
        seen.append(asyncio.current_task())
        await asyncio.sleep(0)
        seen.append(asyncio.current_task())
        log.append([t in asyncio.all_tasks() for t in seen])

    task = task_of(body())
    log.append((task in asyncio.all_tasks(), asyncio.isfuture(task), asyncio.iscoroutine(task)))
    await task
    log.append([t is task for t in seen])
    log.append(task in asyncio.all_tasks())


@scenario
async def contexts_are_copied_or_taken(log: Log) -> None:
    """context= is the very one."""
    var = contextvars.ContextVar[str]("var", default="outer")

    async def sets(value: str) -> None:
        log.append(var.get())
        var.set(value)
        await asyncio.sleep(0)
        log.append(var.get())

    await task_of(sets("copied"))
    log.append(var.get())
    context = contextvars.copy_context()
    await task_of(sets("taken"), context=context)
    log.append((var.get(), context[var]))


@scenario
async def names_and_coroutines(log: Log) -> None:
    """Given, changed, and by default."""
    coro = noting(log, "body", 0)
    task = task_of(coro, name="given")
    log.append((task.get_name(), task.get_coro() is coro))
    task.set_name(7)
    log.append(task.get_name())
    other = task_of(noting(log, "other", 0))
    log.append(other.get_name().rstrip("0123456789"))
    await task
    await other
    log.append(task.get_coro() is coro)


@scenario
async def stacks_and_representations(log: Log) -> None:
    """What a debugger prints, apart from addresses and numbers."""

    async def body() -> None:
        await asyncio.sleep(0)
        raise Boom("said")

    task = task_of(body(), name="named")
    log.append(repr(task).replace(repr(task.get_coro()), ""))
    await turns(1)
    log.append([frame.f_code.co_name for frame in task.get_stack()])
    await turns(1)
    log.append(repr(task))
    log.append([frame.f_code.co_name for frame in task.get_stack()])
    task.print_stack(file=sys.stderr)
    await ends(log, task)
    for refused in (task.set_result, task.set_exception):
        try:
            refused(None)
        except RuntimeError as exc:
            log.append(exc.args)


@scenario
async def the_outcome_too_early(log: Log) -> None:
    """InvalidStateError until it has ended."""
    task = task_of(noting(log, "body", 1))
    for look in (task.result, task.exception):
        try:
            look()
        except asyncio.InvalidStateError as exc:
            log.append(exc.args)
    await task


@scenario
async def what_a_coroutine_can_get_wrong(log: Log) -> None:
    """The words are asyncio's."""

    class Yields:
        def __await__(self) -> Any:
            yield 42

    async def bad_yield() -> None:
        await Yields()

    async def itself() -> None:
        await me()

    class YieldsAFuture:
        def __await__(self) -> Any:
            yield asyncio.get_running_loop().create_future()

    async def bare_future() -> None:
        await YieldsAFuture()

    other = asyncio.new_event_loop()
    gate = other.create_future()

    async def other_loop() -> None:
        await gate

    for make in (bad_yield, itself, bare_future, other_loop):
        try:
            await task_of(make(), name=make.__name__)
        except RuntimeError as exc:
            log.append(str(exc).partition("<")[0])
    other.close()


@scenario
async def an_await_driven_by_hand(log: Log) -> None:
    """Sent on before the task has ended: a word of asyncio's, and no value."""
    task = task_of(noting(log, "a"))
    steps = task.__await__()
    log.append(next(steps) is task)
    try:
        next(steps)
    except RuntimeError as exc:
        log.append(str(exc))
    task._asyncio_future_blocking = False
    await task


@scenario
async def the_outcome_of_a_cancelled_task(log: Log) -> None:
    """CancelledError with its message, from result() and from exception()."""
    for name in ("result", "exception"):
        task = task_of(noting(log, name))
        await turns(1)
        task.cancel("enough")
        await asyncio.wait([task])
        try:
            log.append(getattr(task, name)())
        except asyncio.CancelledError as exc:
            log.append((name, exc.args))


@scenario
async def threads_and_executors(log: Log) -> None:
    """to_thread, run_coroutine_threadsafe."""
    loop = asyncio.get_running_loop()

    def in_thread() -> str:
        return asyncio.run_coroutine_threadsafe(noting(log, "there"), loop).result(5)

    log.append(await asyncio.to_thread(in_thread))


@scenario
async def async_generators_are_closed(log: Log) -> None:
    """In the task that drops them."""

    async def numbers() -> AsyncGenerator[int]:
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    async def body() -> None:
        async for number in numbers():
            log.append(number)
            break

    await task_of(body())
    await turns(3)


@scenario
async def a_coroutine_that_is_none_of_pythons(log: Log) -> Any:
    """Anything with send, throw and close."""

    class Like:
        def __init__(self) -> None:
            self.left = 2

        def send(self, _value: object) -> None:
            log.append(("send", self.left))
            self.left -= 1
            if not self.left:
                raise StopIteration("value")

        def throw(self, *exc: Any) -> None:
            log.append("throw")
            raise exc[0]

        def close(self) -> None:
            log.append("close")

        def __await__(self) -> Any:
            return self

    coroutines: Any = collections.abc.Coroutine
    coroutines.register(Like)
    like: Any = Like()
    log.append(await task_of(like))
    like = Like()
    task = task_of(like)
    task.cancel("before")
    await ends(log, task)
    like = Like()
    task = task_of(like)
    await turns(1)
    task.cancel("after")
    await ends(log, task)


@scenario
async def a_future_of_another_make(log: Log) -> None:
    """It keeps its callbacks in a set: a step is hashable, and equal to itself alone."""

    class Gate:
        def __init__(self) -> None:
            self._loop = asyncio.get_running_loop()
            self._asyncio_future_blocking = False
            self.callbacks = dict[Any, contextvars.Context]()

        def add_done_callback(self, f: Any, *, context: contextvars.Context) -> None:
            self.callbacks[f] = context

        def remove_done_callback(self, f: Any) -> int:
            return 0 if self.callbacks.pop(f, None) is None else 1

        def get_loop(self) -> asyncio.AbstractEventLoop:
            return self._loop

        def cancel(self, msg: object = None) -> bool:
            return False

        def result(self) -> None:
            return None

        def __await__(self) -> Generator[Any, Any, Any]:
            self._asyncio_future_blocking = True
            sent: object = yield self
            return sent

        def open(self) -> None:
            while self.callbacks:
                f, context = self.callbacks.popitem()
                self._loop.call_soon(f, self, context=context)

    gate = Gate()

    async def passes(name: str) -> None:
        await gate
        log.append(name)

    tasks = [task_of(passes(name)) for name in "ab"]
    await turns(2)
    log.append(len(gate.callbacks))
    gate.open()
    for task in tasks:
        await task


@pytest.mark.spec("TF1", "PD11")
@pytest.mark.parametrize("run_it", SCENARIOS, ids=lambda f: f.__name__)
def test_hosted_tasks_do_what_tasks_do(run_it: Scenario) -> None:
    """Step by step."""
    expected = plain_run(run_it)

    assert hosted_run(run_it) == expected


@pytest.mark.spec("TF1")
@pytest.mark.parametrize("run_it", SCENARIOS, ids=lambda f: f.__name__)
def test_hosted_tasks_do_it_in_debug_mode_too(run_it: Scenario) -> None:
    """asyncio's checks of threads and callbacks find nothing."""
    expected = plain_run(run_it)

    # Debug mode adds where a task was created.
    shown = [str(entry).partition(" created at")[0] for entry in hosted_run(run_it, debug=True)]
    assert [entry.rstrip(">") for entry in shown] == [str(entry).rstrip(">") for entry in expected]
