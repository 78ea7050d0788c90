"""Root: what every program of this host is built of, and how it ends.

One state directory, its lock, the history, the engine, the app scope. The scope that the root
is opened in is the outer one: it closes last, and gives the lock back last of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import final

import fibers as fb
from fibers import Runtime
from fibers.app import AppScope, Shutdown, Startup, StartupStepTimeoutError, occupy
from fibers.app.shutdown import Step
from fibers.app.startup import STEP_TIMEOUT_SECONDS
from streamengine import (
    AutoRetry,
    HistoryError,
    HistoryStore,
    Provider,
    StreamEngine,
    Tool,
)
from streamengine.recovered import log_recovered
from streamengine.redact import Secret

from .config import Limits
from .errors import HostError
from .histories import open_history
from .models import ImpatientProvider
from .state import sweep


@dataclass(frozen=True, slots=True)
class Root:
    """The services of one process."""

    state: Path
    history: HistoryStore
    engine: StreamEngine
    app_scope: AppScope
    runtime: Runtime
    retries: AutoRetry | None = None
    """None: failed and interrupted answers stay as they are."""

    def shutdown(self, steps: Sequence[Step]) -> Shutdown:
        """The teardown of this root: its app scope first, then ``steps``, then its runtime."""
        return Shutdown(self.app_scope, steps, runtime=self.runtime)


@final
class Opening:
    """A root in the making: the steps of its start, and what they have made so far.

    The scope that the steps run in is the outer one: it gives the state directory back.
    """

    def __init__(
        self,
        state: Path,
        make_provider: Callable[[], Provider],
        limits: Limits,
        *,
        supervised: bool = True,
        auto_retry: bool = False,
        tools: Sequence[Tool] = (),
        database: Secret | None = None,
    ) -> None:
        self._state = state
        self._make_provider = make_provider
        self._limits = limits
        self._supervised = supervised
        self._auto_retry = auto_retry
        self._tools = tools
        self._database = database
        self._history: HistoryStore | None = None
        self._root: Root | None = None
        self.app_scope = AppScope()
        self.runtime = Runtime()

    @property
    def root(self) -> Root:
        """What the steps have made; once they are done."""
        assert self._root is not None, "a root is complete when its start is over"
        return self._root

    def shutdown(self, steps: Sequence[Step]) -> Shutdown:
        """The teardown of this root, complete or not."""
        return Shutdown(self.app_scope, steps, runtime=self.runtime)

    @property
    def steps(self) -> list[Step]:
        """In order; the lock of the state directory first, so that what comes next is alone."""
        return [
            ("history.open", self._open_history),
            ("engine.open", self._open_engine),
            ("history.recover", self._recover),
        ]

    @property
    def housekeeping(self) -> list[Step]:
        """What can wait until the start is over."""
        return [("state.sweep", lambda: asyncio.to_thread(sweep, self._state))]

    @fb.effect(raises=(HistoryError, HostError))
    async def _open_history(self) -> None:
        self._history = await open_history(self._state, self._database)

    @fb.effect(raises=Exception)
    async def _open_engine(self) -> None:
        assert self._history is not None
        made = self._make_provider()
        await fb.add_finalizer(lambda _exit: fb.Effect.sync(lambda: _close(made)))
        # One whose answers wait for each other is silent for a reason.
        waits = getattr(made, "answers_wait_in_line", False)
        provider = made if waits else ImpatientProvider(made, self._limits.silence_seconds)
        engine = StreamEngine(
            history=self._history,
            provider=provider,
            scope=self.app_scope if self._supervised else None,
            tools=self._tools,
        )
        if self._supervised:
            await occupy(self.app_scope, engine)
        retries = AutoRetry(engine, self._history) if self._auto_retry else None
        if retries is not None:
            await occupy(self.app_scope, retries)
        self._root = Root(self._state, self._history, engine, self.app_scope, self.runtime, retries)

    @fb.effect(raises=HistoryError)
    async def _recover(self) -> None:
        assert self._history is not None
        await recover(self._history, self.root.retries)


@fb.effect(raises=(HostError, HistoryError))
async def open_root(
    state: Path,
    make_provider: Callable[[], Provider],
    limits: Limits,
    *,
    supervised: bool = True,
    step_seconds: float = STEP_TIMEOUT_SECONDS,
    database: Secret | None = None,
) -> Root:
    """Take the state directory, put it in order, build the rest. What ``make_provider`` raises
    passes through. Fails with StateDirLocked where another process has it, or the ``database``.
    """
    opening = Opening(state, make_provider, limits, supervised=supervised, database=database)
    startup = Startup(opening.steps, step_seconds, shutdown=opening.shutdown([]))
    await started(startup)
    return opening.root


@fb.effect(raises=Exception)
async def started(startup: Startup) -> None:
    """Run a start; one that took too long fails with a HostError that names the step (VI13)."""
    try:
        await startup.run()
    except StartupStepTimeoutError as error:
        raise HostError(f"Startup failed: {type(error).__name__}: {error}") from error


def _close(provider: Provider) -> None:
    """Let go of what a provider holds (a model in memory, say); most hold nothing."""
    close = getattr(provider, "close", None)
    if close is not None:
        close()


@fb.effect(raises=HistoryError)
async def recover(history: HistoryStore, retries: AutoRetry | None = None) -> None:
    """Put every workspace in order, and log what a crash had left. Before the first start.

    ``retries`` takes up the answers that it had interrupted. Fails for a workspace whose rows can't
    be read: serving without them would seem to lose them.
    """
    for workspace_id in await history.workspaces():
        if retries is None:
            log_recovered((await history.load(workspace_id)).report)
        else:
            await retries.take_up(workspace_id)
