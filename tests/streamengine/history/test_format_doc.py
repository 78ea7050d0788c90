"""`docs/history-format.md`: its examples are files that can be read and written back as they are,
and it names everything that this version writes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import pytest

from streamengine.history import partial_log
from streamengine.history.files import WorkspaceFiles
from streamengine.history.lines import encoded, fields_of
from streamengine.history.lock import LockHolder
from streamengine.history.recovery import load
from streamengine.history.usage_log import UsageEntry
from streamengine.model import (
    AssistantRow,
    FilePart,
    ReasoningPart,
    RowMetadata,
    TextPart,
    ToolPart,
    Usage,
    UserRow,
)
from streamengine.model.base import CamelModel
from streamengine.model.note import LastEnd, WorkspaceNote
from streamengine.model.rows import parse_row

from .kit import text_of

PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "history-format.md"
_EXAMPLE: Final = re.compile(r"^% file: (\S+)\n```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ONE_VALUE: Final = ("partial.json", "note.json")


def examples() -> dict[str, bytes]:
    """The files of the page, by name."""
    found = dict(_EXAMPLE.findall(PAGE.read_text("utf-8")))
    # A file of one value ends with it; a log ends with a newline.
    return {
        name: (text.removesuffix("\n") if name in _ONE_VALUE else text).encode()
        for name, text in found.items()
    }


@pytest.fixture
def example(tmp_path: Path) -> WorkspaceFiles:
    """A workspace made of the examples."""
    directory = tmp_path / "w1"
    directory.mkdir()
    for name, data in examples().items():
        (directory / name).write_bytes(data)
    return WorkspaceFiles(directory)


def test_every_kind_of_file_has_an_example() -> None:
    assert set(examples()) == {
        "chat.jsonl",
        "note.json",
        "partial-log.jsonl",
        "partial.json",
        "usage.jsonl",
    }


def test_the_rows_are_written_back_byte_by_byte(example: WorkspaceFiles) -> None:
    data = examples()["chat.jsonl"]

    read = example.read()

    assert read.unreadable_lines == 0
    assert b"".join(encoded(row.to_mapping()) + b"\n" for row in read.rows) == data
    for row in read.rows:
        if isinstance(row, AssistantRow):
            example.update_row(row)
    assert (example.path / "chat.jsonl").read_bytes() == data


def test_the_partial_is_written_back_byte_by_byte(example: WorkspaceFiles, tmp_path: Path) -> None:
    base, log = examples()["partial.json"], examples()["partial-log.jsonl"]
    row = parse_row(fields_of(base) or {})
    assert isinstance(row, AssistantRow)
    content = partial_log.decode(log, partial_log.digest_of(base), row.parts)
    assert (content.size_bytes, content.unreadable_lines) == (len(log), 0)

    other = WorkspaceFiles(tmp_path / "other" / "w1")
    other.write_partial(row)
    for part in content.parts:
        other.append_partial(row.id, (part,))
    other.append_partial(row.id, (), metadata=RowMetadata.model_validate(content.metadata))

    assert (other.path / "partial.json").read_bytes() == base
    assert (other.path / "partial-log.jsonl").read_bytes() == log
    assert other.read_partial() == example.read_partial()
    assert text_of(row) == "It is "


def test_usage_and_note_are_written_back_byte_by_byte(
    example: WorkspaceFiles, tmp_path: Path
) -> None:
    other = WorkspaceFiles(tmp_path / "other" / "w1")
    for entry in example.read_usage():
        assert entry.source == "abort"
        other.record_usage(entry.message_id, entry.usage, model=entry.model, source="abort")
    other.write_note(example.read_note())

    for name in ("usage.jsonl", "note.json"):
        assert (other.path / name).read_bytes() == examples()[name]


def test_the_example_is_loaded_without_a_word(example: WorkspaceFiles) -> None:
    loaded = load(example)

    assert not loaded.report.warnings
    assert not loaded.report.problems
    assert loaded.report.unreadable_lines == 0
    assert text_of(loaded.rows[-1]) == "It is grey"


@pytest.mark.parametrize(
    "model",
    [
        UserRow,
        AssistantRow,
        RowMetadata,
        TextPart,
        ReasoningPart,
        ToolPart,
        FilePart,
        Usage,
        UsageEntry,
        WorkspaceNote,
        LastEnd,
        LockHolder,
    ],
)
def test_every_field_that_is_written_is_named(model: type[CamelModel]) -> None:
    page = PAGE.read_text("utf-8")
    fields: dict[str, Any] = dict(model.model_fields)
    for name, field in fields.items():
        assert f"`{field.serialization_alias or name}`" in page
