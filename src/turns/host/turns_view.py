"""Turns for a terminal: a table of all, the whole record of one."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fibers.dump.tree import span

from ..model.record import TurnRecord, now
from .text import escaped

PROMPT_CHARACTERS: Final = 60
WIDE_COLUMNS: Final = 200
"""How wide a table is that no terminal bounds."""

_STYLES: Final = {"completed": "green", "interrupted": "yellow", "error": "red", "running": "bold"}


def as_table(records: Sequence[TurnRecord], *, at: datetime | None = None) -> str:
    """The table, and under it how many ends of other streams were left out of account.

    ``at``: what ages are counted to; None: now.
    """
    at = at or now()
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("HANDLE", "WORKSPACE", "STATUS"):
        table.add_column(name, no_wrap=True, overflow="fold")
    table.add_column("CAUSE", overflow="fold")
    table.add_column("AGE", no_wrap=True, justify="right")
    table.add_column("PROMPT", no_wrap=True, overflow="ellipsis")
    for record in records:
        table.add_row(*_cells(record, at))
    ignored = sum(record.ignored_ends for record in records)
    last = f"{_count(len(records), 'turn')}. {_count(ignored, 'end')} ignored as uncorrelated.\n"
    return (_drawn(table) if records else "") + last


def _cells(record: TurnRecord, at: datetime) -> Iterable[Text]:
    where = record.workspace_id
    if record.owner_workspace_id != where:
        where = f"{where} (of {record.owner_workspace_id})"
    # A clock that was set back makes no age negative.
    age_seconds = max((at - record.created_at).total_seconds(), 0.0)
    yield Text(record.handle_id)
    yield Text(where)
    yield Text(record.status, _STYLES.get(record.status, ""))
    yield Text(escaped(record.cause or ""))
    yield Text(span(age_seconds))
    yield Text(escaped(_cut(record.prompt or "")))


def _cut(prompt: str) -> str:
    """On one line."""
    words = " ".join(prompt.split())
    return words if len(words) <= PROMPT_CHARACTERS else f"{words[: PROMPT_CHARACTERS - 3]}..."


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _drawn(table: Table) -> str:
    is_terminal = sys.stdout.isatty()
    # Into memory first: a reader that has gone is the caller's to deal with.
    console = Console(
        file=io.StringIO(),
        width=Console(stderr=False).width if is_terminal else WIDE_COLUMNS,
        force_terminal=is_terminal,
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    # Without what fills the lines: a program that reads them has no use for it.
    return text if is_terminal else "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def as_text(record: TurnRecord) -> str:
    """All of a record, a line for each thing that it says; the prompt and the answer at the end."""
    fields = record.to_mapping()
    long = {name: fields.pop(name, None) for name in ("prompt", "finalMessage")}
    fields.pop("evidence", None)
    lines = [f"{name}: {_said(value)}" for name, value in fields.items() if value is not None]
    lines += [f"evidence.{name}: {_said(value)}" for name, value in (record.evidence or {}).items()]
    for name, text in long.items():
        if text is not None:
            lines += ["", f"{name}:", *(f"  {escaped(line)}" for line in text.splitlines())]
    return "\n".join(lines) + "\n"


def _said(value: object) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return escaped(text)


def write(text: str) -> None:
    """To standard output. Raises BrokenPipeError where nobody reads any more."""
    # An encoding that lacks a character must not keep the rest from being shown.
    sys.stdout.buffer.write(text.encode(sys.stdout.encoding or "utf-8", "replace"))
    sys.stdout.buffer.flush()
