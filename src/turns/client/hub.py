"""AgentHub: the one agent of a workspace, and the turn that it works on.

It hears what the agent says and lets the turn hold it. Every way in which a turn of an agent can
end comes together here, and each is one ``abort_open_turn`` and nothing more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final, Literal, assert_never, final

import structlog

import fibers as fb
from fibers import Clock, Scope

from ..holds.permission import Verdict
from ..model.errors import TurnError
from ..open_turn import TurnEnd
from ..turn import Turn, abort_open_turn
from .backstop import SILENCE_SECONDS, SilenceBackstop
from .crash_loop import CrashLoop
from .messages import (
    AgentEvent,
    Answer,
    AsksPermission,
    HostMessage,
    Interrupt,
    MessageBegins,
    Prompt,
    TaskBegins,
    Text,
    ToolAlive,
    ToolBegins,
    ToolEnds,
    TurnDone,
    TurnFailed,
    Used,
)
from .protocol import AgentClient

HubState = Literal["idle", "running", "errored", "suspended", "closed"]

_Held = MessageBegins | Text | ToolBegins | ToolAlive | ToolEnds | TaskBegins | Used

SUSPENDED: Final = TurnError(
    "suspended",
    "the agent died too often within a minute and is not started again",
    "Look at what it does when it starts, then resume it.",
)
_log = structlog.get_logger("turns.client.hub")


@final
class AgentHub:
    """Starts an agent when it is needed, gives it prompts, and watches it.

        hub = AgentHub(make_client, clock=clock, scope=app_scope)
        await hub.send("Mend the tests.", turn)

    ``scope``: what it belongs to. Its close tears the agent down.
    """

    def __init__(
        self,
        make_client: Callable[[], AgentClient],
        *,
        clock: Clock,
        scope: Scope,
        silence_seconds: float = SILENCE_SECONDS,
        crash_loop: CrashLoop | None = None,
    ) -> None:
        self._make_client = make_client
        self._clock = clock
        self._scope = scope.fork_scope("parallel")
        self._silence_seconds = silence_seconds
        self._crash_loop = crash_loop or CrashLoop(clock)
        self._client: AgentClient | None = None
        self._turn: Turn | None = None
        self._backstop: SilenceBackstop | None = None
        self._state: HubState = "idle"
        self._starting = asyncio.Lock()
        if self._scope.state == "closed":
            self._state = "closed"
        else:
            fb.run_sync(self._scope.add_finalizer(lambda _exit: self.teardown()))

    @property
    def state(self) -> HubState:
        return self._state

    @property
    def turn(self) -> Turn | None:
        """The turn that the agent works on."""
        return self._turn

    # ------------------------------------------------------------------ what a host does

    @fb.effect(raises=TurnError)
    async def send(self, prompt: str, turn: Turn) -> None:
        """Give the agent a prompt. A second one in the same turn joins it.

        Fails with TurnError "busy" (it works on another turn), "ended", "suspended", "closed",
        "start_failed" or "gone"; with the last two the turn has ended as "errored".
        """
        self._check(turn)
        self._begin(turn)
        exit_ = await self._deliver(Prompt(turn_id=turn.turn_id, text=prompt)).exit()
        if isinstance(exit_, fb.Failure):
            await self._end_turn(turn, "errored")
            raise exit_.failure().squash()

    def resume(self) -> None:
        """Let a suspended agent be started again."""
        if self._state == "suspended":
            self._crash_loop.reset()
            self._state = "idle"

    @fb.effect
    async def teardown(self) -> None:
        """End the agent, for good. What its turn holds is given back first: that must not depend on
        whether the client can be disposed of. Never fails, can be repeated.
        """
        self._state = "closed"
        turn, client = self._turn, self._client
        self._turn = self._client = None
        await abort_open_turn(turn, "torn-down")
        if client is not None:
            await self._dispose(client)
        await self._scope.close()

    # ------------------------------------------------------------------ the agent's life

    def _check(self, turn: Turn) -> None:
        if self._state == "closed":
            raise TurnError("closed", "the agent was torn down", "Make another hub.")
        if self._state == "suspended":
            raise SUSPENDED
        if not turn.is_open:
            raise TurnError("ended", f"the turn {turn.turn_id} has ended", "Start another one.")
        if self._turn is not None and self._turn is not turn and self._turn.is_open:
            raise TurnError(
                "busy", f"the agent works on the turn {self._turn.turn_id}", "Wait for its end."
            )

    def _begin(self, turn: Turn) -> None:
        if self._turn is turn:
            if self._backstop is not None:
                self._backstop.heard()
            return
        self._turn = turn
        self._state = "running"
        backstop = self._backstop = SilenceBackstop(
            self._clock,
            silence_seconds=self._silence_seconds,
            is_excused=lambda: turn.permission.is_open or turn.records.any_alive,
        )
        turn.observe(backstop.look)
        self._scope.fork(self._watch(turn, backstop)).set_name(f"backstop of {turn.turn_id}")

    async def _running_client(self) -> AgentClient:
        async with self._starting:
            client = self._client
            if client is None:
                client = self._make_client()
                await self._start(client).uninterruptible()
            return client

    @fb.effect(raises=TurnError)
    async def _start(self, client: AgentClient) -> None:
        await client.start()
        if self._state == "closed":
            await self._dispose(client)
            raise TurnError("closed", "the agent was torn down meanwhile", "Make another hub.")
        self._client = client
        self._scope.fork(self._read(client)).set_name("reader of an agent")

    @fb.effect
    async def _read(self, client: AgentClient) -> None:
        while (event := await client.next()) is not None:
            await self._hear(client, event)
        if self._client is client:
            self._client = None
            await self._died(client)

    @fb.effect(raises=TurnError)
    async def _deliver(self, message: HostMessage) -> None:
        await (await self._running_client()).send(message)

    # ------------------------------------------------------------------ the ends of a turn

    @fb.effect
    async def _watch(self, turn: Turn, backstop: SilenceBackstop) -> None:
        # The wait is the turn's, what follows is not: it ends the turn.
        waiting = turn.scope.fork(backstop.watch(), start_immediately=True)
        exit_ = await waiting.exit()
        if isinstance(exit_, fb.Success):
            await self._end_turn(turn, "stalled")
        elif self._turn is not turn:
            return
        else:
            self._leave(turn, "idle")  # somebody else has ended it; the agent doesn't know
        if self._client is not None and turn.end != "completed":
            await self._client.send(Interrupt(turn_id=turn.turn_id)).exit()

    @fb.effect
    async def _end_turn(self, turn: Turn, end: TurnEnd) -> None:
        # First of all: what the agent says of this turn from now on finds no turn.
        self._leave(turn, "errored" if end == "errored" else "idle")
        await abort_open_turn(turn, end)

    def _leave(self, turn: Turn, state: HubState) -> None:
        if self._turn is turn:
            self._turn = self._backstop = None
            self._state = state

    @fb.effect
    async def _died(self, client: AgentClient) -> None:
        is_suspended = self._crash_loop.died()
        turn = self._turn
        if turn is not None:
            await self._end_turn(turn, "suspended" if is_suspended else "died")
        if is_suspended and self._state != "closed":
            self._state = "suspended"
            _log.warning("an agent died too often", wayOut=SUSPENDED.way_out)
        # What it started may go on without it.
        await self._dispose(client)

    @fb.effect
    async def _dispose(self, client: AgentClient) -> None:
        exit_ = await client.dispose().exit()
        if isinstance(exit_, fb.Failure):
            _log.warning("an agent could not be disposed of", error=exit_.failure().pretty())

    # ------------------------------------------------------------------ what the agent says

    @fb.effect
    async def _hear(self, client: AgentClient, event: AgentEvent) -> None:
        turn = self._turn
        if turn is None or client is not self._client or event.turn_id != turn.turn_id:
            return
        if self._backstop is not None:
            self._backstop.heard()
        match event:
            case TurnDone():
                await self._end_turn(turn, "completed")
            case TurnFailed():
                await self._end_turn(turn, "errored")
            case AsksPermission():
                await self._ask(client, turn, event)
            case _:
                if turn.is_open:
                    _apply(turn, event)

    @fb.effect
    async def _ask(self, client: AgentClient, turn: Turn, event: AsksPermission) -> None:
        known = await turn.workspace.permissions.remembered(event.subject)
        if known is not None:
            await client.send(Answer(request_id=event.request_id, allow=known)).exit()
        elif turn.is_open:
            verdict = turn.permission.show(event.request_id, event.question, subject=event.subject)
            self._scope.fork(self._pass_on(client, event.request_id, verdict))

    @fb.effect
    async def _pass_on(
        self, client: AgentClient, request_id: str, verdict: fb.Deferred[Verdict]
    ) -> None:
        said = await verdict
        if said != "dropped":  # the agent knows of that: it is its own doing, or is interrupted
            await client.send(Answer(request_id=request_id, allow=said == "allowed")).exit()


def _apply(turn: Turn, event: _Held) -> None:
    match event:
        case MessageBegins():
            turn.message.begin(event.message_id)
        case Text():
            turn.message.add("reasoning" if event.is_reasoning else "text", event.text)
        case ToolBegins():
            turn.message.end_block()
            turn.records.open(event.tool_call_id, event.tool_name)
            if not event.can_be_undone:
                turn.warnings.add(event.tool_name)
            turn.attribution.claim()
            turn.changes.begin_if_needed()
        case ToolAlive():
            turn.records.alive(event.tool_call_id)
        case ToolEnds():
            turn.records.close(event.tool_call_id, failed=event.failed)
        case TaskBegins():
            turn.records.task_started(event.task_id, event.tool_call_id)
        case Used():
            turn.readings.show(tokens=event.tokens, cost_usd=event.cost_usd)
        case _:
            assert_never(event)
