"""The provider that speaks Anthropic's Messages API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..api import HttpProvider
from ..http import Bounds, Wire
from ..keys import KeySource
from .messages import MessagesApi

BASE_URL: Final = "https://api.anthropic.com/v1"
KEY_VARIABLE: Final = "ANTHROPIC_API_KEY"

__all__ = ["BASE_URL", "KEY_VARIABLE", "anthropic"]


def anthropic(
    model: str,
    *,
    base_url: str = BASE_URL,
    keys: KeySource | None = None,
    bounds: Bounds | None = None,
    extra: Mapping[str, Any] | None = None,
) -> HttpProvider:
    """Answers by Anthropic's Messages API.

        anthropic("claude-sonnet-4-5")

    ``keys``: by default ``ANTHROPIC_API_KEY``. ``extra``: fields of the request's body that replace
    what would be sent; None takes one out. A thinking level becomes a budget of tokens; thoughts go
    back signed, as they came. Raises ValueError for a base URL that is not https, except on
    loopback.
    """
    return HttpProvider(
        MessagesApi(),
        model=model,
        wire=Wire(base_url, bounds=bounds),
        keys=keys or KeySource(KEY_VARIABLE),
        extra=extra,
    )
