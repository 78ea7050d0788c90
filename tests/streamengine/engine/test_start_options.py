"""What a caller may add to a start: admission, fences, its own durable work, a temp directory."""

from __future__ import annotations

import asyncio
import re
import threading
from pathlib import Path
from tempfile import mkdtemp

import pytest
from structlog.testing import capture_logs

import fibers as fb
from fibers import AbortSignal, Effect
from fibers.app import AppScope
from streamengine import EngineOptions, Event, SendError, StartOptions
from streamengine.model import AbortReason, StreamStartEvent
from streamengine.tempdir import make_temp_directory, remove_temp_directory

from .conftest import MakeDesk
from .kit import (
    FINISH,
    GRACE_SECONDS,
    WHOLE,
    WORKSPACE,
    Call,
    Hand,
    Line,
    Parts,
    Wedged,
    calls,
    says,
    text,
)

pytestmark = pytest.mark.lifecycle


def on_constructed(work: Effect[None, Exception]) -> StartOptions:
    return StartOptions(on_constructed=lambda _message_id, _sequence: work)


# ---- on_constructed


async def test_the_callers_work_is_done_before_the_first_event(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    seen: list[object] = []

    def construct(message_id: str, sequence: int) -> Effect[None]:
        seen.append((message_id, sequence, d.engine.is_streaming(WORKSPACE), len(d.tape.events)))
        return fb.sleep(0)

    handle = await d.start(options=StartOptions(on_constructed=construct))
    await d.done(handle)

    start = d.tape.events[0]
    assert isinstance(start, StreamStartEvent)
    assert seen == [(handle.message_id, start.history_sequence, True, 0)]


async def test_it_is_not_called_where_the_provider_refuses(desk: MakeDesk) -> None:
    def refuse(_call: Call) -> Parts:
        raise RuntimeError("no key")

    called: list[str] = []
    d = desk(refuse)
    options = StartOptions(
        on_constructed=lambda _message_id, _sequence: Effect.sync(lambda: called.append("yes"))
    )

    with pytest.raises(SendError):
        await d.start(options=options)

    assert called == []


@pytest.mark.spec("E1")
async def test_where_it_fails_the_start_fails_and_nothing_is_launched(desk: MakeDesk) -> None:
    """It was registered: an abort ends it, and the provider is not read."""
    line = Line()
    d = desk(line, WHOLE)

    with pytest.raises(SendError, match="no room") as caught:
        await d.start(options=on_constructed(Effect.fail(RuntimeError("no room"))))
    await d.idle()

    assert caught.value.kind == "on_constructed"
    assert d.tape.types == ["stream-abort"]
    assert d.is_idle
    assert (await d.whole("again")).status == "completed"


@pytest.mark.spec("E1")
@pytest.mark.parametrize("who", ["a user", "the close of the app"])
async def test_a_stop_while_it_is_pending_is_told_at_once(desk: MakeDesk, who: str) -> None:
    app = AppScope()
    d = desk(WHOLE, scope=app)
    cleaned: list[str] = []
    work = Effect.never().on_interrupt(lambda _ids: Effect.sync(lambda: cleaned.append("ended")))
    starting = d.rt.run_fork(d.starting(options=on_constructed(work)))
    await d.idle()

    if who == "a user":
        await d.stop()
    else:
        await d.rt.run(app.close())
    await d.idle()

    assert d.tape.types == ["stream-abort"]
    exit_ = starting.poll()
    assert exit_ is not None
    reason = "user" if who == "a user" else "system"
    assert (await d.done(exit_.unwrap())).abort_reason == reason
    assert cleaned == ["ended"]
    assert d.is_idle


async def test_work_that_ignores_its_interrupt_is_abandoned(desk: MakeDesk) -> None:
    let_go = asyncio.Event()

    @fb.effect
    async def stubborn() -> None:
        while not let_go.is_set():
            try:
                await let_go.wait()
            except asyncio.CancelledError:
                continue

    d = desk(WHOLE)
    starting = d.rt.run_fork(d.starting(options=on_constructed(stubborn())))
    await d.idle()
    await d.stop()
    await d.pass_time(GRACE_SECONDS)

    assert starting.poll() is not None
    assert len(d.abandoned) == 1
    let_go.set()
    await d.idle()


async def test_a_caller_that_is_interrupted_leaves_no_stream_behind(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    starting = d.rt.run_fork(d.starting(options=on_constructed(Effect.never())))
    await d.idle()

    await d.rt.run(starting.interrupt())
    await d.idle()

    assert d.tape.types == ["stream-abort"]
    assert d.is_idle


@pytest.mark.spec("E15")
async def test_the_next_start_waits_until_it_is_over(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    go = asyncio.Event()
    work = Effect.promise(lambda: go.wait()).map(lambda _: None)
    first = d.rt.run_fork(d.starting("first", options=on_constructed(work)))
    await d.idle()
    second = d.rt.run_fork(d.starting("second"))
    await d.idle()
    assert second.poll() is None

    go.set()
    await d.idle()

    for fiber in (first, second):
        exit_ = fiber.poll()
        assert exit_ is not None
        await d.done(exit_.unwrap())
    assert d.is_idle


# ---- admission and fence


async def test_a_start_that_is_not_admitted_fails_and_asks_nobody(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    full: Effect[None, SendError] = Effect.fail(SendError("busy", "no more today"))

    with pytest.raises(SendError, match="busy: no more today"):
        await d.start(options=StartOptions(admit=full))

    assert d.provider.calls == []
    assert d.tape.events == []
    assert d.disk.roles() == ["user"]


async def test_an_admission_that_breaks_is_a_failed_start(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    with pytest.raises(SendError, match="a fault"):
        await d.start(options=StartOptions(admit=Effect.die(RuntimeError("a fault"))))

    assert d.is_idle


@pytest.mark.spec("BT6")
@pytest.mark.parametrize("who", ["a user", "the close of the app"])
async def test_a_stop_while_the_admission_is_pending_ends_the_start(
    desk: MakeDesk, who: str
) -> None:
    app = AppScope()
    d = desk(WHOLE, scope=app)
    starting = d.rt.run_fork(d.starting(options=StartOptions(admit=Effect.never())))
    await d.idle()

    if who == "a user":
        await d.stop()
    else:
        await d.rt.run(app.close())

    exit_ = starting.poll()
    assert exit_ is not None
    completion = await d.done(exit_.unwrap())
    assert completion.abort_reason == ("user" if who == "a user" else "system")
    assert d.provider.calls == []
    assert d.tape.events == []


@pytest.mark.spec("E16")
@pytest.mark.parametrize("reason", ["user", "startup", "system"])
async def test_a_fence_that_gives_a_reason_ends_the_start(
    desk: MakeDesk, reason: AbortReason
) -> None:
    d = desk(WHOLE)

    handle = await d.start(options=StartOptions(stop_fence=lambda: reason))

    assert (await d.done(handle)).abort_reason == reason
    assert d.provider.calls == []
    assert d.tape.events == []


@pytest.mark.spec("E17")
async def test_a_fence_that_breaks_is_a_failed_start(desk: MakeDesk) -> None:
    def breaks() -> AbortReason:
        raise RuntimeError("a fault")

    d = desk(WHOLE)

    with pytest.raises(SendError, match="a fault"):
        await d.start(options=StartOptions(stop_fence=breaks))

    assert d.is_idle
    assert d.provider.calls == []
    assert d.tape.events == []


class Hostile(Exception):
    """One that can't be asked anything."""

    @property
    def kind(self) -> str:
        raise RuntimeError("no kind")

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.spec("E17", "E23")
async def test_an_exception_that_cannot_be_asked_what_it_is_is_a_failed_start(
    desk: MakeDesk,
) -> None:
    d = desk(WHOLE)

    with pytest.raises(SendError, match="unknown: Hostile"):
        await d.start(options=StartOptions(admit=Effect.die(Hostile())))

    assert d.is_idle


async def test_a_fence_that_gives_none_lets_it_pass(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    handle = await d.start(options=StartOptions(stop_fence=lambda: None))

    assert (await d.done(handle)).status == "completed"


# ---- the temp directory


async def test_a_stream_has_a_directory_until_it_has_ended(desk: MakeDesk, tmp_path: Path) -> None:
    seen: list[tuple[Path, bool]] = []

    async def use(_given: dict[str, object], _signal: AbortSignal) -> object:
        path = tool.uses[0].temp_directory
        assert path is not None
        (path / "deep").mkdir()
        (path / "deep" / "file").write_text("x")
        seen.append((path, path.stat().st_mode & 0o777 == 0o700))
        return "done"

    tool = Hand("use", use)
    parent = tmp_path / "tmp"
    d = desk(calls("use"), WHOLE, tools=[tool], options=EngineOptions(temp_directory=parent))
    at_end: list[bool] = []

    def look(event: Event) -> None:
        if event.type == "stream-end":
            at_end.append(seen[0][0].exists())

    d.tape.on_event = look

    await d.whole()

    ((path, private),) = seen
    assert private
    assert path.parent == parent
    assert re.fullmatch(r"[0-9a-f]{8}", path.name)
    assert at_end == [True]
    assert list(parent.iterdir()) == []


@pytest.mark.spec("E17")
@pytest.mark.parametrize("how", ["refused", "stopped", "failed", "aborted", "fenced"])
async def test_a_directory_is_gone_whatever_way_a_stream_ends(
    desk: MakeDesk, tmp_path: Path, how: str
) -> None:
    def refuse(_call: Call) -> Parts:
        raise RuntimeError("no key")

    parent = tmp_path / "tmp"
    answer = {"refused": refuse, "failed": says(text("cut"))}.get(how, Line())
    d = desk(answer, options=EngineOptions(temp_directory=parent))
    fence = StartOptions(stop_fence=lambda: "user" if how == "fenced" else None)
    if how == "refused":
        with pytest.raises(SendError):
            await d.start()
    else:
        await d.start(options=fence)
        await d.idle()
        if how in ("stopped", "aborted"):
            await d.stop("user" if how == "stopped" else "system")
    await d.idle()

    assert list(parent.iterdir()) == []
    assert d.is_idle


async def test_a_stream_takes_over_a_directory_of_its_caller(
    desk: MakeDesk, tmp_path: Path
) -> None:
    own = tmp_path / "mine"
    own.mkdir()
    (own / "file").write_text("x")
    d = desk(WHOLE)

    await d.whole(options=StartOptions(temp_directory=own))

    assert not own.exists()


async def test_without_a_place_there_is_no_directory(desk: MakeDesk) -> None:
    async def use(_given: dict[str, object], _signal: AbortSignal) -> object:
        return str(tool.uses[0].temp_directory)

    tool = Hand("use", use)
    d = desk(calls("use"), says(text("a"), FINISH), tools=[tool])

    await d.whole()

    assert d.parts()[0]["output"] == "None"


async def test_a_place_where_none_can_be_made_fails_the_start(
    desk: MakeDesk, tmp_path: Path
) -> None:
    place = tmp_path / "file"
    place.write_text("in the way")
    d = desk(WHOLE, options=EngineOptions(temp_directory=place))

    with pytest.raises(SendError) as caught:
        await d.start()

    assert caught.value.kind == "temp_directory"
    assert d.provider.calls == []


async def test_a_directory_that_is_gone_already_is_no_problem(tmp_path: Path) -> None:
    with capture_logs() as logs:
        await remove_temp_directory(tmp_path / "gone")

    assert logs == []


@pytest.mark.parametrize("path", [Path("relative"), Path("/"), Path("/tmp/..")])
async def test_what_is_no_temp_directory_is_left_alone(path: Path) -> None:
    with capture_logs() as logs:
        await remove_temp_directory(path)

    assert [log["event"] for log in logs] == ["a temp directory could not be removed"]


async def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    treasure = tmp_path / "treasure"
    treasure.mkdir()
    (treasure / "gold").write_text("x")
    directory = await make_temp_directory(tmp_path / "tmp")
    directory.rmdir()
    directory.symlink_to(treasure)

    with capture_logs() as logs:
        await remove_temp_directory(directory)

    assert len(logs) == 1
    assert (treasure / "gold").exists()


async def test_the_directory_of_a_wedged_stream_goes_when_that_ends_after_all(
    desk: MakeDesk, tmp_path: Path
) -> None:
    parent = tmp_path / "tmp"
    wedged = Wedged(text("a"))
    d = desk(wedged, options=EngineOptions(temp_directory=parent))
    await d.start()
    await d.idle()
    stopping = d.rt.run_fork(d.stopping())
    await d.pass_time(GRACE_SECONDS)
    assert stopping.poll() is not None
    assert len(list(parent.iterdir())) == 1

    wedged.let_go.set()
    await d.idle()

    assert list(parent.iterdir()) == []


async def test_a_caller_that_is_interrupted_while_one_is_made_leaves_none(
    desk: MakeDesk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread makes it, and goes on making it."""
    begun, go = threading.Event(), threading.Event()

    async def make(parent: Path) -> Path:
        def slowly() -> Path:
            begun.set()
            assert go.wait(20)
            parent.mkdir()
            return Path(mkdtemp(dir=parent))

        return await asyncio.to_thread(slowly)

    monkeypatch.setattr("streamengine.construction.make_temp_directory", make)
    parent = tmp_path / "tmp"
    d = desk(WHOLE, options=EngineOptions(temp_directory=parent))
    starting = d.rt.run_fork(d.starting())
    await asyncio.to_thread(begun.wait, 20)
    interrupting = d.rt.run_fork(starting.interrupt())

    go.set()
    await interrupting

    assert list(parent.iterdir()) == []
    assert d.tape.events == []


@pytest.mark.parametrize("how", ["says nothing", "can't be stored", "is stopped", "is a repeat"])
async def test_a_directory_of_the_caller_goes_also_where_nothing_begins(
    desk: MakeDesk, tmp_path: Path, how: str
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    d = desk(WHOLE)
    stop = fb.AbortController()
    if how == "is stopped":
        stop.abort("user")
    if how == "is a repeat":
        await d.whole(client_message_id="c")
    if how == "can't be stored":
        d.history.fail("append_user")

    starting = d.starting(
        "" if how == "says nothing" else "Hi",
        signal=stop.signal,
        options=StartOptions(temp_directory=own),
        client_message_id="c",
    )
    await d.rt.run(starting.exit())

    assert not own.exists()
