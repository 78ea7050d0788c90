"""agent_turns: the manager of turns, the agent loop and what turns hold, as one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import fibers as fb
from fibers import Clock, Effect, Scope
from streamengine import HistoryStore, StartOptions, StreamEngine
from streamengine.model import Row
from streamengine.model.plain import is_mapping

from .feed import follow
from .handles.continuation import Continuations
from .handles.options import TurnOptions
from .handles.store import TurnStore
from .loop import AgentLoop, LoopConfig
from .manager import TurnManager
from .model.correlation import correlates, handle_named_by
from .model.errors import TurnError
from .model.record import TurnRecord
from .subturns import Agents, SubturnLimits
from .turn import OpenTurns, Turn


@dataclass(frozen=True, slots=True)
class AgentTurns:
    """What ``agent_turns`` has joined."""

    manager: TurnManager
    loop: AgentLoop
    open_turns: OpenTurns
    """Those that run, and their workspaces: what they hold is to be seen there."""

    def record_of(self, row: Row) -> TurnRecord | None:
        """The record of the turn that a row is of. A plain call; None before they are read."""
        correlation = row.metadata.correlation
        named = handle_named_by(correlation)
        record = None if named is None else self.manager.find(named)
        if record is None or not correlates(record, record.workspace_id, correlation):
            return None
        return record

    def for_resumed(self, row: Row) -> StartOptions | None:
        """What the answer to a message of a turn is resumed with after a restart: the tools of its
        agent that need no loop. None for a row that is of no turn, or of one that has settled.

            EngineOptions(for_resumed=lambda row: turns.for_resumed(row))
        """
        record = self.record_of(row)
        return None if record is None or record.is_terminal else self.loop.for_resumed()


def agent_turns(
    *,
    engine: StreamEngine,
    history: HistoryStore,
    store: TurnStore,
    scope: Scope,
    open_turns: OpenTurns,
    agents: Agents,
    child_engine: Callable[[HistoryStore], StreamEngine],
    clock: Clock | None = None,
    options: TurnOptions | None = None,
    config: LoopConfig | None = None,
    limits: SubturnLimits | None = None,
) -> AgentTurns:
    """A manager whose turns are run by agents, and hold what their streams and tools bring about.

        open_turns = OpenTurns(workspaces)
        agent = Agent(name="main", model="m", tools=(FilesTool(open_turns),))
        turns = agent_turns(engine=engine, ..., open_turns=open_turns, agents=Agents([agent]))
        handle = await turns.manager.create_turn(owner="w1", workspace_id="w2", prompt="Count them")

    ``open_turns``: where the tools of the agents find the turn that they work for. ``options``: its
    ``runner``, ``open_turn`` and ``continuations`` are set here; ValueError where they are given.
    """
    options = options or TurnOptions()
    ours = TurnOptions()
    for name in ("runner", "open_turn", "continuations"):
        if getattr(options, name) is not getattr(ours, name):
            raise ValueError(f"agent_turns sets TurnOptions.{name} itself: leave it out")
    continuations = Continuations()
    loop = AgentLoop(
        engine=engine,
        history=history,
        scope=scope,
        agents=agents,
        child_engine=child_engine,
        config=config,
        limits=limits,
        register=continuations.register,
        answer=_answers(open_turns),
    )

    def open_turn(turn_id: str, workspace_id: str, clock: Clock, scope: Scope) -> Turn:
        turn = open_turns.open(turn_id, workspace_id, clock, scope)
        fb.run_sync(follow(turn, engine.events))
        return turn

    joined = replace(options, runner=loop, open_turn=open_turn, continuations=continuations)
    manager = TurnManager(engine=engine, store=store, scope=scope, clock=clock, options=joined)
    return AgentTurns(manager, loop, open_turns)


def _answers(
    open_turns: OpenTurns,
) -> Callable[[str, str, object], Effect[bool, TurnError]]:
    def answer(turn_id: str, request_id: str, said: object) -> Effect[bool, TurnError]:
        found = open_turns.get(turn_id)
        if found is None:
            return Effect.succeed(False)
        fields = said if is_mapping(said) else {"allow": said}
        allow, remember = fields.get("allow"), fields.get("remember", False)
        if not isinstance(allow, bool) or not isinstance(remember, bool):
            # Not taken for a yes, and the question goes on waiting.
            return Effect.fail(
                TurnError(
                    "bad_answer",
                    "an answer to a permission is true or false",
                    'Or say {"allow": true, "remember": true}.',
                )
            )
        return found.workspace.permissions.answer(request_id, allow=allow, remember=remember)

    return answer
