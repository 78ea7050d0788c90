"""Tools that the engine runs: in order, beside each other, and whatever they do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import AbortSignal
from streamengine import EngineOptions, Event, StartOptions, StreamEngine, StreamRequest, ToolSpec
from streamengine.model import (
    AssistantRow,
    Finish,
    StreamEndEvent,
    ToolCall,
    ToolCallEndEvent,
    ToolCallExecutionStartEvent,
    ToolPart,
)

from .conftest import MakeDesk
from .kit import (
    FINISH,
    GRACE_SECONDS,
    WHOLE,
    WORKSPACE,
    Call,
    Desk,
    Given,
    Hand,
    Parts,
    calls,
    echo,
    says,
    text,
)

pytestmark = pytest.mark.lifecycle

TOOLS_DONE = Finish(finish_reason="tool-calls", raw_finish_reason="tool_calls")


class Gate:
    """A tool that says when it has begun, and ends when it is told to."""

    def __init__(self, name: str) -> None:
        self.begun = asyncio.Event()
        self.go = asyncio.Event()
        self.hand = Hand(name, self._run)

    async def _run(self, _given: dict[str, Any], _signal: AbortSignal) -> object:
        self.begun.set()
        await self.go.wait()
        return self.hand.spec.name


def tool_parts(d: Desk) -> dict[str, Any]:
    """Output of each call in the last row."""
    return {
        part["toolCallId"]: part.get("output")
        for part in d.parts()
        if part["type"] == "dynamic-tool"
    }


# ---- the loop of steps


@pytest.mark.spec("BT8")
async def test_a_call_is_run_and_the_provider_goes_on_with_its_result(desk: MakeDesk) -> None:
    tool = echo()
    d = desk(calls("echo", echo={"x": 1}), says(text("It is 1."), FINISH), tools=[tool])

    completion = await d.whole(correlation={"job": 1})

    assert completion.status == "completed"
    (use,) = tool.uses
    assert (use.input, use.tool_call_id, use.correlation) == ({"x": 1}, "echo-1", {"job": 1})
    first, second = d.provider.calls
    assert [spec.name for spec in first.request.tools] == ["echo"]
    assert (first.request.so_far, second.request.text) == ((), "Hi")
    (so_far,) = second.request.so_far
    assert isinstance(so_far, ToolPart)
    assert (so_far.state, so_far.output) == ("output-available", {"x": 1})
    assert d.tape.types == [
        "stream-start",
        "tool-call-start",
        "tool-call-execution-start",
        "tool-call-end",
        "stream-delta",
        "stream-end",
    ]
    assert [part["type"] for part in d.parts()] == ["dynamic-tool", "text"]


async def test_one_row_holds_all_steps(desk: MakeDesk) -> None:
    d = desk(
        says(text("One. "), ToolCall(tool_call_id="a", tool_name="echo"), TOOLS_DONE),
        says(text("Two. "), ToolCall(tool_call_id="b", tool_name="echo"), TOOLS_DONE),
        says(text("Three."), FINISH),
        tools=[echo()],
    )

    await d.whole()

    assert d.disk.roles() == ["user", "assistant"]
    assert [part["type"] for part in d.parts()] == [
        "text", "dynamic-tool", "text", "dynamic-tool", "text",
    ]  # fmt: skip
    assert [len(call.request.so_far) for call in d.provider.calls] == [0, 2, 4]


async def test_the_calls_of_a_step_run_beside_each_other(desk: MakeDesk) -> None:
    """Their results are recorded as they come."""
    one, two = Gate("one"), Gate("two")
    d = desk(calls("one", "two"), WHOLE, tools=[one.hand, two.hand])
    handle = await d.start()
    await d.idle()
    assert one.begun.is_set()
    assert two.begun.is_set()

    two.go.set()
    await d.idle()
    one.go.set()
    await d.done(handle)

    ends = [e.tool_call_id for e in d.tape.events if isinstance(e, ToolCallEndEvent)]
    assert ends == ["two-1", "one-1"]


async def test_no_more_tools_run_at_a_time_than_allowed(desk: MakeDesk) -> None:
    gates = [Gate(name) for name in ("a", "b", "c")]
    d = desk(
        calls("a", "b", "c"),
        WHOLE,
        tools=[gate.hand for gate in gates],
        options=EngineOptions(tool_concurrency=2),
    )
    handle = await d.start()
    await d.idle()
    assert [gate.begun.is_set() for gate in gates] == [True, True, False]

    gates[1].go.set()
    await d.idle()
    assert gates[2].begun.is_set()

    for gate in gates:
        gate.go.set()
    assert (await d.done(handle)).status == "completed"


@pytest.mark.spec("E19")
async def test_the_start_of_an_execution_is_told_and_kept(desk: MakeDesk) -> None:
    gate = Gate("one")
    d = desk(calls("one"), WHOLE, tools=[gate.hand])
    await d.start()
    await d.idle()

    (event,) = (e for e in d.tape.events if isinstance(e, ToolCallExecutionStartEvent))
    snapshot = d.engine.snapshot(WORKSPACE)

    assert snapshot is not None
    stamped = snapshot.parts[-1]
    assert isinstance(stamped, ToolPart)
    assert stamped.execution_started_at_ms == event.timestamp_ms
    assert stamped.timestamp_ms is not None
    assert stamped.timestamp_ms < event.timestamp_ms
    gate.go.set()
    await d.idle()


async def test_an_answer_ends_at_its_bound_of_steps(desk: MakeDesk) -> None:
    """With the results of the last step, and a finish that says that there was more to come."""
    d = desk(calls("echo"), tools=[echo()], options=EngineOptions(max_steps=3))

    assert (await d.whole()).status == "completed"

    assert len(d.provider.calls) == 3
    (end,) = d.tape.terminals
    assert isinstance(end, StreamEndEvent)
    assert (end.metadata.finish_reason, end.metadata.step_limit) == ("tool-calls", 3)
    assert list(tool_parts(d)) == ["echo-1", "echo-1-2", "echo-1-3"]
    assert None not in tool_parts(d).values()


async def test_the_tools_of_a_start_take_the_place_of_the_engines(desk: MakeDesk) -> None:
    own = echo("own")
    d = desk(calls("own"), WHOLE, tools=[echo()])

    await d.whole(options=StartOptions(tools=(own,)))

    assert len(own.uses) == 1
    assert [spec.name for spec in d.provider.calls[0].request.tools] == ["own"]


async def test_two_tools_of_one_name_are_refused(desk: MakeDesk) -> None:
    with pytest.raises(ValueError, match="two tools are called 'echo'"):
        desk(WHOLE, tools=[echo(), echo()])


def test_a_bound_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="max_steps must be at least 1, not 0"):
        EngineOptions(max_steps=0)
    with pytest.raises(ValueError, match="tool_concurrency must be at least 1"):
        EngineOptions(tool_concurrency=0)
    with pytest.raises(ValueError, match="max_tool_output_bytes must be at least 1"):
        EngineOptions(max_tool_output_bytes=0)


# ---- tools that go wrong


class Words:
    """An object that is no JSON."""


async def _raises(_given: dict[str, Any], _signal: AbortSignal) -> object:
    raise RuntimeError("no such file")


async def _raises_cancelled(_given: dict[str, Any], _signal: AbortSignal) -> object:
    raise asyncio.CancelledError


def _raises_at_once(_given: dict[str, Any], _signal: AbortSignal) -> Any:
    raise RuntimeError("not even begun")


async def _interrupts_itself(_given: dict[str, Any], _signal: AbortSignal) -> object:
    fiber = fb.current_fiber()
    assert fiber is not None
    await fiber.interrupt()
    return "unreachable"


async def _gives_an_object(_given: dict[str, Any], _signal: AbortSignal) -> object:
    return Words()


async def _gives_itself(_given: dict[str, Any], _signal: AbortSignal) -> object:
    loop: list[object] = []
    loop.append(loop)
    return loop


async def _gives_no_number(_given: dict[str, Any], _signal: AbortSignal) -> object:
    return {"x": float("inf")}


async def _gives_too_much(_given: dict[str, Any], _signal: AbortSignal) -> object:
    return "x" * 5000


async def _gives_deep(_given: dict[str, Any], _signal: AbortSignal) -> object:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    return deep


def _gives_no_awaitable(_given: dict[str, Any], _signal: AbortSignal) -> Any:
    return 3


@pytest.mark.parametrize(
    ("run", "says_what"),
    [
        (_raises, "no such file"),
        (_raises_cancelled, "CancelledError"),
        (_raises_at_once, "not even begun"),
        (_interrupts_itself, "interrupted"),
        (_gives_an_object, "the result is no JSON"),
        (_gives_itself, "the result is no JSON"),
        (_gives_no_number, "the result is no JSON"),
        (_gives_too_much, "5002 bytes; at most 4096 are kept"),
        (_gives_deep, "the result is no JSON"),
        (_gives_no_awaitable, ""),
    ],
)
async def test_what_goes_wrong_in_a_tool_is_its_result(
    desk: MakeDesk, run: Any, says_what: str
) -> None:
    """In words that the model gets; the answer goes on."""
    d = desk(
        calls("bad"),
        WHOLE,
        tools=[Hand("bad", run)],
        options=EngineOptions(max_tool_output_bytes=4096),
    )

    assert (await d.whole()).status == "completed"

    output = tool_parts(d)["bad-1"]
    assert output["success"] is False
    assert says_what in output["error"]


async def test_a_tool_that_nobody_has_is_an_error_result(desk: MakeDesk) -> None:
    d = desk(calls("nobody"), WHOLE, tools=[echo()])

    assert (await d.whole()).status == "completed"

    assert tool_parts(d)["nobody-1"] == {
        "success": False,
        "error": "there is no tool 'nobody' (tools: echo)",
    }


@pytest.mark.parametrize(
    ("given", "result"),
    [
        (None, {}),
        ("", {}),
        ("  ", {}),
        ('{"x": 1}', {"x": 1}),
        ({"x": 1}, {"x": 1}),
    ],
)
async def test_an_input_is_read_as_an_object(desk: MakeDesk, given: object, result: object) -> None:
    d = desk(calls("echo", echo=given), WHOLE, tools=[echo()])

    await d.whole()

    assert tool_parts(d)["echo-1"] == result


@pytest.mark.parametrize(
    ("given", "says_what"),
    [
        ('{"x": ', "the input is not valid JSON"),
        ("[1]", "the input must be a JSON object"),
        ([1], "the input must be a JSON object"),
        (3, "the input must be a JSON object"),
    ],
)
async def test_an_input_that_is_no_object_is_an_error_result(
    desk: MakeDesk, given: object, says_what: str
) -> None:
    tool = echo()
    d = desk(calls("echo", echo=given), WHOLE, tools=[tool])

    assert (await d.whole()).status == "completed"

    assert tool.uses == []
    assert tool_parts(d)["echo-1"]["error"].startswith(says_what)


async def test_a_truncated_step_runs_no_tools(desk: MakeDesk) -> None:
    """The input may be cut off as well."""
    tool = echo()
    d = desk(says(text("a"), ToolCall(tool_call_id="c", tool_name="echo")), tools=[tool])

    completion = await d.whole()

    assert (completion.status, completion.error_type) == ("failed", "stream_truncated")
    assert tool.uses == []


async def test_a_provider_that_raises_at_its_second_call_fails_the_stream(desk: MakeDesk) -> None:
    def refuse(_call: Call) -> Parts:
        raise RuntimeError("no second helping")

    d = desk(calls("echo"), refuse, tools=[echo()])

    completion = await d.whole()

    assert (completion.status, completion.error) == ("failed", "no second helping")
    assert d.is_idle


@pytest.mark.spec("P22")
async def test_a_call_that_the_provider_left_open_has_a_result_in_the_next_step(
    desk: MakeDesk,
) -> None:
    """Beside one that the engine ran."""
    lost = ToolCall(tool_call_id="p", tool_name="search", provider_executed=True)
    ours = ToolCall(tool_call_id="e", tool_name="echo")
    d = desk(says(lost, ours, TOOLS_DONE), WHOLE, tools=[echo()])

    await d.whole()

    so_far = d.provider.calls[1].request.so_far
    assert all(isinstance(part, ToolPart) and part.has_output for part in so_far)
    assert len(so_far) == 2


# ---- stops while tools run


@pytest.mark.spec("P22", "BT8")
@pytest.mark.parametrize("soft", [False, True])
async def test_of_two_parallel_calls_the_one_cut_off_gets_an_aborted_result(
    desk: MakeDesk, soft: bool
) -> None:
    """The row is acceptable to a provider as it stands (report R14)."""
    one, two = Gate("one"), Gate("two")
    d = desk(calls("one", "two"), WHOLE, tools=[one.hand, two.hand])
    await d.start()
    await d.idle()
    if soft:
        await d.stop(soft=True)
        one.go.set()
    else:
        one.go.set()
        await d.idle()
        await d.stop()
    await d.idle()

    assert [e.type for e in d.tape.terminals] == ["stream-abort"]
    assert tool_parts(d) == {"one-1": "one", "two-1": {"success": False, "error": "aborted"}}

    await d.whole("next")
    answer = d.provider.calls[-1].request.history[-1]
    assert isinstance(answer, AssistantRow)
    assert all(isinstance(part, ToolPart) and part.has_output for part in answer.parts)
    await d.idle()


@pytest.mark.spec("E10")
async def test_a_result_that_comes_after_the_abort_is_dropped(desk: MakeDesk) -> None:
    """From a tool that swallows its interrupt, and is abandoned like a provider."""
    let_go = asyncio.Event()

    async def stubborn(_given: dict[str, Any], _signal: AbortSignal) -> object:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue
        return "too late"

    d = desk(
        says(text("I look."), ToolCall(tool_call_id="c", tool_name="bad"), TOOLS_DONE),
        tools=[Hand("bad", stubborn)],
    )
    await d.start()
    await d.idle()
    stopping = d.rt.run_fork(d.stopping())
    await d.idle()
    assert stopping.poll() is None

    with capture_logs() as logs:
        await d.pass_time(GRACE_SECONDS)
    assert stopping.poll() is not None
    assert len(d.abandoned) == 1
    assert sum("abandoned" in log["event"] for log in logs) == 1

    let_go.set()
    await d.idle()

    assert d.abandoned == []
    assert tool_parts(d) == {"c": {"success": False, "error": "aborted"}}
    assert d.is_idle


async def test_a_tool_is_told_by_its_signal_before_it_is_interrupted(desk: MakeDesk) -> None:
    seen: list[object] = []

    async def listens(_given: dict[str, Any], signal: AbortSignal) -> object:
        signal.add_listener(lambda reason: seen.append(reason))
        try:
            await asyncio.Event().wait()
        finally:
            seen.append("interrupted")
        return None

    d = desk(calls("ear"), tools=[Hand("ear", listens)])
    await d.start()
    await d.idle()

    await d.stop("system")

    assert seen == ["system", "interrupted"]


async def test_what_a_tool_leases_is_held_to_the_end_of_the_stream(desk: MakeDesk) -> None:
    """Not to the end of the call; and it is released when the tools have ended."""
    log: list[str] = []

    @fb.effect
    async def lease(_given: dict[str, Any], _signal: AbortSignal) -> object:
        await fb.acquire_release(
            fb.Effect.sync(lambda: log.append("acquired")),
            lambda _value, _exit: fb.Effect.sync(lambda: log.append("released")),
        )
        return "mine"

    d = desk(calls("lease"), says(text("Done."), FINISH), tools=[Hand("lease", lease)])
    d.tape.on_event = lambda event: log.append(event.type)

    await d.whole()

    assert log == [
        "stream-start", "tool-call-start", "tool-call-execution-start", "acquired",
        "tool-call-end", "stream-delta", "stream-end", "released",
    ]  # fmt: skip


async def test_ask_user_is_on_disk_before_its_tool_runs(desk: MakeDesk) -> None:
    gate = Gate("ask_user")
    d = desk(calls("ask_user"), WHOLE, tools=[gate.hand])
    on_disk: list[object] = []

    async def look() -> None:
        partial = await d.history.read_partial(WORKSPACE)
        on_disk.append(None if partial is None else [part.type for part in partial.parts])

    def note(event: Event) -> object:
        return look() if isinstance(event, ToolCallExecutionStartEvent) else None

    d.engine.events.subscribe(note)
    handle = await d.start()
    await d.idle()

    assert on_disk == [["dynamic-tool"]]
    gate.go.set()
    await d.done(handle)


async def test_a_tool_may_start_a_stream_in_another_workspace(desk: MakeDesk) -> None:
    """And wait for it: the engine is not held up by its own tools."""
    engines: list[StreamEngine] = []

    async def ask(_given: dict[str, Any], _signal: AbortSignal) -> object:
        handle = await engines[0].start_stream("w2", StreamRequest(text="Sub"))
        return (await handle.completion).status

    d = desk(calls("ask"), WHOLE, tools=[Hand("ask", ask)])
    engines.append(d.engine)

    assert (await d.whole()).status == "completed"
    assert tool_parts(d) == {"ask-1": "completed"}


async def test_the_spec_of_a_tool_reaches_the_model(desk: MakeDesk) -> None:
    tool = echo()
    tool.spec = ToolSpec(name="echo", description="Says it again.", parameters={"type": "object"})
    d = desk(WHOLE, tools=[tool])

    await d.whole()

    assert d.provider.calls[0].request.tools == (tool.spec,)


async def test_the_iterator_of_each_step_is_closed(desk: MakeDesk, tmp_path: Path) -> None:
    closed: list[int] = []

    def step(*parts: Given) -> Any:
        async def play(call: Call) -> AsyncGenerator[Given, None]:
            try:
                for part in parts:
                    yield part
            finally:
                closed.append(len(call.request.so_far))

        return play

    d = desk(
        step(ToolCall(tool_call_id="c", tool_name="echo"), TOOLS_DONE),
        step(text("Done."), FINISH),
        tools=[echo()],
    )

    await d.whole()

    assert closed == [0, 1]


@pytest.mark.spec("E10")
async def test_no_tool_is_started_after_a_stop_by_who_was_told_of_the_first(
    desk: MakeDesk,
) -> None:
    first, second = echo("first"), echo("second")
    d = desk(calls("first", "second"), tools=[first, second])

    def stop(event: Event) -> None:
        if isinstance(event, ToolCallExecutionStartEvent):
            d.rt.run_fork(d.stopping(abandon_partial=True))

    d.tape.on_event = stop
    await d.start()
    await d.idle()

    assert d.tape.types.count("tool-call-execution-start") == 1
    assert first.uses == second.uses == []
    assert d.tape.types[-1] == "stream-abort"


async def test_what_a_tool_does_to_its_input_changes_nothing_that_is_recorded(
    desk: MakeDesk,
) -> None:
    async def run(given: dict[str, Any], _signal: AbortSignal) -> object:
        given["filters"].append("mine")
        return "done"

    d = desk(calls("find", find={"filters": ["theirs"]}), WHOLE, tools=[Hand("find", run)])

    await d.whole()

    assert d.parts()[0]["input"] == {"filters": ["theirs"]}
    (so_far,) = d.provider.calls[1].request.so_far
    assert isinstance(so_far, ToolPart)
    assert so_far.input == {"filters": ["theirs"]}
