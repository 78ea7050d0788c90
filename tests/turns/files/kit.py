"""A directory that changes while it is listed."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


def scandir_beside_a_remover(goes: Path) -> Callable[[Any], Any]:
    """os.scandir, where ``goes`` is removed after the names were read."""
    scandir = os.scandir

    @contextmanager
    def scan(directory: Any) -> Generator[Any]:
        with scandir(directory) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
            goes.unlink(missing_ok=True)
            yield iter(found)

    return scan
