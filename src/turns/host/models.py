"""From the name of a model to the provider that answers with it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from pathlib import Path
from typing import Final, Protocol, Self, final

from fibers import AbortSignal
from streamengine import LateUsage, Provider, SendError, StreamError, StreamRequest
from streamengine.model import ProviderPart, UnknownPart
from streamengine.providers import anthropic as anthropic_api
from streamengine.providers import openai
from streamengine.providers.anthropic import anthropic
from streamengine.providers.api import HttpProvider
from streamengine.providers.keys import KeySource
from streamengine.providers.local import LocalModelError, LocalProvider
from streamengine.providers.local.files import find_model_file
from streamengine.providers.openai import openai_chat, openai_responses
from streamengine.providers.script import ScriptError
from streamengine.providers.scripted import ScriptedProvider
from streamengine.redact import secrets_in

from .errors import HostError, UsageError
from .logs import keep_secret

SCRIPTED_PREFIX: Final = "scripted:"
KNOWN: Final = (
    "local, scripted:FILE, openai:NAME, openai-responses:NAME, anthropic:NAME or pydantic-ai:NAME"
)
"""What ``--model`` may be, for a person."""


class _Api(Protocol):
    """A provider of an HTTP API, in the making."""

    def __call__(self, model: str, *, base_url: str, keys: KeySource) -> HttpProvider: ...


_APIS: Final[Mapping[str, tuple[_Api, str, str]]] = {
    "openai": (openai_chat, openai.BASE_URL, openai.KEY_VARIABLE),
    "openai-responses": (openai_responses, openai.BASE_URL, openai.KEY_VARIABLE),
    "anthropic": (anthropic, anthropic_api.BASE_URL, anthropic_api.KEY_VARIABLE),
}


def provider_for(
    model: str,
    *,
    base_url: str | None = None,
    environment: Mapping[str, str] = os.environ,
) -> Provider:
    """The provider that a name stands for; ``base_url`` is where its API is served.

    Raises UsageError for a name or a base URL that makes no sense, HostError where the model isn't
    installed, its file can't be used, or its key is missing. No log shows a key from then on.
    """
    check_model(model, base_url)
    kind, _, name = model.partition(":")
    match kind:
        case "local":
            return _local()
        case "scripted":
            return _scripted(model)
        case "pydantic-ai":
            return _pydantic_ai(name, environment)
        case _:
            return _over_http(kind, name, base_url, environment)


def check_model(model: str, base_url: str | None = None) -> None:
    """Whether there can be such a model: for who begins something before it is made. Raises
    UsageError.
    """
    kind, _, name = model.partition(":")
    if base_url is not None and kind not in _APIS:
        raise UsageError(f"--base-url is for {', '.join(_APIS)}, and not for {kind!r}")
    named = bool(name) and (kind in _APIS or kind in ("scripted", "pydantic-ai"))
    if model != "local" and not named:
        raise UsageError(f"there is no model {model!r}: use {KNOWN}")
    if kind == "scripted":
        _script_file(model)


def _over_http(
    kind: str, name: str, base_url: str | None, environment: Mapping[str, str]
) -> Provider:
    make, default_url, variable = _APIS[kind]
    keys = KeySource(
        variable, environment=environment, on_key=lambda key: keep_secret(key.reveal())
    )
    try:
        provider = make(name, base_url=base_url or default_url, keys=keys)
    except ValueError as error:
        raise UsageError(f"--base-url: {error}") from error
    try:
        provider.check_key()
    except SendError as error:
        # At the start, not at the first message of somebody who can't mend it.
        raise HostError(f"--model {kind}: {error.message}") from error
    return provider


def _pydantic_ai(name: str, environment: Mapping[str, str]) -> Provider:
    try:
        # Only here: it is an extra.
        from streamengine.providers.pydantic_ai import PydanticAIProvider
    except ImportError as error:
        raise HostError(
            "--model pydantic-ai: that package isn't installed: pip install "
            f"'fiberscope[pydantic-ai]' ({error})"
        ) from error
    for secret in secrets_in(environment):
        keep_secret(secret.reveal())
    provider = PydanticAIProvider(name, environment=environment)
    try:
        provider.check_model()
    except SendError as error:
        raise HostError(f"--model pydantic-ai: {error.message}") from error
    return provider


def _local() -> Provider:
    try:
        # The provider itself looks for it at the first message only.
        find_model_file()
    except LocalModelError as error:
        raise HostError(f"{str(error).rstrip('.')}. Or use --model scripted:FILE") from error
    return LocalProvider()


def _script_file(model: str) -> Path:
    name = model.removeprefix(SCRIPTED_PREFIX)
    try:
        path = Path(name).expanduser()
        if path.is_file():
            return path
    except (OSError, RuntimeError) as error:
        # OSError: a name that is too long, a folder that is closed. RuntimeError: `~nobody`.
        why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"--model {model}: {why}") from error
    raise UsageError(f"--model {model}: there is no file {path}")


def _scripted(model: str) -> Provider:
    path = _script_file(model)
    try:
        return ScriptedProvider.from_file(path)
    except ScriptError as error:
        raise HostError(str(error)) from error


@final
class ImpatientProvider:
    """Another provider, whose streams fail when they give nothing for ``silence_seconds``.

    Otherwise a connection that died without a word would keep its workspace busy until somebody
    presses stop.
    """

    def __init__(self, inner: Provider, silence_seconds: float) -> None:
        self._inner = inner
        self._silence_seconds = silence_seconds

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        # Not a generator itself: what the inner one raises at once is raised here at once.
        parts = self._inner.stream(request, signal)
        heard = self._listen(parts)
        return _WithLateUsage(heard, parts) if isinstance(parts, LateUsage) else heard

    async def _listen(
        self, parts: AsyncIterator[ProviderPart | UnknownPart]
    ) -> AsyncGenerator[ProviderPart | UnknownPart]:
        try:
            while True:
                patience = asyncio.timeout(self._silence_seconds)
                try:
                    async with patience:
                        part = await anext(parts)
                except StopAsyncIteration:
                    return
                except TimeoutError as error:
                    if not patience.expired():
                        raise  # the provider's own
                    raise StreamError(
                        "network",
                        f"the model sent nothing for {self._silence_seconds:g} s",
                    ) from error
                yield part
        finally:
            close = getattr(parts, "aclose", None)
            if close is not None:
                await close()


@final
class _WithLateUsage:
    """Parts that somebody listens to, with the promise that their source has beside them."""

    def __init__(
        self, parts: AsyncGenerator[ProviderPart | UnknownPart], source: LateUsage
    ) -> None:
        self._parts = parts
        self.final_usage = source.final_usage

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Awaitable[ProviderPart | UnknownPart]:
        return anext(self._parts)

    async def aclose(self) -> None:
        await self._parts.aclose()
