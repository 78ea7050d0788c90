"""The script of a ScriptedProvider: what a file may say, and how it is read.

A `.json` file holds the answers, each with the messages that it is for; a `.jsonl` file holds the
steps of one answer, one a line, for every message. Keys are camelCase in files.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.alias_generators import to_camel

from ..model.errors import ErrorType
from ..model.parts import ProviderPart
from ._json_place import place_of

WAY_OUT: Final = "Correct it there; docs/providers.md lists the steps and their fields."

Milliseconds = Annotated[int, Field(ge=0)]
SomeMilliseconds = Annotated[int, Field(ge=1)]
# Not 0: a step that neither waits nor gives anything would spin if it were repeated for ever.
Times = Annotated[int, Field(ge=1)]


class ScriptError(ValueError):
    """A script that can't be played: which file, which line (None: the file as a whole), why."""

    def __init__(self, path: str, line: int | None, message: str, way_out: str) -> None:
        super().__init__(path, line, message, way_out)
        self.path = path
        self.line = line
        self.message = message
        self.way_out = way_out

    def __str__(self) -> str:
        place = self.path if self.line is None else f"{self.path}, line {self.line}"
        return f"{place}: {self.message}. {self.way_out}"


class _ScriptModel(BaseModel):
    model_config: ClassVar[ConfigDict] = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True
    )


# ---- steps


class Give(_ScriptModel):
    """One part, checked when the script is read."""

    do: Literal["give"] = "give"
    part: ProviderPart
    after_ms: Milliseconds = 0


class GiveRaw(_ScriptModel):
    """A part as it stands, valid or not: an unknown type, a field that is missing."""

    do: Literal["give-raw"] = "give-raw"
    part: Mapping[str, Any]
    after_ms: Milliseconds = 0


class Say(_ScriptModel):
    """A block of text, one delta a word."""

    do: Literal["say"] = "say"
    text: str
    every_ms: Milliseconds = 0
    """The wait before each word, in milliseconds."""


class Wait(_ScriptModel):
    do: Literal["wait"] = "wait"
    ms: SomeMilliseconds


class WaitForEver(_ScriptModel):
    do: Literal["wait-for-ever"] = "wait-for-ever"


class BlockThread(_ScriptModel):
    """Hold up the thread of the loop, and everything on it, as a blocking client does."""

    do: Literal["block-thread"] = "block-thread"
    ms: SomeMilliseconds


class Failure(_ScriptModel):
    """What an exception of the provider says. Without a kind it is a plain one."""

    message: str = "the script raises here"
    kind: str | None = None
    error_type: ErrorType | None = None
    status_code: Annotated[int, Field(ge=100, le=599)] | None = None
    """HTTP status that the exception carries, as those of provider clients do."""


class Raise(Failure):
    do: Literal["raise"] = "raise"
    cancelled: bool = False
    """Raise CancelledError instead, as a client does whose own task somebody cancelled."""


class Repeat(_ScriptModel):
    do: Literal["repeat"] = "repeat"
    steps: Annotated[tuple[Step, ...], Field(min_length=1)]
    times: Times | None = None
    """None: for ever."""


Step = Annotated[
    Give | GiveRaw | Say | Wait | WaitForEver | BlockThread | Raise | Repeat,
    Field(discriminator="do"),
]


# ---- answers


class When(_ScriptModel):
    """Which messages an answer is for."""

    text_contains: Annotated[str, Field(min_length=1)]


class Answer(_ScriptModel):
    """What the provider does with one message. Without further fields it is well-behaved."""

    when: When | None = None
    """None: for every message."""
    times: Times | None = None
    """How many messages it answers before it is passed over; None: any number."""
    refuse: Failure | None = None
    """Raised at the creation of the stream, before any step."""
    steps: tuple[Step, ...] = ()
    on_abort: Literal["stop", "ignore", "raise"] = "stop"
    """What an abort of the signal does. "ignore": only an interrupt ends it."""
    on_cancel: Literal["stop", "swallow"] = "stop"
    """"swallow": catch CancelledError and go on with the next step."""
    cleanup_ms: Milliseconds | Literal["for-ever"] = 0
    """How long its `finally` takes. "for-ever" also survives cancellation."""


class Script(_ScriptModel):
    """Answers in order; the first that fits a message is played."""

    answers: Annotated[tuple[Answer, ...], Field(min_length=1)]

    @classmethod
    def parse(cls, text: str, *, name: str = "script") -> Script:
        """Read the JSON of a script. ``name`` is what errors call it. Raises ScriptError."""
        return _validated(_SCRIPT, text, name)

    @classmethod
    def parse_lines(cls, text: str, *, name: str = "script") -> Script:
        """Read JSON lines: the steps of one answer to everything. Raises ScriptError."""
        steps: list[Step] = []
        for number, line in enumerate(text.split("\n"), start=1):
            if line.strip():
                steps.append(_validated(_STEP, line, name, first_line=number))
        if not steps:
            raise ScriptError(name, None, "there is no step in it", WAY_OUT)
        return cls(answers=(Answer(steps=tuple(steps)),))

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Script:
        """Read a file: JSON lines where its name ends in `.jsonl`, else JSON. Raises ScriptError.

        It reads the disk: not for the thread of a running loop.
        """
        file = Path(path)
        try:
            text = file.read_text(encoding="utf-8-sig")
        except OSError as error:
            why = error.strerror or str(error)
            raise ScriptError(
                str(file), None, f"the script can't be read ({why})", "Give a file that exists."
            ) from error
        except UnicodeDecodeError as error:
            raise ScriptError(
                str(file), None, f"it isn't UTF-8 (at byte {error.start})", "Save it as UTF-8."
            ) from error
        parse = cls.parse_lines if file.suffix == ".jsonl" else cls.parse
        return parse(text, name=str(file))


Repeat.model_rebuild()
Answer.model_rebuild()
Script.model_rebuild()

T = TypeVar("T")

_SCRIPT: Final[TypeAdapter[Script]] = TypeAdapter(Script)
_STEP: Final[TypeAdapter[Step]] = TypeAdapter(Step)


def _validated(kind: TypeAdapter[T], text: str, name: str, *, first_line: int = 1) -> T:
    try:
        fields = json.loads(text)
    except json.JSONDecodeError as error:
        line = error.lineno + first_line - 1
        message = f"it isn't JSON: {error.msg} (column {error.colno})"
        raise ScriptError(name, line, message, WAY_OUT) from error
    except (ValueError, RecursionError) as error:
        # A number of thousands of digits, or thousands of nested lists.
        raise ScriptError(name, None, f"it can't be read: {error}", WAY_OUT) from error
    try:
        return kind.validate_python(fields)
    except ValidationError as error:
        # Only the first: others may just follow from it.
        first = error.errors(include_url=False, include_context=False, include_input=False)[0]
        place = place_of(text, first["loc"])
        message = f"{_where(str(place), first['type'], first['loc'])}: {first['msg']}"
        raise ScriptError(name, place.line + first_line - 1, message, WAY_OUT) from error


def _where(place: str, kind: str, loc: Sequence[str | int]) -> str:
    """The path for a person; of a missing field also its name, which stands nowhere."""
    if kind == "missing" and loc:
        return f"{place}.{loc[-1]}" if place else str(loc[-1])
    return place or "the whole"
