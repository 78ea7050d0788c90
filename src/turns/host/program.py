"""Running a root as the program of a process: its exit code, and what goes wrong in one line."""

from __future__ import annotations

import contextlib
import sys
from typing import Any, NoReturn

import fibers as fb
from streamengine import HistoryError, SendError

from .errors import FAILED, HostError
from .logs import without_secrets
from .text import escaped


def run(root: fb.Effect[int, Any]) -> NoReturn:
    """Run ``root`` and leave the process with its value as exit code.

    A HostError, HistoryError or SendError is one line on standard error. A signal's code has the
    last word: 130 for Ctrl-C, 143 for SIGTERM (EX12).
    """
    code = 0

    @fb.effect
    async def main() -> None:
        nonlocal code
        try:
            code = await root
        except HostError as error:
            code = error.exit_code
            complain(str(error))
        except HistoryError as error:
            code = FAILED
            complain(str(error))
        except SendError as error:
            code = FAILED
            complain(error.message)

    try:
        fb.run_main(main())
    except SystemExit as end:
        sys.exit(end.code or code)


def complain(text: str) -> None:
    """One line for a person, on standard error; no secret that the log would not show either."""
    if sys.stderr is None:
        return
    # Where it can't be said either, the exit code has to do.
    with contextlib.suppress(OSError):
        sys.stderr.write(f"fiberscope: {escaped(without_secrets(text))}\n")
        sys.stderr.flush()
