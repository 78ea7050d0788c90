"""explore: the same test in many orders, and the one that failed again."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
from collections.abc import Awaitable, Callable
from typing import Any, Final

from typing_extensions import ParamSpec

from fibers.testing.loop import TestLoop

P = ParamSpec("P")

SEED_VARIABLE: Final = "FIBER_SEED"
"""Replays one order in every ``explore`` of a process, where pytest's ``--fiber-seed`` isn't."""

_forced_seed: int | None = None
_forced_count: int | None = None


def force(*, seed: int | None, count: int | None) -> None:
    """What the command line asks for, instead of what the tests say (the plugin's)."""
    global _forced_seed, _forced_count
    _forced_seed, _forced_count = seed, count


def seeds_for(count: int) -> range:
    """The seeds that an ``explore(count)`` tries."""
    seed = _forced_seed
    if seed is None and SEED_VARIABLE in os.environ:
        text = os.environ[SEED_VARIABLE]
        try:
            seed = int(text)
        except ValueError:
            raise ValueError(f"{SEED_VARIABLE} is a whole number, not {text!r}") from None
    if seed is not None:
        return range(seed, seed + 1)
    return range(count if _forced_count is None else _forced_count)


def explore(
    seeds: int = 100,
) -> Callable[[Callable[P, Awaitable[object]]], Callable[P, None]]:
    """Run an async test (or one that gives an effect) in ``seeds`` different orders.

        @explore(200)
        async def test_no_permit_is_lost() -> None: ...

    Each order has a TestLoop of its own: time jumps, ready fibers and tasks run shuffled. The first
    failure ends it, with a note that names the seed; ``pytest --fiber-seed 17`` runs that order
    alone. What the decorator gives is a plain function: no plugin for async tests is needed, and
    fixtures are shared by all orders. ValueError unless ``seeds`` is a positive int.
    """
    given: Any = seeds  # annotations bind nobody who runs no type checker
    if not isinstance(given, int) or isinstance(given, bool) or given < 1:
        raise ValueError(f"explore() takes a number of seeds, at least 1, not {given!r}")

    def decorate(test: Callable[P, Awaitable[object]]) -> Callable[P, None]:
        @functools.wraps(test)
        def run(*args: P.args, **kwargs: P.kwargs) -> None:
            for seed in seeds_for(seeds):
                try:
                    run_on_test_loop(functools.partial(test, *args, **kwargs), seed=seed)
                except BaseException as exc:
                    exc.add_note(
                        f"in the order of seed {seed}: replay it with `pytest --fiber-seed {seed}`"
                        f" or {SEED_VARIABLE}={seed}"
                    )
                    raise

        return _as_plain(run, test)

    return decorate


def _as_plain(run: Callable[P, None], test: Callable[..., object]) -> Callable[P, None]:
    # pytest looks through __wrapped__ and would find an async test. The fixtures stand in the
    # signature.
    vars(run).pop("__wrapped__", None)
    vars(run)["__signature__"] = inspect.signature(test)
    return run


def virtual_time(test: Callable[P, Awaitable[object]]) -> Callable[P, None]:
    """Run an async test on a TestLoop, in the usual order: what it sleeps takes no time."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        run_on_test_loop(functools.partial(test, *args, **kwargs), seed=None)

    return _as_plain(run, test)


def run_on_test_loop(make: Callable[[], Awaitable[object]], *, seed: int | None) -> None:
    """Await what ``make`` gives on a TestLoop of its own."""

    async def main() -> None:
        await make()

    with asyncio.Runner(loop_factory=lambda: TestLoop(seed=seed)) as runner:
        runner.run(main())
