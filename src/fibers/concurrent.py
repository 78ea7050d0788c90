"""Several effects at once: race, all_, for_each (TR, FE)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, Never, TypeVar, cast, final, overload

from fibers.effect import Effect, _Sequence, _Workers, site_of
from fibers.exit import failed, succeeded
from fibers.misplaced import check_function, check_iterable, checked_effects
from fibers.ops.basic import ExitOp, FailCauseOp, SucceedOp
from fibers.ops.group import RaceOp

if TYPE_CHECKING:
    from fibers.exit import Exit

A = TypeVar("A")
X = TypeVar("X")
E = TypeVar("E", bound=Exception)

Concurrency = int | Literal["unbounded"]


class _Race(RaceOp, Effect[Any, Any]):
    __slots__ = ()


def race(*effects: Effect[A, E]) -> Effect[A, E]:
    """The first success; all failures, in order of completion, if none succeeds (TR7). The others
    are interrupted and finalized first. ValueError without effects.
    """
    return _Race(_at_least_one(effects, "race"), first_to_end=False, site=site_of(1))


def race_all(effects: Iterable[Effect[A, E]]) -> Effect[A, E]:
    """``race`` of an iterable."""
    return _Race(_at_least_one(effects, "race_all"), first_to_end=False, site=site_of(1))


def race_first(*effects: Effect[A, E]) -> Effect[A, E]:
    """The first to end, be it a failure (TR8)."""
    return _Race(_at_least_one(effects, "race_first"), first_to_end=True, site=site_of(1))


def race_all_first(effects: Iterable[Effect[A, E]]) -> Effect[A, E]:
    """``race_first`` of an iterable."""
    return _Race(_at_least_one(effects, "race_all_first"), first_to_end=True, site=site_of(1))


def _at_least_one(effects: Iterable[Effect[A, E]], what: str) -> tuple[Effect[A, E], ...]:
    given = checked_effects(effects, what)
    if not given:
        raise ValueError(f"{what} of no effects would never end: give it at least one")
    return given


def _limit(concurrency: object) -> int | None:
    """None for unbounded; ValueError for anything but a positive int or "unbounded" (FE7)."""
    if concurrency == "unbounded":
        return None
    if isinstance(concurrency, bool) or not isinstance(concurrency, int) or concurrency < 1:
        raise ValueError(f'concurrency must be a positive int or "unbounded", not {concurrency!r}')
    return concurrency


def _each(
    items: Iterable[Any], f: Callable[[Any], Any], concurrency: Concurrency, discard: bool
) -> Effect[Any, Any]:
    limit = _limit(concurrency)
    if limit == 1:
        return _Sequence(items, f, discard)
    return _Workers(items, f, limit, discard, site_of(2))


@overload
def for_each(
    items: Iterable[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    concurrency: Concurrency = 1,
    discard: Literal[False] = False,
) -> Effect[list[A], E]: ...
@overload
def for_each(
    items: Iterable[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    concurrency: Concurrency = 1,
    discard: Literal[True],
) -> Effect[None, E]: ...
def for_each(
    items: Iterable[X],
    f: Callable[[X], Effect[A, E] | Exit[A, E]],
    *,
    concurrency: Concurrency = 1,
    discard: bool = False,
) -> Effect[Any, E]:
    """``f(item)`` for each item; results in the order of the items.

    ``concurrency``: how many at a time. The first failure stops it: nothing new is started, what
    runs is interrupted and awaited, and its own failures are appended (FE1-FE5). ``items`` are
    asked for one by one as it runs. An iterator gives them once: a second run, a retry too, dies of
    a RuntimeError.
    """
    check_iterable(items, "for_each")
    check_function(f, "for_each")
    return _each(_Once(items) if isinstance(items, Iterator) else items, f, concurrency, discard)


@final
class _Once(Generic[X]):
    """An iterator's items. Used up, it would make a second run a success that did nothing, and a
    retry go on behind the item that failed.
    """

    __slots__ = ("_items",)

    def __init__(self, items: Iterator[X]) -> None:
        self._items: Iterator[X] | None = items

    def __iter__(self) -> Iterator[X]:
        items, self._items = self._items, None
        if items is None:
            raise RuntimeError(
                "this for_each has run before, and its iterator gives its items once: "
                "give it a list"
            )
        return items


@overload
def all_(
    effects: Mapping[str, Effect[A, E]],
    *,
    concurrency: Concurrency = 1,
    mode: Literal["fail"] = "fail",
    discard: Literal[False] = False,
) -> Effect[dict[str, A], E]: ...
@overload
def all_(
    effects: Mapping[str, Effect[A, E]],
    *,
    concurrency: Concurrency = 1,
    mode: Literal["result"],
    discard: Literal[False] = False,
) -> Effect[dict[str, Exit[A, E]], Never]: ...
@overload
def all_(
    effects: Iterable[Effect[A, E]],
    *,
    concurrency: Concurrency = 1,
    mode: Literal["fail"] = "fail",
    discard: Literal[False] = False,
) -> Effect[list[A], E]: ...
@overload
def all_(
    effects: Iterable[Effect[A, E]],
    *,
    concurrency: Concurrency = 1,
    mode: Literal["result"],
    discard: Literal[False] = False,
) -> Effect[list[Exit[A, E]], Never]: ...
@overload
def all_(
    effects: Iterable[Effect[A, E]] | Mapping[str, Effect[A, E]],
    *,
    concurrency: Concurrency = 1,
    mode: Literal["fail"] = "fail",
    discard: Literal[True],
) -> Effect[None, E]: ...
@overload
def all_(
    effects: Iterable[Effect[A, E]] | Mapping[str, Effect[A, E]],
    *,
    concurrency: Concurrency = 1,
    mode: Literal["result"],
    discard: Literal[True],
) -> Effect[None, Never]: ...
def all_(
    effects: Iterable[Effect[Any, Any]] | Mapping[str, Effect[Any, Any]],
    *,
    concurrency: Concurrency = 1,
    mode: Literal["fail", "result"] = "fail",
    discard: bool = False,
) -> Effect[Any, Any]:
    """The values of all: a list, or a dict for a mapping. ``mode="result"`` gives exits and runs
    them all, whatever fails (FE6).
    """
    if mode not in ("fail", "result"):
        raise ValueError(f'mode must be "fail" or "result", not {mode!r}')
    names: list[str] | None = None
    items: Iterable[Effect[Any, Any]]
    if isinstance(effects, Mapping):
        named = cast("Mapping[str, Effect[Any, Any]]", effects)
        names = list(named)
        items = checked_effects(named.values(), "all_")
    else:
        # A one-shot iterable is read now: an effect can be run many times.
        items = checked_effects(effects, "all_")
    together = _each(items, _exit_of if mode == "result" else _itself, concurrency, discard)
    if names is None or discard:
        return together
    keys = names
    return together.map(lambda values: dict(zip(keys, values, strict=True)))


def _itself(effect: Effect[Any, Any]) -> Effect[Any, Any]:
    return effect


def _exit_of(effect: Effect[Any, Any]) -> Effect[Any, Any]:
    # What is an exit already stays one that needs no worker.
    if isinstance(effect, SucceedOp):
        return Effect.succeed(succeeded(effect.value))
    if isinstance(effect, FailCauseOp):
        return Effect.succeed(failed(effect.cause))
    if isinstance(effect, ExitOp):
        return Effect.succeed(effect.given)
    return effect.exit()
