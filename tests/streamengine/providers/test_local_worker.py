"""The model's thread, where no stream is in the way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest
import structlog.testing

from streamengine.providers.local.model import LanguageModel, Sampling
from streamengine.providers.local.outbox import Outbox
from streamengine.providers.local.worker import Ask, Job, Piece, Worker

from .fake_model import BOUND_SECONDS, FakeModel


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


def _prompt(model: LanguageModel) -> list[int]:
    return model.tokens_of("hello")


ASK = Ask(_prompt, Sampling(temperature=0), limit_tokens=100, seed=None)


def _join_model_threads() -> None:
    for thread in threading.enumerate():
        if thread.name == "local-model":
            thread.join(BOUND_SECONDS)
            assert not thread.is_alive()


def test_an_answer_for_a_loop_that_is_gone_is_given_up() -> None:
    model = FakeModel("x" * 50)
    worker = Worker(lambda: model, lanes=1)

    async def ask() -> Job:
        return Job(ASK, Outbox[Piece](10, worker.wake))

    job = asyncio.run(ask())
    worker.submit(job)
    _join_model_threads()

    assert job.cancelled
    assert len(model.trace) == 1


def test_a_failure_for_a_loop_that_is_gone_is_given_up() -> None:
    def fail() -> FakeModel:
        raise OSError("no memory")

    worker = Worker(fail, lanes=1)

    async def ask() -> Job:
        return Job(ASK, Outbox[Piece](10, worker.wake))

    worker.submit(asyncio.run(ask()))
    _join_model_threads()


async def test_an_outbox_gives_in_order_and_says_when_there_is_room_again() -> None:
    room: list[str] = []
    outbox: Outbox[int] = Outbox(2, lambda: room.append("room"))
    outbox.put(1)
    had_room = outbox.has_room
    outbox.put(2)

    assert (had_room, outbox.has_room) == (True, False)
    assert (await outbox.get(), room) == (1, ["room"])
    assert (await outbox.get(), room) == (2, ["room"])


async def test_an_outbox_that_is_closed_wakes_its_reader_and_gives_nothing() -> None:
    outbox: Outbox[int] = Outbox(2, lambda: None)
    reading = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)

    outbox.close()

    assert await reading is None
    outbox.put(1)
    assert await outbox.get() is None


async def test_what_a_thread_puts_wakes_the_reader() -> None:
    outbox: Outbox[int] = Outbox(2, lambda: None)
    reading = asyncio.ensure_future(outbox.get())
    await asyncio.sleep(0)

    await asyncio.to_thread(outbox.put, 7)

    assert await reading == 7
