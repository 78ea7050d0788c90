"""Thoughts: the blocks of reasoning that an API signs, kept so that it gets them back as they were.

A row keeps neighbouring reasoning as one text. Each block's mark (a signature, an encrypted item)
stands with the length of its text in the metadata, each time as the whole list of the run so far:
so the last metadata of a run says all, however its parts were put together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from ..model.parts import ReasoningPart
from . import loose

_BLOCKS: Final = "blocks"
_CHARACTERS: Final = "characters"


@dataclass(frozen=True, slots=True)
class Thought:
    """A block of reasoning with what its API needs to know it again."""

    text: str
    mark: Mapping[str, Any]


@final
class ThoughtMarks:
    """Gathers the marks of a run of reasoning while it is streamed; ``api`` names the entry."""

    def __init__(self, api: str) -> None:
        self._api = api
        self._blocks: list[Mapping[str, Any]] = []

    def end_run(self) -> None:
        """Something else was said: reasoning that comes now is another run."""
        self._blocks = []

    def end_block(self, characters: int, mark: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        """The metadata of a block that is complete. ``more`` stands beside the list."""
        self._blocks = [*self._blocks, {**mark, _CHARACTERS: characters}]
        return {self._api: {_BLOCKS: self._blocks, **more}}

    def skip_block(self, characters: int) -> None:
        """A block without a mark: the API doesn't get it back, but its text stands in the run."""
        if characters:
            self._blocks = [*self._blocks, {_CHARACTERS: characters}]


def thoughts_in(run: Sequence[ReasoningPart], api: str) -> Iterator[Thought]:
    """The complete blocks of a run that came from ``api``; none if it came from another, or if its
    text isn't what it was.
    """
    said = "".join(part.text for part in run)
    blocks: Sequence[object] = ()
    for part in run:
        entry = loose.fields(dict(part.provider_metadata or {}).get(api))
        blocks = loose.items(entry.get(_BLOCKS)) or blocks
    at = 0
    found: list[Thought] = []
    for block in map(loose.fields, blocks):
        length = loose.count(block.get(_CHARACTERS))
        if length is None or at + length > len(said):
            return
        mark = {name: value for name, value in block.items() if name != _CHARACTERS}
        if mark:
            found.append(Thought(said[at : at + length], mark))
        at += length
    yield from found
