"""Records which semantic lines the passed tests of a run pin.

A test names the lines of docs/semantics that it pins:

    @pytest.mark.spec("FO2", "FO3")

At most three ids a test, all its marks together: a test that pins more is several tests. After
the run `.spec/claims.json` says which ids are claimed, by which tests, at which commit, and
whether the run was full. `make spec` reads it.

A claim counts only where it was shown: every case of the test that carries the id has passed,
nothing of it was skipped, expected to fail or broken in setup or teardown, and its body does
something. A body that cannot be read claims nothing.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
import subprocess
from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from types import CodeType
from typing import Final

import pytest

CLAIMS_FILE: Final = Path(".spec/claims.json")
MAX_IDS_PER_TEST: Final = 3
SPEC_ID: Final = re.compile(r"[A-Z]{1,3}[0-9]+")

# Only these tests may be left out of a full run: the suite needs no model.
_DESELECTED_BY_DEFAULT: Final = "local_model"

# Options that leave tests out or run none, by the names that pytest keeps them under.
_NARROWING_OPTIONS: Final = {
    "keyword": "-k",
    "markexpr": "-m",
    "deselect": "--deselect",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
    "lf": "--last-failed",
    "stepwise": "--stepwise",
    "collectonly": "--collect-only",
    "setuponly": "--setup-only",
    "setupplan": "--setup-plan",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("spec").addoption(
        "--no-spec-claims",
        action="store_true",
        help="do not write .spec/claims.json after this run",
    )


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "spec(*ids): the semantic lines (at most three ids) that this test pins"
    )
    if not config.getoption("no_spec_claims"):
        config.pluginmanager.register(ClaimsRecorder(config), "spec-claims-recorder")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    # Before anything is deselected: a wrong mark is wrong in a narrow run too.
    for item in items:
        spec_ids(item)


def spec_ids(item: pytest.Item) -> frozenset[str]:
    """The ids in all spec marks of a test; raises UsageError where a mark is malformed."""
    ids: set[str] = set()
    for mark in item.iter_markers("spec"):
        if mark.kwargs or not mark.args:
            raise pytest.UsageError(f"{item.nodeid}: spec() takes one to three ids, by position")
        for value in mark.args:
            if not isinstance(value, str) or not SPEC_ID.fullmatch(value):
                raise pytest.UsageError(f"{item.nodeid}: {value!r} is not a spec id such as FO2")
            ids.add(value)
    if len(ids) > MAX_IDS_PER_TEST:
        named = ", ".join(sorted(ids))
        raise pytest.UsageError(
            f"{item.nodeid}: {len(ids)} spec ids ({named}), but a test may claim at most "
            f"{MAX_IDS_PER_TEST}; split the test"
        )
    return frozenset(ids)


class ClaimsRecorder:
    """Follows one run and writes what it has shown."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._commit, self._dirty = git_state(config.rootpath)
        self._ids: dict[str, frozenset[str]] = {}  # by node id
        self._tests: dict[str, str] = {}  # node id of a case -> its test
        self._empty: set[str] = set()  # node ids
        self._passed: set[str] = set()
        self._broken: set[str] = set()
        self._left_out: set[str] = set()
        self._collection_failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        for item in items:
            ids = spec_ids(item)
            self._ids[item.nodeid] = ids
            self._tests[item.nodeid] = _test_of(item)
            if ids and is_empty_test(item):
                self._empty.add(item.nodeid)

    def pytest_deselected(self, items: Sequence[pytest.Item]) -> None:
        for item in items:
            if not item.get_closest_marker(_DESELECTED_BY_DEFAULT):
                self._left_out.add(item.nodeid)
            elif item.nodeid in self._ids:
                # A case that only runs with a model neither adds to a claim nor spoils one.
                del self._ids[item.nodeid]

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._collection_failed |= report.failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        # An unexpected pass that is not strict has outcome "passed" and the attribute wasxfail.
        if report.outcome != "passed" or hasattr(report, "wasxfail"):
            self._broken.add(report.nodeid)
        elif report.when == "call":
            self._passed.add(report.nodeid)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        narrowed = self._why_not_full(session, exitstatus)
        record = {
            "commit": self._commit,
            "dirty": self._dirty,
            "full": not narrowed,
            "not_full_because": narrowed,
            "exit_status": int(exitstatus),
            "claims": self.claims(),
        }
        path = self._config.rootpath / CLAIMS_FILE
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")

    def claims(self) -> dict[str, list[str]]:
        """Ids shown by this run, each with the tests that show it."""
        shown: dict[tuple[str, str], bool] = defaultdict(lambda: True)
        for node, ids in self._ids.items():
            holds = node in self._passed - self._broken - self._empty
            for spec_id in ids:
                # All cases that carry the id have to hold.
                shown[spec_id, self._tests[node]] &= holds
        claims: dict[str, list[str]] = defaultdict(list)
        for (spec_id, test), holds in sorted(shown.items()):
            if holds:
                claims[spec_id].append(test)
        return dict(claims)

    def _why_not_full(self, session: pytest.Session, exitstatus: int) -> list[str]:
        reasons = [
            flag for name, flag in _NARROWING_OPTIONS.items() if self._config.getoption(name, None)
        ]
        if not _covers_testpaths(self._config):
            reasons.append("paths")
        if self._left_out:
            reasons.append(f"{len(self._left_out)} tests deselected")
        if self._collection_failed:
            reasons.append("collection failed")
        if session.shouldstop or session.shouldfail:
            reasons.append("stopped early")
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
            reasons.append(f"exit status {int(exitstatus)}")
        return reasons


def _test_of(item: pytest.Item) -> str:
    """The node id of the test function whose case this item is."""
    if isinstance(item, pytest.Function) and item.parent is not None:
        return f"{item.parent.nodeid}::{item.originalname}"
    return item.nodeid


def _covers_testpaths(config: pytest.Config) -> bool:
    """Whether the arguments of this run lead to every test path of the configuration."""
    here = config.invocation_params.dir
    given = [(here / argument).resolve() for argument in config.args if "::" not in argument]
    wanted = [(config.rootpath / path).resolve() for path in config.getini("testpaths")]
    return all(
        any(path == root or root in path.parents for root in given)
        for path in wanted or [config.rootpath.resolve()]
    )


# ---- empty tests


def is_empty_test(item: pytest.Item) -> bool:
    """Whether the test's body does nothing, or cannot be read."""
    if not isinstance(item, pytest.Function):
        return True
    function: Callable[..., object] = item.obj
    # Hypothesis runs the test from inside a wrapper of its own.
    function = getattr(getattr(function, "hypothesis", None), "inner_test", function)
    code = getattr(inspect.unwrap(function), "__code__", None)
    body = _body_of(code) if isinstance(code, CodeType) else None
    return body is None or all(_does_nothing(statement) for statement in body)


def _body_of(code: CodeType) -> list[ast.stmt] | None:
    for node in ast.walk(_syntax_tree(code.co_filename)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            # A code object starts at the first decorator, a definition at its `def`.
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            if node.name == code.co_name and first == code.co_firstlineno:
                return node.body
    return None


@cache
def _syntax_tree(filename: str) -> ast.Module:
    try:
        return ast.parse(Path(filename).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


def _does_nothing(statement: ast.stmt) -> bool:
    match statement:
        case ast.Pass() | ast.Expr(value=ast.Constant()):
            return True
        case ast.Return(value=None | ast.Constant()):
            return True
        case ast.Assert(test=ast.Constant(value=constant)):
            return bool(constant)
        case _:
            return False


# ---- the state of the repository


def git_state(root: Path) -> tuple[str | None, bool]:
    """The commit checked out at `root` (None outside a repository) and whether files differ."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", "HEAD")
    # Without its optional locks, status does not touch the index of a repository in use.
    changes = _git(root, "--no-optional-locks", "status", "--porcelain")
    return (commit or None, commit is None or changes is None or changes != "")


def _git(root: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
