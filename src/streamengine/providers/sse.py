"""Server-sent events out of bytes, however these are cut, and with a bound on each event.

The decoder of httpx-sse holds a line of any length; one that a server never ends would fill the
memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, final

_BOM: Final = b"\xef\xbb\xbf"


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event; ``name`` is empty where the server gave none."""

    name: str
    data: str


class EventTooLarge(Exception):
    """An event is longer than allowed; ``limit_bytes`` says how long that is, ``before`` has those
    that were complete by then.
    """

    def __init__(self, limit_bytes: int, before: tuple[SseEvent, ...] = ()) -> None:
        super().__init__(limit_bytes)
        self.limit_bytes = limit_bytes
        self.before = before


@final
class SseDecoder:
    """Feed it what comes; it gives the events that are complete.

    What comes after the last empty line is no event (it may have been cut off). Bytes that are no
    UTF-8 become U+FFFD. Comments, ids and retry times are passed over.
    """

    def __init__(self, *, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._line: list[bytes] = []
        """Pieces of the line that has no end yet."""
        self._held_bytes = 0
        """Of that line and of the event's data."""
        self._name = ""
        self._data: list[bytes] = []
        self._after_cr = False
        self._begun = False

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Raises EventTooLarge; the decoder is of no use after that."""
        if not chunk:
            return []
        if self._after_cr or b"\r" in chunk:
            chunk = self._with_plain_ends(chunk)
        events: list[SseEvent] = []
        try:
            self._take_all(chunk.split(b"\n"), events)
        except EventTooLarge as error:
            error.before = tuple(events)
            raise
        return events

    def _take_all(self, lines: list[bytes], events: list[SseEvent]) -> None:
        """The last of ``lines`` has no end yet."""
        rest = lines.pop()
        for line in lines:
            if self._line:
                self._line.append(line)
                line = b"".join(self._line)
                self._held_bytes -= len(line) - len(self._line[-1])
                self._line.clear()
            if self._take(line):
                events.append(self._event())
        if rest:
            self._line.append(rest)
            self._hold(len(rest))

    def _with_plain_ends(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]  # the other half of a line end that was told already
        self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")

    def _take(self, line: bytes) -> bool:
        """Whether the line ends an event."""
        if not self._begun:
            self._begun = True
            line = line.removeprefix(_BOM)
        if not line:
            if self._data:
                return True
            self._name = ""
            return False
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._hold(len(value) + 1)
        elif name == b"event":
            self._name = value.removeprefix(b" ").decode("utf-8", "replace")
        return False

    def _hold(self, count: int) -> None:
        self._held_bytes += count
        if self._held_bytes > self._limit_bytes:
            raise EventTooLarge(self._limit_bytes)

    def _event(self) -> SseEvent:
        data = b"\n".join(self._data).decode("utf-8", "replace")
        event = SseEvent(self._name, data)
        self._name = ""
        self._data.clear()
        self._held_bytes = 0
        return event
