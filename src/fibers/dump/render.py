"""The report as text: what a person reads on a terminal and in a log."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fibers.dump.groups import (
    DEPTH_SHOWN,
    SIBLINGS_SHOWN,
    Group,
    Report,
    ScopeGroups,
    report,
)
from fibers.dump.tree import headline, snapshot, span, tail

LINES_SHOWN: Final = 1000

_INDENT: Final = "  "


def dump() -> str:
    """What is alive in this process: every fiber below the scope or the fiber that owns it, with
    its state and age, whether it is masked, who interrupted it and why, what it waits for, where it
    was forked, and ``file:line`` through the chain of awaits, innermost last.

    Fibers that are alike stand together, so that it stays readable (and bounded) with ten thousand
    of them. It only reads: call it from any thread, also while the loop is blocked.

        print(fb.dump())
    """
    return text_of(report(snapshot()))


def text_of(found: Report) -> str:
    """The report, some line a fiber or group of fibers."""
    if not found.count and not found.scopes:
        return "no live fibers"
    lines = list(_lines(found))
    if len(lines) > LINES_SHOWN:
        lines[LINES_SHOWN:] = [f"... {len(lines) - LINES_SHOWN} more lines"]
    return "\n".join(lines)


def _lines(found: Report) -> Iterator[str]:
    states = ", ".join(f"{count:,} {state}" for state, count in found.states.items())
    fibers = "1 live fiber" if found.count == 1 else f"{found.count:,} live fibers"
    yield f"{fibers}: {states}" if states else fibers
    for scope in found.scopes[:SIBLINGS_SHOWN]:
        yield from _scope_lines(scope, 0)
    if len(found.scopes) > SIBLINGS_SHOWN:
        yield f"... {len(found.scopes) - SIBLINGS_SHOWN} more scopes"
    if found.unowned:
        yield "owned by no scope"
        yield from _group_lines(found.unowned, 1)


def _scope_lines(scope: ScopeGroups, depth: int) -> Iterator[str]:
    indent = _INDENT * depth
    shown = scope.shown
    yield f"{indent}{shown.name}, {shown.strategy}, {shown.state}, {shown.finalizers} to finalize"
    if depth > DEPTH_SHOWN:
        yield f"{indent}{_INDENT}... more below"
        return
    for name, described in shown.occupants.items():
        yield f"{indent}{_INDENT}occupant {name}: {_said(described)}"
    yield from _group_lines(scope.fibers, depth + 1)
    for below in scope.scopes[:SIBLINGS_SHOWN]:
        yield from _scope_lines(below, depth + 1)
    if len(scope.scopes) > SIBLINGS_SHOWN:
        yield f"{indent}{_INDENT}... {len(scope.scopes) - SIBLINGS_SHOWN} more scopes"


def _said(described: object) -> str:
    if isinstance(described, dict):
        return ", ".join(f"{key}={value!r}" for key, value in described.items()) or "idle"  # pyright: ignore[reportUnknownVariableType]  # of plain values
    return str(described)


def _group_lines(groups: list[Group], depth: int) -> Iterator[str]:
    indent = _INDENT * depth
    if groups and depth > DEPTH_SHOWN:
        yield f"{indent}... {sum(g.total for g in groups):,} more below"
        return
    for group in groups[:SIBLINGS_SHOWN]:
        yield f"{indent}{line_of(group)}"
        for place in group.shown.places:
            yield f"{indent}{_INDENT * 2}{place}"
        yield from _group_lines(group.children, depth + 1)
    rest = groups[SIBLINGS_SHOWN:]
    if rest:
        yield f"{indent}... {sum(g.total for g in rest):,} more of {len(rest):,} kinds"


def line_of(group: Group) -> str:
    """One line on the fibers of a group."""
    one = group.shown
    rest = "; ".join(tail(one))
    if group.count == 1:
        return f"{headline(one)}; {rest}"
    names = f" {', '.join(group.names)}, ..." if group.names else ""
    if not names and one.name is not None:
        names = f" {one.name}"
    youngest, oldest = group.ages or (0.0, 0.0)
    ages = span(oldest) if span(youngest) == span(oldest) else f"{span(youngest)} to {span(oldest)}"
    state = one.state if group.ages is None else f"{one.state}, for {ages}"
    masked = ", masked" if one.masked else ""
    interrupted = f", interrupted {' and '.join(one.interrupts)}" if one.interrupts else ""
    return (
        f"{group.count:,} alike, #{one.id} to #{group.last_id}{names}, "
        f"{state}{masked}{interrupted}; {rest}"
    )
