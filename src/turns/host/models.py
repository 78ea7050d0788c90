"""From the name of a model to the provider that answers with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final, final

from fibers import AbortSignal
from streamengine import Provider, StreamError, StreamRequest
from streamengine.model import ProviderPart, UnknownPart
from streamengine.providers.local import LocalModelError, LocalProvider
from streamengine.providers.local.files import find_model_file
from streamengine.providers.script import ScriptError
from streamengine.providers.scripted import ScriptedProvider

from .errors import HostError, UsageError

SCRIPTED_PREFIX: Final = "scripted:"


def provider_for(model: str) -> Provider:
    """The provider of ``local`` or ``scripted:FILE``.

    Raises UsageError for another name, HostError where the model isn't installed or its file can't
    be used.
    """
    if model == "local":
        return _local()
    if model.startswith(SCRIPTED_PREFIX) and model != SCRIPTED_PREFIX:
        return _scripted(Path(model.removeprefix(SCRIPTED_PREFIX)).expanduser(), model)
    raise UsageError(f"there is no model {model!r}: use local, or scripted:FILE")


def _local() -> Provider:
    try:
        # The provider itself looks for it at the first message only.
        find_model_file()
    except LocalModelError as error:
        raise HostError(f"{error} Or use --model scripted:FILE") from error
    return LocalProvider()


def _scripted(path: Path, model: str) -> Provider:
    if not path.is_file():
        raise UsageError(f"--model {model}: there is no file {path}")
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
        return self._listen(self._inner.stream(request, signal))

    async def _listen(
        self, parts: AsyncIterator[ProviderPart | UnknownPart]
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
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
