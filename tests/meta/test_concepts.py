"""Each concept page links its probes, and they exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGES: Final = sorted((ROOT / "docs" / "concepts").glob("*.md"))
_TEST_FILE: Final = re.compile(r"`(tests/\S+\.py)`")


@pytest.mark.parametrize("page", PAGES, ids=[page.stem for page in PAGES])
def test_a_page_names_probes_that_exist(page: Path) -> None:
    named = _TEST_FILE.findall(page.read_text("utf-8").partition("\nProbes:")[2])

    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_every_probe_file_is_on_a_page() -> None:
    named = {name for page in PAGES for name in _TEST_FILE.findall(page.read_text("utf-8"))}
    probes = {f"tests/probes/{path.name}" for path in (ROOT / "tests/probes").glob("test_*.py")}

    assert probes - named == set()
