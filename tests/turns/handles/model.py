"""The manager against a small model, through random ends, stops, persons, crashes and restarts.

The model says of each turn its status and cause, and knows of T8 alone as a way out of a terminal
state. After every step: each record is as the model says, in memory and on disk; a terminal one has
its cause and its evidence; who waits has an answer exactly when the turn has settled.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, TypeVar, cast

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, precondition, rule

import fibers as fb
from streamengine import StreamRequest
from streamengine.model import ErrorPart, Finish, RowMetadata, StreamEndEvent
from tests.streamengine.engine.kit import FINISH, TEXT_END, Call, Line, Parts, says, text
from turns import TurnError, TurnHandle, TurnRecord

from .kit import Process, correlation, make_process, on_disk
from .machine import WORKSPACES, LoopMachine, workspaces

T = TypeVar("T")

TRANSIENT: Final = frozenset({"stale-restart", "terminal-stream-error"})


@dataclass
class Turn:
    """What the model knows of a turn."""

    handle: TurnHandle
    workspace_id: str
    status: str = "queued"
    cause: str | None = None
    streams: bool = False
    """Its stream runs now."""
    waiters: list[fb.Fiber[TurnRecord, TurnError]] = field(
        default_factory=list[fb.Fiber[TurnRecord, TurnError]]
    )

    @property
    def is_terminal(self) -> bool:
        return self.cause is not None

    def settle(self, status: str, cause: str) -> None:
        assert not self.is_terminal
        self.status, self.cause, self.streams = status, cause, False


class Answers:
    """A line for each call of the provider, by workspace: the last one is the live one."""

    def __init__(self) -> None:
        self.lines: dict[str, Line] = {}

    def __call__(self, call: Call) -> Parts:
        mark = call.request.correlation or {}
        if mark.get("type") != "workspace-turn-task" or mark.get("quick"):
            return says(text("Somebody else's answer"), TEXT_END, FINISH)(call)
        line = self.lines[str(mark["taskHandleId"])] = Line()
        return line(call)


class Turns(LoopMachine):
    """Some workspaces, some turns in each."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[Turn] = []
        self.processes: list[Process] = []
        self.begin()

    def teardown(self) -> None:
        for process in self.processes:
            self.run(process.crash())
        self.close()

    @property
    def restarts(self) -> int:
        return len(self.processes) - 1

    def ends(self) -> list[str]:
        """The cause of each turn, or its status where it has none."""
        return [turn.cause or turn.status for turn in self.turns]

    # ---- the process

    def begin(self) -> None:
        self.answers = Answers()

        async def start() -> Process:
            process = make_process(self.rt, self.clock, self.state, self.answers)
            await self.rt.run(process.turns.start(process.scope))
            await process.idle()
            return process

        self.process = self.run(start())
        self.processes.append(self.process)

    def active(self, workspace_id: str) -> Turn | None:
        for turn in self.turns:
            if turn.workspace_id == workspace_id and turn.status == "running":
                return turn
        return None

    def start_next(self, workspace_id: str) -> None:
        if self.active(workspace_id) is not None:
            return
        for turn in self.turns:
            if turn.workspace_id == workspace_id and turn.status == "queued":
                turn.status, turn.streams = "running", True
                return

    # ---- what happens

    @rule(workspace_id=workspaces)
    def create(self, workspace_id: str) -> None:
        handle = self.run(self.process.create("Count them", workspace_id))
        self.turns.append(Turn(handle, workspace_id))
        self.start_next(workspace_id)

    @precondition(lambda self: any(turn.streams for turn in self.turns))
    @rule(data=st.data(), how=st.sampled_from(["ends", "fails", "is cut off"]))
    def stream_is_over(self, data: st.DataObject, how: str) -> None:
        turn = data.draw(st.sampled_from([turn for turn in self.turns if turn.streams]))
        line = self.answers.lines[turn.handle.handle_id]
        match how:
            case "ends":
                line.give(text("All"), TEXT_END, FINISH)
                turn.settle("completed", "correlated-stream-end")
            case "fails":
                line.give(ErrorPart(error={"status": 401}))
                turn.settle("error", "terminal-stream-error")
            case _:
                line.give(text("Al"), TEXT_END, Finish(finish_reason="length"))
                turn.settle("error", "correlated-stream-end")
        line.end()
        self.start_next(turn.workspace_id)

    @rule(workspace_id=workspaces, reason=st.sampled_from(["user", "system", "startup"]))
    def stop(self, workspace_id: str, reason: Any) -> None:
        self.run(self.process.desk.stop(reason, workspace_id))
        turn = self.active(workspace_id)
        if turn is not None and turn.streams:
            turn.streams = False
            if reason == "user":
                turn.settle("interrupted", "user-stream-abort")
                self.start_next(workspace_id)

    @rule(workspace_id=workspaces)
    def a_person_writes(self, workspace_id: str) -> None:
        # As long as something is about to start, who is first is not the model's business.
        self.run(self.process.idle())
        stream = self.run(self.process.stream("I do it myself", workspace_id))
        assert self.run(self.process.desk.done(stream)).status in ("completed", "aborted")
        turn = self.active(workspace_id)
        if turn is not None:
            turn.settle("interrupted", "manual-supersession")
            self.start_next(workspace_id)

    @rule(workspace_id=workspaces, says_so=st.booleans())
    def a_machine_writes(self, workspace_id: str, says_so: bool) -> None:
        turn = self.active(workspace_id)
        if says_so:
            stream = self.run(
                self.process.stream("still there?", workspace_id, correlation={"type": "heartbeat"})
            )
        else:
            self.run(self.process.desk.stop("system", workspace_id))
            resuming = self.process.desk.engine.resume_stream(
                workspace_id, StreamRequest(text="a monitor fired")
            )
            exit_ = self.run(self.rt.run(resuming.exit()))
            if isinstance(exit_, fb.Failure):
                if turn is not None:
                    turn.streams = False
                return  # the last message has its answer
            stream = exit_.unwrap()
        self.run(self.process.desk.done(stream))
        if turn is not None:
            turn.streams = False

    @precondition(lambda self: any(t.status == "running" and not t.streams for t in self.turns))
    @rule(data=st.data())
    def a_turn_goes_on(self, data: st.DataObject) -> None:
        stalled = [t for t in self.turns if t.status == "running" and not t.streams]
        turn = data.draw(st.sampled_from(stalled))
        mark = correlation(turn.handle)
        self.run(self.process.stream("Go on", turn.workspace_id, correlation=mark))
        turn.streams = True

    @precondition(lambda self: bool(self.turns))
    @rule(data=st.data())
    def somebody_interrupts(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        self.run(self.rt.run(self.process.turns.interrupt(turn.handle.handle_id, by="ada")))
        if not turn.is_terminal:
            turn.settle("interrupted", "explicit-interrupt")
            self.start_next(turn.workspace_id)

    @precondition(lambda self: bool(self.turns))
    @rule(data=st.data(), foreign=st.booleans())
    def an_end_is_told_late(self, data: st.DataObject, foreign: bool) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        mark = correlation(turn.handle)
        if foreign:
            mark["turnId"] = "turn_old"
        elif not turn.is_terminal:
            return  # that would be its end
        end = StreamEndEvent(
            workspace_id=turn.workspace_id,
            message_id="a_late",
            correlation=mark,
            metadata=RowMetadata(finish_reason="stop"),
            parts=(),
        )
        self.inside(lambda: self.process.desk.engine.events.emit(end))
        # T8: what was transient, and a cut answer, is corrected.
        is_cut = (turn.status, turn.cause) == ("error", "correlated-stream-end")
        if not foreign and (turn.cause in TRANSIENT or is_cut):
            turn.status, turn.cause = "completed", "correlated-stream-end"

    @precondition(lambda self: bool(self.turns))
    @rule(data=st.data())
    def somebody_waits(self, data: st.DataObject) -> None:
        turn = data.draw(st.sampled_from(self.turns))
        turn.waiters.append(self.inside(lambda: self.process.waiting(turn.handle, timeout=1e6)))

    @rule(orderly=st.booleans())
    def the_process_ends(self, orderly: bool) -> None:
        self.run(self.process.idle())
        for turn in self.turns:
            for waiter in turn.waiters:
                self.run(self.rt.run(waiter.interrupt()))
            turn.waiters.clear()
        if orderly:
            self.run(self.process.crash())
        else:
            # Nothing of it reaches the disk any more.
            self.process.store.dies = lambda _record: True
            self.process.store.bury()
        for turn in self.turns:
            if turn.status == "running":
                turn.settle("interrupted", "stale-restart")
        for workspace_id in WORKSPACES:
            self.start_next(workspace_id)
        if not orderly:
            # Its streams would write to the same files.
            self.run(self.process.crash())
        self.begin()

    # ---- what always holds

    @invariant()
    def each_turn_is_as_the_model_says(self) -> None:
        self.run(self.process.idle())
        records = {r.handle_id: r for r in self.run(self.rt.run(self.process.turns.list()))}
        assert len(records) == len(self.turns)
        for turn in self.turns:
            record = records[turn.handle.handle_id]
            assert (record.status, record.cause) == (turn.status, turn.cause)
            stored = on_disk(self.state, turn.handle)
            assert (stored["status"], stored.get("cause")) == (turn.status, turn.cause)
            assert record.is_terminal == turn.is_terminal
            if record.is_terminal:
                assert record.settled_for is not None

    @invariant()
    def who_waits_has_an_answer_once_it_settled(self) -> None:
        for turn in self.turns:
            for waiter in turn.waiters:
                assert (waiter.poll() is not None) == turn.is_terminal
            if turn.is_terminal:
                assert self.process.turns._waiters.count(turn.handle.handle_id) == 0

    @invariant()
    def nothing_is_held_for_what_is_over(self) -> None:
        live = {turn.handle.handle_id for turn in self.turns if turn.status == "running"}
        running = cast("list[str]", self.process.turns.describe()["running"])
        assert {name.partition("/")[2] for name in running} == live
        assert len(self.process.turns.settlement._book.locks) == 0


def settings_for(examples: int) -> settings:
    """So many lives of some workspaces; each example is up to thirty steps."""
    return settings(
        max_examples=examples,
        stateful_step_count=30,
        deadline=None,
        database=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
