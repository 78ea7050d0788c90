"""``fiberscope ps``: what is alive in the server of a state directory, as it changes.

The server is found and asked as ``chat`` does it: by the note in its state directory, with the
token from there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import httpx
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

import fibers as fb
from fibers.dump.tree import span

from . import discovery, token
from .api import FIBERS_PATH
from .errors import FAILED, HostError
from .remote import broken, check, client_of
from .state import located
from .terminal import give_up_output, write_out, writes_to_terminal
from .text import escaped, for_terminal

INTERVAL_SECONDS: Final = 1.0
_INDENT: Final = "  "
_NOT_FOUND: Final = 404
_COLUMNS: Final = (
    ("FIBER", 20, 3),
    ("STATE", 9, None),
    ("AGE", 7, None),
    ("WAITS FOR", 12, 3),
    ("AT", 20, 4),
)
"""Name, least width in characters, share of what is left."""


@dataclass(frozen=True, slots=True)
class PsConfig:
    """What ``ps`` is told."""

    state: Path
    once: bool = False
    """The text of a dump, then leave. Also where the output is no terminal."""
    as_json: bool = False
    """The answer of the server as it is, then leave."""
    interval_seconds: float = INTERVAL_SECONDS
    """Between two looks."""


@fb.effect(raises=HostError)
async def ps(config: PsConfig) -> int:
    """Show what is alive; gives the exit code."""
    state = located(config.state)
    note = discovery.find_running(state)
    if note is None:
        raise HostError(f"no server works on {state}: start one with fiberscope serve")
    access = token.load(state)
    try:
        async with client_of(note.url, access) as client:
            if config.as_json:
                found = await _asked(client)
                del found["text"]
                write_out(json.dumps(found, indent=2) + "\n")
            elif config.once or not writes_to_terminal():
                write_out(for_terminal((await _asked(client))["text"]) + "\n")
            else:
                await _live(client, config.interval_seconds)
    except BrokenPipeError:
        give_up_output()
        return FAILED
    except httpx.HTTPError as error:
        raise broken(error) from error
    return 0


async def _asked(client: httpx.AsyncClient) -> dict[str, Any]:
    response = await client.get(FIBERS_PATH)
    if response.status_code == _NOT_FOUND:
        raise HostError(
            "this server doesn't tell what is alive in it: it listens beyond this machine. "
            "Send it SIGQUIT, and read its log"
        )
    await check(response)
    return cast("dict[str, Any]", response.json())


async def _live(client: httpx.AsyncClient, interval_seconds: float) -> None:
    # Drawn when there is something new, not by a thread of its own.
    with Live(auto_refresh=False, console=Console(), vertical_overflow="ellipsis") as live:
        while True:
            live.update(picture(await _asked(client)), refresh=True)
            await fb.sleep(interval_seconds)


# ---------------------------------------------------------------------------- the picture


def picture(found: Mapping[str, Any]) -> Group:
    """One look, for a terminal."""
    states = ", ".join(f"{count:,} {state}" for state, count in found["states"].items())
    head = f"process {found['pid']}: {found['count']:,} fibers"
    table = Table(box=None, pad_edge=False, header_style="bold", expand=True)
    for name, least, share in _COLUMNS:
        table.add_column(name, no_wrap=True, overflow="ellipsis", min_width=least, ratio=share)
    for cells in rows(found):
        table.add_row(*cells)
    return Group(Text(f"{head} ({states})" if states else head), table)


def rows(found: Mapping[str, Any]) -> Iterator[Sequence[Text]]:
    """A row for each scope, occupant, fiber or group of them, indented as they own each other."""
    for scope in found["scopes"]:
        yield from _scope_rows(scope, 0)
    if found["unowned"]:
        yield (Text("owned by no scope", "bold"),)
        yield from _fiber_rows(found["unowned"], 1)


def _scope_rows(scope: Mapping[str, Any], depth: int) -> Iterator[Sequence[Text]]:
    head = f"{_INDENT * depth}{scope['name']}"
    yield Text(escaped(head), "bold"), Text(scope["state"])
    for name, described in scope["occupants"].items():
        said = json.dumps(described, ensure_ascii=False)
        yield (
            Text(escaped(f"{_INDENT * (depth + 1)}{name}"), "cyan"),
            Text("occupant"),
            Text(),
            Text(escaped(said)),
        )
    yield from _fiber_rows(scope["fibers"], depth + 1)
    for below in scope["scopes"]:
        yield from _scope_rows(below, depth + 1)


def _fiber_rows(groups: Sequence[Mapping[str, Any]], depth: int) -> Iterator[Sequence[Text]]:
    indent = _INDENT * depth
    for group in groups:
        if group.get("leftOut"):
            yield (Text(f"{indent}... {group['count']:,} more", "dim"),)
            continue
        names = ", ".join([*group["names"], "..."]) if group["names"] else group["name"] or ""
        many = group["count"] > 1
        who = f"{group['count']:,} x #{group['id']}.." if many else f"#{group['id']}"
        state = f"{group['state']}{', masked' if group['masked'] else ''}"
        if group["interrupted"]:
            state += f", interrupted {' and '.join(group['interrupted'])}"
        age = group["ageSeconds"]
        places = group["places"]
        yield (
            Text(escaped(f"{indent}{who} {names}".rstrip())),
            Text(escaped(state), "red" if group["interrupted"] else ""),
            Text("" if age is None else span(age)),
            Text(escaped(group["waitsFor"] or "")),
            Text(escaped(places[-1] if places else group["forkedAt"]), "dim"),
        )
        yield from _fiber_rows(group["children"], depth + 1)
