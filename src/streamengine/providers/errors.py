"""ProviderError: what a provider over HTTP fails with."""

from __future__ import annotations

from ..model.errors import ErrorType, StreamError


class ProviderError(StreamError):
    """A request to a model's API failed. The message is for a person, and holds no secret.

    ``code``: the API's own word for it. ``status_code``: of the HTTP answer, if one came.
    ``retry_after_seconds``: how long the API asks to wait before another try.
    """

    def __init__(
        self,
        error_type: ErrorType,
        message: str,
        *,
        code: str | None = None,
        status_code: int | None = None,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(error_type, message, code=code)
        self.status_code = status_code
        self.retry_after_seconds = retry_after_seconds
