"""Streams: a provider of one's own, what a start gives, events told apart by their type."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Literal, assert_type

import fibers as fb
from fibers import AbortSignal, Effect
from fibers.app import AppScope, Occupant
from streamengine import (
    Completion,
    Event,
    FileHistory,
    Provider,
    ProviderPart,
    SendError,
    StreamEngine,
    StreamHandle,
    StreamRequest,
)
from streamengine.model import Finish, StreamAbortEvent, StreamDeltaEvent, TextDelta


class Echo:
    async def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart]:
        yield TextDelta(text=request.text)
        yield Finish(finish_reason="stop")


def a_class_with_the_method_is_a_provider() -> Provider:
    return Echo()


def an_engine_is_an_occupant(scope: AppScope) -> Occupant:
    return StreamEngine(history=FileHistory("state"), provider=Echo(), scope=scope)


def a_state_directory_is_text_or_a_path() -> tuple[FileHistory, FileHistory]:
    return FileHistory("state"), FileHistory(Path("state"))


def a_start_says_how_it_fails(engine: StreamEngine) -> None:
    started = engine.start_stream("w1", StreamRequest(text="Hi"))
    assert_type(started, Effect[StreamHandle, SendError])
    assert_type(engine.stop_stream("w1", reason="user"), Effect[None])


@fb.effect(raises=SendError)
async def an_end_has_a_status(engine: StreamEngine) -> str:
    handle = await engine.start_stream("w1", StreamRequest(text="Hi"))
    end = await handle.completion
    assert_type(end, Completion)
    assert_type(end.status, Literal["completed", "failed", "aborted"])
    return end.status


def events_are_told_apart(event: Event) -> str:
    match event.type:
        case "stream-delta":
            assert_type(event, StreamDeltaEvent)
            return event.delta
        case "stream-abort":
            assert_type(event, StreamAbortEvent)
            return event.message_id
        case _:
            return event.type
