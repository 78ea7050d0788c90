"""What users' type checkers are told of a package: `pyright --verifytypes` on the installed wheel.

    python -m tools.verify_types

builds the project, installs the wheel into a directory of its own and has every public symbol of
its packages looked at. Prints the scores, then each symbol whose type is unknown or could be
inferred otherwise by another checker, and each function and class of `fibers` without a docstring.
Exit status 1 where there is any. Needs the development environment, and no network.

Only an installed package is looked at: what an editable install points to is not found.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGES: Final = ("fibers", "streamengine", "turns")
# The other two say at the base class what a method does, and by a name what an event is.
DESCRIBED: Final = ("fibers",)


class VerifyError(Exception):
    """Nothing could be verified; the message says why."""


@dataclass(frozen=True)
class Report:
    """What pyright says of a package's public symbols."""

    score: float
    """Share of the exported symbols whose type is known, from 0 to 1."""
    symbols: int
    """How many it looked at: the exported ones, and those of other modules that they refer to."""
    incomplete: tuple[str, ...]
    """A line for each that lacks something: `file:line: symbol: what`."""


def verify(root: Path, package: str, *, described: bool = True) -> Report:
    """Build the project at `root` and verify `package` in its wheel. Raises VerifyError.

    `described`: a function or class without a docstring is incomplete, too.
    """
    with tempfile.TemporaryDirectory(prefix="verify-types-") as name:
        # Resolved: pyright tells paths so, and a temporary directory may be a link.
        work = Path(name).resolve()
        found = _checked(_installed(root, work), package, work)
        return _report(found, work, described)


def _installed(root: Path, work: Path) -> Path:
    """The directory with the wheel's packages."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    site = work / "site"
    # With the build backend of this environment: an isolated build would fetch one.
    # Pure: the types are the same, and nothing has to be compiled.
    build = (*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(work), str(root))
    _output_of(*build, environment={**os.environ, "FIBERS_PURE": "1"})
    wheels = map(str, work.glob("*.whl"))
    _output_of(*pip, "install", "--no-index", "--no-deps", "--target", str(site), *wheels)
    return site


def _checked(site: Path, package: str, work: Path) -> dict[str, Any]:
    """Pyright's report on the package, which it must have found in `site`."""
    # --pythonpath counts for nothing here: the search path is that of the first `python` on PATH.
    # Any other one lacks what the package imports, whose types would then be unknown.
    here = str(Path(sys.executable).parent)
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((here, os.environ.get("PATH", os.defpath))),
        "PYTHONPATH": str(site),
        "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1",
    }
    # Away from the tree, whose sources and settings it would take.
    text = _output_of(
        *(sys.executable, "-m", "pyright", "--verifytypes", package),
        *("--ignoreexternal", "--outputjson"),
        cwd=work,
        environment=environment,
        accepted=(0, 1),
    )
    output: dict[str, Any] = json.loads(text)
    found: dict[str, Any] = output.get("typeCompleteness", {})
    directory = found.get("packageRootDirectory")
    if directory is None or not Path(directory).is_relative_to(site) or not found["symbols"]:
        said = "; ".join(each["message"] for each in output["generalDiagnostics"])
        raise VerifyError(f"pyright has not looked at the {package} of the wheel: {said or text}")
    return found


def _output_of(
    *command: str,
    cwd: Path | None = None,
    environment: dict[str, str] | None = None,
    accepted: tuple[int, ...] = (0,),
) -> str:
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode not in accepted:
        raise VerifyError(f"{' '.join(command)}\n{done.stdout}{done.stderr}".rstrip())
    return done.stdout


def _report(found: dict[str, Any], work: Path, described: bool) -> Report:
    incomplete: list[str] = []
    for symbol in found["symbols"]:
        said: list[dict[str, Any]] = symbol["diagnostics"]
        # An incomplete one with nothing said of it consists of others that are in the list.
        for each in said:
            what = " ".join(each["message"].split())
            if what.startswith("No docstring") and not described:
                continue
            at = ""
            if "range" in each:
                path = Path(each["file"]).relative_to(work / "site")
                at = f"{path}:{each['range']['start']['line'] + 1}: "
            incomplete.append(f"{at}{symbol['name']}: {what}")
    return Report(
        score=found["completenessScore"],
        symbols=len(found["symbols"]),
        incomplete=tuple(dict.fromkeys(incomplete)),
    )


def main() -> int:
    """Exit status 0 where every public symbol is complete."""
    lacking = False
    for package in PACKAGES:
        try:
            report = verify(ROOT, package, described=package in DESCRIBED)
        except VerifyError as error:
            print(f"verify-types: {error}", file=sys.stderr)
            return 1
        # Rounded down: 100 % means all.
        percent = math.floor(report.score * 1000) / 10
        print(f"verify-types: {package}: {percent:g} % complete, {report.symbols} symbols seen")
        for line in report.incomplete:
            print(line)
        lacking = lacking or bool(report.incomplete) or report.score < 1
    return 1 if lacking else 0


if __name__ == "__main__":
    sys.exit(main())
