"""`note.json`: what is remembered of a workspace beside its rows."""

from __future__ import annotations

import logging
from typing import Final

from ..model.note import WorkspaceNote
from .directory import OpenDirectory
from .lines import fields_of

NOTE_FILE: Final = "note.json"

_ASIDE: Final = "note.corrupt"

_log = logging.getLogger("streamengine.history")


def read_note(directory: OpenDirectory) -> WorkspaceNote:
    """The note; an empty one when there is none. A file that is none is moved aside."""
    content = directory.read(NOTE_FILE)
    if content is None:
        return WorkspaceNote()
    try:
        return WorkspaceNote.model_validate(fields_of(content.data))
    except ValueError:
        # It only allows or suppresses a retry: no reason to refuse the workspace.
        aside = directory.set_aside(NOTE_FILE, _ASIDE, ".json")
        _log.warning("%s is no note; it was moved to %s", directory.path_of(NOTE_FILE), aside)
        return WorkspaceNote()


def write_note(directory: OpenDirectory, note: WorkspaceNote) -> None:
    """Replace the note, durably."""
    directory.replace(NOTE_FILE, note.to_json(indent_spaces=2).encode(), durable=True)
