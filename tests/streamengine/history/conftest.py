"""A workspace's files in a directory of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamengine.history.files import WorkspaceFiles

from .kit import Steps


@pytest.fixture
def steps() -> Steps:
    """The changes on disk that `files` has made so far."""
    return Steps()


@pytest.fixture
def files(tmp_path: Path, steps: Steps) -> WorkspaceFiles:
    """A workspace without a history."""
    return WorkspaceFiles(tmp_path / "ws", on_step=steps)
