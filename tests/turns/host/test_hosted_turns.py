"""Turns in a root of the host: their agent, its tools, their places on disk, their restarts."""

from __future__ import annotations

import asyncio
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

import fibers as fb
from fibers.app import OUTER_BUDGET_SECONDS
from streamengine import Event, HistoryError
from streamengine.history.directory import DurableDirectory
from streamengine.model import ToolCall, ToolPart
from streamengine.redact import Secret
from turns import FileTurnStore, TurnError, TurnHandle, TurnRecord
from turns.files.watcher import FileChange
from turns.host.config import Limits
from turns.host.errors import HostError
from turns.host.root import open_root
from turns.host.state import prepare
from turns.loop import recovery
from turns.process.child import Child
from turns.process.records import ProcessRecords

from .kit import Answer, Site, TalkativeProvider, a_site, kept, until

pytestmark = pytest.mark.lifecycle


def calls(tool: str, **given: Any) -> ToolCall:
    return ToolCall(tool_call_id=f"c-{tool}", tool_name=tool, input=given)


async def create(site: Site, prompt: str = "Go", workspace: str = "w1") -> TurnHandle:
    return await site.turns.manager.create_turn(owner="w1", workspace_id=workspace, prompt=prompt)


async def settled(site: Site, handle: TurnHandle) -> TurnRecord:
    """Its record once it has settled, however that is."""
    await site.turns.manager.wait(handle.handle_id, timeout=OUTER_BUDGET_SECONDS).exit()
    return await site.turns.manager.get(handle.handle_id)


async def on_disk(state: Path, handle: TurnHandle) -> TurnRecord:
    loaded = await FileTurnStore(state).load()
    (record,) = [r for r in loaded.records if r.handle_id == handle.handle_id]
    return record


async def end(answer: Answer, text: str = "Done.") -> None:
    answer.say(text).finish()


async def test_a_turn_has_an_agent_with_the_tools_and_the_model_of_the_server(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site:
        handle = await create(site)
        answer = await site.provider.next_answer()
        await end(answer)
        record = await settled(site, handle)

        assert [spec.name for spec in answer.request.tools] == ["files", "shell", "subturn"]
        assert answer.request.model is None
        assert (record.status, record.final_message) == ("completed", "Done.")
        assert "occupant turns" in fb.dump()
        assert await on_disk(tmp_path, handle) == record


async def test_a_message_gets_no_tool_of_the_turns(tmp_path: Path) -> None:
    """They work in a turn only."""
    async with a_site(tmp_path) as site, site.client() as client:
        await client.post("/api/workspaces/w1/messages", json={"text": "Hi"})
        answer = await site.provider.next_answer()

        assert answer.request.tools == ()


async def test_the_files_of_a_turn_are_in_a_folder_that_holds_nothing_else(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        handle = await create(site)
        first = await site.provider.next_answer()
        first.say(calls("files", action="write", path="a.txt", text="new")).finish()
        second = await site.provider.next_answer()
        second.say(calls("files", action="read", path="../chat.jsonl")).finish()
        await end(await site.provider.next_answer())
        await settled(site, handle)
        row = (await site.root.history.read("w1"))[1]
        outputs = [part.output for part in row.parts if isinstance(part, ToolPart)]

    home = tmp_path / "workspaces" / "w1"
    assert [path.name for path in (home / "files").iterdir()] == ["a.txt"]
    assert (home / "files").stat().st_mode & 0o077 == 0
    assert list((home / "turns" / "undo").iterdir()) != []
    assert outputs[0] == {"done": "a.txt"}
    assert "outside" in str(outputs[1])


async def test_a_folder_that_cannot_be_made_ends_the_turn_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "workspaces" / "w1").mkdir(parents=True, mode=0o700)
    (tmp_path / "workspaces" / "w1" / "files").symlink_to(tmp_path)
    with structlog.testing.capture_logs():
        async with a_site(tmp_path) as site:
            record = await settled(site, await create(site))

    assert (record.status, record.cause) == ("error", "creation-admission-failure")
    assert str(tmp_path / "workspaces" / "w1" / "files") in (record.error or "")


async def test_a_persons_change_of_a_file_is_told_by_the_watcher_of_the_folder(
    tmp_path: Path,
) -> None:
    async with a_site(tmp_path) as site:
        changes: list[FileChange] = []
        handle = await create(site)
        await end(await site.provider.next_answer())
        await settled(site, handle)
        watcher = site.turns.open_turns.workspaces.get("w1").watcher
        watcher.subscribe(changes.append)
        await watcher.refresh()
        (watcher.folder / "b.txt").write_text("mine")
        await until(lambda: changes)
        shown = fb.dump()

    assert [(c.path, c.by) for c in changes] == [("b.txt", "person")]
    assert "watcher of w1" in shown
    assert "watcher of w1" not in fb.dump()


# ---- trying again


async def test_what_fails_in_a_turn_is_tried_again_by_the_turn_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "_BACKOFF_SECONDS", 0.01)
    told: list[Event] = []
    async with a_site(tmp_path, auto_retry=True) as site:
        site.root.engine.events.subscribe(told.append)
        handle = await create(site)
        for _ in range(3):
            (await site.provider.next_answer()).fail(ConnectionError("reset"))
        record = await settled(site, handle)

        assert (record.status, record.cause) == ("error", "terminal-stream-error")
        assert site.root.retries is not None
        assert not site.root.retries.state("w1").pending
        assert [event.type for event in told if event.type.startswith("auto-retry")] == []


@pytest.mark.spec("I10")
@pytest.mark.parametrize("fails", ["in its answer", "before its answer"])
async def test_a_turn_that_has_given_up_is_not_taken_up_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    """Its owner was told that it failed, and its agent would not be there."""
    monkeypatch.setattr(recovery, "_BACKOFF_SECONDS", 0.01)
    async with a_site(tmp_path, auto_retry=True) as site:
        if fails == "before its answer":
            site.provider.refusal = ConnectionError("reset")
        handle = await create(site)
        for _ in range(0 if site.provider.refusal else 3):
            (await site.provider.next_answer()).say("half").fail(ConnectionError("reset"))
        before = await settled(site, handle)

    async with a_site(tmp_path, auto_retry=True) as site:
        assert site.root.retries is not None
        assert not site.root.retries.state("w1").pending
        assert await site.turns.manager.get(handle.handle_id) == before
    assert before.status == "error"


async def test_what_fails_outside_of_a_turn_is_still_tried_again(tmp_path: Path) -> None:
    async with a_site(tmp_path, auto_retry=True) as site, site.client() as client:
        await client.post("/api/workspaces/w1/messages", json={"text": "Hi"})
        (await site.provider.next_answer()).fail(ConnectionError("reset"))

        assert (await site.provider.next_answer()).request.text == "Hi"


# ---- restarts


@pytest.mark.spec("T14", "T16")
async def test_a_turn_whose_answer_is_taken_up_after_a_restart_goes_on(tmp_path: Path) -> None:
    async with a_site(tmp_path, auto_retry=True) as site:
        handle = await create(site, "Tell me")
        (await site.provider.next_answer()).say("half")
        await kept(site)
    assert (await on_disk(tmp_path, handle)).status == "running"

    async with a_site(tmp_path, auto_retry=True) as site:
        again = await site.provider.next_answer()
        assert again.request.text == "Tell me"
        assert (await site.turns.manager.get(handle.handle_id)).status == "running"
        await end(again, "whole")
        record = await settled(site, handle)

    assert (record.status, record.cause) == ("completed", "correlated-stream-end")
    assert record.final_message == "whole"


async def taken_up(state: Path) -> TurnHandle:
    """A turn that said something, and whose server has ended since."""
    async with a_site(state, auto_retry=True) as site:
        handle = await create(site, "Tell me")
        (await site.provider.next_answer()).say("half")
        await kept(site)
    return handle


@pytest.mark.spec("T16")
async def test_a_turn_that_is_taken_up_after_a_restart_works_on_its_files(tmp_path: Path) -> None:
    """Its agent is gone: what needs that is missing, and its row says so."""
    handle = await taken_up(tmp_path)

    async with a_site(tmp_path, auto_retry=True) as site:
        again = await site.provider.next_answer()
        await until(lambda: len(site.turns.open_turns) == 1)
        again.say(calls("files", action="write", path="a.txt", text="new")).finish()
        await end(await site.provider.next_answer(), "whole")
        record = await settled(site, handle)
        row = (await site.root.history.read("w1"))[-1]

    assert [spec.name for spec in again.request.tools] == ["files", "shell"]
    assert (tmp_path / "workspaces" / "w1" / "files" / "a.txt").read_text() == "new"
    assert (record.status, record.final_message) == ("completed", "whole")
    assert row.metadata.missing_tools == ("subturn",)


@pytest.mark.spec("T16")
async def test_a_question_of_a_turn_that_was_taken_up_can_be_answered(tmp_path: Path) -> None:
    handle = await taken_up(tmp_path)

    async with a_site(tmp_path, auto_retry=True) as site:
        again = await site.provider.next_answer()
        await until(lambda: len(site.turns.open_turns) == 1)
        again.say(calls("shell", command="echo run")).finish()
        desk = site.turns.open_turns.workspaces.get("w1").permissions
        await until(lambda: desk.card)
        assert desk.card is not None
        answer = site.turns.manager.answer_permission
        assert not await answer(handle.handle_id, "another", True)
        assert await answer(handle.handle_id, desk.card.request_id, True)
        await end(await site.provider.next_answer(), "whole")
        record = await settled(site, handle)
        row = (await site.root.history.read("w1"))[-1]

    (call,) = [part for part in row.parts if isinstance(part, ToolPart)]
    assert (call.output["exitCode"], call.output["output"]) == (0, "run\n")
    assert record.status == "completed"


@pytest.mark.spec("T16")
async def test_a_turn_that_was_taken_up_where_no_turns_run_says_what_it_misses(
    tmp_path: Path,
) -> None:
    await taken_up(tmp_path)
    provider = TalkativeProvider()

    async with fb.Scope() as outer:
        root = await outer.provide(
            open_root(prepare(tmp_path), lambda: provider, Limits(), auto_retry=True)
        )
        again = await provider.next_answer()
        await end(again, "whole")
        await until(lambda: not root.engine.is_streaming("w1"))
        row = (await root.history.read("w1"))[-1]
        await root.shutdown([]).dispose()

    assert again.request.tools == ()
    assert row.metadata.missing_tools == ("files", "shell", "subturn")


async def test_only_a_row_of_a_turn_that_goes_on_is_resumed_with_its_tools(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site, site.client() as client:
        await client.post("/api/workspaces/w1/messages", json={"text": "Hi"})
        await end(await site.provider.next_answer())
        await until(lambda: not site.root.engine.is_streaming("w1"))
        handle = await create(site)
        answer = await site.provider.next_answer()
        message, _, row = await site.root.history.read("w1")
        running = site.turns.for_resumed(row)
        await end(answer)
        await settled(site, handle)

        assert site.turns.for_resumed(message) is None
        assert running is not None
        assert site.turns.for_resumed(row) is None


@pytest.mark.spec("T16")
async def test_a_turn_that_nothing_takes_up_after_a_restart_is_reconciled(tmp_path: Path) -> None:
    async with a_site(tmp_path) as site:
        running = await create(site)
        queued = await create(site, "And then")
        (await site.provider.next_answer()).say("half")
        await kept(site)

    async with a_site(tmp_path) as site:
        record = await settled(site, running)
        answer = await site.provider.next_answer()
        await end(answer)
        later = await settled(site, queued)

    assert (record.status, record.cause) == ("interrupted", "stale-restart")
    assert answer.request.text == "And then"
    assert later.status == "completed"


async def test_with_a_history_in_a_database_the_records_are_there_too(tmp_path: Path) -> None:
    state, database = tmp_path / "state", Secret(f"sqlite:///{tmp_path / 'history.db'}")
    handles: list[TurnHandle] = []
    for _ in range(2):
        async with fb.Scope() as outer:
            root = await outer.provide(
                open_root(
                    prepare(state), TalkativeProvider, Limits(), with_turns=True, database=database
                )
            )
            assert root.turns is not None
            manager = root.turns.manager
            if not handles:
                handles.append(await manager.create_turn(owner="w1", workspace_id="w1", prompt="a"))
            else:
                (record,) = await manager.list()
                assert record.handle_id == handles[0].handle_id
            await root.shutdown([]).dispose()

    assert list((state / "workspaces" / "w1").glob("task-handles")) == []


async def test_records_in_a_database_of_a_newer_version_keep_the_server_from_starting(
    tmp_path: Path,
) -> None:
    path = tmp_path / "history.db"
    state, database = prepare(tmp_path / "state"), Secret(f"sqlite:///{path}")
    opening = open_root(state, TalkativeProvider, Limits(), with_turns=True, database=database)
    async with fb.Scope() as outer:
        await (await outer.provide(opening)).shutdown([]).dispose()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE turn_schema SET version = 99")

    opening = open_root(state, TalkativeProvider, Limits(), with_turns=True, database=database)
    with structlog.testing.capture_logs():
        async with fb.Scope() as outer:
            with pytest.raises(HistoryError, match="its tables have version 99"):
                await outer.provide(opening)


async def test_commands_that_a_killed_server_left_running_are_ended_at_the_start(
    tmp_path: Path,
) -> None:
    child = await Child.start(["sleep", "300"], folder=tmp_path)
    assert child.identity is not None
    records = ProcessRecords(DurableDirectory(tmp_path / "processes"))
    await records.add(child.identity)
    try:
        async with a_site(tmp_path):
            await asyncio.wait_for(child.wait(), OUTER_BUDGET_SECONDS)
        assert await records.all() == []
    finally:
        await child.kill()
        child.close()


async def test_records_of_commands_that_cannot_be_read_keep_nobody_from_starting(
    tmp_path: Path,
) -> None:
    (tmp_path / "processes").write_text("in the way")
    with structlog.testing.capture_logs() as logs:
        async with a_site(tmp_path) as site:
            handle = await create(site)
            await end(await site.provider.next_answer())
            record = await settled(site, handle)

    (told,) = [log for log in logs if "killed server left" in log["event"]]
    assert str(tmp_path / "processes") in told["error"]
    assert record.status == "completed"


async def test_a_command_is_on_record_while_it_runs(tmp_path: Path) -> None:
    records = ProcessRecords(DurableDirectory(tmp_path / "processes"))
    async with a_site(tmp_path) as site:
        handle = await create(site)
        answer = await site.provider.next_answer()
        answer.say(calls("shell", command="touch begun; exec sleep 300")).finish()
        desk = site.turns.open_turns.workspaces.get("w1").permissions
        await until(lambda: desk.card)
        assert desk.card is not None
        assert desk.card.question == "Run: touch begun; exec sleep 300"
        await site.turns.manager.answer_permission(handle.handle_id, desk.card.request_id, True)
        await until((tmp_path / "workspaces" / "w1" / "files" / "begun").exists)
        await until(lambda: list((tmp_path / "processes").glob("*.json")))
        (process,) = await records.all()
        await site.turns.manager.interrupt(handle.handle_id, by="ada")
        await settled(site, handle)
        await until(lambda: len(site.turns.open_turns) == 0)

    assert process.pid > 0
    assert await records.all() == []


async def test_records_that_cannot_be_read_at_all_keep_the_server_from_starting(
    tmp_path: Path,
) -> None:
    """Without them nobody would know what had been asked for."""

    with structlog.testing.capture_logs():
        async with fb.Scope() as outer:
            opening = open_root(tmp_path, TalkativeProvider, Limits(), with_turns=True)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(FileTurnStore, "load", _no_list)
                with pytest.raises(HostError, match="the turns can't be read: no list Mend it"):
                    await outer.provide(opening)


def _no_list(_self: object) -> fb.Effect[Any, Any]:
    return fb.Effect.fail(TurnError("store", "no list", "Mend it."))


@pytest.mark.parametrize("how", ["unsupervised", "without turns"])
async def test_a_root_without_turns_begins_none(tmp_path: Path, how: str) -> None:
    """``chat`` is such a root: what is queued waits for a server."""
    async with fb.Scope() as outer:
        root = await outer.provide(
            open_root(
                tmp_path,
                TalkativeProvider,
                Limits(),
                supervised=how != "unsupervised",
                with_turns=how == "unsupervised",
            )
        )
        await root.shutdown([]).dispose()

    assert root.turns is None
