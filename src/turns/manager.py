"""TurnManager: turns by their handles. It creates them, waits for them, interrupts them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar, final

import structlog

import fibers as fb
from fibers import Clock, Duration, Effect, Scope
from fibers.app import Occupant
from streamengine import Event, SendError, StreamEngine
from streamengine.locks import WorkspaceLocks

from .handles.aftermath import Aftermath
from .handles.asking import Asking
from .handles.book import Book
from .handles.continuation import Continuations
from .handles.creation import Attention, continuation_of, new_record
from .handles.following import Following
from .handles.happenings import Happening, LookAgain
from .handles.inbox import Inboxes
from .handles.judging import Judging
from .handles.listening import Listening
from .handles.liveness import Liveness
from .handles.offers import BeginsSubturns, SpawnsSubturns, Steers
from .handles.options import TurnOptions
from .handles.plain import PlainRunner
from .handles.reconcile import Reconciliation
from .handles.running import Running
from .handles.settlement import Settlement
from .handles.start import Start
from .handles.store import TurnStore
from .handles.streak import check_continues
from .handles.verdicts import Verdicts
from .handles.waiters import Waiters
from .handles.work import Work
from .model.cause import ExplicitInterrupt
from .model.errors import TurnError
from .model.record import TurnRecord

T = TypeVar("T")
E = TypeVar("E", bound=Exception)

_log = structlog.get_logger("turns.manager")


@dataclass(frozen=True, slots=True)
class TurnHandle:
    """What a turn is called: by who waits for it, and in its streams."""

    handle_id: str
    turn_id: str


@final
class TurnManager(Occupant):
    """The turns of all workspaces. Each settles once, for a cause.

        turns = TurnManager(engine=engine, store=FileTurnStore(state), scope=app_scope)
        handle = await turns.create_turn(owner="w1", workspace_id="w2", prompt="Count them")
        record = await turns.wait(handle.handle_id)

    What runs, runs in ``scope``, the app scope; its close releases what turns hold and leaves their
    records as they are: the next process reconciles them, at its first use or ``start``.
    ``clock``: what timeouts wait on; None takes the clock in context.
    """

    name = "turns"

    def __init__(
        self,
        *,
        engine: StreamEngine,
        store: TurnStore,
        scope: Scope,
        clock: Clock | None = None,
        options: TurnOptions | None = None,
    ) -> None:
        options = options or TurnOptions()
        self._runner = options.runner or PlainRunner(engine)
        self._on_attention = options.on_attention
        self.continuations: Continuations = options.continuations or Continuations()
        self.continuations.on_done = self._look_again_at
        self._waiters = Waiters()
        # Nobody waits for what is left to the next process.
        self._work = Work(scope, clock, closed=lambda: self._waiters.give_up(_shutting_down))
        self._book = Book(store)
        liveness = Liveness(engine, options.retries)
        self.settlement: Settlement = Settlement(
            self._book, self._waiters, release=self._release, afterwards=self._afterwards
        )
        verdicts = Verdicts(engine.history, self.settlement, later=self._work.later)
        self._running = Running(
            book=self._book,
            engine=engine,
            runner=self._runner,
            open_turn=options.open_turn,
            continuations=self.continuations,
            liveness=liveness,
            verdicts=verdicts,
            tell=self._tell,
            work=self._work,
            over=self._over,
        )
        self._asking = Asking(self._book, self._runner, self._running, self.settlement)
        self._start = Start(
            self._book,
            recovery=options.recovery,
            reconciliation=Reconciliation(liveness, verdicts, bury=self._running.bury),
            running=self._running,
            settled=self._afterwards_if_due,
            work=self._work,
        )
        judging = Judging(
            book=self._book,
            verdicts=verdicts,
            continuations=self.continuations,
            liveness=liveness,
            live=self._running.live,
        )
        self._inboxes: Inboxes[Happening] = Inboxes(judging.hear, self._work.see_through)
        self._listening = Listening(
            self._book,
            continuations=self.continuations,
            active_in=self._running.active_in,
            tell=self._tell,
        )
        self._aftermath = Aftermath(
            self._book,
            dispose=options.dispose,
            notify=self._notify,
            closed=self._running.closed,
            places=self._running.places,
        )
        self._following = Following(
            self._runner,
            self._book,
            self._running.places,
            begin=self._begin,
            fork=self._work.fork,
            kept_for_nothing=self._afterwards_if_due,
        )
        self._continuing = WorkspaceLocks()
        engine.events.subscribe(self._on_event)

    # ---- an occupant of the app scope

    def start(self, scope: Scope) -> Effect[None, TurnError]:
        """Run turns in ``scope`` from now on, and put in order what the last process left."""

        return Effect.sync(lambda: self._work.move(scope)).flat_map(lambda _: self._ready())

    def read(self) -> Effect[None, TurnError]:
        """Read the records and begin nothing, for who has to know them before ``start`` (I9)."""
        return self._in_clock(self._start.read())

    def describe(self) -> Mapping[str, object]:
        """What runs and what waits, for a dump."""
        return self._running.describe()

    # ---- turns

    def create_turn(
        self,
        *,
        owner: str,
        workspace_id: str,
        prompt: str,
        attention: Attention = "blocking",
        disposable: bool = False,
    ) -> Effect[TurnHandle, SendError]:
        """A turn in ``workspace_id`` for ``owner``; it runs once its workspace is free.

        Its record is on disk before the handle is given. ``attention``: "notify" where the owner
        doesn't wait for it. ``disposable``: the workspace goes once it has settled. Fails with
        SendError where nothing was created: no text, a bad id, a store that can't be written.
        """
        return self._in_clock(
            self._begin(
                lambda: new_record(
                    owner=owner,
                    workspace_id=workspace_id,
                    prompt=prompt,
                    attention=attention,
                    disposable=disposable,
                )
            )
        )

    def create_turn_once(
        self,
        client_turn_id: str,
        *,
        owner: str,
        workspace_id: str,
        prompt: str,
        attention: Attention = "blocking",
    ) -> Effect[TurnHandle, SendError]:
        """As ``create_turn``, for who may have to ask again, as the answer got lost: of a turn that
        this owner asked for by that name before, in this workspace, the handle is given, whatever
        the rest says.
        """
        return self._in_clock(
            self._begin(
                lambda: new_record(
                    owner=owner,
                    workspace_id=workspace_id,
                    prompt=prompt,
                    attention=attention,
                    client_turn_id=client_turn_id,
                )
            )
        )

    def continue_turn(self, handle_id: str, *, prompt: str) -> Effect[TurnHandle, SendError]:
        """A turn that begins by itself, to go on with one that was cut off. Fails as create_turn,
        and with "continuation_refused" where too many did in a row (I12).
        """
        return self._in_clock(self._continue(handle_id, prompt))

    def wait(self, handle_id: str, *, timeout: Duration = 120.0) -> Effect[TurnRecord, TurnError]:
        """The record of a turn once it completed. ``timeout``: timedelta or seconds.

        Fails with the kind "interrupted" or "error" and the reason, where it ended so; with
        "not_found"; with "timeout", which changes nothing of the turn; with "shutting_down", once
        the scope of the manager closes: the next process can be asked.
        """
        return self._in_clock(self._wait(handle_id, timeout))

    def interrupt(self, handle_id: str, *, by: str) -> Effect[TurnRecord, TurnError]:
        """End a turn now: its record says so before its streams are stopped (T18).

        Of one that has settled it changes nothing; its record is given. ``by``: who wants it.
        """
        return self._in_clock(self._interrupt(handle_id, by))

    def get(self, handle_id: str) -> Effect[TurnRecord, TurnError]:
        """The record of a turn. Fails with "not_found"."""
        return self._in_clock(self._get(handle_id))

    def list(self, *, owner: str | None = None) -> Effect[Sequence[TurnRecord], TurnError]:
        """All records, or those of one owner, the oldest first."""
        return self._in_clock(self._list(owner))

    def find(self, handle_id: str) -> TurnRecord | None:
        """The record of a turn, if there is one. A plain call: as of now, and None before they are
        read.
        """
        return self._book.find(handle_id)

    def live_in(self, workspace_id: str) -> TurnHandle | None:
        """The turn that has begun in this workspace and not settled. A plain call: as of now."""
        live = self._running.active_in(workspace_id)
        return None if live is None else TurnHandle(live.handle_id, live.turn_id)

    def unsettled(self) -> Sequence[TurnRecord]:
        """The turns that run and those that are to begin, the oldest first. A plain call: as of
        now.
        """
        return self._book.unsettled()

    @property
    def warnings(self) -> Sequence[str]:
        """What could not be read at the start: a line each, with the way out."""
        return self._book.warnings

    def observe(self, f: Callable[[TurnRecord], object]) -> Callable[[], None]:
        """Call ``f`` with each record that changed, once it is on disk. Gives what stops it."""
        return self._book.observe(f)

    # ---- what the runner offers

    def steer(self, handle_id: str, text: str) -> Effect[None, TurnError]:
        """Let a running turn hear ``text``. What comes after its last word is run as a turn of its
        own, once this one is over: its record ``follows`` this one's. After a person's stop it
        waits for whatever turn comes next.

        Fails with what the runner says, "not_running", and "without_agent" where the turn was
        taken up after a restart; so do the subturns, and ``finish``.
        """
        return self._once_ready(
            lambda: self._asking.ask(
                handle_id, Steers, "takes no input", lambda r, t: r.steer(t, text)
            )
        )

    def answer_permission(
        self, handle_id: str, request_id: str, answer: object
    ) -> Effect[bool, TurnError]:
        """Answer a question of a running turn; False where it is not the one that waits now. Also
        of a turn that was taken up after a restart, where the runner has questions of those.
        """
        return self._once_ready(lambda: self._asking.answer(handle_id, request_id, answer))

    def spawn_subturn(self, handle_id: str, config: Mapping[str, Any]) -> Effect[object, TurnError]:
        """Run a subturn of a running turn; gives its result."""
        return self._once_ready(
            lambda: self._asking.ask(
                handle_id,
                SpawnsSubturns,
                "has no subturns",
                lambda r, t: r.spawn_subturn(t, config),
            )
        )

    def begin_subturn(self, handle_id: str, config: Mapping[str, Any]) -> Effect[str, TurnError]:
        """Start a subturn of a running turn; gives its id once it runs."""
        return self._once_ready(
            lambda: self._asking.ask(
                handle_id,
                BeginsSubturns,
                "has no subturns",
                lambda r, t: r.begin_subturn(t, config),
            )
        )

    def finish(self, handle_id: str, *, hard: bool = False) -> Effect[None, TurnError]:
        """End a running turn: with one last answer, or ``hard``, with what it said taken back.

        ``hard`` of one that has settled ends the subturns that it left running; ``handle_id`` may
        be the id of a subturn, too.
        """
        return self._once_ready(lambda: self._asking.finish(handle_id, hard=hard))

    # ---- the work

    @fb.effect(raises=SendError)
    async def _begin(self, record: Callable[[], TurnRecord]) -> TurnHandle:
        made = record()
        if self._work.is_closing:
            raise SendError("shutting_down", "the process ends: no turn begins any more")
        try:
            await self._ready()
            async with self._book.locks.hold(made.handle_id):
                known = self._book.find(made.handle_id)
                if known is None:
                    known = self._book.as_youngest(made)
                    # Masked: what is on disk is run.
                    with fb.uninterruptible():
                        await self._book.put(known)
                        self._running.enqueue(known)
        except TurnError as error:
            raise SendError(error.kind, str(error)) from error
        return TurnHandle(known.handle_id, known.turn_id)

    @fb.effect(raises=SendError)
    async def _continue(self, handle_id: str, prompt: str) -> TurnHandle:
        try:
            before = await self._get(handle_id)
            # One at a time: of two at once each would find that there may be one more.
            async with self._continuing.hold(before.workspace_id):
                check_continues(before, self._book.in_workspace(before.workspace_id))
                return await self._begin(lambda: continuation_of(before, prompt))
        except TurnError as error:
            raise SendError(error.kind, str(error)) from error

    @fb.effect(raises=TurnError)
    async def _wait(self, handle_id: str, timeout: Duration) -> TurnRecord:
        await self._ready()
        with self._waiters.waiting(handle_id) as settled:
            record = self._book.get(handle_id)
            if not record.is_terminal:
                if self._work.is_closing:
                    raise _shutting_down(handle_id)
                late = TurnError(
                    "timeout",
                    "Timed out waiting for workspace turn",
                    f"{handle_id} goes on; wait for it again.",
                )
                record = await settled.timeout_or_else(timeout, lambda: Effect.fail(late))
        if record.status == "completed":
            return record
        raise TurnError(record.status, record.error or f"the turn ended as {record.status}")

    @fb.effect(raises=TurnError)
    async def _interrupt(self, handle_id: str, by: str) -> TurnRecord:
        await self._ready()
        live = self._running.live(handle_id)
        # Not validated: the settlement looks at the evidence, and says what is wrong with it.
        cause = ExplicitInterrupt.model_construct(by=by)
        verdict = await self.settlement.settle(handle_id, cause)
        if verdict.is_new and live is not None:
            await self._running.stop(live)
        return verdict.record

    @fb.effect(raises=TurnError)
    async def _get(self, handle_id: str) -> TurnRecord:
        await self._ready()
        return self._book.get(handle_id)

    @fb.effect(raises=TurnError)
    async def _list(self, owner: str | None) -> Sequence[TurnRecord]:
        await self._ready()
        return [r for r in self._book.all() if owner in (None, r.owner_workspace_id)]

    # ---- what happens

    def _on_event(self, event: Event) -> None:
        # In a closed scope nothing is dealt with any more: a restart finds it.
        if not self._work.is_closing:
            self._listening.hear(event)

    def _tell(self, handle_id: str, happening: Happening) -> None:
        self._inboxes.post(handle_id, happening)

    def _look_again_at(self, turn_id: str) -> None:
        for record in self._book.unsettled():
            if record.turn_id == turn_id:
                self._tell(record.handle_id, LookAgain())

    def _release(self, record: TurnRecord) -> None:
        self._running.release(record)
        owner = self._running.active_in(record.owner_workspace_id)
        if owner is not None:
            self._tell(owner.handle_id, LookAgain())

    def _over(self, record: TurnRecord) -> None:
        if not self._work.is_closing:  # else what was said is named with the rest
            self._following.go_on(record)

    def _afterwards_if_due(self, record: TurnRecord) -> None:
        if self._aftermath.is_due(record):
            self._afterwards(record)

    def _afterwards(self, record: TurnRecord) -> None:
        self._work.see_through(
            f"after {record.handle_id}", self._aftermath.follow(record.handle_id)
        )

    def _notify(self, record: TurnRecord) -> None:
        if self._on_attention is None:
            return
        try:
            self._on_attention(record)
        except Exception:  # noqa: BLE001  # logged: the turn has settled all the same
            _log.exception("the owner of a turn could not be told", handleId=record.handle_id)

    def _once_ready(self, work: Callable[[], Effect[T, TurnError]]) -> Effect[T, TurnError]:
        return self._in_clock(self._ready().flat_map(lambda _: work()))

    def _ready(self) -> Effect[None, TurnError]:
        return self._start.ready()

    def _in_clock(self, eff: Effect[T, E]) -> Effect[T, E]:
        return self._work.in_clock(eff)


def _shutting_down(handle_id: str) -> TurnError:
    return TurnError(
        "shutting_down",
        f"the process ends, and {handle_id} has not settled",
        "Ask the next process: it goes on with the turn, or says how it ended.",
    )
