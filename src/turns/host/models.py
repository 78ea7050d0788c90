"""From the name of a model to the provider that answers with it."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final, final

from fibers import AbortSignal
from streamengine import Provider, SendError, StreamError, StreamRequest
from streamengine.model import ProviderPart, UnknownPart

from .errors import HostError, UsageError

SCRIPTED_PREFIX: Final = "scripted:"

# Imported by name when they are asked for: the local model's packages are an extra.
_LOCAL: Final = ("streamengine.providers.local", "LocalProvider")
_SCRIPTED: Final = ("streamengine.providers.scripted", "ScriptedProvider")


def provider_for(model: str) -> Provider:
    """The provider of ``local`` or ``scripted:FILE``.

    Raises UsageError for another name, HostError where the model isn't installed or its file can't
    be used.
    """
    if model == "local":
        make = _class_of(*_LOCAL)
        return _made("the local model", make)
    if model.startswith(SCRIPTED_PREFIX) and model != SCRIPTED_PREFIX:
        path = Path(model.removeprefix(SCRIPTED_PREFIX)).expanduser()
        if not path.is_file():
            raise UsageError(f"--model {model}: there is no file {path}")
        make = _class_of(*_SCRIPTED)
        return _made(f"the script {path}", lambda: make.from_file(path))
    raise UsageError(f"there is no model {model!r}: use local, or scripted:FILE")


def _class_of(module: str, name: str) -> Any:
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise _not_installed(error) from error


def _made(what: str, make: Callable[[], Provider]) -> Provider:
    try:
        return make()
    except ImportError as error:
        raise _not_installed(error) from error
    except (SendError, StreamError) as error:
        raise HostError(f"{what} can't be used: {error.message}") from error
    except (OSError, ValueError) as error:
        raise HostError(f"{what} can't be used: {error}") from error


def _not_installed(error: ImportError) -> HostError:
    missing = error.name or str(error)
    return HostError(
        f"the model is not installed ({missing} is missing): "
        "install it with `make run`, or use --model scripted:FILE"
    )


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
