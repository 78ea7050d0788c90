"""Those who are told of something."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from turns.subscribers import Subscribers


def test_a_function_that_came_twice_goes_once_for_each_stop() -> None:
    heard: list[int] = []
    told = Subscribers[int]("numbers")
    stop, _ = told.subscribe(heard.append), told.subscribe(heard.append)

    stop()
    stop()
    told.tell(1)

    assert heard == [1]


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("it can't be printed")

    __repr__ = __str__


@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError(), Unprintable()])
def test_the_failure_of_one_reaches_neither_the_others_nor_who_tells(error: BaseException) -> None:
    heard: list[int] = []

    def fail(_value: int) -> None:
        raise error

    told = Subscribers[int]("numbers")
    told.subscribe(fail)
    told.subscribe(heard.append)

    with capture_logs() as logs:
        told.tell(1)

    assert heard == [1]
    assert [log["event"] for log in logs] == ["a subscriber of numbers failed"]
