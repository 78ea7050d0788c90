"""The temp directory of a stream: made before it begins, removed with the stream's own scope."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
from pathlib import Path
from typing import Final

import structlog

import fibers as fb

_log = structlog.get_logger("streamengine.tempdir")

_TRIES: Final = 16


async def make_temp_directory(parent: Path) -> Path:
    """A new directory ``<parent>/<8 hex digits>`` for its owner only. Raises OSError."""
    return await asyncio.to_thread(_make, parent)


def _make(parent: Path) -> Path:
    parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for last_try in range(_TRIES):
        path = parent / secrets.token_hex(4)
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            if last_try == _TRIES - 1:
                raise
        else:
            return path
    raise AssertionError("unreachable")


@fb.effect
async def remove_temp_directory(path: Path) -> None:
    """Remove ``path`` with all that is in it. A failure is logged and stops nothing."""
    try:
        await asyncio.to_thread(_remove, path)
    except OSError as error:
        _log.warning("a temp directory could not be removed", path=str(path), error=str(error))


def _remove(path: Path) -> None:
    # By its name in its parent, without following what a tool may have put in its place.
    if not path.is_absolute() or path.name in ("", ".."):
        raise OSError(f"{path} is not the path of a temp directory")
    if not os.path.lexists(path):
        return
    shutil.rmtree(path)
