"""The risk table names tests that exist: a guard whose test is gone is no guard."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Final

import pytest

TESTS: Final = Path(__file__).resolve().parents[1]
TABLE: Final = TESTS.parent / "docs" / "risks.md"

_NAMED: Final = re.compile(r"`([\w/]+\.py)(?:::(\w+))?`")


def named_tests() -> list[tuple[str, str]]:
    rows = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]
    return [match for row in rows[2:] for match in _NAMED.findall(row.rsplit("|", 2)[1])]


def test_every_row_of_the_table_names_a_test() -> None:
    rows = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line[:1] == "|"]

    assert len(named_tests()) == len(rows) - 2
    assert named_tests()


@pytest.mark.parametrize(("file", "name"), named_tests())
def test_the_named_test_exists(file: str, name: str) -> None:
    tree = ast.parse((TESTS / file).read_text(encoding="utf-8"))
    functions = {
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert not name or name in functions
