"""A state directory that a crash, a disk or a person has left in disorder."""

from __future__ import annotations

import errno
import json
import os
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from streamengine import HistoryError
from streamengine.history.directory import OpenDirectory
from turns.host.root import recover

from .kit import a_server, a_site, events_of, rows_of, send, settle, text_of, until


def row(number: int, role: str, text: str, **metadata: Any) -> dict[str, Any]:
    return {
        "id": f"{role[0]}_{number}",
        "role": role,
        "workspaceId": "w1",
        "parts": [{"type": "text", "text": text}],
        "metadata": {"historySequence": number, **metadata},
    }


USER = row(0, "user", "hello")
FINAL = row(1, "assistant", "hello to you")
PARTIAL = row(1, "assistant", "hello to", partial=True)


class Workspace:
    """The files of workspace w1, as a test lays them."""

    def __init__(self, state: Path) -> None:
        self.path = state / "workspaces" / "w1"
        self.path.mkdir(0o700, parents=True)

    def chat(self, *lines: dict[str, Any] | str) -> None:
        text = "".join(line if isinstance(line, str) else json.dumps(line) + "\n" for line in lines)
        (self.path / "chat.jsonl").write_text(text)

    def partial(self, content: dict[str, Any] | str) -> None:
        text = content if isinstance(content, str) else json.dumps(content)
        (self.path / "partial.json").write_text(text)

    def names(self) -> set[str]:
        return {path.name for path in self.path.iterdir()}


async def opened(state: Path) -> tuple[list[str], list[str]]:
    """Start on these files, talk once more; what the history says before that, and the log."""
    with structlog.testing.capture_logs() as logs:
        async with a_site(state) as site, site.client() as client:
            texts = [text_of(row) for row in await rows_of(client)]
            assert (await send(client, "and now?")).status_code == 202
            (await site.provider.next_answer()).say("works").finish()
            await settle(site)
            after = [text_of(row) for row in await rows_of(client)]
            assert after == [*texts, "and now?", "works"]
    return texts, [entry["event"] for entry in logs]


async def test_an_orderly_state_is_opened_without_a_word(tmp_path: Path) -> None:
    Workspace(tmp_path).chat(USER, FINAL)

    texts, events = await opened(tmp_path)

    assert texts == ["hello", "hello to you"]
    assert not [event for event in events if "[shutdown]" not in event]


async def test_a_torn_last_line_costs_that_line_only(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.chat(USER, json.dumps(FINAL)[:40])

    texts, events = await opened(tmp_path)

    assert texts == ["hello"]
    assert "lines of the history can't be read" in events
    assert json.dumps(FINAL)[:40] in (workspace.path / "chat.jsonl").read_text()


async def test_an_unreadable_line_stays_in_the_file_and_is_passed_over(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.chat(USER, "\x00\x00 not a row\n", FINAL)

    texts, events = await opened(tmp_path)

    assert texts == ["hello", "hello to you"]
    assert "lines of the history can't be read" in events
    assert "not a row" in (workspace.path / "chat.jsonl").read_text()


async def test_what_a_crash_left_is_shown_as_interrupted(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.chat(USER)
    workspace.partial(PARTIAL)

    texts, events = await opened(tmp_path)

    assert texts == ["hello", "hello to"]
    assert "an interrupted message was found" in events
    assert "partial.json" not in workspace.names()


@pytest.mark.parametrize(
    "content", ["", "{", "\x00" * 100, "[]", json.dumps({**PARTIAL, "workspaceId": "w2"})]
)
async def test_a_partial_that_is_none_of_ours_is_moved_aside(tmp_path: Path, content: str) -> None:
    workspace = Workspace(tmp_path)
    workspace.chat(USER)
    workspace.partial(content)

    texts, events = await opened(tmp_path)

    assert texts == ["hello"]
    assert "a file was moved aside" in events
    aside = workspace.names() - {"chat.jsonl"}
    assert len(aside) == 1
    assert (workspace.path / aside.pop()).read_text() == content


async def test_a_partial_beside_its_final_row_is_dropped(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.chat(USER, FINAL)
    workspace.partial(PARTIAL)

    texts, _ = await opened(tmp_path)

    assert texts == ["hello", "hello to you"]
    assert workspace.names() == {"chat.jsonl"}


async def test_temp_files_of_a_crash_are_removed(tmp_path: Path) -> None:
    workspace = Workspace(tmp_path)
    workspace.chat(USER)
    (workspace.path / "partial.json.tmp-0123456789abcdef").write_text("{")

    _, events = await opened(tmp_path)

    assert "temp files of a crash removed" in events
    assert workspace.names() == {"chat.jsonl"}


async def test_a_history_that_is_no_file_keeps_the_server_from_starting(tmp_path: Path) -> None:
    (Workspace(tmp_path).path / "chat.jsonl").mkdir()

    with pytest.raises(HistoryError, match=r"chat\.jsonl"):
        async with a_site(tmp_path):
            pass


async def test_other_things_beside_the_workspaces_are_left_alone(tmp_path: Path) -> None:
    Workspace(tmp_path).chat(USER)
    (tmp_path / "workspaces" / "Not An Id").mkdir()
    (tmp_path / "workspaces" / "file").touch()

    texts, _ = await opened(tmp_path)

    assert texts == ["hello"]


# ---- a full disk


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of 256 KiB; needs the right to mount one."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(mount)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip(f"may not mount: {done.stderr.decode().strip()}")
    try:
        yield mount
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def fill(disk: Path) -> Path:
    """A file that takes all the room."""
    filler = disk / "filler"
    handle = os.open(filler, os.O_WRONLY | os.O_CREAT)
    try:
        while True:
            os.write(handle, b"\0" * 4096)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(handle)
    return filler


async def test_a_disk_that_is_full_during_an_answer_costs_no_row(small_disk: Path) -> None:
    state = small_disk / "state"
    with structlog.testing.capture_logs() as logs:
        async with a_server(state) as live, live.client() as client, events_of(client) as events:
            await events.next()
            await send(client, "one")
            answer = (await live.provider.next_answer()).say("kept ")
            path = state / "workspaces/w1/partial.json"
            await events.until("stream-delta")
            await until(path.exists)
            filler = fill(small_disk)
            answer.say("not kept " * 2000).finish()
            told = await events.until("error")
            two = "two " * 2000  # more than the page that the last row has begun
            refused = await send(client, two, clientMessageId="c2")
            filler.unlink()
            accepted = await send(client, two, clientMessageId="c2")
            (await live.provider.next_answer()).say("fine").finish()
            await events.until("stream-end")
            rows = await rows_of(client)

    assert "could not be stored" in told[-1].data["error"]
    assert refused.status_code == 507
    assert refused.json()["kind"] == "disk-full"
    assert accepted.status_code == 202
    assert [text_of(row) for row in rows] == ["one", "kept ", two, "fine"]
    assert "stream failed" in [entry["event"] for entry in logs]


async def test_a_write_that_finds_no_room_does_not_end_the_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With an injected ENOSPC: the partial fails, the final row has room again."""
    really = OpenDirectory.replace
    full = False

    def replace(self: OpenDirectory, name: str, data: bytes, *, durable: bool) -> Any:
        if full and name == "partial.json":
            raise HistoryError("disk_full", self.path_of(name), "no room", "Make room.")
        return really(self, name, data, durable=durable)

    monkeypatch.setattr(OpenDirectory, "replace", replace)
    with structlog.testing.capture_logs() as logs:
        async with a_site(tmp_path) as site, site.client() as client:
            full = True
            await send(client)
            answer = (await site.provider.next_answer()).say("all of ")
            await until(lambda: "partial not written" in [entry["event"] for entry in logs])
            answer.say("it").finish()
            await settle(site)
            rows = await rows_of(client)

    assert [text_of(row) for row in rows] == ["hello", "all of it"]
    assert "partial" not in rows[1]["metadata"]


async def test_a_recovery_that_can_not_write_says_so_and_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = Workspace(tmp_path)
    workspace.chat(USER)
    workspace.partial(PARTIAL)

    def append(*_: object, **__: object) -> Any:
        raise HistoryError("disk_full", workspace.path, "no room", "Make room.")

    with monkeypatch.context() as patch, structlog.testing.capture_logs() as logs:
        patch.setattr(OpenDirectory, "append_line", append)
        async with a_site(tmp_path) as site, site.client() as client:
            shown = [text_of(row) for row in await rows_of(client)]
            refused = await send(client, "more")
            events = [entry["event"] for entry in logs]
            patch.undo()
            await recover(site.root.history)
            after = [text_of(row) for row in await rows_of(client)]

    assert "a step of the recovery failed; it is tried again" in events
    assert shown == after == ["hello", "hello to"]
    assert refused.status_code == 507
    assert workspace.names() == {"chat.jsonl"}
