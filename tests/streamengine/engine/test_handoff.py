"""The handoff: part after part, with and without a switch between the provider and the pump."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator

import pytest

import fibers as fb
from fibers import Effect
from streamengine.handoff import END, Handoff
from streamengine.model import Event, StreamDeltaEvent

from .conftest import MakeDesk
from .kit import FINISH, TEXT_END, Given, text

pytestmark = pytest.mark.lifecycle

_PARTS = 640
_MOST_A_TURN = 64


async def test_a_provider_that_never_waits_leaves_the_loop_its_turns(desk: MakeDesk) -> None:
    loop = asyncio.get_running_loop()
    turn = 0
    over = False
    told: Counter[int] = Counter()

    def next_turn() -> None:
        nonlocal turn
        turn += 1
        if not over:
            loop.call_soon(next_turn)

    def count(event: Event) -> None:
        if isinstance(event, StreamDeltaEvent):
            told[turn] += 1

    async def flood() -> AsyncGenerator[Given, None]:
        for _ in range(_PARTS):
            yield text("x")
        yield TEXT_END
        yield FINISH

    d = desk(lambda _call: flood())
    d.engine.events.subscribe(count)
    handle = await d.start()
    next_turn()
    await d.done(handle)
    over = True

    assert told.total() == _PARTS
    assert max(told.values()) <= _MOST_A_TURN


class _Handled(list[object]):
    """What was handled in the call that gave it."""

    def __call__(self, part: object) -> bool:
        self.append(part)
        return True


@pytest.mark.spec("BT4")
async def test_a_part_is_handled_at_once_only_while_the_taker_waits() -> None:
    handled = _Handled()
    handoff = Handoff(handled)

    async def give(*words: str) -> None:
        for word in words:
            await handoff.give(text(word))

    giver = fb.run_fork(Effect.promise(lambda: give("first", "second", "third")))
    assert handled == []  # nobody waits yet: the first lies in its place

    assert await handoff.take() == text("first")
    taker = fb.run_fork(Effect.promise(handoff.take))
    await giver
    handoff.end()

    assert handled == [text("second"), text("third")]
    assert await taker is END


async def test_nothing_is_handled_for_a_taker_that_was_interrupted() -> None:
    handled = _Handled()
    handoff = Handoff(handled)
    taker = fb.run_fork(Effect.promise(handoff.take))
    await taker.interrupt()

    giver = fb.run_fork(Effect.promise(lambda: handoff.give(text("late"))))
    handoff.close()

    assert handled == []
    assert await giver is False
