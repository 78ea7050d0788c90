"""``python -m turns.host``: the console script, where it isn't installed."""

from __future__ import annotations

from .cli import main

main()
