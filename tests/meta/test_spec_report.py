"""`make spec`: which lines it prints, and when it runs the suite anew."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.spec_plugin import CLAIMS_FILE
from tools import spec

SEMANTICS = """# Forks

Prose naming FO9, and a table | **FO8** | of ids.

- **FO2** A late fork runs its on_interrupt.
- **FO3** An exception while starting is a defect.
  - **FO10** An id may stand in a nested item.
- **FO4**: a colon is not a space.
- FO5 is not bold.
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A committed project with semantics FO2, FO3 and FO10."""
    project = tmp_path / "main"
    (project / "docs/semantics/deep").mkdir(parents=True)
    (project / "docs/semantics/deep/forks.md").write_text(SEMANTICS)
    (project / ".gitignore").write_text(".spec\n")
    for arguments in (("init", "-q"), ("add", "."), ("commit", "-q", "-m", "Begin")):
        identity = (
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t.invalid",
            "-c",
            "commit.gpgsign=false",
        )
        subprocess.run(["git", *identity, *arguments], cwd=project, check=True)
    return project


def commit_of(root: Path) -> str:
    done = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, check=True)
    return done.stdout.decode().strip()


def record(root: Path, ids: Sequence[str], **changes: Any) -> dict[str, Any]:
    state: dict[str, Any] = {"commit": commit_of(root), "dirty": False, "full": True}
    return {
        **state,
        "claims": {spec_id: ["tests/test_it.py::test_a"] for spec_id in ids},
        **changes,
    }


def write(root: Path, content: dict[str, Any]) -> None:
    path = root / CLAIMS_FILE
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def suite(root: Path, content: dict[str, Any] | None, status: int = 0) -> list[str]:
    """A command in place of the suite: leaves the record `content` and ends with `status`."""
    script = f"""
import pathlib, sys
print("suite output")
content = {json.dumps(content)!r}
if content != "null":
    pathlib.Path({str(CLAIMS_FILE.parent)!r}).mkdir(exist_ok=True)
    pathlib.Path({str(CLAIMS_FILE)!r}).write_text(content)
sys.exit({status})
"""
    return [sys.executable, "-c", script]


NO_SUITE = [sys.executable, "-c", "raise SystemExit(99)"]


def test_prints_each_described_id_that_no_passed_test_claims(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(root, record(root, ["FO3"]))

    spec.report(root, NO_SUITE)

    out, err = capfd.readouterr()
    assert out == "unclaimed FO2\nunclaimed FO10\n"
    assert err == "spec: 3 described, 2 of them unclaimed\n"


def test_then_prints_each_specified_id_that_the_docs_lack(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    specification = root.parent / "shared/spec"
    specification.mkdir(parents=True)
    (specification / "fibers.md").write_text("- FO2 text\n- VF1 [S1] text (FO7)\n  - FO6 nested\n")
    (specification / "turns.md").write_text("- T1 [S1] text\n- B2 text\n- PD1: colon\nT9 prose\n")
    (specification / "reports.md").write_text("- H01 a case\n- R02 owner/repo#1\n")
    (specification / "agents.md").write_text("- AA1 not a specification page\n")
    write(root, record(root, ["FO2", "FO3", "FO10"]))

    spec.report(root, NO_SUITE)

    out, err = capfd.readouterr()
    assert out.splitlines() == [f"absent {i}" for i in ("VF1", "T1", "B2", "H01", "R02")]
    assert err == "spec: 3 described, 0 of them unclaimed; 6 specified, 5 of them absent\n"


def test_claimed_id_that_the_docs_lack_is_named_on_stderr(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(root, record(root, ["FO2", "FO3", "FO10", "ZZ1"]))

    spec.report(root, NO_SUITE)

    out, err = capfd.readouterr()
    assert out == ""
    assert "a test claims ZZ1" in err


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"full": False}, "not full"),
        ({"commit": "0" * 40}, "another commit"),
        ({"commit": None}, "another commit"),
        ({"dirty": True}, "uncommitted changes"),
        ({"claims": None}, "no run has been recorded"),
    ],
    ids=["partial", "older", "outside", "dirty", "broken"],
)
def test_stale_record_makes_it_run_the_suite(
    root: Path, capfd: pytest.CaptureFixture[str], changes: dict[str, Any], reason: str
) -> None:
    write(root, record(root, ["FO2", "FO3", "FO10"], **changes))

    spec.report(root, suite(root, record(root, ["FO3"])))

    out, err = capfd.readouterr()
    assert out == "unclaimed FO2\nunclaimed FO10\n"
    assert reason in err.splitlines()[0]
    assert "suite output" in err


def test_record_of_a_clean_tree_is_stale_once_a_file_changes(
    root: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    write(root, record(root, ["FO2"]))
    (root / "new.py").write_text("")

    spec.report(root, suite(root, record(root, ["FO3"], dirty=True), status=1))

    out, err = capfd.readouterr()
    assert out == "unclaimed FO2\nunclaimed FO10\n"
    assert "uncommitted changes" in err


@pytest.mark.parametrize("status", [2, 5])
def test_suite_that_cannot_run_is_an_error(root: Path, status: int) -> None:
    with pytest.raises(spec.SpecError, match=f"exit status {status}"):
        spec.report(root, suite(root, record(root, ["FO2"]), status=status))


@pytest.mark.parametrize("full", [False, None], ids=["partial", "absent"])
def test_suite_that_leaves_no_full_record_is_an_error(root: Path, full: bool | None) -> None:
    left = None if full is None else record(root, ["FO2"], full=full)

    with pytest.raises(spec.SpecError, match="no full record"):
        spec.report(root, suite(root, left))


def test_id_described_twice_is_an_error(root: Path) -> None:
    (root / "docs/semantics/again.md").write_text("- **FO2** once more\n")

    with pytest.raises(spec.SpecError, match=r"more than once.*: FO2$"):
        spec.report(root, NO_SUITE)
