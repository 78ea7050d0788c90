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

QUICK_CALL: Final = "quick-1"
HELD_CALL: Final = "held-1"


def _give(kind: str, **fields: str) -> dict[str, Any]:
    return {"do": "give", "part": {"type": kind, **fields}}


_FINISH: Final = _give("finish", finishReason="stop", rawFinishReason="stop")


def with_tools(held: str, folder: Path) -> str:
    """Write a script that calls two tools, one that is done at once and the one called ``held``; to
    the message "And now?" it says a word. Gives the model name for the command line.
    """
    calls = [
        {"do": "say", "text": "I will look."},
        _give("tool-call", toolCallId=QUICK_CALL, toolName="quick"),
        _give("tool-call", toolCallId=HELD_CALL, toolName=held),
        _FINISH,
    ]
    after = {
        "when": {"textContains": "And now?"},
        "steps": [{"do": "say", "text": "Done."}, _FINISH],
    }
    return _written(f"tools-{held}", folder, [after, {"steps": calls}])


_ANSWERS: Final[dict[str, dict[str, Any]]] = {
    "flowing": {"steps": _FLOW},
    # The abort signal is nothing to it; an interrupt ends it.
    "ignoring": {"steps": _FLOW, "onAbort": "ignore"},
    # Its finally never ends, also through cancellation.
    "wedged": {"steps": _FLOW, "cleanupMs": "for-ever"},
}


def write(kind: str, folder: Path) -> str:
    """Write the script of that kind; gives the model name for the command line."""
    return _written(kind, folder, [_ANSWERS[kind]])


def _written(name: str, folder: Path, answers: list[dict[str, Any]]) -> str:
    file = folder / f"{name}.json"
    file.write_text(json.dumps({"answers": answers}))
    return f"scripted:{file}"
