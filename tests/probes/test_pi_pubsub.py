"""Probes PI5 and PI6: PubSub, every item to everyone; SubscriptionRef, a value to watch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, Never, TypeVar

import pytest
from returns.maybe import Nothing, Some
from returns.result import Success

import fibers as fb
from fibers import Effect, Fail, Fiber, PubSub, Scope, Subscription, SubscriptionRef
from fibers.testing import TestClock
from tests.probes.kit_f import Boom, failed, interrupted, note, turns

A = TypeVar("A")


@pytest.fixture
async def scope() -> AsyncIterator[Scope]:
    """What the subscriptions of a test end with."""
    async with Scope() as own:
        yield own


async def subscribed(hub: PubSub[A], scope: Scope) -> Subscription[A]:
    """A subscription that ends with the scope."""
    return await scope.provide(hub.subscribe())


# ---- who gets what


@pytest.mark.spec("PI5")
async def test_every_subscription_gets_every_item(scope: Scope) -> None:
    """In order, each at its own pace."""
    hub: PubSub[int] = PubSub.unbounded()
    fast, slow = await subscribed(hub, scope), await subscribed(hub, scope)

    await hub.publish(1)
    seen = [await fast.take()]
    await hub.publish_all([2, 3])
    seen += await fast.take_all()

    assert seen == [1, 2, 3]
    assert await slow.take_all() == [1, 2, 3]
    assert hub.size_unsafe() == 0


@pytest.mark.spec("PI5")
async def test_its_size_is_what_the_slowest_subscription_has_to_take(scope: Scope) -> None:
    """An item counts until the last has taken it."""
    hub: PubSub[int] = PubSub.unbounded()
    quick, slow = await subscribed(hub, scope), await subscribed(hub, scope)
    await hub.publish(1)
    await hub.publish(2)
    await quick.take()
    assert await hub.size() == 2

    await slow.take()

    assert await hub.size() == 1


async def test_what_was_published_before_a_subscription_is_lost_to_it(scope: Scope) -> None:
    """Without one, nobody keeps it; publish says True all the same."""
    hub: PubSub[int] = PubSub.bounded(1)

    answers = [await hub.publish(1), await hub.publish(2), await hub.publish_all([3, 4])]
    late = await subscribed(hub, scope)
    await hub.publish(5)

    assert answers == [True, True, True]
    assert await late.take_all() == [5]


@pytest.mark.spec("PI5")
@pytest.mark.parametrize("make", ["bounded", "dropping", "sliding"])
async def test_without_a_subscription_there_is_always_room(make: str) -> None:
    """More than the capacity in one go, without waiting and without a refusal."""
    hubs: dict[str, PubSub[int]] = {
        "bounded": PubSub.bounded(2),
        "dropping": PubSub.dropping(2),
        "sliding": PubSub.sliding(2),
    }

    answer = fb.run_fork(hubs[make].publish_all(range(5))).poll()

    assert answer == Success(True)
    assert hubs[make].size_unsafe() == 0


@pytest.mark.spec("PI5")
async def test_a_taker_waits_and_is_woken_after_the_publisher(scope: Scope) -> None:
    """Through the ready queue, in the order of the subscriptions."""
    log: list[str] = []
    hub: PubSub[int] = PubSub.unbounded()

    def say(name: str, item: int) -> Effect[None]:
        return note(log, f"{name}={item}")

    for name in ("s1", "s2"):
        own = await subscribed(hub, scope)
        fb.run_fork(own.take().flat_map(partial(say, name)))

    hub.publish_unsafe(1)
    log.append("published")
    await turns()

    assert log == ["published", "s1=1", "s2=1"]


@pytest.mark.spec("PI5")
async def test_a_new_subscription_begins_with_the_replay(scope: Scope) -> None:
    """replay=2: the last two, published with or without anybody listening."""
    hub: PubSub[int] = PubSub.unbounded(replay=2)
    await hub.publish_all([1, 2, 3])

    first = await subscribed(hub, scope)
    looked = (await first.size(), await first.peek())
    await hub.publish(4)
    second = await subscribed(hub, scope)

    assert looked == (2, 2)
    assert await first.take_all() == [2, 3, 4]
    assert await second.take_between(1, 1) == [3]
    assert await second.take_all() == [4]


@pytest.mark.spec("PI5")
async def test_the_replay_takes_no_room_of_a_bounded_one(scope: Scope) -> None:
    """Only what a subscription has not taken yet does."""
    hub: PubSub[int] = PubSub.bounded(1, replay=3)
    await hub.publish_all([1, 2, 3])
    own = await subscribed(hub, scope)

    answer = fb.run_fork(hub.publish(4)).poll()

    assert answer == Success(True)
    assert await own.take_all() == [1, 2, 3, 4]


@pytest.mark.spec("PI5")
async def test_a_subscription_polls_and_takes_like_a_queue(scope: Scope) -> None:
    """The taking side is the same."""
    hub: PubSub[int] = PubSub.unbounded()
    own = await subscribed(hub, scope)
    nothing = await own.poll()
    three = fb.run_fork(own.take_n(3))

    await hub.publish_all([1, 2])
    await turns()
    before = three.poll()
    await hub.publish_all([3, 4])
    await turns()

    assert nothing == Nothing
    assert before is None
    assert three.poll() == Success([1, 2, 3])
    assert await own.poll() == Some(4)
    assert own.size_unsafe() == 0


@pytest.mark.spec("PI5")
async def test_more_than_the_capacity_is_never_waited_for(scope: Scope) -> None:
    """take_n(5) of a PubSub that holds two takes two."""
    hub: PubSub[int] = PubSub.bounded(2)
    own = await subscribed(hub, scope)
    fiber = fb.run_fork(own.take_n(5))

    await hub.publish_all([1, 2])
    await turns()

    assert fiber.poll() == Success([1, 2])


@pytest.mark.spec("PI5")
async def test_async_for_over_a_subscription_sees_what_comes() -> None:
    """In a body under a scope; leaving the scope ends the subscription."""
    hub: PubSub[int] = PubSub.unbounded(replay=1)
    await hub.publish(1)

    @fb.effect
    async def watch() -> list[int]:
        seen: list[int] = []
        async for item in await hub.subscribe():
            seen.append(item)
            if item == 3:
                break
            await hub.publish(item + 1)
        return seen

    assert await fb.scoped(watch()) == [1, 2, 3]
    assert not hub._subscriptions


# ---- room


@pytest.mark.spec("PI5")
async def test_a_publisher_waits_for_the_slowest_subscription(scope: Scope) -> None:
    """There is room once every one of them has taken the oldest."""
    hub: PubSub[int] = PubSub.bounded(2)
    fast, slow = await subscribed(hub, scope), await subscribed(hub, scope)
    await hub.publish_all([1, 2])
    third = fb.run_fork(hub.publish(3))
    full = await hub.is_full()

    taken = await fast.take_all()
    await turns()
    before = third.poll()
    await slow.take()
    await turns()

    assert full
    assert taken == [1, 2]
    assert before is None
    assert third.poll() == Success(True)
    assert (await fast.take_all(), await slow.take_all()) == ([3], [2, 3])


@pytest.mark.spec("PI5")
async def test_the_end_of_the_slowest_subscription_makes_room(scope: Scope) -> None:
    """What only it had not taken is dropped."""
    hub: PubSub[int] = PubSub.bounded(1)
    own = await subscribed(hub, scope)
    slow = Scope()
    await subscribed(hub, slow)
    await hub.publish(1)
    second = fb.run_fork(hub.publish(2))
    await own.take()
    await turns()
    before = second.poll()

    await slow.close()
    await turns()

    assert before is None
    assert second.poll() == Success(True)
    assert await own.take() == 2


@pytest.mark.spec("PI5")
async def test_publishers_go_on_when_the_last_subscription_ends() -> None:
    """What they publish reaches nobody."""
    hub: PubSub[int] = PubSub.bounded(1)
    scope = Scope()
    await subscribed(hub, scope)
    row = fb.run_fork(hub.publish_all([1, 2, 3]))
    single = fb.run_fork(hub.publish(4))

    await scope.close()
    await turns()

    assert (row.poll(), single.poll()) == (Success(True), Success(True))
    assert hub.size_unsafe() == 0


@pytest.mark.spec("PI5")
async def test_a_dropping_one_refuses_what_has_no_room(scope: Scope) -> None:
    """Nobody gets it, the replay neither."""
    hub: PubSub[int] = PubSub.dropping(2, replay=1)
    own = await subscribed(hub, scope)

    answers = [
        await hub.publish_all([1, 2, 3]),
        await hub.publish(4),
        hub.publish_unsafe(5),
    ]

    assert answers == [False, False, False]
    assert await own.take_all() == [1, 2]
    assert await (await subscribed(hub, scope)).take_all() == [2]


@pytest.mark.spec("PI5")
async def test_a_sliding_one_takes_the_oldest_from_those_behind(scope: Scope) -> None:
    """Each keeps what it has taken; nobody waits."""
    hub: PubSub[int] = PubSub.sliding(2)
    fast, slow = await subscribed(hub, scope), await subscribed(hub, scope)
    await hub.publish_all([1, 2])
    seen = await fast.take_all()

    answer = await hub.publish_all([3, 4])

    assert answer
    assert seen + await fast.take_all() == [1, 2, 3, 4]
    assert await slow.peek() == 3
    assert await slow.take_all() == [3, 4]
    assert hub.size_unsafe() == 0


@pytest.mark.spec("PI5")
async def test_publish_unsafe_does_not_wait(scope: Scope) -> None:
    """Where publish would, it says False."""
    hub: PubSub[int] = PubSub.bounded(1)
    own = await subscribed(hub, scope)

    answers = [hub.publish_unsafe(1), hub.publish_unsafe(2)]

    assert answers == [True, False]
    assert await own.take_all() == [1]


# ---- the end


@pytest.mark.spec("PI5")
async def test_shutdown_interrupts_takers_and_refuses_publishers(scope: Scope) -> None:
    """Those that wait and those that come."""
    hub: PubSub[int] = PubSub.bounded(1)
    waiting, full = await subscribed(hub, scope), await subscribed(hub, scope)
    ended = fb.run_fork(hub.await_shutdown())
    await hub.publish(1)
    await waiting.take()
    taker = fb.run_fork(waiting.take())
    publisher = fb.run_fork(hub.publish(2))
    before = (ended.poll(), await hub.is_shutdown())

    answers = [await hub.shutdown(), await hub.shutdown(), await hub.publish(3)]
    await turns()

    assert before == (None, False)
    assert answers == [True, False, False]
    assert taker.poll() == interrupted(None)
    assert publisher.poll() == Success(False)
    assert await full.take().exit() == interrupted(None)
    assert await full.poll() == Nothing
    assert not hub.publish_unsafe(4)
    assert (ended.poll(), await hub.is_shutdown()) == (Success(None), True)
    late = await subscribed(hub, scope)
    assert await late.take_all().exit() == interrupted(None)


@pytest.mark.spec("PI5")
async def test_takers_of_an_ended_subscription_are_interrupted() -> None:
    """Those that wait, woken or not, and those that come; the others go on."""
    hub: PubSub[int] = PubSub.unbounded()
    scope, other = Scope(), Scope()
    own, stays = await subscribed(hub, scope), await subscribed(hub, other)
    takers = [fb.run_fork(own.take()), fb.run_fork(own.take())]

    hub.publish_unsafe(1)
    await scope.close()
    await turns()

    assert [taker.poll() for taker in takers] == [interrupted(None)] * 2
    assert await own.take().exit() == interrupted(None)
    assert own.size_unsafe() == 0
    assert await stays.take() == 1
    await other.close()


@pytest.mark.spec("PI5")
async def test_an_ended_subscription_has_no_part_in_what_comes_later() -> None:
    """A poll of it finds nothing and takes nothing from the others."""
    hub: PubSub[int] = PubSub.unbounded()
    scope, other = Scope(), Scope()
    own, stays = await subscribed(hub, scope), await subscribed(hub, other)
    await scope.close()

    await hub.publish_all([1, 2])
    looked = (own.size_unsafe(), own.poll_unsafe(), hub.size_unsafe())

    assert looked == (0, Nothing, 2)
    assert await stays.take_all() == [1, 2]
    await other.close()


# ---- interrupts


@pytest.mark.spec("PI5")
async def test_interrupted_takers_and_publishers_leave_at_once(scope: Scope) -> None:
    """Ten thousand of each leave nothing."""
    hub: PubSub[int] = PubSub.bounded(1)
    own, full = await subscribed(hub, scope), await subscribed(hub, scope)
    await hub.publish(0)
    await own.take()
    takers = [fb.run_fork(own.take()) for _ in range(10_000)]
    publishers = [fb.run_fork(hub.publish(n)) for n in range(10_000)]
    waiting = (len(own._takers), len(hub._givers))

    for fiber in (*takers, *publishers):
        fiber.interrupt_unsafe()

    assert waiting == (10_000, 10_000)
    assert not own._takers
    assert not hub._givers
    assert await full.take_all() == [0]


@pytest.mark.spec("PI5")
async def test_a_publisher_interrupted_in_the_tick_it_was_let_in_publishes_nothing(
    scope: Scope,
) -> None:
    """The room goes to the next."""
    hub: PubSub[str] = PubSub.bounded(1)
    own = await subscribed(hub, scope)
    await hub.publish("a")
    first = fb.run_fork(hub.publish("b"))
    second = fb.run_fork(hub.publish("c"))

    taken = own.poll_unsafe()
    first.interrupt_unsafe(by=7)
    await turns()

    assert taken == Some("a")
    assert first.poll() == interrupted(7)
    assert second.poll() == Success(True)
    assert await own.take_all() == ["c"]


@pytest.mark.spec("PI5", "AT7")
async def test_an_item_goes_to_the_next_taker_of_the_subscription(scope: Scope) -> None:
    """When the woken one is interrupted."""
    hub: PubSub[str] = PubSub.unbounded()
    own = await subscribed(hub, scope)
    first = fb.run_fork(own.take())
    second = fb.run_fork(own.take())

    hub.publish_unsafe("a")
    first.interrupt_unsafe()
    await turns()

    assert second.poll() == Success("a")


# ---- arguments, loops


@pytest.mark.spec("PI5", "PD18")
def test_a_number_that_makes_no_sense_is_refused_at_the_call() -> None:
    """ValueError."""
    makers: list[Any] = [PubSub, PubSub.bounded, PubSub.dropping, PubSub.sliding]

    for make in makers:
        for n in (-1, 0, 1.5, "1"):
            with pytest.raises(ValueError, match="positive int"):
                make(n)
    with pytest.raises(ValueError, match="replay"):
        PubSub.unbounded(replay=-1)
    with pytest.raises(ValueError, match="strategy"):
        PubSub(1, strategy="waiting")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what is refused


@pytest.mark.spec("PI5", "AT16")
async def test_a_second_loop_gets_an_error(scope: Scope) -> None:
    """While the first one runs, for both ends."""
    hub: PubSub[int] = PubSub.unbounded()
    own = await subscribed(hub, scope)

    for eff in (hub.publish(1), own.take(), fb.scoped(hub.subscribe()), hub.shutdown()):
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(fb.run, eff)

    assert own.size_unsafe() == 0


# ---- SubscriptionRef


@pytest.mark.spec("PI6")
async def test_changes_give_the_current_value_and_then_each_new_one(scope: Scope) -> None:
    """0, 1, 2."""
    ref = SubscriptionRef(0)
    changes = await scope.provide(ref.changes())

    await ref.set(1)
    await ref.update(lambda n: n + 1)
    late = await scope.provide(ref.changes())

    assert await changes.take_all() == [0, 1, 2]
    assert await late.take_all() == [2]


@pytest.mark.spec("PI6")
async def test_each_change_gives_what_its_name_says() -> None:
    """And get the value of the moment."""
    ref = SubscriptionRef(1)

    answers = [
        await ref.get_and_set(2),
        await ref.get_and_update(lambda n: n * 2),
        await ref.update_and_get(lambda n: n * 2),
        await ref.modify(lambda n: (f"was {n}", n + 1)),
        await ref.get(),
        ref.get_unsafe(),
    ]

    assert answers == [1, 2, 8, "was 8", 9, 9]


@pytest.mark.spec("PI6")
async def test_a_change_that_takes_time_makes_the_others_wait(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """No update is lost; the value can be read meanwhile."""
    ref = SubscriptionRef(1)
    slow = rt.run_fork(ref.update_effect(lambda n: fb.sleep(1).map(lambda _: n + 10)))
    other = rt.run_fork(ref.update(lambda n: n * 2))
    await rt.run(clock.adjust(0.5))
    meanwhile = (other.poll(), await ref.get())

    await rt.run(clock.adjust(0.5))

    assert meanwhile == (None, 1)
    assert (slow.poll(), other.poll()) == (Success(None), Success(None))
    assert ref.get_unsafe() == 22


@pytest.mark.spec("PI6")
async def test_a_change_that_fails_or_is_interrupted_changes_nothing(scope: Scope) -> None:
    """Nothing is published, and the next one has its turn."""
    ref = SubscriptionRef(0)
    changes = await scope.provide(ref.changes())
    boom = Boom()
    fail: Effect[int, Boom] = Effect.fail(boom)
    never: Effect[tuple[str, int]] = Effect.never()

    failure = await ref.update_effect(lambda _: fail).exit()
    fiber: Fiber[str, Never] = fb.run_fork(ref.modify_effect(lambda _: never))
    waiting = fb.run_fork(ref.set(5))
    fiber.interrupt_unsafe(by=7)
    await turns()

    assert failure == failed(Fail(boom))
    assert fiber.poll() == interrupted(7)
    assert waiting.poll() == Success(None)
    assert await changes.take_all() == [0, 5]


@pytest.mark.spec("PI6")
async def test_a_watcher_sees_changes_as_they_come() -> None:
    """async for, in a fiber of its own."""
    log: list[str] = []
    ref = SubscriptionRef("a")

    @fb.effect
    async def watch() -> None:
        async for value in await ref.changes():
            log.append(value)  # noqa: PERF401  # it never ends by itself

    fiber = fb.run_fork(fb.scoped(watch()))
    await turns()
    for value in ("b", "c"):
        await ref.set(value)
        await turns()
    fiber.interrupt_unsafe()
    await turns()
    await ref.set("d")

    assert log == ["a", "b", "c"]
    assert not ref._hub._subscriptions
