"""FileTurnStore: its files, and what else may lie where one belongs."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from streamengine.history.directory import Step
from turns import FileTurnStore

from .backends import OWNER
from .test_store import load, record

Spoil = Callable[[Path], object]
"""Puts something else in the place of a good file."""


def store_of(tmp_path: Path, **options: Any) -> FileTurnStore:
    kept: dict[str, Any] = {"io": "inline", "fsync": "off", **options}
    return FileTurnStore(tmp_path, **kept)


async def test_files_are_touched_on_threads(tmp_path: Path) -> None:
    store = store_of(tmp_path, io="thread")
    await store.write(record())

    assert len((await load(store)).records) == 1


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
    "a link": (_link, "symbolic link"),
    "a directory": (_directory, "not the kind of file"),
    "a pipe": (_fifo, "not the kind of file"),
}


@pytest.mark.spec("T20")
@pytest.mark.parametrize("bad", BAD)
async def test_what_is_no_file_is_named_and_hides_no_other(tmp_path: Path, bad: str) -> None:
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
    assert warning.removeprefix(str(path)).count(". ") >= 1
    assert [log["log_level"] for log in logs] == ["warning"]
    assert path.is_symlink() or path.exists()


@pytest.mark.spec("T20")
@pytest.mark.parametrize("name", ["notes.txt", "wst_1.json.bak", "wst_1"])
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


async def test_a_look_at_an_empty_state_directory_makes_nothing(tmp_path: Path) -> None:
    await load(store_of(tmp_path / "none"))

    assert not (tmp_path / "none").exists()
