"""What both checkers have to refuse about the primitives: the marked lines, no other."""

from __future__ import annotations

from fibers import Deferred, Done, Effect, PubSub, Queue, Semaphore, SubscriptionRef
from tests.typing.kit import Denied, NotFound, User


def a_value_of_another_type(user: Deferred[User, NotFound]) -> None:
    user.succeed("ada")  # rejected: arg-type, reportArgumentType


def an_error_that_waiters_do_not_expect(user: Deferred[User, NotFound]) -> None:
    user.fail(Denied())  # rejected: arg-type, reportArgumentType


def an_effect_that_fails_otherwise(
    user: Deferred[User, NotFound], load: Effect[User, Denied]
) -> None:
    user.complete(load)  # rejected: arg-type, reportArgumentType


def a_deferred_has_one_type(user: Deferred[bool, NotFound]) -> Deferred[int, NotFound]:
    return user  # rejected: return-value, reportReturnType


def an_item_of_another_type(queue: Queue[User]) -> None:
    queue.offer(1)  # rejected: arg-type, reportArgumentType


def an_end_that_takers_do_not_expect(queue: Queue[User, NotFound]) -> None:
    queue.end()  # rejected: misc, reportAttributeAccessIssue


def collecting_from_a_queue_without_an_end(queue: Queue[User]) -> None:
    queue.collect()  # rejected: misc, reportAttributeAccessIssue


def a_producer_that_fails_otherwise(queue: Queue[User, Done], load: Effect[User, Denied]) -> None:
    Queue.into(load, queue)  # rejected: misc, reportArgumentType


def an_unknown_strategy() -> None:
    Queue[int](1, strategy="waiting")  # rejected: arg-type, reportArgumentType


def a_published_item_of_another_type(hub: PubSub[User]) -> None:
    hub.publish(1)  # rejected: arg-type, reportArgumentType


def permits_without_an_effect(semaphore: Semaphore) -> None:
    semaphore.with_permits(1)("work")  # rejected: arg-type, reportArgumentType


def an_update_to_another_type(ref: SubscriptionRef[int]) -> None:
    ref.update(str)  # rejected: arg-type, reportArgumentType
