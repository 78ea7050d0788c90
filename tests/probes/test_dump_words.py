"""Probes of the words: what a waiting fiber, an effect or a primitive says of itself."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import (
    Cause,
    Deferred,
    Die,
    Effect,
    Fail,
    Interrupt,
    Latch,
    Layer,
    Pool,
    PubSub,
    Queue,
    RcMap,
    RcRef,
    Resource,
    Schedule,
    Scope,
    ScopedRef,
    Semaphore,
    SubscriptionRef,
    Tag,
)
from fibers.clock import LIVE_CLOCK
from fibers.dump import chain, describe
from fibers.dump.tree import look_at
from fibers.loop import protocol
from fibers.ops import wait
from tests.probes.kit_f import new_gate, turns

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DbTag = Tag[str]("db")
NO_LAYER: Layer[Any, Any] = Layer.merge_all()


async def waits_for(eff: Effect[Any, Any]) -> str | None:
    """What a fiber that runs it says that it waits for; the fiber is ended."""
    fiber = fb.run_fork(eff)
    await turns(3)
    said = look_at(fiber).waits_for
    await fiber.interrupt()
    return said


# ---- what a fiber waits for


def full_queue() -> Queue[int]:
    """One that has room for nothing."""
    return Queue.bounded(0)


def empty_queue() -> Queue[int]:
    """One that has nothing to give."""
    return Queue.unbounded()


def lent_out() -> Effect[Any]:
    """The second of two that want the only item of a pool."""

    def second(pool: Pool[int, Any]) -> Effect[int]:
        return pool.get().flat_map(lambda _: fb.scoped(pool.get()))

    return fb.scoped(Pool.make(Effect.succeed(1), size=1).flat_map(second))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fb.sleep(60), "sleep(60)"),
        (lambda: Effect.callback(lambda _: None), "callback"),
        (lambda: fb.AbortController().signal.wait(), "the abort of a signal"),
        (lambda: lent_out(), "an item of <Pool of 1, 0 available, 1 waiting>"),
        (lambda: Deferred[int]().await_(), "a Deferred"),
        (lambda: Latch().await_(), "<Latch closed, 1 waiting>"),
        (lambda: full_queue().offer(1), "room in <Queue"),
        (lambda: Effect.promise(lambda: asyncio.get_running_loop().create_future()), "a future"),
        (lambda: Effect.never().timeout(60), "timeout around #"),
        (lambda: fb.race_all([Effect.never(), fb.sleep(60)]), "race of #"),
        (lambda: empty_queue().take(), "an item of <Queue"),
        (lambda: Semaphore(1).take(2), "2 of <Semaphore"),
        (
            lambda: fb.for_each([1, 2], lambda _: Effect.never(), concurrency="unbounded"),
            "workers #",
        ),
    ],
    ids=[
        "sleep",
        "callback",
        "signal",
        "pool",
        "deferred",
        "latch",
        "queue",
        "future",
        "timeout",
        "race",
        "item",
        "permits",
        "workers",
    ],
)
async def test_a_wait_is_named(make: Callable[[], Effect[Any, Any]], words: str) -> None:
    """So that a dump tells a lock from a socket."""
    said = await waits_for(make())

    assert said is not None
    assert said.startswith(words)


async def test_a_join_of_several_names_those_that_are_left() -> None:
    """Not those that have ended."""
    one, two = fb.run_fork(Effect.never()), fb.run_fork(Effect.never())
    done = fb.run_fork(Effect.succeed(1))

    said = await waits_for(fb.Fiber.join_all([one, done, two]))
    await fb.Fiber.interrupt_all([one, two])

    assert said == f"join of #{one.id}, #{two.id}"


async def test_the_wait_for_a_fiber_as_a_future_names_the_fiber() -> None:
    """As by a promise of it."""
    other = fb.run_fork(Effect.never())

    said = chain.future_text(other)
    await other.interrupt()

    assert said == f"the end of #{other.id}"


async def test_a_label_that_raises_is_said_and_hides_nothing_else() -> None:
    """A dump is never the place to fail."""

    class Odd(asyncio.Future[None]):
        def __repr__(self) -> str:
            raise ValueError("no idea")

        @property
        def _children(self) -> list[Any]:
            raise ValueError("no idea")

    odd = Odd()
    fiber = fb.run_fork(Effect.promise(lambda: odd))
    await turns(3)
    text = describe(fiber)
    await fiber.interrupt()
    odd.cancel()

    assert "its label raised ValueError" in text
    assert f"#{fiber.id}" in text


@pytest.mark.parametrize(
    ("eff", "words"),
    [
        (Effect.succeed(1).with_span("load users"), "its start: span load users"),
        (DbTag.map(len), "its start: "),
        (Effect.promise(turns), "its start: promise(turns)"),
    ],
    ids=["span", "tag", "promise"],
)
async def test_a_fiber_that_has_not_started_names_its_first_step(
    eff: Effect[Any, Any], words: str
) -> None:
    """There is no line of code yet."""
    scope = Scope()
    fiber = scope.fork(eff)

    said = look_at(fiber).waits_for
    await fiber.interrupt()
    await scope.close()

    assert said is not None
    assert said.startswith(words)


# ---- what objects say


def test_reasons_and_causes_show_what_they_hold() -> None:
    """In a form that could be typed in."""
    error, defect = ValueError("no"), KeyError("k")
    cause = Cause([Fail(error), Die(defect), Interrupt(7, "user"), Interrupt(None)])

    assert repr(cause) == (
        "Cause([Fail(ValueError('no')), Die(KeyError('k')), "
        "Interrupt(by=7, reason='user'), Interrupt(by=None)])"
    )


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (LIVE_CLOCK, "<LiveClock>"),
        (DbTag, "<Effect Tag('db')>"),
        (Layer.succeed(DbTag, "x"), "<Layer of db>"),
        (NO_LAYER, "<Layer of nothing>"),
        (Deferred[int](), "<Deferred pending, 0 waiting>"),
        (Latch(open=True), "<Latch open, 0 waiting>"),
        (SubscriptionRef(5), "<SubscriptionRef 5>"),
        (protocol.NEXT, "NEXT"),
        (wait.MINE, "<the interrupting fiber>"),
    ],
    ids=[
        "clock",
        "tag",
        "layer",
        "no layer",
        "deferred",
        "latch",
        "ref",
        "signal",
        "default of by",
    ],
)
def test_an_object_says_what_it_is(thing: object, words: str) -> None:
    """In one line, for logs and debuggers."""
    assert repr(thing) == words


def test_a_schedule_says_what_it_is() -> None:
    """Its steps are functions: there is no more to tell."""
    assert repr(Schedule.recurs(1)).startswith("<Schedule at 0x")


async def test_a_completed_deferred_says_so() -> None:
    deferred = Deferred[int]()
    await deferred.succeed(1)

    assert repr(deferred) == "<Deferred done>"


async def test_a_subscription_says_what_it_has_to_give() -> None:
    """And that it has ended."""

    @fb.effect
    async def body() -> list[str]:
        hub: PubSub[int] = PubSub.unbounded()
        said = list[str]()
        scope = Scope()
        subscription = await scope.provide(hub.subscribe())
        await hub.publish(1)
        said.append(repr(subscription))
        await scope.close()
        said.append(repr(subscription))
        return said

    assert await body() == ["<Subscription 1 to take>", "<Subscription ended>"]


def looked_up(key: str) -> Effect[str]:
    """A lookup that has nothing to look up."""
    return Effect.succeed(key)


async def test_what_belongs_to_a_scope_says_when_that_is_closed() -> None:
    """A closed pool is no pool with a free place."""
    scope = Scope()
    pool = await scope.provide(Pool.make(Effect.succeed(1), size=1))
    ref = await scope.provide(ScopedRef.make(lambda: 5))
    rc_map = await scope.provide(RcMap.make(looked_up))
    rc_ref = await scope.provide(RcRef.make(Effect.succeed(1)))
    resource = await scope.provide(Resource.manual(Effect.succeed(1)))
    things: list[object] = [ref, rc_map, rc_ref, resource]
    before = [repr(thing) for thing in things]
    await scope.close()

    assert before == [
        "<ScopedRef of 5>",
        "<RcMap 0 keys>",
        "<RcRef of <RcMap 0 keys>>",
        f"<Resource <ScopedRef of {Success(1)!r}>>",
    ]
    assert repr(pool) == "<Pool closed>"
    assert [repr(thing) for thing in things] == [
        "<ScopedRef closed>",
        "<RcMap closed>",
        "<RcRef of <RcMap closed>>",
        "<Resource <ScopedRef closed>>",
    ]


# ---- places


async def test_a_working_directory_that_is_gone_leaves_paths_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody has removed it under the process."""
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()

    assert chain.short("/srv/app/main.py") == "/srv/app/main.py"


async def test_a_chain_ends_where_something_foreign_is_awaited() -> None:
    """An awaitable of C code, or of a class with an iterator of its own, has no frames."""
    gate = new_gate()

    class Foreign:
        def __await__(self) -> Any:
            return iter(gate)

    @fb.effect
    async def body() -> None:
        await Foreign()

    fiber = fb.run_fork(body())
    await turns(3)
    places = look_at(fiber).places
    gate.set_result(1)
    await fiber

    assert [place.rpartition(".")[2] for place in places] == ["body"]


async def test_a_body_that_waits_in_plain_code_for_a_fiber_says_for_which() -> None:
    """Runtime.run is a coroutine, with a future between the body and the fiber that it started."""
    runtime = fb.Runtime()
    waiting = fb.run_fork(Effect.promise(lambda: runtime.run(Effect.never())))

    text = describe(waiting)

    assert f"waits for the end of #{waiting.id + 1}" in text
    await waiting.interrupt()
    await runtime.dispose()
