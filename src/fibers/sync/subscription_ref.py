"""SubscriptionRef: a value, and everyone who wants to know when it changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Generic, Never, TypeVar, final

from fibers.effect import Effect
from fibers.misplaced import check_function, plain
from fibers.sync.pubsub import PubSub
from fibers.sync.semaphore import Semaphore

if TYPE_CHECKING:
    from fibers.exit import Exit
    from fibers.sync.pubsub import Subscription

A = TypeVar("A")
B = TypeVar("B")
E = TypeVar("E", bound=Exception)


@final
class SubscriptionRef(Generic[A]):
    """A value that fibers read, change and watch.

        count = SubscriptionRef(0)
        await count.update(lambda n: n + 1)
        async for n in await count.changes():
            print(n)

    Changes happen one at a time; one that takes time, ``modify_effect``, makes the others wait.
    Every change is published, also one to an equal value (PI6).
    """

    __slots__ = ("__weakref__", "_hub", "_one_at_a_time", "_value")

    def __init__(self, value: A) -> None:
        self._value = value
        self._hub: PubSub[A] = PubSub.unbounded(replay=1)
        self._hub.publish_unsafe(value)
        self._one_at_a_time = Semaphore(1)

    # ------------------------------------------------------------------ read, watch

    def get(self) -> Effect[A, Never]:
        """The value. Never waits."""
        return Effect.sync(self.get_unsafe)

    def get_unsafe(self) -> A:
        """``get`` as a plain call."""
        return self._value

    def changes(self) -> Effect[Subscription[A], Never]:
        """A subscription that gives the current value and then each new one, until the scope in
        context closes.
        """
        return self._hub.subscribe()

    # ------------------------------------------------------------------ change

    def set(self, value: A) -> Effect[None, Never]:
        """Replace the value."""
        return self.modify(lambda _: (None, value))

    def get_and_set(self, value: A) -> Effect[A, Never]:
        """Replace the value; gives the one before."""
        return self.modify(lambda old: (old, value))

    def update(self, f: Callable[[A], A]) -> Effect[None, Never]:
        """``f`` of the value instead of it."""
        check_function(f, "SubscriptionRef.update")
        return self.modify(lambda old: (None, plain(f(old), "SubscriptionRef.update")))

    def get_and_update(self, f: Callable[[A], A]) -> Effect[A, Never]:
        """``f`` of the value instead of it; gives the one before."""
        check_function(f, "SubscriptionRef.get_and_update")
        return self.modify(lambda old: (old, plain(f(old), "SubscriptionRef.get_and_update")))

    def update_and_get(self, f: Callable[[A], A]) -> Effect[A, Never]:
        """``f`` of the value instead of it; gives the new one."""
        check_function(f, "SubscriptionRef.update_and_get")

        def both(old: A) -> tuple[A, A]:
            new = plain(f(old), "SubscriptionRef.update_and_get")
            return new, new

        return self.modify(both)

    def update_effect(self, f: Callable[[A], Effect[A, E] | Exit[A, E]]) -> Effect[None, E]:
        """``update`` with an effect: while it runs, other changes wait; if it fails or is
        interrupted, the value stays.
        """
        check_function(f, "SubscriptionRef.update_effect")
        return self.modify_effect(
            lambda old: Effect.suspend(lambda: f(old)).map(lambda new: (None, new))
        )

    def modify(self, f: Callable[[A], tuple[B, A]]) -> Effect[B, Never]:
        """``f`` of the value gives a result and the new value."""
        check_function(f, "SubscriptionRef.modify")
        return self._one_at_a_time.with_permit(Effect.sync(lambda: self._change(f(self._value))))

    def modify_effect(
        self, f: Callable[[A], Effect[tuple[B, A], E] | Exit[tuple[B, A], E]]
    ) -> Effect[B, E]:
        """``modify`` with an effect: while it runs, other changes wait; if it fails or is
        interrupted, the value stays.
        """
        check_function(f, "SubscriptionRef.modify_effect")
        return self._one_at_a_time.with_permit(
            Effect.suspend(lambda: f(self._value)).map(self._change)
        )

    def _change(self, change: tuple[B, A]) -> B:
        result, self._value = plain(change, "SubscriptionRef.modify")
        self._hub.publish_unsafe(self._value)
        return result

    def __repr__(self) -> str:
        return f"<SubscriptionRef {self._value!r}>"


__all__ = ["SubscriptionRef"]
