"""Probes EX13 with layers: what a missing service says, and when it is found."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest

import fibers as fb
from fibers import Effect, Layer, Tag
from tests.probes.kit_e import Boom, cause_of, pass_time
from tests.probes.kit_f import collector_off
from tests.probes.kit_ly import A, B, C, Service, part, use

if TYPE_CHECKING:
    from collections.abc import Callable

    from fibers.testing import TestClock

THIS_FILE = Path(__file__).name

LONELY = Tag[Service]("lonely")
LIMIT = Tag("limit", 10)


def line() -> int:
    """The line of the caller."""
    frame = inspect.currentframe()
    assert frame is not None
    assert frame.f_back is not None
    return frame.f_back.f_lineno


async def defect_of(rt: fb.Runtime, eff: Effect[Any, Any]) -> str:
    """The message of the one defect that the effect ends with."""
    (defect,) = cause_of(await rt.run_exit(eff)).defects
    assert isinstance(defect, LookupError)
    return str(defect)


# ---- at run time


@pytest.mark.spec("EX13")
async def test_a_missing_service_says_who_needs_it_and_where(rt: fb.Runtime) -> None:
    """The function, its file and line, the fiber and where that was forked."""

    @fb.effect
    async def load_user() -> Service:
        return await LONELY

    said = await defect_of(rt, load_user().fork_child().flat_map(lambda fiber: fiber.join()))

    assert "Service not found: lonely" in said
    assert "load_user" in said
    assert said.count(f"{THIS_FILE}:") == 2


@pytest.mark.spec("EX13")
async def test_a_missing_service_that_no_layer_gives_says_how_to_provide_it(
    rt: fb.Runtime,
) -> None:
    """All the ways in."""
    said = await defect_of(rt, LONELY)

    assert "No layer gives it" in said
    assert ".provide_service(tag, impl)" in said


@pytest.mark.spec("EX13")
async def test_a_missing_service_names_the_layer_that_could_give_it(rt: fb.Runtime) -> None:
    """By the line that made it."""
    name = Tag[int]("named by its layer")
    layer, made_at = Layer.succeed(name, 1), line()

    said = await defect_of(rt, name)

    assert "the layer of 'named by its layer' made at " in said
    assert f"{THIS_FILE}:{made_at}: use .provide(layer)" in said
    assert layer.gives == {"named by its layer"}


@pytest.mark.spec("EX13")
async def test_of_many_layers_for_a_tag_a_few_are_named(rt: fb.Runtime) -> None:
    """A test suite may make hundreds."""
    name = Tag[int]("given often")
    layers = [Layer.succeed(name, n) for n in range(5)]

    said = await defect_of(rt, name)

    assert said.count("the layer of") == len(layers) - 2
    assert "and 2 more" in said


@pytest.mark.spec("EX13", "PD13")
async def test_a_layer_that_is_gone_is_not_named(rt: fb.Runtime) -> None:
    """Nothing keeps a layer that nobody has."""
    name = Tag[int]("gone")
    layer = Layer.effect(name, A.map(lambda _: 1))
    with collector_off():
        del layer

        said = await defect_of(rt, name)

    assert "No layer gives it" in said


@pytest.mark.spec("EX13")
async def test_a_build_that_lacks_a_service_names_its_layer(rt: fb.Runtime) -> None:
    """A need that could not be known before."""

    @fb.effect
    async def build() -> Service:
        return await LONELY

    said = await defect_of(rt, B.provide(Layer.effect(B, build())))

    assert "Service not found: lonely" in said
    assert "in the layer of 'B' made at" in said
    assert ".provide(dependency)" in said or "No layer gives it" in said


@pytest.mark.spec("EX13")
async def test_a_missing_scope_names_the_ways_to_one(rt: fb.Runtime) -> None:
    """No layer gives that."""
    said = await defect_of(rt, fb.current_scope())

    assert "scoped(...)" in said
    assert "Layer" not in said


# ---- before anything is built


@pytest.mark.spec("EX13", "LY2")
async def test_a_provide_lacks_a_dependency_before_it_builds_anything(rt: fb.Runtime) -> None:
    """A, which is there, would have been built first."""
    log: list[str] = []
    layer = part(log, "C", needs=[A, LONELY]).provide(part(log, "A"))

    said = await defect_of(rt, use(log, C).provide(layer))

    assert log == []
    assert "Needed by the layer of 'C' made at" in said


@pytest.mark.spec("EX13", "LY2")
async def test_a_dependency_may_come_from_around_the_provide(rt: fb.Runtime) -> None:
    """Provided as a service, or by another layer."""
    log: list[str] = []
    layer = part(log, "B", needs=[A])

    await rt.run(use(log, B).provide(layer).provide_service(A, Service("A")))
    await rt.run(use(log, B).provide(layer).provide(part(log, "A")))

    assert log.count("use") == 2


@pytest.mark.spec("EX13")
def test_layers_merged_do_not_see_each_other() -> None:
    """The message says how to wire them."""
    log: list[str] = []
    merged = part(log, "B", needs=[A]).merge(part(log, "A"))

    with pytest.raises(
        ValueError, match=r"could come from .* connect them with \.provide"
    ) as raised:
        fb.Runtime(merged)

    assert "'B'" in str(raised.value)


@pytest.mark.spec("EX13")
def test_every_need_that_is_not_met_is_named() -> None:
    """And each layer that has it: no fixing one by one."""
    log: list[str] = []
    layers = Layer.merge_all(part(log, "B", needs=[A, LONELY]), part(log, "C", needs=[A]))

    with pytest.raises(ValueError, match="not found: A") as raised:
        fb.Runtime(layers)

    said = str(raised.value)
    assert "Service not found: lonely" in said
    assert said.count("'C'") == 1
    assert said.count("'B'") == 2


@pytest.mark.spec("EX13")
def test_a_runtime_has_a_clock_and_defaults() -> None:
    """Neither has to be given."""
    layer = Layer.effect(B, LIMIT.map(lambda n: Service(str(n))), needs=[fb.ClockTag, LIMIT])

    assert fb.Runtime(layer).run_sync(B).name == "10"


# ---- what a layer knows of itself


KNOWN: dict[str, tuple[Callable[[], Effect[Any, Any]], set[str]]] = {
    "the tag itself": (lambda: A, {"A"}),
    "map": (lambda: A.map(lambda a: a), {"A"}),
    "flat_map": (lambda: A.flat_map(lambda _: B), {"A"}),
    "tap": (lambda: A.tap(lambda _: B), {"A"}),
    "zip": (lambda: A.zip(B).map(lambda ab: ab[0]), {"A", "B"}),
    "zip, concurrent": (lambda: A.zip(B, concurrent=True), {"A", "B"}),
    "all_": (lambda: fb.all_([A, B.map(lambda b: b)]), {"A", "B"}),
    "all_ of a mapping": (lambda: fb.all_({"a": A, "b": B}), {"A", "B"}),
    "for_each": (lambda: fb.for_each([1], lambda _: A), set()),
    "what may be caught": (lambda: A.catch_defect(lambda _: Effect.succeed(None)), set()),
    "exits": (lambda: fb.all_([A], mode="result"), set()),
    "what is provided": (lambda: A.provide_service(A, Service("A")), set()),
    "a default": (lambda: LIMIT, set()),
    "behind a callback": (lambda: Effect.succeed(1).flat_map(lambda _: A), set()),
}


@pytest.mark.spec("EX13")
@pytest.mark.parametrize("case", KNOWN)
def test_a_layer_needs_what_its_effect_is_sure_to_ask_for(case: str) -> None:
    """And no more: a guess would refuse programs that are right."""
    make, expected = KNOWN[case]

    assert Layer.effect(C, make()).needs == expected


@pytest.mark.spec("EX13")
def test_needs_and_gifts_of_a_graph() -> None:
    """What comes out, and what is left open."""
    log: list[str] = []
    b = part(log, "B", needs=[A, LONELY])
    a = part(log, "A")

    def known(layer: Layer[Any, Any]) -> tuple[set[str], set[str]]:
        return set(layer.gives), set(layer.needs)

    assert known(b) == ({"B"}, {"A", "lonely"})
    assert known(b.provide(a)) == ({"B"}, {"lonely"})
    assert known(a.provide(b)) == ({"A"}, {"A", "lonely"})
    assert known(b.merge(a)) == ({"A", "B"}, {"A", "lonely"})
    assert known(b.fresh()) == known(b)


# ---- bad arguments

BAD: dict[str, Callable[[Any], object]] = {
    "succeed": lambda bad: Layer.succeed(bad, 1),
    "effect": lambda bad: Layer.effect(bad, A),
    "effect's effect": lambda bad: Layer.effect(A, bad),
    "scoped": lambda bad: Layer.scoped(A, bad),
    "needs": lambda bad: Layer.effect(A, A, needs=[bad]),
    "merge": lambda bad: Layer.succeed(A, Service("A")).merge(bad),
    "merge_all": lambda bad: Layer.merge_all(Layer.succeed(A, Service("A")), bad),
    "Layer.provide": lambda bad: Layer.succeed(A, Service("A")).provide(bad),
    "provide": lambda bad: A.provide(bad),
    "Runtime": lambda bad: fb.Runtime(bad),
    "run": lambda bad: fb.run(A, layer=bad),
}


@pytest.mark.spec("PD18")
@pytest.mark.parametrize("call", BAD)
def test_a_bad_argument_raises_at_the_call_and_names_the_fix(call: str) -> None:
    """With what was given."""
    with pytest.raises(ValueError, match=r"not <a service>(: |$)"):
        BAD[call](cast("Any", _Odd()))


class _Odd:
    def __repr__(self) -> str:
        return "<a service>"


@pytest.mark.spec("EX13")
async def test_a_failure_of_a_build_is_no_missing_service(rt: fb.Runtime, clock: TestClock) -> None:
    """It fails with its own error."""
    error = Boom("no A")
    layer: Layer[Service, Boom] = Layer.effect(A, Effect.fail(error))

    fiber = rt.run_fork(A.provide(layer))
    await pass_time(rt, clock)

    assert cause_of(fiber.poll()).failures == (error,)
