"""Options that several commands of ``fiberscope`` take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .errors import UsageError
from .histories import HISTORY_VARIABLE
from .histories import KNOWN as KNOWN_DATABASES


def _directory(name: str) -> Path:
    if not name:
        # Not the current one: it is what a script gives whose variable is not set.
        raise UsageError("--state: the name is empty; leave it out for the default, or name one")
    return Path(name)


State = Annotated[
    Path | None,
    typer.Option(
        "--state",
        envvar="FIBERSCOPE_STATE",
        metavar="DIR",
        parser=_directory,
        help="Where conversations are kept.",
        show_default="~/.local/state/fiberscope",
    ),
]
History = Annotated[
    str | None,
    typer.Option(
        "--history",
        envvar=HISTORY_VARIABLE,
        metavar="URL",
        help=f"A database to keep conversations in: {KNOWN_DATABASES}.",
        show_default="files in --state",
    ),
]
