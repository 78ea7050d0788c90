"""The lines of an undo group on disk, and what they add up to."""

from __future__ import annotations

import base64
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Literal

import structlog
from pydantic import Field, TypeAdapter, ValidationError

from streamengine.model.base import CamelModel

from ..model.errors import TurnError
from .folder import StoredFile

_log = structlog.get_logger("turns.files.steps")


class Begun(CamelModel):
    """The first line of a group."""

    type: Literal["begun"] = "begun"
    turn_id: str
    at: str
    """ISO 8601, UTC."""


class Changed(CamelModel):
    """A file is about to be changed. Its old content only in its first line of a group."""

    type: Literal["changed"] = "changed"
    path: str
    is_first: bool
    before: str | None = None
    """Base64; None where there was no file."""
    mode: int | None = None
    after: str | None = None
    """SHA-256 of the new content; None where the file is removed."""
    made: tuple[str, ...] = ()
    """Directories that the write makes, the outermost first."""


class Closed(CamelModel):
    """The group is over."""

    type: Literal["closed"] = "closed"


_line: TypeAdapter[Begun | Changed | Closed] = TypeAdapter(
    Annotated[Begun | Changed | Closed, Field(discriminator="type")]
)


@dataclass(slots=True)
class Net:
    """What a whole group did to one file."""

    before: str | None
    mode: int | None
    afters: set[str | None]
    """Of each change: the last of them may not have come to be."""
    made: tuple[str, ...]


@dataclass(slots=True)
class Step:
    """A group, read again."""

    turn_id: str
    files: dict[str, Net] = field(default_factory=dict[str, Net])


def parse_step(data: bytes, path: Path) -> Step:
    """What the lines of the file ``path`` say. Raises TurnError("corrupt"), with a warning.

    What has no newline was cut off by a crash, before its file was written.
    """
    whole = data[: data.rfind(b"\n") + 1].split(b"\n")
    step = Step("")
    for number, text in enumerate(line for line in whole if line.strip()):
        try:
            # Not validate_json: it refuses lone surrogates, as names have them that are no UTF-8.
            line = _line.validate_python(json.loads(text))
            if number == 0 and not isinstance(line, Begun):
                raise ValueError("the first line does not begin a group")
            _fold(step, line)
        except (ValidationError, ValueError, KeyError, RecursionError) as error:
            _log.warning("an undo step can't be read", path=str(path), line=number + 1)
            raise TurnError(
                "corrupt",
                f"{path} is no undo step (line {number + 1})",
                "Move that file away; the steps before it can be undone then.",
            ) from error
    return step


def _fold(step: Step, line: Begun | Changed | Closed) -> None:
    match line:
        case Begun():
            step.turn_id = line.turn_id
        case Changed(is_first=True):
            decoded(line.before)
            step.files[line.path] = Net(line.before, line.mode, {line.after}, line.made)
        case Changed():
            step.files[line.path].afters.add(line.after)
            step.files[line.path].made += line.made
        case Closed():
            pass


def encoded(stored: StoredFile | None) -> str | None:
    return None if stored is None else base64.b64encode(stored.data).decode()


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


def digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
