"""Probes LY4: a runtime and its layer, from the first run to the end of dispose."""

from __future__ import annotations

import asyncio
import contextvars
import sys
from typing import TYPE_CHECKING, Any

import pytest
from returns.result import Success

import fibers as fb
from fibers import Die, Effect, Fail, Interrupt, Layer
from fibers.testing import TestClock
from tests.probes.kit_e import (
    Boom,
    Defect,
    cause_of,
    chain,
    failed,
    parked,
    pass_time,
    peek,
    say,
    show,
)
from tests.probes.kit_f import unhandled_failures
from tests.probes.kit_ly import A, B, Service, acquired, failing, part, use

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.lifecycle

WAIT_SECONDS = 30


# ---- the build


@pytest.mark.spec("LY4")
async def test_the_layer_is_built_by_the_first_run(clock: TestClock) -> None:
    """Not before."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A"), clock=clock)
    before = list(log)

    await runtime.run(use(log, A))
    await runtime.dispose()

    assert before == []
    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY4")
async def test_all_runs_share_one_build(rt: fb.Runtime, clock: TestClock) -> None:
    """Those at once, and those later."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", build=1), clock=clock)

    at_once = [runtime.run_fork(A), runtime.run_fork(A)]
    await pass_time(rt, clock)
    later = await runtime.run(A)
    await runtime.dispose()

    services = {id(fiber.result()) for fiber in at_once} | {id(later)}
    assert len(services) == 1
    assert log == ["+A", "-A"]


@pytest.mark.spec("LY4")
async def test_a_dispose_before_the_first_run_builds_nothing(clock: TestClock) -> None:
    """There is nothing to release."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A"), clock=clock)

    await runtime.dispose()

    assert log == []


@pytest.mark.spec("LY4")
async def test_a_synchronous_layer_lets_a_fork_end_at_once(clock: TestClock) -> None:
    """The exit is there when run_fork returns, as without a layer (FL1)."""
    runtime = fb.Runtime(Layer.effect(A, Effect.sync(lambda: Service("A"))), clock=clock)

    fiber = runtime.run_fork(A.map(lambda service: service.name))

    assert fiber.poll() == Success("A")
    await runtime.dispose()


@pytest.mark.spec("LY4")
async def test_a_failed_build_is_remembered(clock: TestClock) -> None:
    """Every run fails with the very error of the first; it is not tried again."""
    log: list[str] = []
    error = Boom("no A")
    runtime = fb.Runtime(failing(log, "A", error, after=0), clock=clock)

    exits = [await runtime.run_exit(use(log)) for _ in range(2)]
    before = list(log)
    await runtime.dispose()

    assert exits == [failed(Fail(error))] * 2
    assert before == log == ["+A", "-A"]


@pytest.mark.spec("LY4")
async def test_run_raises_the_error_of_the_build(clock: TestClock) -> None:
    """The very object."""
    error = Boom("no A")
    runtime = fb.Runtime(failing([], "A", error, after=0), clock=clock)

    with pytest.raises(Boom) as raised:
        await runtime.run(Effect.succeed(5))

    assert raised.value is error
    await runtime.dispose()


@pytest.mark.spec("LY4")
async def test_a_build_goes_on_when_the_run_that_began_it_is_interrupted(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """It is the runtime's, not the run's."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", build=2), clock=clock)
    first = runtime.run_fork(use(log, A))
    await pass_time(rt, clock, 1)

    first.interrupt_unsafe(by=77)
    await pass_time(rt, clock)
    second = runtime.run_fork(A)

    assert peek(first) == "I(77)"
    assert peek(second).startswith("ok(")
    await runtime.dispose()
    assert log == ["+A", "-A"]


@pytest.mark.spec("LY4")
async def test_an_interrupted_build_is_no_failure_to_remember(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Whoever ended it (the loop at its end, say): the next run begins it anew."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", build=1), clock=clock)
    first = runtime.run_fork(A)
    for task in asyncio.all_tasks():
        if task.get_name() == "layer build":
            task.cancel()
    await pass_time(rt, clock, 0)

    second = runtime.run_fork(A)
    await pass_time(rt, clock)

    assert cause_of(first.poll()).has_interrupts_only
    assert peek(second).startswith("ok(")
    await runtime.dispose()
    assert log == ["+A", "-A"]


@pytest.mark.spec("LY4", "PD10")
async def test_the_build_sees_the_context_variables_of_who_made_the_runtime(
    clock: TestClock,
) -> None:
    """Not those of the request that happens to be the first."""
    variable = contextvars.ContextVar("variable", default="unset")
    variable.set("at the making")
    layer = Layer.effect(A, Effect.sync(lambda: Service(variable.get())))
    runtime = fb.Runtime(layer, clock=clock)
    variable.set("at the first run")

    service = await runtime.run(A)

    assert service.name == "at the making"
    await runtime.dispose()


@pytest.mark.spec("LY4", "LY3")
async def test_a_provide_inside_a_run_uses_what_the_runtime_has_built(clock: TestClock) -> None:
    """And leaves it."""
    log: list[str] = []
    layer = part(log, "A")
    runtime = fb.Runtime(layer, clock=clock)

    await runtime.run(use(log, A).provide(layer))
    before = list(log)
    await runtime.dispose()

    assert before == ["+A", "use"]
    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY4")
async def test_the_layer_is_built_on_the_runtimes_clock(rt: fb.Runtime, clock: TestClock) -> None:
    """So is everything that it forks."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", build=60), clock=clock)

    fiber = runtime.run_fork(A)
    await pass_time(rt, clock, 59)
    before = peek(fiber)
    await pass_time(rt, clock, 1)

    assert before == "PENDING"
    assert peek(fiber).startswith("ok(")
    await runtime.dispose()


# ---- run_sync


@pytest.mark.spec("LY4")
def test_run_sync_works_with_synchronous_layers() -> None:
    """Where no loop runs."""
    runtime = fb.Runtime(Layer.effect(B, A).provide(Layer.succeed(A, Service("A"))))

    assert runtime.run_sync(B).name == "A"


@pytest.mark.spec("LY4")
async def test_run_sync_works_with_a_layer_that_is_built(clock: TestClock) -> None:
    """However it was built."""
    runtime = fb.Runtime(Layer.effect(A, Effect.yield_now().map(lambda _: Service("A"))))
    await runtime.run(A)

    assert runtime.run_sync(A).name == "A"
    await runtime.dispose()


@pytest.mark.spec("LY4", "PD15")
async def test_run_sync_raises_where_the_layer_has_to_wait(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """In a loop the run goes on, and so does the build."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", build=1), clock=clock)

    with pytest.raises(fb.AsyncFiberError) as raised:
        runtime.run_sync(A)
    await pass_time(rt, clock)

    assert raised.value.fiber is not None
    assert peek(raised.value.fiber).startswith("ok(")
    await runtime.dispose()
    assert log == ["+A", "-A"]


@pytest.mark.spec("LY4", "PD15")
def test_a_build_that_run_sync_could_not_finish_is_begun_anew_in_a_loop() -> None:
    """Without a loop nothing would ever go on with it; what it had is released."""
    log: list[str] = []
    own = acquired(log, "A").tap(lambda _: Effect.promise(lambda: asyncio.sleep(0)))
    runtime = fb.Runtime(Layer.scoped(A, own), clock=TestClock())
    waits = Layer.scoped(B, acquired(log, "B").tap(lambda _: fb.sleep(60)))
    waiting = fb.Runtime(waits)

    with pytest.raises(fb.AsyncFiberError):
        waiting.run_sync(B)
    after_sync = list(log)

    async def in_a_loop() -> str:
        service = await runtime.run(A)
        await runtime.dispose()
        await waiting.dispose()
        return service.name

    assert after_sync[:1] == ["+B"]
    assert asyncio.run(in_a_loop()) == "A"
    assert log.count("+B") == log.count("-B") == 1


@pytest.mark.spec("LY4", "PD15")
def test_a_build_that_run_sync_could_not_even_end_is_left_behind() -> None:
    """Its finalizer has to wait too; the next call has a build of its own."""
    gates: list[bool] = []
    never: Effect[Service] = Effect.never()
    stuck = never.on_interrupt(lambda _: fb.sleep(60))
    own = Effect.suspend(lambda: Effect.succeed(Service("A")) if gates else stuck)
    runtime = fb.Runtime(Layer.effect(A, own))

    with pytest.raises(fb.AsyncFiberError):
        runtime.run_sync(A)
    gates.append(True)

    assert runtime.run_sync(A).name == "A"
    asyncio.run(asyncio.wait_for(runtime.dispose(), WAIT_SECONDS))


@pytest.mark.spec("LY4")
def test_a_build_that_was_lost_with_its_loop_is_begun_anew() -> None:
    """A runtime may be older than a loop."""
    gates: list[bool] = []
    own = Effect.suspend(lambda: Effect.never() if not gates else Effect.succeed(Service("A")))
    runtime = fb.Runtime(Layer.effect(A, own))
    loop = asyncio.new_event_loop()

    async def begin() -> None:
        runtime.run_fork(A).ignore_failure()

    loop.run_until_complete(begin())
    loop.close()
    gates.append(True)

    async def again() -> str:
        service = await runtime.run(A)
        return service.name

    assert asyncio.run(again()) == "A"


# ---- dispose


@pytest.mark.spec("LY4")
async def test_dispose_finalizes_the_fibers_first_and_releases_the_layer_then(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """A finalizer still has its services."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", release=1), clock=clock)
    work: Effect[None] = Effect.never()
    runtime.run_fork(work.on_interrupt(lambda _: chain(fb.sleep(5), use(log, A))))
    await pass_time(rt, clock, 0)

    closing = asyncio.ensure_future(runtime.dispose())
    await pass_time(rt, clock, 4)
    before = list(log)
    await pass_time(rt, clock)
    await closing

    assert before == ["+A"]
    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY4")
async def test_the_layer_is_released_on_the_runtimes_clock(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """Whatever clock there is where dispose is called."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", release=60), clock=clock)
    await runtime.run(A)

    disposing = asyncio.ensure_future(runtime.dispose())
    await pass_time(rt, clock, 59)
    before = list(log)
    await pass_time(rt, clock, 1)

    assert before == ["+A"]
    assert log == ["+A", "-A"]
    assert disposing.done()


@pytest.mark.spec("LY4")
@pytest.mark.parametrize("run", ["run", "run_exit", "run_fork"])
async def test_a_run_after_dispose_dies(clock: TestClock, run: str) -> None:
    """It says why; nothing is built again."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A"), clock=clock)
    await runtime.run(A)
    await runtime.dispose()

    if run == "run":
        with pytest.raises(RuntimeError, match="Runtime disposed"):
            await runtime.run(use(log))
    else:
        exit = (
            await runtime.run_exit(use(log))
            if run == "run_exit"
            else runtime.run_fork(use(log)).poll()
        )
        assert [str(defect) for defect in cause_of(exit).defects] == ["Runtime disposed"]
    assert log == ["+A", "-A"]


@pytest.mark.spec("LY4")
async def test_run_sync_after_dispose_raises(clock: TestClock) -> None:
    """The same defect."""
    runtime = fb.Runtime(clock=clock)
    await runtime.dispose()

    with pytest.raises(RuntimeError, match="Runtime disposed"):
        runtime.run_sync(Effect.succeed(5))


@pytest.mark.spec("LY4")
async def test_a_second_dispose_does_nothing(rt: fb.Runtime, clock: TestClock) -> None:
    """It returns at once, also while the first one is at work, and takes nothing from it."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", release=1), clock=clock)
    runtime.run_fork(A.flat_map(lambda _: parked(log, "fiber ended", seconds=1)))
    await pass_time(rt, clock, 0)

    first = asyncio.ensure_future(runtime.dispose())
    await pass_time(rt, clock, 0)
    await runtime.dispose()
    during = list(log)
    await pass_time(rt, clock)
    await first
    await runtime.dispose()

    assert during == ["+A"]
    assert log == ["+A", "fiber ended", "-A"]


@pytest.mark.spec("LY4")
async def test_dispose_while_building_ends_the_build(rt: fb.Runtime, clock: TestClock) -> None:
    """What is built is released, what waits for it is interrupted."""
    log: list[str] = []
    layer = part(log, "B", build=60, needs=[A]).provide(part(log, "A"))
    runtime = fb.Runtime(layer, clock=clock)
    fiber = runtime.run_fork(use(log, B))
    await pass_time(rt, clock, 1)

    await runtime.dispose()

    assert log == ["+A", "-A"]
    assert fiber.poll() == failed(Interrupt(None, "runtime disposed")) or (
        cause_of(fiber.poll()).has_interrupts_only
    )


@pytest.mark.spec("LY4", "SO6")
async def test_a_fiber_of_the_runtime_can_dispose_of_it(clock: TestClock) -> None:
    """It is left out of the wait and goes on, without the layer."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A"), clock=clock)
    ends = Effect.promise(runtime.dispose)

    await runtime.run(chain(use(log, A), ends, say(log, "went on")))

    assert log == ["+A", "use", "-A", "went on"]


@pytest.mark.spec("LY4")
async def test_a_cancelled_dispose_is_finished_first(rt: fb.Runtime, clock: TestClock) -> None:
    """Nothing is left half released."""
    log: list[str] = []
    runtime = fb.Runtime(part(log, "A", release=1), clock=clock)
    runtime.run_fork(A.flat_map(lambda _: parked(log, "fiber ended", seconds=1)))
    await pass_time(rt, clock, 0)
    disposing = asyncio.ensure_future(runtime.dispose())
    await pass_time(rt, clock, 0)

    disposing.cancel()
    await pass_time(rt, clock)

    assert disposing.cancelled()
    assert log == ["+A", "fiber ended", "-A"]


@pytest.mark.spec("LY4")
async def test_dispose_raises_what_the_release_failed_with(clock: TestClock) -> None:
    """Each once; the rest is released all the same."""
    log: list[str] = []
    broken = Layer.scoped(B, fb.acquire_release(A, lambda _s, _e: Effect.die(Defect("stuck"))))
    runtime = fb.Runtime(broken.provide(part(log, "A")), clock=clock)
    await runtime.run(B)

    with unhandled_failures() as seen, pytest.raises(Defect, match="stuck"):
        await runtime.dispose()

    assert log == ["+A", "-A"]
    assert seen == []


@pytest.mark.spec("LY4")
async def test_the_release_at_dispose_is_an_ordinary_end(clock: TestClock) -> None:
    """Whatever the fibers ended with: the services have done their work."""
    seen: list[str] = []
    own = fb.acquire_release(Effect.succeed(Service("A")), lambda _, exit_: say(seen, show(exit_)))
    runtime = fb.Runtime(Layer.scoped(A, own), clock=clock)
    await runtime.run_exit(A.flat_map(lambda _: Effect.die(Defect("y"))))

    await runtime.dispose()

    assert seen == ["ok(None)"]


@pytest.mark.spec("LY4", "PD8")
async def test_a_failed_build_that_nobody_waited_for_is_heard_of_once(
    rt: fb.Runtime, clock: TestClock
) -> None:
    """The run that began it has gone."""
    runtime = fb.Runtime(failing([], "A", Boom("no A"), after=2), clock=clock)
    first = runtime.run_fork(A)
    await pass_time(rt, clock, 1)
    first.interrupt_unsafe()

    with unhandled_failures() as seen:
        await pass_time(rt, clock)
        await runtime.dispose()

    assert [show(failed(*cause.reasons)) for _, cause in seen] == ["Fail(no A)"]


# ---- run, run_exit and run_main with a layer


@pytest.mark.spec("LY4")
def test_run_builds_the_layer_and_releases_it() -> None:
    """Around the whole program."""
    log: list[str] = []

    fb.run(use(log, A), layer=part(log, "A"))

    assert log == ["+A", "use", "-A"]


@pytest.mark.spec("LY4", "SU4")
def test_run_releases_the_layer_after_children_and_what_else_was_left() -> None:
    """A child, and a fiber that nobody owns: both have their services to their last finalizer."""
    log: list[str] = []

    def worker(name: str) -> Effect[None]:
        never: Effect[None] = Effect.never()
        return never.on_interrupt(lambda _: A.flat_map(lambda _: say(log, f"{name} ended")))

    main = chain(
        worker("child").fork_child(start_immediately=True),
        worker("detached").fork_detach(start_immediately=True),
    )
    fb.run(main, layer=part(log, "A"))

    assert log == ["+A", "child ended", "detached ended", "-A"]


@pytest.mark.spec("LY4")
def test_run_exit_gives_the_failure_of_the_build() -> None:
    """As a value."""
    log: list[str] = []
    error = Boom("no A")

    exit = fb.run_exit(use(log), layer=failing(log, "A", error, after=0))

    assert exit == failed(Fail(error))
    assert log == ["+A", "-A"]


RELEASES_BADLY: Layer[Service] = Layer.scoped(
    A, fb.acquire_release(Effect.succeed(Service("A")), lambda _s, _e: Effect.die(Defect("stuck")))
)


@pytest.mark.spec("LY4")
@pytest.mark.parametrize(
    ("work", "expected"),
    [(Effect.succeed(5), ["stuck"]), (Effect.fail(Boom("x")), ["x", "stuck"])],
    ids=["success", "failure"],
)
def test_a_failed_release_is_the_end_of_the_run(
    work: Effect[Any, Any], expected: list[str]
) -> None:
    """Beside what the program itself failed with: after a failure the defect wins (FI3)."""
    exit = fb.run_exit(work, layer=RELEASES_BADLY)

    assert [(type(r), str(r.defect)) for r in cause_of(exit).reasons if isinstance(r, Die)] == [
        (Die, text) for text in expected
    ]


@pytest.mark.spec("LY4")
def test_run_raises_a_failed_release() -> None:
    """The very error."""
    with pytest.raises(Defect, match="stuck"):
        fb.run(Effect.succeed(5), layer=RELEASES_BADLY)


PROGRAM = """
import fibers as fb
from fibers import Effect, Layer, Tag

def say(text):
    return Effect.sync(lambda: print(text, flush=True))

Thing = Tag("thing")
thing = Layer.scoped(Thing, fb.acquire_release(say("+"), lambda _s, _e: {release}))
fb.run_main({main}, layer=thing)
"""


async def program(main: str, *, release: str = 'say("-")') -> tuple[int | None, str, str]:
    """Run it in a process of its own; exit code, output, errors."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAM.format(main=main, release=release),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(WAIT_SECONDS):
        out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.spec("LY4", "EX12")
async def test_run_main_releases_the_layer_before_it_leaves() -> None:
    """Then the code of a success."""
    code, out, _ = await program('Thing.flat_map(lambda _: say("use"))')

    assert (code, out.split()) == (0, ["+", "use", "-"])


@pytest.mark.spec("LY4", "EX12")
async def test_run_main_ends_with_1_where_the_release_failed() -> None:
    """And says what it failed with."""
    code, out, err = await program("Thing", release='Effect.die(ValueError("stuck"))')

    assert (code, out.split()) == (1, ["+"])
    assert "ValueError: stuck" in err


@pytest.mark.spec("LY4", "EX12")
async def test_a_signal_releases_the_layer() -> None:
    """A program that is its layer: launched, and ended by SIGTERM."""
    main = (
        "say('').flat_map(lambda _: Effect.sync(lambda: __import__('os').kill("
        "__import__('os').getpid(), 15))).flat_map(lambda _: thing.launch())"
    )
    code, out, _ = await program(main)

    assert (code, out.split()) == (143, ["+", "-"])


CHECKED: dict[str, Callable[[Layer[Any, Any]], object]] = {
    "Runtime": fb.Runtime,
    "run": lambda layer: fb.run(Effect.succeed(5), layer=layer),
    "run_exit": lambda layer: fb.run_exit(Effect.succeed(5), layer=layer),
    "run_main": lambda layer: fb.run_main(Effect.succeed(5), layer=layer),
}


@pytest.mark.spec("LY4", "PD18")
@pytest.mark.parametrize("edge", CHECKED)
def test_an_edge_checks_the_layer_graph_when_it_is_called(edge: str) -> None:
    """Before anything is built, and before a loop is made."""
    log: list[str] = []

    with pytest.raises(ValueError, match=rf"{edge}: Service not found: A\. Needed by"):
        CHECKED[edge](part(log, "B", needs=[A]))

    assert log == []


@pytest.mark.spec("EX8")
def test_run_raises_fiber_interrupted_where_the_release_was_interrupted() -> None:
    """The effect itself has succeeded."""
    released = fb.acquire_release(Effect.succeed("a"), lambda _, __: Effect.interrupt())
    layer = Layer.scoped(fb.Tag[str]("released by an interrupt"), released)

    with pytest.raises(fb.FiberInterrupted) as raised:
        fb.run(Effect.succeed(5), layer=layer)

    assert raised.value.cause.has_interrupts_only


@pytest.mark.spec("LY4", "PD9")
@pytest.mark.parametrize("suspends", [False, True])
@pytest.mark.parametrize("way", ["run", "run_exit"])
async def test_a_build_that_runs_something_in_its_own_runtime_is_told_so(
    suspends: bool, way: str
) -> None:
    """The run would wait for the build, and the build for the run."""
    runtimes, told = list[fb.Runtime[Any]](), list[str]()

    @fb.effect
    async def make() -> Service:
        if suspends:
            await asyncio.sleep(0)
        value = Effect.succeed(Service("a"))
        if way == "run":
            return await runtimes[0].run(value)
        told.append(cause_of(await runtimes[0].run_exit(value)).pretty())
        return Service("b")

    runtime = fb.Runtime(Layer.effect(A, make()))
    runtimes.append(runtime)
    exit = await runtime.run_exit(A)
    await runtime.dispose()

    said = cause_of(exit).pretty() if way == "run" else told[0]
    assert "FiberDeadlockError: the layer of runtime needs itself" in said
