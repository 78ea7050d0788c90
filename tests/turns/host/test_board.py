"""The board: the tree of turns that what was told adds up to, and how much of it is kept."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, get_args

import pytest

from turns.events import (
    InterruptKind,
    InterruptReceivedEvent,
    LlmRequestEvent,
    SteeringInjectedEvent,
    SubturnEndEvent,
    SubturnOrphanEvent,
    SubturnSpawnEvent,
    ToolStartEvent,
    TurnEndEvent,
    TurnEvent,
    TurnStartEvent,
)
from turns.holds.permission import PermissionCard, PermissionNews, Verdict
from turns.host.board import PROMPT_CHARACTERS, Board, Change, TurnNode
from turns.model.cause import (
    Cause,
    CorrelatedStreamEnd,
    ExplicitInterrupt,
    StaleRestart,
    TerminalStreamError,
)
from turns.model.record import TurnRecord, TurnStatus
from turns.subturns.spawn import ENDED_HARD, INTERRUPTED

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
BEGIN_MS = 1767225600000


def at(seconds: float) -> datetime:
    return BEGIN + timedelta(seconds=seconds)


def a_record(
    number: int = 1, status: TurnStatus = "queued", *, seconds: float = 0, **fields: Any
) -> TurnRecord:
    """A record that was created ``number`` seconds after the begin, changed ``seconds`` later."""
    made: dict[str, Any] = {
        "handle_id": f"wst_{number}",
        "owner_workspace_id": "owner",
        "workspace_id": "w1",
        "turn_id": f"t{number}",
        "prompt": f"Do {number}",
        "created_at": at(number),
        "updated_at": at(number + seconds),
    }
    made.update(fields)
    return TurnRecord(status=status, **made)


def ended(number: int, cause: Cause, *, seconds: float = 0) -> TurnRecord:
    """The same once it settled."""
    settled = a_record(number, "running").settled(cause, None)
    return settled.model_copy(update={"updated_at": at(number + seconds)})


COMPLETE = CorrelatedStreamEnd(message_id="m1", finish_reason="stop")


def spawned(child: str, parent: str = "t1", *, seconds: float = 0, **fields: Any) -> TurnEvent:
    about: dict[str, Any] = {"prompt": f"Help as {child}", "depth": 1, "critical": False}
    return SubturnSpawnEvent(
        workspace_id="w1",
        turn_id=parent,
        child_id=child,
        timestamp_ms=BEGIN_MS + round(seconds * 1000),
        **{**about, **fields},
    )


def child_ended(
    child: str, parent: str = "t1", *, error: str | None = None, seconds: float = 0
) -> TurnEvent:
    return SubturnEndEvent(
        workspace_id="w1",
        turn_id=parent,
        child_id=child,
        status="completed" if error is None else "error",
        error=error,
        timestamp_ms=BEGIN_MS + round(seconds * 1000),
    )


def news(verdict: Verdict | None = None, *, request: str = "p1", turn: str = "t1") -> Any:
    return PermissionNews(PermissionCard(request, turn, "Run: ls", "shell"), verdict)


def shown(board: Board, workspace: str = "w1") -> list[str]:
    return [node.id for node in board.nodes(workspace)]


def node_of(board: Board, turn_id: str) -> TurnNode:
    (node,) = [node for node in board.nodes("w1") if node.id == turn_id]
    return node


def test_a_turn_is_shown_as_its_records_say() -> None:
    board = Board()

    changes = [
        board.fold_record(record)
        for record in (
            a_record(),
            a_record(status="starting", seconds=2),
            a_record(status="running", seconds=3),
            ended(1, TerminalStreamError(message_id="m", error_type="network", error="gone")),
        )
    ]

    states = [change.nodes[0].state for change in changes if change is not None]
    assert states == ["queued", "starting", "running", "error"]
    node = node_of(board, "t1")
    assert (node.handle_id, node.parent_id, node.prompt) == ("wst_1", None, "Do 1")
    assert (node.cause, node.reason) == ("terminal-stream-error", "network: gone")


def test_times_are_those_of_its_begin_and_of_the_end_of_its_work() -> None:
    board = Board()
    board.fold_record(a_record())
    board.fold_record(a_record(status="starting", seconds=2))
    board.fold_event(
        TurnStartEvent(workspace_id="w1", turn_id="t1", prompt="x", timestamp_ms=BEGIN_MS + 3500)
    )
    board.fold_event(
        TurnEndEvent(
            workspace_id="w1", turn_id="t1", status="completed", timestamp_ms=BEGIN_MS + 8000
        )
    )
    board.fold_record(ended(1, COMPLETE, seconds=9))
    # A later change of the record is not the end.
    board.fold_record(ended(1, COMPLETE, seconds=60))

    node = node_of(board, "t1")
    assert (node.created_at_ms, node.started_at_ms) == (BEGIN_MS + 1000, BEGIN_MS + 3000)
    assert node.ended_at_ms == BEGIN_MS + 8000


def test_the_end_of_its_loop_is_not_the_end_of_a_turn() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))

    board.fold_event(TurnEndEvent(workspace_id="w1", turn_id="t1", status="aborted"))

    assert node_of(board, "t1").state == "running"


def test_a_turn_of_an_earlier_process_has_no_begin_that_is_known() -> None:
    board = Board()

    board.fold_record(a_record(status="running", seconds=5))
    board.fold_record(ended(1, StaleRestart(), seconds=7))

    node = node_of(board, "t1")
    assert (node.started_at_ms, node.ended_at_ms) == (None, BEGIN_MS + 8000)


def test_a_late_proof_of_its_completion_corrects_what_is_shown() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))
    board.fold_record(ended(1, StaleRestart()))

    board.fold_record(ended(1, COMPLETE))

    node = node_of(board, "t1")
    assert (node.state, node.cause, node.reason) == ("completed", "correlated-stream-end", None)


def test_what_does_not_change_the_tree_is_no_change() -> None:
    board = Board()
    record = a_record(status="running")
    about: dict[str, Any] = {"workspace_id": "w1", "turn_id": "t1"}

    assert board.fold_record(record) is not None
    assert board.fold_record(record.changed(ignored_ends=3)) is None
    assert board.fold_event(LlmRequestEvent(**about, call=1, messages=2)) is None
    assert board.fold_event(ToolStartEvent(**about, tool_call_id="c", tool_name="shell")) is None


def test_of_a_long_prompt_the_beginning_is_shown() -> None:
    board = Board()
    board.fold_record(a_record(prompt="x" * (PROMPT_CHARACTERS + 1)))
    board.fold_record(a_record(2, prompt="y" * PROMPT_CHARACTERS))
    board.fold_record(a_record(3, prompt=None))

    prompts = [node.prompt for node in board.nodes("w1")]
    assert prompts == ["x" * (PROMPT_CHARACTERS - 1) + "…", "y" * PROMPT_CHARACTERS, ""]


# ---- below a turn


def test_children_come_after_their_parent_and_before_its_younger_sibling() -> None:
    board = Board()
    for number in (1, 2):
        board.fold_record(a_record(number, "running"))
    for event in (
        spawned("c1"),
        spawned("c2", critical=True),
        spawned("c3", "c1"),
        spawned("c4", "t2"),
    ):
        assert board.fold_event(event) is not None

    assert shown(board) == ["t1", "c1", "c3", "c2", "t2", "c4"]
    below = node_of(board, "c3")
    assert (below.parent_id, below.handle_id, below.prompt) == ("c1", None, "Help as c3")
    assert (below.state, below.started_at_ms) == ("running", BEGIN_MS)
    assert [node.critical for node in board.nodes("w1")].count(True) == 1
    assert node_of(board, "c2").critical


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "completed"),
        ("it broke", "error"),
        (INTERRUPTED, "interrupted"),
        (ENDED_HARD, "interrupted"),
    ],
)
def test_a_child_ends_as_it_is_told(error: str | None, state: str) -> None:
    board = Board()
    board.fold_record(a_record(status="running"))
    board.fold_event(spawned("c1"))

    board.fold_event(child_ended("c1", error=error, seconds=4))

    node = node_of(board, "c1")
    assert (node.state, node.reason, node.ended_at_ms) == (state, error, BEGIN_MS + 4000)


@pytest.mark.spec("U5")
@pytest.mark.parametrize("orphan_first", [True, False])
def test_a_result_that_nobody_took_is_shown(orphan_first: bool) -> None:
    board = Board()
    board.fold_record(a_record(status="running"))
    board.fold_event(spawned("c1"))
    orphan = SubturnOrphanEvent(
        workspace_id="w1", turn_id="t1", child_id="c1", reason="parent_finished", content="x"
    )

    told = [orphan, child_ended("c1")]
    for event in told if orphan_first else reversed(told):
        board.fold_event(event)

    node = node_of(board, "c1")
    assert (node.state, node.orphan) == ("completed", "parent_finished")


def test_what_is_told_of_turns_that_nobody_knows_changes_nothing() -> None:
    board = Board()
    events = [spawned("c1", "t9"), child_ended("c9"), spawned("c1", "t9")]
    folded = [board.fold_event(event) for event in events]
    board.fold_record(a_record(status="running"))
    folded += [board.fold_event(event) for event in events]
    folded += [board.fold_permission("w1", news(turn="t9")), board.fold_permission("w9", news())]

    assert folded == [None] * 8
    assert shown(board) == ["t1"]


def test_a_child_that_is_told_twice_is_shown_once() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))

    assert board.fold_event(spawned("c1")) is not None
    assert board.fold_event(spawned("c1")) is None
    assert shown(board) == ["t1", "c1"]


# ---- what others want of it


def interrupted(kind: InterruptKind, turn: str = "t1") -> TurnEvent:
    return InterruptReceivedEvent(workspace_id="w1", turn_id=turn, kind=kind)


def test_how_somebody_asked_it_to_end_is_shown_and_hard_counts_more() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))

    seen: list[str | None] = []
    for kind in (*get_args(InterruptKind), "graceful"):
        board.fold_event(interrupted(kind))
        seen.append(node_of(board, "t1").interrupt)

    assert seen == [None, "graceful", "hard_abort", "hard_abort"]


def test_a_child_can_be_asked_to_end_too() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))
    board.fold_event(spawned("c1"))

    board.fold_event(interrupted("graceful", "c1"))

    assert [node.interrupt for node in board.nodes("w1")] == [None, "graceful"]


def test_the_messages_that_it_was_given_are_counted() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))

    for messages in (1, 2):
        board.fold_event(SteeringInjectedEvent(workspace_id="w1", turn_id="t1", messages=messages))

    assert node_of(board, "t1").steered == 3


# ---- what it asks


@pytest.mark.parametrize("verdict", get_args(Verdict))
def test_a_turn_that_asks_waits_until_the_question_is_gone(verdict: Verdict) -> None:
    board = Board()
    board.fold_record(a_record(status="starting"))

    board.fold_permission("w1", news())
    waiting = node_of(board, "t1")
    # The record knows nothing of questions.
    board.fold_record(a_record(status="running"))
    still = node_of(board, "t1")
    board.fold_permission("w1", news(verdict))
    after = node_of(board, "t1")

    assert waiting.state == still.state == "waiting"
    assert waiting.question is not None
    assert waiting.question.to_mapping() == {
        "requestId": "p1",
        "question": "Run: ls",
        "subject": "shell",
    }
    assert (after.state, after.question) == ("running", None)


def test_the_end_of_another_question_leaves_the_one_that_is_up() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))
    board.fold_permission("w1", news(request="p2"))

    assert board.fold_permission("w1", news("allowed", request="p1")) is None
    assert node_of(board, "t1").state == "waiting"


@pytest.mark.spec("O13")
def test_a_turn_that_has_settled_asks_nothing_more() -> None:
    board = Board()
    board.fold_record(a_record(status="running"))
    board.fold_permission("w1", news())

    board.fold_record(ended(1, ExplicitInterrupt(by="ada")))
    settled = node_of(board, "t1")

    assert (settled.state, settled.question) == ("interrupted", None)
    assert settled.reason == "interrupted by ada"
    assert board.fold_permission("w1", news("dropped")) is None
    assert board.fold_permission("w1", news(request="p2")) is None
    assert node_of(board, "t1") == settled


# ---- workspaces, and bounds


def test_each_workspace_has_its_own_turns() -> None:
    board = Board()
    board.fold_record(a_record(1))
    change = board.fold_record(a_record(2, workspace_id="w2"))

    assert change is not None
    assert change.workspace_id == "w2"
    assert (shown(board), shown(board, "w2"), shown(board, "w3")) == (["t1"], ["t2"], [])
    assert board.fold_event(spawned("c1", "t2")) is None


def test_of_the_turns_that_have_ended_the_newest_are_shown_with_what_is_below() -> None:
    board = Board(roots=2)
    changes: list[Change | None] = []
    for number in (1, 2, 3):
        changes.append(board.fold_record(a_record(number, "running")))
        board.fold_event(spawned(f"c{number}", f"t{number}"))
        board.fold_event(child_ended(f"c{number}"))
        board.fold_record(ended(number, COMPLETE))

    assert shown(board) == ["t2", "c2", "t3", "c3"]
    assert [change.gone for change in changes if change is not None] == [(), (), ("t1", "c1")]


def test_what_has_not_ended_is_kept_however_old_it_is() -> None:
    board = Board(roots=1)
    board.fold_record(a_record(1, "running"))
    board.fold_record(a_record(2, "running"))
    board.fold_event(spawned("c2", "t2", critical=True))
    board.fold_record(ended(2, COMPLETE))
    board.fold_record(ended(3, COMPLETE))
    assert shown(board) == ["t1", "t2", "c2", "t3"]

    board.fold_event(child_ended("c2", "t2"))
    board.fold_record(a_record(4, "queued"))

    # Of those beyond the newest the one that runs stays.
    assert shown(board) == ["t1", "t4"]


def test_of_the_children_of_a_turn_the_newest_are_shown() -> None:
    board = Board(subturns=2)
    board.fold_record(a_record(1, "running"))
    gone: list[str] = []
    for number in range(1, 5):
        change = board.fold_event(spawned(f"c{number}", seconds=number))
        assert change is not None
        gone.extend(change.gone)
        if number != 1:
            board.fold_event(child_ended(f"c{number}"))

    assert shown(board) == ["t1", "c1", "c3", "c4"]
    assert gone == ["c2"]


def test_an_old_record_that_changes_late_does_not_come_back() -> None:
    board = Board(roots=1)
    for number in (1, 2):
        board.fold_record(ended(number, COMPLETE))

    assert board.fold_record(ended(1, COMPLETE, seconds=9)) is None
    assert shown(board) == ["t2"]
    assert not board.knows(a_record(1))


def test_records_that_come_in_another_order_are_shown_as_they_were_created() -> None:
    board = Board()
    for number in (3, 1, 2):
        board.fold_record(a_record(number))

    assert shown(board) == ["t1", "t2", "t3"]


# ---- the changes

Fold = Callable[[Board], Change | None]


def a_day_of_turns(seed: int) -> Iterator[Fold]:
    """All that can be told, in an order that nobody thought of."""
    rng = random.Random(seed)
    turns = [f"t{number}" for number in range(1, 9)]
    children = [f"c{number}" for number in range(1, 9)]
    statuses: list[TurnStatus] = ["queued", "starting", "running"]
    causes: list[Cause] = [COMPLETE, StaleRestart(), ExplicitInterrupt(by="ada")]
    for step in range(120):
        number = rng.randint(1, 8)
        anyone = rng.choice(turns + children)
        record = rng.choice(
            [
                a_record(number, rng.choice(statuses), seconds=step),
                ended(number, rng.choice(causes), seconds=step),
            ]
        )
        event = rng.choice(
            [
                spawned(rng.choice(children), anyone, seconds=step),
                child_ended(rng.choice(children), seconds=step),
                interrupted(rng.choice(get_args(InterruptKind)), anyone),
                SteeringInjectedEvent(workspace_id="w1", turn_id=anyone, messages=1),
            ]
        )
        asked = news(
            rng.choice([None, *get_args(Verdict)]),
            request=rng.choice(["p1", "p2"]),
            turn=f"t{number}",
        )
        yield rng.choice(
            [
                partial(Board.fold_record, record=record),
                partial(Board.fold_event, event=event),
                partial(Board.fold_permission, workspace_id="w1", news=asked),
            ]
        )


@pytest.mark.parametrize("seed", range(40))
def test_who_was_there_from_the_start_sees_what_a_newcomer_is_told(seed: int) -> None:
    board = Board(roots=3, subturns=4)
    seen: dict[str, TurnNode] = {}

    for fold in a_day_of_turns(seed):
        change = fold(board)
        if change is not None:
            assert change.nodes or change.gone
            for turn_id in change.gone:
                del seen[turn_id]  # it was shown, and goes once
            seen.update({node.id: node for node in change.nodes})
        told = board.nodes("w1")
        assert seen == {node.id: node for node in told}
        # Each after what it is below.
        above: set[str | None] = {None}
        for node in told:
            assert node.parent_id in above
            above.add(node.id)


@pytest.mark.parametrize("newest_first", [False, True])
def test_a_long_queue_is_not_gone_through_for_each_turn_that_joins_it(
    monkeypatch: pytest.MonkeyPatch, newest_first: bool
) -> None:
    looks = 0

    def has_ended(node: TurnNode) -> bool:
        nonlocal looks
        looks += 1
        return node.state in ("completed", "interrupted", "error")

    monkeypatch.setattr(TurnNode, "has_ended", property(has_ended))
    board = Board(roots=5)
    numbers = range(200, 0, -1) if newest_first else range(1, 201)
    for number in numbers:
        board.fold_record(a_record(number))
    board.fold_record(ended(7, COMPLETE))
    change = board.fold_record(a_record(201))

    assert change is not None
    assert change.gone == ("t7",)
    assert len(shown(board)) == 200
    assert looks < 5 * 200


def test_what_is_below_an_old_turn_keeps_it_until_that_has_ended_too() -> None:
    board = Board(roots=1)
    board.fold_record(a_record(1, "running"))
    board.fold_event(spawned("c1"))
    for number in (2, 3):
        board.fold_record(a_record(number))
    board.fold_record(ended(1, COMPLETE))
    board.fold_record(ended(2, COMPLETE))
    kept = board.fold_record(a_record(4))
    board.fold_event(child_ended("c1"))
    after = board.fold_record(a_record(5))

    assert kept is not None
    assert after is not None
    assert (kept.gone, after.gone) == (("t2",), ("t1", "c1"))


def test_a_turn_that_begins_after_the_clock_was_set_back_is_the_newest() -> None:
    board = Board(roots=2)
    for number in (100, 101):
        board.fold_record(ended(number, COMPLETE))
    board.fold_record(a_record(1), is_new=True)
    began = shown(board)
    board.fold_record(ended(1, COMPLETE))
    change = board.fold_record(a_record(2), is_new=True)

    assert began == ["t101", "t1"]
    assert change is not None
    assert change.gone == ("t101",)
    assert shown(board) == ["t1", "t2"]


def test_of_children_the_newest_are_shown_also_when_the_clock_was_set_back() -> None:
    board = Board(subturns=2)
    board.fold_record(a_record(1, "running"))
    for child, seconds in (("c1", 50), ("c2", 51), ("c3", 2)):
        board.fold_event(spawned(child, seconds=seconds))
        board.fold_event(child_ended(child))

    assert shown(board) == ["t1", "c2", "c3"]
