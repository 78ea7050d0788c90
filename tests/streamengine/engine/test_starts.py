"""How a stream begins, and every way in which it doesn't."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import fibers as fb
from fibers import AbortController
from fibers.app import AppScope
from streamengine import SendError
from streamengine.history.store import IoMode

from .conftest import MakeDesk
from .kit import (
    FINISH,
    GRACE_SECONDS,
    WHOLE,
    WORKSPACE,
    Answer,
    Call,
    Line,
    Method,
    Parts,
    Wedged,
    text,
)

pytestmark = pytest.mark.lifecycle


# ---- the user row


@pytest.mark.spec("BT1")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_the_user_row_is_on_disk_when_the_handle_is_given(desk: MakeDesk, io: IoMode) -> None:
    d = desk(Line(), io=io)

    await d.start("What is it?")

    (row,) = d.disk.rows()
    assert row["role"] == "user"
    assert row["parts"][0]["text"] == "What is it?"


@pytest.mark.spec("BT1")
async def test_the_user_row_is_on_disk_when_the_provider_is_asked(desk: MakeDesk) -> None:
    seen: list[list[str]] = []

    def looks(call: Call) -> Parts:
        seen.append(d.disk.roles())
        return WHOLE(call)

    d = desk(looks)

    await d.start()

    assert seen == [["user"]]


@pytest.mark.spec("BT1", "E17")
async def test_a_start_that_the_provider_refuses_leaves_its_user_row(desk: MakeDesk) -> None:
    d = desk(refuses(ValueError("no key")))

    with pytest.raises(SendError):
        await d.start()

    assert d.disk.roles() == ["user"]


@pytest.mark.spec("BT1")
async def test_a_repeated_client_message_id_gets_the_first_answer(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    first = await d.start(client_message_id="c1")
    await d.done(first)

    again = await d.start(client_message_id="c1")

    assert again.message_id == first.message_id
    assert (await d.done(again)).status == "completed"
    assert len(d.provider.calls) == 1
    assert d.disk.roles() == ["user", "assistant"]


@pytest.mark.spec("BT1")
async def test_a_repeated_client_message_id_does_not_disturb_the_live_stream(
    desk: MakeDesk,
) -> None:
    d = desk(Line())
    first = await d.start(client_message_id="c1")

    again = await d.start(client_message_id="c1")

    assert again.message_id == first.message_id
    assert d.engine.is_streaming(WORKSPACE)


@pytest.mark.spec("BT1")
async def test_two_starts_with_one_client_message_id_at_once_are_one_stream(
    desk: MakeDesk,
) -> None:
    d = desk(Line())
    gate = d.history.hold("append_user")
    one = d.rt.run_fork(d.starting(client_message_id="c1"))
    two = d.rt.run_fork(d.starting(client_message_id="c1"))
    await d.idle()
    gate.go.set()

    handles = [await one, await two]

    assert handles[0].message_id == handles[1].message_id
    assert len(d.provider.calls) == 1


@pytest.mark.spec("BT1")
async def test_an_answer_of_an_earlier_process_is_the_first_answer(desk: MakeDesk) -> None:
    earlier = desk(WHOLE)
    first = await earlier.start(client_message_id="c1")
    await earlier.done(first)
    d = desk(WHOLE)

    again = await d.start(client_message_id="c1")

    assert again.message_id == first.message_id
    assert (await d.done(again)).status == "completed"
    assert d.provider.calls == []


@pytest.mark.spec("BT1")
async def test_an_answer_that_a_crash_cut_off_is_the_first_answer_too(desk: MakeDesk) -> None:
    """Without a recovery before: the partial on disk is the answer to that very message."""
    line = Line()
    crashed = desk(line)
    first = await crashed.start(client_message_id="c1")
    line.give(text("Half an ans"))
    await crashed.idle()
    d = desk(WHOLE)

    again = await d.start(client_message_id="c1")

    assert again.message_id == first.message_id
    assert (await d.done(again)).status == "aborted"
    assert d.provider.calls == []
    assert d.disk.answers() == ["Half an ans"]


async def test_a_failed_start_can_be_repeated_under_its_client_message_id(desk: MakeDesk) -> None:
    d = desk(refuses(ValueError("no key")), WHOLE)
    with pytest.raises(SendError):
        await d.start(client_message_id="c1")

    handle = await d.start(client_message_id="c1")

    assert (await d.done(handle)).status == "completed"
    assert d.disk.roles() == ["user", "assistant"]


# ---- nothing began


def refuses(error: BaseException) -> Answer:
    def answer(_call: Call) -> Parts:
        raise error

    return answer


@pytest.mark.spec("E17")
async def test_a_provider_that_raises_at_creation_is_a_send_error_and_nothing_else(
    desk: MakeDesk,
) -> None:
    """Its signal is told, since it may have begun something."""
    caller = AbortController()
    d = desk(refuses(ValueError("no key")), WHOLE)

    with pytest.raises(SendError, match="no key"):
        await d.start(signal=caller.signal)

    assert d.tape.events == []
    assert d.is_idle
    assert d.provider.calls[0].signal.aborted
    caller.abort()
    assert (await d.done(await d.start())).status == "completed"


@pytest.mark.spec("BT1")
async def test_a_repeat_gets_the_first_answer_also_once_that_is_archived(desk: MakeDesk) -> None:
    """In a process that knows nothing of the first."""
    d = desk(WHOLE)
    first = await d.start(client_message_id="c1")
    await d.done(first)
    await d.whole("More")
    last = (await d.rt.run(d.history.read(WORKSPACE)))[-1]
    seal = last.metadata.model_copy(update={"compaction_boundary": True})
    await d.rt.run(d.history.update(WORKSPACE, last.model_copy(update={"metadata": seal})))
    assert await d.rt.run(d.history.archive(WORKSPACE)) == 3
    later = desk(WHOLE)

    again = await later.start(client_message_id="c1")

    assert again.message_id == first.message_id
    assert (await later.done(again)).status == "completed"
    assert later.provider.calls == []
    assert later.disk.roles() == ["assistant"]


class Hostile(Exception):
    """One that can't be printed."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.spec("E17")
@pytest.mark.parametrize("error", [Hostile(), asyncio.CancelledError()], ids=repr)
async def test_whatever_a_provider_raises_at_creation_is_a_send_error(
    desk: MakeDesk, error: BaseException
) -> None:
    def refuse(_call: Call) -> Parts:
        raise error

    d = desk(refuse, WHOLE)

    with pytest.raises(SendError, match=type(error).__name__):
        await d.start()

    assert d.tape.events == []
    assert d.is_idle
    assert (await d.whole("again")).status == "completed"


@pytest.mark.spec("E17")
async def test_a_refusal_keeps_its_kind(desk: MakeDesk) -> None:
    d = desk(refuses(SendError("api_key_not_found", "no key for this model")))

    with pytest.raises(SendError) as refused:
        await d.start()

    assert refused.value.kind == "api_key_not_found"


@pytest.mark.parametrize("blank", ["", " \n\t"])
async def test_a_message_without_text_is_refused_and_stored_nowhere(
    desk: MakeDesk, blank: str
) -> None:
    d = desk(WHOLE)

    with pytest.raises(SendError) as refused:
        await d.start(blank)

    assert refused.value.kind == "empty_message"
    assert d.history.calls == []


async def test_a_workspace_id_that_is_none_is_refused(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    with pytest.raises(SendError) as refused:
        await d.start(workspace_id="../other")

    assert refused.value.kind == "invalid_id"


@pytest.mark.spec("E1")
@pytest.mark.parametrize("method", ["read", "commit_partial", "append_user", "reserve"])
async def test_a_history_that_fails_during_a_start_is_a_send_error(
    desk: MakeDesk, method: Method
) -> None:
    """What was never registered emits nothing, and the workspace isn't lost."""
    d = desk(WHOLE)
    d.history.fail(method)

    with pytest.raises(SendError) as refused:
        await d.start()
    d.history.mend()

    assert refused.value.kind == "history"
    assert d.tape.events == []
    assert d.is_idle
    assert (await d.done(await d.start())).status == "completed"


async def test_a_failing_release_does_not_hide_why_a_start_failed(desk: MakeDesk) -> None:
    d = desk(refuses(SendError("api_key_not_found", "no key")))
    d.history.fail("release")

    with pytest.raises(SendError) as refused:
        await d.start()

    assert refused.value.kind == "api_key_not_found"


async def test_a_partial_without_a_place_does_not_close_the_workspace(desk: MakeDesk) -> None:
    """It is kept, beside, when the next answer needs its name (P10)."""
    d = desk(WHOLE)
    await d.done(await d.start())
    odd = '{"id": "a_odd", "role": "assistant", "parts": [{"type": "text", "text": "odd"}]}'
    (d.disk.directory() / "partial.json").write_text(odd)

    handle = await d.start()

    assert (await d.done(handle)).status == "completed"
    kept = [p for p in d.disk.directory().iterdir() if "odd" in p.read_text()]
    assert len(kept) == 1


# ---- a signal and a stop before the registration


@pytest.mark.spec("E16")
async def test_a_signal_that_was_aborted_before_creates_nothing(desk: MakeDesk) -> None:
    caller = AbortController()
    caller.abort()
    d = desk(WHOLE)

    handle = await d.start(signal=caller.signal)

    completion = await d.done(handle)
    assert (completion.status, completion.abort_reason) == ("aborted", "startup")
    assert d.provider.calls == []
    assert d.tape.events == []
    assert d.is_idle


@pytest.mark.spec("E16")
@pytest.mark.parametrize("method", ["read", "commit_partial", "append_user", "reserve"])
async def test_a_signal_that_is_aborted_during_a_start_creates_nothing(
    desk: MakeDesk, method: Method
) -> None:
    caller = AbortController()
    d = desk(WHOLE)
    gate = d.history.hold(method)
    starting = d.rt.run_fork(d.starting(signal=caller.signal))
    await d.idle()
    assert gate.begun.is_set()

    caller.abort()
    gate.go.set()

    completion = await d.done(await starting)
    assert (completion.status, completion.abort_reason) == ("aborted", "startup")
    assert d.provider.calls == []
    assert d.tape.events == []


@pytest.mark.spec("E16", "E1")
async def test_a_provider_that_aborts_its_own_start_registers_nothing(desk: MakeDesk) -> None:
    """The abort comes after the last look at the signal and before the registration."""
    caller = AbortController()
    line = Line()

    def aborts(call: Call) -> Parts:
        caller.abort()
        return line(call)

    d = desk(aborts, WHOLE)

    handle = await d.start(signal=caller.signal)

    completion = await d.done(handle)
    assert (completion.status, completion.abort_reason) == ("aborted", "startup")
    assert d.tape.events == []
    assert d.is_idle
    assert (await d.done(await d.start())).status == "completed"


@pytest.mark.spec("E16", "BT7")
async def test_a_stop_of_a_pending_start_gives_its_reason_and_emits_nothing(
    desk: MakeDesk,
) -> None:
    """A stop while a message was still "starting" must bind that message (report R02)."""
    d = desk(WHOLE)
    gate = d.history.hold("reserve")
    starting = d.rt.run_fork(d.starting())
    await d.idle()

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    assert stopping.poll() is None, "a stop waits for the start to give up"
    gate.go.set()
    await stopping

    completion = await d.done(await starting)
    assert (completion.status, completion.abort_reason) == ("aborted", "user")
    assert d.provider.calls == []
    assert d.tape.events == []


@pytest.mark.spec("BT7")
async def test_a_stop_does_not_bind_a_start_that_came_after_it(desk: MakeDesk) -> None:
    """It waits for the start that it stopped, and meanwhile the next one takes the workspace."""
    d = desk(Line())
    gate = d.history.hold("reserve")
    stopped = d.rt.run_fork(d.starting("first"))
    await d.idle()
    stopping = d.rt.run_fork(d.stopping("user"))
    later = d.rt.run_fork(d.starting("second"))
    await d.idle()

    gate.go.set()
    await stopping

    assert (await d.done(await stopped)).status == "aborted"
    assert not await d.is_settled(await later)
    assert d.engine.is_streaming(WORKSPACE)


@pytest.mark.spec("BT7", "E5")
async def test_a_stop_comes_before_the_replacement_that_was_still_starting(desk: MakeDesk) -> None:
    """The live stream ends for the reason of the stop, not for that of the start."""
    d = desk(Line())
    live = await d.start("first")
    hold = d.history.hold("read")
    replacing = d.rt.run_fork(d.starting("second", client_message_id="c2"))
    await d.idle()
    assert hold.begun.is_set()

    stopping = d.rt.run_fork(d.stopping("user"))
    await d.idle()
    hold.go.set()
    await stopping

    assert (await d.done(live)).abort_reason == "user"
    assert (await d.done(await replacing)).abort_reason == "user"


# ---- the caller goes away


@pytest.mark.spec("E1", "BT1")
@pytest.mark.parametrize("method", ["read", "commit_partial", "append_user", "reserve"])
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_caller_that_is_cancelled_mid_start_leaves_nothing_behind(
    desk: MakeDesk, method: Method, io: IoMode
) -> None:
    """As an HTTP server does it to the task of a request whose client has gone."""
    d = desk(WHOLE, io=io)
    gate = d.history.hold(method)

    async def request() -> None:
        await d.start(client_message_id="c1")

    task = asyncio.create_task(request())
    await d.idle()
    assert gate.begun.is_set()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert d.tape.events == []
    assert d.is_idle
    handle = await d.start(client_message_id="c1")
    assert (await d.done(handle)).status == "completed"
    assert d.disk.roles() == ["user", "assistant"]


async def test_a_caller_that_is_cancelled_while_it_waits_its_turn_keeps_nobody_waiting(
    desk: MakeDesk,
) -> None:
    d = desk(WHOLE)
    gate = d.history.hold("append_user")
    first = d.rt.run_fork(d.starting("first"))
    second = d.rt.run_fork(d.starting("second"))
    third = d.rt.run_fork(d.starting("third"))
    await d.idle()

    await d.rt.run(second.interrupt())
    gate.go.set()

    assert (await d.done(await third)).status == "completed"
    assert (await d.done(await first)).status in ("completed", "aborted")
    assert [row["parts"][0]["text"] for row in d.disk.rows() if row["role"] == "user"] == [
        "first",
        "third",
    ]


async def test_a_caller_that_leaves_after_the_registration_leaves_the_stream_alone(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = desk(line)
    caller = d.rt.run_fork(d.starting().flat_map(lambda handle: handle.completion))
    await d.idle()

    await d.rt.run(caller.interrupt())
    line.give(text("still here"), FINISH)
    line.end()
    await d.idle()

    assert d.tape.types == ["stream-start", "stream-delta", "stream-end"]


# ---- replacements


@pytest.mark.spec("E14")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_start_waits_until_the_live_stream_is_cleaned_up(
    desk: MakeDesk, io: IoMode
) -> None:
    """Its text is a row before the next message is one."""
    line = Line()
    d = desk(line, WHOLE, io=io)
    first = await d.start("first")
    line.give(text("half"))
    await d.idle()

    second = await d.start("second")

    completion = await d.done(first)
    assert (completion.status, completion.abort_reason) == ("aborted", "system")
    assert (await d.done(second)).status == "completed"
    assert d.disk.roles() == ["user", "assistant", "user", "assistant"]
    assert d.tape.of(first.message_id)[-1] == "stream-abort"
    order = [event.message_id for event in d.tape.events]
    assert order == sorted(order, key=[first.message_id, second.message_id].index)


@pytest.mark.spec("E14")
async def test_three_rapid_starts_take_their_turns(desk: MakeDesk) -> None:
    d = desk(Line())

    starts = [d.rt.run_fork(d.starting(name)) for name in ("a", "b", "c")]
    handles = [await start for start in starts]
    await d.idle()

    ids = [handle.message_id for handle in handles]
    order = [ids.index(event.message_id) for event in d.tape.events]
    assert order == sorted(order)
    assert d.tape.of(ids[0])[-1] == "stream-abort"
    assert d.tape.of(ids[1])[-1] == "stream-abort"
    assert d.tape.of(ids[2]) == ["stream-start"]
    texts = [row["parts"][0]["text"] for row in d.disk.rows()]
    assert texts == ["a", "b", "c"]


@pytest.mark.spec("E15", "BT5")
async def test_the_late_end_of_an_old_provider_leaves_its_replacement_registered(
    desk: MakeDesk,
) -> None:
    wedged = Wedged(text("old"))
    d = desk(wedged, Line())
    await d.start("first")
    await d.idle()
    replacing = d.rt.run_fork(d.starting("second"))
    await d.pass_time(GRACE_SECONDS)
    second = await replacing

    wedged.let_go.set()
    await d.idle()

    assert d.engine.is_streaming(WORKSPACE)
    assert d.engine.describe()["streams"] == [f"{WORKSPACE}/{second.message_id}"]
    assert d.tape.said == "old"


@pytest.mark.spec("E15", "E14")
async def test_a_start_from_an_observer_of_the_end_waits_for_that_end(desk: MakeDesk) -> None:
    """The old stream is still registered when its stream-end is told."""
    d = desk(WHOLE)
    following: list[fb.Fiber[Any, Any]] = []

    def follow(event: object) -> None:
        if getattr(event, "type", "") == "stream-end" and not following:
            following.append(fb.run_fork(d.starting("next")))

    d.tape.on_event = follow
    first = await d.start("first")
    await d.idle()

    assert (await d.done(first)).status == "completed"
    await following[0]
    assert d.tape.types == [
        *("stream-start", "stream-delta", "stream-delta", "stream-end"),
        *("stream-start", "stream-delta", "stream-delta", "stream-end"),
    ]
    assert d.disk.roles() == ["user", "assistant", "user", "assistant"]


# ---- what the provider gets


@pytest.mark.spec("VF11")
async def test_the_provider_gets_the_stream_s_own_signal_and_no_other(desk: MakeDesk) -> None:
    """The close of the app scope reaches it through that one too."""
    scope = AppScope()
    caller = AbortController()
    d = desk(Line(), scope=scope)
    await d.start(signal=caller.signal)
    await d.idle()
    (call,) = d.provider.calls
    assert call.signal is not caller.signal
    reasons: list[object] = []
    call.signal.add_listener(reasons.append)
    assert reasons == []

    await scope.close()

    assert reasons == ["system"]


async def test_the_provider_sees_the_conversation_before_the_message(desk: MakeDesk) -> None:
    d = desk(WHOLE)
    await d.done(await d.start("first"))

    await d.done(await d.start("second"))

    request = d.provider.calls[1].request
    assert request.text == "second"
    assert [row.role for row in request.history] == ["user", "assistant"]


@pytest.mark.spec("BT10")
async def test_what_the_caller_correlates_by_stands_on_both_rows(desk: MakeDesk) -> None:
    d = desk(WHOLE)

    await d.done(await d.start(correlation={"ticket": 7}))

    assert [row["metadata"]["correlation"] for row in d.disk.rows()] == [{"ticket": 7}] * 2
    assert d.provider.calls[0].request.correlation == {"ticket": 7}


# ---- blank answers of an interrupted message (report R01)


async def test_an_interrupted_answer_that_says_nothing_is_never_shown_to_a_provider(
    desk: MakeDesk,
) -> None:
    line = Line()
    d = desk(line, WHOLE)
    await d.start("first")
    line.give(text("\n\n"))
    await d.idle()
    await d.stop("user")
    assert d.disk.partial() is None

    await d.done(await d.start("second"))

    assert [row.role for row in d.provider.calls[1].request.history] == ["user"]


@pytest.mark.parametrize(
    ("given", "told"), [("user", "user"), ("system", "system"), (RuntimeError("gone"), "startup")]
)
async def test_a_caller_s_signal_may_say_which_of_the_three_reasons_it_has(
    desk: MakeDesk, given: object, told: str
) -> None:
    """BT7: the reason is given by the caller; what is none of the three counts as "startup"."""
    d = desk()
    controller = AbortController()
    controller.abort(given)
    handle = await d.start(signal=controller.signal)
    completion = await handle.completion

    assert completion.abort_reason == told
