"""`make native`: compile the hot paths of fibers for the Python that runs this.

One C file and one call of the compiler: no build system, nothing to install. The result lies beside
the pure modules, which take it up at the next import.
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
FLAGS: Final = ("-O2", "-fno-strict-aliasing", "-Wall", "-Werror", "-shared", "-fPIC")


def compiler() -> list[str]:
    """The C compiler: ``CC``, else the one that Python was built with."""
    return shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")


def build(into: Path) -> Path:
    """Compile into the folder ``into``; gives the file. CalledProcessError, FileNotFoundError."""
    target = into / f"_speed{sysconfig.get_config_var('EXT_SUFFIX')}"
    include = sysconfig.get_path("include")
    command = [*compiler(), *FLAGS, f"-I{include}", str(SOURCE), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


def main() -> int:
    """Exit status 0; 1 where it can't be compiled, with the reason."""
    parser = argparse.ArgumentParser(prog="make native", description=__doc__)
    parser.add_argument("--into", type=Path, default=SOURCE.parent, help="folder of the result")
    options = parser.parse_args()
    if sys.version_info >= (3, 14):
        print("native: written for Python 3.11 to 3.13; this one runs the pure modules")
        return 1
    try:
        target = build(options.into)
    except (subprocess.CalledProcessError, FileNotFoundError) as exc:
        print(f"native: not compiled, the pure modules do the work: {exc}", file=sys.stderr)
        return 1
    print(f"native: {target.name}; FIBERS_PURE=1 in the environment does without it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
