"""The bounds of a shutdown. The inner two must fit into the outer one (VA5)."""

from __future__ import annotations

from typing import Final

SCOPE_CLOSE_TIMEOUT_SECONDS: Final = 2.0
RUNTIME_DISPOSE_TIMEOUT_SECONDS: Final = 2.0
OUTER_BUDGET_SECONDS: Final = 5.0
