"""The tool `files` in answers of the engine."""

from __future__ import annotations

from typing import Any

import pytest

from .conftest import Toolbench


async def test_it_writes_reads_edits_lists_and_removes(tools: Toolbench) -> None:
    turn = tools.bench.open()

    said = await tools.outputs(
        turn,
        "files",
        {"action": "write", "path": "src/a.py", "text": "x = 1\n"},
        {"action": "edit", "path": "src/a.py", "old": "1", "new": "2"},
        {"action": "read", "path": "src/a.py"},
        {"action": "list", "path": "src"},
        {"action": "list"},
        {"action": "remove", "path": "src/a.py"},
        {"action": "list", "path": "src"},
    )

    assert said == [
        {"done": "src/a.py"},
        {"done": "src/a.py"},
        {"text": "x = 2\n"},
        {"entries": [{"name": "a.py", "kind": "file", "bytes": 6}]},
        {
            "entries": [
                {"name": "src", "kind": "directory", "bytes": said[4]["entries"][0]["bytes"]}
            ]
        },
        {"done": "src/a.py"},
        {"entries": []},
    ]


async def test_the_changes_of_a_turn_are_one_step_booked_on_the_agent(tools: Toolbench) -> None:
    bench = tools.bench
    (bench.folder / "a").write_text("as it was")
    await bench.run(bench.workspace.watcher.refresh())
    turn = bench.open()
    for number in range(2):  # two answers of one turn
        await tools.outputs(
            turn,
            "files",
            {"action": "write", "path": "a", "text": f"{number}"},
            {"action": "write", "path": f"b{number}", "text": "x"},
        )
    assert bench.changes == []
    await bench.close(turn, "completed")

    assert [(c.path, c.by) for c in bench.changes] == [
        ("a", "agent"),
        ("b0", "agent"),
        ("b1", "agent"),
    ]
    assert bench.workspace.journal.steps() == ["t1"]
    bench.workspace.journal.undo()
    assert {p.name: p.read_text() for p in bench.folder.iterdir()} == {"a": "as it was"}


async def test_an_undo_takes_back_this_turn_and_then_the_last_one(tools: Toolbench) -> None:
    bench = tools.bench
    first = bench.open("t1")
    await tools.outputs(first, "files", {"action": "write", "path": "a", "text": "1"})
    await bench.close(first, "completed")
    turn = bench.open("t2")

    said = await tools.outputs(
        turn,
        "files",
        {"action": "write", "path": "b", "text": "2"},
        {"action": "undo"},
        {"action": "undo"},
        {"action": "undo"},
    )

    assert said[1:3] == [{"undone": ["b"]}, {"undone": ["a"]}]
    assert "nothing to undo" in said[3]["error"]
    assert list(bench.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"action": "read", "path": "../secret"}, "goes up"),
        ({"action": "write", "path": "/etc/passwd", "text": "x"}, "is absolute"),
        ({"action": "read", "path": "none"}, "there is no none"),
        ({"action": "read", "path": "picture"}, "is no UTF-8 text"),
        ({"action": "edit", "path": "picture", "old": "a", "new": "b"}, "is no UTF-8 text"),
        ({"action": "write", "path": "a", "text": "\ud83d"}, "half a character"),
        ({"action": "write", "path": "a"}, "`text` must be a text"),
        ({"action": "write", "path": 7, "text": "x"}, "`path` must be a text"),
        ({"action": "format the disk"}, "there is no action 'format the disk'"),
        ({}, "`action` must be a text"),
        ({"action": "write", "path": "a", "text": "x" * (1 << 21)}, "at most 1048576"),
    ],
)
async def test_what_can_not_be_done_is_said_to_the_model(
    tools: Toolbench, given: dict[str, Any], error: str
) -> None:
    (tools.bench.directory / "secret").write_text("secret")
    (tools.bench.folder / "picture").write_bytes(b"\xff\xfe\x00")

    (said,) = await tools.outputs(tools.bench.open(), "files", given)

    assert said["success"] is False
    assert error in said["error"]
    assert [p.name for p in tools.bench.folder.iterdir()] == ["picture"]


@pytest.mark.parametrize("tool", ["files", "shell"])
async def test_outside_of_an_open_turn_the_tools_are_refused(tools: Toolbench, tool: str) -> None:
    given = {"action": "write", "path": "a", "text": "x", "command": "touch a"}
    ended = tools.bench.open()
    await tools.bench.close(ended, "completed")

    said = [
        *await tools.outputs(None, tool, given),
        *await tools.outputs(ended, tool, given),
    ]

    assert ["works in a turn only" in output["error"] for output in said] == [True, True]
    assert list(tools.bench.folder.iterdir()) == []


async def test_a_turn_of_another_workspace_is_none(tools: Toolbench) -> None:
    bench = tools.bench
    foreign = bench.turns.open("t1", "w2", bench.clock, bench.scope)

    (said,) = await tools.outputs(foreign, "files", {"action": "list"})

    assert "works in a turn only" in said["error"]
