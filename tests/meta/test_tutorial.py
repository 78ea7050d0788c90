"""The programs of the tutorial run, and print what the page says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).resolve().parents[2]
PAGE: Final = ROOT / "docs" / "tutorial.md"
PROGRAM_BOUND_SECONDS: Final = 30
GRACEFUL_SIGTERM: Final = 143

_PRINTS: Final = re.compile(
    r"<!-- prints: (?P<what>.+?) -->\n```text\n(?P<output>.*?)^```", re.MULTILINE | re.DOTALL
)
SHOWN: Final = [
    (match["what"], match["output"]) for match in _PRINTS.finditer(PAGE.read_text("utf-8"))
]


@pytest.mark.parametrize(("what", "output"), SHOWN, ids=[what for what, _ in SHOWN])
def test_a_step_prints_what_the_page_says(what: str, output: str) -> None:
    name, *arguments = what.split()
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", f"examples.tutorial.{name}", *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=PROGRAM_BOUND_SECONDS,
        check=False,
    )

    # Step 0 shows what is wrong with it; the interpreter says so too, on stderr.
    assert done.stderr == "" or name.startswith("step0"), done.stderr
    assert done.stdout == output
    assert done.returncode == (GRACEFUL_SIGTERM if "--demo" in arguments else 0)


def test_every_step_is_on_the_page() -> None:
    steps = {path.stem for path in (ROOT / "examples" / "tutorial").glob("step*.py")}

    assert {what.split()[0] for what, _ in SHOWN} == steps
