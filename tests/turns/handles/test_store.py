"""FileTurnStore: one file a turn, and what is no record of one."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

import fibers as fb
from streamengine.history import directory as directory_module
from streamengine.history.directory import Step
from turns import FileTurnStore, LoadedRecords, TurnError, TurnRecord
from turns.model.cause import ManualSupersession
from turns.model.record import now

from .conftest import MakeProcess

OWNER = "owner"

Spoil = Callable[[Path], object]
"""Makes a good file a bad one."""


def record(number: int = 1, **fields: Any) -> TurnRecord:
    created = now()
    plain = TurnRecord(
        handle_id=f"wst_{number}",
        owner_workspace_id=OWNER,
        workspace_id="w1",
        turn_id=f"turn_{number}",
        created_at=created,
        updated_at=created,
        prompt="Count them",
    )
    return plain.model_copy(update=fields)


def store_of(tmp_path: Path, **options: Any) -> FileTurnStore:
    kept: dict[str, Any] = {"io": "inline", "fsync": "off", **options}
    return FileTurnStore(tmp_path, **kept)


async def load(store: FileTurnStore) -> LoadedRecords:
    with capture_logs():
        return await store.load()


@pytest.mark.spec("T7")
@pytest.mark.parametrize("io", ["inline", "thread"])
async def test_a_record_is_read_as_it_was_written(tmp_path: Path, io: Any) -> None:
    store = store_of(tmp_path, io=io)
    first = record(1)
    settled = record(2).settled(ManualSupersession(message_id="u_9"), None)
    await store.write(settled)
    await store.write(first)

    loaded = await load(store)

    assert [r.handle_id for r in loaded.records] == ["wst_1", "wst_2"]
    assert loaded.records == (first, settled)
    assert loaded.records[1].settled_for == ManualSupersession(message_id="u_9")
    assert loaded.warnings == ()


async def test_a_file_is_private_and_whole_at_every_step(tmp_path: Path) -> None:
    path = tmp_path / "workspaces" / OWNER / "task-handles" / "wst_1.json"
    seen: list[Step] = []

    def look(step: Step) -> None:
        seen.append(step)
        if path.exists():
            assert json.loads(path.read_text())["handleId"] == "wst_1"
            assert path.stat().st_mode & 0o077 == 0

    store = store_of(tmp_path, fsync="terminal", on_step=look)
    await store.write(record())
    await store.write(record(prompt="again"))

    assert path == store.path_of(record())
    # Durable before it is told: the file, then its place.
    assert seen[-4:] == ["temp-written", "temp-synced", "replaced", "directory-synced"]


@pytest.mark.spec("T7")
async def test_an_older_record_without_a_cause_is_read(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    await store.write(record(status="interrupted"))

    [loaded] = (await load(store)).records

    assert (loaded.status, loaded.cause, loaded.evidence) == ("interrupted", None, None)
    assert loaded.settled_for is None


@pytest.mark.spec("T7")
async def test_a_cause_and_a_field_of_a_newer_version_survive(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    await store.write(record(status="error", cause="solar-flare", evidence={"size": 3}))
    path = store.path_of(record())
    path.write_text(json.dumps({**json.loads(path.read_text()), "shownAs": "card"}))

    [loaded] = (await load(store)).records
    assert (loaded.cause, loaded.settled_for) == ("solar-flare", None)
    await store.write(loaded.changed())

    stored = json.loads(path.read_text())
    assert (stored["shownAs"], stored["evidence"]) == ("card", {"size": 3})


def _write(text: str) -> Spoil:
    return lambda path: path.write_text(text)


def _changed(**fields: Any) -> Spoil:
    def change(path: Path) -> None:
        path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))

    return change


def _link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.with_name("wst_3.json"))


def _directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


BAD: dict[str, tuple[Spoil, str]] = {
    "empty": (_write(""), "not JSON"),
    "torn": (_write('{"kind": "workspace_tu'), "not JSON"),
    "deep": (_write("[" * 200_000), "not JSON"),
    "not text": (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not JSON"),
    "a list": (_write("[]"), "not the record of a turn"),
    "another kind": (_changed(kind="note"), "kind"),
    "an unknown status": (_changed(status="paused"), "status"),
    "a number for a name": (_changed(turnId=7), "turnId"),
    "text for a number": (_changed(ignoredEnds="3"), "ignoredEnds"),
    "no time": (_changed(createdAt="yesterday"), "createdAt"),
    "a time without a zone": (_changed(createdAt="2026-05-01T10:00:00"), "createdAt"),
    "newer": (_changed(version=2), "newer version"),
    "another handle": (_changed(handleId="wst_9"), "under its own name"),
    "another owner": (_changed(ownerWorkspaceId="else"), "of its owner"),
    "a link": (_link, "symbolic link"),
    "a directory": (_directory, "not the kind of file"),
    "a pipe": (_fifo, "not the kind of file"),
}


@pytest.mark.spec("T20")
@pytest.mark.parametrize("bad", BAD)
async def test_a_bad_file_is_named_and_hides_no_other(tmp_path: Path, bad: str) -> None:
    store = store_of(tmp_path)
    for number in (1, 2, 3):
        await store.write(record(number))
    spoil, problem = BAD[bad]
    path = store.path_of(record(2))
    spoil(path)

    with capture_logs() as logs:
        loaded = await store.load()

    assert [r.handle_id for r in loaded.records] == ["wst_1", "wst_3"]
    [warning] = loaded.warnings
    assert str(path) in warning
    assert problem in warning
    # What it is, and what to do.
    assert warning.removeprefix(str(path)).count(". ") >= 1
    assert [log["log_level"] for log in logs] == ["warning"]
    assert path.is_symlink() or path.exists()


@pytest.mark.spec("T20")
@pytest.mark.parametrize(
    "name", ["notes.txt", "wst_.json", "WST_1.json", "wst_1.json.bak", ".json"]
)
async def test_a_foreign_file_is_named_and_left(tmp_path: Path, name: str) -> None:
    store = store_of(tmp_path)
    await store.write(record())
    foreign = store.path_of(record()).with_name(name)
    foreign.write_text("mine")

    loaded = await load(store)

    assert len(loaded.records) == 1
    assert str(foreign) in loaded.warnings[0]
    assert foreign.read_text() == "mine"


@pytest.mark.spec("T20")
async def test_an_unreadable_directory_hides_no_other_owner(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    await store.write(record(1))
    await store.write(record(2, owner_workspace_id="other"))
    bad = tmp_path / "workspaces" / OWNER / "task-handles"
    bad.rename(bad.with_name("away"))
    bad.write_text("not a directory")

    loaded = await load(store)

    assert [r.handle_id for r in loaded.records] == ["wst_2"]
    assert str(bad) in loaded.warnings[0]


async def test_what_a_killed_process_left_half_written_is_swept(tmp_path: Path) -> None:
    store = store_of(tmp_path)
    await store.write(record())
    temp = store.path_of(record()).with_name("wst_1.json.tmp-0123456789abcdef")
    temp.write_text('{"kind"')

    loaded = await load(store)

    assert loaded.warnings == ()
    assert not temp.exists()


async def test_an_empty_state_directory_has_no_turns(tmp_path: Path) -> None:
    assert await load(store_of(tmp_path / "none")) == LoadedRecords(())
    assert not (tmp_path / "none").exists()


async def test_a_full_disk_is_said_and_leaves_the_old_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = store_of(tmp_path)
    await store.write(record())

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(directory_module, "_write_all", full)
    exit_ = await store.write(record(prompt="changed")).exit()

    assert isinstance(exit_, fb.Failure)
    error = exit_.failure().squash()
    assert isinstance(error, TurnError)
    assert error.kind == "store"
    assert "no room" in error.message
    assert error.way_out
    [loaded] = (await load(store)).records
    assert loaded.prompt == "Count them"


@pytest.mark.spec("T20")
async def test_a_bad_file_keeps_no_turn_from_running(process: MakeProcess, tmp_path: Path) -> None:
    first = await process()
    broken = await first.create()
    kept = await first.create("Later", "w2")
    await first.crash()
    store = store_of(tmp_path)
    store.path_of(first.store.written[0]).write_text("{")

    with capture_logs() as logs:
        after = await process()

    assert any(broken.handle_id in str(log.get("problem")) for log in logs)
    [record_] = await after.rt.run(after.turns.list())
    assert record_.handle_id == kept.handle_id


@pytest.mark.spec("T16", "T20")
async def test_half_a_character_in_a_text_does_not_lose_the_turn(tmp_path: Path) -> None:
    """A model may cut an emoji in two; a whole one stays whole."""
    store = store_of(tmp_path)
    await store.write(record(1, prompt="half \ud83d, whole \U0001f600", final_message="\ude00"))

    loaded = await load(store)

    assert loaded.warnings == ()
    (read,) = loaded.records
    assert (read.prompt, read.final_message) == ("half ?, whole \U0001f600", "?")
