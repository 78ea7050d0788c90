"""Probes LY2 and LY3 under interrupts: what was built is released, once and in order."""

from __future__ import annotations

import asyncio
import weakref
from typing import Any, Literal

import pytest

import fibers as fb
from fibers import Effect, Layer, Scope
from fibers.testing import TestClock
from tests.probes.kit_e import (
    Boom,
    Defect,
    cause_of,
    chain,
    interrupt_during,
    me,
    pass_time,
    peek,
    say,
    show,
)
from tests.probes.kit_f import collector_off, unhandled_failures
from tests.probes.kit_ly import A, B, C, Service, acquired, part, use

pytestmark = pytest.mark.lifecycle


def balance(log: list[str]) -> list[str]:
    """Services whose build and release do not match, each built once at most."""
    names = {line[1:] for line in log if line[0] in "+-"}
    return [n for n in sorted(names) if (log.count(f"+{n}"), log.count(f"-{n}")) != (1, 1)]


@pytest.mark.spec("LY2")
async def test_an_interrupt_while_building_releases_what_is_built(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A is there, B on its way: B never comes, A is released."""
    log: list[str] = []
    layer = part(log, "B", build=2, needs=[A]).provide(part(log, "A", build=1, release=1))

    exit = await interrupt_during(rt, clock, use(log, B).provide(layer), at=2, by=77)

    assert log == ["+A", "-A"]
    assert exit is not None
    assert show(exit) == "I(77)"


@pytest.mark.spec("LY2")
async def test_the_synchronous_part_of_a_release_has_run_when_an_interrupt_returns(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """As with every finalizer (WI1)."""
    log: list[str] = []
    fiber = rt.run_fork(use(log, A, seconds=60).provide(part(log, "A")))
    await pass_time(rt, clock, 1)

    fiber.interrupt_unsafe()

    # Its release begins with a sleep of 0 s, which a virtual clock doesn't wait for.
    assert log == ["+A", "use", "-A"]


TREE_SECONDS = 9


def tree(log: list[str]) -> Effect[Any, Any]:
    """Two branches over a shared base, each step a second: built at 2 s, used for 1, gone at 5."""
    base = part(log, "A", build=1, release=1)
    left = part(log, "B", build=1, release=1, needs=[A]).provide(base)
    right = part(log, "C", build=1, release=1, needs=[A]).provide(base)
    return use(log, B, C, seconds=1).provide(left.merge(right))


@pytest.mark.spec("LY2")
@pytest.mark.parametrize("at", [n / 2 for n in range(TREE_SECONDS * 2)])
@pytest.mark.parametrize("mask", ["interruptible", "masked"])
async def test_an_interrupt_at_any_time_releases_everything_once_and_the_base_last(
    rt: fb.Runtime, clock: TestClock, at: float, mask: Literal["interruptible", "masked"]
) -> None:
    """Between the steps and in them."""
    log: list[str] = []
    work = tree(log) if mask == "interruptible" else tree(log).uninterruptible()

    exit = await interrupt_during(rt, clock, work, at=at)

    assert exit is not None
    assert balance(log) == []
    if "-A" in log:
        assert log[-1] == "-A"


class Counter:
    """How often something was built and not released."""

    def __init__(self) -> None:
        self.held = 0
        self.most = 0

    def layer(self, tag: fb.Tag[Service], turns: int) -> Layer[Service]:
        """A layer of that many turns of the loop, both ways."""

        def take() -> Service:
            self.held += 1
            self.most = max(self.most, self.held)
            return Service(tag.name)

        def give_back(_service: Service, _exit: fb.Exit[Any, Any]) -> Effect[None]:
            return chain(*pauses, Effect.sync(self._less))

        pauses = [Effect.yield_now()] * turns
        acquire = fb.acquire_release(Effect.sync(take), give_back)
        return Layer.scoped(tag, chain(*pauses).flat_map(lambda _: acquire))

    def _less(self) -> None:
        self.held -= 1


@pytest.mark.spec("LY2", "WI2")
@pytest.mark.parametrize("turns", range(24))
async def test_an_interrupt_after_any_number_of_turns_leaves_nothing_held(turns: int) -> None:
    """A sweep over the turns of the loop, through building, using and releasing."""
    counter = Counter()
    base = counter.layer(A, 2)
    left = Layer.effect(B, A).provide(base)
    right = counter.layer(C, 3).provide(base)
    fiber = fb.run_fork(Effect.yield_now().provide(left.merge(right)))
    for _ in range(turns):
        await asyncio.sleep(0)

    fiber.interrupt_unsafe()
    await fiber.exit()

    assert counter.held == 0
    assert counter.most <= 2


@pytest.mark.spec("LY2", "WI2")
async def test_a_build_that_interrupts_its_own_user_is_released(rt: fb.Runtime) -> None:
    """In its first synchronous part, before the user has so much as begun to wait."""
    log: list[str] = []
    user: list[fb.Fiber[Any, Any]] = []
    own = Effect.sync(lambda: user[0].interrupt_unsafe(by=77)).flat_map(
        lambda _: acquired(log, "A")
    )

    @fb.effect
    async def body() -> None:
        user.append(me())
        await use(log, A).provide(Layer.scoped(A, own))

    exit = await rt.run_exit(body())

    assert show(exit) == "I(77)"
    assert balance(log) == []
    assert "use" not in log


@pytest.mark.spec("LY3")
async def test_who_began_a_build_may_leave_it_to_who_shares_it(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Two builds at once wait for A; the first one times out, the second gets it."""
    log: list[str] = []
    shared = part(log, "A", build=3)
    late = Service("late")
    first = Layer.effect(B, A.provide(shared).timeout_or_else(1, lambda: Effect.succeed(late)))
    second = Layer.effect(C, A.provide(shared))
    # The two find each other's build through the graph that they are both in.
    graph = Layer.merge_all(first, second)

    fiber = rt.run_fork(use(log, B, C).provide(graph))
    await pass_time(rt, clock)

    exit = fiber.poll()
    assert exit is not None
    assert [service.name for service in exit.unwrap()] == ["late", "A"]
    assert balance(log) == []


@pytest.mark.spec("LY3")
@pytest.mark.parametrize("leaves", [0, 1], ids=["who began it", "who joined it"])
async def test_a_shared_build_goes_on_for_the_one_who_stays(
    rt: fb.Runtime, clock: TestClock, leaves: int
) -> None:
    """Two runs of one runtime share its build; either is interrupted."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", build=2), clock=clock)
    fibers = [runtime.run_fork(A), runtime.run_fork(A)]
    await pass_time(rt, clock, 1)

    fibers[leaves].interrupt_unsafe(by=77)
    await pass_time(rt, clock)
    exits = [peek(fiber) for fiber in fibers]
    await runtime.dispose()

    assert exits[leaves] == "I(77)"
    assert exits[1 - leaves].startswith("ok(")
    assert log == ["+A", "-A"]


@pytest.mark.spec("LY3")
async def test_the_last_one_to_leave_ends_the_build(rt: fb.Runtime, clock: TestClock) -> None:
    """And waits for its finalizers."""
    log: list[str] = []
    own = chain(fb.sleep(60)).on_interrupt(lambda _: chain(fb.sleep(1), say(log, "build ended")))
    layer = Layer.effect(A, own.map(lambda _: Service("A")))
    fiber = rt.run_fork(use(log).provide(layer).on_interrupt(lambda _: say(log, "left")))
    await pass_time(rt, clock, 1)

    fiber.interrupt_unsafe()
    before = list(log)
    await pass_time(rt, clock, 1)

    assert before == []
    assert log == ["build ended", "left"]


@pytest.mark.spec("LY2")
async def test_a_masked_user_gets_its_layer_in_spite_of_an_interrupt(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The build belongs to nobody who could be interrupted."""
    log: list[str] = []
    work = use(log, A).provide(part(log, "A", build=2)).uninterruptible()

    exit = await interrupt_during(rt, clock, work, at=1)

    assert exit is not None
    assert show(exit) == "I(77)"
    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY2", "SO1")
async def test_an_interrupt_never_cuts_a_release(rt: fb.Runtime, clock: TestClock) -> None:
    """Asked for while A is being released; the second one too."""
    log: list[str] = []
    fiber = rt.run_fork(use(log, A).provide(part(log, "A", release=2)))
    await pass_time(rt, clock, 1)

    fiber.interrupt_unsafe(by=1)
    fiber.interrupt_unsafe(by=2)
    before = peek(fiber)
    await pass_time(rt, clock)

    assert before == "PENDING"
    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY2", "PD8")
async def test_a_defect_in_the_end_of_an_abandoned_build_is_heard_of_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Nobody waits for it any more, so it goes to the hook."""
    own: Effect[Service] = fb.sleep(60).map(lambda _: Service("A"))
    layer = Layer.effect(A, own.on_interrupt(lambda _: Effect.die(Defect("stuck"))))

    with unhandled_failures() as seen:
        exit = await interrupt_during(rt, clock, A.provide(layer), at=1)

    assert exit is not None
    assert show(exit) == "I(77)"
    assert [str(cause.defects[0]) for _, cause in seen] == ["stuck"]


@pytest.mark.spec("LY2", "PD8")
async def test_a_failed_build_that_somebody_waited_for_is_not_unhandled(rt: fb.Runtime) -> None:
    """It is the failure of those."""
    layer: Layer[Service, Boom] = Layer.effect(A, Effect.fail(Boom("no A")))

    with unhandled_failures() as seen:
        await rt.run_exit(A.provide(layer))

    assert seen == []


@pytest.mark.spec("LY2")
async def test_a_worker_that_a_layer_forks_ends_with_the_layer(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """In its place among the layer's finalizers: before what it works with is given back."""
    log: list[str] = []
    worker = chain(fb.sleep(60)).on_interrupt(lambda _: say(log, "worker ended"))
    own = acquired(log, "A").tap(lambda _: worker.fork_scoped(start_immediately=True))

    rt.run_fork(use(log, A, seconds=1).provide(Layer.scoped(A, own)))
    await pass_time(rt, clock)

    assert log == ["+A", "use", "worker ended", "-A"]


@pytest.mark.spec("LY2", "SO6")
async def test_a_build_that_interrupts_its_user_and_waits_does_not_hang(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The user waits for the build to end, and the build for the user, also under a mask."""
    log: list[str] = []
    user: list[fb.Fiber[Any, Any]] = []

    def own(of: fb.Fiber[Any, Any]) -> Effect[Service]:
        ask = of.interrupt(by=77).uninterruptible()
        return fb.sleep(1).flat_map(lambda _: ask).map(lambda _: Service("A"))

    layer = Layer.effect(A, Effect.suspend(lambda: own(user[0])))
    user.append(rt.run_fork(fb.sleep(1).flat_map(lambda _: use(log, A).provide(layer))))
    await pass_time(rt, clock)

    exit = user[0].poll()
    assert exit is not None
    assert cause_of(exit).has_interrupts_only
    assert log == []


@pytest.mark.spec("LY2", "PD13")
@pytest.mark.parametrize("end", ["success", "interrupt"])
async def test_nothing_keeps_a_service_when_it_is_released(
    rt: fb.Runtime, clock: TestClock, end: str
) -> None:
    """No cycle, no entry: reference counts alone free it."""
    services: list[weakref.ref[Service]] = []
    base = Layer.effect(A, Effect.sync(lambda: Service("A")))
    layer = Layer.effect(B, A).provide(base).merge(base)
    work = B.map(lambda service: services.append(weakref.ref(service)))

    with collector_off():
        fiber = rt.run_fork(work.flat_map(lambda _: fb.sleep(5)).provide(layer))
        await pass_time(rt, clock, 1)
        held = services[0]() is not None
        if end == "interrupt":
            fiber.interrupt_unsafe()
        await pass_time(rt, clock)

        assert held
        assert fiber.poll() is not None
        assert services[0]() is None


@pytest.mark.spec("LY2")
async def test_a_scope_that_ends_its_fibers_ends_their_layers(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Layers of a fiber are finalizers of that fiber."""
    log: list[str] = []
    scope = Scope("parallel")
    await rt.run(use(log, A, seconds=60).provide(part(log, "A")).fork_in(scope))
    await pass_time(rt, clock, 1)

    await rt.run(scope.close())

    assert log == ["+A", "use", "-A"]
