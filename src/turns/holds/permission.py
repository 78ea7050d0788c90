"""The permission card: a question of the turn that waits for a person."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, final

import structlog

import fibers as fb
from streamengine.history.directory import DurableDirectory
from streamengine.model.base import CamelModel
from streamengine.model.errors import HistoryError

from ..model.errors import TurnError
from ..open_turn import TurnEnd
from ..subscribers import Subscribers
from .hold import Hold, Holder

Verdict = Literal["allowed", "denied", "dropped"]
"""dropped: nobody answered; the turn ended, or another question took the place."""

_FILE = "permissions.json"
_log = structlog.get_logger("turns.holds.permission")


class _Rules(CamelModel):
    rules: Mapping[str, bool] = {}


@dataclass(frozen=True, slots=True)
class PermissionCard:
    """What a person is asked. ``subject`` names what a remembered answer is for."""

    request_id: str
    turn_id: str
    question: str
    subject: str


@dataclass(frozen=True, slots=True)
class PermissionNews:
    """What became of a card: it is up now, or it is gone, with what was said to it."""

    card: PermissionCard
    verdict: Verdict | None = None
    """None: it is up, and waits."""


@final
class PermissionDesk:
    """The card of one workspace, and what persons wished to be remembered."""

    def __init__(self, directory: DurableDirectory) -> None:
        self._directory = directory
        self._card: PermissionCard | None = None
        self._verdict: fb.Deferred[Verdict] | None = None
        self._owner: PermissionHold | None = None
        self._rules: _Rules | None = None
        self._writing = asyncio.Lock()
        self._subscribers = Subscribers[PermissionNews]("permissions")

    @property
    def card(self) -> PermissionCard | None:
        """What is asked now."""
        return self._card

    def subscribe(self, f: Callable[[PermissionNews], object]) -> Callable[[], None]:
        """Call ``f`` for each card that is put up, and once when it is gone: so an id that was told
        can be answered until it is told again. Gives what ends that.
        """
        return self._subscribers.subscribe(f)

    @fb.effect
    async def answer(self, request_id: str, *, allow: bool, remember: bool = False) -> bool:
        """Answer the card with that id. False, and nothing is kept, where it isn't the live one.

        With ``remember`` the same ``subject`` is not asked again, once that is on disk.
        """
        card, verdict, owner = self._card, self._verdict, self._owner
        if not request_id or card is None or verdict is None or card.request_id != request_id:
            return False
        said: Verdict = "allowed" if allow else "denied"
        self._clear(said)
        with fb.uninterruptible():  # nobody but this answers it any more
            if remember:
                await self._remember(card.subject, allow)
            verdict.done_unsafe(fb.Success(said))
        if owner is not None:
            owner._holder.changed()
        return True

    @fb.effect
    async def remembered(self, subject: str) -> bool | None:
        """What a person said once and for all; None where nobody did."""
        rules = await self._load()
        return None if rules is None else rules.rules.get(subject)

    def _show(self, owner: PermissionHold, card: PermissionCard) -> fb.Deferred[Verdict]:
        self._drop()
        self._card, self._owner = card, owner
        verdict = self._verdict = fb.Deferred[Verdict]()
        self._subscribers.tell(PermissionNews(card))
        return verdict

    def _drop(self) -> None:
        verdict = self._verdict
        self._clear("dropped")
        if verdict is not None:
            verdict.done_unsafe(fb.Success("dropped"))

    def _clear(self, said: Verdict) -> None:
        # With no suspension between the check of an id and this: an answer counts once.
        card = self._card
        self._card = self._verdict = self._owner = None
        if card is not None:
            self._subscribers.tell(PermissionNews(card, said))

    async def _load(self) -> _Rules | None:
        """None: they can't be read, and are looked at again when somebody asks again."""
        if self._rules is None:
            rules = await asyncio.to_thread(self._read)
            if self._rules is None:
                self._rules = rules
        return self._rules

    def _read(self) -> _Rules | None:
        try:
            with self._directory.opened() as directory:
                content = None if directory is None else directory.read(_FILE)
            return _Rules() if content is None else _Rules.model_validate_json(content.data)
        except (HistoryError, ValueError) as error:
            _log.warning(
                "the remembered permissions can't be read: everything is asked again",
                path=str(self._directory.path / _FILE),
                wayOut="Mend the file, or move it away.",
                error=str(error),
            )
            return None

    async def _remember(self, subject: str, allow: bool) -> None:
        async with self._writing:
            known = await self._load()
            if known is None:
                # Not written over: what persons wished before may still be mended.
                _log.warning(
                    "a permission could not be remembered", error="those before it can't be read"
                )
                return
            rules = known.model_copy(update={"rules": {**known.rules, subject: allow}})
            try:
                await asyncio.to_thread(self._write, rules)
            except HistoryError as error:
                _log.warning("a permission could not be remembered", error=str(error))
                return
            self._rules = rules

    def _write(self, rules: _Rules) -> None:
        with self._directory.made() as directory:
            directory.replace(_FILE, rules.to_json().encode(), durable=True)


@final
class PermissionHold(Hold):
    """The turn's question. At most one is open in a workspace."""

    name: ClassVar[str] = "permission card"

    def __init__(self, holder: Holder, desk: PermissionDesk) -> None:
        super().__init__(holder)
        self._desk = desk
        self._in_line = asyncio.Lock()

    @property
    def is_open(self) -> bool:
        """Whether a question of this turn waits for a person."""
        return self._desk._owner is self

    @fb.effect(raises=TurnError)
    async def ask(self, question: str, *, subject: str) -> Verdict:
        """Ask a person, and wait. Tools of one turn ask one after another.

        Answered at once where a person wished ``subject`` to be remembered.
        """
        self._check_open()
        async with self._in_line:
            # Here and not before: the answer to the one in front may be remembered.
            known = await self._desk.remembered(subject)
            if known is not None:
                return "allowed" if known else "denied"
            verdict = self.show(f"p_{uuid.uuid4().hex}", question, subject=subject)
            try:
                return await verdict
            finally:
                if self._desk._verdict is verdict:
                    self._desk._drop()  # who asked was interrupted
                    self._holder.changed()

    def show(self, request_id: str, question: str, *, subject: str) -> fb.Deferred[Verdict]:
        """Put a question with an id of its own up, in the place of the one that is there."""
        self._check_open()
        card = PermissionCard(request_id, self._holder.turn_id, question, subject)
        verdict = self._desk._show(self, card)
        self._holder.changed()
        return verdict

    def _release(self, end: TurnEnd) -> None:
        if self._desk._owner is self:
            self._desk._drop()
