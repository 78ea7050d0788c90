"""`usage.jsonl`: what answers cost that have no row to say it, once a message."""

from __future__ import annotations

from typing import Final, Literal, final

from ..model.base import CamelModel
from ..model.ids import MessageId
from ..model.rows import AssistantRow
from ..model.usage import Usage
from .directory import Fingerprint, OpenDirectory
from .lines import encoded

USAGE_FILE: Final = "usage.jsonl"

UsageSource = Literal["stream", "abort", "error"]
"""How the answer ended whose usage it is."""


class UsageEntry(CamelModel):
    """The usage of one answer without a row that carries it."""

    message_id: MessageId
    usage: Usage
    model: str | None = None
    source: UsageSource | str
    """A source that a newer version invented is read as it stands."""

    @classmethod
    def of_partial(cls, partial: AssistantRow, usage: Usage) -> UsageEntry:
        """What a partial says that it cost, for when no row says it."""
        metadata = partial.metadata
        source = "abort" if metadata.error is None else "error"
        return cls(message_id=partial.id, usage=usage, model=metadata.model, source=source)

    @classmethod
    def of_line(cls, text: str | bytes) -> UsageEntry | None:
        """The entry that a line is, if it is one."""
        try:
            return cls.model_validate_json(text)
        except ValueError:
            return None


@final
class UsageLog:
    """The file of one workspace. Lines that can't be read stay in it and count for nothing."""

    def __init__(self) -> None:
        self._entries: dict[str, UsageEntry] = {}
        self._known: Fingerprint | None = None

    def entries(self, directory: OpenDirectory) -> list[UsageEntry]:
        """All entries, in the order in which they were recorded."""
        if directory.fingerprint(USAGE_FILE) != self._known:
            self._load(directory)
        return list(self._entries.values())

    def has(self, directory: OpenDirectory, message_id: str) -> bool:
        if directory.fingerprint(USAGE_FILE) != self._known:
            self._load(directory)
        return message_id in self._entries

    def record(self, directory: OpenDirectory, entry: UsageEntry) -> bool:
        """Add it, durably; False when the message has an entry already."""
        if self.has(directory, entry.message_id):
            return False
        appended = directory.append_line(USAGE_FILE, encoded(entry.to_mapping()), durable=True)
        self._entries[entry.message_id] = entry
        self._known = appended.fingerprint
        return True

    def _load(self, directory: OpenDirectory) -> None:
        content = directory.read(USAGE_FILE)
        self._known = None if content is None else content.fingerprint
        self._entries = {}
        for line in () if content is None else content.data.split(b"\n"):
            entry = UsageEntry.of_line(line)
            if entry is not None:
                self._entries.setdefault(entry.message_id, entry)
