"""Random programs that write down all that happens in them: the same with the twin and without.

    python -m tests.regressions.twin_programs FIRST COUNT [COMPILED_TWIN]

prints one line a seed. The interpreter runs one of the two worlds only, so a comparison takes two
processes; FIBERS_PURE=1 makes it the pure one.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib.util
import sys
from typing import TYPE_CHECKING, Any

if __name__ == "__main__" and len(sys.argv) > 3:
    # Before the first import of fibers: this is the compiled twin that it shall find.
    _spec = importlib.util.spec_from_file_location("fibers._speed", sys.argv[3])
    assert _spec is not None
    assert _spec.loader is not None
    _module = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(_module)
    sys.modules["fibers._speed"] = _module

import fibers as fb
from fibers import Effect
from fibers.loop.native import speed
from fibers.loop.queue import queue_of
from fibers.testing import TestClock
from tests.regressions.test_fuzz import Boom, Defect, Trees

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    Any_ = Effect[Any, Any]


class Told(Trees):
    """Random effects that tell what they do, at whose hands they end, and in which order."""

    def __init__(self, seed: int, clock: TestClock) -> None:
        super().__init__(seed, clock)
        self.log: list[str] = []
        self._names = 0
        self._kinds = [
            *self._kinds,
            *(2 * [self.told]),
            *(3 * [self.told_body]),
            self.declared_body,
            self.joined_in_a_body,
            self.joined_in_a_body,
            self.joined_often,
            self.forked_by_a_plain_call,
            self.observed,
            self.waited_for,
            self.on_a_future,
            self.on_a_task,
            self.interrupts_itself,
            self.interrupts_others_in_a_finalizer,
            self.with_permits,
            self.passed_by_a_queue,
            self.deferred,
            self.busy,
            self.nested_bodies,
            self.in_a_region,
            self.detached,
            self.named,
            self.generated,
            self.in_a_plain_task,
        ]

    def say(self, what: object) -> None:
        self.log.append(f"{what}")

    def name(self) -> str:
        self._names += 1
        return f"n{self._names}"

    def leaf(self) -> Any_:
        name = self.name()
        made = super().leaf()
        if self.random.random() < 0.5:
            return made
        return Effect.sync(lambda: self.say(name)).flat_map(lambda _: made)

    # ---- what is told

    def told(self, t: Callable[[], Any_]) -> Any_:
        name = self.name()

        def tell(exit_: Any) -> Any_:
            self.say(f"{name} {exit_}")
            return Effect.succeed(None)

        return t().on_exit(tell)

    async def _segment(self, name: str, inner: Any_, after: Any_, swallows: bool) -> Any:
        me = fb.current_fiber()
        assert me is not None
        self.say(f"{name} in {me.id}, {_task().cancelling()}")
        try:
            got = await inner
            self.say(f"{name} got {_shown(got)}")
        except BaseException as exc:
            why = fb.interrupt_of(exc) if isinstance(exc, asyncio.CancelledError) else exc
            self.say(f"{name} {type(exc).__name__} {why}, {_task().cancelling()}")
            if not swallows:
                raise
        finally:
            await after
            self.say(f"{name} left")
        return name

    def told_body(self, t: Callable[[], Any_]) -> Any_:
        name, inner, after = self.name(), t(), self.cleanup()
        swallows = self.random.random() < 0.3
        return Effect.promise(lambda: self._segment(name, inner, after, swallows))

    def declared_body(self, t: Callable[[], Any_]) -> Any_:
        name, inner, after = self.name(), t(), self.cleanup()
        swallows = self.random.random() < 0.2
        raises = self.random.choice([(), (Boom,), (Boom, Defect)])

        async def body(*, name: str) -> Any:
            return await self._segment(name, inner, after, swallows)

        declare: Any = fb.effect  # what it raises is only drawn here
        made: Any_ = declare(raises=raises)(body)(name=name)
        return made

    def nested_bodies(self, t: Callable[[], Any_]) -> Any_:
        inner = self.told_body(t)
        for _ in range(3):
            was = inner
            inner = self.told_body(lambda was=was: was)  # type: ignore[misc]  # a default is no argument
        return inner

    def generated(self, t: Callable[[], Any_]) -> Any_:
        first, second, name = t(), t(), self.name()

        @fb.effect
        def steps() -> Generator[Any_, Any, str]:
            try:
                yield from first
            except Exception as exc:
                self.say(f"{name} {exc!r}")
            got = yield from second
            self.say(f"{name} {_shown(got)}")
            return name

        return steps()

    # ---- fibers

    def joined_in_a_body(self, t: Callable[[], Any_]) -> Any_:
        name, child, between = self.name(), t(), self.leaf()
        at_once = self.random.random() < 0.5
        detached = self.random.random() < 0.3

        async def run() -> Any:
            fork = child.fork_detach if detached else child.fork_child
            fiber: fb.Fiber[Any, Any] = await fork(start_immediately=at_once)
            self.say(f"{name} forked {fiber.id} {fiber.poll()}")
            await between
            try:
                return await fiber
            except BaseException as exc:
                self.say(f"{name} join {type(exc).__name__} {fiber.poll()}")
                raise

        return Effect.promise(run)

    def joined_often(self, t: Callable[[], Any_]) -> Any_:
        name, child = self.name(), t()

        async def run() -> Any:
            fiber = await child.fork_child()
            joins = [await fiber.join().fork_child(start_immediately=True) for _ in range(2)]
            joins.append(await fiber.exit().fork_child())
            for join in joins:
                self.say(f"{name} {_shown(await join.exit())}")
            return await fiber

        return Effect.promise(run)

    def forked_by_a_plain_call(self, t: Callable[[], Any_]) -> Any_:
        name, child, rest = self.name(), t(), t()
        at_once, early = self.random.random() < 0.5, self.random.random() < 0.3

        async def run() -> Any:
            scope = fb.Scope(self.random.choice(["sequential", "parallel"]))
            if early:
                await scope.close()
            fiber = scope.fork(child, start_immediately=at_once)
            self.say(f"{name} {fiber.id} {fiber.poll()}")
            try:
                await rest
            finally:
                await scope.close()
                self.say(f"{name} {fiber.poll()}")

        return Effect.promise(run)

    def observed(self, t: Callable[[], Any_]) -> Any_:
        name, child = self.name(), t()
        raises, interrupts = self.random.random() < 0.2, self.random.random() < 0.4

        async def run() -> Any:
            me = fb.current_fiber()
            assert me is not None
            fiber = await child.fork_child()

            def heard(exit_: Any) -> None:
                self.say(f"{name} heard {exit_}")
                if interrupts:
                    me.interrupt_unsafe(by=77)
                if raises:
                    raise Defect(name)

            fiber.add_observer(heard)
            fiber.add_done_callback(lambda f: self.say(f"{name} called {f.done()}"))
            return await fiber

        return Effect.promise(run)

    def detached(self, t: Callable[[], Any_]) -> Any_:
        return t().fork_detach(uninterruptible=self.random.random() < 0.3).map(_id)

    def named(self, t: Callable[[], Any_]) -> Any_:
        inner, name = t(), self.name()

        async def run() -> Any:
            _task().set_name(name)
            return await inner

        return Effect.promise(run)

    def in_a_plain_task(self, t: Callable[[], Any_]) -> Any_:
        inner, name = t().provide_service(fb.ClockTag, self.clock), self.name()
        shielded = self.random.random() < 0.3

        async def plain() -> Any:
            try:
                return await inner
            except BaseException as exc:
                self.say(f"{name} plain {type(exc).__name__} {_task().cancelling()}")
                raise

        async def run() -> Any:
            task = asyncio.ensure_future(plain())
            return await (asyncio.shield(task) if shielded else task)

        return Effect.promise(run)

    # ---- asyncio's

    def waited_for(self, t: Callable[[], Any_]) -> Any_:
        child, name = t(), self.name()
        seconds = self.random.choice([None, 0])

        async def run() -> Any:
            fiber = await child.fork_child(start_immediately=self.random.random() < 0.5)
            try:
                return await asyncio.wait_for(fiber, seconds)
            finally:
                self.say(f"{name} {fiber.poll()}")

        return Effect.promise(run)

    def on_a_future(self, t: Callable[[], Any_]) -> Any_:
        name, before, how = self.name(), t(), self.random.randrange(5)

        async def run() -> Any:
            loop = asyncio.get_running_loop()
            future: asyncio.Future[Any] = loop.create_future()
            if how == 0:
                loop.call_soon(_settle, future, name)
            elif how == 1:
                loop.call_soon(_settle, future, Boom(name))
            elif how == 2:
                loop.call_soon(future.cancel)
            await before.exit()
            if how == 3:
                future.set_result(name)
            try:
                got = await (future if how < 4 else asyncio.sleep(0))
                self.say(f"{name} {got}")
            except BaseException as exc:
                self.say(f"{name} {type(exc).__name__} {future.cancelled()}")
                raise

        return Effect.promise(run)

    def on_a_task(self, t: Callable[[], Any_]) -> Any_:
        name, turns = self.name(), self.random.randrange(3)
        how = self.random.randrange(3)
        inner = t().provide_service(fb.ClockTag, self.clock)

        async def other() -> Any:
            try:
                for _ in range(turns):
                    await asyncio.sleep(0)
                return await inner
            except asyncio.CancelledError:
                self.say(f"{name} cancelled")
                if how == 1:
                    raise Boom(name) from None
                if how == 2:
                    return name
                raise

        async def run() -> Any:
            return await asyncio.ensure_future(other())

        return Effect.promise(run)

    # ---- interrupts

    def interrupts_itself(self, t: Callable[[], Any_]) -> Any_:
        inner, name = t(), self.name()
        raises, again = self.random.random() < 0.4, self.random.random() < 0.2

        def now() -> None:
            me = fb.current_fiber()
            assert me is not None
            me.interrupt_unsafe(by=55, again=again)
            if raises:
                raise Defect(name)

        return Effect.sync(now).flat_map(lambda _: inner)

    def interrupts_others_in_a_finalizer(self, t: Callable[[], Any_]) -> Any_:
        inner, which = t(), self.random.randrange(2)

        def finalizer(_exit: Any) -> Any_:
            return self.roots[which % len(self.roots)].interrupt(by=66).timeout(1).exit()

        return inner.on_exit(finalizer)

    def in_a_region(self, t: Callable[[], Any_]) -> Any_:
        inner, name, forgets = t(), self.name(), self.random.random() < 0.1

        async def run() -> Any:
            with contextlib.ExitStack() as stack:
                region = fb.uninterruptible()
                if forgets:
                    region.__enter__()
                else:
                    stack.enter_context(region)
                exit_ = await inner.exit()
                self.say(f"{name} {_shown(exit_)}")
            self.say(f"{name} after the region")
            await Effect.yield_now()

        return Effect.promise(run)

    # ---- what is built on it

    def with_permits(self, t: Callable[[], Any_]) -> Any_:
        semaphore = fb.Semaphore(1)
        return fb.all_([semaphore.with_permit(t()) for _ in range(3)], concurrency="unbounded")

    def passed_by_a_queue(self, t: Callable[[], Any_]) -> Any_:
        inner, name = t(), self.name()

        async def run() -> Any:
            queue: fb.Queue[Any, Any] = fb.Queue.bounded(1)
            giver: fb.Fiber[Any, Any] = await inner.exit().flat_map(queue.offer).fork_child()
            taker = await queue.take().fork_child(start_immediately=True)
            await giver
            self.say(f"{name} {_shown(await taker)}")

        return Effect.promise(run)

    def deferred(self, t: Callable[[], Any_]) -> Any_:
        inner = t()

        def run() -> Any_:
            deferred = fb.Deferred[Any, Any]()
            waiter: Any_ = deferred.await_().fork_child()
            return waiter.flat_map(
                lambda f: fb.Deferred.into(inner, deferred).exit().flat_map(lambda _: f.exit())
            )

        return Effect.suspend(run)

    def busy(self, t: Callable[[], Any_]) -> Any_:
        inner, name, rounds = t(), self.name(), self.random.choice([10, 3000])

        async def run() -> Any:
            ended = await Effect.succeed(1).fork_detach(start_immediately=True)
            asyncio.get_running_loop().call_soon(self.say, f"{name} a turn")
            one = Effect.succeed(1)
            for _ in range(rounds):
                await one
                await ended
            self.say(f"{name} was busy")
            return await inner

        return Effect.promise(run)


def _task() -> Any:
    return asyncio.current_task()


def _settle(future: asyncio.Future[Any], how: Any) -> None:
    if future.done():
        return
    if isinstance(how, Exception):
        future.set_exception(how)
    else:
        future.set_result(how)


def _id(fiber: fb.Fiber[Any, Any]) -> int:
    return fiber.id


def _shown(value: Any) -> str:
    """Without what differs from process to process."""
    return f"{value}" if isinstance(value, int | str | tuple | None) else type(value).__name__


async def run_one(seed: int) -> list[str]:
    """All that happened, and how all ended."""
    loop = asyncio.get_running_loop()
    clock = TestClock()
    runtime = fb.Runtime(clock=clock)
    told = Told(seed, clock)
    unhandled: list[str] = []
    fb.set_unhandled_failure_hook(lambda f, c: unhandled.append(f"{f.id} {c}"))
    loop.set_exception_handler(lambda _l, context: told.say(f"escaped {context['message']}"))
    await _play(told, runtime)
    # When the last reference goes is no matter of meaning (PD8), nor is the collector's turn.
    told.roots.clear()
    del runtime
    gc.collect()
    told.say(f"unhandled {sorted(unhandled)}")
    return told.log


async def _play(told: Told, runtime: fb.Runtime) -> None:
    loop = asyncio.get_running_loop()
    clock = told.clock
    pick = told.random
    told.roots.append(runtime.run_fork(Effect.never()))
    for _ in range(2):
        told.roots.append(runtime.run_fork(told.tree(pick.randrange(2, 6))))
    for step in range(pick.randrange(1, 8)):
        if pick.random() < 0.5:
            await runtime.run(clock.adjust(pick.choice([0, 1, 2])))
        else:
            await asyncio.sleep(0)
        target = pick.choice(told.roots)
        how = pick.randrange(6)
        if how == 0:
            target.interrupt_unsafe(by=100 + step)
        elif how == 1:
            target.interrupt_unsafe(by=100 + step, again=True)
        elif how == 2:
            target.cancel()
        elif how == 3:
            live: list[Any] = list(queue_of(loop).live)
            if live:
                chosen = pick.choice(live)
                told.say(f"step {step} {chosen.id}")
                chosen.interrupt_unsafe(by=900)
                del chosen
            del live
        told.say(f"step {step} {how} {[_shown_exit(r.poll()) for r in told.roots]}")
    for root in told.roots:
        root.interrupt_unsafe(by=1)
    await runtime.run(clock.adjust(100))
    told.say([_shown_exit(root.poll()) for root in told.roots])
    await runtime.dispose()
    for _ in range(5):
        await asyncio.sleep(0)
    queue = queue_of(loop)
    told.say(f"left {len(queue.live)} {len(queue.ready)} {len(queue.turn)} {queue.steps}")
    told.say(f"{sorted(told.acquired.items())} {sorted(told.released.items())}")


def _shown_exit(exit_: Any) -> str:
    return f"{exit_}"


def main() -> None:
    gc.disable()
    first, count = int(sys.argv[1]), int(sys.argv[2])
    assert (speed is not None) == (len(sys.argv) > 3)
    for seed in range(first, first + count):
        sys.stdout.write(f"{seed} {asyncio.run(run_one(seed))}\n")


if __name__ == "__main__":
    main()
