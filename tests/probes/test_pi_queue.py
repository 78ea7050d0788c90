"""Probes PI4: Queue, items handed from fibers to fibers."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any, Never, TypeAlias

import pytest
from returns.maybe import Nothing, Some
from returns.result import Success

import fibers as fb
from fibers import Cause, Die, Done, Effect, Fail, Fiber, Interrupt, Queue
from tests.probes.kit_f import (
    Boom,
    collector_off,
    failed,
    interrupted,
    note,
    running_fiber,
    turns,
)

if TYPE_CHECKING:
    from collections.abc import Callable

BOOM = Boom("boom")
DONE = failed(Fail(Done()))

End: TypeAlias = "Callable[[Queue[int, Any]], Effect[bool]]"
ENDS: dict[str, tuple[End, fb.Exit[Any, Any]]] = {
    "end": (lambda q: q.end(), DONE),
    "fail": (lambda q: q.fail(BOOM), failed(Fail(BOOM))),
    "fail_cause": (lambda q: q.fail_cause(Cause((Die(BOOM),))), failed(Die(BOOM))),
    "shutdown": (lambda q: q.shutdown(), interrupted(None)),
}


def peek_at(fiber: Fiber[Any, Any]) -> Any:
    """The value of a fiber that ended, or how it stands."""
    exit_ = fiber.poll()
    return exit_.unwrap() if isinstance(exit_, Success) else exit_


def noting(log: list[str], name: str, take: Effect[Any, Any]) -> Effect[None, Any]:
    """Write `<name>=<item>` once the item is there."""
    return take.flat_map(lambda item: note(log, f"{name}={item}"))


# ---- room


@pytest.mark.spec("PI4")
async def test_an_offer_waits_for_room_in_a_bounded_queue() -> None:
    """It goes in when a taker made room."""
    queue: Queue[int] = Queue.bounded(2)
    answers = [await queue.offer(1), await queue.offer(2)]
    third = fb.run_fork(queue.offer(3))
    before = (third.poll(), await queue.size(), await queue.is_full())

    first = await queue.take()
    await turns()

    assert answers == [True, True]
    assert before == (None, 2, True)
    assert first == 1
    assert third.poll() == Success(True)
    assert await queue.take_all() == [2, 3]


@pytest.mark.spec("PI4")
async def test_offer_all_waits_with_what_has_no_room_yet() -> None:
    """It goes in bit by bit and gives what was refused: nothing."""
    queue: Queue[int] = Queue.bounded(2)
    fiber = fb.run_fork(queue.offer_all([1, 2, 3, 4, 5]))
    seen: list[object] = []

    for _ in range(3):
        seen.append((await queue.take_all(), fiber.poll()))
        await turns()

    assert seen == [([1, 2], None), ([3, 4], None), ([5], Success([]))]


@pytest.mark.spec("PI4")
async def test_what_is_offered_in_a_row_stays_in_a_row() -> None:
    """Those who wait for room get it one after the other."""
    queue: Queue[int, Done] = Queue.bounded(2)
    for row in ([1, 2, 3, 4], [5, 6, 7, 8]):
        fb.run_fork(queue.offer_all(row))
    fb.run_fork(queue.offer(9))

    queue.end_unsafe()

    assert await queue.collect() == [1, 2, 3, 4, 5, 6, 7, 8, 9]


@pytest.mark.spec("PI4")
async def test_a_newcomer_does_not_overtake_an_offer_that_was_let_in() -> None:
    """Also where there is room for both; a plain call, which can't wait behind it, is refused."""
    queue: Queue[int] = Queue.bounded(2)
    await queue.offer_all([1, 2])
    first = fb.run_fork(queue.offer(3))

    cleared = fb.run_sync(queue.clear())
    refused = queue.offer_unsafe(5)
    late = fb.run_fork(queue.offer(4))
    await turns()

    assert cleared == [1, 2]
    assert not refused
    assert (first.poll(), late.poll()) == (Success(True), Success(True))
    assert await queue.take_all() == [3, 4]


@pytest.mark.spec("PI4")
async def test_a_dropping_queue_refuses_what_has_no_room() -> None:
    """offer says False, offer_all gives the rest; nobody waits."""
    queue: Queue[int] = Queue.dropping(2)

    answers = [await queue.offer_all([1, 2, 3, 4]), await queue.offer(5), queue.offer_unsafe(6)]

    assert answers == [[3, 4], False, False]
    assert await queue.take_all() == [1, 2]


@pytest.mark.spec("PI4")
async def test_a_sliding_queue_drops_the_oldest() -> None:
    """Every offer goes in."""
    queue: Queue[int] = Queue.sliding(2)

    answers = [await queue.offer_all([1, 2, 3]), await queue.offer(4), queue.offer_unsafe(5)]

    assert answers == [[], True, True]
    assert await queue.take_all() == [4, 5]


@pytest.mark.spec("PI4")
async def test_an_unbounded_queue_always_has_room() -> None:
    """Full it is never."""
    queue: Queue[int] = Queue.unbounded()

    refused = await queue.offer_all(range(10_000))

    assert refused == []
    assert (queue.size_unsafe(), queue.is_full_unsafe()) == (10_000, False)


# ---- rendezvous


@pytest.mark.spec("PI4")
async def test_a_rendezvous_offer_waits_for_a_taker() -> None:
    """And the taker gets the item."""
    queue: Queue[str] = Queue.bounded(0)
    offer = fb.run_fork(queue.offer("a"))
    before = (offer.poll(), await queue.size(), queue.offer_unsafe("b"))

    taken = await queue.take()

    assert before == (None, 0, False)
    assert taken == "a"
    assert offer.poll() == Success(True)


@pytest.mark.spec("PI4")
async def test_a_rendezvous_taker_waits_for_an_offer() -> None:
    """The offer that finds one does not wait; one more than there are takers does."""
    queue: Queue[str] = Queue.bounded(0)
    takers = [fb.run_fork(queue.take()), fb.run_fork(queue.take_all())]

    answers = [queue.offer_unsafe("a"), queue.offer_unsafe("b"), queue.offer_unsafe("c")]
    await turns()

    assert answers == [True, True, False]
    assert [peek_at(taker) for taker in takers] == ["a", ["b"]]


@pytest.mark.spec("PI4")
async def test_a_row_meets_its_takers_one_by_one() -> None:
    """offer_all over a rendezvous."""
    queue: Queue[int] = Queue.bounded(0)
    fiber = fb.run_fork(queue.offer_all([1, 2, 3]))

    taken = [await queue.take() for _ in range(3)]

    assert taken == [1, 2, 3]
    assert await fiber == []


@pytest.mark.spec("PI4")
async def test_a_rendezvous_taker_that_goes_away_leaves_the_offer_waiting() -> None:
    """Interrupted after the offer was let go, before it had its step."""
    queue: Queue[str] = Queue.bounded(0)
    offer = fb.run_fork(queue.offer("a"))
    taker = fb.run_fork(queue.take())

    taker.interrupt_unsafe()
    await turns()
    waiting = offer.poll()

    assert waiting is None
    assert await queue.take() == "a"
    assert offer.poll() == Success(True)


@pytest.mark.spec("PI4")
async def test_poll_takes_from_the_first_offer_that_waits_at_a_rendezvous() -> None:
    """Each giver goes on once all it has is gone; the end comes after the last of them."""
    queue: Queue[int, Done] = Queue.bounded(0)
    row = fb.run_fork(queue.offer_all([1, 2]))
    single = fb.run_fork(queue.offer(3))

    polled = [queue.poll_unsafe()]
    await turns()
    after_one = row.poll()
    await queue.end()
    polled += [queue.poll_unsafe(), queue.poll_unsafe(), queue.poll_unsafe()]
    await turns()

    assert polled == [Some(1), Some(2), Some(3), Nothing]
    assert after_one is None
    assert (row.poll(), single.poll()) == (Success([]), Success(True))
    assert await queue.take().exit() == DONE


# ---- takers


@pytest.mark.spec("PI4", "PD16")
async def test_takers_wake_in_order_after_the_one_that_offers() -> None:
    """offered, t1=a, t2=b."""
    log: list[str] = []
    queue: Queue[str] = Queue.unbounded()
    for name in ("t1", "t2"):
        fb.run_fork(noting(log, name, queue.take()))

    @fb.effect
    async def offer() -> None:
        await queue.offer_all(["a", "b"])
        log.append("offered")

    await offer()
    await turns()

    assert log == ["offered", "t1=a", "t2=b"]


@pytest.mark.spec("PI4")
async def test_a_newcomer_does_not_overtake_a_taker_that_was_woken() -> None:
    """The first item is set aside; poll leaves it too, and size counts it."""
    log: list[str] = []
    queue: Queue[str] = Queue.unbounded()
    fb.run_fork(noting(log, "t1", queue.take()))

    queue.offer_unsafe("a")
    polled, size = queue.poll_unsafe(), queue.size_unsafe()
    queue.offer_unsafe("b")
    fb.run_fork(noting(log, "t2", queue.take()))
    await turns()

    assert (polled, size) == (Nothing, 1)
    assert log == ["t1=a", "t2=b"]


@pytest.mark.spec("PI4")
async def test_take_all_waits_for_at_least_one() -> None:
    """And takes what is there by then."""
    queue: Queue[int] = Queue.unbounded()
    fiber = fb.run_fork(queue.take_all())
    before = fiber.poll()

    await queue.offer_all([1, 2, 3])
    await turns()

    assert before is None
    assert fiber.poll() == Success([1, 2, 3])


@pytest.mark.spec("PI4")
async def test_take_n_waits_for_so_many() -> None:
    """A small take overtakes it meanwhile."""
    queue: Queue[int] = Queue.unbounded()
    three = fb.run_fork(queue.take_n(3))
    one = fb.run_fork(queue.take())

    await queue.offer_all([1, 2])
    await turns()
    after_two = (three.poll(), peek_at(one))
    await queue.offer_all([3, 4, 5])
    await turns()

    assert after_two == (None, 1)
    assert peek_at(three) == [2, 3, 4]
    assert await queue.take_all() == [5]


@pytest.mark.spec("PI4")
async def test_take_between_takes_what_is_there_within_its_bounds() -> None:
    """At least the least, at most the most."""
    queue: Queue[int] = Queue.unbounded()
    await queue.offer_all([1, 2, 3, 4, 5, 6])

    taken = [await queue.take_between(2, 4), await queue.take_between(1, 10)]
    waiting = fb.run_fork(queue.take_between(2, 3))
    await queue.offer(7)
    await turns()
    after_one = waiting.poll()
    await queue.offer(8)
    await turns()

    assert taken == [[1, 2, 3, 4], [5, 6]]
    assert after_one is None
    assert peek_at(waiting) == [7, 8]


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("capacity", [0, 2])
async def test_more_than_the_capacity_is_never_waited_for(capacity: int) -> None:
    """take_n(5) of a queue that holds two takes two."""
    queue: Queue[int] = Queue.bounded(capacity)
    fiber = fb.run_fork(queue.take_n(5))

    await queue.offer_all(range(max(1, capacity)))
    await turns()

    assert peek_at(fiber) == list(range(max(1, capacity)))


@pytest.mark.spec("PI4")
async def test_poll_and_peek_look_at_the_next_item() -> None:
    """poll takes it without waiting, peek waits without taking it."""
    queue: Queue[int] = Queue.unbounded()
    nothing = await queue.poll()
    look = fb.run_fork(queue.peek())
    taker = fb.run_fork(queue.take())

    await queue.offer(1)
    await turns()

    assert nothing == Nothing
    assert (peek_at(look), peek_at(taker)) == (1, 1)
    await queue.offer(2)
    assert await queue.peek() == 2
    assert await queue.poll() == Some(2)


@pytest.mark.spec("PI4")
async def test_clear_takes_everything_and_makes_room() -> None:
    """It does not wait: maybe there is nothing."""
    queue: Queue[int] = Queue.bounded(2)
    await queue.offer_all([1, 2])
    third = fb.run_fork(queue.offer(3))

    cleared = await queue.clear()
    await turns()

    assert cleared == [1, 2]
    assert third.poll() == Success(True)
    assert [await queue.clear(), await queue.clear()] == [[3], []]


@pytest.mark.spec("PI4")
async def test_a_taker_that_was_woken_in_vain_keeps_its_turn() -> None:
    """Somebody cleared the queue in between."""
    log: list[str] = []
    queue: Queue[int] = Queue.unbounded()
    for name in ("t1", "t2"):
        fb.run_fork(noting(log, name, queue.take()))

    queue.offer_unsafe(1)
    cleared = fb.run_sync(queue.clear())
    await turns()
    await queue.offer_all([2, 3])
    await turns()

    assert cleared == [1]
    assert log == ["t1=2", "t2=3"]


# ---- the end


@pytest.mark.spec("PI4")
async def test_end_lets_everything_be_taken_that_was_offered_before() -> None:
    """What is there, then what waited for room, then Done for every take."""
    queue: Queue[int, Done] = Queue.bounded(1)
    await queue.offer(1)
    pending = fb.run_fork(queue.offer(2))

    ended = [await queue.end(), await queue.end(), await queue.offer(3)]
    taken = [await queue.take(), await queue.take()]

    assert ended == [True, False, False]
    assert taken == [1, 2]
    assert pending.poll() == Success(True)
    assert await queue.take().exit() == DONE
    assert await queue.take_all().exit() == DONE
    assert await queue.peek().exit() == DONE
    assert await queue.poll() == Nothing
    assert await queue.clear() == []
    assert await queue.offer_all([4, 5]) == [4, 5]


@pytest.mark.spec("PI4")
@pytest.mark.parametrize("way", ENDS)
async def test_takers_that_wait_end_as_the_queue_does(way: str) -> None:
    """All of them, and those that come later."""
    close, exit_ = ENDS[way]
    queue: Queue[int, Any] = Queue.unbounded()
    takers: list[Fiber[Any, Any]] = [
        fb.run_fork(queue.take()),
        fb.run_fork(queue.take_n(2)),
        fb.run_fork(queue.peek()),
    ]

    assert await close(queue)
    await turns()

    assert [taker.poll() for taker in takers] == [exit_] * 3
    assert await queue.take().exit() == exit_


@pytest.mark.spec("PI4")
async def test_interrupt_ends_it_with_the_id_of_the_fiber() -> None:
    """What is there is taken before."""
    queue: Queue[int] = Queue.unbounded()
    await queue.offer(1)

    fiber = fb.run_fork(queue.interrupt())

    assert fiber.poll() == Success(True)
    assert await queue.take() == 1
    assert await queue.take().exit() == interrupted(fiber.id)


@pytest.mark.spec("PI4")
async def test_a_taker_of_many_gets_what_is_left_at_the_end() -> None:
    """It does not wait for what never comes, whether it waits already or comes later."""
    queue: Queue[int, Done] = Queue.unbounded()
    early = fb.run_fork(queue.take_n(5))
    await queue.offer_all([1, 2])

    await queue.end()
    await turns()
    other: Queue[int, Done] = Queue.unbounded()
    await other.offer_all([1, 2])
    await other.end()

    assert peek_at(early) == [1, 2]
    assert await other.take_n(5) == [1, 2]


@pytest.mark.spec("PI4")
async def test_a_pending_offer_that_is_interrupted_after_the_end_ends_the_queue() -> None:
    """Nobody waits for it any more."""
    queue: Queue[int, Done] = Queue.bounded(1)
    await queue.offer(1)
    pending = fb.run_fork(queue.offer(2))
    await queue.end()
    first = await queue.take()
    taker = fb.run_fork(queue.take())

    pending.interrupt_unsafe()
    await turns()

    assert first == 1
    assert taker.poll() == DONE
    assert pending.poll() == interrupted(None)


@pytest.mark.spec("PI4")
async def test_shutdown_drops_what_is_there_and_refuses_what_waits() -> None:
    """offer gives False, offer_all what it could not put in, takers an interrupt by nobody."""
    queue: Queue[int] = Queue.bounded(2)
    rows = fb.run_fork(queue.offer_all([1, 2, 3, 4]))
    single = fb.run_fork(queue.offer(5))

    answers = [await queue.shutdown(), await queue.shutdown(), await queue.offer(6)]
    await turns()

    assert answers == [True, False, False]
    assert rows.poll() == Success([3, 4])
    assert single.poll() == Success(False)
    assert await queue.size() == 0
    assert await queue.take().exit() == interrupted(None)
    assert await queue.clear().exit() == interrupted(None)


@pytest.mark.spec("PI4")
async def test_shutdown_of_an_ending_queue_keeps_its_failure() -> None:
    """Only what is left is dropped."""
    queue: Queue[int, Done] = Queue.unbounded()
    await queue.offer(1)
    await queue.end()

    assert await queue.shutdown()
    assert await queue.take().exit() == DONE


@pytest.mark.spec("PI4")
async def test_shutdown_reaches_those_who_were_woken_but_had_no_step() -> None:
    """Neither the item nor the room is theirs any more."""
    queue: Queue[int] = Queue.unbounded()
    taker = fb.run_fork(queue.take())
    queue.offer_unsafe(1)
    full: Queue[int] = Queue.bounded(1)
    full.offer_unsafe(1)
    offer = fb.run_fork(full.offer(2))
    full.poll_unsafe()

    queue.shutdown_unsafe()
    full.shutdown_unsafe()
    await turns()

    assert taker.poll() == interrupted(None)
    assert offer.poll() == Success(False)


@pytest.mark.spec("PI4")
async def test_await_ends_with_the_queue() -> None:
    """When everything is taken: with nothing after end, with the failure otherwise."""
    queue: Queue[int, Done] = Queue.unbounded()
    broken: Queue[int, Boom] = Queue.unbounded()
    await queue.offer(1)
    waiter = fb.run_fork(queue.await_())

    await queue.end()
    await broken.fail(BOOM)
    await turns()
    before = waiter.poll()
    await queue.take()
    await turns()

    assert before is None
    assert waiter.poll() == Success(None)
    assert await broken.await_().exit() == failed(Fail(BOOM))


@pytest.mark.spec("PI4")
async def test_into_ends_or_fails_the_queue_as_its_effect_ends() -> None:
    """An interrupt of the fiber that runs it fails the queue with that."""
    never: Effect[None, Boom] = Effect.never()
    boom: Effect[Never, Boom] = Effect.fail(BOOM)
    queues: list[Queue[int, Boom | Done]] = [Queue.unbounded() for _ in range(3)]

    answers = [
        await Queue.into(queues[0].offer(1), queues[0]),
        await Queue.into(boom, queues[1]),
        await Queue.into(boom, queues[1]),
    ]
    fiber = fb.run_fork(Queue.into(never, queues[2]))
    fiber.interrupt_unsafe(by=9)
    await turns()

    assert answers == [True, True, False]
    assert await queues[0].collect() == [1]
    assert await queues[1].take().exit() == failed(Fail(BOOM))
    assert await queues[2].take().exit() == interrupted(9)


@pytest.mark.spec("PI4")
async def test_collect_gives_all_items_up_to_the_end() -> None:
    """A failure that is no Done fails it."""
    queue: Queue[int, Done] = Queue.bounded(1)
    broken: Queue[int, Boom | Done] = Queue.unbounded()
    fiber = fb.run_fork(queue.collect())

    await queue.offer_all([1, 2, 3])
    await queue.end()
    await broken.offer(1)
    await broken.fail(BOOM)

    assert await fiber == [1, 2, 3]
    assert await broken.collect().exit() == failed(Fail(BOOM))


# ---- async for


@pytest.mark.spec("PI4")
async def test_async_for_takes_items_until_done() -> None:
    """In a body under a scope, with a producer of its own."""
    queue: Queue[int, Done] = Queue.bounded(1)

    @fb.effect
    async def consume() -> list[int]:
        async with fb.Scope() as scope:
            await Queue.into(queue.offer_all([1, 2, 3]), queue).fork_in(scope)
            return [item async for item in queue]

    assert await consume() == [1, 2, 3]


@pytest.mark.spec("PI4", "PD13")
async def test_an_ended_queue_holds_none_of_those_who_took_from_it() -> None:
    """By the traceback of the Done that they caught."""
    queue: Queue[int, Done] = Queue.unbounded()
    await queue.end()

    class Mine:
        """A local of the one that takes."""

    seen: list[weakref.ref[Mine]] = []

    @fb.effect
    async def consume() -> None:
        mine = Mine()
        seen.append(weakref.ref(mine))
        try:
            await queue.take()
        except Done:
            return

    with collector_off():
        await consume()
        await turns()

        assert seen[0]() is None


@pytest.mark.spec("PI4")
async def test_async_for_raises_another_failure_after_the_items() -> None:
    """The very error of fail."""
    queue: Queue[int, Boom] = Queue.unbounded()
    await queue.offer(1)
    await queue.fail(BOOM)

    @fb.effect
    async def consume() -> list[object]:
        seen: list[object] = []
        try:
            async for item in queue:
                seen.append(item)  # noqa: PERF401  # what was seen before the failure counts
        except Boom as exc:
            seen.append(exc)
        return seen

    assert await consume() == [1, BOOM]


@pytest.mark.spec("PI4")
async def test_async_for_that_is_left_takes_no_more() -> None:
    """What it has not seen is there for the next."""
    queue: Queue[int, Done] = Queue.unbounded()
    await queue.offer_all([1, 2, 3])
    seen: list[int] = []

    async for item in queue:
        seen.append(item)
        break

    assert seen == [1]
    assert await queue.take_all() == [2, 3]


@pytest.mark.spec("PI4")
async def test_async_for_sees_the_interrupt_of_its_own_fiber() -> None:
    """While it waits for an item; the queue is as it was."""
    queue: Queue[int, Done] = Queue.unbounded()
    log: list[str] = []

    @fb.effect
    async def consume() -> None:
        try:
            async for item in queue:
                log.append(str(item))  # noqa: PERF401  # what was seen before the interrupt counts
        finally:
            log.append(f"out {running_fiber().id > 0}")

    fiber = fb.run_fork(consume())
    await queue.offer(1)
    await turns()
    fiber.interrupt_unsafe(by=7)
    await turns()

    assert log == ["1", "out True"]
    assert fiber.poll() == interrupted(7)
    assert not queue._takers


# ---- interrupts


@pytest.mark.spec("PI4")
async def test_interrupted_takers_and_offers_leave_at_once() -> None:
    """Ten thousand of each leave nothing."""
    empty: Queue[int] = Queue.unbounded()
    full: Queue[int] = Queue.bounded(1)
    await full.offer(0)
    takers = [fb.run_fork(empty.take()) for _ in range(10_000)]
    offers = [fb.run_fork(full.offer(n)) for n in range(10_000)]
    waiting = (len(empty._takers), len(full._givers))

    for fiber in (*takers, *offers):
        fiber.interrupt_unsafe()

    assert waiting == (10_000, 10_000)
    assert not empty._takers
    assert not full._givers
    assert await full.clear() == [0]


@pytest.mark.spec("PI4", "AT7")
async def test_an_item_goes_to_the_next_when_the_woken_taker_is_interrupted() -> None:
    """It was not lost, and needs no other offer."""
    queue: Queue[str] = Queue.unbounded()
    first = fb.run_fork(queue.take())
    second = fb.run_fork(queue.take())

    queue.offer_unsafe("a")
    first.interrupt_unsafe(by=7)
    await turns()

    assert first.poll() == interrupted(7)
    assert second.poll() == Success("a")


@pytest.mark.spec("PI4")
async def test_an_offer_interrupted_in_the_tick_it_was_let_in_adds_nothing() -> None:
    """The room goes to the next."""
    queue: Queue[str] = Queue.bounded(1)
    await queue.offer("a")
    first = fb.run_fork(queue.offer("b"))
    second = fb.run_fork(queue.offer("c"))

    taken = queue.poll_unsafe()
    first.interrupt_unsafe(by=7)
    await turns()

    assert taken == Some("a")
    assert first.poll() == interrupted(7)
    assert second.poll() == Success(True)
    assert await queue.take_all() == ["c"]


@pytest.mark.spec("PI4")
async def test_an_interrupted_offer_all_has_put_in_a_beginning_of_it() -> None:
    """And nothing after the interrupt."""
    queue: Queue[int] = Queue.bounded(2)
    fiber = fb.run_fork(queue.offer_all([1, 2, 3, 4]))

    fiber.interrupt_unsafe()
    taken = await queue.take_all()
    await queue.offer(5)

    assert taken == [1, 2]
    assert await queue.take_all() == [5]


@pytest.mark.spec("PI4")
async def test_a_looker_that_is_interrupted_after_its_wake_up_wakes_a_taker() -> None:
    """What was set aside for a look is an item for the next."""
    queue: Queue[str] = Queue.unbounded()
    look = fb.run_fork(queue.peek())
    taker = fb.run_fork(queue.take())

    queue.offer_unsafe("a")
    look.interrupt_unsafe()
    await turns()

    assert taker.poll() == Success("a")


@pytest.mark.spec("PI4", "PD12")
async def test_a_plain_task_takes_and_offers_like_a_fiber() -> None:
    """Its cancellation leaves nothing behind."""
    queue: Queue[int, Done] = Queue.bounded(1)
    taken: list[int] = []

    async def consume() -> None:
        taken.extend([item async for item in queue])

    async def produce() -> None:
        await queue.offer_all([1, 2, 3])
        await queue.end()

    async def take() -> None:
        await queue.take()

    waiting = asyncio.create_task(take())
    await turns()
    waiting.cancel()
    await asyncio.wait([waiting])
    await asyncio.gather(consume(), produce())

    assert taken == [1, 2, 3]
    assert not queue._takers


# ---- arguments, loops


@pytest.mark.spec("PI4", "PD18")
@pytest.mark.parametrize("n", [-1, 1.5, True, "1"])
def test_a_number_that_makes_no_sense_is_refused_at_the_call(n: Any) -> None:
    """ValueError; so are nought items, and nought where something would be dropped."""
    queue: Queue[int] = Queue.unbounded()
    calls: list[Any] = [Queue, Queue.bounded, Queue.dropping, Queue.sliding, queue.take_n]

    for call in calls:
        with pytest.raises(ValueError, match="int"):
            call(n)
    for call in (Queue.dropping, Queue.sliding, queue.take_n):
        with pytest.raises(ValueError, match="positive int, not 0"):
            call(0)
    with pytest.raises(ValueError, match="at least 3"):
        queue.take_between(3, 2)
    with pytest.raises(ValueError, match="strategy"):
        Queue(1, strategy="waiting")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # what is refused


@pytest.mark.spec("PI4", "AT16")
async def test_a_second_loop_gets_an_error_and_changes_nothing() -> None:
    """While the first one runs; a plain call finds its way through call_soon_threadsafe."""
    queue: Queue[int] = Queue.unbounded()
    taker = fb.run_fork(queue.take())
    loop = asyncio.get_running_loop()

    for eff in (queue.offer(1), queue.take(), queue.poll(), queue.shutdown()):
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(fb.run, eff)
    with pytest.raises(RuntimeError, match="another event loop"):
        await asyncio.to_thread(queue.offer_unsafe, 1)
    before = (taker.poll(), queue.size_unsafe())
    await asyncio.to_thread(loop.call_soon_threadsafe, queue.offer_unsafe, 2)

    assert before == (None, 0)
    assert await taker == 2


@pytest.mark.spec("PI4")
def test_a_queue_can_be_filled_before_any_loop_runs() -> None:
    """And emptied in one after the other."""
    queue: Queue[int] = Queue.unbounded()
    queue.offer_unsafe(1)
    fb.run_sync(queue.offer_all([2, 3]))

    assert [fb.run(queue.take()), fb.run(queue.take()), fb.run_sync(queue.take())] == [1, 2, 3]
    with pytest.raises(fb.AsyncFiberError):
        fb.run_sync(queue.take())
    assert not queue._takers


@pytest.mark.spec("PI4")
async def test_the_interrupt_of_a_shutdown_is_no_interrupt_of_the_taker() -> None:
    """A body sees it as FiberInterrupted and can go on."""
    queue: Queue[int] = Queue.unbounded()
    await queue.shutdown()

    @fb.effect
    async def body() -> Cause[Never] | None:
        try:
            await queue.take()
        except fb.FiberInterrupted as exc:
            return exc.cause
        return None

    assert await body() == Cause((Interrupt(None),))


def test_the_end_of_a_queue_is_one_value() -> None:
    """Equal wherever it comes from, also as a key."""
    assert {fb.Done(): "end"}[fb.Done()] == "end"
    assert fb.Done() != "end"
