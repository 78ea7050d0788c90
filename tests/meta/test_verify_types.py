"""`tools.verify_types`: what it calls incomplete, and that it looks at the wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import verify_types
from tools.verify_types import Report, VerifyError, verify

pytestmark = pytest.mark.slow

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "small"
version = "1.0"

[tool.hatch.build.targets.wheel]
packages = ["small"]
"""

COMPLETE = '''\
"""Complete, with types of a package that only this environment has."""

from __future__ import annotations

from typing import TypeAlias

from returns.maybe import Maybe

Found: TypeAlias = Maybe[str]


class Shelf:
    """What is on it."""

    def __init__(self, size: int) -> None:
        self.size: int = size

    def find(self, name: str) -> Found:
        """The book of that name."""
        return Maybe.from_optional(name if self.size else None)
'''

LACKING = '''\
"""Each function and class lacks one thing."""


class Unannotated:
    """Its attribute is not annotated."""

    def __init__(self, size: int) -> None:
        self.size = size + 1


def unknown(name) -> None:
    """Its parameter has no type."""


def undocumented() -> None: ...
'''


def project(root: Path, source: str) -> Path:
    (root / "small").mkdir()
    (root / "small/py.typed").touch()
    (root / "small/__init__.py").write_text(source)
    (root / "pyproject.toml").write_text(PROJECT)
    return root


def test_complete_package_may_use_what_the_environment_holds(tmp_path: Path) -> None:
    """Regression: pyright's own search path lacked it, and whatever used it was unknown."""
    report = verify(project(tmp_path, COMPLETE), "small")

    assert report.incomplete == ()
    assert report.score == 1
    assert report.symbols >= 3


def test_each_symbol_that_lacks_something_is_named_with_its_place(tmp_path: Path) -> None:
    report = verify(project(tmp_path, LACKING), "small")

    said = {line.split(": ")[1]: line for line in report.incomplete}
    assert said.keys() == {"small.Unannotated.size", "small.unknown", "small.undocumented"}
    assert said["small.Unannotated.size"].startswith("small/__init__.py:8: ")
    assert "annotation" in said["small.Unannotated.size"]
    assert "annotation" in said["small.unknown"]
    assert "docstring" in said["small.undocumented"]
    assert report.score < 1


def test_docstrings_are_asked_for_where_they_are_wanted(tmp_path: Path) -> None:
    report = verify(project(tmp_path, LACKING), "small", described=False)

    said = {line.split(": ")[1] for line in report.incomplete}
    assert said == {"small.Unannotated.size", "small.unknown"}


def test_package_that_is_not_in_the_wheel_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match="the returns of the wheel"):
        verify(project(tmp_path, COMPLETE), "returns")


def test_project_that_cannot_be_built_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(VerifyError, match=r"pip .* wheel"):
        verify(tmp_path, "small")


@pytest.mark.parametrize(
    ("report", "status"),
    [
        (Report(1.0, 3, ()), 0),
        (Report(1.0, 3, ("a.py:1: a.f: No docstring",)), 1),
        (Report(0.9999, 3, ()), 1),
    ],
    ids=["complete", "undocumented", "unnamed"],
)
@pytest.mark.parametrize("lacking", ["fibers", "turns"])
def test_anything_incomplete_fails_the_command(
    lacking: str,
    report: Report,
    status: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of whichever package."""
    asked: list[tuple[str, bool]] = []

    def verified(root: Path, package: str, *, described: bool) -> Report:
        assert (root / "pyproject.toml").is_file()
        asked.append((package, described))
        return report if package == lacking else Report(1.0, 5, ())

    monkeypatch.setattr(verify_types, "verify", verified)

    assert verify_types.main() == status

    assert asked == [("fibers", True), ("streamengine", False), ("turns", False)]
    lines = capsys.readouterr().out.splitlines()
    scores = {line.split(": ")[1]: line for line in lines if line.startswith("verify-types: ")}
    assert tuple(line for line in lines if line not in scores.values()) == report.incomplete
    assert ("100 %" in scores.pop(lacking)) == (report.score == 1)
    assert all("100 %" in line for line in scores.values())
