"""The turns of a root: one agent, its tools, and the folder that each workspace has for them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import structlog

import fibers as fb
from fibers import Scope
from streamengine import AutoRetry, EngineOptions, HistoryStore, Provider, StreamEngine
from streamengine.history.directory import DurableDirectory
from streamengine.history.store import WORKSPACES_DIRECTORY

from ..agent_turns import AgentTurns, agent_turns
from ..handles.options import TurnOptions
from ..handles.store import TurnStore
from ..process.records import ProcessRecords
from ..subturns import Agent, Agents
from ..subturns.tool import SubturnTool
from ..tools import FilesTool, ShellTool
from ..turn import OpenTurns
from ..workspace import Workspace, Workspaces

AGENT: Final = "main"
"""The agent of every turn, and of the subturns that name it. Its model is that of the server."""

FOLDER_DIRECTORY: Final = "files"
"""In the directory of a workspace: all that its tools work on."""
STATE_DIRECTORY: Final = "turns"
"""Beside it, where the tool `files` can't reach: the undo journal, flags, remembered answers."""
PROCESSES_DIRECTORY: Final = "processes"
"""In the state directory: what commands run now."""

_log = structlog.get_logger("turns.host.turns")


def make_turns(
    *,
    state: Path,
    store: TurnStore,
    engine: StreamEngine,
    provider: Provider,
    options: EngineOptions,
    scope: Scope,
    retries: AutoRetry | None,
) -> AgentTurns:
    """The manager of the turns and what runs them, all in ``scope``. Touches no file.

    ``provider`` and ``options``: of the engine that each subturn gets, as ``engine`` has them.
    """
    open_turns = OpenTurns(
        Workspaces(lambda workspace_id: _workspace(state, workspace_id), scope=scope)
    )
    shell = ShellTool(open_turns, permission="ask", records=_processes(state))
    subturn = SubturnTool(lambda: turns.loop.subturns, scope)
    agent = Agent(name=AGENT, tools=(FilesTool(open_turns), shell, subturn))

    def child_engine(history: HistoryStore) -> StreamEngine:
        return StreamEngine(history=history, provider=provider, scope=scope, options=options)

    turns = agent_turns(
        engine=engine,
        history=engine.history,
        store=store,
        scope=scope,
        open_turns=open_turns,
        agents=Agents([agent]),
        child_engine=child_engine,
        options=TurnOptions(retries=retries),
    )
    return turns


@fb.effect
async def end_left_over(state: Path) -> None:
    """End the commands that a killed process left running. Never fails: what can't be looked at is
    logged.
    """
    exit_ = await _processes(state).end_left_over().exit()
    if isinstance(exit_, fb.Failure):
        _log.warning(
            "what commands a killed server left running can't be looked at",
            error=str(exit_.failure().squash()),
        )


def _processes(state: Path) -> ProcessRecords:
    return ProcessRecords(DurableDirectory(state / PROCESSES_DIRECTORY))


def _workspace(state: Path, workspace_id: str) -> Workspace:
    """One whose folder is there. Raises HistoryError."""
    directory = state / WORKSPACES_DIRECTORY / workspace_id
    with DurableDirectory(directory / FOLDER_DIRECTORY).made():
        pass
    return Workspace(
        workspace_id, folder=directory / FOLDER_DIRECTORY, state=directory / STATE_DIRECTORY
    )
