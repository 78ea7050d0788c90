"""The spec plugin: what a test may claim, what counts as shown, and when a run is full."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from typing import Any

import pytest

from tests import spec_plugin

pytestmark = pytest.mark.filterwarnings("default")

Record = dict[str, Any]
RunSuite = Callable[..., pytest.RunResult]


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunSuite:
    """Runs pytest over tests/ of an empty project that has only the spec plugin."""
    # Each inner run imports its plugins anew, which takes seconds for all that are installed.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeini(
        "[pytest]\ntestpaths = tests\nmarkers = local_model: needs a model\n"
        "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    )
    pytester.mkdir("tests")

    def run_suite(*arguments: str, **files: str) -> pytest.RunResult:
        for name, text in files.items():
            path = pytester.path / "tests" / f"{name}.py"
            path.write_text(f"import pytest\n{text}", encoding="utf-8")
        return pytester.runpytest_inprocess(
            "-p", "pytest_asyncio.plugin", *arguments, plugins=[spec_plugin]
        )

    return run_suite


def record_of(pytester: pytest.Pytester) -> Record:
    text = (pytester.path / spec_plugin.CLAIMS_FILE).read_text(encoding="utf-8")
    record: Record = json.loads(text)
    return record


def claimed(pytester: pytest.Pytester) -> set[str]:
    return set(record_of(pytester)["claims"])


def test_passed_test_claims_its_ids(pytester: pytest.Pytester, run: RunSuite) -> None:
    run(
        test_it="""
@pytest.mark.spec("FO2", "FO3")
def test_a():
    assert 1 + 1 == 2

@pytest.mark.spec("FO2")
async def test_b():
    assert 1 + 1 == 2
"""
    )

    assert record_of(pytester)["claims"] == {
        "FO2": ["tests/test_it.py::test_a", "tests/test_it.py::test_b"],
        "FO3": ["tests/test_it.py::test_a"],
    }


@pytest.mark.parametrize(
    "test",
    [
        pytest.param("def test_a():\n    assert 1 + 1 == 3", id="failed"),
        pytest.param("def test_a():\n    pytest.skip('not here')", id="skipped"),
        pytest.param("@pytest.mark.skip\ndef test_a():\n    assert 1 + 1 == 2", id="skip-mark"),
        pytest.param("@pytest.mark.xfail\ndef test_a():\n    assert 1 + 1 == 3", id="xfailed"),
        pytest.param("@pytest.mark.xfail\ndef test_a():\n    assert 1 + 1 == 2", id="xpassed"),
        pytest.param(
            "@pytest.mark.xfail(strict=True)\ndef test_a():\n    assert 1 + 1 == 2",
            id="strictly-xpassed",
        ),
        pytest.param(
            "@pytest.fixture\ndef bad():\n    raise OSError\n"
            "def test_a(bad):\n    assert 1 + 1 == 2",
            id="setup-failed",
        ),
        pytest.param(
            "@pytest.fixture\ndef bad():\n    yield\n    raise OSError\n"
            "def test_a(bad):\n    assert 1 + 1 == 2",
            id="teardown-failed",
        ),
    ],
)
def test_test_that_did_not_pass_claims_nothing(
    pytester: pytest.Pytester, run: RunSuite, test: str
) -> None:
    run(test_it=f"{test}\ntest_a = pytest.mark.spec('FO2')(test_a)\n")

    assert claimed(pytester) == set()


@pytest.mark.parametrize(
    "body",
    [
        "pass",
        "...",
        "'Words only.'",
        "'Words.'\n    pass\n    ...",
        "return",
        "return None",
        "assert True",
    ],
)
@pytest.mark.parametrize("kind", ["def", "async def"])
def test_empty_test_claims_nothing(
    pytester: pytest.Pytester, run: RunSuite, kind: str, body: str
) -> None:
    result = run(test_it=f"@pytest.mark.spec('FO2')\n{kind} test_a():\n    {body}\n")

    result.assert_outcomes(passed=1)
    assert claimed(pytester) == set()


def test_emptiness_is_looked_for_under_decorators(pytester: pytest.Pytester, run: RunSuite) -> None:
    run(
        test_it="""
import functools
from hypothesis import given, strategies

def decorated(f):
    @functools.wraps(f)
    def wrapper():
        f()
        return None
    return wrapper

class TestGroup:
    @pytest.mark.spec("FO1")
    @(lambda f: f)
    def test_method(self):
        text = '''
unindented'''
        assert text

@pytest.mark.spec("FO2")
@decorated
def test_empty():
    pass

@pytest.mark.spec("FO3")
@decorated
def test_full():
    assert 1 + 1 == 2

@pytest.mark.spec("FO4")
@given(strategies.integers())
def test_empty_property(number):
    pass

@pytest.mark.spec("FO5")
@given(strategies.integers())
def test_property(number):
    assert number == number + 0
"""
    )

    assert claimed(pytester) == {"FO1", "FO3", "FO5"}


def test_parametrized_test_claims_when_all_cases_passed(
    pytester: pytest.Pytester, run: RunSuite
) -> None:
    run(
        test_it="""
@pytest.mark.spec("FO2")
@pytest.mark.parametrize("n", [1, 2])
def test_good(n):
    assert n

@pytest.mark.spec("FO3")
@pytest.mark.parametrize("n", [1, 0])
def test_bad(n):
    assert n

@pytest.mark.spec("FO4")
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.skip)])
def test_skipped(n):
    assert n
"""
    )

    assert claimed(pytester) == {"FO2"}


def test_id_that_only_one_case_carries_depends_on_that_case(
    pytester: pytest.Pytester, run: RunSuite
) -> None:
    run(
        test_it="""
@pytest.mark.parametrize("n", [
    pytest.param(1, marks=pytest.mark.spec("FO2")), pytest.param(0, marks=pytest.mark.spec("FO3"))
])
def test_a(n):
    assert n
"""
    )

    assert claimed(pytester) == {"FO2"}


def test_failing_test_does_not_spoil_the_claim_of_another(
    pytester: pytest.Pytester, run: RunSuite
) -> None:
    run(
        test_it="""
@pytest.mark.spec("FO2")
def test_good():
    assert 1 + 1 == 2

@pytest.mark.spec("FO2")
def test_bad():
    assert 1 + 1 == 3
"""
    )

    assert record_of(pytester)["claims"] == {"FO2": ["tests/test_it.py::test_good"]}


def test_fourth_id_is_a_usage_error_over_all_marks(run: RunSuite) -> None:
    result = run(
        test_it="""
pytestmark = pytest.mark.spec("FO1")

@pytest.mark.spec("FO2", "FO3")
@pytest.mark.spec("FO4")
def test_greedy():
    assert 1 + 1 == 2
"""
    )

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_greedy: 4 spec ids (FO1, FO2, FO3, FO4)*"])


@pytest.mark.parametrize(
    "mark", ["spec()", "spec('fo2')", "spec('FO2 ')", "spec(2)", "spec(x='A1')"]
)
def test_malformed_mark_is_a_usage_error(run: RunSuite, mark: str) -> None:
    result = run(test_it=f"@pytest.mark.{mark}\ndef test_a():\n    assert 1 + 1 == 2\n")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it.py::test_a: *"])


TWO_TESTS = """
@pytest.mark.spec("FO2")
def test_a():
    assert 1 + 1 == 2

@pytest.mark.spec("FO3")
def test_b():
    assert 1 + 1 == 2
"""


@pytest.mark.parametrize("arguments", [(), ("tests",), (".",), ("-x",), ("--ff",)])
def test_run_over_all_test_paths_is_full(
    pytester: pytest.Pytester, run: RunSuite, arguments: tuple[str, ...]
) -> None:
    run(*arguments, test_it=TWO_TESTS)

    assert record_of(pytester)["not_full_because"] == []
    assert record_of(pytester)["full"] is True


@pytest.mark.parametrize(
    "arguments",
    [
        ("-k", "test_a"),
        ("-k", "test"),
        ("-m", "spec"),
        ("tests/test_it.py",),
        ("tests/test_it.py::test_a",),
        ("--deselect", "tests/test_it.py::test_a"),
        ("--ignore", "tests/other"),
        ("--lf",),
        ("--stepwise",),
        ("--collect-only",),
    ],
    ids=" ".join,
)
def test_narrowed_run_is_not_full(
    pytester: pytest.Pytester, run: RunSuite, arguments: tuple[str, ...]
) -> None:
    run(*arguments, test_it=TWO_TESTS)

    assert record_of(pytester)["full"] is False


def test_run_with_failures_is_full(pytester: pytest.Pytester, run: RunSuite) -> None:
    run(test_it=TWO_TESTS, test_other="def test_c():\n    assert 1 + 1 == 3\n")

    assert record_of(pytester)["full"] is True
    assert record_of(pytester)["exit_status"] == 1


@pytest.mark.parametrize(
    ("arguments", "other"),
    [
        (("-x",), "def test_0():\n    assert 1 + 1 == 3\n"),
        ((), "raise OSError\n"),
        (("--continue-on-collection-errors",), "raise OSError\n"),
        ((), "def test_0():\n    pytest.exit('enough', 3)\n"),
    ],
    ids=["first-failure", "collection", "collection-continued", "exit"],
)
def test_run_that_did_not_reach_its_end_is_not_full(
    pytester: pytest.Pytester, run: RunSuite, arguments: tuple[str, ...], other: str
) -> None:
    run(*arguments, test_it=TWO_TESTS, test_0other=other)

    assert record_of(pytester)["full"] is False


def test_run_without_tests_is_not_full(pytester: pytest.Pytester, run: RunSuite) -> None:
    run(test_it="")

    assert record_of(pytester)["full"] is False


def test_leaving_out_model_tests_keeps_the_run_full(
    pytester: pytest.Pytester, run: RunSuite
) -> None:
    pytester.makeconftest(
        """
def pytest_collection_modifyitems(config, items):
    left_out = [item for item in items if item.get_closest_marker("local_model")]
    items[:] = [item for item in items if item not in left_out]
    config.hook.pytest_deselected(items=left_out)
"""
    )
    run(
        test_it="""
@pytest.mark.spec("FO2")
@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.local_model)])
def test_a(n):
    assert n

@pytest.mark.spec("FO3")
@pytest.mark.local_model
def test_b():
    assert 1 + 1 == 2
"""
    )

    assert record_of(pytester)["full"] is True
    assert claimed(pytester) == {"FO2"}


def test_record_can_be_switched_off(pytester: pytest.Pytester, run: RunSuite) -> None:
    run("--no-spec-claims", test_it=TWO_TESTS)

    assert not (pytester.path / spec_plugin.CLAIMS_FILE).exists()


def test_record_names_the_commit_and_whether_files_differ(
    pytester: pytest.Pytester, run: RunSuite
) -> None:
    def git(*arguments: str) -> str:
        identity = (
            "-c",
            "user.name=t",
            "-c",
            "user.email=t@t.invalid",
            "-c",
            "commit.gpgsign=false",
        )
        done = subprocess.run(
            ["git", *identity, *arguments], cwd=pytester.path, capture_output=True, check=True
        )
        return done.stdout.decode().strip()

    run("--co", test_it=TWO_TESTS)
    assert (record_of(pytester)["commit"], record_of(pytester)["dirty"]) == (None, True)

    git("init", "-q")
    (pytester.path / ".gitignore").write_text("__pycache__\n.spec\n.pytest_cache\n")
    git("add", ".")
    git("commit", "-q", "-m", "Begin")
    commit = git("rev-parse", "HEAD")
    run("--co", test_it=TWO_TESTS)
    assert (record_of(pytester)["commit"], record_of(pytester)["dirty"]) == (commit, False)

    run("--co", test_it=TWO_TESTS + "\n# changed\n")
    assert (record_of(pytester)["commit"], record_of(pytester)["dirty"]) == (commit, True)
