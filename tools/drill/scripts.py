"""The scripts that the drill's provider plays, as files for ``--model scripted:FILE``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

TOKEN_EVERY_MS: Final = 10

_FLOW: Final[list[dict[str, Any]]] = [
    {
        "do": "repeat",
        "steps": [
            {
                "do": "give",
                "part": {"type": "text-delta", "text": "word "},
                "afterMs": TOKEN_EVERY_MS,
            }
        ],
    }
]

_ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "flowing": {"steps": _FLOW},
    # The abort signal is nothing to it; an interrupt ends it.
    "ignoring": {"steps": _FLOW, "onAbort": "ignore"},
    # Its finally never ends, also through cancellation.
    "wedged": {"steps": _FLOW, "cleanupMs": "for-ever"},
}


def write(kind: str, folder: Path) -> str:
    """Write the script of that kind; gives the model name for the command line."""
    file = folder / f"{kind}.json"
    file.write_text(json.dumps({"answers": [_ANSWERS[kind]]}))
    return f"scripted:{file}"
