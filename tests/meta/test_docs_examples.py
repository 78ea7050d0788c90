"""Python blocks in README.md and docs/ that are marked as runnable do run, and print what they say.

A block is marked by the comment `<!-- runnable -->` on the line before it. Where a `text` block
follows directly, the program has to print exactly that.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
EXAMPLE_BOUND_SECONDS: Final = 30

_MARKED: Final = re.compile(r"^<!-- runnable -->$", re.MULTILINE)
_EXAMPLE: Final = re.compile(
    r"<!-- runnable -->\n"
    r"```python\n(?P<code>.*?)^```\n"
    r"(?:\n*```text\n(?P<output>.*?)^```(?:\n|\Z))?",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Example:
    """A runnable block, where it stands, and what it should print (None: anything)."""

    place: str
    code: str
    output: str | None


def pages() -> list[Path]:
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def examples_in(page: Path) -> Iterator[Example]:
    text = page.read_text(encoding="utf-8")
    for match in _EXAMPLE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        place = f"{page.relative_to(ROOT)}:{line}"
        yield Example(place, match["code"], match["output"])


EXAMPLES: Final = [example for page in pages() for example in examples_in(page)]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.place)
def test_example_runs_and_prints_what_the_page_says(example: Example) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-"],
        input=example.code,
        capture_output=True,
        text=True,
        timeout=EXAMPLE_BOUND_SECONDS,
        check=False,
    )

    assert done.returncode == 0, f"{example.place}\n{done.stderr}"
    if example.output is not None:
        assert done.stdout == example.output


def test_readme_has_an_example() -> None:
    assert any(example.place.startswith("README.md:") for example in EXAMPLES)


def test_every_mark_stands_right_before_a_python_block() -> None:
    marks = sum(len(_MARKED.findall(page.read_text(encoding="utf-8"))) for page in pages())

    assert len(EXAMPLES) == marks
