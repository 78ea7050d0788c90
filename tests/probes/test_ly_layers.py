"""Probes LY1 to LY3: what is built once, in which order it is built and released."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Never

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Layer, Tag
from tests.probes.kit_e import (
    Boom,
    Defect,
    cause_of,
    chain,
    failed,
    pass_time,
    peek,
    raising,
    say,
    show,
)
from tests.probes.kit_ly import A, B, C, Service, acquired, failing, part, use

if TYPE_CHECKING:
    from fibers.testing import TestClock

pytestmark = pytest.mark.lifecycle


# ---- LY1: shared by reference


@pytest.mark.spec("LY1")
async def test_a_layer_merged_twice_is_built_and_released_once(rt: fb.Runtime) -> None:
    """The same object on both sides."""
    log: list[str] = []
    layer = part(log, "A")

    await rt.run(use(log, A).provide(layer.merge(layer)))

    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY1")
async def test_two_layers_that_depend_on_one_share_it(rt: fb.Runtime, clock: TestClock) -> None:
    """It is there before either of them and goes after both, however long one takes."""
    log: list[str] = []
    base = part(log, "A", build=1)
    left = part(log, "B", release=5, needs=[A]).provide(base)
    right = part(log, "C", needs=[A]).provide(base)

    rt.run_fork(use(log, B, C).provide(left.merge(right)))
    await pass_time(rt, clock)

    assert log == ["+A", "+B", "+C", "use", "-C", "-B", "-A"]


@pytest.mark.spec("LY1")
async def test_the_two_get_the_same_service(rt: fb.Runtime) -> None:
    """By identity."""
    log: list[str] = []
    base = part(log, "A")
    left = Layer.effect(B, A).provide(base)
    right = Layer.effect(C, A).provide(base)

    one, other = await rt.run(use(log, B, C).provide(left.merge(right)))

    assert one is other


@pytest.mark.spec("LY1")
async def test_an_equal_recipe_is_another_layer(rt: fb.Runtime) -> None:
    """Told by identity, not by tag."""
    log: list[str] = []

    await rt.run(use(log, A).provide(part(log, "A").merge(part(log, "A"))))

    assert sorted(log) == ["+A", "+A", "-A", "-A", "use"]


@pytest.mark.spec("LY1")
@pytest.mark.parametrize("same", [True, False], ids=["one fresh() twice", "fresh() twice"])
async def test_fresh_layers_are_built_each_time(rt: fb.Runtime, same: bool) -> None:
    """Also the very same fresh layer."""
    log: list[str] = []
    layer = part(log, "A")
    first = layer.fresh()
    second = first if same else layer.fresh()

    await rt.run(use(log, A).provide(first.merge(second)))

    assert log == ["+A", "+A", "use", "-A", "-A"]


@pytest.mark.spec("LY1")
async def test_fresh_holds_for_what_is_below_it(rt: fb.Runtime) -> None:
    """Its dependency is built anew too, and shared inside."""
    log: list[str] = []
    base = part(log, "A")
    inside = part(log, "B", needs=[A]).provide(base)
    both = inside.merge(part(log, "C", needs=[A]).provide(base))

    await rt.run(use(log).provide(both.fresh().merge(base)))

    assert log.count("+A") == log.count("-A") == 2
    assert log.count("+B") == log.count("+C") == 1


@pytest.mark.spec("LY1")
async def test_who_joins_a_built_layer_keeps_what_it_was_built_with(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The left branch gave A to B and is released at once; the right one uses B for longer."""
    log: list[str] = []
    shared = Layer.scoped(B, Effect.suspend(lambda: A).flat_map(lambda _: acquired(log, "B")))
    left = shared.provide(part(log, "A"))
    right = part(log, "C", release=5, needs=[B]).provide(shared)

    rt.run_fork(use(log).provide(left.merge(right)))
    await pass_time(rt, clock)

    assert log == ["+A", "+B", "+C", "use", "-C", "-B", "-A"]


@pytest.mark.spec("LY1")
async def test_a_fiber_that_stays_longer_holds_the_layer_and_its_dependency(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It provides the layer to itself inside; the effect around ends first."""
    log: list[str] = []
    layer = part(log, "B", needs=[A]).provide(part(log, "A"))
    longer = use(log, B, seconds=5).provide(layer)

    rt.run_fork(chain(longer.fork_detach(start_immediately=True), say(log, "left")).provide(layer))
    await pass_time(rt, clock)

    assert log == ["+A", "+B", "use", "left", "-B", "-A"]


@pytest.mark.spec("LY1")
@pytest.mark.parametrize("wrapped", ["alone", "merged", "fresh"])
async def test_a_layer_that_is_built_inside_keeps_those_around_it(
    rt: fb.Runtime, clock: TestClock, wrapped: str
) -> None:
    """B is built with what the provide around gave, and stays longer than that one does."""
    log: list[str] = []
    around = part(log, "A")
    if wrapped == "merged":
        around = around.merge(Layer.succeed(C, Service("C")))
    elif wrapped == "fresh":
        around = around.fresh()
    longer = use(log, B, seconds=5).provide(part(log, "B", needs=[A]))

    rt.run_fork(chain(longer.fork_detach(start_immediately=True), say(log, "left")).provide(around))
    await pass_time(rt, clock)

    assert log == ["+A", "+B", "use", "left", "-B", "-A"]


# ---- LY2: order


@pytest.mark.spec("LY2")
async def test_a_dependency_is_built_first_and_released_last(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """One after the other, both ways."""
    log: list[str] = []
    layer = part(log, "B", build=1, release=1, needs=[A]).provide(
        part(log, "A", build=1, release=1)
    )

    fiber = rt.run_fork(use(log, B).provide(layer))
    await pass_time(rt, clock, 3)
    before = peek(fiber)
    await pass_time(rt, clock, 1)

    assert log == ["+A", "+B", "use", "-B", "-A"]
    assert before == "PENDING"
    assert peek(fiber).startswith("ok")


@pytest.mark.spec("LY2")
async def test_a_dependency_that_is_merged_is_released_last_too(rt: fb.Runtime) -> None:
    """Its scope lies below the dependent's, although it is one of several."""
    log: list[str] = []
    several = part(log, "A").merge(part(log, "B"))
    layer = part(log, "C", needs=[A, B]).provide(several)

    await rt.run(use(log, C).provide(layer))

    assert log[2:4] == ["+C", "use"]
    assert log[4] == "-C"


@pytest.mark.spec("LY2")
async def test_merged_layers_are_built_and_released_at_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A takes longer both ways: +B, +A, then -B, -A, in the time that A takes."""
    log: list[str] = []
    layer = part(log, "A", build=2, release=2).merge(part(log, "B", build=1, release=1))

    fiber = rt.run_fork(use(log, A, B).provide(layer))
    await pass_time(rt, clock, 4)

    assert log == ["+B", "+A", "use", "-B", "-A"]
    assert fiber.poll() is not None


@pytest.mark.spec("LY2")
async def test_merge_all_takes_any_number(rt: fb.Runtime) -> None:
    """Also none, which gives nothing."""
    log: list[str] = []
    three = Layer.merge_all(part(log, "A"), part(log, "B"), part(log, "C"))

    await rt.run(use(log, A, B, C).provide(three))
    none: Layer[Any, Never] = Layer.merge_all()
    await rt.run(use(log).provide(none))

    assert log == ["+A", "+B", "+C", "use", "-C", "-B", "-A", "use"]


@pytest.mark.spec("LY2")
async def test_of_two_layers_for_one_tag_the_last_one_counts(rt: fb.Runtime) -> None:
    """As with two services provided one after the other."""
    layers = Layer.merge_all(
        Layer.succeed(A, Service("first")), Layer.succeed(A, Service("second"))
    )

    service = await rt.run(A.provide(layers))

    assert service.name == "second"


@pytest.mark.spec("LY2")
async def test_a_failed_build_interrupts_and_releases_its_siblings(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A is built, B under way, C fails: A is given back, B never finishes, nothing is used."""
    log: list[str] = []
    error = Boom("no C")
    layers = Layer.merge_all(
        part(log, "A"), part(log, "B", build=5), failing(log, "C", error, after=1)
    )

    fiber = rt.run_fork(use(log).provide(layers))
    await pass_time(rt, clock, 1)

    assert fiber.poll() == failed(Fail(error))
    assert sorted(log) == ["+A", "+C", "-A", "-C"]


@pytest.mark.spec("LY2")
async def test_a_failed_build_is_released_before_it_can_be_caught(rt: fb.Runtime) -> None:
    """A handler around the provide finds nothing left."""
    log: list[str] = []
    layer = part(log, "A").merge(failing(log, "B", Boom("no B"), after=0))
    caught = use(log).provide(layer).catch(lambda _: say(log, "caught"))

    await rt.run(caught)

    assert sorted(log[:-1]) == ["+A", "+B", "-A", "-B"]
    assert log[-1] == "caught"


@pytest.mark.spec("LY2")
async def test_a_failed_dependency_keeps_the_layer_from_being_built(rt: fb.Runtime) -> None:
    """Nothing of it begins."""
    log: list[str] = []
    error = Boom("no A")
    layer = part(log, "B").provide(failing(log, "A", error, after=0))

    exit = await rt.run_exit(use(log).provide(layer))

    assert exit == failed(Fail(error))
    assert log == ["+A", "-A"]


@pytest.mark.spec("LY2")
@pytest.mark.parametrize(
    ("work", "expected"),
    [
        (Effect.succeed(5), "ok(5)"),
        (Effect.fail(Boom("x")), "Fail(x)"),
        (Effect.die(Defect("y")), "Die(y)"),
    ],
    ids=["success", "failure", "defect"],
)
async def test_the_release_sees_the_exit_of_the_effect(
    rt: fb.Runtime, work: Effect[Any, Any], expected: str
) -> None:
    """A transaction can commit or roll back."""
    seen: list[str] = []
    own = fb.acquire_release(Effect.succeed(Service("A")), lambda _, exit_: say(seen, show(exit_)))

    await rt.run_exit(work.provide(Layer.scoped(A, own)))

    assert seen == [expected]


@pytest.mark.spec("LY2")
async def test_the_release_has_the_services_of_the_build(rt: fb.Runtime) -> None:
    """What a layer was built with is there until it is gone, out of sight of its users."""
    log: list[str] = []
    bye = A.flat_map(lambda service: say(log, f"-B with {service.name}"))
    layer = Layer.scoped(B, fb.acquire_release(A, lambda _service, _exit: bye))

    await rt.run(use(log, B).provide(layer.provide(part(log, "A"))))

    assert log == ["+A", "use", "-B with A", "-A"]


@pytest.mark.spec("LY2")
async def test_what_an_effect_layer_acquires_is_released_with_it(rt: fb.Runtime) -> None:
    """Not with a scope that happens to be around: a layer may outlive that."""
    log: list[str] = []
    layer = Layer.effect(A, acquired(log, "A"))
    inner = chain(fb.scoped(use(log, A).provide(layer)), say(log, "scope left"))

    await rt.run(inner.provide(layer))

    assert log == ["+A", "use", "scope left", "-A"]


@pytest.mark.spec("LY2")
async def test_a_failed_release_is_the_result_and_keeps_no_other_from_running(
    rt: fb.Runtime,
) -> None:
    """Reported once."""
    log: list[str] = []
    broken = Layer.scoped(
        B, fb.acquire_release(A, lambda _service, _exit: Effect.die(Defect("stuck")))
    )

    exit = await rt.run_exit(use(log, B).provide(broken.provide(part(log, "A"))))

    assert [type(r) for r in cause_of(exit).reasons] == [Die]
    assert show(exit) == "Die(stuck)"
    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY2")
async def test_every_failed_release_is_reported_once(rt: fb.Runtime) -> None:
    """Of merged layers too, and beside the failure of the effect."""
    broken = [
        Layer.scoped(tag, fb.acquire_release(Effect.succeed(Service("")), raising(Defect(name))))
        for tag, name in ((A, "a"), (B, "b"))
    ]
    work: Effect[None, Boom] = Effect.fail(Boom("x"))

    exit = await rt.run_exit(work.provide(Layer.merge_all(*broken)))

    assert sorted(show(exit).split("+")) == ["Die(a)", "Die(b)", "Die(x)"]


@pytest.mark.spec("LY2", "PD15")
def test_run_sync_builds_and_releases_synchronous_layers() -> None:
    """A provide needs no loop of its own."""
    log: list[str] = []
    layer = Layer.scoped(
        A,
        fb.acquire_release(
            say(log, "+A").map(lambda _: Service("A")), lambda _service, _exit: say(log, "-A")
        ),
    )

    fb.run_sync(use(log, A).provide(layer))

    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY2")
async def test_a_ready_service_needs_no_build(rt: fb.Runtime) -> None:
    """It is the very object."""
    service = Service("A")

    assert await rt.run(A.provide(Layer.succeed(A, service))) is service


@pytest.mark.spec("EX14", "LY2")
async def test_a_layers_service_is_gone_after_the_provide(rt: fb.Runtime) -> None:
    """The outer one is back."""
    outer = Service("outer")
    inner = A.provide(Layer.succeed(A, Service("inner")))

    after = inner.flat_map(lambda _: A).provide_service(A, outer)

    assert await rt.run(after) is outer


# ---- LY3: where a build is found


@pytest.mark.spec("LY3")
async def test_a_nested_provide_of_the_same_layer_uses_what_is_built(rt: fb.Runtime) -> None:
    """And leaves it for those around it."""
    log: list[str] = []
    layer = part(log, "A")
    inner = chain(use(log, A).provide(layer), say(log, "inner left"))

    await rt.run(inner.provide(layer))

    assert log == ["+A", "use", "inner left", "-A"]


@pytest.mark.spec("LY3")
async def test_a_nested_provide_finds_a_layer_inside_the_outer_graph(rt: fb.Runtime) -> None:
    """A dependency that did not come out of it is shared all the same."""
    log: list[str] = []
    base = part(log, "A")
    outer = part(log, "B", needs=[A]).provide(base)

    await rt.run(use(log, A).provide(base).provide(outer))

    assert log == ["+A", "+B", "use", "-B", "-A"]


@pytest.mark.spec("LY3")
async def test_a_nested_provide_needs_no_dependency_of_what_is_built(rt: fb.Runtime) -> None:
    """It could not give it: only B came out of the outer layer."""
    log: list[str] = []
    layer = part(log, "B", needs=[A])

    await rt.run(use(log, B).provide(layer).provide(layer.provide(part(log, "A"))))

    assert log == ["+A", "+B", "use", "-B", "-A"]


@pytest.mark.spec("LY3")
async def test_one_provide_after_another_builds_again(rt: fb.Runtime) -> None:
    """The first one has released it."""
    log: list[str] = []
    layer = part(log, "A")

    await rt.run(chain(use(log, A).provide(layer), use(log, A).provide(layer)))

    assert log == ["+A", "use", "-A", "+A", "use", "-A"]


@pytest.mark.spec("LY3")
async def test_one_effect_value_run_twice_builds_twice(rt: fb.Runtime) -> None:
    """A provided effect is a description like any other."""
    log: list[str] = []
    provided = use(log, A).provide(part(log, "A"))

    await rt.run(provided)
    await rt.run(provided)

    assert log == ["+A", "use", "-A"] * 2


@pytest.mark.spec("LY3")
async def test_a_local_provide_builds_again(rt: fb.Runtime) -> None:
    """And releases its own when it is left."""
    log: list[str] = []
    layer = part(log, "A")
    inner = chain(use(log, A).provide(layer, local=True), say(log, "inner left"))

    await rt.run(inner.provide(layer))

    assert log == ["+A", "+A", "use", "-A", "inner left", "-A"]


@pytest.mark.spec("LY3")
async def test_siblings_inside_one_provide_share_it(rt: fb.Runtime, clock: TestClock) -> None:
    """Two that provide the same layer at once, under one that has built it."""
    log: list[str] = []
    layer = part(log, "A", build=1)
    inner = use(log, A, seconds=1).provide(layer)

    rt.run_fork(fb.all_([inner, inner], concurrency="unbounded").provide(layer))
    await pass_time(rt, clock)

    assert log == ["+A", "use", "use", "-A"]


@pytest.mark.spec("LY3")
async def test_siblings_with_nothing_around_them_build_their_own(rt: fb.Runtime) -> None:
    """Each may have been given other dependencies."""
    log: list[str] = []
    layer = part(log, "B", needs=[A])
    inner = [
        B.provide(layer).flat_map(lambda _: A).provide_service(A, Service(name)) for name in "xy"
    ]

    services = await rt.run(fb.all_(inner, concurrency="unbounded"))

    assert [service.name for service in services] == ["x", "y"]
    assert log.count("+B") == log.count("-B") == 2


@pytest.mark.spec("LY3")
async def test_a_build_that_provides_inside_shares_with_its_graph(rt: fb.Runtime) -> None:
    """B builds with A in a provide of its own; the graph has A already."""
    log: list[str] = []
    base = part(log, "A")
    layer = Layer.effect(B, A.provide(base)).provide(base)

    await rt.run(use(log, B).provide(layer))

    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY3", "PD9")
async def test_a_layer_that_needs_itself_is_told_so(rt: fb.Runtime) -> None:
    """Its build would wait for itself."""
    layers: list[Layer[Service, Never]] = []
    layers.append(Layer.effect(A, Effect.suspend(lambda: A.provide(layers[0]))))

    exit = await rt.run_exit(A.provide(layers[0]))

    (defect,) = cause_of(exit).defects
    assert isinstance(defect, fb.FiberDeadlockError)
    assert "the layer of 'A'" in str(defect)


@pytest.mark.spec("LY3", "PD9")
async def test_two_layers_that_need_each_other_are_told_so(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """In whichever the circle is closed."""
    layers: list[Layer[Service, Never]] = []
    layers.append(Layer.effect(A, fb.sleep(1).flat_map(lambda _: B.provide(layers[1]))))
    layers.append(Layer.effect(B, fb.sleep(1).flat_map(lambda _: A.provide(layers[0]))))

    fiber = rt.run_fork(A.provide(layers[0]).provide(Layer.merge_all(*layers)))
    await pass_time(rt, clock)

    defects = cause_of(fiber.poll()).defects
    assert any(isinstance(defect, fb.FiberDeadlockError) for defect in defects)


@pytest.mark.spec("LY3")
async def test_launch_keeps_the_layer_until_it_is_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Then it is released before the interrupt returns."""
    log: list[str] = []
    fiber = rt.run_fork(part(log, "A", release=1).launch())
    await pass_time(rt, clock)
    before = list(log)

    rt.run_fork(fiber.interrupt().flat_map(lambda _: say(log, "returned")))
    await pass_time(rt, clock)

    assert before == ["+A"]
    assert log == ["+A", "-A", "returned"]
    assert cause_of(fiber.poll()).has_interrupts_only


@pytest.mark.spec("LY3")
async def test_launch_fails_as_the_build_does(rt: fb.Runtime) -> None:
    """It never runs then."""
    log: list[str] = []
    error = Boom("no A")

    exit = await rt.run_exit(failing(log, "A", error, after=0).launch())

    assert exit == failed(Fail(error))


# ---- deep and wide


@pytest.mark.spec("LY2")
async def test_a_thousand_layers_deep_need_no_recursion(rt: fb.Runtime) -> None:
    """Built through the run loop, not on Python's stack."""
    number = Tag[int]("number")
    layer: Layer[int, Never] = Layer.succeed(number, 0)
    for _ in range(1000):
        layer = Layer.effect(number, number.map(lambda n: n + 1)).provide(layer)

    assert await rt.run_exit(number.provide(layer)) == Success(1000)


@pytest.mark.spec("LY1", "SU10")
async def test_a_fiber_that_outlives_its_layer_may_build_another_on_what_was_released(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """What is gone is not released again, and one built anew meanwhile stays."""
    log: list[str] = []
    base, other = part(log, "A"), part(log, "B")
    late = fb.sleep(5).flat_map(lambda _: use(log, B).provide(other))

    rt.run_fork(late.fork_detach(start_immediately=True).provide(base))
    await pass_time(rt, clock, 1)
    rt.run_fork(use(log, A, seconds=10).provide(base))
    await pass_time(rt, clock)

    assert log == ["+A", "-A", "+A", "use", "+B", "use", "-B", "-A"]
