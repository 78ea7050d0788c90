"""Root: what every program of this host is built of, and how it ends.

One state directory, its lock, the history, the engine, the turns, the app scope. The scope that
the root is opened in is the outer one: it closes last, and gives the lock back last of all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Never, final

import fibers as fb
from fibers import Runtime
from fibers.app import AppScope, Shutdown, Startup, StartupStepTimeoutError, occupy
from fibers.app.shutdown import Step
from fibers.app.startup import STEP_TIMEOUT_SECONDS
from streamengine import (
    AutoRetry,
    EngineOptions,
    HistoryError,
    HistoryStore,
    Provider,
    StartOptions,
    StreamEngine,
    Tool,
)
from streamengine.model import ErrorEvent, Row
from streamengine.recovered import log_recovered
from streamengine.redact import Secret

from ..agent_turns import AgentTurns
from ..model.errors import TurnError
from .config import Limits
from .errors import HostError
from .histories import open_history, open_turn_store
from .hosted_turns import end_left_over, make_turns
from .models import ImpatientProvider
from .state import sweep
from .turn_feed import TurnFeed

ENGINE_OPTIONS: Final = EngineOptions(tool_concurrency=1)
"""Where turns run. One tool after the other: what a person says meanwhile skips those that have not
begun, and of tools that began together nothing is left to skip (U20)."""


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
    turns: AgentTurns | None = None
    """None: there are only messages and their answers."""
    turn_feed: TurnFeed | None = None
    """What is told of its turns; None where it has none."""

    def shutdown(self, steps: Sequence[Step]) -> Shutdown:
        """The teardown of this root: its app scope first, then ``steps``, then its runtime."""
        return Shutdown(self.app_scope, steps, runtime=self.runtime)


@final
class Opening:
    """A root in the making: the steps of its start, and what they have made so far.

    The scope that the steps run in is the outer one: it gives the state directory back.
    ``with_turns``: those that the last process left are put in order, and those that were queued
    begin; only where the root is ``supervised``.
    """

    def __init__(
        self,
        state: Path,
        make_provider: Callable[[], Provider],
        limits: Limits,
        *,
        supervised: bool = True,
        auto_retry: bool = False,
        with_turns: bool = False,
        tools: Sequence[Tool] = (),
        database: Secret | None = None,
    ) -> None:
        self._state = state
        self._make_provider = make_provider
        self._limits = limits
        self._supervised = supervised
        self._auto_retry = auto_retry
        self._with_turns = with_turns and supervised
        self._tools = tools
        self._database = database
        self._history: HistoryStore | None = None
        self._provider: Provider | None = None
        self._root: Root | None = None
        self.app_scope: AppScope = AppScope()
        self.runtime: Runtime[Never] = Runtime()

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
            *([("turns.read", self._read_turns)] if self._with_turns else []),
            ("history.recover", self._recover),
            *([("turns.start", self._start_turns)] if self._with_turns else []),
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
        self._provider = provider
        engine = StreamEngine(
            history=self._history,
            provider=provider,
            scope=self.app_scope if self._supervised else None,
            tools=self._tools,
            options=replace(ENGINE_OPTIONS, for_resumed=self._for_resumed)
            if self._with_turns
            else None,
        )
        if self._supervised:
            await occupy(self.app_scope, engine)
        retries = (
            AutoRetry(
                engine,
                self._history,
                tried_elsewhere=self._is_of_a_running_turn,
                is_over=self._is_of_a_settled_turn,
            )
            if self._auto_retry
            else None
        )
        if retries is not None:
            await occupy(self.app_scope, retries)
        self._root = Root(self._state, self._history, engine, self.app_scope, self.runtime, retries)

    @fb.effect(raises=(HistoryError, HostError))
    async def _read_turns(self) -> None:
        """Before the recovery: what it takes up is decided by the records, too (I9, T16)."""
        assert self._provider is not None
        root = self.root
        with _told_by_the_host():
            turns = make_turns(
                state=root.state,
                store=await open_turn_store(root.state, root.history),
                engine=root.engine,
                provider=self._provider,
                options=ENGINE_OPTIONS,
                scope=self.app_scope,
                retries=root.retries,
            )
            await turns.manager.read()
        self._root = replace(root, turns=turns, turn_feed=TurnFeed(turns))

    @fb.effect(raises=HistoryError)
    async def _recover(self) -> None:
        assert self._history is not None
        await recover(self._history, self.root.retries)

    @fb.effect(raises=HostError)
    async def _start_turns(self) -> None:
        """After the recovery: an answer that it has taken up keeps its turn alive (T16)."""
        turns, feed = self.root.turns, self.root.turn_feed
        assert turns is not None
        assert feed is not None
        await end_left_over(self.root.state)
        with _told_by_the_host():
            await occupy(self.app_scope, turns.manager)
            feed.take_up(await turns.manager.list())

    def _is_of_a_running_turn(self, event: ErrorEvent) -> bool:
        turns = None if self._root is None else self._root.turns
        turn_id = (event.correlation or {}).get("turnId")
        return turns is not None and isinstance(turn_id, str) and turns.loop.is_running(turn_id)

    def _is_of_a_settled_turn(self, row: Row) -> bool:
        turns = None if self._root is None else self._root.turns
        record = None if turns is None else turns.record_of(row)
        return record is not None and record.is_terminal

    def _for_resumed(self, row: Row) -> StartOptions | None:
        turns = None if self._root is None else self._root.turns
        return None if turns is None else turns.for_resumed(row)


@contextmanager
def _told_by_the_host() -> Generator[None]:
    try:
        yield
    except TurnError as error:
        raise HostError(f"the turns can't be read: {error.message} {error.way_out}") from error


@fb.effect(raises=(HostError, HistoryError))
async def open_root(
    state: Path,
    make_provider: Callable[[], Provider],
    limits: Limits,
    *,
    supervised: bool = True,
    auto_retry: bool = False,
    with_turns: bool = False,
    step_seconds: float = STEP_TIMEOUT_SECONDS,
    database: Secret | None = None,
) -> Root:
    """Take the state directory, put it in order, build the rest. What ``make_provider`` raises
    passes through. Fails with StateDirLocked where another process has it, or the ``database``.
    """
    opening = Opening(
        state,
        make_provider,
        limits,
        supervised=supervised,
        auto_retry=auto_retry,
        with_turns=with_turns,
        database=database,
    )
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
