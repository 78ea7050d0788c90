"""The streaming message: what the turn is saying, block by block, for who draws it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal, final

from ..open_turn import TurnEnd
from .hold import Hold, Holder

BlockKind = Literal["text", "reasoning"]


@dataclass(slots=True)
class Block:
    """A piece of a message of one kind. It grows while it is streaming."""

    kind: BlockKind
    is_streaming: bool = True
    _pieces: list[str] = field(default_factory=list[str])

    @property
    def text(self) -> str:
        return "".join(self._pieces)


@final
class LiveMessage:
    """The last message of a workspace, as it stands."""

    def __init__(self) -> None:
        self.message_id: str | None = None
        self.blocks: list[Block] = []
        self._owner: MessageHold | None = None

    @property
    def is_streaming(self) -> bool:
        """Whether anything of it still grows."""
        return any(block.is_streaming for block in self.blocks)


@final
class MessageHold(Hold):
    """The turn's right to make the live message grow. What comes after its end is dropped."""

    name: ClassVar[str] = "streaming message"

    def __init__(self, holder: Holder, message: LiveMessage) -> None:
        super().__init__(holder)
        self._message = message

    def begin(self, message_id: str) -> None:
        """A new message; the one before is complete."""
        if not self._holder.is_open:
            return
        self._message.message_id = message_id
        self._message.blocks = []
        self._message._owner = self
        self._holder.changed()

    def add(self, kind: BlockKind, text: str) -> None:
        """More of the message. Another kind than before begins another block."""
        if not self._holder.is_open or self._message._owner is not self:
            return
        blocks = self._message.blocks
        if not blocks or not blocks[-1].is_streaming or blocks[-1].kind != kind:
            self._finalise()
            blocks.append(Block(kind))
        blocks[-1]._pieces.append(text)
        self._holder.changed()

    def end_block(self) -> None:
        """What was said so far is complete; what comes begins another block."""
        if self._holder.is_open:
            self._finalise()
            self._holder.changed()

    def _finalise(self) -> None:
        if self._message._owner is self:
            for block in self._message.blocks:
                block.is_streaming = False

    def _release(self, end: TurnEnd) -> None:
        # Finalised and kept, not dropped: a message that vanished would still be drawn as live.
        self._finalise()
        if self._message._owner is self:
            self._message._owner = None
