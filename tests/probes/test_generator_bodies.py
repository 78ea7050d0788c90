"""Generators as bodies: the semantics of coroutine bodies, and errors that need no ``raises=``."""

from __future__ import annotations

import asyncio
import functools
import types
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from typing import Any, ParamSpec, TypeVar

import pytest

import fibers as fb
from fibers import Die, Effect, EffectGen, Fail, Interrupt
from fibers.testing import TestClock
from tests.memory import peak_bytes
from tests.probes.kit_f import (
    Boom,
    cause_of,
    collector_off,
    endless,
    failed,
    failing,
    interrupted,
    new_gate,
    note,
    note_start_and_end,
    running_fiber,
    turns,
)

P = ParamSpec("P")
T = TypeVar("T")


# ---- a body


@pytest.mark.spec("PD1")
async def test_yield_from_gives_the_value() -> None:
    """The return value is the effect's."""

    @fb.effect
    def body(n: int) -> EffectGen[str]:
        one = yield from Effect.succeed(n)
        two = yield from Effect.yield_now().map(lambda _: n * 2)
        return f"{one} {two}"

    assert await body(4) == "4 8"


@pytest.mark.spec("PD1")
async def test_a_generator_effect_is_a_value() -> None:
    """Nothing runs when it is made; each run is a new generator."""
    log = list[str]()

    @fb.effect
    def body() -> EffectGen[int]:
        yield from note(log, "run")
        return len(log)

    made = body()
    before = log.copy()

    assert before == []
    assert [await made, await made] == [1, 2]


@pytest.mark.spec("PD1")
async def test_a_method_can_be_a_generator_body() -> None:
    class Counter:
        total = 0

        @fb.effect
        def add(self, n: int) -> EffectGen[int]:
            """Adds."""
            self.total += yield from Effect.succeed(n)
            return self.total

    counter = Counter()
    await counter.add(2)

    assert await counter.add(3) == 5
    assert Counter.add.__doc__ == "Adds."


@pytest.mark.spec("PD1")
async def test_a_part_of_a_generator_body_can_be_a_plain_generator() -> None:
    """As a helper coroutine of a coroutine body."""

    def part(n: int) -> EffectGen[int]:
        return (yield from Effect.succeed(n)) + 1

    @fb.effect
    def body() -> EffectGen[int]:
        return (yield from part(1)) + (yield from part(2))

    assert await body() == 5


@pytest.mark.spec("PD1")
async def test_a_generator_body_awaits_services_fibers_and_futures() -> None:
    tag, gate = fb.Tag[str]("generator.name"), new_gate()

    @fb.effect
    def body() -> EffectGen[tuple[str, int, int]]:
        name = yield from tag
        fiber = yield from Effect.succeed(2).fork_child()
        joined = yield from fiber.join()
        settled = yield from gate
        return name, joined, settled

    fiber = fb.run_fork(body().provide_service(tag, "ada"))
    await turns()
    gate.set_result(7)

    assert await fiber == ("ada", 2, 7)


@pytest.mark.spec("PD12")
def test_a_generator_body_is_the_root_fiber_of_a_plain_task() -> None:
    @fb.effect
    def body() -> EffectGen[bool]:
        yield from fb.sleep(0)
        return fb.current_fiber() is not None

    async def main() -> bool:
        return await body()

    assert asyncio.run(main())


@pytest.mark.spec("PD1")
async def test_a_yield_of_no_effect_is_a_defect_at_that_place() -> None:
    """The body sees it, and may go on."""

    @fb.effect
    def body() -> Generator[Any, Any, str]:
        try:
            yield 5
        except RuntimeError as exc:
            return str(exc)
        return "nothing was said"

    assert "neither an effect nor an asyncio future" in await body()


@pytest.mark.spec("PD1")
async def test_a_decorated_generator_function_is_a_generator_body() -> None:
    """What is called tells nothing; what it returns does."""

    def traced(f: Callable[P, T]) -> Callable[P, T]:
        @functools.wraps(f)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            return f(*args, **kwargs)

        return call

    @fb.effect
    @traced
    def body(n: int) -> EffectGen[int, Boom]:
        yield from failing(Boom("declared"))
        return n

    exit_ = await body(1).exit()

    assert isinstance(cause_of(exit_).reasons[0], Fail)


@pytest.mark.spec("PD1")
async def test_an_awaitable_generator_is_no_generator_body() -> None:
    """types.coroutine makes a coroutine function of it."""

    @types.coroutine
    def pause() -> Generator[None, None, int]:
        yield
        return 5

    assert await fb.effect(pause)() == 5


# ---- PD4: the errors


@pytest.mark.spec("PD4")
async def test_a_failure_of_an_awaited_effect_passes_as_the_failure_that_it_is() -> None:
    """The very object, without raises=; no note says that it should be declared."""
    boom = Boom()

    @fb.effect
    def body() -> EffectGen[str, Boom]:
        yield from failing(boom)
        return "not reached"

    exit_ = await body().exit()

    assert exit_ == failed(Fail(boom))
    assert cause_of(exit_).failures[0] is boom
    assert not hasattr(boom, "__notes__")


@pytest.mark.spec("PD4")
async def test_what_a_generator_raises_itself_is_a_defect() -> None:
    """A checker can't know of it. `yield from Effect.fail(error)` is the way to fail."""
    boom = Boom()

    @fb.effect
    def body() -> EffectGen[None, Boom]:
        yield from Effect.succeed(1)
        raise boom

    @fb.effect
    def failing_body() -> EffectGen[None, Boom]:
        yield from Effect.fail(boom)

    assert await body().exit() == failed(Die(boom))
    assert await failing_body().exit() == failed(Fail(boom))


@pytest.mark.spec("PD4")
async def test_a_failure_can_be_caught_in_a_generator() -> None:
    """As the very object; then it is over."""
    boom = Boom()

    @fb.effect
    def body() -> EffectGen[Exception | None, Boom]:
        try:
            yield from failing(boom)
        except Boom as exc:
            return exc
        return None

    assert await body() is boom


@pytest.mark.spec("PD4")
async def test_a_caught_failure_that_is_raised_again_later_is_a_failure() -> None:
    """Told by identity; another error raised in its place is a defect."""
    boom, other = Boom(), Boom()

    @fb.effect
    def body(instead: Boom | None) -> EffectGen[None, Boom]:
        kept: Boom | None = None
        try:
            yield from failing(boom)
        except Boom as exc:
            kept = exc
        yield from Effect.yield_now()
        assert kept is not None
        raise instead or kept

    assert await body(None).exit() == failed(Fail(boom))
    assert await body(other).exit() == failed(Die(other))


@pytest.mark.spec("PD4")
async def test_what_an_awaited_effect_died_with_stays_a_defect() -> None:
    """Also an object that was a failure before."""
    boom = Boom()

    @fb.effect
    def body() -> EffectGen[None, Boom]:
        yield from failing(boom).ignore()
        try:
            yield from failing(boom)
        except Boom:
            yield from Effect.die(boom)

    assert await body().exit() == failed(Die(boom))


@pytest.mark.spec("PD4")
async def test_a_failure_beside_a_defect_passes_whole() -> None:
    boom, broken = Boom(), Boom()
    both = Effect.fail_cause(fb.Cause((Fail(boom), Die(broken))))

    @fb.effect
    def body() -> EffectGen[None, Boom]:
        yield from both

    assert await body().exit() == failed(Fail(boom), Die(broken))


@pytest.mark.spec("PD4")
async def test_a_coroutine_body_around_still_has_to_declare_it() -> None:
    boom = Boom()

    @fb.effect
    def inner() -> EffectGen[None, Boom]:
        yield from failing(boom)

    @fb.effect
    async def outer() -> None:
        await inner()

    assert await outer().exit() == failed(Die(boom))
    assert "inner" in boom.__notes__[0]


@pytest.mark.spec("PD4")
async def test_a_run_that_fails_does_not_change_the_next_one() -> None:
    """Each run judges for itself, also two at once."""
    boom = Boom()

    @fb.effect
    def body(*, fails: bool) -> EffectGen[None, Boom]:
        if fails:
            yield from failing(boom)
        yield from Effect.yield_now()
        raise boom

    mixed = [body(fails=True), body(fails=False), body(fails=True), body(fails=False)]
    exits = await fb.all_(mixed, concurrency="unbounded", mode="result")

    assert exits == [failed(Fail(boom)), failed(Die(boom))] * 2


@pytest.mark.spec("PD4")
def test_raises_on_a_generator_function_is_a_type_error() -> None:
    """It would say twice, and otherwise, what the yield type says."""

    def body() -> EffectGen[None]:
        yield from Effect.succeed(None)

    decorate: Any = fb.effect(raises=Boom)

    with pytest.raises(TypeError, match=r"yield from Effect\.fail"):
        decorate(body)


def test_an_async_generator_function_is_a_type_error() -> None:
    """It names the way to iterate one."""

    async def numbers() -> AsyncGenerator[int, None]:
        yield 1

    decorate: Any = fb.effect

    with pytest.raises(TypeError, match="for_each_async"):
        decorate(numbers)


@pytest.mark.spec("PD4")
async def test_raises_on_what_turns_out_to_be_a_generator_is_a_defect() -> None:
    def body() -> EffectGen[None]:
        yield from Effect.succeed(None)

    decorate: Any = fb.effect(raises=Boom)
    (defect,) = cause_of(await decorate(lambda: body())().exit()).defects

    assert isinstance(defect, TypeError)
    assert "yield from Effect.fail" in str(defect)


# ---- PD1, PD2: interrupts


@pytest.mark.spec("PD1", "IN25")
async def test_a_finally_of_a_generator_runs_on_interrupt(clock: TestClock, rt: fb.Runtime) -> None:
    """Its waits are awaited; the exit is there after it."""
    log = list[str]()

    @fb.effect
    def body() -> EffectGen[None]:
        try:
            yield from endless()
        finally:
            log.append("finally")
            yield from note_start_and_end(log, "slow", 1.0)

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    early, seen = fiber.poll(), log.copy()
    await rt.run(clock.adjust(1.0))

    assert (early, seen) == (None, ["finally", "slow-start"])
    assert log == ["finally", "slow-start", "slow-end"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD2")
async def test_a_generator_sees_its_own_interrupt_as_cancelled_error() -> None:
    """Swallowed, the exit is I all the same."""
    seen = list[Interrupt | None]()

    @fb.effect
    def body() -> EffectGen[str]:
        try:
            yield from endless()
        except asyncio.CancelledError as exc:
            seen.append(fb.interrupt_of(exc))
        return "swallowed"

    fiber = fb.run_fork(body())
    fiber.interrupt_unsafe(by=7, reason="why not")

    assert seen == [Interrupt(7, "why not")]
    assert interrupted(by=7, reason="why not") == fiber.poll()


@pytest.mark.spec("PD2", "PD4")
async def test_a_failure_or_a_raise_after_a_swallowed_interrupt() -> None:
    """[Fail(e), I], and [Die(e), I]."""
    boom = Boom()

    @fb.effect
    def body(*, fails: bool) -> EffectGen[None, Boom]:
        try:
            yield from endless()
        except asyncio.CancelledError:
            if fails:
                yield from failing(boom)
            raise boom from None

    for fails, reason in ((True, Fail(boom)), (False, Die(boom))):
        fiber = fb.run_fork(body(fails=fails))
        fiber.interrupt_unsafe(by=7)
        assert fiber.poll() == failed(reason, Interrupt(7))


@pytest.mark.spec("PD4", "IN7")
async def test_a_failure_that_travels_with_an_interrupt_stays_one(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """[Fail(e), I] through two generators."""
    boom = Boom()

    @fb.effect
    def inner() -> EffectGen[None, Boom]:
        yield from fb.sleep(1).flat_map(lambda _: failing(boom)).uninterruptible()

    @fb.effect
    def outer() -> EffectGen[None, Boom]:
        yield from inner()

    fiber = rt.run_fork(outer())
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))

    assert fiber.poll() == failed(Fail(boom), Interrupt(7))


@pytest.mark.spec("PD14")
async def test_a_foreign_interrupt_is_fiber_interrupted_in_a_generator() -> None:
    @fb.effect
    def body() -> EffectGen[str]:
        fiber = yield from endless().fork_child(start_immediately=True)
        yield from fiber.interrupt(by=9)
        try:
            yield from fiber.join()
        except fb.FiberInterrupted as exc:
            return f"by {sorted(exc.cause.interruptors)}"
        return "joined"

    assert await body() == "by [9]"


@pytest.mark.spec("IN21")
async def test_a_generator_that_interrupts_itself_ends_its_segment_first() -> None:
    log = list[str]()

    @fb.effect
    def body() -> EffectGen[int]:
        running_fiber().interrupt_unsafe(by=3)
        log.append("segment")
        yield from note(log, "next")
        return 42

    fiber = fb.run_fork(body())

    assert log == ["segment"]
    assert interrupted(by=3) == fiber.poll()


@pytest.mark.spec("WI4", "IN1")
async def test_a_generator_that_never_started_leaves_nothing_behind() -> None:
    """No generator was made: nothing warns of one."""
    log = list[str]()

    @fb.effect
    def body() -> EffectGen[None]:
        log.append("started")
        yield from endless()

    fiber = await body().fork_detach()
    fiber.interrupt_unsafe(by=7)
    await turns()

    assert log == []
    assert interrupted(by=7) == fiber.poll()


# ---- PD17: regions


@pytest.mark.spec("PD17")
async def test_a_region_in_a_generator(clock: TestClock, rt: fb.Runtime) -> None:
    """The interrupt lands at the first suspension after it, inside the try that follows."""
    log = list[str]()

    @fb.effect
    def body() -> EffectGen[None]:
        with fb.uninterruptible():
            yield from fb.sleep(1)
            log.append("region done")
        try:
            log.append("after")
            yield from fb.sleep(60)
            log.append("not reached")
        finally:
            log.append("finally")

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))

    assert log == ["region done", "after", "finally"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD17", "IN12")
async def test_restore_in_a_generator(clock: TestClock, rt: fb.Runtime) -> None:
    """A hole that is cut; the region goes on."""
    log = list[str]()

    @fb.effect
    def body() -> EffectGen[None]:
        with fb.uninterruptible() as restore:
            try:
                with restore():
                    yield from endless()
            except asyncio.CancelledError:
                log.append("cut")
            yield from fb.sleep(1)
            log.append("region done")

    fiber = rt.run_fork(body())
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))

    assert log == ["cut", "region done"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("PD17")
async def test_a_region_left_open_by_a_generator_is_a_defect() -> None:
    @fb.effect
    def body() -> EffectGen[None]:
        fb.uninterruptible().__enter__()
        yield from Effect.succeed(None)

    (defect,) = cause_of(await body().exit()).defects

    assert "still open when the body ended" in str(defect)


# ---- what a generator costs and leaves behind


@pytest.mark.spec("PD16")
async def test_deep_recursion_of_generators_does_not_touch_the_recursion_limit() -> None:
    @fb.effect
    def down(levels: int) -> EffectGen[int]:
        return 0 if levels == 0 else 1 + (yield from down(levels - 1))

    assert await down(10_000) == 10_000


@pytest.mark.spec("PD13")
async def test_a_long_loop_in_a_generator_is_flat() -> None:
    @fb.effect
    def loop(rounds: int) -> EffectGen[int]:
        total = 0
        for n in range(rounds):
            total += yield from Effect.succeed(n).map(lambda n: n % 2)
        return total

    assert await loop(1000) == 500
    few = await peak_bytes(lambda: loop(1_000))
    many = await peak_bytes(lambda: loop(50_000))

    assert many < few + 20_000


@pytest.mark.spec("PD13", "AT17")
@pytest.mark.parametrize("way", ["value", "failure", "raise", "interrupt"])
async def test_a_finished_generator_leaves_no_cycle(way: str) -> None:
    """Fiber and generator go with the last reference, though the error is kept."""
    gate, boom = new_gate(), Boom()
    generators = list[weakref.ref[Any]]()

    def steps() -> EffectGen[int, Boom]:
        value = yield from gate
        if way == "failure":
            yield from failing(boom)
        if way == "raise":
            raise boom
        return value

    def tracked() -> EffectGen[int, Boom]:
        generator = steps()
        generators.append(weakref.ref(generator))
        return generator

    body = fb.effect(tracked)

    with collector_off():
        fiber = fb.run_fork(body())
        if way == "interrupt":
            fiber.interrupt_unsafe(by=7)
        else:
            gate.set_result(1)
        await fiber.exit()
        await turns()
        gone = weakref.ref(fiber)
        del fiber

        assert gone() is None
        assert generators[0]() is None


@pytest.mark.spec("WI9")
async def test_a_generator_that_never_waits_gives_the_loop_its_turn() -> None:
    """The op budget counts its effects."""
    ticks = list[int]()

    @fb.effect
    def spin() -> EffectGen[None]:
        while not ticks:
            yield from Effect.succeed(None)

    asyncio.get_running_loop().call_soon(ticks.append, 1)
    await spin()

    assert ticks == [1]


async def test_a_dump_names_the_line_in_the_generator() -> None:
    """Through a helper generator, too."""

    def part() -> EffectGen[None]:
        yield from endless()

    @fb.effect
    def body() -> EffectGen[None]:
        yield from part()

    fiber = fb.run_fork(body())
    text = fb.dump()
    fiber.interrupt_unsafe()

    assert "test_generator_bodies.py:" in text
    assert ".part" in text


async def test_a_traceback_starts_in_the_generator() -> None:
    """Without the frames that drive it."""

    @fb.effect
    def body() -> EffectGen[None]:
        yield from Effect.succeed(None)
        raise Boom("here")

    text = cause_of(await body().exit()).pretty()

    assert 'raise Boom("here")' in text
    assert "ops/generator.py" not in text


@pytest.mark.spec("PD4")
async def test_a_plain_function_that_gives_an_awaitable_declares_its_errors_like_another() -> None:
    """raises= is refused for generators only."""

    async def load(number: int) -> int:
        if number < 0:
            raise Boom
        return number

    @fb.effect(raises=Boom)
    def loading(number: int) -> Any:
        return load(number)

    assert await loading(1) == 1
    (reason,) = cause_of(await loading(-1).exit()).reasons
    assert isinstance(reason, Fail)
