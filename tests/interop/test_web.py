"""Effects in handlers of Starlette and FastAPI: requests, streams, dependencies, the lifespan."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, MutableMapping
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any

import fastapi
import httpx
import pytest
import uvicorn
from fastapi import BackgroundTasks, Depends, FastAPI
from starlette.applications import Starlette
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

import fibers as fb
from fibers import Effect
from fibers.app import AppScope, close_bounded
from tests.loops import every_loop
from tests.probes.kit_f import cause_of, endless, new_gate, note, parked, turns, wait_for

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from starlette.types import ASGIApp


class NotFound(Exception):
    """The error of these handlers."""


def slow_farewell(log: list[str]) -> Effect[None, Any]:
    """Waits for ever; its finalizer takes some turns of the loop."""
    last = Effect.promise(lambda: turns(3)).flat_map(lambda _: note(log, "finalized"))
    return endless().on_interrupt(lambda _: last)


def client(app: ASGIApp) -> httpx.AsyncClient:
    """A client that calls the application in this loop."""
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


class Connection:
    """A request by hand, so that the test decides when the client leaves."""

    def __init__(self, *, spec_version: str = "2.3") -> None:
        self.scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": spec_version},
            "http_version": "1.1",
            "method": "GET",
            "path": "/",
            "raw_path": b"/",
            "query_string": b"",
            "headers": [],
            "scheme": "http",
            "server": ("test", 80),
            "client": ("test", 1),
        }
        self.left = asyncio.Event()
        self.sent = list[MutableMapping[str, Any]]()
        self._asked = False

    async def receive(self) -> MutableMapping[str, Any]:
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.left.is_set():
            raise OSError("the client has left")
        self.sent.append(message)

    def parts(self) -> list[bytes]:
        return [m["body"] for m in self.sent if m["type"] == "http.response.body" and m["body"]]


# ---- Starlette: handlers


@pytest.mark.spec("PD12")
@every_loop
async def test_a_handler_awaits_effects_and_their_errors_reach_exception_handlers() -> None:
    """The very object, as for a coroutine."""

    @fb.effect(raises=NotFound)
    async def find(name: str) -> str:
        await Effect.yield_now()
        if name != "u1":
            raise NotFound(name)
        return "found"

    async def handler(request: Request) -> Response:
        return PlainTextResponse(await find(request.path_params["name"]))

    async def not_found(request: Request, exc: Exception) -> Response:
        return PlainTextResponse(f"no {exc}", 404)

    app = Starlette(routes=[Route("/{name}", handler)], exception_handlers={NotFound: not_found})
    async with client(app) as http:
        answers = [await http.get("/u1"), await http.get("/u2")]

    assert [(a.status_code, a.text) for a in answers] == [(200, "found"), (404, "no u2")]


@pytest.mark.spec("PD12")
@pytest.mark.parametrize("middleware", [False, True])
@every_loop
async def test_a_cancelled_handler_interrupts_its_effect_and_waits_for_finalizers(
    middleware: bool,
) -> None:
    """What a server does to its handlers at a shutdown; also under Starlette's own middleware."""
    log = list[str]()

    async def handler(request: Request) -> Response:
        await slow_farewell(log)
        return Response()

    async def passes(request: Request, call_next: Callable[..., Awaitable[Response]]) -> Response:
        return await call_next(request)

    stack = [Middleware(BaseHTTPMiddleware, dispatch=passes)] if middleware else []
    app = Starlette(routes=[Route("/", handler)], middleware=stack)
    connection = Connection()
    task = asyncio.create_task(_call(app, connection))
    await turns()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task

    assert task.cancelled()
    assert log == ["finalized"]


async def _call(app: ASGIApp, connection: Connection) -> None:
    await app(connection.scope, connection.receive, connection.send)


@pytest.mark.spec("PD12")
@every_loop
async def test_a_handler_may_end_its_work_when_the_client_leaves() -> None:
    """A race of the work and the disconnect: the loser is finalized before the answer."""
    log = list[str]()

    async def handler(request: Request) -> Response:
        @fb.effect
        async def gone() -> str:
            while not await request.is_disconnected():
                await Effect.yield_now()
            return "gone"

        work = slow_farewell(log).map(lambda _: "done")
        log.append(await fb.race_first(work, gone()))
        return Response()

    connection = Connection()
    task = asyncio.create_task(_call(Starlette(routes=[Route("/", handler)]), connection))
    await turns()
    connection.left.set()
    with suppress(OSError):
        await task

    assert log == ["finalized", "gone"]


# ---- Starlette: streams


@pytest.mark.spec("PD12", "AT10")
@pytest.mark.parametrize("spec_version", ["2.3", "2.4"])
@every_loop
async def test_a_client_that_leaves_a_stream_interrupts_its_effect(spec_version: str) -> None:
    """Before 2.4 Starlette cancels the stream, from 2.4 on the next send fails: either way the
    generator is left through its finally.
    """
    log, more = list[str](), asyncio.Event()

    async def parts() -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            if spec_version == "2.3":
                await slow_farewell(log)
            await more.wait()
            yield b"two"
        finally:
            log.append("left")  # anyio would cancel an await here once more

    async def handler(request: Request) -> Response:
        return StreamingResponse(parts())

    connection = Connection(spec_version=spec_version)
    task = asyncio.create_task(_call(Starlette(routes=[Route("/", handler)]), connection))
    await turns()
    connection.left.set()
    more.set()
    with suppress(Exception):
        await task
    # Who breaks off a loop over a generator leaves its closing to the loop.
    await asyncio.get_running_loop().shutdown_asyncgens()

    assert connection.parts() == [b"one"]
    assert log == (["finalized", "left"] if spec_version == "2.3" else ["left"])


@pytest.mark.spec("PD12")
@every_loop
async def test_a_stream_made_of_effects_is_sent_whole() -> None:
    """Each part awaits one."""

    async def parts() -> AsyncIterator[bytes]:
        for n in range(3):
            await fb.sleep(0)
            yield await Effect.succeed(b"%d" % n)

    async def handler(request: Request) -> Response:
        return StreamingResponse(parts())

    async with client(Starlette(routes=[Route("/", handler)])) as http:
        assert (await http.get("/")).text == "012"


# ---- Starlette: what outlives a request


@pytest.mark.spec("PD12", "PD8")
@every_loop
async def test_a_background_task_runs_effects_after_the_answer() -> None:
    """Starlette awaits it when the answer has been sent."""
    log = list[str]()

    @fb.effect
    async def later(name: str) -> None:
        await Effect.yield_now()
        log.append(f"later {name}")

    async def background(name: str) -> None:
        await later(name)

    async def handler(request: Request) -> Response:
        return Response("now", background=BackgroundTask(background, "x"))

    connection = Connection()
    await _call(Starlette(routes=[Route("/", handler)]), connection)

    assert connection.parts() == [b"now"]
    assert log == ["later x"]


@pytest.mark.spec("VA3", "FO9")
@every_loop
async def test_an_app_scope_in_the_lifespan_owns_what_handlers_fork() -> None:
    """The work outlives its request, and ends with the application before the lifespan does."""
    log = list[str]()

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncGenerator[dict[str, Any]]:
        scope = AppScope()
        yield {"scope": scope}
        log.append(f"closed in time: {await close_bounded(scope)}")

    async def handler(request: Request) -> Response:
        scope: fb.Scope = request.state.scope
        scope.fork(parked(log, "work ended"), start_immediately=True)
        return JSONResponse({"live": scope.finalizer_count})

    app = Starlette(routes=[Route("/", handler)], lifespan=lifespan)
    async with app.router.lifespan_context(app) as state:
        connection = Connection()
        connection.scope["state"] = dict(state or {})
        await _call(app, connection)
        during = list(log)

    assert connection.parts() == [b'{"live":1}']
    assert during == []
    assert log == ["work ended", "closed in time: True"]


@pytest.mark.spec("PD12")
@every_loop
async def test_a_socket_that_is_closed_ends_the_fiber_that_works_for_it() -> None:
    """The handler reads with effects; its work is interrupted before it returns."""
    log = list[str]()

    async def socket(websocket: WebSocket) -> None:
        await websocket.accept()
        work = fb.run_fork(slow_farewell(log))
        receive = Effect.try_promise(websocket.receive_text)
        answer = receive.flat_map(
            lambda text: Effect.promise(lambda: websocket.send_text(text.upper()))
        )
        exit = await answer.forever().exit()
        log.append(type(cause_of(exit).squash().__cause__).__name__)
        await work.interrupt()

    incoming, sent = asyncio.Queue[MutableMapping[str, Any]](), list[object]()

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message.get("text", message["type"]))

    for message in (
        {"type": "websocket.connect"},
        {"type": "websocket.receive", "text": "hi"},
        {"type": "websocket.disconnect", "code": 1001},
    ):
        incoming.put_nowait(message)
    scope: dict[str, Any] = {**Connection().scope, "type": "websocket", "subprotocols": []}
    app = Starlette(routes=[WebSocketRoute("/", socket)])
    await app(scope, incoming.get, send)

    assert sent == ["websocket.accept", "HI"]
    assert log == ["WebSocketDisconnect", "finalized"]


# ---- FastAPI


@fb.effect(raises=NotFound)
async def item_of(number: int) -> dict[str, int]:
    await Effect.yield_now()
    if number > 1:
        raise NotFound(str(number))
    return {"number": number}


def fast_app(log: list[str]) -> FastAPI:
    """Handlers of each kind, with dependencies of each kind."""
    app = FastAPI()

    async def value() -> int:
        return await Effect.succeed(1)

    async def resource() -> AsyncIterator[str]:
        async with fb.Scope() as scope:
            await scope.add_finalizer(lambda _: note(log, "released"))
            yield "resource"
        log.append("dependency left")

    async def not_found(request: Request, exc: Exception) -> Response:
        return JSONResponse({"no": str(exc)}, 404)

    app.add_exception_handler(NotFound, not_found)

    async def item(number: int, one: int) -> dict[str, int]:
        return {**await item_of(number), "one": one}

    async def held(using: str) -> str:
        await Effect.yield_now()
        log.append(f"using {using}")
        return using

    async def fails_while_held(using: str) -> str:
        await item_of(7)
        return using

    def in_a_thread() -> dict[str, int]:
        return fb.run(item_of(1))

    async def background(tasks: BackgroundTasks) -> str:
        async def later() -> None:
            await note(log, "later")

        tasks.add_task(later)
        return "now"

    async def request_scope(request: Request) -> str:
        return await Effect.succeed(request.method)

    # The annotations are strings in this module; what is local has to be given as objects.
    item.__annotations__["one"] = Annotated[int, Depends(value)]
    for uses in (held, fails_while_held):
        uses.__annotations__["using"] = Annotated[str, Depends(resource)]
    app.get("/items/{number}")(item)
    app.get("/held")(held)
    app.get("/fails")(fails_while_held)
    app.get("/thread")(in_a_thread)
    app.get("/background")(background)
    app.get("/method")(request_scope)
    return app


@pytest.mark.spec("PD12", "EX8")
@every_loop
async def test_fastapi_handlers_of_every_kind_run_effects() -> None:
    """async and plain functions, path parameters, a dependency, an exception handler."""
    log = list[str]()
    async with client(fast_app(log)) as http:
        paths = ("/items/1", "/items/2", "/thread", "/background", "/method", "/items/x")
        answers = {path: await http.get(path) for path in paths}

    assert answers["/items/1"].json() == {"number": 1, "one": 1}
    assert (answers["/items/2"].status_code, answers["/items/2"].json()) == (404, {"no": "2"})
    assert answers["/thread"].json() == {"number": 1}
    assert answers["/background"].json() == "now"
    assert answers["/method"].json() == "GET"
    assert answers["/items/x"].status_code == 422
    assert log == ["later"]
    assert fastapi.__version__


@pytest.mark.spec("PD12", "SO3")
@pytest.mark.parametrize("path", ["/held", "/fails"])
@every_loop
async def test_a_dependency_with_yield_may_hold_a_scope_open(path: str) -> None:
    """It is closed after the handler, also where that fails."""
    log = list[str]()
    async with client(fast_app(log)) as http:
        await http.get(path)

    expected = ["using resource", "released", "dependency left"]
    assert log == (expected if path == "/held" else ["released"])


# ---- a real server


@pytest.mark.spec("PD12", "AT21")
@every_loop
async def test_a_client_that_hangs_up_on_a_real_server_interrupts_the_effect_of_its_stream() -> (
    None
):
    """uvicorn tells Starlette, Starlette cancels, the fiber finalizes; the server goes on."""
    log, ended = list[str](), new_gate()

    async def parts() -> AsyncGenerator[bytes, None]:
        yield b"one"
        over = note(log, "interrupted").map(lambda _: ended.set_result(1))
        await endless().on_interrupt(lambda _: over)

    async def stream(request: Request) -> Response:
        return StreamingResponse(parts())

    async def alive(request: Request) -> Response:
        return PlainTextResponse(await Effect.succeed("alive"))

    app = Starlette(routes=[Route("/stream", stream), Route("/alive", alive)])
    config = uvicorn.Config(app, port=0, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server._serve())
    while not server.started:  # noqa: ASYNC110  # uvicorn tells it by this flag only
        await asyncio.sleep(0.001)
    port = server.servers[0].sockets[0].getsockname()[1]
    async with httpx.AsyncClient(trust_env=False, base_url=f"http://127.0.0.1:{port}") as http:
        async with http.stream("GET", "/stream") as response:
            async for part in response.aiter_bytes():
                assert part == b"one"
                break
        await asyncio.wait_for(wait_for(ended), 5)
        assert (await http.get("/alive")).text == "alive"
    server.should_exit = True
    await serving

    assert log == ["interrupted"]
