"""BoundedOutput: the beginning and the end of what a process writes."""

from __future__ import annotations

from collections import deque
from typing import final


@final
class BoundedOutput:
    """Keeps at most ``limit_bytes``: the first half, and the last half."""

    def __init__(self, limit_bytes: int) -> None:
        self._half_bytes = max(1, limit_bytes // 2)
        self._head = bytearray()
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self.total_bytes: int = 0

    def add(self, data: bytes) -> None:
        self.total_bytes += len(data)
        room = self._half_bytes - len(self._head)
        self._head += data[:room]
        rest = data[room:] if room > 0 else data
        if rest:
            self._tail.append(rest[-self._half_bytes :])
            self._tail_bytes += len(self._tail[-1])
            while self._tail_bytes - len(self._tail[0]) >= self._half_bytes:
                self._tail_bytes -= len(self._tail.popleft())

    def text(self) -> str:
        """What was kept; a line in the middle says how much is left out."""
        tail = b"".join(self._tail)[-self._half_bytes :]
        left_out = self.total_bytes - len(self._head) - len(tail)
        parts = [self._head.decode("utf-8", "replace")]
        if left_out:
            parts.append(f"\n[... {left_out} bytes left out ...]\n")
        parts.append(tail.decode("utf-8", "replace"))
        return "".join(parts)
