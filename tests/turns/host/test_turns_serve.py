"""Turns of a real server: its end with turns open, a kill, and the next one."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from httpx_sse import connect_sse

from fibers.app import SCOPE_CLOSE_TIMEOUT_SECONDS
from turns.process.identity import identify, is_alive

from .programs import WAIT_SECONDS, WORDS, Server, said, serving, stored, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.lifecycle]


def begin(server: Server, prompt: str, workspace: str = "w1") -> str:
    with server.client() as client:
        path = f"/api/workspaces/{workspace}/turns"
        response = client.post(path, json={"prompt": prompt})
        assert response.status_code == 202, response.text
        handle_id: str = response.json()["handleId"]
        return handle_id


def record(server: Server, handle_id: str) -> dict[str, Any]:
    with server.client() as client:
        response = client.get(f"/api/turns/{handle_id}")
        assert response.status_code == 200, response.text
        fields: dict[str, Any] = response.json()
        return fields


def on_disk(state: Path, handle_id: str, owner: str = "w1") -> dict[str, Any]:
    path = state / "workspaces" / owner / "task-handles" / f"{handle_id}.json"
    fields: dict[str, Any] = json.loads(path.read_text())
    return fields


def wait_for_a_file(directory: Path) -> None:
    until = time.monotonic() + WAIT_SECONDS
    while not (directory.exists() and list(directory.glob("*.json"))):
        assert time.monotonic() < until, f"{directory} stays empty"
        time.sleep(0.005)


@contextmanager
def listening(server: Server) -> Generator[list[str]]:
    """The types of the events of w1, to the end of the stream, once this is left."""
    seen: list[str] = []
    with (
        server.client() as client,
        connect_sse(client, "GET", "/api/workspaces/w1/events") as source,
    ):
        yield seen
        seen.extend(event.event for event in source.iter_sse())


@pytest.mark.spec("T14", "T16", "I9")
def test_a_shutdown_with_open_turns_is_quick_and_leaves_them_to_the_next_server(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    with serving(tmp_path, state) as server, listening(server) as seen:
        running, queued = begin(server, "stay"), begin(server, "hello")
        wait_for(state / "workspaces" / "w1" / "partial.json", "ten")
        server.signal(signal.SIGTERM)
        code, _ = server.end()

    assert code == 143
    assert seen[-1] == "shutting-down"
    assert seen.count("stream-abort") == 1
    closed = re.search(r"\[shutdown\] AppScope closed \{ms: (\d+)\}", server.log)
    assert closed is not None, server.log
    assert int(closed[1]) < SCOPE_CLOSE_TIMEOUT_SECONDS * 1000
    assert on_disk(state, running)["status"] == "running"
    assert on_disk(state, queued)["status"] == "queued"
    user, answer = stored(state)
    assert (said(user), said(answer)) == ("stay", WORDS)
    assert answer["metadata"]["abortReason"] == "system"

    with serving(tmp_path, state) as server:
        fields = record(server, running)
        later = record(server, queued)
        while later["status"] in ("queued", "starting", "running"):
            time.sleep(0.005)
            later = record(server, queued)

    assert (fields["status"], fields["cause"]) == ("interrupted", "stale-restart")
    assert (later["status"], later["finalMessage"]) == ("completed", WORDS)


@pytest.mark.spec("I11", "T16")
def test_a_kill_in_the_middle_of_a_command_leaves_nothing_running_after_the_next_start(
    tmp_path: Path,
) -> None:
    state = tmp_path / "state"
    home = state / "workspaces" / "w1"
    (home / "turns").mkdir(parents=True, mode=0o700)
    (home / "turns" / "permissions.json").write_text('{"rules": {"shell": true}}')
    state.chmod(0o700)
    pid_file = home / "files" / "pid"
    with serving(tmp_path, state) as server:
        handle_id = begin(server, "run a command")
        wait_for(pid_file, "\n")
        process = identify(int(pid_file.read_text()))
        wait_for_a_file(state / "processes")
        server.signal(signal.SIGKILL)
        server.end()
    assert process is not None
    assert is_alive(process)

    with serving(tmp_path, state) as server:
        fields = record(server, handle_id)

    assert not is_alive(process)
    assert (fields["status"], fields["cause"]) == ("interrupted", "stale-restart")
    assert list((state / "processes").iterdir()) == []
