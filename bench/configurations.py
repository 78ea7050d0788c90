"""What is measured: each Python that is here, the pure and the compiled build, both event loops.

A configuration is a process of its own with the same rows. The compiled build is a copy of the
package under build/native, so that the tree stays pure.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias, get_args

from tools.pythons import SUPPORTED, environments, interpreters, version_of

ROOT: Final = Path(__file__).resolve().parent.parent
Build: TypeAlias = Literal["pure", "native"]
Loop: TypeAlias = Literal["asyncio", "uvloop"]
_NATIVE: Final = ROOT / "build" / "native"
_MAKING_BOUND_S: Final = 300


@dataclass(frozen=True)
class Python:
    """An interpreter with the packages of this project."""

    path: str
    minor: str


@dataclass(frozen=True)
class Configuration:
    """One column of the table."""

    python: Python
    build: Build
    loop: Loop

    def __str__(self) -> str:
        return f"Python {self.python.minor}, {self.loop}, {self.build}"

    def environment(self, around: Mapping[str, str]) -> dict[str, str]:
        """Of the process that measures it."""
        # Only fibers is compiled; what stands on it comes from the tree in any case.
        homes = [] if self.build == "pure" else [_NATIVE / self.python.minor]
        return {
            **around,
            "PYTHONPATH": os.pathsep.join(map(str, (*homes, ROOT / "src", ROOT))),
            "FIBERS_PURE": "1" if self.build == "pure" else "0",
        }


def configurations(
    pythons: Sequence[str], builds: Sequence[Build], loops: Sequence[Loop]
) -> tuple[list[Configuration], list[str]]:
    """All that can be measured here, and what has to be said of the others.

    ``pythons`` are paths of interpreters; none: this one and the newest at hand. No ``loops``:
    both.
    """
    notes: list[str] = []
    here: list[Python] = []
    for path in pythons:
        minor = version_of(path)
        if minor is None:
            notes.append(f"{path} does not start: NOT measured")
        else:
            here.append(Python(path, minor))
    if not pythons:
        here.append(Python(sys.executable, ".".join(platform.python_version_tuple()[:2])))
        newest = _newest(here[0].minor, notes)
        if newest is not None:
            here.append(newest)
    found: list[Configuration] = []
    for python in here:
        for build in builds:
            if build == "native":
                reason = _compile(python)
                if reason is not None:
                    notes.append(f"Python {python.minor}: native NOT measured: {reason}")
                    continue
            found += [Configuration(python, build, loop) for loop in loops or get_args(Loop)]
    return found, notes


def _newest(than: str, notes: list[str]) -> Python | None:
    """The newest supported Python that is here, if newer; its environment is made where missing."""
    for minor in reversed(SUPPORTED[SUPPORTED.index(than) + 1 if than in SUPPORTED else 0 :]):
        for path in environments(minor):
            if version_of(path) == minor:
                return Python(path, minor)
        for base in interpreters(minor):
            if version_of(base) != minor:
                continue
            print(f"making an environment of Python {minor} in .venv-{minor} ...", flush=True)
            make = ["make", "--no-print-directory", "-C", str(ROOT), "dev"]
            try:
                subprocess.run(
                    [*make, f"PYTHON={base}", f"VENV=.venv-{minor}"],
                    check=True,
                    timeout=_MAKING_BOUND_S,
                )
            except (OSError, subprocess.SubprocessError) as exc:
                notes.append(f"Python {minor} is here, its environment can't be made: {exc}")
                break
            return Python(next(environments(minor)), minor)
    notes.append(f"no supported Python newer than {than} was measured: none is here, or see above")
    return None


def _compile(python: Python) -> str | None:
    """Make the compiled copy of the package; gives why there is none."""
    home = _NATIVE / python.minor
    shutil.rmtree(home, ignore_errors=True)
    package = home / "fibers"
    skip = shutil.ignore_patterns("__pycache__", "*.so")
    shutil.copytree(ROOT / "src" / "fibers", package, ignore=skip)
    done = subprocess.run(
        [python.path, "-m", "tools.native", "--into", str(package)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == 0:
        return None
    said = (done.stderr or done.stdout).strip().splitlines()
    return said[-1] if said else f"the build ended with {done.returncode}"
