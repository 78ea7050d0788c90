"""A state directory may be given as text."""

from __future__ import annotations

from pathlib import Path

import fibers as fb
from streamengine import FileHistory
from turns import FileTurnStore


async def test_text_is_a_state_directory_too(tmp_path: Path) -> None:
    @fb.effect
    async def opened() -> None:
        await fb.scoped(FileHistory.open(str(tmp_path / "locked")).or_die())

    assert await FileHistory(str(tmp_path)).workspaces().or_die() == []
    loaded = await FileTurnStore(str(tmp_path)).load().or_die()
    await opened()

    assert loaded.records == ()
    assert (tmp_path / "locked").is_dir()
