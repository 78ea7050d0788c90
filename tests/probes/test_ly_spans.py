"""Probes LY6: spans, in OpenTelemetry's own exporter; and what it costs where there is none."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

import fibers as fb
from fibers import Effect, Layer
from tests.probes.kit_e import Boom, Defect, cause_of, chain, interrupt_during, pass_time
from tests.probes.kit_ly import A, Service

if TYPE_CHECKING:
    from fibers.testing import TestClock


@pytest.fixture
def provider(monkeypatch: pytest.MonkeyPatch) -> TracerProvider:
    """The tracer provider of this test: the API lets a process set one only once."""
    provider = TracerProvider()
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return provider


@pytest.fixture
def exporter(provider: TracerProvider) -> InMemorySpanExporter:
    """Where ended spans go."""
    exporter = InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return exporter


def ended(exporter: InMemorySpanExporter) -> list[str]:
    """Names of the spans that have ended, in this order."""
    return [span.name for span in exporter.get_finished_spans()]


def span_of(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    """The one ended span of that name."""
    (span,) = [span for span in exporter.get_finished_spans() if span.name == name]
    return span


def parent_of(exporter: InMemorySpanExporter, name: str) -> str | None:
    """The name of its parent, which has ended too."""
    parent = span_of(exporter, name).parent
    if parent is None:
        return None
    (found,) = [
        span.name
        for span in exporter.get_finished_spans()
        if span.context is not None and span.context.span_id == parent.span_id
    ]
    return found


def status_of(exporter: InMemorySpanExporter, name: str) -> StatusCode:
    """The status that it ended with."""
    return span_of(exporter, name).status.status_code


# ---- one fiber


@pytest.mark.spec("LY6")
async def test_the_inner_span_ends_with_the_failure_and_the_outer_one_ends_well(
    rt: fb.Runtime, exporter: InMemorySpanExporter
) -> None:
    """The inner one is the outer one's child."""
    failing: Effect[None, Boom] = Effect.fail(Boom("x"))
    work = failing.with_span("inner").catch(lambda _: Effect.succeed(5)).with_span("outer")

    value = await rt.run(work)

    assert value == 5
    assert ended(exporter) == ["inner", "outer"]
    assert (parent_of(exporter, "inner"), parent_of(exporter, "outer")) == ("outer", None)
    assert status_of(exporter, "inner") is StatusCode.ERROR
    assert status_of(exporter, "outer") is StatusCode.OK


@pytest.mark.spec("LY6")
@pytest.mark.parametrize("make", [Effect.fail, Effect.die], ids=["fail", "die"])
async def test_a_failure_is_recorded(
    rt: fb.Runtime, exporter: InMemorySpanExporter, make: Any
) -> None:
    """As an exception event, and in the description of the status."""
    await rt.run_exit(make(Boom("no such user")).with_span("work"))

    span = span_of(exporter, "work")
    assert span.status.description == "Boom: no such user"
    (event,) = span.events
    assert event.attributes is not None
    assert event.attributes["exception.message"] == "no such user"


@pytest.mark.spec("LY6")
async def test_a_span_ends_when_it_is_interrupted(
    rt: fb.Runtime, clock: TestClock, exporter: InMemorySpanExporter
) -> None:
    """It says so, with the reason; that is no error."""
    fiber = rt.run_fork(fb.sleep(60).with_span("work"))
    await pass_time(rt, clock, 1)
    before = ended(exporter)

    fiber.interrupt_unsafe(reason="shutdown")

    span = span_of(exporter, "work")
    assert before == []
    assert span.status.status_code is StatusCode.UNSET
    assert span.attributes == {
        "fiber.interrupted": True,
        "fiber.interrupt.reasons": ("shutdown",),
    }


@pytest.mark.spec("LY6")
async def test_a_span_ends_after_the_finalizers_inside_it(
    rt: fb.Runtime, clock: TestClock, exporter: InMemorySpanExporter
) -> None:
    """They are part of the work, and their spans its children."""
    last = fb.sleep(1).with_span("cleanup")
    never: Effect[None] = Effect.never()

    await interrupt_during(rt, clock, never.on_interrupt(lambda _: last).with_span("work"), at=1)

    assert ended(exporter) == ["cleanup", "work"]
    assert parent_of(exporter, "cleanup") == "work"


@pytest.mark.spec("LY6")
async def test_a_masked_span_ends_once(
    rt: fb.Runtime, clock: TestClock, exporter: InMemorySpanExporter
) -> None:
    """With the outcome of the work; the interrupt lands outside it."""
    work = fb.sleep(5).with_span("work").uninterruptible()

    await interrupt_during(rt, clock, work, at=1)

    assert ended(exporter) == ["work"]
    assert status_of(exporter, "work") is StatusCode.OK


@pytest.mark.spec("LY6")
async def test_a_timeout_ends_the_span_inside_it(
    rt: fb.Runtime, clock: TestClock, exporter: InMemorySpanExporter
) -> None:
    """It is that of another fiber, and a child of the one around the timeout."""
    timed = fb.sleep(60).with_span("inner").timeout(1).ignore().with_span("outer")

    rt.run_fork(timed)
    await pass_time(rt, clock, 1)

    assert ended(exporter) == ["inner", "outer"]
    assert parent_of(exporter, "inner") == "outer"
    attributes = span_of(exporter, "inner").attributes
    assert attributes is not None
    assert attributes["fiber.interrupt.reasons"] == ("timed out",)


@pytest.mark.spec("LY6")
async def test_attributes_are_those_given(rt: fb.Runtime, exporter: InMemorySpanExporter) -> None:
    """Of any kind that OpenTelemetry has."""
    work = Effect.succeed(5).with_span(
        "work", attributes={"user.id": "u1", "tries": 3, "tags": ["a", "b"]}
    )

    await rt.run(work)

    assert span_of(exporter, "work").attributes == {
        "user.id": "u1",
        "tries": 3,
        "tags": ("a", "b"),
    }


@pytest.mark.spec("LY6")
async def test_each_run_has_a_span_of_its_own(
    rt: fb.Runtime, exporter: InMemorySpanExporter
) -> None:
    """An effect is a value."""
    work = Effect.succeed(5).with_span("work")

    await rt.run(work)
    await rt.run(work)

    first, second = exporter.get_finished_spans()
    assert first.context != second.context


@pytest.mark.spec("LY6")
async def test_a_body_sees_its_span_as_the_current_one(
    rt: fb.Runtime, exporter: InMemorySpanExporter
) -> None:
    """So other instrumentation finds its parent; afterwards the outer one is current again."""
    tracer = trace.get_tracer_provider().get_tracer("other")
    current: list[str] = []

    def look() -> None:
        current.append(getattr(trace.get_current_span(), "name", "none"))

    @fb.effect
    async def body() -> None:
        look()
        with tracer.start_as_current_span("other's"):
            await Effect.sync(look).with_span("inner")
        look()

    await rt.run(chain(body().with_span("work"), Effect.sync(look)))

    assert current == ["work", "inner", "work", "none"]
    assert parent_of(exporter, "inner") == "other's"
    assert parent_of(exporter, "other's") == "work"


@pytest.mark.spec("LY6", "PD12")
async def test_an_effect_in_a_plain_task_continues_the_span_of_the_task(
    exporter: InMemorySpanExporter,
) -> None:
    """And leaves it current there."""
    tracer = trace.get_tracer_provider().get_tracer("other")

    with tracer.start_as_current_span("request"):
        await fb.sleep(0).with_span("work")
        after = getattr(trace.get_current_span(), "name", "none")

    assert parent_of(exporter, "work") == "request"
    assert after == "request"


# ---- several fibers


@pytest.mark.spec("LY6", "SU18")
@pytest.mark.parametrize("start_immediately", [False, True], ids=["deferred", "immediate"])
async def test_a_child_inherits_the_current_span(
    rt: fb.Runtime, exporter: InMemorySpanExporter, start_immediately: bool
) -> None:
    """Its own are children of that one."""
    child = Effect.yield_now().with_span("child")
    parent = child.fork_child(start_immediately=start_immediately).flat_map(
        lambda fiber: fiber.join()
    )

    await rt.run(parent.with_span("parent"))

    assert parent_of(exporter, "child") == "parent"


@pytest.mark.spec("LY6", "SU18")
async def test_workers_inherit_the_current_span(
    rt: fb.Runtime, exporter: InMemorySpanExporter
) -> None:
    """Those of for_each, each its own beneath it."""
    each = fb.for_each(
        range(3),
        lambda n: Effect.yield_now().with_span(f"item {n}"),
        concurrency="unbounded",
    )

    await rt.run(each.with_span("all"))

    assert [parent_of(exporter, f"item {n}") for n in range(3)] == ["all"] * 3


@pytest.mark.spec("LY6", "LY4")
async def test_a_layer_is_built_in_the_span_of_its_first_user(
    rt: fb.Runtime, exporter: InMemorySpanExporter
) -> None:
    """A provide is part of the work."""
    layer = Layer.effect(A, Effect.sync(lambda: Service("A")).with_span("build"))

    await rt.run(A.provide(layer).with_span("work"))

    assert parent_of(exporter, "build") == "work"


# ---- what can go wrong


@pytest.mark.spec("LY6")
async def test_an_unsampled_span_records_nothing(
    rt: fb.Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sampler decides; the work is the same."""
    provider, exporter = TracerProvider(sampler=ALWAYS_OFF), InMemorySpanExporter()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)

    await rt.run_exit(Effect.fail(Boom("x")).with_span("work"))
    value = await rt.run(Effect.succeed(5).with_span("work"))

    assert value == 5
    assert exporter.get_finished_spans() == ()


class _Broken(SpanProcessor):
    """One whose end raises."""

    def on_end(self, span: ReadableSpan) -> None:
        raise Defect("exporter down")


@pytest.mark.spec("LY6")
async def test_a_broken_exporter_does_not_decide_how_the_work_ends(
    rt: fb.Runtime, provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged."""
    provider.add_span_processor(_Broken())

    with caplog.at_level(logging.ERROR, logger="fibers"):
        value = await rt.run(Effect.succeed(5).with_span("work"))

    assert value == 5
    assert [record.name for record in caplog.records] == ["fibers"]


# ---- without OpenTelemetry


def run_python(source: str) -> str:
    """What a program in a process of its own prints."""
    done = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


ABSENT = """
import importlib.machinery

find = importlib.machinery.PathFinder.find_spec

def without(name, path=None, target=None):
    return None if name.partition(".")[0] == "opentelemetry" else find(name, path, target)

importlib.machinery.PathFinder.find_spec = without
"""


@pytest.mark.spec("LY6")
def test_where_it_is_not_installed_a_span_is_the_effect_itself() -> None:
    """Not even a node more to run."""
    source = (
        "import fibers as fb\n"
        "work = fb.Effect.succeed(5)\n"
        "print(work.with_span('work', attributes={'a': 1}) is work, fb.run(work))\n"
    )

    assert run_python(ABSENT + source) == "True 5"


@pytest.mark.spec("LY6")
def test_it_is_not_imported_before_the_first_span() -> None:
    """Who has it installed and uses none pays nothing."""
    source = (
        "import sys\nimport fibers as fb\n"
        "fb.run(fb.Effect.succeed(5))\n"
        "before = 'opentelemetry' in sys.modules\n"
        "fb.Effect.succeed(5).with_span('work')\n"
        "print(before, 'opentelemetry.trace' in sys.modules)\n"
    )

    assert run_python(source) == "False True"


@pytest.mark.spec("LY6")
async def test_without_a_provider_the_work_is_the_same() -> None:
    """OpenTelemetry's own default records nothing."""
    value = await fb.sleep(0).map(lambda _: 5).with_span("work")

    assert value == 5


@pytest.mark.spec("LY6")
def test_an_installation_that_cannot_be_imported_is_told_once_and_costs_the_spans_only() -> None:
    """As an SDK without its API, or two versions that don't fit."""
    source = (
        "import sys, logging\n"
        "sys.modules['opentelemetry.trace'] = None\n"
        "logging.basicConfig(stream=sys.stdout, format='%(message).40s')\n"
        "import fibers as fb\n"
        "work = fb.Effect.succeed(5)\n"
        "both = work.with_span('one'), work.with_span('two')\n"
        "print(both == (work, work))\n"
    )

    told, *_, last = run_python(source).splitlines()

    assert told == "opentelemetry is installed without its A"
    assert last == "True"


class _Unstartable(SpanProcessor):
    """An exporter that can't even begin."""

    def on_start(self, span: object, parent_context: object = None) -> None:
        raise RuntimeError("no disk")


@pytest.mark.spec("LY6")
async def test_a_span_that_cannot_be_started_does_not_stop_the_work(
    provider: TracerProvider, caplog: pytest.LogCaptureFixture
) -> None:
    """It is told in the log, once, and the work goes on without."""
    provider.add_span_processor(_Unstartable())

    assert await Effect.succeed("done").with_span("work") == "done"

    (record,) = [r for r in caplog.records if r.name == "fibers"]
    assert "the span 'work' could not be started" in record.getMessage()


class _Silent(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.spec("LY6")
async def test_a_span_ends_also_with_an_error_that_has_no_words(
    exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    """The attribute that would hold them is lost, the span is not."""
    error = _Silent()
    failing: Effect[int, _Silent] = Effect.fail(error)

    exit_ = await failing.with_span("work").exit()

    assert cause_of(exit_).failures == (error,)
    assert ended(exporter) == ["work"]
