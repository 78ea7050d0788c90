"""Turn: all that one turn holds, and the one way in which it is given back."""

from __future__ import annotations

from collections.abc import Callable
from typing import final

import structlog

import fibers as fb
from fibers import Clock, Effect, Scope
from streamengine import HistoryError

from .holds.attribution import AttributionHold
from .holds.changes import ChangeHold
from .holds.continuation import ContinuationHold
from .holds.hold import Hold, released
from .holds.message import MessageHold
from .holds.permission import PermissionHold
from .holds.readings import ReadingsHold
from .holds.records import RecordsHold
from .holds.warnings import WarningHold
from .model.errors import TurnError
from .open_turn import BareTurn, TurnEnd
from .subscribers import Subscribers
from .workspace import Workspace, Workspaces

_log = structlog.get_logger("turns.turn")


@final
class Turn(BareTurn):
    """A turn that runs, with a scope of its own in ``scope``.

        turn = Turn("turn-1", workspace, clock, app_scope)
        turn.changes.begin_if_needed().write("a.txt", b"new")
        await turn.close("completed")

    Each hold is a finalizer of the turn's scope: the close of the scope is what gives them back,
    whoever closes it and why. A scope that is closed from above (a shutdown) is a teardown.
    """

    def __init__(self, turn_id: str, workspace: Workspace, clock: Clock, scope: Scope) -> None:
        # Parallel: what was forked into it and ignores its interrupt must not keep the holds.
        super().__init__(turn_id, workspace.workspace_id, clock, scope.fork_scope("parallel"))
        self._workspace = workspace
        self._observers = Subscribers[None]("what a turn holds")
        self._given_back = fb.Latch()
        self.continuation: ContinuationHold = ContinuationHold(self, workspace.continuation)
        self.readings: ReadingsHold = ReadingsHold(self, workspace.readings)
        self.message: MessageHold = MessageHold(self, workspace.message)
        self.records: RecordsHold = RecordsHold(self, workspace.records)
        self.warnings: WarningHold = WarningHold(self, workspace.warnings)
        # Before the change group, and so given back after it: the look at the folder that the end
        # of the group brings about still finds whose the changes are.
        self.attribution: AttributionHold = AttributionHold(self, workspace.attribution)
        self.changes: ChangeHold = ChangeHold(self, workspace.journal, workspace.watcher)
        self.permission: PermissionHold = PermissionHold(self, workspace.permissions)
        if self._scope.state == "closed":
            self._end = "torn-down"
            self._given_back.open_unsafe()
            return
        holds = self._scope.fork_scope()
        fb.run_sync(holds.add_finalizer(lambda _exit: self._given_back.open()))
        for hold in self.holds:
            fb.run_sync(holds.add_finalizer(self._finalizer_of(hold)))

    @property
    def workspace(self) -> Workspace:
        return self._workspace

    @property
    def is_open(self) -> bool:
        """False from the moment on in which its end is decided: nothing more can be taken."""
        return self._end is None and self._scope.state != "closed"

    @property
    def holds(self) -> tuple[Hold, ...]:
        """All that it can hold, in the order of taking. They are given back in reverse."""
        return (
            self.continuation,
            self.readings,
            self.message,
            self.records,
            self.warnings,
            self.attribution,
            self.changes,
            self.permission,
        )

    def close(self, end: TurnEnd) -> Effect[None]:
        """Give back all that the turn holds. Never fails; can be repeated: whoever comes later
        waits until everything is given back, and changes nothing.

        A hold whose release fails, or hangs for a second, is named in a warning; the others are
        given back all the same.
        """
        return Effect.suspend(lambda: self._close(end))

    def observe(self, f: Callable[[], object]) -> Callable[[], None]:
        """Call ``f`` when something that it holds has changed; gives what ends that."""
        return self._observers.subscribe(lambda _: f())

    def changed(self) -> None:
        """Tell the observers."""
        self._observers.tell(None)

    def on_given_back(self, f: Effect[None]) -> Effect[None]:
        """Have ``f`` done once everything is given back: at once, where it is."""
        after = self._given_back.await_().flat_map(lambda _: f)
        return self._scope.add_finalizer(lambda _exit: after)

    def mark_continuation(self) -> Effect[None, HistoryError | TurnError]:
        """Auto-continue has started this turn: hold its flag (see ContinuationHold)."""
        return self.continuation.mark()

    @fb.effect
    async def _close(self, end: TurnEnd) -> None:
        decided = self._decide(end)
        exit_ = await self._scope.close(_exit_of(decided), reason=f"turn {decided}").exit()
        if isinstance(exit_, fb.Failure):
            # Not a hold: those don't fail. Somebody else's finalizer in the turn's scope.
            _log.warning(
                "what else was in the scope of a turn failed to end",
                turnId=self._turn_id,
                workspaceId=self.workspace_id,
                error=exit_.failure().pretty(),
            )
        await self._given_back.await_()

    def _finalizer_of(self, hold: Hold) -> Callable[[object], Effect[None]]:
        return lambda _exit: released(hold, self._decide("torn-down"))

    def __repr__(self) -> str:
        return f"<Turn {self._turn_id} {self._end or 'open'}>"


def _exit_of(end: TurnEnd) -> fb.Exit[None, TurnError]:
    """What the finalizers of a turn's scope are told: success only for a clean end."""
    if end == "completed":
        return fb.Success(None)
    if end in ("interrupted", "torn-down"):
        return fb.Failure(fb.Cause((fb.Interrupt(None, f"turn {end}"),)))
    return fb.Failure(fb.Cause((fb.Fail(TurnError(end, f"the turn {end}")),)))


def abort_open_turn(turn: Turn | None, end: TurnEnd) -> Effect[None]:
    """Close ``turn``; nothing where there is none. What every end of a turn calls."""
    return Effect.succeed(None) if turn is None else turn.close(end)


@final
class OpenTurns:
    """The turns that are open, by id: how a tool finds the turn that it works for.

    open_turns = OpenTurns(workspaces)
    turn = open_turns.open("turn-1", "w1", clock, app_scope)
    """

    def __init__(self, workspaces: Workspaces) -> None:
        self.workspaces = workspaces
        self._turns: dict[str, Turn] = {}

    def open(self, turn_id: str, workspace_id: str, clock: Clock, scope: Scope) -> Turn:
        """A new turn. ValueError where one with that id is open."""
        if turn_id in self._turns:
            raise ValueError(f"the turn {turn_id} is open already")
        lease = Scope(name=f"workspace of {turn_id}")
        turn = Turn(turn_id, self.workspaces.hold(workspace_id, lease), clock, scope)
        if turn.is_open:
            self._turns[turn_id] = turn
            fb.run_sync(turn.scope.add_finalizer(lambda _exit: self._forget(turn_id)))
        fb.run_sync(turn.on_given_back(lease.close()))
        return turn

    def get(self, turn_id: str) -> Turn | None:
        return self._turns.get(turn_id)

    def __len__(self) -> int:
        return len(self._turns)

    def _forget(self, turn_id: str) -> None:
        self._turns.pop(turn_id, None)
