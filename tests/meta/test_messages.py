"""The messages on docs/messages.md are what the programs there say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "messages.md"
PROGRAM_BOUND_SECONDS: Final = 30

_SAID: Final = re.compile(
    r"<!-- says: (?P<name>\w+\.py) -->\n```python\n(?P<code>.*?)^```\n\n```text\n(?P<says>.*?)^```",
    re.MULTILINE | re.DOTALL,
)
SAMPLES: Final = [match.groups() for match in _SAID.finditer(PAGE.read_text("utf-8"))]


def same_for_every_run(text: str) -> str:
    """Without folders, ids and durations."""
    text = re.sub(r"(?:/[\w.\-]+)+/(?=\w+\.py)", "", text)
    text = re.sub(r"#\d+", "#N", text)
    return re.sub(r"for [\d.]+ m?s", "for N ms", text)


@pytest.mark.parametrize(("name", "code", "says"), SAMPLES, ids=[name for name, *_ in SAMPLES])
def test_a_message_is_what_the_page_shows(name: str, code: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(code, "utf-8")
    done = subprocess.run(
        [sys.executable, name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=PROGRAM_BOUND_SECONDS,
        check=False,
    )

    assert same_for_every_run(done.stderr).strip().endswith(says.strip())


def test_the_page_has_the_messages_that_people_meet_first() -> None:
    assert {"unhandled.py", "late.py", "missing.py"} <= {name for name, *_ in SAMPLES}
