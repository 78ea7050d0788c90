"""Deferred, Latch, Semaphore, Queue, PubSub, SubscriptionRef: what they hold and may fail with."""

from __future__ import annotations

from typing import Never, assert_type

from returns.maybe import Maybe

from fibers import (
    Cause,
    Deferred,
    Done,
    Effect,
    Exit,
    Latch,
    PubSub,
    Queue,
    Semaphore,
    Subscription,
    SubscriptionRef,
    scoped,
)
from tests.typing.kit import Denied, NotFound, User


async def a_deferred(
    user: Deferred[User, NotFound],
    load: Effect[User, NotFound],
    exit_: Exit[User, NotFound],
    cause: Cause[NotFound],
) -> None:
    assert_type(await user, User)
    assert_type(user.await_(), Effect[User, NotFound])
    assert_type(user.poll(), Effect[Maybe[Effect[User, NotFound]], Never])
    assert_type(user.succeed(User("ada")), Effect[bool, Never])
    assert_type(user.fail(NotFound()), Effect[bool, Never])
    assert_type(user.fail_cause(cause), Effect[bool, Never])
    assert_type(user.done(exit_), Effect[bool, Never])
    assert_type(user.complete(load), Effect[bool, Never])
    assert_type(user.complete_with(load), Effect[bool, Never])
    assert_type(user.interrupt_with(None), Effect[bool, Never])
    assert_type(user.done_unsafe(exit_), bool)
    assert_type(user.done_unsafe(load), bool)
    assert_type(Deferred.into(load, user), Effect[bool, Never])


def a_deferred_without_an_error() -> None:
    ready: Deferred[int] = Deferred()
    assert_type(ready.await_(), Effect[int, Never])
    assert_type(Deferred[int, NotFound](), Deferred[int, NotFound])


async def a_latch(latch: Latch, load: Effect[User, NotFound]) -> None:
    assert_type(latch.when_open(load), Effect[User, NotFound])
    assert_type(latch.open(), Effect[bool, Never])
    assert_type(latch.is_open, bool)
    await latch
    await latch.await_()


def a_semaphore(semaphore: Semaphore, load: Effect[User, NotFound]) -> None:
    assert_type(semaphore.with_permits(2)(load), Effect[User, NotFound])
    assert_type(semaphore.with_permit(load), Effect[User, NotFound])
    assert_type(semaphore.with_permits_if_available(2)(load), Effect[Maybe[User], NotFound])
    assert_type(semaphore.take(2), Effect[int, Never])
    assert_type(semaphore.release(), Effect[int, Never])
    assert_type(semaphore.resize(3), Effect[None, Never])
    assert_type(semaphore.available(), Effect[int, Never])


async def a_queue(queue: Queue[User, Done | NotFound], load: Effect[None, NotFound]) -> None:
    assert_type(queue.take(), Effect[User, Done | NotFound])
    assert_type(queue.take_all(), Effect[list[User], Done | NotFound])
    assert_type(queue.take_between(1, 2), Effect[list[User], Done | NotFound])
    assert_type(queue.poll(), Effect[Maybe[User], Never])
    assert_type(queue.offer(User("ada")), Effect[bool, Never])
    assert_type(queue.offer_all([User("ada")]), Effect[list[User], Never])
    # Done is how it ends, no failure.
    assert_type(queue.collect(), Effect[list[User], NotFound])
    assert_type(queue.await_(), Effect[None, NotFound])
    assert_type(queue.end(), Effect[bool, Never])
    assert_type(Queue.into(load, queue), Effect[bool, Never])
    async for user in queue:
        assert_type(user, User)


def queues_are_made_for_what_they_are_assigned_to() -> None:
    bounded: Queue[int, Done] = Queue.bounded(2)
    unbounded: Queue[str] = Queue.unbounded()
    assert_type(bounded.take(), Effect[int, Done])
    assert_type(unbounded.take(), Effect[str, Never])
    assert_type(bounded.collect(), Effect[list[int], Never])
    assert_type(bounded.await_(), Effect[None, Never])
    assert_type(unbounded.await_(), Effect[None, Never])
    assert_type(Queue[int, Denied](2, strategy="sliding"), Queue[int, Denied])


async def a_pubsub(hub: PubSub[User]) -> None:
    assert_type(hub.publish(User("ada")), Effect[bool, Never])
    assert_type(hub.subscribe(), Effect[Subscription[User], Never])
    own = await scoped(hub.subscribe())
    assert_type(own.take(), Effect[User, Never])
    assert_type(own.take_all(), Effect[list[User], Never])
    async for user in own:
        assert_type(user, User)


def a_hub_is_made_for_what_it_is_assigned_to() -> None:
    hub: PubSub[int] = PubSub.sliding(2, replay=1)
    assert_type(hub.publish_unsafe(1), bool)


def a_subscription_ref(ref: SubscriptionRef[int], load: Effect[int, NotFound]) -> None:
    assert_type(SubscriptionRef(0), SubscriptionRef[int])
    assert_type(ref.get(), Effect[int, Never])
    assert_type(ref.update(lambda n: n + 1), Effect[None, Never])
    assert_type(ref.update_and_get(lambda n: n + 1), Effect[int, Never])
    assert_type(ref.modify(lambda n: (str(n), n)), Effect[str, Never])
    assert_type(ref.update_effect(lambda _: load), Effect[None, NotFound])
    assert_type(ref.changes(), Effect[Subscription[int], Never])
