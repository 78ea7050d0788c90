"""Probes PI4 and PI5: no item is lost or doubled, whoever is interrupted when."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import pytest
from returns.result import Success

import fibers as fb
from fibers import Deferred, Done, Effect, Fiber, Latch, PubSub, Queue, Scope, Semaphore
from fibers.testing import Case, explore, settle, sweep
from tests.probes.kit_f import collector_off

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from fibers import Subscription

E = TypeVar("E", bound=Exception)

SEEDS = range(50)
ACTORS = 80


def one(take: Effect[int, E]) -> Effect[list[int], E]:
    """A single item as a list of one."""
    return take.map(lambda item: [item])


def noted(log: list[int], take: Effect[list[int], E]) -> Effect[list[int], E]:
    """Write what was taken to the log; no interrupt comes between the two."""
    return Effect.uninterruptible_mask(
        lambda restore: restore(take).tap(lambda taken: Effect.sync(lambda: log.extend(taken)))
    )


def accepted(log: list[int], item: int, offer: Effect[bool]) -> Effect[bool]:
    """Write the item to the log if it was accepted; no interrupt comes between the two."""

    def write(yes: bool) -> Effect[None]:
        return Effect.sync(lambda: log.append(item) if yes else None)

    return Effect.uninterruptible_mask(lambda restore: restore(offer).tap(write))


class Crowd:
    """Fibers that come, go and are interrupted as a seed has it."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.fibers: list[Fiber[Any, Any]] = []

    async def come(self, eff: Effect[Any, Any]) -> None:
        """Start one, perhaps masked; interrupt some; perhaps let things happen."""
        rng = self.rng
        self.fibers.append(fb.run_fork(eff.uninterruptible() if rng.random() < 0.1 else eff))
        for _ in range(rng.choice((0, 0, 1, 2))):
            rng.choice(self.fibers).interrupt_unsafe()
        if rng.random() < 0.4:
            await asyncio.sleep(0)

    def alive(self) -> list[Fiber[Any, Any]]:
        """Those that have not ended."""
        return [fiber for fiber in self.fibers if fiber.poll() is None]


def once_each(items: Iterable[int]) -> bool:
    """Whether no item is there twice."""
    return max(Counter(items).values(), default=1) == 1


QUEUES: dict[str, Callable[[], Queue[int, Done]]] = {
    "rendezvous": lambda: Queue.bounded(0),
    "one": lambda: Queue.bounded(1),
    "three": lambda: Queue.bounded(3),
    "unbounded": lambda: Queue.unbounded(),
}


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("kind", QUEUES)
async def test_what_goes_in_comes_out_once_and_in_order(kind: str) -> None:
    """Single offers against every way to take: the log of one end is the log of the other."""
    for seed in SEEDS:
        crowd = Crowd(seed)
        rng = crowd.rng
        queue = QUEUES[kind]()
        went_in: list[int] = []
        came_out: list[int] = []
        takes = [one(queue.take()), queue.take_all(), queue.take_between(2, 3)]

        for n in range(ACTORS):
            match rng.randint(0, 10):
                case 0:
                    await crowd.come(queue.peek())
                case 10 if kind != "rendezvous":
                    came_out += [item for item in [queue.poll_unsafe().value_or(-1)] if item >= 0]
                case 1 | 2 | 3 | 4:
                    await crowd.come(noted(came_out, rng.choice(takes)))
                case _:
                    await crowd.come(accepted(went_in, n, queue.offer(n)))
        await queue.end()
        rest = await queue.collect()
        await settle()

        assert went_in == came_out + rest, seed
        assert once_each(went_in)
        assert crowd.alive() == []
        assert queue._takers.set_aside == queue._givers.set_aside == 0
        assert not queue._takers
        assert not queue._givers


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("kind", QUEUES)
async def test_an_offer_that_ended_interrupted_put_nothing_in(kind: str) -> None:
    """And a take that ended interrupted took nothing: the exits alone tell where each item is."""
    for seed in SEEDS:
        crowd = Crowd(seed)
        queue = QUEUES[kind]()
        offers: dict[int, Fiber[bool, Any]] = {}
        takes: list[Fiber[int, Any]] = []

        for n in range(ACTORS):
            if crowd.rng.random() < 0.5:
                offers[n] = fiber = fb.run_fork(queue.offer(n))
                crowd.fibers.append(fiber)
                await crowd.come(Effect.succeed(None))
            else:
                takes.append(fb.run_fork(queue.take()))
                crowd.fibers.append(takes[-1])
                await crowd.come(Effect.succeed(None))
        await queue.end()
        rest = await queue.collect()
        await settle()

        put = {n for n, fiber in offers.items() if fiber.poll() == Success(True)}
        exits = [fiber.poll() for fiber in takes]
        got = [exit_.unwrap() for exit_ in exits if isinstance(exit_, Success)]
        assert sorted(got + rest) == sorted(put), seed


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("kind", QUEUES)
async def test_rows_come_out_as_beginnings_of_themselves(kind: str) -> None:
    """offer_all interrupted anywhere: each row is there from its first item on, without a gap."""
    for seed in SEEDS:
        crowd = Crowd(seed)
        queue = QUEUES[kind]()
        came_out: list[int] = []
        rows: dict[int, Fiber[list[int], Any]] = {}

        for n in range(ACTORS // 2):
            rows[n] = fb.run_fork(queue.offer_all([n * 10 + k for k in range(4)]))
            crowd.fibers.append(rows[n])
            await crowd.come(noted(came_out, queue.take_between(1, 3)))
        await queue.end()
        came_out += await queue.collect()
        await settle()

        assert once_each(came_out)
        for n, fiber in rows.items():
            of_row = [item % 10 for item in came_out if item // 10 == n]
            assert of_row == list(range(len(of_row))), seed
            if fiber.poll() == Success([]):
                assert len(of_row) == 4


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("sliding", [False, True], ids=["dropping", "sliding"])
async def test_a_queue_that_loses_items_doubles_none(sliding: bool) -> None:
    """What comes out went in, in order; a dropping queue loses only what it refused."""
    for seed in SEEDS:
        crowd = Crowd(seed)
        queue: Queue[int, Done] = Queue.sliding(2) if sliding else Queue.dropping(2)
        went_in: list[int] = []
        came_out: list[int] = []

        for n in range(ACTORS):
            if crowd.rng.random() < 0.6:
                await crowd.come(accepted(went_in, n, queue.offer(n)))
            else:
                await crowd.come(noted(came_out, one(queue.take())))
        await queue.end()
        came_out += await queue.collect()
        await settle()

        left = iter(went_in)
        assert all(item in left for item in came_out), seed  # a subsequence
        assert sliding or came_out == went_in
        assert crowd.alive() == []


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("kind", QUEUES)
async def test_a_shutdown_at_any_time_lets_everybody_go(kind: str) -> None:
    """Nobody stays behind, and nothing comes out that did not go in."""
    for seed in SEEDS:
        crowd = Crowd(seed)
        queue = QUEUES[kind]()
        went_in: list[int] = []
        came_out: list[int] = []
        last = crowd.rng.randint(0, ACTORS)

        for n in range(ACTORS):
            if n == last:
                queue.shutdown_unsafe()
            if crowd.rng.random() < 0.5:
                await crowd.come(accepted(went_in, n, queue.offer(n)))
            else:
                await crowd.come(noted(came_out, queue.take_between(1, 2)))
        queue.shutdown_unsafe()
        await settle()

        assert crowd.alive() == []
        assert came_out == went_in[: len(came_out)], seed
        assert queue.size_unsafe() == 0


HUBS: dict[str, Callable[[], PubSub[int]]] = {
    "one": lambda: PubSub.bounded(1),
    "three": lambda: PubSub.bounded(3),
    "unbounded": lambda: PubSub.unbounded(),
}


async def subscribed(hub: PubSub[int], scope: Scope) -> Subscription[int]:
    """A subscription that ends with the scope."""
    return await scope.provide(hub.subscribe())


@pytest.mark.spec("PI5")
@pytest.mark.parametrize("kind", HUBS)
async def test_every_subscription_sees_every_item_once_and_in_order(kind: str) -> None:
    """Publishers and takers interrupted anywhere, several takers to a subscription."""
    for seed in SEEDS:
        crowd = Crowd(seed)
        rng = crowd.rng
        hub = HUBS[kind]()
        published: list[int] = []
        seen: list[list[int]] = [[], [], []]
        async with Scope() as scope:
            subscriptions = [await subscribed(hub, scope) for _ in seen]

            for n in range(ACTORS):
                if rng.random() < 0.3:
                    await crowd.come(accepted(published, n, hub.publish(n)))
                at = rng.randrange(3)
                own = subscriptions[at]
                take = one(own.take()) if rng.random() < 0.7 else own.take_all()
                await crowd.come(noted(seen[at], take))
            # What publishers still wait with comes as room is made.
            await settle()
            while any(own.size_unsafe() for own in subscriptions):
                for at, own in enumerate(subscriptions):
                    seen[at] += [own.poll_unsafe().unwrap() for _ in range(own.size_unsafe())]
                await settle()

            assert seen == [published] * 3, seed
            assert hub.size_unsafe() == 0
            assert len(hub._givers) == hub._givers.set_aside == 0
        await settle()

        assert crowd.alive() == []
        assert not hub._subscriptions


@pytest.mark.spec("PI5")
@pytest.mark.parametrize("kind", HUBS)
async def test_subscriptions_that_come_and_go_hold_nobody_up(kind: str) -> None:
    """Each sees an unbroken stretch of what was published, and leaves nothing in the log."""
    for seed in SEEDS:
        crowd = Crowd(seed)
        rng = crowd.rng
        hub = HUBS[kind]()
        published: list[int] = []
        seen: list[list[int]] = []

        @fb.effect
        async def visit(log: list[int], count: int, hub: PubSub[int] = hub) -> None:
            own = await hub.subscribe()
            for _ in range(count):
                await noted(log, one(own.take()))

        for n in range(ACTORS):
            if rng.random() < 0.4:
                seen.append([])
                await crowd.come(fb.scoped(visit(seen[-1], rng.randint(0, 4))))
            else:
                await crowd.come(accepted(published, n, hub.publish(n)))
        for fiber in crowd.fibers:
            fiber.interrupt_unsafe()
        await settle()
        # The masked ones, who can't be interrupted.
        while crowd.alive():
            await hub.publish(published[-1] + 1000 if published else 1000)
            await settle()

        stretches = [log for log in seen if log and log[-1] < 1000]
        assert stretches, seed
        for log in stretches:
            start = published.index(log[0])
            assert log == published[start : start + len(log)], seed
        assert hub.size_unsafe() == 0
        assert not hub._subscriptions


# ---- nothing is left


WAITS: dict[str, Callable[[Scope], Awaitable[tuple[Effect[Any, Any], Callable[[], object]]]]] = {}


def wait_of(
    make: Callable[[Scope], Awaitable[tuple[Effect[Any, Any], Callable[[], object]]]],
) -> None:
    """Add a way to wait, together with what lets one fiber go on."""
    WAITS[make.__name__] = make


@wait_of
async def deferred(_: Scope) -> tuple[Effect[Any, Any], Callable[[], object]]:
    own: Deferred[int] = Deferred()
    return own.await_(), lambda: own.done_unsafe(Success(1))


@wait_of
async def latch(_: Scope) -> tuple[Effect[Any, Any], Callable[[], object]]:
    own = Latch()
    return own.await_(), own.release_unsafe


@wait_of
async def semaphore(_: Scope) -> tuple[Effect[Any, Any], Callable[[], object]]:
    own = Semaphore(0)
    return own.with_permits(1)(Effect.succeed(1)), own.release_unsafe


@wait_of
async def take(_: Scope) -> tuple[Effect[Any, Any], Callable[[], object]]:
    own: Queue[int] = Queue.unbounded()
    return own.take(), lambda: own.offer_unsafe(1)


@wait_of
async def offer(_: Scope) -> tuple[Effect[Any, Any], Callable[[], object]]:
    own: Queue[int] = Queue.bounded(1)
    own.offer_unsafe(1)
    return own.offer(2), own.poll_unsafe


@wait_of
async def subscription(scope: Scope) -> tuple[Effect[Any, Any], Callable[[], object]]:
    hub: PubSub[int] = PubSub.unbounded()
    own = await subscribed(hub, scope)
    return own.take(), lambda: hub.publish_unsafe(1)


@pytest.mark.spec("PI2", "PI3", "PD13")
@pytest.mark.parametrize("way", WAITS)
@pytest.mark.parametrize("end", ["called", "interrupted", "interrupted when called"])
@pytest.mark.parametrize("in_a_body", [False, True], ids=["effect", "body"])
async def test_a_fiber_that_has_waited_is_gone_without_the_collector(
    way: str, end: str, in_a_body: bool
) -> None:
    """However the wait ended, the primitive keeps nothing of it."""
    async with Scope() as scope:
        wait, let_go = await WAITS[way](scope)

        @fb.effect
        async def body() -> None:
            await wait

        with collector_off():
            fiber = fb.run_fork(body() if in_a_body else wait)
            waiting = fiber.poll() is None
            if end != "interrupted":
                let_go()
            if end != "called":
                fiber.interrupt_unsafe()
            await settle()
            ended = fiber.poll() is not None
            gone = weakref.ref(fiber)
            del fiber

            assert waiting
            assert ended
            assert gone() is None


# ---- an interrupt at every primitive, and ready fibers in any order


@pytest.mark.spec("PI3", "AT11")
def test_an_interrupt_at_every_primitive_leaves_every_permit() -> None:
    """One fiber holds the permit, one waits for it, one takes it only if it is free."""

    def case() -> Case:
        semaphore = Semaphore(1)
        pause = Effect.yield_now()

        @fb.effect
        async def whole() -> None:
            other = await semaphore.with_permits(1)(pause).fork_child(start_immediately=True)
            await semaphore.with_permits_if_available(1)(pause)
            await semaphore.with_permits(1)(pause)
            await semaphore.with_permits_if_available(1)(pause)
            await other

        def check(_: object) -> None:
            assert semaphore.available_unsafe() == 1
            assert len(semaphore._line) == semaphore._line.set_aside == 0

        return whole(), check

    assert sweep(case).interrupted > 20


@pytest.mark.spec("PI4", "AT11")
@pytest.mark.parametrize("kind", QUEUES)
def test_an_interrupt_at_every_primitive_loses_no_item(kind: str) -> None:
    """Of a producer and a consumer that both have to wait."""

    def case() -> Case:
        queue = QUEUES[kind]()
        went_in: list[int] = []
        came_out: list[int] = []

        @fb.effect
        async def produce() -> None:
            for n in range(4):
                await accepted(went_in, n, queue.offer(n))

        @fb.effect
        async def whole() -> None:
            producer = await produce().fork_child()
            await noted(came_out, one(queue.take()))
            await noted(came_out, queue.take_between(1, 2))
            await queue.peek()
            await noted(came_out, queue.take_all())
            await producer.interrupt()

        def check(_: object) -> None:
            assert went_in == came_out + list(queue._items)
            assert len(queue._takers) == queue._takers.set_aside == 0
            assert len(queue._givers) == queue._givers.set_aside == 0

        return whole(), check

    assert sweep(case).interrupted > 20


@pytest.mark.spec("PI5", "AT11")
@pytest.mark.parametrize("kind", HUBS)
def test_an_interrupt_at_every_primitive_leaves_no_subscription(kind: str) -> None:
    """Of a publisher and of two subscriptions, one of which lags behind."""

    def case() -> Case:
        hub = HUBS[kind]()
        published: list[int] = []
        seen: list[int] = []

        @fb.effect
        async def publish() -> None:
            for n in range(4):
                await accepted(published, n, hub.publish(n))

        @fb.effect
        async def whole() -> None:
            fast = await hub.subscribe()
            slow = await hub.subscribe()
            publisher = await publish().fork_child()
            for _ in range(3):
                await noted(seen, one(fast.take()))
                await slow.take()
            await publisher.interrupt()

        def check(_: object) -> None:
            assert seen == published[: len(seen)]
            assert not hub._subscriptions
            assert hub.size_unsafe() == 0
            assert len(hub._givers) == hub._givers.set_aside == 0

        return fb.scoped(whole()), check

    assert sweep(case).interrupted > 20


@pytest.mark.spec("PI1", "AT11")
def test_into_that_began_completes_its_deferred_wherever_it_is_interrupted() -> None:
    """Its effect ran: nobody waits for ever."""

    def case() -> Case:
        own: Deferred[None] = Deferred()
        begun: list[bool] = []
        work: Effect[None] = Effect.sync(lambda: begun.append(True)).flat_map(
            lambda _: Effect.yield_now()
        )

        def check(_: object) -> None:
            assert own.is_done_unsafe() or not begun
            assert not own._waiters

        return Deferred.into(work, own).flat_map(lambda _: own.await_()), check

    assert sweep(case).interrupted > 5


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("kind", QUEUES)
def test_no_order_of_the_ready_fibers_loses_an_item(kind: str) -> None:
    """Also where those that were called have their step in another order."""

    @explore(60)
    async def in_some_order() -> None:
        queue = QUEUES[kind]()
        came_out: list[int] = []
        rows = [fb.run_fork(queue.offer_all(range(n, n + 3))) for n in range(0, 15, 3)]
        takers = [fb.run_fork(noted(came_out, one(queue.take()))) for _ in range(4)]
        takers += [fb.run_fork(noted(came_out, queue.take_between(1, 2))) for _ in range(4)]
        for at in (1, 5):
            await asyncio.sleep(0)
            takers[at].interrupt_unsafe()
        await queue.end()
        came_out += await queue.collect()

        assert sorted(came_out) == list(range(15))
        assert [await row for row in rows] == [[]] * 5

    in_some_order()


@pytest.mark.spec("PI3")
def test_no_order_of_the_ready_fibers_lets_too_many_in() -> None:
    """Also where those that were called have their step in another order."""

    @explore(60)
    async def in_some_order() -> None:
        semaphore = Semaphore(2)
        inside = 0

        @fb.effect
        async def work() -> None:
            nonlocal inside
            inside += 1
            assert inside <= 2
            await Effect.yield_now()
            inside -= 1

        fibers = [fb.run_fork(semaphore.with_permits(1)(work())) for _ in range(8)]
        await asyncio.sleep(0)
        await Fiber.join_all(fibers)

        assert semaphore.available_unsafe() == 2

    in_some_order()
