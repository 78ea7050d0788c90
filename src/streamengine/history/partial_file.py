"""`partial.json` and `partial-log.jsonl`: what a running stream has said, on disk.

Which of the two goes first matters wherever both change. A log counts only beside the very partial
that it goes on with, so a crash in between leaves the partial as it was, or none; the rest is
swept at the next load.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Final, cast, final

from ..model.parts import MessagePart
from ..model.rows import AssistantRow, RowMetadata, parse_row
from . import partial_log
from .directory import Fingerprint, OpenDirectory
from .lines import decoded
from .partial_log import LogContent, Tail
from .results import PartialRead
from .rules import Rules, with_metadata

PARTIAL_FILE: Final = "partial.json"
LOG_FILE: Final = "partial-log.jsonl"

_ASIDE: Final = "partial.corrupt"
_LOG_ASIDE: Final = "partial-log.corrupt"

_log = logging.getLogger("streamengine.history")


@dataclass(frozen=True, slots=True)
class PartialNote:
    """What is remembered of the partial, so that it isn't read anew for every row or addition."""

    fingerprint: Fingerprint
    message_id: str | None
    """None: the file is no partial of this workspace."""
    sequence: int | None
    digest: str = ""
    log_size_bytes: int = 0
    tail: Tail = None
    is_synced: bool = True
    """Whether the base has been written through, or was there before this process."""


@final
class PartialFile:
    """The partial of one workspace. The caller sees to it that nobody else changes it meanwhile."""

    def __init__(self, rules: Rules) -> None:
        self._rules = rules
        self._note: PartialNote | None = None

    def note(self, directory: OpenDirectory) -> PartialNote | None:
        """What the partial is, without moving anything; None when there is none."""
        fingerprint = directory.fingerprint(PARTIAL_FILE)
        if fingerprint is None:
            self._note = None
        elif self._note is None or self._note.fingerprint != fingerprint:
            self._note = self._look(directory, fingerprint)
        return self._note

    def read(self, directory: OpenDirectory) -> PartialRead:
        """The partial with all that was added to it. What is none is moved aside."""
        content = directory.read(PARTIAL_FILE)
        if content is None:
            self._note = None
            return PartialRead()
        base, problem = self._parsed(content.data)
        if base is None:
            return PartialRead(warning=self._set_aside(directory, problem))
        log = self._log_of(directory, content.data, base)
        row = partial_log.joined(base, log)
        warning = None
        if log.unreadable_lines:
            warning = (
                f"{directory.path_of(LOG_FILE)} has {log.unreadable_lines} lines that can't be read"
            )
        return PartialRead(row, warning)

    def write(self, directory: OpenDirectory, row: AssistantRow, *, durable: bool) -> None:
        """Begin the partial anew with this row. Another message's is moved aside, with its log; one
        of a later message stays. Raises HistoryError ("stale_sequence").
        """
        row = with_metadata(row, partial=True)
        try:
            data = row.to_json(indent_spaces=2).encode()
        except ValueError as error:
            place = directory.path_of(PARTIAL_FILE)
            raise self._rules.not_json(place, row.id, error) from error
        note = self.note(directory)
        if note is not None and note.message_id != row.id:
            self._rules.check_not_overtaken(row, note.message_id, note.sequence)
            self._set_aside(directory, f"was in the way of the partial of message {row.id}")
            note = None
        digest = partial_log.digest_of(data)
        if note is not None and note.digest == digest:
            # The same bytes once more: here alone the old log would count beside the new base.
            directory.remove(LOG_FILE, durable=False)
        fingerprint = directory.replace(PARTIAL_FILE, data, durable=durable)
        self._note = PartialNote(
            fingerprint,
            row.id,
            row.metadata.history_sequence,
            digest,
            tail=partial_log.tail_of(row.parts),
            is_synced=durable,
        )
        # An old log stays until the first addition, which cuts it off: one call less.

    def add(
        self,
        directory: OpenDirectory,
        message_id: str,
        parts: tuple[MessagePart, ...],
        metadata: RowMetadata | None,
        *,
        durable: bool,
    ) -> None:
        """Add to the partial of this message what was said since. Raises HistoryError
        ("not_found": there is no such partial, or its log is gone).
        """
        note = self.note(directory)
        if note is None or note.message_id != message_id:
            raise self._rules.no_partial(message_id)
        try:
            data, tail = partial_log.encode(parts, metadata, note.tail)
        except ValueError as error:
            place = directory.path_of(LOG_FILE)
            raise self._rules.not_json(place, message_id, error) from error
        if durable and not note.is_synced:
            directory.sync(PARTIAL_FILE)
            note = self._note = replace(note, is_synced=True)
        if not data:
            if durable and note.log_size_bytes:
                directory.sync(LOG_FILE)
            return
        if not note.log_size_bytes:
            data = partial_log.header(message_id, note.digest) + data
        size_bytes = directory.append_at(LOG_FILE, note.log_size_bytes, data, durable=durable)
        if size_bytes is None:
            self._note = None
            raise self._rules.no_partial(message_id)
        self._note = replace(note, log_size_bytes=size_bytes, tail=tail)

    def remove(
        self, directory: OpenDirectory, *, keep_log: bool = False, durable: bool = True
    ) -> bool:
        """False when there was none. The log goes last: without its partial it counts for nothing.

        `keep_log`: a log with unreadable lines is moved aside, not removed. `durable=False` where a
        partial that comes back after a power cut would be removed again by the next load.
        """
        self._note = None
        if keep_log:
            self._set_log_aside(directory)
        removed = directory.remove(PARTIAL_FILE, durable=durable)
        directory.remove(LOG_FILE, durable=False)
        return removed

    def sweep(self, directory: OpenDirectory) -> tuple[str, ...]:
        """Remove a log that no partial goes with; gives its name, if there was one."""
        if directory.fingerprint(PARTIAL_FILE) is None and directory.remove(
            LOG_FILE, durable=False
        ):
            return (LOG_FILE,)
        return ()

    def _look(self, directory: OpenDirectory, fingerprint: Fingerprint) -> PartialNote:
        content = directory.read(PARTIAL_FILE)
        base = None if content is None else self._parsed(content.data)[0]
        if content is None or base is None:
            return PartialNote(fingerprint, None, None)
        log = self._log_of(directory, content.data, base)
        return PartialNote(
            content.fingerprint,
            base.id,
            base.metadata.history_sequence,
            partial_log.digest_of(content.data),
            log.size_bytes,
            log.tail if log.size_bytes else partial_log.tail_of(base.parts),
        )

    def _log_of(self, directory: OpenDirectory, data: bytes, base: AssistantRow) -> LogContent:
        log = directory.read(LOG_FILE)
        if log is None:
            return LogContent()
        return partial_log.decode(log.data, partial_log.digest_of(data), base.parts)

    def _parsed(self, data: bytes) -> tuple[AssistantRow | None, str]:
        """The partial that these bytes are, or what is wrong with them."""
        try:
            fields = decoded(data)
        except ValueError:
            return None, "is not JSON"
        try:
            row = parse_row(cast("dict[str, Any]", fields))
        except (ValueError, RecursionError):
            return None, "is not an assistant row"
        if not isinstance(row, AssistantRow):
            return None, "is not an assistant row"
        if row.workspace_id not in (None, self._rules.workspace_id):
            return None, f"belongs to workspace {row.workspace_id}"
        return with_metadata(row, partial=True), ""

    def _set_aside(self, directory: OpenDirectory, problem: str) -> str:
        self._note = None
        # The log first: were it left alone beside nothing, the next load would sweep it.
        self._set_log_aside(directory)
        aside = directory.set_aside(PARTIAL_FILE, _ASIDE, ".json")
        warning = f"{directory.path_of(PARTIAL_FILE)} {problem}; it was moved to {aside}"
        _log.warning("%s", warning)
        return warning

    def _set_log_aside(self, directory: OpenDirectory) -> None:
        if directory.fingerprint(LOG_FILE) is not None:
            directory.set_aside(LOG_FILE, _LOG_ASIDE, ".jsonl")
