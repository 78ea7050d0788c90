"""The root of ``fiberscope serve``: what it opens, in which order, and how all of it ends.

Nested from outside in: the state directory's lock, the socket, the web server, the app scope. A
signal interrupts the root; then the app scope closes first, while everybody can still be told, then
the server stops, then the outer scope closes, and the lock is given back last.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import structlog
from starlette.types import ASGIApp

import fibers as fb
from fibers import Scope
from fibers.app import Startup, Watchdog, occupy
from fibers.app.startup import Service
from streamengine import HistoryError, Provider, Tool

from . import discovery, token
from .api import Api
from .app import make_app
from .config import ServeConfig
from .errors import HostError
from .histories import kind_of
from .hub import Hub
from .models import provider_for
from .root import Opening, Root, started
from .security import guarded
from .server import HttpServer, listen, port_of
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
    tools: Sequence[Tool] = (),
) -> None:
    """Serve until interrupted. Fails with what keeps it from starting.

    ``make_provider`` is asked once the state directory is locked; None: by the model's name.
    ``tools``: what the model may call; the command line has none.
    """
    outer = Scope(name="host")
    made = make_provider or (lambda: provider_for(config.model, base_url=config.base_url))
    await outer.use(_serve_in(outer, config, on_ready, made, tools))


@fb.effect(raises=(HostError, HistoryError))
async def _serve_in(
    outer: Scope,
    config: ServeConfig,
    on_ready: Callable[[Ready], object],
    make_provider: Callable[[], Provider],
    tools: Sequence[Tool],
) -> None:
    state = prepare(config.state)
    site = _Site(
        outer,
        config,
        Opening(
            state,
            make_provider,
            config.limits,
            supervised=config.supervised,
            auto_retry=config.auto_retry and config.supervised,
            with_turns=True,
            tools=tools,
            database=config.database,
        ),
    )

    @fb.effect(raises=(HostError, HistoryError))
    async def work() -> None:
        await started(site.startup)
        url = f"http://{_reachable(config.host)}:{site.port}"
        _log.info(
            "serving",
            url=url,
            model=config.model,
            state=str(state),
            history=kind_of(config.database),
            auth=config.auth,
        )
        on_ready(Ready(url if site.access is None else site.access.url(url), site.port))
        await site.serving()

    @fb.effect
    async def end() -> None:
        await site.shutdown.dispose()
        site.withdraw()

    await work().ensuring(end())


@final
class _Site:
    """A server in the making: the steps of its start after those of its root, and their end."""

    def __init__(self, outer: Scope, config: ServeConfig, opening: Opening) -> None:
        self._outer = outer
        self._config = config
        self._opening = opening
        self._socket: socket.socket | None = None
        self._server: HttpServer | None = None
        self._serving: fb.Fiber[None, Any] | None = None
        self._announced = False
        self.access: token.AccessToken | None = None
        self.shutdown = opening.shutdown([("server.stop", self._stop)])
        self.shutdown.on_begin(lambda: _log.info("[shutdown] begins"))
        self.startup = Startup(
            [
                *opening.steps,
                ("http.start", self._start),
                ("server.announce", self._announce),
            ],
            config.step_seconds,
            shutdown=self.shutdown,
            housekeeping=opening.housekeeping,
            services=self._services(),
        )

    @property
    def port(self) -> int:
        """Where it listens; after the step that does."""
        assert self._socket is not None
        return port_of(self._socket)

    def serving(self) -> fb.Effect[None, Any]:
        """Wait until the server ends."""
        assert self._serving is not None
        return self._serving.join()

    def _services(self) -> list[Service]:
        seconds = self._config.block_seconds
        if seconds is None:
            return []
        return [("watchdog", lambda: occupy(self._opening.app_scope, Watchdog(seconds)))]

    @fb.effect(raises=Exception)
    async def _start(self) -> None:
        config = self._config
        self.access = token.load_or_make(self._opening.root.state) if config.auth else None
        self._socket = sock = listen(config.host, config.port)
        await fb.add_finalizer(lambda _exit: fb.Effect.sync(sock.close))
        app, hub = make_http(
            self._opening.root,
            config,
            port=self.port,
            access=self.access,
            outer=self._outer,
            is_shutting_down=lambda: self.shutdown.is_shutting_down,
        )
        server = self._server = HttpServer(app, sock, config.limits, hub.close)
        self._serving = self._outer.fork(fb.Effect.promise(server.run))
        self._serving.set_name("web server")
        await fb.race_first(fb.Effect.promise(server.started), self._serving.join())

    @fb.effect(raises=HostError)
    async def _announce(self) -> None:
        url = f"http://{_reachable(self._config.host)}:{self.port}"
        discovery.announce(self._opening.root.state, url)
        self._announced = True

    def withdraw(self) -> None:
        """Take the note back; only our own: a start may fail because another server runs."""
        if not self._announced:
            return
        try:
            discovery.withdraw(self._opening.root.state)
        except HostError as error:
            # Stale from now on, and recognised as such: its process doesn't hold the lock.
            _log.warning("the note of this server was not removed", error=str(error))

    async def _stop(self) -> None:
        if self._server is not None and self._serving is not None:
            await self._server.stop()


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
    hub = Hub(root, config.limits)
    cookie_name = f"fiberscope_{port}"  # cookies don't tell the ports of a host apart
    api = Api(
        root,
        hub,
        outer=outer,
        is_shutting_down=is_shutting_down,
        token=access,
        cookie_name=cookie_name,
        limits=config.limits,
        tells_its_fibers=config.tells_its_fibers,
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
