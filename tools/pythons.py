"""Which Pythons are here: environments that make has made, pyenv's, and those on the path."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
SUPPORTED: Final = ("3.11", "3.12", "3.13")


def version_of(path: str) -> str | None:
    """``3.12``, or None where it doesn't start."""
    code = "import sys; print('%d.%d' % sys.version_info[:2])"
    try:
        done = subprocess.run([path, "-c", code], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def environments(minor: str) -> Iterator[str]:
    """Where ``make test VENV=.venv-3.13`` and its like put one; nothing says that it is there."""
    yield str(ROOT / f".venv-{minor}" / "bin" / "python")


def interpreters(minor: str) -> Iterator[str]:
    """Of one minor version, without packages of their own: pyenv's, newest first, then the path's.
    None of them was tried.
    """
    home = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    patches = [p for p in home.glob(f"{minor}.*") if p.name.count(".") == 2]
    patches = [p for p in patches if p.name.rpartition(".")[2].isdecimal()]
    for at in sorted(patches, key=lambda p: int(p.name.rpartition(".")[2]), reverse=True):
        yield str(at / "bin" / "python")
    on_path = shutil.which(f"python{minor}")
    if on_path is not None:
        yield on_path


def candidates() -> Iterator[str]:
    """Whatever may be a supported Python, the best first: this one, environments, interpreters."""
    yield sys.executable
    for minor in SUPPORTED:
        yield from environments(minor)
    for minor in SUPPORTED:
        yield from interpreters(minor)
