"""Compile the hot paths of fibers for the Python that runs this: `make native`, and every wheel.

One C file and one call of the compiler. `make native` puts the result beside the pure modules,
which take it up at the next import; hatch_build.py puts it into a wheel. That one loads this file
by its path, so nothing but the standard library is imported here.
"""

from __future__ import annotations

import argparse
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).resolve().parent.parent / "src" / "fibers" / "_speed.c"
FLAGS: Final = ("-O2", "-fno-strict-aliasing", "-Wall", "-shared", "-fPIC")
# Not where a user builds: a newer compiler has warnings that nobody here has seen.
STRICT_FLAGS: Final = ("-Werror",)


class NotCompiledError(Exception):
    """There is no twin; the message says why, in one line."""

    def __init__(self, why: str, said: str = "") -> None:
        super().__init__(why)
        self.said: str = said
        """All that the compiler said."""


def compiler() -> list[str]:
    """The C compiler: ``CC``, else the one that Python was built with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "") or ["cc"]


def unfit() -> str | None:
    """Why the Python that runs this has no use for the twin; None where it has."""
    minor = sys.version_info[:2]
    if sys.implementation.name != "cpython":
        return f"it is for CPython, not {sys.implementation.name}"
    if not (3, 11) <= minor < (3, 14):
        return f"it is for Python 3.11 to 3.13, not {minor[0]}.{minor[1]}"
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "it is for a Python with the global interpreter lock"
    return None


def build(into: Path, *, strict: bool = False) -> Path:
    """Compile into the folder ``into``; gives the file. Raises NotCompiledError.

    ``strict``: a warning of the compiler is an error.
    """
    if (why := unfit()) is not None:
        raise NotCompiledError(why)
    include = Path(sysconfig.get_path("include"))
    if not (include / "Python.h").is_file():
        raise NotCompiledError(
            f"no Python.h in {include}: it comes with Python's development package"
        )
    target = into / f"_speed{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = (*FLAGS, *STRICT_FLAGS) if strict else FLAGS
    _call([*compiler(), *flags, f"-I{include}", str(SOURCE), "-o", str(target)])
    return target


def _call(command: list[str]) -> None:
    name = command[0]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            check=False,
        )
    except FileNotFoundError:
        raise NotCompiledError(f"no C compiler: '{name}' is not there") from None
    except OSError as exc:
        raise NotCompiledError(f"the C compiler '{name}' can't be started: {exc}") from None
    if done.returncode != 0:
        ended = f"'{Path(name).name}' ended with status {done.returncode}"
        raise NotCompiledError(_first_error(done.stdout) or ended, done.stdout)


def _first_error(said: str) -> str | None:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    errors = (line for line in lines if "error" in line)
    return next(errors, lines[-1] if lines else None)


def main() -> int:
    """Exit status 0; 1 where it can't be compiled, with the reason."""
    parser = argparse.ArgumentParser(prog="make native", description=__doc__)
    parser.add_argument("--into", type=Path, default=SOURCE.parent, help="folder of the result")
    options = parser.parse_args()
    try:
        target = build(options.into, strict=True)
    except NotCompiledError as exc:
        print(exc.said, end="", file=sys.stderr)
        print(f"native: not compiled, the pure modules do the work: {exc}", file=sys.stderr)
        return 1
    print(f"native: {target.name}; FIBERS_PURE=1 in the environment does without it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
