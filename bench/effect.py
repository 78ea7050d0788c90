"""The same work by Effect on Node, where node and npm are: printed without a bar.

Two languages, two machines below them: no ratio here says which of the two designs is better, only
what somebody who moves from one to the other finds.
"""

from __future__ import annotations

import json
import shutil
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.measure import QUICK_PART
from bench.report import ResultRow

if TYPE_CHECKING:
    from bench.configurations import Configuration

_SOURCE: Final = Path(__file__).resolve().parent / "effect_node"
# Installed in a copy: nothing is left beside the sources.
_HOME: Final = _SOURCE.parents[1] / "build" / "effect_node"
_INSTALL_BOUND_S: Final = 180
_RUN_BOUND_S: Final = 180


def _measure(*, quick: bool) -> dict[str, Any]:
    """What bench.mjs prints. RuntimeError where it can't be run, with the reason."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        raise RuntimeError("no node or no npm here")
    _HOME.mkdir(parents=True, exist_ok=True)
    for name in ("package.json", "package-lock.json", "bench.mjs"):
        shutil.copy2(_SOURCE / name, _HOME / name)
    try:
        # By the lock: this version with this hash, from whatever registry npm is set up for.
        install = [npm, "ci", "--no-audit", "--no-fund", "--ignore-scripts", "--loglevel=error"]
        _said_by(install, _INSTALL_BOUND_S)
        return json.loads(  # type: ignore[no-any-return]  # its own program's, checked by use
            _said_by([node, "bench.mjs", str(QUICK_PART if quick else 1)], _RUN_BOUND_S)
        )
    except (OSError, subprocess.SubprocessError) as exc:
        raise RuntimeError(str(exc)) from exc


def _said_by(command: Sequence[str], bound_s: float) -> str:
    done = subprocess.run(command, cwd=_HOME, capture_output=True, text=True, timeout=bound_s)
    if done.returncode != 0:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        raise RuntimeError(f"{' '.join(command[:2])} ended with {done.returncode}: {''.join(last)}")
    return done.stdout


def compare(
    first: tuple[Configuration, Sequence[ResultRow]],
    measured: Mapping[Configuration, Sequence[ResultRow]],
    *,
    quick: bool,
) -> tuple[list[ResultRow], str]:
    """Rows with Effect as the other side of the ``first`` configuration, and a table with the
    figures of all that were ``measured`` on asyncio. Without rows: why.
    """
    try:
        found = _measure(quick=quick)
    except RuntimeError as exc:
        return [], f"!!!! Effect on Node was NOT measured: {exc}"
    theirs = {key: statistics.median(ns) for key, ns in found["ns"].items()}
    name = f"Effect {found['effect']} on Node {found['node']}"
    rows: list[ResultRow] = []
    for row in first[1]:
        ns = theirs.get(row["key"])
        if ns is None:
            continue
        work = row["name"].rpartition(" [")[0]
        unit = row["name"].rpartition(" [")[2].partition(",")[0]
        rows.append(
            {
                **row,
                "name": f"{work} [{unit}, against {name}]",
                "against": round(ns / 1000, 4),
                "ratio": round(row["ours"] * 1000 / ns, 4),
                "bar": None,
                "holds": None,
            }
        )
    return rows, _table(name, theirs, measured)


def _table(
    name: str,
    theirs: Mapping[str, float],
    measured: Mapping[Configuration, Sequence[ResultRow]],
) -> str:
    columns = [c for c in measured if c.loop == "asyncio"]
    ours = {(row["key"], c): row["ours"] for c in columns for row in measured[c]}
    heads = [f"{c.python.minor} {c.build}" for c in columns]
    lines = [
        f"{name}, without a bar: ns of CPU time for one operation, beside ours on asyncio",
        f"{'row':<26}{'Effect':>9}" + "".join(f"{head:>13}" for head in heads),
    ]
    for key, ns in theirs.items():
        if any((key, c) in ours for c in columns):
            cells = [f"{1000 * ours[key, c]:13.0f}" if (key, c) in ours else "" for c in columns]
            lines.append(f"{key:<26}{ns:>9.0f}" + "".join(cells))
    return "\n".join(lines)
