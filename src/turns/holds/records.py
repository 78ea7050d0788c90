"""Tool and subagent records: what runs for the turn, and which call a task belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final, Literal, final

from ..open_turn import TurnEnd
from .hold import Hold, Holder

RecordState = Literal["running", "completed", "failed", "ended", "aborted"]
"""completed and failed: by what the tool said. ended: the turn ended first, cleanly. aborted: the
turn ended otherwise."""

KEPT_CLOSED: Final = 200


@dataclass(slots=True)
class ToolRecord:
    """One call of a tool, or one subagent."""

    tool_call_id: str
    tool_name: str
    turn_id: str
    state: RecordState = "running"
    reports_itself_alive: bool = False

    @property
    def is_open(self) -> bool:
        return self.state == "running"


@final
class ToolRecords:
    """The records of one workspace."""

    def __init__(self) -> None:
        self._records: dict[str, ToolRecord] = {}
        self._tasks: dict[str, str] = {}

    @property
    def running(self) -> list[ToolRecord]:
        return [record for record in self._records.values() if record.is_open]

    def get(self, tool_call_id: str) -> ToolRecord | None:
        return self._records.get(tool_call_id)

    def call_of(self, task_id: str) -> str | None:
        """The tool call that started a background task. Known also after the turn of the call, so
        that what the task says later finds its place.
        """
        return self._tasks.get(task_id)

    @property
    def task_ids(self) -> tuple[str, ...]:
        return tuple(self._tasks)

    def _open(self, record: ToolRecord) -> None:
        self._records.pop(record.tool_call_id, None)
        self._records[record.tool_call_id] = record
        closed = [key for key, old in self._records.items() if not old.is_open]
        dropped = set(closed[: max(0, len(closed) - KEPT_CLOSED)])
        for key in dropped:
            del self._records[key]
        if dropped:
            # There is no place left for what such a task says.
            self._tasks = {t: c for t, c in self._tasks.items() if c not in dropped}

    def _end_all(self, turn_id: str, end: TurnEnd) -> None:
        ours = [record for record in self.running if record.turn_id == turn_id]
        open_calls = {record.tool_call_id for record in ours}
        for record in ours:
            record.state = "ended" if end == "completed" else "aborted"
            record.reports_itself_alive = False
        if end == "torn-down":
            # The process that knows these tasks is gone.
            self._tasks.clear()
        else:
            self._tasks = {t: c for t, c in self._tasks.items() if c not in open_calls}


@final
class RecordsHold(Hold):
    """The turn's running tools and subagents. What comes after its end is dropped."""

    name: ClassVar[str] = "tool records"

    def __init__(self, holder: Holder, records: ToolRecords) -> None:
        super().__init__(holder)
        self._records = records

    @property
    def any_alive(self) -> bool:
        """Whether a running tool of this turn says that it is alive, however silent it is."""
        return any(
            record.reports_itself_alive
            for record in self._records.running
            if record.turn_id == self._holder.turn_id
        )

    def open(self, tool_call_id: str, tool_name: str) -> None:
        """A tool, or a subagent, begins."""
        if self._holder.is_open:
            self._records._open(ToolRecord(tool_call_id, tool_name, self._holder.turn_id))
            self._holder.changed()

    def close(self, tool_call_id: str, *, failed: bool = False) -> None:
        """It is over. A call that is not open is none of ours."""
        record = self._ours(tool_call_id)
        if record is not None:
            record.state = "failed" if failed else "completed"
            record.reports_itself_alive = False
            self._holder.changed()

    def alive(self, tool_call_id: str) -> None:
        """The tool says of itself that it works: its silence is no stall until it ends."""
        record = self._ours(tool_call_id)
        if record is not None:
            record.reports_itself_alive = True
            self._holder.changed()

    def task_started(self, task_id: str, tool_call_id: str) -> None:
        """The call has started something that goes on beside it."""
        if self._ours(tool_call_id) is not None:
            self._records._tasks[task_id] = tool_call_id
            self._holder.changed()

    def _ours(self, tool_call_id: str) -> ToolRecord | None:
        record = self._records.get(tool_call_id)
        if record is None or not record.is_open or record.turn_id != self._holder.turn_id:
            return None
        return record if self._holder.is_open else None

    def _release(self, end: TurnEnd) -> None:
        self._records._end_all(self._holder.turn_id, end)
