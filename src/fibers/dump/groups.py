"""Fibers that are alike, as one: what makes ten thousand of them readable."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from fibers.dump.tree import FiberShot, ScopeShot, Snapshot

ALIKE_FROM: Final = 6
"""So many fibers are one group though they have different names, or other numbers in what they wait
for; fewer are shown each for itself."""

_SAMPLES_SHOWN: Final = 3
_NUMBERS: Final = re.compile(r"0x[0-9a-f]+|\d+(\.\d+)?")


@dataclass(slots=True)
class Group:
    """Fibers of one parent that are alike, together with what is below them: one is shown, and how
    the others differ.
    """

    shown: FiberShot
    count: int
    last_id: int
    ages: tuple[float, float] | None
    """Of the youngest and the oldest; None where none has suspended yet."""
    names: tuple[str, ...]
    """Some of them, where they have different names."""
    children: list[Group]

    @property
    def total(self) -> int:
        """Those in it and those below them."""
        return sum(group.count * times for group, times in _walk([self]))


@dataclass(slots=True)
class ScopeGroups:
    """A scope, its fibers grouped."""

    shown: ScopeShot
    fibers: list[Group]
    scopes: list[ScopeGroups]


@dataclass(slots=True)
class Report:
    """A snapshot, grouped."""

    count: int
    states: dict[str, int]
    scopes: list[ScopeGroups]
    unowned: list[Group]


def report(shot: Snapshot) -> Report:
    """Group what is alike, at every level."""
    kinds = _Kinds()
    scopes = [_scope(scope, kinds) for scope in shot.scopes]
    unowned = kinds.grouped(shot.unowned)
    return Report(shot.count, dict(kinds.states.most_common()), scopes, unowned)


def _scope(shot: ScopeShot, kinds: _Kinds) -> ScopeGroups:
    whole = ScopeGroups(shot, kinds.grouped(shot.fibers), [])
    todo = [whole]  # no recursion: scopes may be nested deep
    while todo:
        at = todo.pop()
        at.scopes.extend(
            ScopeGroups(child, kinds.grouped(child.fibers), []) for child in at.shown.scopes
        )
        todo.extend(at.scopes)
    return whole


def _walk(groups: Iterable[Group]) -> Iterator[tuple[Group, int]]:
    """Every group below, with how often it is there."""
    todo = [(group, 1) for group in groups]
    while todo:
        group, times = todo.pop()
        yield group, times
        todo.extend((child, times * group.count) for child in group.children)


class _Kinds:
    """Numbers for what makes fibers alike: two subtrees have one number if they look the same."""

    def __init__(self) -> None:
        self.states: Counter[str] = Counter()
        self._numbers: dict[Hashable, int] = {}
        self._below: dict[int, list[Group]] = {}

    def grouped(self, fibers: list[FiberShot]) -> list[Group]:
        """``fibers`` and all below them, in groups."""
        # Children before parents, without recursion: a fiber can have ten thousand ancestors.
        order: list[FiberShot] = []
        todo = list(fibers)
        while todo:
            fiber = todo.pop()
            order.append(fiber)
            todo.extend(fiber.children)
        kind_of: dict[int, int] = {}
        for fiber in reversed(order):
            self.states[fiber.state] += 1
            below = self._groups_of(fiber.children, kind_of)
            self._below[fiber.id] = below
            kind_of[fiber.id] = self._number(
                (
                    fiber.state,
                    fiber.masked,
                    _without_numbers(fiber.interrupts),
                    fiber.places,
                    _without_numbers((fiber.waits_for or "",)),
                    fiber.forked_at,
                    tuple((kind_of[group.shown.id], group.count) for group in below),
                )
            )
        return self._groups_of(fibers, kind_of)

    def _number(self, key: Hashable) -> int:
        return self._numbers.setdefault(key, len(self._numbers))

    def _groups_of(self, fibers: list[FiberShot], kind_of: dict[int, int]) -> list[Group]:
        alike: dict[int, list[FiberShot]] = {}
        for fiber in fibers:
            alike.setdefault(kind_of[fiber.id], []).append(fiber)
        groups: list[Group] = []
        for members in alike.values():
            if len(members) >= ALIKE_FROM:
                groups.append(self._group(members))
                continue
            exactly: dict[Hashable, list[FiberShot]] = {}
            for fiber in members:
                exactly.setdefault((fiber.name, fiber.waits_for), []).append(fiber)
            groups.extend(self._group(same) for same in exactly.values())
        return sorted(groups, key=lambda group: group.shown.id)

    def _group(self, members: list[FiberShot]) -> Group:
        ages = [fiber.age_seconds for fiber in members if fiber.age_seconds is not None]
        names = dict.fromkeys(fiber.name for fiber in members if fiber.name is not None)
        return Group(
            shown=members[0],
            count=len(members),
            last_id=members[-1].id,
            ages=(min(ages), max(ages)) if ages else None,
            names=tuple(list(names)[:_SAMPLES_SHOWN]) if len(names) > 1 else (),
            children=self._below[members[0].id],
        )


def _without_numbers(texts: tuple[str, ...]) -> tuple[str, ...]:
    """``join of #7`` and ``join of #8`` are alike."""
    return tuple(_NUMBERS.sub("N", text) for text in texts)


# ---------------------------------------------------------------------------- for programs

SIBLINGS_SHOWN: Final = 40
DEPTH_SHOWN: Final = 12


def as_json(found: Report) -> dict[str, Any]:
    """The report in plain values, bounded as the text is."""
    return {
        "count": found.count,
        "states": found.states,
        "scopes": [_scope_json(scope) for scope in found.scopes[:SIBLINGS_SHOWN]],
        "unowned": _groups_json(found.unowned, DEPTH_SHOWN),
    }


def _scope_json(scope: ScopeGroups, depth: int = DEPTH_SHOWN) -> dict[str, Any]:
    shown = scope.shown
    return {
        "name": shown.name,
        "strategy": shown.strategy,
        "state": shown.state,
        "finalizers": shown.finalizers,
        "occupants": shown.occupants,
        "fibers": _groups_json(scope.fibers, depth),
        "scopes": [_scope_json(below, depth - 1) for below in scope.scopes[:SIBLINGS_SHOWN]]
        if depth
        else [],
    }


def _groups_json(groups: list[Group], depth: int) -> list[dict[str, Any]]:
    shown: list[dict[str, Any]] = [_group_json(group, depth) for group in groups[:SIBLINGS_SHOWN]]
    rest = groups[SIBLINGS_SHOWN:]
    if rest:
        shown.append({"count": sum(g.total for g in rest), "leftOut": True})
    return shown


def _group_json(group: Group, depth: int) -> dict[str, Any]:
    one = group.shown
    below: list[dict[str, Any]]
    if depth:
        below = _groups_json(group.children, depth - 1)
    else:
        left_out = sum(child.total for child in group.children)
        below = [{"count": left_out, "leftOut": True}] if left_out else []
    return {
        "id": one.id,
        "count": group.count,
        "lastId": group.last_id,
        "name": one.name,
        "names": list(group.names),
        "state": one.state,
        "masked": one.masked,
        "interrupted": list(one.interrupts),
        "ageSeconds": None if group.ages is None else group.ages[1],
        "youngestSeconds": None if group.ages is None else group.ages[0],
        "places": list(one.places),
        "waitsFor": one.waits_for,
        "forkedAt": one.forked_at,
        "children": below,
    }
