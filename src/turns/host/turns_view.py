"""Turns for a terminal: a table of all, the whole record of one."""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from fibers.dump.tree import span

from ..model.record import TurnRecord, now
from .terminal import writes_to_terminal
from .text import escaped

PROMPT_CHARACTERS: Final = 60
LEAST_PROMPT_COLUMNS: Final = 20
"""What is left of a prompt where the rest of the table is as wide as the terminal."""
WIDE_COLUMNS: Final = 200
"""How wide a table is that no terminal bounds."""

_HEAD: Final = ("HANDLE", "WORKSPACE", "STATUS", "CAUSE", "AGE", "PROMPT")
_GAP_COLUMNS: Final = 2
_STYLES: Final = {"completed": "green", "interrupted": "yellow", "error": "red", "running": "bold"}


def as_table(
    records: Sequence[TurnRecord], *, at: datetime | None = None, columns: int = WIDE_COLUMNS
) -> str:
    """The table, and under it how many ends of other streams were left out of account.

    ``at``: what ages are counted to; None: now. ``columns``: how wide the terminal is. Only prompts
    are cut for that: a handle has to be there whole, to be used.
    """
    rows = [tuple(_cells(record, at or now())) for record in records]
    ignored = sum(record.ignored_ends for record in records)
    last = f"{_count(len(records), 'turn')}. {_count(ignored, 'end')} ignored as uncorrelated.\n"
    return (_drawn(rows, columns) if rows else "") + last


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


def _drawn(rows: Sequence[Sequence[Text]], columns: int) -> str:
    widths = [
        max(cell_len(name), *(row[at].cell_len for row in rows)) for at, name in enumerate(_HEAD)
    ]
    table = Table(box=None, pad_edge=False, padding=(0, _GAP_COLUMNS, 0, 0), header_style="bold")
    for name, width in zip(_HEAD[:-1], widths[:-1], strict=True):
        table.add_column(name, width=width, justify="right" if name == "AGE" else "left")
    fixed = sum(widths[:-1]) + _GAP_COLUMNS * len(widths[:-1])
    left = min(max(columns - fixed, LEAST_PROMPT_COLUMNS), widths[-1])
    table.add_column(_HEAD[-1], width=left, no_wrap=True, overflow="ellipsis")
    for row in rows:
        table.add_row(*row)
    # Into memory first: a reader that has gone is the caller's to deal with.
    console = Console(
        file=io.StringIO(),
        width=fixed + left,
        force_terminal=writes_to_terminal(),
        legacy_windows=False,
    )
    with console.capture() as captured:
        console.print(table)
    text = captured.get()
    # Without what fills the lines: a program that reads them has no use for it.
    return "".join(f"{line.rstrip()}\n" for line in text.splitlines())


def terminal_columns() -> int:
    """How wide a table may be."""
    return Console().width if writes_to_terminal() else WIDE_COLUMNS


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
