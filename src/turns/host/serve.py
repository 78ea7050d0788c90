"""The root of ``fiberscope serve``: what it opens, in which order, and how all of it ends.

Nested from outside in: the state directory's lock, the socket, the web server, the app scope. A
signal interrupts the root; then the app scope closes first, while everybody can still be told, then
the server stops, then the outer scope closes, and the lock is given back last.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog
from starlette.types import ASGIApp

import fibers as fb
from fibers import Scope
from streamengine import HistoryError, Provider

from . import discovery, token
from .api import Api
from .app import make_app
from .config import ServeConfig
from .errors import HostError
from .models import provider_for
from .root import Root, open_root
from .security import guarded
from .server import HttpServer, listen, port_of
from .sse import Hub
from .state import prepare

_LOOPBACK_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_ANYWHERE: Final = frozenset({"0.0.0.0", "::", "[::]", ""})

_log = structlog.get_logger("turns.host.serve")


@dataclass(frozen=True, slots=True)
class Ready:
    """What is said when the server takes messages."""

    url: str
    """Of the page, with the token in its fragment if there is one. Not for a log."""
    port: int


@fb.effect(raises=(HostError, HistoryError))
async def serve(
    config: ServeConfig,
    on_ready: Callable[[Ready], object],
    *,
    make_provider: Callable[[], Provider] | None = None,
) -> None:
    """Serve until interrupted. Fails with what keeps it from starting.

    ``make_provider`` is asked once the state directory is locked; None: by the model's name.
    """
    outer = Scope(name="host")
    made = make_provider or (lambda: provider_for(config.model))
    await outer.use(_serve_in(outer, config, on_ready, made))


@fb.effect(raises=(HostError, HistoryError))
async def _serve_in(
    outer: Scope,
    config: ServeConfig,
    on_ready: Callable[[Ready], object],
    make_provider: Callable[[], Provider],
) -> None:
    state = prepare(config.state)
    root = await open_root(state, make_provider, config.limits, supervised=config.supervised)
    access = token.load_or_make(state) if config.auth else None
    sock = listen(config.host, config.port)
    await fb.add_finalizer(lambda _exit: fb.Effect.sync(sock.close))
    port = port_of(sock)

    shutdown = root.shutdown([("server.stop", lambda: server.stop())])
    app, hub = make_http(
        root,
        config,
        port=port,
        access=access,
        outer=outer,
        is_shutting_down=lambda: shutdown.is_shutting_down,
    )
    server = HttpServer(app, sock, config.limits, hub.close)

    serving = outer.fork(fb.Effect.promise(server.run))
    serving.set_name("web server")
    url = f"http://{_reachable(config.host)}:{port}"

    @fb.effect(raises=HostError)
    async def work() -> None:
        await server.started()
        discovery.announce(state, url)
        _log.info("serving", url=url, model=config.model, state=str(state), auth=config.auth)
        on_ready(Ready(url if access is None else f"{url}/#token={access.secret}", port))
        await serving.join()

    @fb.effect
    async def end() -> None:
        _log.info("[shutdown] begins")
        await shutdown.dispose()
        _withdraw(root)

    await work().ensuring(end())


def make_http(
    root: Root,
    config: ServeConfig,
    *,
    port: int,
    access: token.AccessToken | None,
    outer: Scope,
    is_shutting_down: Callable[[], bool],
) -> tuple[ASGIApp, Hub]:
    """The whole application over a root, and its event streams, which somebody has to close."""
    hub = Hub(root.engine, config.limits)
    cookie_name = f"fiberscope_{port}"  # cookies don't tell the ports of a host apart
    api = Api(
        root,
        hub,
        outer=outer,
        is_shutting_down=is_shutting_down,
        token=access,
        cookie_name=cookie_name,
        limits=config.limits,
    )
    app = guarded(
        make_app(api),
        allowed_hosts=names_of(config, port),
        token=access,
        cookie_name=cookie_name,
        is_shutting_down=is_shutting_down,
        limits=config.limits,
    )
    return app, hub


def _withdraw(root: Root) -> None:
    try:
        discovery.withdraw(root.state)
    except HostError as error:
        # Stale from now on, and recognised as such: its process doesn't hold the lock.
        _log.warning("the note of this server was not removed", error=str(error))


def names_of(config: ServeConfig, port: int) -> list[str]:
    """The values of Host that this server answers to."""
    names = [*_LOOPBACK_NAMES, *config.allowed_hosts]
    if config.host not in _ANYWHERE:
        names.append(_bracketed(config.host))
    return [f"{_bracketed(name)}:{port}" for name in names]


def _reachable(host: str) -> str:
    return "127.0.0.1" if host in _ANYWHERE else _bracketed(host)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
