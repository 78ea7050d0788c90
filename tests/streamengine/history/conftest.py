"""A workspace's files in a directory of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from streamengine.history import HistoryStore
from streamengine.history.files import WorkspaceFiles

from .backends import KINDS, Backend, Kind, postgres_sockets
from .backends import backend as make_backend
from .kit import Steps


@pytest.fixture
def steps() -> Steps:
    """The changes on disk that `files` has made so far."""
    return Steps()


@pytest.fixture
def files(tmp_path: Path, steps: Steps) -> WorkspaceFiles:
    """A workspace without a history."""
    return WorkspaceFiles(tmp_path / "ws", on_step=steps)


@pytest.fixture(scope="session")
def postgres() -> Iterator[str]:
    """The socket directory of a PostgreSQL server; the test is skipped where there is none."""
    yield from postgres_sockets()


@pytest.fixture(params=KINDS)
async def backend(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Backend]:
    """Each kind of place that a history can be kept in, empty."""
    kind: Kind = request.param
    sockets = request.getfixturevalue("postgres") if kind == "postgresql" else None
    async with make_backend(kind, tmp_path, monkeypatch, sockets) as place:
        yield place


@pytest.fixture
async def history(backend: Backend) -> HistoryStore:
    """A history without workspaces, in each kind of place."""
    return await backend.history()
