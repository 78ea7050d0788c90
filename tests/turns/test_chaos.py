"""Seeded days of a workspace: whatever is asked of its turns and when, all settle, nothing stays.

A failing seed can be run alone: `-k "[17]"`.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import pytest

import fibers as fb
from fibers import AbortSignal, Effect, Fiber
from streamengine import SendError
from tests.streamengine.engine.kit import (
    FINISH,
    WHOLE,
    WORKSPACE,
    Answer,
    Hand,
    calls,
    says,
    text,
)
from turns import TurnError, TurnHandle, TurnOptions, TurnRecord
from turns.loop import Background

from .kit import House, MakeHouse

pytestmark = pytest.mark.lifecycle

ASKED: Final = 25
"""How many things are asked in a day."""
ANSWERS: Final = 200
CUT_OFF: Final[Answer] = says(text("and th"))
LONGEST_SECONDS: Final = 300.0
"""Longer than anything that was begun may take."""


@final
class Day:
    """One house, and all that is asked in it. Everything comes from the seed."""

    def __init__(self, house: MakeHouse, seed: int) -> None:
        self.random = random.Random(seed)
        choices = [WHOLE, calls("slow"), calls("watch"), says(text("hm"), FINISH), CUT_OFF]
        slow, watch = Hand("slow", self._work), Hand("watch", self._work)
        self.h: House = house(
            *(self.random.choice(choices) for _ in range(ANSWERS)),
            tools=lambda _: [slow, Background(watch)],
            children=[self.random.choice([WHOLE, calls("slow")]) for _ in range(ANSWERS)],
            options=TurnOptions(dispose=_removal),
        )
        self.asked: list[Fiber[fb.Exit[Any, Any], Any]] = []
        self.handles: list[TurnHandle] = []

    async def _work(self, _given: dict[str, Any], _signal: AbortSignal) -> object:
        await fb.sleep(self.random.choice([0, 1, 3]))
        return "done"

    async def go_by(self) -> None:
        for _ in range(ASKED):
            await self._ask()
            for _ in range(self.random.randrange(6)):
                await asyncio.sleep(0)

    async def _ask(self) -> None:
        h, turns, loop = self.h, self.h.turns, self.h.joined.loop
        kind = self.random.choice([*_KINDS, "create", "time"])
        if kind == "create" or not self.handles:
            creating = turns.create_turn(
                owner="owner",
                workspace_id=WORKSPACE,
                prompt="Go",
                disposable=self.random.random() < 0.3,
            )
            self.handles.append(await h.rt.run(creating))
            return
        if kind == "time":
            await h.desk.pass_time(self.random.choice([0, 0.5, 2]))
            return
        handle_id = self.random.choice(self.handles).handle_id
        fields: Mapping[str, object] = {
            "prompt": "Look",
            "agent": "main",
            "critical": self.random.random() < 0.5,
            "delivers": self.random.random() < 0.5,
            "timeoutSeconds": 5,
        }
        work: dict[str, Callable[[], Effect[Any, Any]]] = {
            "steer": lambda: turns.steer(handle_id, "And?"),
            "interrupt": lambda: turns.interrupt(handle_id, by="ada"),
            "soft end": lambda: turns.finish(handle_id),
            "hard end": lambda: turns.finish(handle_id, hard=True),
            "continue": lambda: turns.continue_turn(handle_id, prompt="Go on"),
            "spawn": lambda: turns.spawn_subturn(handle_id, fields),
            "stop": lambda: loop.stop(WORKSPACE),
            "queue": lambda: loop.queue(WORKSPACE, "By the way"),
        }
        self.asked.append(h.rt.run_fork(work[kind]().exit()))

    def check_answers(self) -> None:
        """Each question has an answer, and a refusal says why."""
        for fiber in self.asked:
            answered = fiber.poll()
            assert answered is not None, "it still waits"
            exit_ = answered.unwrap()
            if isinstance(exit_, fb.Failure) and not exit_.failure().has_interrupts_only:
                assert isinstance(exit_.failure().squash(), TurnError | SendError)


_KINDS: Final = (
    "steer",
    "steer",
    "interrupt",
    "soft end",
    "hard end",
    "continue",
    "spawn",
    "stop",
    "queue",
)


def _removal(_record: TurnRecord) -> Effect[object, Exception]:
    return fb.sleep(1)


async def check_rest(h: House) -> None:
    """All turns have settled, and nothing is held, runs, or waits."""
    await h.do(h.turns.list())  # a manager begins at its first use
    await h.desk.pass_time(LONGEST_SECONDS)
    records = await h.do(h.turns.list())
    assert [r for r in records if not r.is_terminal] == []
    assert h.turns.describe() == {"running": [], "queued": []}
    assert h.turns._running.places._taken == {}
    assert len(h.turns._book.locks) == len(h.turns._continuing) == 0
    assert h.joined.loop.registry.children == ()
    assert h.is_free
    assert await h.rt.run(h.workspace.continuation.may_arm())


@pytest.mark.spec("T1", "O1")
@pytest.mark.parametrize("seed", range(25))
async def test_all_turns_of_a_day_settle_and_leave_nothing(house: MakeHouse, seed: int) -> None:
    day = Day(house, seed)

    await day.go_by()
    await check_rest(day.h)

    day.check_answers()


@pytest.mark.spec("I9", "T16")
@pytest.mark.parametrize("seed", range(25))
async def test_a_day_that_is_cut_off_is_put_in_order_by_the_next_process(
    house: MakeHouse, seed: int
) -> None:
    day = Day(house, seed)
    await day.go_by()

    closing = day.h.rt.run_fork(day.h.scope.close(reason="system"))
    await day.h.desk.pass_time(20)
    assert closing.poll() is not None
    day.check_answers()
    assert day.h.is_free

    await check_rest(house(*[WHOLE] * ANSWERS))
