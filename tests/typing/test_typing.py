"""What mypy and pyright infer for users, and what they refuse: one run of each over the cases.

`accepted/` holds functions with `assert_type`; a checker must have nothing to say about them. In
`rejected/` a line that must be refused ends in `# rejected: <mypy's code>, <pyright's rule>`; each
checker must report that code in that line, and nothing in any other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import pytest

Checker = Literal["mypy", "pyright"]
Line = tuple[str, int]
"""A file of the cases and a line in it, from 1."""

ROOT: Final = Path(__file__).resolve().parents[2]
CASES: Final = Path(__file__).resolve().parent
FILES: Final = sorted([*CASES.glob("accepted/*.py"), *CASES.glob("rejected/*.py")])
CHECKER_BOUND_SECONDS: Final = 240

_MARK: Final = re.compile(r"# rejected: (?P<mypy>[a-z-]+), (?P<pyright>[a-zA-Z]+)$", re.MULTILINE)

_MYPY_ERROR: Final = re.compile(
    r"^(?P<file>[^:]+):(?P<line>\d+): error: (?P<message>.*)  \[(?P<code>[a-z-]+)\]$", re.MULTILINE
)
_MYPY_SUMMARY: Final = re.compile(r"checked (?P<files>\d+) source files")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(CHECKER_BOUND_SECONDS + 10)]


@dataclass(frozen=True)
class Rejected:
    """A line that has to be refused, and how each checker calls the reason."""

    line: Line
    code: dict[Checker, str]


@dataclass(frozen=True)
class Report:
    """What one checker said: by line, the message of each code. And how many files it looked at."""

    errors: dict[Line, dict[str, str]]
    files: int


def name_of(path: str) -> str:
    return Path(ROOT, path).resolve().relative_to(CASES).as_posix()


def rejected_lines() -> list[Rejected]:
    found: list[Rejected] = []
    for path in CASES.glob("rejected/*.py"):
        for number, text in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if match := _MARK.search(text):
                line = (name_of(str(path)), number)
                found.append(Rejected(line, {"mypy": match["mypy"], "pyright": match["pyright"]}))
    return sorted(found, key=lambda r: r.line)


REJECTED: Final = rejected_lines()


def output_of(*command: str) -> str:
    """What a checker prints. It exits with 1 where it found errors: the cases hold some."""
    done = subprocess.run(
        [sys.executable, "-m", *command],
        cwd=ROOT,
        env={**os.environ, "PYRIGHT_PYTHON_IGNORE_WARNINGS": "1"},
        capture_output=True,
        text=True,
        timeout=CHECKER_BOUND_SECONDS,
        check=False,
    )
    assert done.returncode in (0, 1), f"{command[0]} broke down:\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def mypy_report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    cache = tmp_path_factory.mktemp("mypy")
    text = output_of("mypy", f"--cache-dir={cache}", "--no-pretty", *map(str, FILES))
    errors: defaultdict[Line, dict[str, str]] = defaultdict(dict)
    for found in _MYPY_ERROR.finditer(text):
        errors[name_of(found["file"]), int(found["line"])][found["code"]] = found["message"]
    summary = _MYPY_SUMMARY.search(text)
    return Report(dict(errors), int(summary["files"]) if summary else 0)


@pytest.fixture(scope="module")
def pyright_report() -> Report:
    text = output_of(
        "pyright", f"--project={CASES}", f"--pythonpath={sys.executable}", "--outputjson"
    )
    output: dict[str, Any] = json.loads(text)
    errors: defaultdict[Line, dict[str, str]] = defaultdict(dict)
    for found in output["generalDiagnostics"]:
        if found["severity"] == "error":
            # Its lines count from 0. A syntax error has no rule.
            line = (name_of(found["file"]), found["range"]["start"]["line"] + 1)
            errors[line][found.get("rule", "syntax")] = found["message"]
    return Report(dict(errors), output["summary"]["filesAnalyzed"])


@pytest.fixture(params=["mypy", "pyright"])
def checker(request: pytest.FixtureRequest) -> Checker:
    """The name of a checker."""
    name: Checker = request.param
    return name


@pytest.fixture
def report(checker: Checker, request: pytest.FixtureRequest) -> Report:
    """What it says about all the cases, in its one run."""
    found: Report = request.getfixturevalue(f"{checker}_report")
    return found


def test_every_case_is_checked(report: Report) -> None:
    assert len(FILES) == report.files


def test_nothing_is_refused_but_the_marked_lines(report: Report) -> None:
    marked = {rejected.line for rejected in REJECTED}

    others = {line: said for line, said in report.errors.items() if line not in marked}

    assert not others


@pytest.mark.parametrize("rejected", REJECTED, ids=lambda r: f"{r.line[0]}:{r.line[1]}")
def test_a_marked_line_is_refused(rejected: Rejected, checker: Checker, report: Report) -> None:
    assert rejected.code[checker] in report.errors.get(rejected.line, {})


@pytest.mark.parametrize("path", sorted(CASES.glob("rejected/*.py")), ids=lambda path: path.name)
def test_each_function_of_the_rejected_has_one_marked_line(path: Path) -> None:
    """Without a mark it would be a case that pins nothing."""
    text = path.read_text(encoding="utf-8")
    cases = re.split(r"^(?:async )?def ", text, flags=re.MULTILINE)[1:]

    assert [1] * len(cases) == [len(_MARK.findall(case)) for case in cases]
