"""What of a start can't be on disk, its tools first of all: it is given again, or missed aloud."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import Effect, Scope
from fibers.testing import TestClock
from streamengine import (
    AutoRetry,
    EngineOptions,
    SendError,
    StartOptions,
    StreamHandle,
    StreamRequest,
    ToolSpec,
)
from streamengine.model import (
    AutoRetryAbandonedEvent,
    StreamAbortEvent,
    StreamEndEvent,
    ToolPart,
    UserRow,
)
from streamengine.options import ForResumed

from .conftest import MakeDesk
from .kit import FINISH, WHOLE, WORKSPACE, Desk, Line, calls, echo, make_desk, says, text

pytestmark = pytest.mark.lifecycle

CUT = says(text("half"))
WITH_ECHO = StartOptions(tools=(echo(),))


def resuming(d: Desk, options: StartOptions | None = None) -> Effect[StreamHandle, SendError]:
    return d.engine.resume_stream(WORKSPACE, options=options)


def given_again(resolve: ForResumed) -> EngineOptions:
    return EngineOptions(for_resumed=resolve)


def missing(d: Desk) -> Any:
    """What the last row says that its answer had to do without."""
    return d.disk.rows()[-1]["metadata"].get("missingTools")


# ---- what the row of a message says


@pytest.mark.parametrize(
    ("engine_tools", "options", "fields", "named"),
    [
        (["a", "b"], None, {}, ["a", "b"]),
        (["a"], StartOptions(tools=(echo("c"),)), {}, ["c"]),
        (["a"], None, {"tools": (ToolSpec(name="d"),)}, ["d"]),
        (["a"], StartOptions(tools=()), {}, None),
        ([], None, {}, None),
    ],
)
async def test_the_row_of_a_message_names_the_tools_of_its_answer(
    desk: MakeDesk,
    engine_tools: list[str],
    options: StartOptions | None,
    fields: dict[str, Any],
    named: list[str] | None,
) -> None:
    d = desk(WHOLE, tools=[echo(name) for name in engine_tools])

    await d.whole(options=options, **fields)

    assert d.disk.rows()[0]["metadata"].get("tools") == named
    assert missing(d) is None


# ---- missed aloud


async def test_an_answer_that_goes_on_without_its_tools_says_so(desk: MakeDesk) -> None:
    d = desk(CUT, WHOLE)
    await d.whole(options=StartOptions(tools=(echo("a"), echo("b"))))

    with capture_logs() as logs:
        await d.done(await d.rt.run(resuming(d, StartOptions(tools=(echo("b"),)))))

    assert missing(d) == ["a"]
    end = d.tape.events[-1]
    assert isinstance(end, StreamEndEvent)
    assert end.metadata.missing_tools == ("a",)
    (log,) = [log for log in logs if log["event"].startswith("an answer goes on without")]
    assert (log["workspaceId"], log["tools"]) == (WORKSPACE, ["a"])
    assert log["log_level"] == "warning"


async def test_its_partial_says_so_from_the_first_word_on(desk: MakeDesk) -> None:
    line = Line()
    d = desk(CUT, line)
    await d.whole(options=WITH_ECHO)
    await d.rt.run(resuming(d))
    line.give(text("a"))
    await d.idle()

    partial = d.disk.partial()

    assert partial is not None
    assert partial["metadata"]["missingTools"] == ["echo"]
    await d.stop()
    abort = d.tape.events[-1]
    assert isinstance(abort, StreamAbortEvent)
    assert abort.metadata is not None
    assert abort.metadata.missing_tools == ("echo",)


async def test_the_next_answer_misses_nothing(desk: MakeDesk) -> None:
    d = desk(CUT, WHOLE)
    await d.whole(options=WITH_ECHO)
    await d.done(await d.rt.run(resuming(d)))

    await d.whole("next")

    assert missing(d) is None


# ---- given again


async def test_a_resumed_answer_gets_its_tools_from_the_host(desk: MakeDesk) -> None:
    tool = echo()
    asked: list[UserRow] = []

    def resolve(row: UserRow) -> StartOptions:
        asked.append(row)
        return StartOptions(tools=(tool,))

    d = desk(CUT, calls("echo"), WHOLE, options=given_again(resolve))
    await d.whole(options=WITH_ECHO, correlation={"turnId": "t1"})

    await d.done(await d.rt.run(resuming(d)))

    assert len(tool.uses) == 1
    assert [spec.name for spec in d.provider.calls[1].request.tools] == ["echo"]
    assert missing(d) is None
    (row,) = asked
    assert (row.id, row.metadata.correlation) == (d.disk.rows()[0]["id"], {"turnId": "t1"})


async def test_all_else_that_the_host_gives_counts_as_well(desk: MakeDesk, tmp_path: Path) -> None:
    place = tmp_path / "given"
    place.mkdir()
    constructed: list[str] = []

    def note(message_id: str, _sequence: int) -> Effect[None]:
        constructed.append(message_id)
        return Effect.succeed(None)

    given = StartOptions(on_constructed=note, temp_directory=place)
    d = desk(CUT, WHOLE, options=given_again(lambda _row: given))
    await d.whole()

    handle = await d.rt.run(resuming(d))
    await d.done(handle)

    assert constructed == [handle.message_id]
    assert not place.exists()


def nothing_of_its_own(_row: UserRow) -> None:
    return None


@pytest.mark.parametrize("resolve", [None, nothing_of_its_own])
async def test_without_a_word_of_the_host_it_gets_those_of_the_engine(
    desk: MakeDesk, resolve: ForResumed | None
) -> None:
    d = desk(CUT, WHOLE, tools=[echo()], options=EngineOptions(for_resumed=resolve))
    await d.whole()

    await d.done(await d.rt.run(resuming(d)))

    assert [spec.name for spec in d.provider.calls[1].request.tools] == ["echo"]
    assert missing(d) is None


async def test_who_gives_options_is_not_overruled(desk: MakeDesk) -> None:
    def resolve(_row: UserRow) -> StartOptions:
        raise AssertionError("asked although there are options")

    d = desk(CUT, WHOLE, options=given_again(resolve))
    await d.whole(options=WITH_ECHO)

    await d.done(await d.rt.run(resuming(d, WITH_ECHO)))

    assert [spec.name for spec in d.provider.calls[1].request.tools] == ["echo"]


@pytest.mark.spec("E17", "P20")
@pytest.mark.parametrize(
    ("error", "kind"),
    [(RuntimeError("no such agent"), "unknown"), (SendError("no_agent", "gone"), "no_agent")],
)
async def test_a_host_that_fails_to_give_them_fails_the_start(
    desk: MakeDesk, error: Exception, kind: str
) -> None:
    def resolve(_row: UserRow) -> StartOptions:
        raise error

    d = desk(CUT, WHOLE, options=given_again(resolve))
    await d.whole(options=WITH_ECHO)
    told = len(d.tape.events)

    with pytest.raises(SendError) as caught:
        await d.rt.run(resuming(d))

    assert caught.value.kind == kind
    assert str(error) in str(caught.value)
    assert (len(d.provider.calls), len(d.tape.events), d.is_idle) == (1, told, True)
    assert d.disk.answers() == ["half"]


# ---- by the retries


@pytest.mark.spec("I10")
async def test_the_next_process_goes_on_with_the_tools_that_its_host_gives(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    line = Line()
    d = make_desk(rt, clock, tmp_path, line)
    await d.start(options=WITH_ECHO)
    line.give(text("half"))
    await d.idle()
    await d.stop("system")
    tool = echo()
    options = given_again(lambda _row: StartOptions(tools=(tool,)))
    scope = Scope(name="app")
    d = make_desk(rt, clock, tmp_path, calls("echo"), WHOLE, scope=scope, options=options)
    retries = AutoRetry(d.engine, d.history)
    await rt.run(retries.start(scope))

    await rt.run(retries.recover())
    await d.pass_time(1)

    assert len(tool.uses) == 1
    said = d.provider.calls[-1].request.so_far
    assert [part.output for part in said if isinstance(part, ToolPart)] == [{}]
    assert d.disk.roles() == ["user", "assistant", "assistant"]
    assert missing(d) is None
    await rt.run(scope.close())


async def test_a_try_that_its_host_has_nothing_for_is_given_up_aloud(
    rt: fb.Runtime, clock: TestClock, tmp_path: Path
) -> None:
    def resolve(_row: UserRow) -> StartOptions:
        raise SendError("no_agent", "the agent of this turn is gone")

    scope = Scope(name="app")
    d = make_desk(rt, clock, tmp_path, CUT, WHOLE, scope=scope, options=given_again(resolve))
    await rt.run(AutoRetry(d.engine, d.history).start(scope))
    await d.whole(options=WITH_ECHO)

    await d.pass_time(1)

    last = d.tape.events[-1]
    assert isinstance(last, AutoRetryAbandonedEvent)
    assert "the agent of this turn is gone" in last.reason
    assert len(d.provider.calls) == 1
    await rt.run(scope.close())


async def test_a_row_of_a_version_that_named_no_tools_claims_nothing(desk: MakeDesk) -> None:
    d = desk(CUT, WHOLE, tools=[echo()])
    await d.whole()
    chat = d.disk.directory() / "chat.jsonl"
    chat.write_text(chat.read_text().replace(',"tools":["echo"]', ""))
    assert "tools" not in d.disk.rows()[0]["metadata"]

    await d.done(await d.rt.run(resuming(d, StartOptions(tools=()))))

    assert missing(d) is None
    assert StreamRequest(text="Hi") == StreamRequest.from_row(
        UserRow.model_validate(d.disk.rows()[0])
    )
    assert FINISH.is_terminal
