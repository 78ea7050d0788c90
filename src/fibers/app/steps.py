"""Named steps of a start or a teardown, checked when they are given."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from fibers.misplaced import closed_coroutine


def check_steps(what: str, *groups: Iterable[tuple[str, Any]]) -> None:
    """ValueError where two of all these steps have one name; TypeError where one is no pair of a
    name and a function: a step that can't be called would show when it is its turn, of a teardown
    at the worst moment.
    """
    names: list[str] = []
    for step in (step for group in groups for step in group):
        pair: Any = step  # annotations bind nobody who runs no type checker
        if not isinstance(pair, tuple) or len(pair) != 2 or not isinstance(pair[0], str):  # pyright: ignore[reportUnknownArgumentType]  # of anything
            raise TypeError(f"{what} step is a pair of a name and a function, not {pair!r}")
        name, call = step
        if not callable(call):
            closed_coroutine(call)
            raise TypeError(
                f"the {what} step {name!r} takes a function that is called at its turn, not "
                f"{type(call).__name__}: name it without the brackets, or say lambda: ..."
            )
        names.append(name)
    if len(set(names)) != len(names):
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{what} steps need names of their own: {', '.join(twice)} twice")
