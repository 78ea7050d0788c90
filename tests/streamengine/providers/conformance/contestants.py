"""Every provider of the project behind one face: a test says what its model does."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Protocol

import httpx2
from openai import AsyncOpenAI
from pydantic_ai.messages import ModelMessage
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from streamengine import Provider
from streamengine.providers.anthropic import anthropic
from streamengine.providers.api import HttpProvider
from streamengine.providers.http import Bounds
from streamengine.providers.keys import KeySource
from streamengine.providers.local import LocalProvider
from streamengine.providers.openai import openai_chat, openai_responses
from streamengine.providers.pydantic_ai import PydanticAIProvider
from streamengine.providers.script import Script
from streamengine.providers.scripted import ScriptedProvider

from ..fake_model import FakeModel, Gate, opened
from .dialects import AnthropicDialect, ChatDialect, Dialect, ResponsesDialect
from .hostile_server import (
    BOUND_SECONDS,
    HostileServer,
    a_server,
    answers,
    stalls_after,
)

KEY: Final = "sk-conformance-0123456789abcdefghij"
MODEL: Final = "m-1"
FAILURE: Final = "the machine room is on fire"

PATIENT: Final = Bounds(idle_seconds=60, error_seconds=60, late_usage_seconds=60)
"""So long that no test passes by a bound: each has only BOUND_SECONDS."""


class Contestant(ABC):
    """A provider, and what its model does with the messages that come."""

    provider: Provider

    @abstractmethod
    def answers(self, *texts: str) -> None:
        """A whole answer."""

    @abstractmethod
    def stalls_after(self, *texts: str) -> None:
        """It says so much, and nothing any more."""

    @abstractmethod
    def fails_after(self, *texts: str) -> None:
        """It says so much, and then that it failed (FAILURE)."""

    @abstractmethod
    async def nothing_left(self) -> None:
        """Wait until nothing works on an answer any more: no connection, no generator, no job."""


class OverHttp(Contestant):
    """A provider that talks to the hostile server."""

    def __init__(self, server: HostileServer, dialect: Dialect, provider: Provider) -> None:
        self.server = server
        self.dialect = dialect
        self.provider = provider

    def answers(self, *texts: str) -> None:
        self.server.plan = answers(*self.dialect.answer(*texts))

    def stalls_after(self, *texts: str) -> None:
        self.server.plan = stalls_after(*self.dialect.begin(), *map(self.dialect.text, texts))

    def fails_after(self, *texts: str) -> None:
        said = map(self.dialect.text, texts)
        failure = self.dialect.failure(FAILURE)
        self.server.plan = answers(*self.dialect.begin(), *said, failure)

    async def nothing_left(self) -> None:
        await self.server.none_left()


class Scripted(Contestant):
    """A script for what its model does; there is no provider before."""

    def answers(self, *texts: str) -> None:
        end = {"type": "finish", "finishReason": "stop", "rawFinishReason": "stop"}
        self._play(texts, {"do": "give", "part": {"type": "text-end"}}, {"do": "give", "part": end})

    def stalls_after(self, *texts: str) -> None:
        self._play(texts, {"do": "wait-for-ever"})

    def fails_after(self, *texts: str) -> None:
        self._play(texts, {"do": "raise", "message": FAILURE})

    async def nothing_left(self) -> None:
        """It has nothing but its generator, which the loop would complain about."""

    def _play(self, texts: tuple[str, ...], *last: dict[str, Any]) -> None:
        said = [{"do": "give", "part": {"type": "text-delta", "text": text}} for text in texts]
        script = Script.model_validate({"answers": [{"steps": [*said, *last]}]})
        self.provider = ScriptedProvider(script)


class Local(Contestant):
    """The local model's provider over a model without weights: a token a byte."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._text = ""
        self._made_bytes = 0
        self._at_the_end: Callable[[], None] = lambda: None
        self.local = LocalProvider(load=lambda: FakeModel(self._say), system="")
        self.provider = self.local

    def answers(self, *texts: str) -> None:
        self._play(texts, lambda: None)
        self._gate.open()

    def stalls_after(self, *texts: str) -> None:
        self._play(texts, self._gate.pass_through)

    def fails_after(self, *texts: str) -> None:
        def fail() -> None:
            raise RuntimeError(FAILURE)

        self._play(texts, fail)

    async def nothing_left(self) -> None:
        """Its thread lets go of a job at the next step, which the gate may hold: the end of the
        contest opens it, and closes the provider.
        """

    def _play(self, texts: tuple[str, ...], at_the_end: Callable[[], None]) -> None:
        self._text, self._made_bytes, self._at_the_end = "".join(texts), 0, at_the_end

    def _say(self, _prompt: str) -> str:
        """Asked for each token, on the model's thread."""
        if self._made_bytes == len(self._text.encode()):
            self._at_the_end()
        self._made_bytes += 1
        return self._text


class PydanticFunction(Contestant):
    """A function as the model of pydantic-ai."""

    def __init__(self) -> None:
        self._texts: tuple[str, ...] = ()
        self._then: Callable[[], Any] = lambda: None
        self._running = 0
        self._none_running = asyncio.Event()
        self.provider = PydanticAIProvider(FunctionModel(stream_function=self._say))

    def answers(self, *texts: str) -> None:
        async def done() -> None:
            return None

        self._texts, self._then = texts, done

    def stalls_after(self, *texts: str) -> None:
        self._texts, self._then = texts, asyncio.Event().wait

    def fails_after(self, *texts: str) -> None:
        async def fail() -> None:
            raise RuntimeError(FAILURE)

        self._texts, self._then = texts, fail

    async def nothing_left(self) -> None:
        await asyncio.wait_for(self._none_running.wait(), BOUND_SECONDS)

    async def _say(self, _messages: list[ModelMessage], _info: AgentInfo) -> AsyncIterator[str]:
        self._running += 1
        try:
            for text in self._texts:
                yield text
            await self._then()
        finally:
            self._running -= 1
            if not self._running:
                self._none_running.set()


class _MakeProvider(Protocol):
    def __call__(
        self, model: str, *, base_url: str, keys: KeySource, bounds: Bounds
    ) -> HttpProvider: ...


_APIS: Final[Mapping[str, tuple[_MakeProvider, Dialect]]] = {
    "openai-chat": (openai_chat, ChatDialect()),
    "openai-responses": (openai_responses, ResponsesDialect()),
    "anthropic": (anthropic, AnthropicDialect()),
}
OWN_WIRE: Final = tuple(_APIS)
"""Those that speak HTTP by the code of this project."""
OVER_HTTP: Final = (*OWN_WIRE, "pydantic-ai-openai")
ALL: Final = (*OVER_HTTP, "pydantic-ai-function", "scripted", "local")


def own_provider(name: str, base_url: str, bounds: Bounds, *, key: str = KEY) -> HttpProvider:
    """One of OWN_WIRE that asks there."""
    keys = KeySource("CONFORMANCE_API_KEY", environment={"CONFORMANCE_API_KEY": key})
    return _APIS[name][0](MODEL, base_url=base_url, keys=keys, bounds=bounds)


@asynccontextmanager
async def over_http(name: str, bounds: Bounds = PATIENT) -> AsyncGenerator[OverHttp]:
    """One of OVER_HTTP, and the server that it talks to."""
    async with a_server() as server:
        if name in _APIS:
            yield OverHttp(server, _APIS[name][1], own_provider(name, server.url, bounds))
            return
        async with httpx2.AsyncClient(timeout=bounds.idle_seconds) as http:
            client = AsyncOpenAI(base_url=server.url, api_key=KEY, http_client=http, max_retries=0)
            model = OpenAIChatModel(MODEL, provider=OpenAIProvider(openai_client=client))
            theirs = PydanticAIProvider(model, environment={"CONFORMANCE_API_KEY": KEY})
            yield OverHttp(server, ChatDialect(), theirs)


@asynccontextmanager
async def a_contestant(name: str) -> AsyncGenerator[Contestant]:
    """Any of ALL."""
    if name in OVER_HTTP:
        async with over_http(name) as contestant:
            yield contestant
    elif name == "pydantic-ai-function":
        yield PydanticFunction()
    elif name == "scripted":
        yield Scripted()
    else:
        gate = Gate()
        with opened(gate):
            local = Local(gate)
            try:
                yield local
            finally:
                gate.open()
                local.local.close()
