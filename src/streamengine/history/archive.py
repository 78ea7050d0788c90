"""`chat-archive.jsonl`: the rows before the boundary of a conversation, out of the way.

A row is there, durably, before it leaves `chat.jsonl`: after a crash in between it is in both, byte
by byte the same, and the next load takes it out of the one that is read.
"""

from __future__ import annotations

from typing import Final, final

from .chatlog import ChatLog, LineRef
from .directory import OpenDirectory
from .results import ReadRows

ARCHIVE_FILE: Final = "chat-archive.jsonl"


@final
class Archive:
    """What was sealed of the rows in ``chat``. The caller sees to it that nobody else changes
    either meanwhile.
    """

    def __init__(self, chat: ChatLog) -> None:
        self._chat = chat
        self.log: ChatLog = ChatLog(ARCHIVE_FILE)

    def take_sealed(self, directory: OpenDirectory) -> int:
        """Move the rows before the boundary here; gives how many lines. Can be repeated: what a
        crash left in both places is not added again. Lines without a sequence stay where they are.
        """
        sealed = self._chat.index(directory).sealed()
        if not sealed:
            return 0
        new = [
            data
            for line, data in zip(sealed, self._chat.lines_at(directory, sealed), strict=True)
            if data != self._known(directory, line)
        ]
        if new:
            self.log.append_lines(directory, new)
        self._chat.cut_out(directory, sealed)
        return len(sealed)

    def finish(self, directory: OpenDirectory) -> int:
        """Take out the rows that a crash left both there and here; gives how many."""
        if directory.fingerprint(ARCHIVE_FILE) is None:
            return 0
        sealed = self._chat.index(directory).sealed()
        twice = [
            line
            for line, data in zip(sealed, self._chat.lines_at(directory, sealed), strict=True)
            if data == self._known(directory, line)
        ]
        if twice:
            self._chat.cut_out(directory, twice)
        return len(twice)

    def read(self, directory: OpenDirectory) -> ReadRows:
        """The rows that are here, by sequence."""
        read = self.log.read(directory)
        # A row that changed after a crash had cut the archive off is there twice: the last counts.
        last = {(row.metadata.history_sequence, row.id): row for row in read.rows}
        return ReadRows(list(last.values()), read.unreadable_lines)

    def _known(self, directory: OpenDirectory, line: LineRef) -> bytes | None:
        """The bytes of a row of ``chat`` as they are here."""
        assert line.sequence is not None, "only a line with a sequence can be sealed"
        known = self.log.index(directory).with_sequence(line.sequence)
        return None if known is None else self.log.line_at(directory, known)
