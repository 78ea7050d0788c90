"""Providers that speak OpenAI's APIs, to OpenAI or to any server that does so too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from ..api import HttpProvider
from ..http import Bounds, Wire
from ..keys import KeySource
from .chat import ChatApi
from .responses import ResponsesApi

BASE_URL: Final = "https://api.openai.com/v1"
KEY_VARIABLE: Final = "OPENAI_API_KEY"

__all__ = ["BASE_URL", "KEY_VARIABLE", "openai_chat", "openai_responses"]


def openai_chat(
    model: str,
    *,
    base_url: str = BASE_URL,
    keys: KeySource | None = None,
    bounds: Bounds | None = None,
    extra: Mapping[str, Any] | None = None,
) -> HttpProvider:
    """Answers by chat completions.

        openai_chat("gpt-4.1-mini")
        openai_chat("qwen3", base_url="http://127.0.0.1:8080/v1")

    ``keys``: by default ``OPENAI_API_KEY``; a server on this machine needs none. ``extra``: fields
    of the request's body that replace what would be sent; None takes one out. Raises ValueError for
    a base URL that is not https, except on loopback.
    """
    return HttpProvider(
        ChatApi(names_completion_tokens=base_url == BASE_URL),
        model=model,
        wire=Wire(base_url, bounds=bounds),
        keys=keys or KeySource(KEY_VARIABLE),
        extra=extra,
    )


def openai_responses(
    model: str,
    *,
    base_url: str = BASE_URL,
    keys: KeySource | None = None,
    bounds: Bounds | None = None,
    extra: Mapping[str, Any] | None = None,
) -> HttpProvider:
    """Answers by the Responses API. As ``openai_chat`` otherwise.

    Of a request with a thinking level, the reasoning comes encrypted and goes back with the next
    step. ``previous_response_id`` sends only what is new; for it ``extra={"store": True}`` keeps
    the answers at the other side.
    """
    return HttpProvider(
        ResponsesApi(),
        model=model,
        wire=Wire(base_url, bounds=bounds),
        keys=keys or KeySource(KEY_VARIABLE),
        extra=extra,
    )
