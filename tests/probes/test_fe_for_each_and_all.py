"""Probes FE: for_each, all_ and the concurrent zip; order, limits and what a failure does."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail
from tests.probes.kit_f import (
    Boom,
    cause_of,
    failed,
    failing,
    interrupted,
    interruptors,
    new_gate,
    note,
    note_start_and_end,
    parked,
    running_fiber,
    wait_for,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fibers.testing import TestClock


def visiting(
    log: list[int], failing: int | None = None, error: Boom | None = None
) -> Callable[[int], Effect[int, Boom]]:
    """A function for for_each: logs each item, fails at one of them."""

    def visit(item: int) -> Effect[int, Boom]:
        log.append(item)
        return Effect.fail(error or Boom()) if item == failing else Effect.succeed(item)

    return visit


def timed(log: list[str], seconds: dict[int, float]) -> Callable[[int], Effect[int, Never]]:
    """A function for for_each: logs s<item>, takes the item's seconds, logs e<item>."""

    def run(item: int) -> Effect[int, Never]:
        begun = note(log, f"s{item}").flat_map(lambda _: fb.sleep(seconds[item]))
        return begun.flat_map(lambda _: note(log, f"e{item}")).map(lambda _: item)

    return run


# ---- one after the other


@pytest.mark.spec("FE1")
async def test_sequential_for_each_stops_at_the_first_failure(rt: fb.Runtime) -> None:
    """Item 2 fails: item 3 is never asked for."""
    log, boom = list[int](), Boom()

    exit = await rt.run(fb.for_each([1, 2, 3], visiting(log, failing=2, error=boom)).exit())

    assert failed(Fail(boom)) == exit
    assert log == [1, 2]


@pytest.mark.spec("FE1")
async def test_sequential_all_stops_at_the_first_failure(rt: fb.Runtime) -> None:
    """The same for a list of effects."""
    log, boom = list[str](), Boom()

    exit = await rt.run(fb.all_([note(log, "1"), Effect.fail(boom), note(log, "3")]).exit())

    assert failed(Fail(boom)) == exit
    assert log == ["1"]


@pytest.mark.spec("FE1")
async def test_for_each_is_sequential_by_default(clock: TestClock, rt: fb.Runtime) -> None:
    """An item starts after the one before it has ended."""
    log = list[str]()

    rt.run_fork(fb.for_each([0, 1], timed(log, {0: 1, 1: 1})))
    await rt.run(clock.adjust(2))

    assert log == ["s0", "e0", "s1", "e1"]


@pytest.mark.spec("FE1")
async def test_for_each_takes_a_one_shot_generator(rt: fb.Runtime) -> None:
    """Any iterable of items."""
    log = list[int]()

    values = await rt.run(fb.for_each((item for item in (1, 2, 3)), visiting(log)))

    assert values == [1, 2, 3]


@pytest.mark.spec("FE1")
@pytest.mark.parametrize("concurrency", [1, 2])
async def test_a_second_run_over_a_one_shot_iterator_fails_instead_of_doing_nothing(
    rt: fb.Runtime, concurrency: int
) -> None:
    """Also where a retry would go on behind the item that failed."""
    log = list[int]()
    each = fb.for_each(iter([1, 2, 3]), visiting(log), concurrency=concurrency)

    assert await rt.run(each) == [1, 2, 3]
    again = cause_of(await rt.run_exit(each))

    assert isinstance(again.defects[0], RuntimeError)
    assert "give it a list" in str(again.defects[0])
    assert log == [1, 2, 3]


@pytest.mark.spec("FE1")
async def test_all_takes_a_one_shot_generator(rt: fb.Runtime) -> None:
    """Any iterable of effects, concurrent too."""
    effects = (Effect.succeed(item) for item in (1, 2, 3))

    assert await rt.run(fb.all_(effects, concurrency="unbounded")) == [1, 2, 3]


@pytest.mark.spec("FE1")
async def test_for_each_of_nothing_is_an_empty_list(rt: fb.Runtime) -> None:
    """Sequential and unbounded."""
    log = list[int]()
    nothing = list[int]()

    values = [
        await rt.run(fb.for_each(nothing, visiting(log))),
        await rt.run(fb.for_each(nothing, visiting(log), concurrency="unbounded")),
    ]

    assert values == [[], []]


@pytest.mark.spec("FE1")
async def test_a_for_each_over_a_list_can_be_run_twice(rt: fb.Runtime) -> None:
    """An effect is a description."""
    log = list[int]()
    visits = fb.for_each([1, 2], visiting(log))

    await rt.run(visits)
    await rt.run(visits)

    assert log == [1, 2, 1, 2]


@pytest.mark.spec("FE1")
async def test_sequential_for_each_over_ten_thousand_items(rt: fb.Runtime) -> None:
    """No level of the stack an item."""
    values = await rt.run(fb.for_each(range(10_000), lambda item: Effect.sync(lambda: item)))

    assert values == list(range(10_000))


@pytest.mark.spec("FE1")
async def test_a_mapper_that_raises_is_a_defect(rt: fb.Runtime) -> None:
    """Sequential: the items before it have been done."""
    log, boom = list[int](), Boom()

    def visit(item: int) -> Effect[int, Never]:
        if item == 2:
            raise boom
        log.append(item)
        return Effect.succeed(item)

    exit = await rt.run(fb.for_each([1, 2, 3], visit).exit())

    assert failed(Die(boom)) == exit
    assert log == [1]


# ---- all at once, and a failure


@pytest.mark.spec("FE2")
async def test_a_failure_interrupts_the_siblings_and_waits_for_their_finalizers(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The exit comes after both finalizers."""
    log = list[str]()

    def run(item: int) -> Effect[int, Boom]:
        if item == 2:
            return fb.sleep(1).flat_map(lambda _: Effect.fail(Boom()))
        return Effect.never().on_interrupt(
            lambda _: fb.sleep(1).flat_map(lambda _: note(log, f"fin{item}"))
        )

    fiber = rt.run_fork(fb.for_each([1, 2, 3], run, concurrency="unbounded"))
    fiber.add_observer(lambda _: log.append("exit"))
    await rt.run(clock.adjust(2))

    assert log == ["fin1", "fin3", "exit"]


@pytest.mark.spec("FE2")
async def test_the_interrupts_of_the_siblings_are_not_in_the_cause(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The cause is the failure alone."""
    boom = Boom()

    def run(item: int) -> Effect[int, Boom]:
        if item == 2:
            return fb.sleep(1).flat_map(lambda _: Effect.fail(boom))
        return Effect.never()

    fiber = rt.run_fork(fb.for_each([1, 2, 3], run, concurrency="unbounded"))
    await rt.run(clock.adjust(1))

    assert failed(Fail(boom)) == fiber.poll()


@pytest.mark.spec("FE2")
async def test_siblings_are_interrupted_by_the_fiber_that_runs_for_each(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Their finalizers see its id."""
    seen = list[frozenset[int]]()
    remember = Effect.never().on_interrupt(lambda by: Effect.sync(lambda: seen.append(by)))
    late_failure = fb.sleep(1).flat_map(lambda _: Effect.fail(Boom()))

    fiber = rt.run_fork(fb.all_([remember, late_failure], concurrency="unbounded"))
    await rt.run(clock.adjust(1))

    assert seen == [frozenset({fiber.id})]
    assert cause_of(fiber.poll()).has_fails


@pytest.mark.spec("FE2")
async def test_after_a_failure_no_further_item_starts(clock: TestClock, rt: fb.Runtime) -> None:
    """Two at a time: the failure of the first ends the second, the third never starts."""
    log = list[str]()

    def run(item: int) -> Effect[None, Boom]:
        log.append(f"start {item}")
        if item == 0:
            return fb.sleep(1).flat_map(lambda _: Effect.fail(Boom()))
        return parked(log, f"interrupted {item}")

    fiber = rt.run_fork(fb.for_each([0, 1, 2, 3], run, concurrency=2))
    await rt.run(clock.adjust(1))

    assert log == ["start 0", "start 1", "interrupted 1"]
    assert cause_of(fiber.poll()).has_fails


@pytest.mark.spec("FE2")
async def test_a_coroutine_sibling_runs_its_finally(clock: TestClock, rt: fb.Runtime) -> None:
    """Workers may be bodies: they are unwound and awaited like any fiber."""
    log = list[str]()

    @fb.effect(raises=Boom)
    async def run(item: int) -> int:
        try:
            await fb.sleep(item)
            raise Boom
        finally:
            await fb.sleep(1)
            log.append(f"finally {item}")

    fiber = rt.run_fork(fb.for_each([1, 60], run, concurrency="unbounded"))
    await rt.run(clock.adjust(3))

    assert log == ["finally 1", "finally 60"]
    assert cause_of(fiber.poll()).has_fails


@pytest.mark.spec("FE3")
async def test_of_two_failures_in_one_tick_only_the_first_counts() -> None:
    """Both workers wait on the same future and fail when it settles."""
    gate, a, b = new_gate(), Boom("a"), Boom("b")
    workers = [
        wait_for(gate).flat_map(lambda _: Effect.fail(a)),
        wait_for(gate).flat_map(lambda _: Effect.fail(b)),
    ]

    fiber = fb.run_fork(fb.all_(workers, concurrency="unbounded"))
    gate.set_result(1)
    exit = await fiber.exit()

    assert failed(Fail(a)) == exit


@pytest.mark.spec("FE3")
async def test_of_two_synchronous_failures_only_the_first_counts(rt: fb.Runtime) -> None:
    """Workers start in order; the second never does."""
    a, b = Boom("a"), Boom("b")
    failures: list[Effect[int, Boom]] = [Effect.fail(a), Effect.fail(b)]

    exit = await rt.run(fb.all_(failures, concurrency="unbounded").exit())

    assert failed(Fail(a)) == exit


@pytest.mark.spec("FE3")
async def test_a_defect_in_a_siblings_finalizer_is_appended(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """And once a Die is in the cause the Fail becomes one: [Die(a), Die(fin)]."""
    a, fin = Boom("a"), Boom("fin")
    sibling: Effect[int, Never] = Effect.never().on_interrupt(lambda _: Effect.die(fin))
    workers = [fb.sleep(1).flat_map(lambda _: Effect.fail(a)), sibling]

    fiber = rt.run_fork(fb.all_(workers, concurrency="unbounded"))
    await rt.run(clock.adjust(1))

    assert failed(Die(a), Die(fin)) == fiber.poll()


@pytest.mark.spec("FE3")
async def test_a_mapper_that_raises_interrupts_the_started_workers(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """They are awaited; then the effect dies."""
    log, boom = list[str](), Boom()

    def run(item: int) -> Effect[int, Never]:
        if item == 3:
            raise boom
        return Effect.never().on_interrupt(lambda _: note_start_and_end(log, str(item), 1.0))

    fiber = rt.run_fork(fb.for_each([1, 2, 3], run, concurrency="unbounded"))
    fiber.add_observer(lambda _: log.append("exit"))
    await rt.run(clock.adjust(1))

    assert log == ["1-start", "2-start", "1-end", "2-end", "exit"]
    assert failed(Die(boom)) == fiber.poll()


# ---- bounded concurrency


@pytest.mark.spec("FE4")
async def test_concurrency_two_starts_an_item_whenever_one_ends(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Item 0 is slow: the others pass through the second place one by one."""
    log = list[str]()

    rt.run_fork(fb.for_each(range(4), timed(log, {0: 10, 1: 1, 2: 1, 3: 1}), concurrency=2))
    await rt.run(clock.adjust(10))

    assert log == ["s0", "s1", "e1", "s2", "e2", "s3", "e3", "e0"]


@pytest.mark.spec("FE4")
async def test_results_stand_in_order_of_the_items(clock: TestClock, rt: fb.Runtime) -> None:
    """Whatever the order in which they ended."""
    log = list[str]()
    work = fb.for_each(range(4), timed(log, {0: 10, 1: 1, 2: 1, 3: 1}), concurrency=2)

    fiber = rt.run_fork(work)
    await rt.run(clock.adjust(10))

    assert fiber.poll() == Success([0, 1, 2, 3])


@pytest.mark.spec("FE4")
async def test_workers_start_before_for_each_suspends(rt: fb.Runtime) -> None:
    """Each is started at once, in order."""
    log = list[str]()

    fiber = rt.run_fork(
        fb.for_each(range(3), timed(log, {0: 1, 1: 1, 2: 1}), concurrency="unbounded")
    )
    started = log.copy()
    await rt.run(fiber.interrupt())

    assert started == ["s0", "s1", "s2"]


@pytest.mark.spec("FE4")
async def test_effects_that_are_plain_exits_need_no_fiber(rt: fb.Runtime) -> None:
    """succeed, fail, die and from_exit are handled inline: no fiber id is used up."""
    exits: list[Effect[int, Boom]] = [
        Effect.succeed(1),
        Effect.fail(Boom()),
        Effect.die(Boom()),
        Effect.from_exit(Success(4)),
    ]

    @fb.effect
    async def body() -> int:
        first = await Effect.succeed(None).fork_child()
        await fb.all_(exits, concurrency="unbounded", mode="result")
        second = await Effect.succeed(None).fork_child()
        return second.id - first.id

    assert await rt.run(body()) == 1


@pytest.mark.spec("FE4")
async def test_ten_thousand_workers_at_once() -> None:
    """All wait on one future; results in order."""
    gate = new_gate()

    def run(item: int) -> Effect[int, Never]:
        return wait_for(gate).map(lambda base: base + item)

    fiber = fb.run_fork(fb.for_each(range(10_000), run, concurrency="unbounded"))
    gate.set_result(1)

    assert await fiber == list(range(1, 10_001))


# ---- interrupts from outside


@pytest.mark.spec("FE5")
async def test_an_interrupt_waits_for_the_finalizers_of_all_workers(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """All are interrupted at once; the exit comes after the last."""
    log = list[str]()

    def run(item: int) -> Effect[Never, Never]:
        return Effect.never().on_interrupt(lambda _: note_start_and_end(log, str(item), item))

    fiber = rt.run_fork(fb.for_each([2, 1], run, concurrency="unbounded"))
    fiber.add_observer(lambda _: log.append("exit"))
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(2))

    assert log == ["2-start", "1-start", "1-end", "2-end", "exit"]
    assert 7 in interruptors(fiber.poll())


@pytest.mark.spec("FE5")
async def test_workers_of_a_masked_for_each_are_masked(clock: TestClock, rt: fb.Runtime) -> None:
    """They inherit the mask and run to their end; then the interrupt lands."""
    log = list[str]()
    work = fb.for_each([1, 2], timed(log, {1: 1, 2: 2}), concurrency="unbounded")

    fiber = rt.run_fork(work.uninterruptible())
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))
    halfway = fiber.poll()
    await rt.run(clock.adjust(1))

    assert halfway is None
    assert log == ["s1", "s2", "e1", "e2"]
    assert interrupted(by=7) == fiber.poll()


@pytest.mark.spec("FE5")
async def test_a_failure_does_not_cut_the_masked_siblings(clock: TestClock, rt: fb.Runtime) -> None:
    """Workers of a masked for_each are masked themselves: the sibling comes to its own end."""
    log, boom = list[str](), Boom()
    sibling = fb.sleep(2).flat_map(lambda _: note(log, "sibling done"))
    failure = fb.sleep(1).flat_map(lambda _: failing(boom))

    fiber = rt.run_fork(fb.all_([failure, sibling], concurrency="unbounded").uninterruptible())
    await rt.run(clock.adjust(1))
    at_the_failure = fiber.poll()
    await rt.run(clock.adjust(1))

    assert at_the_failure is None
    assert log == ["sibling done"]
    assert failed(Fail(boom)) == fiber.poll()


@pytest.mark.spec("FE5")
async def test_a_worker_of_a_masked_for_each_is_masked_against_a_direct_interrupt(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Also where somebody gets hold of the worker's fiber."""
    log, workers = list[str](), list[fb.Fiber[Any, Any]]()

    @fb.effect
    async def run(item: int) -> None:
        workers.append(running_fiber())
        await fb.sleep(1)
        log.append(f"e{item}")

    rt.run_fork(fb.for_each([1, 2], run, concurrency="unbounded").uninterruptible().exit())
    workers[0].interrupt_unsafe(by=7)
    await rt.run(clock.adjust(1))

    assert log == ["e1", "e2"]


@pytest.mark.spec("FE5", "WI7")
async def test_masked_workers_that_are_coroutines_are_masked_too(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The same where a worker is a body."""
    log = list[str]()

    @fb.effect
    async def run(item: int) -> None:
        await fb.sleep(item)
        log.append(f"e{item}")

    fiber = rt.run_fork(fb.for_each([1, 2], run, concurrency="unbounded").uninterruptible())
    fiber.interrupt_unsafe(by=7)
    await rt.run(clock.adjust(2))

    assert log == ["e1", "e2"]
    assert interrupted(by=7) == fiber.poll()


# ---- shapes of the result


@pytest.mark.spec("FE6")
async def test_all_of_a_mapping_is_a_dict(rt: fb.Runtime) -> None:
    """Keys and their order are kept."""
    values = await rt.run(fb.all_({"b": Effect.succeed(2), "a": Effect.succeed(1)}))

    assert list(values.items()) == [("b", 2), ("a", 1)]


@pytest.mark.spec("FE6")
async def test_all_of_a_mapping_keeps_the_keys_when_concurrent(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Order of the mapping, not of completion."""
    slow = fb.sleep(2).map(lambda _: 2)
    fast = fb.sleep(1).map(lambda _: 1)

    fiber = rt.run_fork(fb.all_({"slow": slow, "fast": fast}, concurrency="unbounded"))
    await rt.run(clock.adjust(2))
    exit = fiber.poll()

    assert isinstance(exit, Success)
    assert list(exit.unwrap().items()) == [("slow", 2), ("fast", 1)]


@pytest.mark.spec("FE6")
async def test_mode_result_gives_an_exit_for_each_effect(rt: fb.Runtime) -> None:
    """Failures and defects are results like any other."""
    boom, defect = Boom(), Boom()
    effects: list[Effect[int, Boom]] = [Effect.succeed(1), Effect.fail(boom), Effect.die(defect)]

    exits = await rt.run(fb.all_(effects, mode="result"))

    assert [Success(1), failed(Fail(boom)), failed(Die(defect))] == exits


@pytest.mark.spec("FE6")
async def test_mode_result_of_a_mapping_gives_a_dict_of_exits(rt: fb.Runtime) -> None:
    """Both shapes combine."""
    boom = Boom()
    effects: dict[str, Effect[int, Boom]] = {"a": Effect.succeed(1), "b": Effect.fail(boom)}

    exits = await rt.run(fb.all_(effects, mode="result"))

    assert {"a": Success(1), "b": failed(Fail(boom))} == exits


@pytest.mark.spec("FE6")
async def test_mode_result_does_not_stop_at_a_failure_when_concurrent(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The sibling of a failed effect runs on."""
    boom = Boom()
    effects: list[Effect[int, Boom]] = [Effect.fail(boom), fb.sleep(1).map(lambda _: 2)]

    fiber = rt.run_fork(fb.all_(effects, concurrency="unbounded", mode="result"))
    await rt.run(clock.adjust(1))

    assert Success([failed(Fail(boom)), Success(2)]) == fiber.poll()


@pytest.mark.spec("FE6")
async def test_mode_result_does_not_stop_at_a_failure_when_sequential(rt: fb.Runtime) -> None:
    """The next effect runs too."""
    log = list[str]()
    effects: list[Effect[None, Boom]] = [Effect.fail(Boom()), note(log, "second")]

    await rt.run(fb.all_(effects, mode="result"))

    assert log == ["second"]


@pytest.mark.spec("FE6")
async def test_all_with_discard_is_none(rt: fb.Runtime) -> None:
    """The effects run, their values are dropped."""
    log = list[str]()
    work: Effect[Any, Never] = fb.all_([note(log, "1"), note(log, "2")], discard=True)

    value = await rt.run(work)

    assert (value, log) == (None, ["1", "2"])


@pytest.mark.spec("FE6")
async def test_for_each_with_discard_is_none(rt: fb.Runtime) -> None:
    """Concurrent too."""
    log = list[int]()
    work: Effect[Any, Boom] = fb.for_each(
        [1, 2], visiting(log), concurrency="unbounded", discard=True
    )

    value = await rt.run(work)

    assert (value, log) == (None, [1, 2])


@pytest.mark.spec("FE6")
async def test_discard_still_fails(rt: fb.Runtime) -> None:
    """Only values are dropped."""
    log, boom = list[int](), Boom()
    work = fb.for_each([1, 2], visiting(log, failing=1, error=boom), discard=True)

    exit = await rt.run(work.exit())

    assert failed(Fail(boom)) == exit


# ---- arguments


@pytest.mark.spec("FE7", "PD18")
@pytest.mark.parametrize("concurrency", [0, -1, 1.5, "many", None])
def test_a_concurrency_that_is_no_positive_int_is_a_value_error(concurrency: Any) -> None:
    """Raised at the call, before anything runs."""
    with pytest.raises(ValueError):
        fb.for_each([1], Effect.succeed, concurrency=concurrency)
    with pytest.raises(ValueError):
        fb.all_([Effect.succeed(1)], concurrency=concurrency)


@pytest.mark.spec("FE7", "PD18")
def test_a_bad_concurrency_is_found_before_the_items_are_asked_for() -> None:
    """A generator is left as it was."""
    asked = list[int]()

    def items() -> Iterator[int]:
        asked.append(1)
        yield 1

    with pytest.raises(ValueError):
        fb.for_each(items(), Effect.succeed, concurrency=0)

    assert asked == []


# ---- interrupt between items


@pytest.mark.spec("FE9")
async def test_a_sequential_for_each_interrupted_between_two_ends(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """300 ms an item, interrupted at 800 ms: items 1 and 2 are done."""
    done = list[int]()

    def run(item: int) -> Effect[None, Never]:
        return fb.sleep(0.3).map(lambda _: done.append(item))

    fiber = rt.run_fork(fb.for_each([1, 2, 3, 4, 5, 6], run))
    await rt.run(clock.adjust(0.8))
    fiber.interrupt_unsafe(by=7)

    assert interrupted(by=7) == fiber.poll()
    assert done == [1, 2]


@pytest.mark.spec("FE9")
async def test_a_for_each_two_at_a_time_interrupted_between_two_ends(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The same with concurrency 2: two rounds are done at 800 ms."""
    done = list[int]()

    def run(item: int) -> Effect[None, Never]:
        return fb.sleep(0.3).map(lambda _: done.append(item))

    fiber = rt.run_fork(fb.for_each([1, 2, 3, 4, 5, 6], run, concurrency=2))
    await rt.run(clock.adjust(0.8))
    await rt.run(fiber.interrupt())

    assert cause_of(fiber.poll()).has_interrupts_only
    assert done == [1, 2, 3, 4]


# ---- zip


@pytest.mark.spec("FE10")
async def test_a_failure_interrupts_the_other_side_of_a_concurrent_zip(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """The left fails after 1 s, the right is interrupted and finalized."""
    log, boom = list[str](), Boom()
    left = fb.sleep(1).flat_map(lambda _: Effect.fail(boom))

    fiber = rt.run_fork(left.zip(parked(log, "right"), concurrent=True))
    await rt.run(clock.adjust(1))

    assert failed(Fail(boom)) == fiber.poll()
    assert log == ["right"]


@pytest.mark.spec("FE10")
async def test_the_right_side_of_a_concurrent_zip_interrupts_the_left(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Either side may fail first."""
    log, boom = list[str](), Boom()
    right = fb.sleep(1).flat_map(lambda _: Effect.fail(boom))

    fiber = rt.run_fork(parked(log, "left").zip(right, concurrent=True))
    await rt.run(clock.adjust(1))

    assert failed(Fail(boom)) == fiber.poll()
    assert log == ["left"]


@pytest.mark.spec("FE10")
async def test_a_concurrent_zip_takes_as_long_as_its_slower_side(
    clock: TestClock, rt: fb.Runtime
) -> None:
    """Both run at once; the pair keeps the sides."""
    left = fb.sleep(2).map(lambda _: "left")
    right = fb.sleep(1).map(lambda _: "right")

    fiber = rt.run_fork(left.zip(right, concurrent=True))
    await rt.run(clock.adjust(2))

    assert fiber.poll() == Success(("left", "right"))


@pytest.mark.spec("FE10")
async def test_a_plain_zip_runs_its_right_side_after_the_left(rt: fb.Runtime) -> None:
    """And not at all once the left has failed."""
    log, boom = list[str](), Boom()

    exit = await rt.run(Effect.fail(boom).zip(note(log, "right")).exit())

    assert failed(Fail(boom)) == exit
    assert log == []


# ---- workers are fibers


@pytest.mark.spec("FE4")
async def test_each_concurrent_worker_is_a_fiber_of_its_own(rt: fb.Runtime) -> None:
    """Each knows its own id, and none is the caller."""

    @fb.effect
    async def body() -> set[int]:
        ids = await fb.for_each(
            range(3),
            lambda _: Effect.yield_now().map(lambda _: running_fiber().id),
            concurrency="unbounded",
        )
        return {*ids, running_fiber().id}

    assert len(await rt.run(body())) == 4


@pytest.mark.spec("WI9", "FE6")
async def test_thousands_of_effects_handled_inline_give_others_their_turn() -> None:
    """They cost no fiber, and count for the op budget all the same."""
    log: list[str] = []
    asyncio.get_running_loop().call_soon(log.append, "a callback of the loop")
    items = fb.for_each(range(5000), Effect.succeed, concurrency=2)
    values = await fb.run_fork(items.tap(lambda _: Effect.sync(lambda: log.append("done"))))

    assert values == list(range(5000))
    assert log == ["a callback of the loop", "done"]


@pytest.mark.spec("FE6")
async def test_discard_keeps_no_value_of_a_worker() -> None:
    """Neither of those that are handled inline nor of those that wait."""
    log: list[int] = []

    def work(item: int) -> Effect[int]:
        done = Effect.sync(lambda: log.append(item)).map(lambda _: item)
        return Effect.succeed(item) if item == 0 else Effect.yield_now().flat_map(lambda _: done)

    exit = await fb.for_each(range(4), work, concurrency="unbounded", discard=True).exit()

    assert exit == Success(None)
    assert log == [1, 2, 3]
