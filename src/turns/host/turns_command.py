"""``fiberscope turns``: which turns there are, all of one, and the end of one."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass

import fibers as fb
from fibers import Effect
from streamengine import HistoryError

from ..model.record import TurnRecord
from .errors import FAILED, HostError
from .program import complain
from .terminal import give_up_output, write_out
from .turn_sources import Place, TurnSource, with_turns
from .turns_view import as_table, as_text, terminal_columns


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which turns ``list`` is to show; None: whatever."""

    owner: str | None = None
    workspace: str | None = None

    def has(self, record: TurnRecord) -> bool:
        """Whether this one is among them."""
        return self.owner in (None, record.owner_workspace_id) and self.workspace in (
            None,
            record.workspace_id,
        )


def list_turns(
    place: Place, wanted: Wanted, *, as_json: bool
) -> Effect[int, HostError | HistoryError]:
    """Write the turns that are wanted, the oldest first; gives the exit code."""

    @fb.effect(raises=HostError)
    async def ask(source: TurnSource) -> str:
        listed = await source.all()
        _warn(listed.warnings)
        records = [record for record in listed.records if wanted.has(record)]
        if not as_json:
            return as_table(records, columns=terminal_columns())
        turns = ",\n".join(record.to_json(indent_spaces=2) for record in records)
        ignored = sum(record.ignored_ends for record in records)
        warnings = json.dumps(listed.warnings)
        return f'{{"turns": [{turns}],\n"ignoredEnds": {ignored},\n"warnings": {warnings}}}\n'

    return _told(place, ask)


def show_turn(
    place: Place, handle_id: str, *, as_json: bool
) -> Effect[int, HostError | HistoryError]:
    """Write all of one record; gives the exit code."""

    @fb.effect(raises=HostError)
    async def ask(source: TurnSource) -> str:
        record = await _found(source, handle_id)
        return record.to_json(indent_spaces=2) + "\n" if as_json else as_text(record)

    return _told(place, ask)


def interrupt_turn(
    place: Place, handle_id: str, *, hard: bool
) -> Effect[int, HostError | HistoryError]:
    """End a turn; gives the exit code. Without a server it is settled as interrupted."""

    @fb.effect(raises=HostError)
    async def ask(source: TurnSource) -> str:
        await _found(source, handle_id)
        return await source.interrupt(handle_id, hard=hard) + "\n"

    return _told(place, ask)


@fb.effect(raises=(HostError, HistoryError))
async def _told(place: Place, ask: Callable[[TurnSource], Effect[str, HostError]]) -> int:
    # Written once the state directory is given back: a pager may keep us waiting.
    said = await with_turns(place, ask)
    try:
        write_out(said)
    except BrokenPipeError:
        give_up_output()
        return FAILED
    return 0


async def _found(source: TurnSource, handle_id: str) -> TurnRecord:
    record = await source.one(handle_id)
    if record is None:
        # It may be one of those that can't be read.
        _warn((await source.all()).warnings)
        raise HostError(f"there is no turn {handle_id}: see fiberscope turns list")
    return record


def _warn(warnings: tuple[str, ...]) -> None:
    for warning in warnings:
        complain(warning)
