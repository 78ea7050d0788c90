"""A pytest plugin for runs under a tracer, as of coverage: ``-p tools.traced``."""

from __future__ import annotations

import sys
from typing import Final

RECURSION_LIMIT: Final = 3000
"""On 3.11 each traced call costs more of the limit than an untraced one, and a hundred plain calls
that run fibers inside each other (PD16) come near the usual thousand as it is."""


def pytest_configure() -> None:
    """Raise the limit before the first test."""
    sys.setrecursionlimit(RECURSION_LIMIT)
