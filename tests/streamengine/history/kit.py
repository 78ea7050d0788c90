"""Rows, directories and faults for the tests of the history."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from streamengine.history.directory import Step
from streamengine.history.files import WorkspaceFiles
from streamengine.model import AssistantRow, MessagePart, RowMetadata, TextPart, ToolPart, UserRow

WORKSPACE = "ws"

BOUND_SECONDS = 10
"""How long a thread of a test waits to be let go, so that a failing test still ends."""


def user(message_id: str = "u1", text: str = "question", **metadata: Any) -> UserRow:
    return UserRow(
        id=message_id, parts=(TextPart(text=text),), metadata=RowMetadata.model_validate(metadata)
    )


def assistant(message_id: str = "a1", *texts: str, **metadata: Any) -> AssistantRow:
    return with_parts(message_id, *(TextPart(text=text) for text in texts), **metadata)


def with_parts(message_id: str, *parts: MessagePart, **metadata: Any) -> AssistantRow:
    return AssistantRow(id=message_id, parts=parts, metadata=RowMetadata.model_validate(metadata))


def tool(call_id: str = "c1", *, state: str = "output-available", output: Any = None) -> ToolPart:
    return ToolPart(tool_call_id=call_id, tool_name="look", state=state, input={}, output=output)


def text_of(row: AssistantRow | UserRow) -> str:
    return "".join(part.text for part in row.parts if isinstance(part, TextPart))


# ---- what is on disk


def chat(files: WorkspaceFiles) -> bytes:
    path = files.path / "chat.jsonl"
    return path.read_bytes() if path.exists() else b""


def put_chat(files: WorkspaceFiles, *lines: bytes | Mapping[str, Any]) -> bytes:
    """Write `chat.jsonl` as somebody else may have left it; every line with its newline."""
    data = b"".join(
        (line if isinstance(line, bytes) else json.dumps(line).encode()) + b"\n" for line in lines
    )
    files.path.mkdir(exist_ok=True)
    (files.path / "chat.jsonl").write_bytes(data)
    return data


def put_partial(files: WorkspaceFiles, content: bytes | AssistantRow) -> None:
    """Write `partial.json` as somebody else may have left it."""
    files.path.mkdir(exist_ok=True)
    data = content if isinstance(content, bytes) else content.to_json().encode()
    (files.path / "partial.json").write_bytes(data)


def sequences(files: WorkspaceFiles) -> list[int | None]:
    return [row.metadata.history_sequence for row in files.read().rows]


Snapshot = Mapping[str, bytes]


def snapshot(directory: Path) -> Snapshot:
    """All files of a directory, as a crash would leave them."""
    if not directory.exists():
        return {}
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def restored(content: Snapshot, directory: Path) -> WorkspaceFiles:
    """A workspace that begins with these files."""
    directory.mkdir(parents=True)
    for name, data in content.items():
        (directory / name).write_bytes(data)
    return WorkspaceFiles(directory, workspace_id=WORKSPACE, fsync="off")


class Steps:
    """Collects the steps that the files take; `at_each` is called at every one."""

    def __init__(self) -> None:
        self.seen: list[Step] = []
        self.at_each: Callable[[], None] = lambda: None

    def __call__(self, step: Step) -> None:
        self.seen.append(step)
        self.at_each()


# ---- faults


def no_space() -> OSError:
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def fail_write_after(
    monkeypatch: pytest.MonkeyPatch, size_bytes: int, error: OSError | None = None
) -> None:
    """From now on, all writes together get `size_bytes` to disk, then fail."""
    left = size_bytes
    real = os.write

    def write(handle: int, data: Any) -> int:
        nonlocal left
        if left <= 0:
            raise error or no_space()
        written = real(handle, data[:left])
        left -= written
        return written

    monkeypatch.setattr(os, "write", write)


def fail_call(
    monkeypatch: pytest.MonkeyPatch, name: str, *, after_calls: int = 0, code: int = errno.ENOSPC
) -> None:
    """From now on, `os.<name>` works `after_calls` times, then fails with this errno."""
    left = after_calls
    real = getattr(os, name)

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        if left <= 0:
            raise OSError(code, os.strerror(code))
        left -= 1
        return real(*args, **kwargs)

    monkeypatch.setattr(os, name, call)
