"""What is told of a workspace to each of those who listen, over whatever connection.

A newcomer is told again what it has missed, from its cursor on; then it is caught up, and gets
everything as it happens. What is held for one that is behind is bounded: past the bound its stream
ends after what waits, and it may come again with its cursor.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Final, final

import structlog

from fibers import AbortController
from streamengine import Event, HistoryError, StreamEngine
from streamengine.events import (
    BufferAll,
    CaughtUpMessage,
    Cursor,
    HeartbeatMessage,
    OverflowMessage,
    ReplayKind,
    ShuttingDownMessage,
    Sink,
    SubscriptionOverflowError,
    cursor_of,
    replay,
    replayed_to_ms,
    retold,
    subscription_iterable,
    terminal_of,
    timestamp_of,
)
from streamengine.model import (
    AssistantRow,
    AutoRetryScheduledEvent,
    LiveSnapshot,
    Row,
    StreamAbortEvent,
    TerminalEvent,
    TextPart,
)
from streamengine.model.note import WorkspaceNote

from .config import Limits
from .problems import later
from .root import Root
from .sse import encode
from .turn_feed import AnyMessage, TurnNews
from .turn_messages import TurnsMessage

REMEMBERED_ENDS: Final = 256
"""Ends of messages that are kept as they were told: a row doesn't have all of each."""

RECENT_ROWS: Final = 100
"""How far back the end of a message is looked for."""

_log = structlog.get_logger("turns.host.hub")


@dataclass(frozen=True)
class Told:
    """One message to a reader: its type, its JSON, and where the reader stands after it."""

    type: str
    data: str
    cursor: str | None = None
    """Empty: nowhere, whatever it said before. None: where it stood."""

    @cached_property
    def as_sse(self) -> bytes:
        """For an event stream; made once, however many listen."""
        return encode(self.type, self.data, self.cursor)

    @cached_property
    def as_text(self) -> str:
        """For a WebSocket: the JSON beside the cursor, which is an id and a number at most."""
        cursor = f'"{self.cursor}"' if self.cursor else "null"
        return f'{{"cursor":{cursor},"message":{self.data}}}'


def _of_event(event: Event) -> Told:
    cursor = cursor_of(event)
    return Told(event.type, event.to_json(), None if cursor is None else str(cursor))


def _of_turns(message: AnyMessage) -> Told:
    # No cursor of its own: who comes again gets the tree anew.
    return Told(message.type, message.to_json())


_HEARTBEAT: Final = (Told("heartbeat", HeartbeatMessage().to_json()),)
_GOODBYE: Final = Told("shutting-down", ShuttingDownMessage().to_json())

Batch = tuple[Told, ...]
"""What is told at once. All that a newcomer has missed is one, and isn't counted as waiting."""


def _size(batch: Batch) -> int:
    return sum(len(told.data) for told in batch)


def _together(batches: Sequence[Batch]) -> Batch:
    return tuple(chain.from_iterable(batches))


@final
class Subscription:
    """One reader of a workspace."""

    def __init__(self, hub: Hub, workspace_id: str, cursor: Cursor | None) -> None:
        self._hub = hub
        self._workspace_id = workspace_id
        self._cursor = cursor
        self._left = AbortController()
        self._live: LiveSnapshot | None = None
        self._scheduled: AutoRetryScheduledEvent | None = None
        self._told_to_ms = 0
        self._turns: TurnsMessage | None = None

    def close(self) -> None:
        """The reader has gone: give its place back. Twice is once."""
        self._left.abort()
        self._hub.forget(self._workspace_id, self)

    async def told(self) -> AsyncGenerator[Told]:
        """The messages of ``batches``, one by one."""
        async with contextlib.aclosing(self.batches()) as batches:
            async for batch in batches:
                for told in batch:
                    yield told

    async def batches(self) -> AsyncGenerator[Batch]:
        """What was missed, that it is caught up, then what happens; the last one says why it is.

        One that is behind gets many at once: what it costs to deliver is a turn of the loop and a
        write, however much is in it.
        """
        hub = self._hub
        batches = subscription_iterable(
            self._attach,
            initial=self._catch_up,
            heartbeat=lambda: _HEARTBEAT,
            buffer=BufferAll(
                hub.limits.subscriber_bytes, "raise", _size, self._on_overflow, _together
            ),
            signal=self._left.signal,
            runtime=hub.root.runtime,
        )
        try:
            async with contextlib.aclosing(batches):
                async for batch in batches:
                    yield batch
        except SubscriptionOverflowError:
            overflow = OverflowMessage(workspace_id=self._workspace_id)
            yield (Told(overflow.type, overflow.to_json()),)
        except HistoryError as error:
            # It comes again with its cursor; nothing else would be true.
            _log.error(
                "what a reader has missed can't be read: its stream is closed",
                workspaceId=self._workspace_id,
                error=str(error),
            )
        if hub.closed and not self._left.signal.aborted:
            yield (_GOODBYE,)

    def _on_overflow(self) -> None:
        # Now: one that never reads doesn't come to its end.
        _log.warning("an event stream was too far behind: closed", workspaceId=self._workspace_id)

    def _attach(self, sink: Sink[Batch]) -> Callable[[], None]:
        # No suspension between the snapshot and the subscription: an event would be lost, or told
        # twice.
        live = self._live = self._hub.root.engine.snapshot(self._workspace_id)
        if live is not None:
            self._told_to_ms = replayed_to_ms(live)
        retries = self._hub.root.retries
        self._scheduled = None if retries is None else retries.scheduled(self._workspace_id)
        feed = self._hub.root.turn_feed
        self._turns = None if feed is None else feed.turns_of(self._workspace_id)
        return self._hub.attach(self._workspace_id, self, sink)

    def is_news(self, event: Event) -> bool:
        """Whether a live event is not among what this reader was told again."""
        live = self._live
        if live is None or event.message_id != live.message_id:
            return True
        timestamp_ms = timestamp_of(event)
        return timestamp_ms is None or timestamp_ms > self._told_to_ms

    def _after_ms(self, live: LiveSnapshot) -> int | None:
        cursor = self._cursor
        return (
            None if cursor is None or cursor.message_id != live.message_id else cursor.timestamp_ms
        )

    async def _catch_up(self) -> Batch:
        cursor, live, workspace_id = self._cursor, self._live, self._workspace_id
        told: list[Told] = []
        kind: ReplayKind = "live"
        if cursor is not None and (live is None or live.message_id != cursor.message_id):
            end = None
            if cursor.timestamp_ms is not None:
                end = await self._hub.end_of(workspace_id, cursor.message_id)
            if end is not None:
                told.append(_of_event(end))
            if end is not None or cursor.timestamp_ms is None:
                cursor = Cursor(cursor.message_id, None)
            else:
                cursor = None  # it begins anew, with the history
        if live is not None:
            after_ms = self._after_ms(live)
            kind = "full" if after_ms is None else "since"
            events = replay(live, after_ms)
            told.extend(_of_event(event) for event in events)
            if kind == "full":
                # From its start on, a reader is to hear how the message ends.
                start = str(Cursor(live.message_id, 0))
                told[-len(events)] = dataclasses.replace(told[-len(events)], cursor=start)
            cursor = Cursor(live.message_id, self._told_to_ms)
        if self._scheduled is not None:
            told.append(_of_event(retold(self._scheduled, time.time_ns() // 1_000_000)))
        if self._turns is not None:
            told.append(_of_turns(self._turns))
        caught_up = CaughtUpMessage(
            workspace_id=workspace_id,
            replay=kind,
            cursor=None if cursor is None else str(cursor),
            has_older_history=await self._hub.has_rows(
                workspace_id, beside=None if live is None else live.message_id
            ),
        )
        # An empty id makes a browser forget the one that it came with.
        place = "" if cursor is None and self._cursor is not None else caught_up.cursor
        told.append(Told(caught_up.type, caught_up.to_json(), place))
        return tuple(told)


@final
class Hub:
    """All readers of one server."""

    def __init__(self, root: Root, limits: Limits) -> None:
        self.root = root
        self.limits = limits
        self.closed: bool = False
        self._readers: dict[str, dict[Subscription, Sink[Batch] | None]] = {}
        self._ends: OrderedDict[tuple[str, str], TerminalEvent] = OrderedDict()
        self._unsubscribe = [root.engine.events.subscribe(self._tell)]
        if root.turn_feed is not None:
            self._unsubscribe.append(root.turn_feed.subscribe(self._tell_of_turns))

    @property
    def _engine(self) -> StreamEngine:
        return self.root.engine

    def subscribe(self, workspace_id: str, cursor: Cursor | None = None) -> Subscription:
        """A reader's place in a workspace, to be given back by ``close``. Raises Problem."""
        readers = self._readers.get(workspace_id, {})
        if len(readers) >= self.limits.subscribers:
            raise later(
                429,
                "too-many-subscribers",
                f"workspace {workspace_id} has {len(readers)} open event streams, "
                "as many as it may have",
            )
        if self.subscriber_count >= self.limits.connections:
            raise later(503, "too-many-readers", "as many event streams are open as may be")
        subscription = Subscription(self, workspace_id, cursor)
        self._readers.setdefault(workspace_id, readers)[subscription] = None
        return subscription

    def attach(
        self, workspace_id: str, subscription: Subscription, sink: Sink[Batch]
    ) -> Callable[[], None]:
        """Tell a subscription what happens from now on, through ``sink``."""
        readers = self._readers.get(workspace_id, {})
        if subscription in readers:
            readers[subscription] = sink
        if self.closed:
            sink.end()

        def detach() -> None:
            if subscription in readers:
                readers[subscription] = None

        return detach

    def forget(self, workspace_id: str, subscription: Subscription) -> None:
        """Give the place of a reader back."""
        readers = self._readers.get(workspace_id, {})
        readers.pop(subscription, None)
        if not readers:
            self._readers.pop(workspace_id, None)

    @property
    def subscriber_count(self) -> int:
        return sum(len(readers) for readers in self._readers.values())

    def close(self) -> None:
        """End every stream, after what waits in it. Twice is once."""
        if self.closed:
            return
        self.closed = True
        for unsubscribe in self._unsubscribe:
            unsubscribe()
        for readers in self._readers.values():
            for sink in list(readers.values()):
                if sink is not None:
                    sink.end()

    # ---- what there is to tell

    def live_message(self, workspace_id: str) -> tuple[str, str] | None:
        """Id and text so far of the message that is being answered."""
        live = self._engine.snapshot(workspace_id)
        if live is None:
            return None
        text = "".join(part.text for part in live.parts if isinstance(part, TextPart))
        return live.message_id, text

    async def end_of(self, workspace_id: str, message_id: str) -> TerminalEvent | None:
        """How a message ended that isn't live any more, with all that it said: as it was told, or
        as its row says. None where nothing is known of it, or it is too far back: a reader may
        claim any message, and must not make us read all that was ever said. Raises HistoryError.
        """
        told = self._ends.get((workspace_id, message_id))
        history = self.root.history
        # The partial first: a stream that ends in between is in both, never in neither.
        partial = await history.read_partial(workspace_id)
        rows = await history.tail(workspace_id, RECENT_ROWS)
        found: Iterable[Row] = [*rows, *([] if partial is None else [partial])]
        row = next((r for r in found if r.id == message_id and isinstance(r, AssistantRow)), None)
        if row is None and len(rows) == RECENT_ROWS:
            note = await history.read_note(workspace_id)
            if not _ended_within(rows, note, message_id):
                return None  # its row, if it has one, may be further back
        if told is not None:
            parts = () if row is None else row.parts
            return told.model_copy(update={"replay": True, "parts": parts})
        if row is not None:
            return terminal_of(row, workspace_id)
        # Dropped, and by an earlier process: nobody else than that is known to have stopped it.
        return StreamAbortEvent(
            workspace_id=workspace_id,
            message_id=message_id,
            abort_reason="system",
            abandon_partial=True,
            replay=True,
            parts=(),
        )

    async def has_rows(self, workspace_id: str, *, beside: str | None) -> bool:
        """Whether the history has a row of another message. Raises HistoryError."""
        return any(row.id != beside for row in await self.root.history.tail(workspace_id, 2))

    def _tell(self, event: Event) -> None:
        workspace_id = event.workspace_id
        if isinstance(event, TerminalEvent):
            self._remember(event)
        readers = self._readers.get(workspace_id)
        if not readers:
            return
        batch = (_of_event(event),)  # once, however many listen
        for subscription, sink in list(readers.items()):
            if sink is not None and subscription.is_news(event):
                sink.push(batch)

    def _tell_of_turns(self, news: TurnNews) -> None:
        readers = self._readers.get(news.workspace_id)
        if not readers:
            return
        batch = tuple(_of_turns(message) for message in news.messages)
        for sink in list(readers.values()):
            if sink is not None:
                sink.push(batch)

    def _remember(self, event: TerminalEvent) -> None:
        # Without what it said: the row has that.
        short = event.model_copy(update={"parts": ()})
        self._ends[event.workspace_id, event.message_id] = short
        while len(self._ends) > REMEMBERED_ENDS:
            self._ends.popitem(last=False)


def _ended_within(rows: Sequence[Row], note: WorkspaceNote, message_id: str) -> bool:
    """Whether the note knows of the message that it was to answer one of ``rows``, so that a row
    of it would be among them.
    """
    end, first = note.last_end, rows[0].metadata.history_sequence
    if end is None or end.message_id != message_id:
        return False
    return end.after_sequence is not None and first is not None and end.after_sequence >= first
