"""The manager where stores fail, break and hang, records are torn, and answers are tried again.

What becomes of each turn can't be foretold here; what never may be, can. After every step: no turn
left a terminal state but by T8, none is terminal without its cause and evidence, each is on disk as
it is told, who waits for a terminal one has an answer. Whenever the faults are over and time has
passed: whoever asked has an answer, no lock, place or hold stays, and what is not terminal has a
stream, a try to come, or a turn ahead of it. A restart settles all that nobody works on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, cast, get_args

import hypothesis.strategies as st
from hypothesis.stateful import invariant, precondition, rule

import fibers as fb
from fibers import Clock, Effect, Fiber, Scope
from streamengine.model import ErrorPart, Finish
from tests.streamengine.engine.kit import (
    FAULT,
    FINISH,
    TEXT_END,
    Call,
    Line,
    Method,
    Parts,
    says,
    text,
    unhandled_failures,
)
from turns import FileTurnStore, TurnHandle, TurnRecord
from turns.handles.plain import PlainTurn
from turns.model.cause import CorrelatedStreamEnd, is_transient, status_of

from .faults import Weather, Weathered
from .kit import OWNER, Process, correlation, make_process, on_disk
from .machine import LoopMachine, workspaces

T = TypeVar("T")

WEATHERS: Final[tuple[Weather, ...]] = tuple(w for w in get_args(Weather) if w != "fair")
METHODS: Final[tuple[Method, ...]] = get_args(Method)
LONG_SECONDS: Final = 1_000.0
"""Longer than the longest wait between two tries, of an answer as of a record."""

Storm = tuple[Weather, int]

storms = st.none() | st.tuples(st.sampled_from(WEATHERS), st.sampled_from([1, 2, 1_000]))
"""What the next calls of the store meet, and how many of them."""


class Answers:
    """A line for each answer of a turn; the last is the live one. Others are answered at once."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}

    def __call__(self, call: Call) -> Parts:
        handle_id = (call.request.correlation or {}).get("taskHandleId")
        if handle_id is None:
            return says(text("Somebody else's answer"), TEXT_END, FINISH)(call)
        line = self.lines[str(handle_id)] = Line()
        return line(call)


class FaultyTurns(LoopMachine):
    """Some workspaces, some turns in each, and a disk that can't be trusted."""

    answers: Answers
    store: Weathered
    process: Process

    def __init__(self) -> None:
        super().__init__()
        self.handles: dict[str, TurnHandle] = {}
        self.last: dict[str, TurnRecord] = {}
        """The record of each turn, as it was told last."""
        self.torn: dict[Path, bytes] = {}
        """What stood in records that were torn."""
        self.asked: list[tuple[str, Fiber[Any, Any]]] = []
        self.waiters: list[tuple[str, Fiber[TurnRecord, Any]]] = []
        self.held = 0
        self.failing_steps = 0
        self.suspended: set[str] = set()
        """Workspaces where what ran is left to the next process: by a stop for the system, or by a
        start that took the place of its stream and failed."""
        self.restarts = 0
        self.met: Counter[str] = Counter()
        self.broken: list[str] = []
        self.unhandled = unhandled_failures()
        self.failures = self.unhandled.__enter__()
        self.begin()

    def teardown(self) -> None:
        try:
            self.ends_well()
        finally:
            self.store.clear()
            self.process.store.bury()
            self.run(self.process.crash())
            self.close()
            self.unhandled.__exit__(None, None, None)

    def ends(self) -> list[str]:
        """The cause of each turn, or its status where it has none."""
        return [record.cause or record.status for record in self.records().values()]

    # ---- the process

    def begin(self) -> None:
        self.answers = Answers()

        def opened(turn_id: str, workspace_id: str, clock: Clock, parent: Scope) -> PlainTurn:
            turn = PlainTurn(turn_id, workspace_id, clock, parent)
            self.held += 1
            fb.run_sync(turn.scope.add_finalizer(lambda _exit: Effect.sync(self._let_go)))
            return turn

        async def make() -> None:
            self.store = Weathered(FileTurnStore(self.state, io="inline", fsync="off"))
            self.process = make_process(
                self.rt,
                self.clock,
                self.state,
                self.answers,
                store=self.store,
                retrying=True,
                open_turn=opened,
            )
            self.process.turns.observe(self._hear)
            assert self.process.retries is not None
            await self.rt.run(self.process.retries.start(self.process.scope))

        self.run(make())

    def start(self) -> None:
        self.ask("start", lambda: self.process.turns.start(self.process.scope))

    def _let_go(self) -> None:
        self.held -= 1

    def _hear(self, record: TurnRecord) -> None:
        """In the loop, where an assertion would only be logged."""
        before = self.last.get(record.handle_id)
        if before is not None and before.is_terminal and not _may_follow(before, record):
            self.broken.append(f"{before.status} {before.cause} -> {record.status} {record.cause}")
        self.last[record.handle_id] = record

    def ask(self, what: str, work: Callable[[], Effect[Any, Any]]) -> Fiber[Any, Any]:
        """Somebody asks, and may have to wait."""
        fiber = self.inside(lambda: self.rt.run_fork(work()).ignore_failure())
        self.asked.append((what, fiber))
        self._step()
        return fiber

    def _step(self) -> None:
        """What can happen now has happened; a fault of the history lasts for some of these."""
        self.run(self.process.idle())
        self.failing_steps -= 1
        if self.failing_steps == 0:
            self.process.desk.history.mend()

    def records(self) -> dict[str, TurnRecord]:
        return {r.handle_id: r for r in self.process.turns._book.all()}

    def running(self) -> list[TurnRecord]:
        return [r for r in self.records().values() if r.is_started]

    # ---- faults

    def _storm(self, storm: Storm | None) -> None:
        if storm is not None:
            self.store.turn(*storm)

    @rule()
    def what_hangs_goes_on(self) -> None:
        self.inside(self.store.clear)
        self.run(self.process.idle())

    @rule(method=st.sampled_from(METHODS), breaks=st.booleans(), steps=st.sampled_from([1, 2, 20]))
    def the_history_fails(self, method: Method, breaks: bool, steps: int) -> None:
        error = RuntimeError("the history broke") if breaks else FAULT
        self.process.desk.history.fail(method, error)
        self.failing_steps = steps

    @rule(seconds=st.sampled_from([0.5, 2.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(self.process.desk.pass_time(seconds))

    @rule()
    def the_faults_are_over(self) -> None:
        """And time has passed: whatever was tried again has been done."""
        self.inside(self.store.clear)
        self.process.desk.history.mend()
        self.run(self.process.desk.pass_time(LONG_SECONDS))
        self.nothing_hangs()

    # ---- what happens

    @rule(workspace_id=workspaces, storm=storms)
    def create(self, workspace_id: str, storm: Storm | None) -> None:
        self._storm(storm)

        def creating() -> Effect[Any, Any]:
            return self.process.turns.create_turn(
                owner=OWNER, workspace_id=workspace_id, prompt="Count them"
            ).map(created)

        def created(handle: TurnHandle) -> None:
            self.handles[handle.handle_id] = handle
            self._wait(handle.handle_id, 1e9)

        self.ask("create", creating)

    def _wait(self, handle_id: str, timeout: float) -> None:
        waiting = self.process.turns.wait(handle_id, timeout=timeout)
        self.waiters.append((handle_id, self.rt.run_fork(waiting).ignore_failure()))

    @precondition(lambda self: bool(self.answers.lines))
    @rule(data=st.data(), storm=storms)
    def a_stream_ends(self, data: st.DataObject, storm: Storm | None) -> None:
        self._storm(storm)
        self._over(data, lambda line: line.give(text("All"), TEXT_END, FINISH))

    @precondition(lambda self: bool(self.answers.lines))
    @rule(
        data=st.data(),
        how=st.sampled_from(["fails", "fails", "is refused", "breaks", "is cut"]),
        storm=storms,
    )
    def a_stream_fails(self, data: st.DataObject, how: str, storm: Storm | None) -> None:
        self._storm(storm)

        def fail(line: Line) -> None:
            match how:
                case "is refused":
                    line.give(ErrorPart(error={"status": 401}))
                case "fails":
                    line.give(text("A"), ErrorPart(error={"status": 529}))
                case "breaks":
                    line.fail(RuntimeError("the provider broke"))
                case _:
                    line.give(text("Al"), TEXT_END, Finish(finish_reason="length"))

        is_sound = self.failing_steps <= 0 and storm is None
        handle_id, was_live = self._over(data, fail)
        if how == "fails" and was_live and is_sound:
            assert self.records()[handle_id].is_started, "it did not wait for its next try (T15)"

    def _over(self, data: st.DataObject, say: Callable[[Line], None]) -> tuple[str, bool]:
        """The handle of the stream, and whether it ran until then."""
        handle_id = data.draw(st.sampled_from(list(self.answers.lines)))
        line = self.answers.lines.pop(handle_id)
        known = self.records().get(handle_id)
        was_live = known is not None and known.is_started and not line.is_closed

        def over() -> None:
            say(line)
            line.end()

        self.inside(over)
        self._step()
        return handle_id, was_live

    @rule(
        workspace_id=workspaces,
        reason=st.sampled_from(["user", "system", "startup"]),
        storm=storms,
    )
    def stop(self, workspace_id: str, reason: Any, storm: Storm | None) -> None:
        self._storm(storm)
        if reason != "user":
            self.suspended.add(workspace_id)
        self.ask("stop", lambda: self.process.desk.stopping(reason, workspace_id))

    @rule(workspace_id=workspaces)
    def a_person_writes(self, workspace_id: str) -> None:
        self._begin_stream(workspace_id, "I do it myself")

    def _begin_stream(self, workspace_id: str, text: str, **fields: Any) -> None:
        def ended(exit_: fb.Exit[Any, Any]) -> None:
            if isinstance(exit_, fb.Failure):
                self.suspended.add(workspace_id)

        starting = self.ask(text, lambda: self.process.desk.starting(text, workspace_id, **fields))
        self.inside(lambda: starting.add_observer(ended))

    @precondition(lambda self: bool(self.handles))
    @rule(data=st.data())
    def a_turn_goes_on(self, data: st.DataObject) -> None:
        handle_id = data.draw(st.sampled_from(list(self.handles)))
        record, mark = self.last.get(handle_id), correlation(self.handles[handle_id])
        if record is None or not record.is_started:
            return
        self._begin_stream(record.workspace_id, "Go on", correlation=mark)

    @precondition(lambda self: bool(self.handles))
    @rule(data=st.data(), storm=storms)
    def somebody_interrupts(self, data: st.DataObject, storm: Storm | None) -> None:
        self._storm(storm)
        handle_id = data.draw(st.sampled_from(list(self.handles)))
        self.ask("interrupt", lambda: self.process.turns.interrupt(handle_id, by="ada"))

    @precondition(lambda self: bool(self.handles))
    @rule(data=st.data(), timeout=st.sampled_from([5.0, 1e9]))
    def somebody_waits(self, data: st.DataObject, timeout: float) -> None:
        handle_id = data.draw(st.sampled_from(list(self.handles)))
        self.inside(lambda: self._wait(handle_id, timeout))
        self._step()

    @rule(
        orderly=st.booleans(),
        tears=st.booleans(),
        mends=st.booleans(),
        storm=storms,
        data=st.data(),
    )
    def the_process_ends(
        self, orderly: bool, tears: bool, mends: bool, storm: Storm | None, data: st.DataObject
    ) -> None:
        """Orderly, as a shutdown does; else it is killed. The next one begins in the storm."""
        if not orderly:
            # Nothing of it reaches the disk any more.
            self.process.store.dies = lambda _record: True
            for method in METHODS:
                self.process.desk.history.fail(method)
            self.inside(self.process.store.bury)
        closing = self.inside(lambda: self.rt.run_fork(Effect.promise(self.process.crash)))
        self.run(self.process.desk.pass_time(LONG_SECONDS))
        # Whoever still waits for a disk that hangs goes with the process.
        self.inside(self.process.store.bury)
        self.inside(self.store.clear)
        self.run(self.process.desk.pass_time(LONG_SECONDS))
        assert closing.poll() is not None, "the process does not end"
        for what, fiber in [*self.asked, *self.waiters]:
            assert fiber.poll() is not None, f"{what} hangs after the end of the process"
        self.met += self.store.met
        self.asked.clear()
        self.waiters.clear()
        assert self.held == 0, "a hold outlives its process"
        if mends:
            for path, body in self.torn.items():
                path.write_bytes(body)
            self.torn.clear()
        if tears:
            self._tear(data)
        self.restarts += 1
        self.suspended.clear()
        self.begin()
        self._storm(storm)
        self.start()

    def _tear(self, data: st.DataObject) -> None:
        # In the order of their creation: the ids are another example's each time.
        folder = self.state / "workspaces" / OWNER / "task-handles"
        whole = [path for h in self.handles if (path := folder / f"{h}.json") not in self.torn]
        if whole:
            path = data.draw(st.sampled_from(whole))
            body = self.torn[path] = path.read_bytes()
            path.write_bytes(body[: len(body) * data.draw(st.integers(0, 9)) // 10])

    # ---- what always holds

    @invariant()
    def no_turn_leaves_a_terminal_state(self) -> None:
        assert self.broken == []

    @invariant()
    def a_terminal_turn_has_its_cause(self) -> None:
        for record in self.records().values():
            assert record.is_terminal == (record.cause is not None)
            if record.is_terminal:
                assert record.settled_for is not None
                assert status_of(record.settled_for) == record.status

    @invariant()
    def each_turn_is_on_disk_as_it_is_told(self) -> None:
        for handle_id, record in self.records().items():
            if handle_id in self.store.in_doubt:
                continue  # there it may be ahead, of which nobody was told
            stored = on_disk(self.state, TurnHandle(handle_id, record.turn_id))
            assert (stored["status"], stored.get("cause")) == (record.status, record.cause)

    @invariant()
    def who_waits_for_what_settled_has_an_answer(self) -> None:
        records = self.records()
        for handle_id, waiter in self.waiters:
            record = records.get(handle_id)
            if record is not None and record.is_terminal:
                assert waiter.poll() is not None
                assert self.process.turns._waiters.count(handle_id) == 0

    # ---- what holds once the faults are over

    def nothing_hangs(self) -> None:
        turns = self.process.turns
        for what, fiber in self.asked:
            assert fiber.poll() is not None, f"{what} hangs"
        self.asked.clear()
        self.ask("list", turns.list)
        assert self.asked.pop()[1].poll() is not None, "the records can't be read"
        records = self.records()
        running = {r.handle_id for r in records.values() if r.is_started}
        about = turns.describe()
        named = {n.partition("/")[2] for n in cast("list[str]", about["running"])}
        assert named == running, "what runs is not what is said to run"
        assert self.held == len(running), "a hold stays, or is gone too early"
        assert len(turns.settlement._book.locks) == 0
        queued = [r for r in records.values() if r.status == "queued"]
        assert set(cast("list[str]", about["queued"])) == {r.handle_id for r in queued}
        for record in queued:
            ahead = [r for r in records.values() if r.workspace_id == record.workspace_id]
            assert any(r.is_started for r in ahead), "it waits for nobody"
        assert len(turns.warnings) == len(self.torn)
        for record in self.running():
            assert record.workspace_id in self.suspended or self._is_worked_on(record)

    def _is_worked_on(self, record: TurnRecord) -> bool:
        assert self.process.retries is not None
        is_retrying = self.process.retries.state(record.workspace_id).pending
        return is_retrying or self.process.desk.engine.is_streaming(record.workspace_id)

    def ends_well(self) -> None:
        """At the end of each example: a restart settles all but what is live, a stop the rest."""
        self.the_faults_are_over()
        self.inside(lambda: self.process.store.bury())
        self.run(self.process.crash())
        assert self.held == 0
        self.met += self.store.met
        for path, body in self.torn.items():
            path.write_bytes(body)
        self.torn.clear()
        self.asked.clear()
        self.waiters.clear()
        self.suspended.clear()
        self.begin()
        self.start()
        self.nothing_hangs()
        for handle_id in [h for h, r in self.records().items() if not r.is_terminal]:
            self.ask("interrupt", partial(self.process.turns.interrupt, handle_id, by="ada"))
        self.run(self.process.desk.pass_time(LONG_SECONDS))
        self.nothing_hangs()
        assert all(record.is_terminal for record in self.records().values())
        assert self.held == 0
        for handle_id in self.handles:
            assert handle_id in self.records(), "a turn that was promised is gone"
        self.each_turn_is_on_disk_as_it_is_told()
        self.no_turn_leaves_a_terminal_state()
        self.a_terminal_turn_has_its_cause()
        assert self.failures == [], "a failure that nobody handles"


def _may_follow(before: TurnRecord, after: TurnRecord) -> bool:
    """T8: the same verdict again, or a transient one that an end of the turn's own corrects."""
    if (after.status, after.cause) == (before.status, before.cause):
        return True
    cause = after.settled_for
    assert before.settled_for is not None
    return (
        is_transient(before.settled_for)
        and isinstance(cause, CorrelatedStreamEnd)
        and status_of(cause) == "completed"
    )
