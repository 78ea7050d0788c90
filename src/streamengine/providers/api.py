"""HttpProvider: answers of a model behind an HTTP API, whichever API it is."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Protocol, final

import httpx

from fibers import AbortSignal

from ..model.parts import ProviderPart, StartStep, UnknownPart
from ..model.request import StreamRequest
from ..redact import Secret
from . import loose
from .errors import ProviderError
from .failures import Subject
from .http import Exchange, Wire
from .keys import KeySource
from .loose import Fields
from .patience import Aborted
from .sse import SseEvent


class Reader(Protocol):
    """Reads the events of one answer. What it doesn't know it passes over."""

    is_said: bool
    """The model has said all; only what it cost may still come."""
    is_over: bool
    """Nothing comes any more."""

    def read(self, event: Fields) -> Iterator[ProviderPart]:
        """The parts that an event stands for. Raises ProviderError where it is a failure."""
        ...

    def end(self) -> Iterator[ProviderPart]:
        """The last parts. A finish is among them only if the model has said all."""
        ...


class Api(Protocol):
    """How one API is asked, and how its answers are read. Pure: no I/O, no state."""

    path: str

    def auth(self, key: Secret) -> httpx.Auth: ...

    def headers(self) -> Mapping[str, str]: ...

    def body(self, request: StreamRequest, model: str) -> dict[str, Any]: ...

    def reader(self, subject: Subject) -> Reader: ...


@final
class HttpProvider:
    """Streams answers from one API. Made by ``openai_chat``, ``openai_responses``, ``anthropic``.

    Each answer has a connection of its own, which is closed at its end, whatever end that is.
    ``stream`` raises SendError where there is no key; failures of the other side come out of the
    iterator as ProviderError. Neither ever holds the key.
    """

    def __init__(
        self,
        api: Api,
        *,
        model: str,
        wire: Wire,
        keys: KeySource,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        """``model``: for requests that name none. ``extra``: fields of the body that replace what
        would be sent; None takes a field out.
        """
        self._api = api
        self._model = model
        self._wire = wire
        self._keys = keys
        self._extra = dict(extra or {})

    def check_key(self) -> Secret | None:
        """Look for the key now. Raises SendError as ``stream`` does."""
        # A server on this machine seldom wants one.
        return self._keys.find() if self._wire.is_local else self._keys.key()

    def stream(
        self, request: StreamRequest, signal: AbortSignal
    ) -> AsyncIterator[ProviderPart | UnknownPart]:
        """Begin an answer. Raises SendError ("api_key_not_found") where there is no key."""
        key = self.check_key()
        model = request.model or self._model
        body = {**self._api.body(request, model), **self._extra}
        subject = Subject(self._wire.host, model, self._keys.variable, key)
        exchange = self._wire.post(
            self._api.path,
            {name: value for name, value in body.items() if value is not None},
            auth=None if key is None else self._api.auth(key),
            headers=self._api.headers(),
            subject=subject,
            signal=signal,
        )
        return _parts(exchange, self._api.reader(subject), subject)


async def _parts(
    exchange: Exchange, reader: Reader, subject: Subject
) -> AsyncIterator[ProviderPart | UnknownPart]:
    try:
        async with exchange:
            yield StartStep()
            async for event in exchange:
                for part in _read(event, reader, subject):
                    yield part
                if reader.is_over:
                    break
                if reader.is_said:
                    exchange.hurry()
            for part in reader.end():
                yield part
    except Aborted:
        return


def _read(event: SseEvent, reader: Reader, subject: Subject) -> Iterator[ProviderPart]:
    if event.data.strip() == "[DONE]":
        reader.is_over = True
        return
    fields = loose.fields_in(event.data)
    if fields:
        yield from reader.read(fields)
    elif not reader.is_said:
        # Not what it said: that may be anything, and this goes to a person.
        raise ProviderError("api", f"{subject.host} sent an event that is no JSON object")
