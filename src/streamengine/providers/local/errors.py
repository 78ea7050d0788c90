"""What can be wrong with the local model."""

from __future__ import annotations

from typing import Final, Literal

from ...model.errors import ErrorType

LocalModelErrorKind = Literal[
    "model_missing",
    "model_unusable",
    "unknown_model",
    "context_exceeded",
    "model_failed",
    "model_closed",
]

_ERROR_TYPES: Final[dict[LocalModelErrorKind, ErrorType]] = {
    "model_missing": "model_not_found",
    "model_unusable": "model_not_found",
    "unknown_model": "model_not_found",
    "context_exceeded": "context_exceeded",
}


class LocalModelError(Exception):
    """The local model can't answer. `way_out` is what a person can do about it."""

    def __init__(self, kind: LocalModelErrorKind, message: str, way_out: str) -> None:
        super().__init__(kind, message, way_out)
        self.kind: LocalModelErrorKind = kind
        self.message = message
        self.way_out = way_out
        self.error_type: ErrorType = _ERROR_TYPES.get(kind, "unknown")
        """The category of a stream that ends with this error."""

    def __str__(self) -> str:
        return f"{self.message}. {self.way_out}"
