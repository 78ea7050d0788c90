"""The permission card: one question at a time, answered once, by its own id."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

import fibers as fb
from streamengine.history.directory import DurableDirectory, OpenDirectory
from turns.holds.permission import PermissionDesk, PermissionNews
from turns.workspace import Workspace, Workspaces

from .kit import Bench


def card_id(desk: PermissionDesk) -> str:
    """The id of the question that is up."""
    assert desk.card is not None
    return desk.card.request_id


@pytest.mark.parametrize(("allow", "verdict"), [(True, "allowed"), (False, "denied")])
@pytest.mark.spec("O12")
async def test_an_answer_to_the_live_question_counts_once(
    bench: Bench, allow: bool, verdict: str
) -> None:
    desk = bench.workspace.permissions
    asking = bench.rt.run_fork(bench.open().permission.ask("May I?", subject="x"))
    await bench.idle()
    live = card_id(desk)

    answers = [
        await bench.run(desk.answer(request_id, allow=allow))
        for request_id in ("", "p_0", live, live)
    ]
    await bench.idle()

    assert answers == [False, False, True, False]
    assert asking.poll() == fb.Success(verdict)


@pytest.mark.spec("O12")
async def test_an_answer_to_a_superseded_question_counts_for_nothing(bench: Bench) -> None:
    desk = bench.workspace.permissions
    turn = bench.open()
    old = turn.permission.show("p1", "May I?", subject="x")
    new = turn.permission.show("p2", "May I?", subject="x")

    answered = await bench.run(desk.answer("p1", allow=True, remember=True))

    assert not answered
    assert await bench.run(old.await_()) == "dropped"
    assert not new.is_done_unsafe()
    assert not (bench.state / "permissions.json").exists()


async def test_two_tools_of_a_turn_are_asked_for_one_after_the_other(bench: Bench) -> None:
    desk = bench.workspace.permissions
    turn = bench.open()
    first = bench.rt.run_fork(turn.permission.ask("First?", subject="x"))
    second = bench.rt.run_fork(turn.permission.ask("Second?", subject="x"))
    await bench.idle()
    questions: list[str] = []
    for allow in (True, False):
        assert desk.card is not None
        questions.append(desk.card.question)
        await bench.run(desk.answer(card_id(desk), allow=allow))
        await bench.idle()

    assert questions == ["First?", "Second?"]
    assert (first.poll(), second.poll()) == (fb.Success("allowed"), fb.Success("denied"))


async def test_the_card_of_a_tool_that_was_interrupted_goes(bench: Bench) -> None:
    turn = bench.open()
    asking = bench.rt.run_fork(turn.permission.ask("May I?", subject="x"))
    await bench.idle()

    await bench.run(asking.interrupt())

    assert bench.workspace.permissions.card is None
    assert not turn.permission.is_open


@pytest.mark.spec("O13")
async def test_the_end_of_a_turn_leaves_the_card_of_another(bench: Bench) -> None:
    first, second = bench.open("t1"), bench.open("t2")
    first.permission.show("p1", "May I?", subject="x")
    second.permission.show("p2", "May I?", subject="x")

    await bench.close(first, "errored")

    assert card_id(bench.workspace.permissions) == "p2"


# ---- who looks on


def heard_at(bench: Bench) -> tuple[list[tuple[str, str | None]], Callable[[], None]]:
    """What the desk tells from now on, as (request id, verdict), and what ends that."""
    heard: list[tuple[str, str | None]] = []
    desk = bench.workspace.permissions

    def hear(news: PermissionNews) -> None:
        heard.append((news.card.request_id, news.verdict))
        # What can be answered is what was told last.
        assert (desk.card == news.card) is (news.verdict is None)

    return heard, desk.subscribe(hear)


@pytest.mark.parametrize(("allow", "verdict"), [(True, "allowed"), (False, "denied")])
async def test_who_looks_on_hears_of_each_question_and_of_its_answer_once(
    bench: Bench, allow: bool, verdict: str
) -> None:
    heard, stop = heard_at(bench)
    desk = bench.workspace.permissions
    bench.open().permission.show("p1", "May I?", subject="x")

    for request_id in ("p0", "p1", "p1"):
        await bench.run(desk.answer(request_id, allow=allow))
    stop()
    bench.open("t2").permission.show("p2", "May I?", subject="x")

    assert heard == [("p1", None), ("p1", verdict)]


@pytest.mark.spec("O13")
async def test_who_looks_on_hears_of_a_question_that_goes_without_an_answer(bench: Bench) -> None:
    heard, _ = heard_at(bench)
    turn = bench.open()
    asking = bench.rt.run_fork(turn.permission.ask("May I?", subject="x"))
    await bench.idle()
    await bench.run(asking.interrupt())
    turn.permission.show("p1", "May I?", subject="x")
    turn.permission.show("p2", "May I?", subject="x")
    await bench.close(turn, "errored")

    first = heard[0][0]
    assert heard == [
        (first, None),
        (first, "dropped"),
        ("p1", None),
        ("p1", "dropped"),
        ("p2", None),
        ("p2", "dropped"),
    ]


def test_each_workspace_is_told_once_whether_it_was_made_before_or_after(tmp_path: Path) -> None:
    workspaces = Workspaces(
        lambda name: Workspace(name, folder=tmp_path / name, state=tmp_path / "state" / name)
    )
    workspaces.get("w1")
    heard: list[str] = []

    stop = workspaces.observe(lambda workspace: heard.append(workspace.workspace_id))
    for workspace_id in ("w1", "w2", "w2"):
        workspaces.get(workspace_id)
    stop()
    workspaces.get("w3")

    assert heard == ["w1", "w2"]


# ---- what is remembered


async def test_what_a_person_wished_to_be_remembered_is_asked_no_more(bench: Bench) -> None:
    desk = bench.workspace.permissions
    turn = bench.open()
    turn.permission.show("p1", "May I?", subject="shell")
    await bench.run(desk.answer("p1", allow=True, remember=True))

    reloaded = Bench(bench.rt, bench.clock, bench.directory)
    verdict = await bench.run(reloaded.open().permission.ask("Again?", subject="shell"))

    assert verdict == "allowed"
    assert await bench.run(reloaded.workspace.permissions.remembered("other")) is None


async def test_what_is_remembered_is_on_disk_before_the_tool_goes_on(bench: Bench) -> None:
    desk = bench.workspace.permissions
    verdict = bench.open().permission.show("p1", "May I?", subject="shell")
    seen: list[bool] = []
    waiting = verdict.await_().map(
        lambda _: seen.append((bench.state / "permissions.json").exists())
    )
    bench.rt.run_fork(waiting)

    await bench.run(desk.answer("p1", allow=True, remember=True))
    await bench.idle()

    assert seen == [True]


async def test_an_answer_that_is_interrupted_while_it_is_kept_counts_all_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk = bench.workspace.permissions
    verdict = bench.open().permission.show("p1", "May I?", subject="shell")
    begun, go = threading.Event(), threading.Event()
    write = DurableDirectory.made

    def slow(self: DurableDirectory) -> AbstractContextManager[OpenDirectory]:
        begun.set()
        go.wait(10)
        return write(self)

    monkeypatch.setattr(DurableDirectory, "made", slow)
    answering = bench.rt.run_fork(desk.answer("p1", allow=True, remember=True))
    await asyncio.to_thread(begun.wait, 10)
    answering.interrupt_unsafe(reason="test")
    go.set()
    await bench.run(answering.exit())

    assert await bench.run(verdict.await_()) == "allowed"


@pytest.mark.parametrize("fault", ["no json", "a link"])
async def test_rules_that_can_not_be_read_are_named_and_everything_is_asked(
    bench: Bench, fault: str
) -> None:
    bench.state.mkdir()
    path = bench.state / "permissions.json"
    if fault == "a link":
        path.symlink_to("/etc/passwd")
    else:
        path.write_text("{")

    with capture_logs() as logs:
        known = await bench.run(bench.workspace.permissions.remembered("shell"))

    assert known is None
    assert [log["path"] for log in logs] == [str(path)]


async def test_rules_that_can_not_be_read_are_not_written_over(bench: Bench) -> None:
    bench.state.mkdir()
    path = bench.state / "permissions.json"
    path.write_text('{"rules": {"shell": false, ')
    desk = bench.workspace.permissions
    turn = bench.open()

    with capture_logs() as logs:
        turn.permission.show("p1", "May I?", subject="shell")
        answered = await bench.run(desk.answer("p1", allow=True, remember=True))
    torn = path.read_text()
    path.write_text('{"rules": {"shell": false}, "since": "a newer version"}')
    mended = await bench.run(desk.remembered("shell"))
    turn.permission.show("p2", "May I?", subject="files")
    await bench.run(desk.answer("p2", allow=True, remember=True))

    assert answered
    assert torn == '{"rules": {"shell": false, '
    assert "a permission could not be remembered" in [log["event"] for log in logs]
    assert mended is False
    assert json.loads(path.read_text()) == {
        "rules": {"shell": False, "files": True},
        "since": "a newer version",
    }


async def test_an_answer_that_can_not_be_remembered_counts_all_the_same(bench: Bench) -> None:
    bench.state.write_text("not a directory")
    verdict = bench.open().permission.show("p1", "May I?", subject="shell")

    with capture_logs() as logs:
        answered = await bench.run(
            bench.workspace.permissions.answer("p1", allow=True, remember=True)
        )

    assert answered
    assert await bench.run(verdict.await_()) == "allowed"
    assert "a permission could not be remembered" in [log["event"] for log in logs]
