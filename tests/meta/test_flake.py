"""`make flake`: it repeats the marked tests, tells failures, and leaves no load behind."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tools import flake

ROOT = Path(__file__).resolve().parents[2]

PLUGINS = ["-p", "pytest_randomly", "-p", "tests.spec_plugin"]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory of the runs; only the plugins in PLUGINS are loaded there."""
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = lifecycle: repeated\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return tmp_path


def test_failing_test_is_named_and_unmarked_tests_do_not_run(project: Path) -> None:
    (project / "test_it.py").write_text(
        "import pytest\n"
        "@pytest.mark.lifecycle\ndef test_good(): assert 1 + 1 == 2\n"
        "@pytest.mark.lifecycle\ndef test_bad(): assert 1 + 1 == 3\n"
        "def test_unmarked(): assert 1 + 1 == 4\n"
    )

    run = flake.run_once(7, PLUGINS)

    assert (run.seed, run.status, run.failed) == (7, 1, ("test_it.py::test_bad",))


def test_counts_runs_in_both_conditions(
    project: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "test_it.py").write_text(
        "import pytest\n@pytest.mark.lifecycle\ndef test_good(): assert 1 + 1 == 2\n"
    )
    monkeypatch.setattr("sys.argv", ["flake", "--runs", "1", "--", *PLUGINS])

    assert flake.main() == 0

    lines = capsys.readouterr().out.splitlines()
    assert [line.split(" seed ")[0] for line in lines[:-1]] == ["idle 1/1", "under load 1/1"]
    assert lines[-1] == "2 runs, 1 of them under load: 0 failures"


def test_no_marked_test_is_a_failure(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (project / "test_it.py").write_text("def test_unmarked(): assert 1 + 1 == 2\n")
    monkeypatch.setattr("sys.argv", ["flake", "--runs", "1", "--", *PLUGINS])

    assert flake.main() == 1


def test_load_ends_with_the_block_also_on_an_error() -> None:
    before = set(psutil.Process().children())

    def fail_under_load() -> None:
        with flake.busy(1):
            assert len(set(psutil.Process().children()) - before) == 1
            raise OSError("inside")

    with pytest.raises(OSError, match="inside"):
        fail_under_load()

    assert set(psutil.Process().children()) == before
