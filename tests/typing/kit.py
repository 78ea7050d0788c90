"""The errors, values and functions that the typing cases are about."""

from __future__ import annotations

from dataclasses import dataclass

import fibers as fb
from fibers import AbortSignal


class NotFound(Exception):
    """An expected error."""

    user_id: str = ""


class Denied(Exception):
    """Another one, of no kin."""

    rule: str = ""


class E1(Exception): ...


class E2(Exception): ...


class E3(Exception): ...


class E4(Exception): ...


class E5(Exception): ...


class E6(Exception): ...


class E7(Exception): ...


class E8(Exception): ...


class E9(Exception): ...


@dataclass
class User:
    """A value."""

    name: str


@fb.effect(raises=NotFound)
async def load(user_id: str, *, fresh: bool = False) -> User:
    """An effect."""
    raise NotFound(user_id, fresh)


async def plain() -> User:
    """A coroutine function of nobody's making."""
    return User("ada")


async def heeding(signal: AbortSignal) -> User:
    """One that wants a signal."""
    return User(str(signal.reason))
