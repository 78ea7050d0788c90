"""A turn with a tool and two subturns, stopped softly and hard: the tree of what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fibers as fb
from fibers import AbortSignal
from streamengine import Provider, StreamRequest
from streamengine.model import Finish, ProviderPart, TextDelta
from tools.turn_tree import LAKES, PROMPT, SEAS, Stop, Watched, stopped
from turns.host.models import provider_for


class Helpers:
    """Answers whose last word comes when the turn itself has ended, or never."""

    def __init__(self, *, to_the_end: bool) -> None:
        self._over = asyncio.Event()
        self._to_the_end = to_the_end

    def stream(self, request: StreamRequest, signal: AbortSignal) -> AsyncIterator[Any]:
        return self._play(request.text in (LAKES, SEAS))

    async def _play(self, of_a_helper: bool) -> AsyncGenerator[ProviderPart]:
        yield TextDelta(text="word ")
        if of_a_helper:
            await self._over.wait()
        elif self._to_the_end:
            self._over.set()
        yield Finish(finish_reason="stop")


async def ran(state: Path, provider: Provider, stop: Stop) -> Watched:
    async with asyncio.timeout(60):
        return await fb.scoped(stopped(state, lambda: provider, stop))


def said(watched: Watched) -> str:
    console = Console(width=200)
    with console.capture() as capture:
        console.print(watched.tree("stopped"))
    return capture.get()


def check_shape(watched: Watched) -> None:
    root, lakes, seas = watched.nodes
    assert (root.parent_id, lakes.parent_id, seas.parent_id) == (None, root.id, root.id)
    assert (root.prompt, lakes.prompt, seas.prompt) == (PROMPT, LAKES, SEAS)
    assert (lakes.critical, seas.critical) == (False, True)
    assert "files is done" in said(watched)


@pytest.mark.spec("U1", "U26")
async def test_a_soft_stop_lets_the_turns_below_come_to_their_end(tmp_path: Path) -> None:
    watched = await ran(tmp_path, Helpers(to_the_end=True), "soft")

    check_shape(watched)
    assert [node.state for node in watched.nodes] == ["completed"] * 3
    assert [node.orphan for node in watched.nodes] == [None, "parent_finished", "parent_finished"]
    assert "hears of a stop: graceful" in said(watched)


@pytest.mark.spec("U2")
async def test_a_hard_stop_takes_the_turns_below_along(tmp_path: Path) -> None:
    watched = await ran(tmp_path, Helpers(to_the_end=False), "hard")

    check_shape(watched)
    assert [node.state for node in watched.nodes] == ["interrupted"] * 3
    assert watched.nodes[0].cause == "explicit-interrupt"
    assert "hears of a stop: hard_abort" in said(watched)


@pytest.mark.local_model
@pytest.mark.parametrize("stop", ["soft", "hard"])
async def test_the_local_model_says_what_the_tree_shows(tmp_path: Path, stop: Stop) -> None:
    watched = await ran(tmp_path, provider_for("local"), stop)

    check_shape(watched)
    assert {node.state for node in watched.nodes} == (
        {"completed"} if stop == "soft" else {"interrupted"}
    )
