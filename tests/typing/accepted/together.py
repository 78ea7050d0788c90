"""Several effects at once: race, all_, for_each."""

from __future__ import annotations

from typing import Never, assert_type

import fibers as fb
from fibers import Effect, Exit
from tests.typing.kit import Denied, NotFound, User


def races(load: Effect[User, NotFound], many: list[Effect[User, NotFound]]) -> None:
    assert_type(fb.race(load, load), Effect[User, NotFound])
    assert_type(fb.race_first(load, load, load), Effect[User, NotFound])
    assert_type(fb.race_all(many), Effect[User, NotFound])
    assert_type(fb.race_all_first(many), Effect[User, NotFound])


def a_race_with_what_cannot_fail(load: Effect[User, NotFound], fallback: Effect[User]) -> None:
    assert_type(fb.race(load, fallback), Effect[User, NotFound])


def racers_of_several_types(
    load: Effect[User, NotFound], count: Effect[int, Denied]
) -> Effect[User | int, NotFound | Denied]:
    """The wanted type decides; by itself mypy would join the two to object and Exception."""
    return fb.race(load, count)


def lists(loads: list[Effect[User, NotFound]]) -> None:
    assert_type(fb.all_(loads), Effect[list[User], NotFound])
    assert_type(fb.all_(loads, concurrency="unbounded"), Effect[list[User], NotFound])
    assert_type(fb.all_(load for load in loads), Effect[list[User], NotFound])
    assert_type(fb.all_(loads, mode="result"), Effect[list[Exit[User, NotFound]], Never])
    assert_type(fb.all_(loads, discard=True), Effect[None, NotFound])
    assert_type(fb.all_(loads, mode="result", discard=True), Effect[None, Never])


def mappings(loads: dict[str, Effect[User, NotFound]]) -> None:
    assert_type(fb.all_(loads), Effect[dict[str, User], NotFound])
    assert_type(fb.all_(loads, concurrency=2), Effect[dict[str, User], NotFound])
    assert_type(fb.all_(loads, mode="result"), Effect[dict[str, Exit[User, NotFound]], Never])
    assert_type(fb.all_(loads, discard=True), Effect[None, NotFound])
    assert_type(fb.all_(loads, mode="result", discard=True), Effect[None, Never])


def each(ids: list[str], load: Effect[User, NotFound], exit_: Exit[User, Denied]) -> None:
    def length(text: str) -> Effect[int]:
        return Effect.succeed(len(text))

    assert_type(fb.for_each(ids, length), Effect[list[int], Never])
    assert_type(fb.for_each(ids, lambda _: load, concurrency=4), Effect[list[User], NotFound])
    assert_type(
        fb.for_each(ids, lambda name: Effect.succeed(User(name))), Effect[list[User], Never]
    )
    assert_type(fb.for_each(ids, lambda _: exit_), Effect[list[User], Denied])
    assert_type(fb.for_each(ids, lambda _: load, discard=True), Effect[None, NotFound])
