"""A reader that loses its connection ten times in one answer ends with exactly the text."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.reconnects import BREAKS, run


@pytest.mark.spec("W12", "R25")
async def test_ten_lost_connections_cost_not_a_word(tmp_path: Path) -> None:
    lines: list[str] = []

    assert await run(tmp_path, BREAKS, lines.append)
    lost = [line for line in lines if line.endswith("connection lost")]
    assert len(lost) == 10
    # Each time some of it was said while nobody listened.
    assert all(int(n) > 0 for line in lost for n in re.findall(r"(\d+) words again", line))
    assert [line.split()[2:4] for line in lost[:1]] == [["the", "start"]]
    assert all(" since " in line for line in lost[1:])
    assert "exactly what was said; 0 words came twice" in lines[-2]
