"""`make spec`: the semantic lines that no passed test pins.

Prints, one a line: `unclaimed ID` for each id of docs/semantics that no passed test claims, then,
where the specification lies beside the repository, `absent ID` for each of its ids that
docs/semantics does not have. Nothing else goes to standard output.

Claims come from `.spec/claims.json` (see tests/spec_plugin.py) if that was written by a full run
on the tree as it is now; else the full suite is run first.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tests.spec_plugin import CLAIMS_FILE, SPEC_ID, git_state

ROOT: Final = Path(__file__).resolve().parent.parent
SEMANTICS: Final = Path("docs/semantics")
SPECIFICATION: Final = Path("../shared/spec")
SPECIFICATION_PAGES: Final = ("fibers.md", "streamengine.md", "turns.md", "reports.md")

_SEMANTIC_LINE: Final = re.compile(rf"- \*\*({SPEC_ID.pattern})\*\*(?=\s|$)", re.MULTILINE)
_SPECIFICATION_LINE: Final = re.compile(rf"^- ({SPEC_ID.pattern})(?=\s|$)", re.MULTILINE)


class SpecError(Exception):
    """The report cannot be made; the message says why."""


@dataclass(frozen=True)
class Claims:
    """What one run of the suite has shown."""

    commit: str | None
    dirty: bool
    full: bool
    ids: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> Claims | None:
        """The record at `path`, or None where there is none that can be read."""
        try:
            record: Any = json.loads(path.read_text(encoding="utf-8"))
            return cls(
                commit=record["commit"],
                dirty=record["dirty"],
                full=record["full"],
                ids=frozenset(record["claims"]),
            )
        except (OSError, ValueError, KeyError, TypeError):
            return None


def ids_in(pages: Iterable[Path], line: re.Pattern[str]) -> list[str]:
    """Ids of the lines that match, in reading order, each once."""
    found: dict[str, None] = {}
    for page in pages:
        found.update(dict.fromkeys(line.findall(page.read_text(encoding="utf-8"))))
    return list(found)


def semantic_ids(root: Path) -> list[str]:
    """Ids that docs/semantics describes; raises SpecError where one is described twice."""
    pages = sorted((root / SEMANTICS).rglob("*.md"))
    every = [i for page in pages for i in _SEMANTIC_LINE.findall(page.read_text(encoding="utf-8"))]
    twice = sorted({spec_id for spec_id in every if every.count(spec_id) > 1})
    if twice:
        raise SpecError(f"described more than once in {SEMANTICS}: {', '.join(twice)}")
    return every


def specification_ids(root: Path) -> list[str] | None:
    """Ids of the specification, or None where it does not lie beside the repository."""
    pages = [root / SPECIFICATION / name for name in SPECIFICATION_PAGES]
    present = [page for page in pages if page.is_file()]
    return ids_in(present, _SPECIFICATION_LINE) if present else None


def why_stale(claims: Claims | None, commit: str | None, dirty: bool) -> str | None:
    """Why the record does not speak for the tree as it is now; None where it does."""
    if claims is None:
        return "no run has been recorded"
    if not claims.full:
        return "the last recorded run was not full"
    if claims.commit is None or claims.commit != commit:
        return "the last recorded run was at another commit"
    if claims.dirty or dirty:
        return "there are uncommitted changes"
    return None


def run_suite(root: Path, command: Sequence[str]) -> None:
    """Run the full suite with its output on standard error; failing tests are not an error."""
    done = subprocess.run(command, cwd=root, stdout=sys.stderr, check=False)
    if done.returncode not in (0, 1):
        raise SpecError(f"the suite could not be run (exit status {done.returncode})")


def current_claims(root: Path, command: Sequence[str]) -> Claims:
    """Claims for the tree as it is now, from the record or from a run of the suite."""
    record = root / CLAIMS_FILE
    claims = Claims.read(record)
    reason = why_stale(claims, *git_state(root))
    if claims is not None and reason is None:
        return claims
    print(f"spec: {reason}; running the full suite", file=sys.stderr)
    record.unlink(missing_ok=True)
    run_suite(root, command)
    claims = Claims.read(record)
    if claims is None or not claims.full:
        raise SpecError("the run of the suite left no full record")
    return claims


def report(root: Path, command: Sequence[str]) -> None:
    """Print the report for the repository at `root`; `command` runs its full suite."""
    described = semantic_ids(root)
    specified = specification_ids(root)
    claims = current_claims(root, command)
    unclaimed = [spec_id for spec_id in described if spec_id not in claims.ids]
    absent = [spec_id for spec_id in specified or () if spec_id not in set(described)]
    for spec_id in unclaimed:
        print(f"unclaimed {spec_id}")
    for spec_id in absent:
        print(f"absent {spec_id}")
    for spec_id in sorted(claims.ids - set(described)):
        print(f"spec: a test claims {spec_id}, which {SEMANTICS} lacks", file=sys.stderr)
    summary = f"spec: {len(described)} described, {len(unclaimed)} of them unclaimed"
    if specified is not None:
        summary += f"; {len(specified)} specified, {len(absent)} of them absent"
    print(summary, file=sys.stderr)


def main() -> int:
    """Exit status 0, also where lines are unclaimed; 1 where the report could not be made."""
    try:
        report(ROOT, [sys.executable, "-m", "pytest", "-q"])
    except SpecError as error:
        print(f"spec: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
