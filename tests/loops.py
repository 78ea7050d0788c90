"""One test on each kind of event loop that the project supports.

A decorator and not a plugin's parametrization: the test owns its loop, so that what reaches the
loop's exception handler, also at its end, fails the test.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from typing import TYPE_CHECKING, Any, Final

import pytest
import uvloop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

LOOP_KINDS: Final[dict[str, Callable[[], asyncio.AbstractEventLoop]]] = {
    "asyncio": asyncio.new_event_loop,
    "uvloop": uvloop.new_event_loop,
}


def run_on(kind: str, main: Awaitable[None], *, debug: bool = False) -> None:
    """Run ``main`` in a new loop of this kind; fail on anything its exception handler is told."""
    told: list[dict[str, Any]] = []
    with asyncio.Runner(loop_factory=LOOP_KINDS[kind], debug=debug) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: told.append(context))
        runner.run(_as_coroutine(main))
    assert told == []


async def _as_coroutine(main: Awaitable[None]) -> None:
    await main


def every_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """Run an ``async def`` test once on each kind of loop; synchronous fixtures can be used."""

    @functools.wraps(test)
    def on_one_loop(*args: Any, loop_kind: str, **kwargs: Any) -> None:
        run_on(loop_kind, test(*args, **kwargs))

    own = inspect.signature(test)
    kind = inspect.Parameter("loop_kind", inspect.Parameter.KEYWORD_ONLY)
    # What pytest reads the names of the fixtures from.
    seen: Any = on_one_loop
    seen.__signature__ = own.replace(parameters=[*own.parameters.values(), kind])
    marked: Callable[..., None] = pytest.mark.parametrize("loop_kind", LOOP_KINDS)(on_one_loop)
    return marked
