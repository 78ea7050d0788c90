"""Names that the docs promise exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Final

import pytest

import fibers as fb
import fibers.app
import streamengine
import streamengine.history
import streamengine.partials

ROOT: Final = Path(__file__).resolve().parents[2]
ROOTS: Final = (
    fb,
    fibers.app,
    streamengine,
    streamengine.history,
    streamengine.partials,
)
PAGES: Final = ("coming-from.md", "names.md")

_CODE: Final = re.compile(r"`([^`]+)`")
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")


def promised() -> list[tuple[str, str]]:
    """(page, dotted name) for each that stands in a right-hand cell."""
    found: list[tuple[str, str]] = []
    for page in PAGES:
        for line in (ROOT / "docs" / page).read_text("utf-8").splitlines():
            if line.startswith("|") and not line.startswith("|---"):
                cell = line.split("|")[2]
                for code in _CODE.findall(cell):
                    found += [(page, name) for name in _NAME.findall(code)]
    return found


def exists(name: str) -> bool:
    """Walk from a package or one of its public classes; modules on the way are imported."""
    head, *path = name.split(".")
    at: object = next(
        (vars(root)[head] for root in ROOTS if head in vars(root)),
        fb if head == "fb" else None,
    ) or importlib.import_module(head)
    for part in path:
        if not hasattr(at, part):
            if not isinstance(at, ModuleType):
                return False
            importlib.import_module(f"{at.__name__}.{part}")
        at = getattr(at, part)
    return True


@pytest.mark.parametrize(("page", "name"), sorted(set(promised())))
def test_a_name_that_the_docs_promise_exists(page: str, name: str) -> None:
    assert exists(name), f"docs/{page} names {name}"


def test_there_are_names_to_check() -> None:
    assert len(promised()) > 100
