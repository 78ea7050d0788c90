"""A restart over ten thousand handles, of which some were running: until the last is reconciled."""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

from bench.engine.figures import Figure, Group
from bench.turns.stand import Kind, Place, kinds, place, stand
from streamengine.model import RowMetadata, TextPart, UserRow
from turns import FileTurnStore, TurnRecord
from turns.model.cause import CorrelatedStreamEnd
from turns.model.correlation import correlation_of
from turns.model.record import FinalMessage, now

_HANDLES: Final = 10_000
_RUNNING: Final = 200
"""How many the last process left running; each has its prompt in the history, and no answer."""
_OWNERS: Final = 100
_ROUNDS: Final = 3
_BAR_MS: Final = 5_000

Cache = Literal["warm", "cold"]


def _record(n: int) -> TurnRecord:
    made = now()
    return TurnRecord(
        handle_id=f"wst_{n:06}",
        owner_workspace_id=f"owner{n % _OWNERS}",
        workspace_id=f"w{n}",
        turn_id=f"turn_{n:06}",
        status="running",
        created_at=made,
        updated_at=made,
        prompt="Look through the files, and say what is wrong with each of them. " * 4,
        message_id=f"a_{n:06}",
    )


def _settled(record: TurnRecord) -> TurnRecord:
    assert record.message_id is not None
    cause = CorrelatedStreamEnd(message_id=record.message_id, finish_reason="stop")
    text = "Nothing is wrong with this one, as far as a quick look can tell. " * 10
    return record.settled(cause, FinalMessage(text=text, message_id=record.message_id))


async def _left_by_the_last(kind: Kind, folder: Path, handles: int, running: int) -> None:
    """The records and prompts of a process that was killed. Written without a wait for the disk:
    ``_cool`` waits for all of it.
    """
    step = handles // running
    records = [_record(n) if n % step == 0 else _settled(_record(n)) for n in range(handles)]
    if kind.name == "files":
        await _write_files(folder, records)
    async with place(kind, folder, fsync="off") as kept:
        if kind.name != "files":
            await _write_rows(kept, records)
        for record in records[::step]:
            prompt = UserRow(
                id=f"u_{record.handle_id}",
                parts=(TextPart(text=record.prompt or ""),),
                metadata=RowMetadata(correlation=correlation_of(record)),
            )
            await kept.history.append_user(record.workspace_id, prompt)


async def _write_files(folder: Path, records: Sequence[TurnRecord]) -> None:
    store = FileTurnStore(folder, io="inline", fsync="off")
    for record in records:
        await store.write(record)


async def _write_rows(kept: Place, records: Sequence[TurnRecord]) -> None:
    """In one transaction: one for each record would take minutes."""
    from sqlalchemy import insert  # an extra

    from streamengine.history.sql import SqlHistory
    from turns.handles.sql import schema

    assert isinstance(kept.history, SqlHistory)
    rows = [
        {
            "handle_id": record.handle_id,
            "owner_workspace_id": record.owner_workspace_id,
            "body": record.to_json(),
        }
        for record in records
    ]
    async with kept.history.database.transaction(durable=True) as db:
        await db.run(lambda sql: sql.execute(insert(schema.records), rows))


def _cool(folder: Path) -> None:
    """Everything to the disk, and out of the page cache."""
    for path in folder.rglob("*"):
        if path.is_file():
            handle = os.open(path, os.O_RDONLY)
            try:
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(handle)


async def _restarted(kind: Kind, folder: Path, handles: int, running: int) -> tuple[float, float]:
    """Wall-clock and CPU milliseconds of a start; RuntimeError where one is not as it should be."""
    async with stand(kind, folder) as s:
        cpu, began = time.process_time(), time.perf_counter()
        await s.turns.start(s.scope)
        wall_ms = (time.perf_counter() - began) * 1000
        cpu_ms = (time.process_time() - cpu) * 1000
        records = await s.turns.list()
    settled = sum(record.cause == "stale-restart" for record in records)
    if (len(records), settled) != (handles, running):
        raise RuntimeError(f"{settled} of {running} reconciled, of {len(records)} records")
    return wall_ms, cpu_ms


async def _rows(kind: Kind, handles: int, running: int, rounds: int) -> list[Figure]:
    found: dict[Cache, list[tuple[float, float]]] = {"warm": [], "cold": []}
    if kind.sockets is not None:
        del found["cold"]  # what a server keeps in memory is its own
    for _ in range(rounds):
        for cache, samples in found.items():
            with tempfile.TemporaryDirectory() as name:
                folder = Path(name)
                await _left_by_the_last(kind, folder, handles, running)
                if cache == "cold":
                    _cool(folder)
                samples.append(await _restarted(kind, folder, handles, running))
    return [
        Figure(
            f"turns-restart-{kind}-{cache}",
            f"a start over {handles} handles, {running} of them running, {kind}, {cache}",
            "ms",
            [wall for wall, _ in samples],
            bar=_BAR_MS,
            note=f"{statistics.median(cpu for _, cpu in samples):.0f} ms of CPU",
        )
        for cache, samples in found.items()
    ]


async def measure(quick: bool) -> list[Figure]:
    part = 10 if quick else 1
    rounds = 1 if quick else _ROUNDS
    rows: list[Figure] = []
    with kinds() as found:
        for kind in found:
            rows += await _rows(kind, _HANDLES // part, _RUNNING // part, rounds)
    return rows


RESTART: Final = Group("turns-restart", "a restart over many turns", measure, every_build=False)
