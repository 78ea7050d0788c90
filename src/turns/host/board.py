"""The board: the turns of each workspace as a tree, folded from what is told of them.

Records say what a turn is called and why it ended; events say what is below it, and what others
want of it; permissions say what it waits for. Nothing here asks or waits: what was told so far is
what the board shows.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, TypeAlias, final

from streamengine.model.base import CamelModel

from ..events import (
    InterruptReceivedEvent,
    OrphanReason,
    SteeringInjectedEvent,
    SubturnEndEvent,
    SubturnOrphanEvent,
    SubturnSpawnEvent,
    TurnEndEvent,
    TurnEvent,
    TurnStartEvent,
)
from ..holds.permission import PermissionNews
from ..model.record import TurnRecord
from ..subturns.spawn import ENDED_HARD, INTERRUPTED

ROOTS: Final = 50
"""How many turns of a workspace are shown, not counting older ones that have not ended."""

SUBTURNS: Final = 100
"""How many turns below one of them are shown, not counting older ones that have not ended."""

PROMPT_CHARACTERS: Final = 200

NodeState: TypeAlias = Literal[
    "queued", "starting", "running", "waiting", "completed", "interrupted", "error"
]
"""waiting: for the answer to a question."""

Interrupt: TypeAlias = Literal["graceful", "hard_abort"]

_ENDED: Final = frozenset({"completed", "interrupted", "error"})


class Question(CamelModel):
    """What a turn asks a person. ``subject``: what a remembered answer is for."""

    request_id: str
    question: str
    subject: str


class TurnNode(CamelModel):
    """One turn as it is shown. A root has a handle, a turn below another one has a parent."""

    id: str
    """The id of the turn."""
    parent_id: str | None = None
    handle_id: str | None = None
    prompt: str
    """Its beginning."""
    state: NodeState
    cause: str | None = None
    """Why it settled, as records name it."""
    reason: str | None = None
    """Why it did not complete, in words for a person."""
    critical: bool = False
    """Whether it goes on when its parent has ended."""
    created_at_ms: int
    """This and the next two: milliseconds since the Unix epoch."""
    started_at_ms: int | None = None
    """None also for one that began in an earlier process."""
    ended_at_ms: int | None = None
    interrupt: Interrupt | None = None
    """How somebody asked it to end."""
    steered: int = 0
    """How many messages it was given on its way."""
    question: Question | None = None
    orphan: OrphanReason | None = None
    """Why nobody took its result."""

    @property
    def has_ended(self) -> bool:
        return self.state in _ENDED


@dataclass(frozen=True, slots=True)
class Change:
    """What is different on the board: turns that are new or not what they were, and ids of turns
    that it shows no more.
    """

    workspace_id: str
    nodes: tuple[TurnNode, ...] = ()
    gone: tuple[str, ...] = ()


@final
class Board:
    """The trees of all workspaces. Each ``fold`` gives what it changed, None where nothing did.

    board = Board()
    board.fold_record(record)
    board.nodes(record.workspace_id)

    An event of a turn without a record says nothing to it. What is beyond the bounds goes when one
    more comes; what has not ended, or has something below it that has not, stays.
    """

    def __init__(self, *, roots: int = ROOTS, subturns: int = SUBTURNS) -> None:
        self._roots = roots
        self._subturns = subturns
        self._trees: dict[str, _Tree] = {}

    def nodes(self, workspace_id: str) -> tuple[TurnNode, ...]:
        """The turns of a workspace: roots as they were created, each before what is below it."""
        tree = self._trees.get(workspace_id)
        return () if tree is None else tuple(tree.in_order())

    def knows(self, record: TurnRecord) -> bool:
        """Whether the turn of this record is on the board."""
        tree = self._trees.get(record.workspace_id)
        return tree is not None and tree.find(record.turn_id) is not None

    def fold_record(self, record: TurnRecord, *, is_new: bool = False) -> Change | None:
        """A record as it is now; of a turn that is not known yet, in the order of creation.
        ``is_new``: it was created just now, and comes last, wherever the clock was set to.
        """
        tree = self._trees.setdefault(record.workspace_id, _Tree(record.workspace_id))
        known = tree.find(record.turn_id)
        if known is not None:
            return _changed(tree, _with_record(known, record))
        tree.add(_node_of(record), is_last=is_new)
        gone = tree.trim_roots(self._roots)
        if record.turn_id not in gone:
            return Change(record.workspace_id, (tree.get(record.turn_id),), tuple(gone))
        # Older than all that is shown: it was never there for anybody.
        gone.remove(record.turn_id)
        return Change(record.workspace_id, gone=tuple(gone)) if gone else None

    def fold_event(self, event: TurnEvent) -> Change | None:
        """An event, whatever it is: most are no matter of the tree."""
        tree = self._trees.get(event.workspace_id)
        if tree is None:
            return None
        if isinstance(event, SubturnSpawnEvent):
            return self._spawned(tree, event)
        known = tree.find(_subject_of(event))
        return None if known is None else _changed(tree, _with_event(known, event))

    def fold_permission(self, workspace_id: str, news: PermissionNews) -> Change | None:
        """A question that is up, or gone."""
        tree = self._trees.get(workspace_id)
        known = None if tree is None else tree.find(news.card.turn_id)
        if tree is None or known is None:
            return None
        return _changed(tree, _with_permission(known, news))

    def _spawned(self, tree: _Tree, event: SubturnSpawnEvent) -> Change | None:
        if tree.find(event.turn_id) is None or tree.find(event.child_id) is not None:
            return None
        tree.add(
            TurnNode(
                id=event.child_id,
                parent_id=event.turn_id,
                prompt=_beginning(event.prompt),
                state="running",
                critical=event.critical,
                created_at_ms=event.timestamp_ms,
                started_at_ms=event.timestamp_ms,
            ),
            is_last=True,
        )
        gone = tree.trim_below(tree.root_of(event.child_id), self._subturns)
        return Change(tree.workspace_id, (tree.get(event.child_id),), tuple(gone))


@final
class _Tree:
    """The turns of one workspace."""

    def __init__(self, workspace_id: str) -> None:
        self.workspace_id = workspace_id
        self._nodes: dict[str, TurnNode] = {}
        self._roots: list[str] = []
        self._children: dict[str, list[str]] = {}
        self._places: dict[str, int] = {}
        """By id, when it was created in milliseconds since the Unix epoch, or what puts it last."""
        self._last_place = 0
        self._looked_at_next: set[str] = set()
        """Roots that may have to go: new ones, and those of which something has ended."""

    # ---- asking

    def find(self, turn_id: str) -> TurnNode | None:
        return self._nodes.get(turn_id)

    def get(self, turn_id: str) -> TurnNode:
        return self._nodes[turn_id]

    def in_order(self) -> Iterator[TurnNode]:
        for root in self._roots:
            yield from self._with_all_below(root)

    def root_of(self, turn_id: str) -> str:
        node = self._nodes[turn_id]
        while node.parent_id is not None:
            node = self._nodes[node.parent_id]
        return node.id

    def _with_all_below(self, turn_id: str) -> Iterator[TurnNode]:
        yield self._nodes[turn_id]
        for child in self._children.get(turn_id, ()):
            yield from self._with_all_below(child)

    # ---- changes

    def put(self, node: TurnNode) -> None:
        """A turn that is there, as it is now."""
        self._nodes[node.id] = node
        if node.has_ended:
            self._looked_at_next.add(self.root_of(node.id))

    def add(self, node: TurnNode, *, is_last: bool) -> None:
        """One more turn: as it was created, or ``is_last``."""
        self._nodes[node.id] = node
        place = max(node.created_at_ms, self._last_place + 1) if is_last else node.created_at_ms
        self._places[node.id] = place
        self._last_place = max(place, self._last_place)
        if node.parent_id is None:
            bisect.insort(self._roots, node.id, key=self._places.__getitem__)
            self._looked_at_next.add(node.id)
        else:
            self._children.setdefault(node.parent_id, []).append(node.id)

    def trim_roots(self, most: int) -> list[str]:
        """Forget what has ended of the roots beyond the newest, each with what is below it. Gives
        all ids.
        """
        newest = self._roots[-most:]
        # Not all the others: each turn that joins a long queue would cost more than the last one.
        looked_at = self._looked_at_next.union(self._roots[-most - 1 : -most]).difference(newest)
        self._looked_at_next.clear()
        return self._forget_ended(sorted(looked_at, key=self._places.__getitem__))

    def trim_below(self, root: str, most: int) -> list[str]:
        """The same for what is below a root."""
        below = [node.id for node in self._with_all_below(root)][1:]
        below.sort(key=self._places.__getitem__)
        return self._forget_ended(below[:-most])

    def _forget_ended(self, turn_ids: list[str]) -> list[str]:
        gone: list[str] = []
        for turn_id in turn_ids:
            # One that is not there went with what it was below.
            if turn_id in self._nodes and self._is_over(turn_id):
                gone.extend(self._forget(turn_id))
        return gone

    def _is_over(self, turn_id: str) -> bool:
        """Whether it and all below it have ended."""
        return all(node.has_ended for node in self._with_all_below(turn_id))

    def _forget(self, turn_id: str) -> list[str]:
        gone = [node.id for node in self._with_all_below(turn_id)]
        parent_id = self._nodes[turn_id].parent_id
        siblings = self._roots if parent_id is None else self._children[parent_id]
        siblings.remove(turn_id)
        for each in gone:
            del self._nodes[each], self._places[each]
            self._children.pop(each, None)
        return gone


# ---- one turn


def _subject_of(event: TurnEvent) -> str:
    """The id of the turn that an event says something of."""
    match event:
        case SubturnEndEvent() | SubturnOrphanEvent():
            return event.child_id
        case _:
            return event.turn_id


def _changed(tree: _Tree, node: TurnNode) -> Change | None:
    if node == tree.get(node.id):
        return None
    tree.put(node)
    return Change(tree.workspace_id, (node,))


def _node_of(record: TurnRecord) -> TurnNode:
    made = TurnNode(
        id=record.turn_id,
        handle_id=record.handle_id,
        prompt=_beginning(record.prompt or ""),
        state="queued",
        created_at_ms=_ms(record.created_at),
    )
    return _with_record(made, record)


def _with_record(node: TurnNode, record: TurnRecord) -> TurnNode:
    changed_at_ms = _ms(record.updated_at)
    fields: dict[str, Any] = {"cause": record.cause, "reason": record.error}
    if record.is_terminal:
        # Nobody can answer it any more, although its desk may say so later.
        fields |= {"state": record.status, "question": None}
        fields["ended_at_ms"] = node.ended_at_ms or changed_at_ms
    elif node.question is None:
        fields["state"] = record.status
    if record.status == "starting":
        fields["started_at_ms"] = node.started_at_ms or changed_at_ms
    return node.model_copy(update=fields)


def _with_event(node: TurnNode, event: TurnEvent) -> TurnNode:
    fields: dict[str, Any] = {}
    match event:
        case TurnStartEvent():
            fields["started_at_ms"] = node.started_at_ms or event.timestamp_ms
        case TurnEndEvent():
            # Its state is the record's to say: what is tried again goes on.
            fields["ended_at_ms"] = node.ended_at_ms or event.timestamp_ms
        case SubturnEndEvent(status=status, error=error):
            was_interrupted = error in (INTERRUPTED, ENDED_HARD)
            fields["state"] = "interrupted" if was_interrupted else status
            fields |= {"reason": error, "ended_at_ms": event.timestamp_ms}
        case SubturnOrphanEvent():
            fields["orphan"] = event.reason
        case InterruptReceivedEvent(kind="graceful" | "hard_abort" as kind):
            fields["interrupt"] = "hard_abort" if node.interrupt == "hard_abort" else kind
        case SteeringInjectedEvent():
            fields["steered"] = node.steered + event.messages
        case _:
            pass
    return node.model_copy(update=fields)


def _with_permission(node: TurnNode, news: PermissionNews) -> TurnNode:
    card = news.card
    if news.verdict is None and not node.has_ended:
        asked = Question(request_id=card.request_id, question=card.question, subject=card.subject)
        return node.model_copy(update={"question": asked, "state": "waiting"})
    if node.question is None or node.question.request_id != card.request_id:
        return node
    return node.model_copy(update={"question": None, "state": "running"})


def _beginning(prompt: str) -> str:
    if len(prompt) <= PROMPT_CHARACTERS:
        return prompt
    return f"{prompt[: PROMPT_CHARACTERS - 1].rstrip()}\u2026"


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)
