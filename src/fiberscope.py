"""The program ``fiberscope``, also ``python -m fiberscope``: it takes Ctrl-C before all else.

Loading the rest takes a moment, in which Ctrl-C would be a traceback of whatever is being read.
"""

from __future__ import annotations

import signal
from typing import NoReturn


def main() -> NoReturn:
    """The console script. Exit codes as in ``turns.host.cli``."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        # The system's own way: until a command has begun there is nothing to put in order, and a
        # shell tells it as 130. Not where whoever started this has it ignored.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from turns.host.cli import main as run

    run()


if __name__ == "__main__":
    main()
