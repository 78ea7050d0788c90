"""Root: what every program of this host is built of, and how it ends.

One state directory, its lock, the history in it, the engine, the app scope. The scope that the root
is opened in is the outer one: it closes last, and gives the lock back last of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

import fibers as fb
from fibers import Runtime
from fibers.app import AppScope, Shutdown
from fibers.app.shutdown import Step
from streamengine import FileHistory, HistoryError, HistoryStore, Provider, StreamEngine

from .config import Limits
from .models import ImpatientProvider

_log = structlog.get_logger("turns.host.root")


@dataclass(frozen=True, slots=True)
class Root:
    """The services of one process."""

    state: Path
    history: HistoryStore
    engine: StreamEngine
    app_scope: AppScope
    runtime: Runtime

    def shutdown(self, steps: Sequence[Step]) -> Shutdown:
        """The teardown of this root: its app scope first, then ``steps``, then its runtime."""
        return Shutdown(self.app_scope, steps, runtime=self.runtime)


@fb.effect(raises=HistoryError)
async def open_root(
    state: Path,
    make_provider: Callable[[], Provider],
    limits: Limits,
    *,
    supervised: bool = True,
) -> Root:
    """Take the state directory, put it in order, build the rest. What ``make_provider`` raises
    passes through. Fails with StateDirLocked where another process has it.
    """
    history = await FileHistory.open(state)
    made = make_provider()
    await fb.add_finalizer(lambda _exit: fb.Effect.sync(lambda: _close(made)))
    # One whose answers wait for each other is silent for a reason.
    waits = getattr(made, "answers_wait_in_line", False)
    provider = made if waits else ImpatientProvider(made, limits.silence_seconds)
    app_scope = AppScope()
    engine = StreamEngine(
        history=history, provider=provider, scope=app_scope if supervised else None
    )
    await recover(history)
    return Root(state, history, engine, app_scope, Runtime())


def _close(provider: Provider) -> None:
    """Let go of what a provider holds (a model in memory, say); most hold nothing."""
    close = getattr(provider, "close", None)
    if close is not None:
        close()


@fb.effect(raises=HistoryError)
async def recover(history: HistoryStore) -> None:
    """Put every workspace in order, and log what a crash had left. Before the first start.

    Fails for a workspace whose rows can't be read: serving without them would seem to lose them.
    """
    for workspace_id in await history.workspaces():
        report = (await history.load(workspace_id)).report
        log = _log.bind(workspaceId=workspace_id)
        if report.commit is not None:
            log.info(
                "an interrupted message was found",
                outcome=report.commit.outcome,
                messageId=None if report.commit.row is None else report.commit.row.id,
                dropReason=report.commit.drop_reason,
            )
        if report.unreadable_lines:
            log.warning("lines of the history can't be read", lines=report.unreadable_lines)
        if report.swept_temps:
            log.info("temp files of a crash removed", files=len(report.swept_temps))
        for warning in report.warnings:
            log.warning("a file was moved aside", why=warning)
        for problem in report.problems:
            log.warning("a step of the recovery failed; it is tried again", error=str(problem))
