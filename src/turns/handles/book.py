"""The book of turns: every record as it is on disk, for who asks without waiting for the disk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import timedelta
from typing import final

import fibers as fb
from fibers import Effect
from streamengine.locks import WorkspaceLocks

from ..model.errors import TurnError
from ..model.record import TurnRecord
from ..subscribers import Subscribers
from .store import TurnStore


@final
class Book:
    """The records of one manager. ``locks``: one lock a handle, for who changes its record."""

    def __init__(self, store: TurnStore) -> None:
        self._store = store
        self._records: dict[str, TurnRecord] = {}
        # Those that have not settled: questions about what runs look at nothing else.
        self._unsettled: dict[str, None] = {}
        # Asked at each end of a turn: a look at all there ever were would cost more with each.
        self._by_workspace: dict[str, dict[str, None]] = {}
        self._observers = Subscribers[TurnRecord]("turns")
        self._numbers = itertools.count()
        self.locks: WorkspaceLocks = WorkspaceLocks()
        self.warnings: tuple[str, ...] = ()
        """What the store could not read, with the way out."""

    def find(self, handle_id: str) -> TurnRecord | None:
        """The record of this handle, if there is one."""
        return self._records.get(handle_id)

    def get(self, handle_id: str) -> TurnRecord:
        """The record of this handle. Raises TurnError."""
        record = self._records.get(handle_id)
        if record is None:
            raise TurnError(
                "not_found",
                f"the turn {handle_id} is not found or out of scope",
                "See `fiberscope turns list`, or the manager's `list`.",
            )
        return record

    def all(self) -> list[TurnRecord]:
        """All records, the oldest first."""
        return list(self._records.values())

    def unsettled(self) -> list[TurnRecord]:
        """Those that have not settled, the oldest first."""
        return [self._records[handle_id] for handle_id in self._unsettled]

    def in_workspace(self, workspace_id: str) -> list[TurnRecord]:
        """Those that run or ran in this workspace, the oldest first."""
        return [self._records[handle_id] for handle_id in self._by_workspace.get(workspace_id, ())]

    def as_youngest(self, record: TurnRecord) -> TurnRecord:
        """A new record, counted as the next one, by which a restart finds the order again; and
        stamped as younger than all that wait, as the wall clock may have been set back meanwhile.
        """
        record = record.model_copy(update={"sequence": next(self._numbers)})
        last = next(reversed(self._unsettled), None)
        if last is None or record.created_at > self._records[last].created_at:
            return record
        stamp = self._records[last].created_at + timedelta(microseconds=1)
        return record.model_copy(update={"created_at": stamp, "updated_at": stamp})

    def has_queued(self, workspace_id: str) -> bool:
        """Whether a turn is to begin in this workspace."""
        return any(
            record.status == "queued" and record.workspace_id == workspace_id
            for record in self.unsettled()
        )

    def has_active_descendants(self, record: TurnRecord) -> bool:
        """Whether turns that this one's workspace started run elsewhere.

        Only younger ones that have begun count: so no two turns ever wait for each other.
        """
        younger = itertools.dropwhile(
            lambda other: other.handle_id != record.handle_id, self.unsettled()
        )
        return any(
            other.is_started
            and other.owner_workspace_id == record.workspace_id
            and other.workspace_id != record.workspace_id
            for other in younger
        )

    def observe(self, f: Callable[[TurnRecord], object]) -> Callable[[], None]:
        """Call ``f`` with each record that was stored from now on. Gives what stops it."""
        return self._observers.subscribe(f)

    # ---- changes

    def load(self) -> Effect[None, TurnError]:
        """Read all that is stored. Those that were put meanwhile stay as they are."""
        return self._load()

    @fb.effect(raises=TurnError)
    async def _load(self) -> None:
        loaded = await self._store.load()
        self.warnings = loaded.warnings
        put_meanwhile = self._records
        self._records = {record.handle_id: record for record in loaded.records} | put_meanwhile
        counted = (r.sequence for r in self._records.values() if r.sequence is not None)
        self._numbers = itertools.count(max(counted, default=-1) + 1)
        self._unsettled = {r.handle_id: None for r in self._records.values() if not r.is_terminal}
        self._by_workspace = {}
        for record in self._records.values():
            self._by_workspace.setdefault(record.workspace_id, {})[record.handle_id] = None

    def put(self, record: TurnRecord) -> Effect[None, TurnError]:
        """Store ``record``; only then it is seen (T9). Fails with "store": nothing changed."""
        return self._put(record)

    @fb.effect(raises=TurnError)
    async def _put(self, record: TurnRecord) -> None:
        # Masked: stored and not seen is a state that nobody shall meet.
        with fb.uninterruptible():
            await self._store.write(record)
            self._records[record.handle_id] = record
            self._by_workspace.setdefault(record.workspace_id, {})[record.handle_id] = None
            if record.is_terminal:
                self._unsettled.pop(record.handle_id, None)
            else:
                self._unsettled[record.handle_id] = None
            self._observers.tell(record)

    def change(
        self, handle_id: str, f: Callable[[TurnRecord], TurnRecord | None]
    ) -> Effect[TurnRecord, TurnError]:
        """Store what ``f`` makes of a record, under its lock; None: it stays. Gives what is stored.

        Fails with "not_found", "store".
        """
        return self._change(handle_id, f)

    @fb.effect(raises=TurnError)
    async def _change(
        self, handle_id: str, f: Callable[[TurnRecord], TurnRecord | None]
    ) -> TurnRecord:
        async with self.locks.hold(handle_id):
            record = self.get(handle_id)
            changed = f(record)
            if changed is None:
                return record
            await self.put(changed)
            return changed

    @fb.effect(raises=TurnError)
    async def count_ignored_end(self, handle_id: str) -> None:
        """One more end that was none of this turn. Stored with its next change."""
        async with self.locks.hold(handle_id):
            record = self.get(handle_id)
            ends = record.ignored_ends + 1
            self._records[handle_id] = record.model_copy(update={"ignored_ends": ends})
