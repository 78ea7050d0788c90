"""What the parts of a delta cost bare, measured in the same run: what the engine stands beside."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httpx
import httpx_sse

from bench.engine.figures import Figure, Group
from bench.measure import cpu_us
from streamengine.model import StreamDeltaEvent

_CHUNKS: Final = 5_000
_EVENTS: Final = 50_000
_ROUNDS: Final = 5


def _chunk(n: int) -> bytes:
    """As an OpenAI-compatible server sends a token."""
    fields = {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "bench",
        "choices": [{"index": 0, "delta": {"content": f"word{n} "}, "finish_reason": None}],
    }
    return b"data: " + json.dumps(fields).encode() + b"\n\n"


def _transport(chunks: int) -> httpx.MockTransport:
    """All of the body at hand: what is measured is the reading of it, not a network."""
    body = b"".join(map(_chunk, range(chunks))) + b"data: [DONE]\n\n"
    headers = {"content-type": "text/event-stream"}
    return httpx.MockTransport(lambda _request: httpx.Response(200, headers=headers, content=body))


async def _bare_sse(chunks: int) -> float:
    async with (
        httpx.AsyncClient(transport=_transport(chunks)) as client,
        httpx_sse.aconnect_sse(client, "POST", "http://127.0.0.1/") as source,
    ):
        came, began = 0, cpu_us()
        async for event in source.aiter_sse():
            if event.data != "[DONE]":
                came += bool(json.loads(event.data)["choices"][0]["delta"]["content"])
        cost = cpu_us() - began
    return _each(cost, came, chunks)


async def _openai(chunks: int) -> float:
    from openai import AsyncOpenAI  # only where it is installed

    client: Any  # releases of the client differ in whose AsyncClient they name
    async with httpx.AsyncClient(transport=_transport(chunks)) as client:
        api = AsyncOpenAI(api_key="none", base_url="http://127.0.0.1/", http_client=client)
        stream = await api.chat.completions.create(
            model="bench", messages=[{"role": "user", "content": "?"}], stream=True
        )
        came, began = 0, cpu_us()
        async for chunk in stream:
            came += bool(chunk.choices[0].delta.content)
        cost = cpu_us() - began
    return _each(cost, came, chunks)


def _each(cost_us: float, came: int, chunks: int) -> float:
    if came != chunks:
        raise RuntimeError(f"{came} of {chunks} chunks came")
    return cost_us / chunks


def _event(n: int) -> StreamDeltaEvent:
    return StreamDeltaEvent(
        workspace_id="bench", message_id="a_1", delta="word ", timestamp_ms=1_700_000_000_000 + n
    )


def _made(events: int) -> float:
    began = cpu_us()
    for n in range(events):
        _event(n)
    return (cpu_us() - began) / events


def _as_json(events: int) -> float:
    event = _event(0)
    began = cpu_us()
    for _ in range(events):
        event.to_json()
    return (cpu_us() - began) / events


async def measure(quick: bool) -> list[Figure]:
    part = 10 if quick else 1
    chunks, events = _CHUNKS // part, _EVENTS // part
    rows = [
        await _row("engine-bare-sse", "bare: httpx-sse and json, a chunk", _bare_sse, chunks),
        _plain("engine-bare-event", "bare: a pydantic event of a delta", _made, events),
        _plain("engine-bare-json", "bare: its JSON", _as_json, events),
    ]
    if importlib.util.find_spec("openai") is None:
        print("  the openai client is not installed: its row is not measured")
    else:
        rows.append(
            await _row("engine-bare-openai", "bare: the openai client, a chunk", _openai, chunks)
        )
    return rows


async def _row(key: str, what: str, work: Callable[[int], Awaitable[float]], n: int) -> Figure:
    samples = [await work(n) for _ in range(_ROUNDS + 1)]
    return Figure(key, what, "us CPU", samples[1:])


def _plain(key: str, what: str, work: Callable[[int], float], n: int) -> Figure:
    return Figure(key, what, "us CPU", [work(n) for _ in range(_ROUNDS + 1)][1:])


REFERENCES: Final = Group("engine-bare", "bare references", measure, every_build=False)
