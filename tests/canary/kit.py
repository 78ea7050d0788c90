"""What the canaries share: a clear text where a Python or a library has changed, and spies."""

from __future__ import annotations

import asyncio
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator

    Test = Callable[[], Coroutine[Any, Any, None] | None]

PINNED: dict[str, str] = {}
"""Every private name that a canary stands for, and the place in src/fibers that relies on it."""


@contextmanager
def relied_on(name: str, by: str) -> Generator[None, None, None]:
    """Fail with a text that names what has changed and who relies on it."""
    version = ".".join(map(str, sys.version_info[:3]))
    try:
        yield
    except (Exception, pytest.fail.Exception) as exc:
        pytest.fail(
            f"Python {version} has changed {name}: {type(exc).__name__}: {exc}\n"
            f"src/fibers/{by} relies on it; change it there first, then this test."
        )


def pins(*names: str, by: str) -> Callable[[Test], Callable[[], None]]:
    """Mark a test as the canary for these private names; it fails in the words of relied_on."""

    def mark(test: Test) -> Callable[[], None]:
        for name in names:
            PINNED[name] = by
        return _explained(test, ", ".join(names), by)

    return mark


def _explained(test: Test, names: str, by: str) -> Callable[[], None]:
    def run() -> None:
        with relied_on(names, by):
            made = test()
            if made is not None:
                asyncio.run(made)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    run.__module__ = test.__module__
    return run


# ---- spies: subclasses of the classes in Python, which show who reads

_asyncio: Any = asyncio

_OWN_REPR: Final = ("asyncio.base_tasks", "asyncio.base_futures")
"""What a future or task of asyncio's own says of itself."""


def read_of_future(main: Callable[[Any], Coroutine[Any, Any, None]]) -> set[str]:
    """The attributes that ``main(make)`` reads of the futures that ``make()`` gives, without what
    they read of themselves.
    """
    return _read_of(_asyncio.futures._PyFuture, main)


def read_of_task(main: Callable[[], Any]) -> set[str]:
    """The attributes that others than the task itself read of the task that runs ``main()``."""

    async def in_a_task(spy: Any) -> None:
        await spy(main(), loop=asyncio.get_running_loop())

    return _read_of(_asyncio.tasks._PyTask, in_a_task)


def _read_of(kind: Any, main: Callable[[Any], Coroutine[Any, Any, None]]) -> set[str]:
    read = set[str]()

    class Spy(kind):  # type: ignore[misc]  # the class is asyncio's
        def __getattribute__(self, name: str) -> Any:
            reader = sys._getframe(1)
            own_repr = reader.f_globals.get("__name__") in _OWN_REPR
            if not own_repr and reader.f_locals.get("self") is not self:
                read.add(name)
            return object.__getattribute__(self, name)

    asyncio.run(main(Spy))
    return {name for name in read if not (name.startswith("__") and name.endswith("__"))}
