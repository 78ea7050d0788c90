"""What stands in the place of a tool's output where there is none."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final


def failure(error: str) -> dict[str, object]:
    """The output of a call that went wrong, in words that the model can act on."""
    return {"success": False, "error": error}


ABORTED: Final[Mapping[str, object]] = MappingProxyType(failure("aborted"))
"""The output of a call that a stop or a crash has cut off."""

REFUSED: Final[Mapping[str, object]] = MappingProxyType(failure("not run: the model refused"))
"""The output of a call in an answer that its model then refused to give."""

UNANSWERED: Final[Mapping[str, object]] = MappingProxyType(failure("the tool gave no result"))
"""The output of a call that the provider was to run, and whose result it didn't give."""
